"""Replication copies a master's log and metadata to its slaves: streams, acknowledgements, epochs."""
