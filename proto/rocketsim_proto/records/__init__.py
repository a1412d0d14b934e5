"""The codec of RocketMQ's commit-log records: `record` handles one record at a time, `columnar` handles batches."""
