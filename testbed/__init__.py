"""What tests and benchmarks both start and wait for: our processes, Spark's, a real RocketMQ.  It is not installed."""
