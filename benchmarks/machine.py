"""Describes the machine and the measured versions, for the heading of each table."""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import psutil
from rocketsim_proto.records import kernels

PACKAGES = ("pyspark", "pyarrow", "numpy", "grpcio", "protobuf")


def describe() -> list[str]:
    memory = psutil.virtual_memory().total / 2**30
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    return [
        f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}",
        f"Python {sys.version.split()[0]}, {versions}",
        f"record codec: {kernels.in_use()}",
    ]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )


class OthersShare:
    """Measures, from its construction on, the share of the machine's CPU that other processes use.

    If other processes use much of the CPU, the figures are not reliable.
    """

    def __init__(self) -> None:
        self._before = _times()

    def __call__(self) -> float:
        busy, own, room = (now - then for now, then in zip(_times(), self._before, strict=True))
        return max(0.0, busy - own) / room if room else 0.0


def _times() -> tuple[float, float, float]:
    """Returns three sums of CPU seconds: what all processes have used, what this process and its children (also ended
    ones) have used, and what was available.
    """
    times = psutil.cpu_times()
    # In psutil, user and nice already include guest and guest_nice.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    idle = times.idle + getattr(times, "iowait", 0.0)
    own = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            used = process.cpu_times()
        except psutil.Error:
            continue
        own += used.user + used.system + used.children_user + used.children_system
    return total - idle, own, total
