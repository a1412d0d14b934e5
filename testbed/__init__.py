"""Starts the processes of tests and benchmarks (ours, Spark's, a real RocketMQ) and waits for them.  Not installed."""
