"""The files of a broker: the commit log, consume queues, the index, and their recovery.  The code is synchronous."""
