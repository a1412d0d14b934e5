"""Machine gives a broker its disk, its network, its clocks and its random numbers.

The defaults are those of the real machine.  The simulation passes another Machine, which runs from a seed, and whose
parts fail and stop as the simulation decides.
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
    monotonic: Callable[[], float] = time.monotonic  # seconds; this clock never goes back
    now_ms: Callable[[], int] = now_ms  # the time of day, which may jump; `broker_time.py` filters its jumps
    since_boot: Callable[[], float] = since_boot  # seconds; this clock also runs while the machine is suspended
    chance: random.Random = field(default_factory=random.Random)
