"""Starts the processes of tests and benchmarks (ours, Spark's, a real RocketMQ) and waits for them.  The package is
for this repository only, and is not installed.
"""
