"""Commits the offsets of the query's consumer group, which follow the checkpoint."""
