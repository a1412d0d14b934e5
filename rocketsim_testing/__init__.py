"""A broker pair for tests of programs that use RocketSim: `pair()`, and fixtures for pytest in `plugin.py`.

pytest imports this package whenever it starts, so the module behind a name is imported only when the name is first
used.
"""

from typing import TYPE_CHECKING

from rocketsim_proto.extras import need

if TYPE_CHECKING:
    from rocketsim_testing.local_pair import Pair as Pair
    from rocketsim_testing.local_pair import pair as pair

__all__ = ["Pair", "pair"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need("testing")
    from rocketsim_testing import local_pair

    return getattr(local_pair, name)
