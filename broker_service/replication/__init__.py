"""The copy of a master's log and metadata on its slaves: streams, acknowledgements, epochs."""
