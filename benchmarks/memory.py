"""P13 measures the memory (without page cache) of Spark's workers, and of a broker pair after millions of messages."""

from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks import cluster, spark, targets
from benchmarks.bench import Bench
from benchmarks.contest import Sample
from benchmarks.figures import Series
from benchmarks.sampler import Sampler

SIZE = 100
STEPS = 10
LOOK_S = 0.05


def run(bench: Bench) -> None:
    made, _ = bench.enter(spark.session(bench))
    pair = bench.enter(cluster.running(bench, "pair", pair=True))
    count = bench.plan.pick(5_000_000, 2_000_000, 50_000)
    step = bench.plan.pick(6_000_000, 500_000, 5_000)
    topic, more = pair.topic("memory"), pair.topic("more")
    assert pair.slave is not None
    servers = {"master": pair.master, "slave": pair.slave}

    def used_after(topic: str, messages: int, start: int) -> dict[str, float]:
        sent = pair.load.ask("fill", topic=topic, size=SIZE, count=messages, start=start)
        pair.stored_at_least(topic, sent["messages"])
        pair.await_slave()
        return {name: anonymous_mib(server.pid) for name, server in servers.items()}

    bench.doing("sending")
    first = used_after(topic, count, 0)
    steps = []
    for number in range(STEPS):
        bench.doing(f"sending more, {number + 1} of {STEPS}")
        steps.append(used_after(more, step, number * step))
    for name in servers:
        bench.report(
            f"{name} after {count / 1e6:g} M messages",
            "MiB",
            Series.of([first[name]]),
            target=targets.MEMORY,
            by_amount=True,
        )
        values = [first[name], *(used[name] for used in steps)]
        bench.report(
            f"{name}, over {STEPS * step / 1e6:g} M more",
            "MiB",
            Series.of(values),
            target=targets.MEMORY,
            by_amount=True,
        )
        bench.report(
            f"{name}, slope over {STEPS * step / 1e6:g} M more",
            "MiB per million",
            Series.of([slope(values) * 1e6 / step]),
            target=targets.MEMORY_SLOPE,
            by_amount=True,
        )

    def read() -> Sample:
        with Workers() as workers:
            made.batch(spark.rocketsim(pair.name_server.address, topic), count)
        return {"peak": workers.peak_mib}

    results = bench.contest({"worker": read})
    peaks = results.series("worker", "peak")
    bench.report("a Spark worker, reading all columns: peak", "MiB", peaks)
    if isinstance(peaks, Series):
        highest = Series.of([peaks.high])
        bench.report(
            "a Spark worker, its highest in all runs", "MiB", highest, target=targets.MEMORY_WORKER, by_amount=True
        )


def slope(values: Sequence[float]) -> float:
    """Returns the slope of the least-squares line through the values, per step from one value to the next."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    over = sum((at - middle) * (value - mean) for at, value in enumerate(values))
    return over / sum((at - middle) ** 2 for at in range(len(values)))


def anonymous_mib(pid: int) -> float:
    """Returns the anonymous memory of a process in MiB.  Mapped files are not counted, because they are page cache."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"/proc/{pid}/status has no RssAnon")


class Workers(Sampler):
    """Measures periodically the memory of the largest of Spark's Python workers."""

    def __init__(self) -> None:
        super().__init__(LOOK_S)
        self.peak_mib = 0.0

    def sample(self) -> None:
        for process in psutil.Process().children(recursive=True):
            try:
                if any("pyspark" in word for word in process.cmdline()) and "python" in process.name():
                    self.peak_mib = max(self.peak_mib, anonymous_mib(process.pid))
            except (psutil.Error, OSError, ValueError):
                continue  # the process has just ended
