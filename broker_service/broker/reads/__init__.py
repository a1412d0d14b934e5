"""Serves the calls of consumers: pulls, ranges, bounds of queues, and committed offsets."""
