"""A broker on disk: log, consume queues, index, and their recovery.  Synchronous."""
