"""RocketSim's costs beside those of its alternatives, measured in one run.  `python -m benchmarks` lists them.

Not installed, so it may import every package, the tests' code that starts processes, and the peers.
"""
