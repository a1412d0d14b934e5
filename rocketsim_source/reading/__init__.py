"""The work of a task on an executor: it reads ranges of queues and returns Arrow batches."""
