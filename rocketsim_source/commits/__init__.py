"""Commits offsets for the query's consumer group, after the checkpoint has them."""
