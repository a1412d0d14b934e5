"""Benchmarks that measure RocketSim and its alternatives in the same run.  `python -m benchmarks` lists the benchmarks.

The package is never installed, so it may import every other package, the tests' code, and the peers' clients.
"""
