"""Benchmarks that measure RocketSim beside its alternatives in one run.  `python -m benchmarks` lists them.

The package is not installed, so it may import every other package, the code of the tests, and the peers.
"""
