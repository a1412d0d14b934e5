"""The work of a task on an executor, which reads ranges of queues and returns Arrow batches."""
