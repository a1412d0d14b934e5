"""A broker pair for tests of programs that use RocketSim: `pair()`, and fixtures for pytest in `plugin.py`."""

from rocketsim_testing.local_pair import Pair, pair

__all__ = ["Pair", "pair"]
