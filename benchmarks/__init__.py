"""What RocketSim costs, beside what a user would take instead, measured in one run.  `python -m benchmarks` lists it.

Outside the packages that are installed: it may see both sides, the tests' way to start processes, and the peers.
"""
