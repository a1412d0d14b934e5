"""What a task does on an executor: ranges of queues in, Arrow batches out."""
