"""Measures the CPU time of a run by kind of process, because this shows which process limits the run."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import psutil

HARNESS, ENDED, OTHER = "harness", "processes that ended in it", "other"
SHOWN = 0.05  # a kind of process that uses less than this share of a core is not shown
# A process is of the first kind whose pattern is in the command line of the process.
KINDS = (
    (" broker -c ", "master"),
    (" namesrv -c ", "name server"),
    ("benchmarks.load", "client"),
    ("benchmarks.raw server", "raw server"),
    ("benchmarks.raw", "raw client"),
    ("kafka.Kafka", "Kafka"),
    ("kafka_client", "librdkafka"),
    ("slave.properties", "RocketMQ's slave"),
    ("master.properties", "RocketMQ's master"),
    ("ProxyStartup", "proxy"),
    ("RocketMqLoad", "Java client"),
    ("RocketMqV2Load", "Java client"),
    ("benchmarks.null_broker", "null broker"),
    ("rocketmq_client", "Python client"),
    ("SparkSubmit", "Spark's JVM"),
    ("pyspark", "Spark's Python"),
)


def kind_of(command: Sequence[str]) -> str:
    line = " ".join(command)
    kind = next((kind for words, kind in KINDS if words in line), OTHER)
    return "slave" if kind == "master" and line.endswith("-s.properties") else kind


class Used(NamedTuple):
    """The CPU seconds that each kind of process has used in `wall` seconds."""

    seconds: Mapping[str, float]
    wall: float


class Meter:
    """Measures CPU time from its construction on.  The CPU time of a process that ends meanwhile is included."""

    def __init__(self) -> None:
        self._before = _seconds()
        self._begun = time.perf_counter()

    def __call__(self) -> Used:
        wall = time.perf_counter() - self._begun
        found: dict[str, float] = {}
        for pid, (kind, seconds) in _seconds().items():
            found[kind] = found.get(kind, 0.0) + seconds - self._before.get(pid, (kind, 0.0))[1]
        return Used(found, wall)


def _seconds() -> dict[int, tuple[str, float]]:
    """Returns {process id: (kind, CPU seconds)}.

    The entry 0 has the CPU time of ended children of the harness.  An ended Python worker of Spark counts for Spark's
    daemon, which has reaped it.
    """
    me = psutil.Process()
    found = {}
    for process in (me, *me.children(recursive=True)):
        try:
            kind = HARNESS if process.pid == me.pid else kind_of(process.cmdline())
            used = process.cpu_times()
        except psutil.Error:
            continue  # the process has just ended
        reaped = used.children_user + used.children_system if kind == "Spark's Python" else 0.0
        found[process.pid] = (kind, used.user + used.system + reaped)
        if kind == HARNESS:
            found[0] = (ENDED, used.children_user + used.children_system)
    return found


def line(runs: Sequence[tuple[Used, float | None]]) -> str:
    """Formats the CPU time of runs as text, such as `client 0.62 µs (0.97 cores), ... a message; 1.9 of 2 cores
    busy`.
    """
    wall = sum(used.wall for used, _ in runs)
    total: dict[str, float] = {}
    for used, _ in runs:
        for kind, seconds in used.seconds.items():
            total[kind] = total.get(kind, 0.0) + seconds
    messages = sum(count or 0.0 for _, count in runs)
    words = []
    for kind, seconds in sorted(total.items(), key=lambda item: -item[1]):
        if seconds / wall < SHOWN:
            continue
        each = f" {seconds / messages * 1e6:.3g} µs" if messages else ""
        words.append(f"{kind}{each} ({seconds / wall:.2f} cores)")
    each = " a message" if messages else ""
    return f"{', '.join(words)}{each}; {sum(total.values()) / wall:.1f} of {os.cpu_count()} cores busy"
