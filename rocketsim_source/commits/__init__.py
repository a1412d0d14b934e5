"""Commits the offsets of the consumer group, which follow the checkpoint."""
