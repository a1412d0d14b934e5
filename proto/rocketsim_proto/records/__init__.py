"""The record codec: RocketMQ's commit-log records as bytes, one at a time (`record`) and whole batches (`columnar`)."""
