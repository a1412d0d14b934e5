"""What consumers ask: pulls, ranges, bounds of queues, and their committed offsets."""
