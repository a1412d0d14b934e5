"""Pulls, ranges, bounds of queues, and committed offsets: the calls of consumers."""
