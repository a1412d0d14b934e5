"""Machine: what a broker has of the machine it runs on: its disk, its clocks, its network and chance.

The defaults are the real ones.  Whatever a broker reads, writes, dials or measures comes from here, so that the
simulation can put a machine in its place that fails, stands still and runs from a seed.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from broker_service.runtime.server import Network
from broker_service.store.files import Files


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Machine:
    files: Files = field(default_factory=Files)
    network: Network = field(default_factory=Network)
    monotonic: Callable[[], float] = time.monotonic  # seconds that never go back
    now_ms: Callable[[], int] = now_ms  # of the day; may jump: `broker_time.py` says what of it is believed
    since_boot: Callable[[], float] = since_boot  # seconds, also those of a suspended machine
    chance: random.Random = field(default_factory=random.Random)
