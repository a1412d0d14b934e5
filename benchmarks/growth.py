"""P14: what a row costs with more log, more queues and larger bodies; the lag of many groups.  Against itself."""

import time

from benchmarks import cluster, spark, targets
from benchmarks.bench import Bench, must_be
from benchmarks.cluster import OurCluster
from benchmarks.contest import Contestant, Results, Sample
from benchmarks.figures import Missing, Series
from benchmarks.spark import Spark
from benchmarks.targets import Target
from rocketsim_client import MessageQueue

SIZE = 100
GROUPS, GROUP_QUEUES = 1000, 16
QUEUES = (4, 64, 1024)


def run(bench: Bench) -> None:
    made, _ = bench.enter(spark.session(bench))
    with bench.section():
        by_log(bench, made)
    with bench.section():
        by_queues(bench, made)
    with bench.section():
        by_size(bench)
    with bench.section():
        by_groups(bench)


def by_log(bench: Bench, made: Spark) -> None:
    """The same rows in a small log, and at the beginning and the end of a large one."""
    rows = bench.plan.pick(1_000_000, 400_000, 20_000)
    small, large = (size << 20 for size in bench.plan.pick((1024, 16 << 10), (256, 1024), (8, 16)))
    little, much = (bench.enter(cluster.running(bench, f"log-{size >> 20}")) for size in (small, large))
    little.fill("first", rows, SIZE)
    much.fill("first", rows, SIZE)
    grow(bench, little, small)
    grow(bench, much, large)
    much.fill("last", rows, SIZE)
    usual, begin, end = "small", "large, beginning", "large, end"
    every = readers(usual, little, made, "first", rows)
    every |= readers(begin, much, made, "first", rows) | readers(end, much, made, "last", rows)
    results = bench.contest(every)
    for what, where in ((begin, "beginning"), (end, "end")):
        name = f"{large >> 20:,} MiB of log, rows at its {where}"
        both(bench, name, results, what, f"{small >> 20:,} MiB of log", usual, targets.GROWTH_LOG)


def grow(bench: Bench, one: OurCluster, wanted: int) -> None:
    """Fills the log with other messages to about that many bytes."""
    step, filled = 200_000, 0
    one.topic("filler")
    while filled + step * 1200 <= wanted:  # 1200: with a record's other fields
        bench.doing(f"filling the log, {filled >> 20:,} of {wanted >> 20:,} MiB")
        one.load.ask("fill", topic="filler", count=step, size=1024)
        filled += step * 1200


def by_queues(bench: Bench, made: Spark) -> None:
    one = bench.enter(cluster.running(bench, "queues"))
    rows = bench.plan.pick(1_000_000, 400_000, 20_000)
    every: dict[str, Contestant | Missing] = {}
    for queues in QUEUES:
        every |= readers(f"{queues}", one, made, one.fill(f"queues{queues}", rows, SIZE, queues), rows)
    results = bench.contest(every, "queues:")
    for queues in QUEUES[1:]:
        usual = f"{QUEUES[0]}"
        both(bench, f"{queues:,} queues", results, f"{queues}", f"{usual} queues", usual, targets.GROWTH_QUEUES)


def by_size(bench: Bench) -> None:
    """For docs/performance.md: no target."""
    one = bench.enter(cluster.running(bench, "sizes"))
    for size in (100, 1024, 64 << 10):
        count = bench.plan.pick(1 << 30, 256 << 20, 8 << 20) // (size + 150)
        topic = one.fill(f"size{size}", count, size)
        results = bench.contest({"pull": lambda topic=topic: one.load.ask("pull_columns", topic=topic)})  # type: ignore[misc]
        series = results.series("pull", "bytes_rate")
        if isinstance(series, Series):
            bench.report(f"columnar pull, {size:,} B", "MB/s", Series.of(value / 1e6 for value in series.values))


def by_groups(bench: Bench) -> None:
    one = bench.enter(cluster.running(bench, "groups"))
    topic = one.fill("groups", 16_000, SIZE, GROUP_QUEUES)
    groups = bench.plan.pick(GROUPS, GROUPS, 20)
    one.load.ask("commit_groups", topic=topic, groups=groups)
    ends = {queue: found.max_offset for queue, found in one.admin.cluster.bounds(topic).items()}

    def lag() -> Sample:
        begun = time.perf_counter()
        progress = [each for each in one.admin.consumer_progress() if each.group.startswith("lag-")]
        total = sum(each.diff for each in progress)
        seconds = time.perf_counter() - begun
        must_be("queues with a lag", len(progress), groups * GROUP_QUEUES)
        must_be("the lag of all groups", total, sum(lag_of(ends, number) for number in range(groups)))
        return {"seconds": seconds}

    results = bench.contest({"lag": lag})
    name = f"lag of {groups:,} groups x {GROUP_QUEUES} queues"
    bench.report(name, "s", results.series("lag", "seconds"), target=targets.GROWTH_LAG)


def lag_of(ends: dict[MessageQueue, int], number: int) -> int:
    """What load.py's commit_groups leaves to the group of that number."""
    return sum(end - number % 7 for end in ends.values())


def readers(name: str, one: OurCluster, made: Spark, topic: str, rows: int) -> dict[str, Contestant | Missing]:
    """Microseconds a row."""
    source = spark.rocketsim(one.name_server.address, topic, schemaProfile="kafka")

    def pull() -> Sample:
        answer = one.load.ask("pull_columns", topic=topic)
        must_be(f"messages of {topic}", answer["messages"], rows)
        return {"us": answer["seconds"] / rows * 1e6}

    return {
        f"{name}: pull": pull,
        f"{name}: Spark": lambda: {"us": made.batch(source, rows)["seconds"] / rows * 1e6},
    }


def both(
    bench: Bench, what: str, results: Results, name: str, reference: str, reference_name: str, target: Target
) -> None:
    for reader, words in (("pull", "columnar pull"), ("Spark", "Spark read, Kafka's columns")):
        cost, usual = (results.series(f"{one}: {reader}", "us") for one in (name, reference_name))
        bench.report(f"{words}, {what}", "µs a row", cost, reference, usual, target)
