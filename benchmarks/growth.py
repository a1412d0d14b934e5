"""P14 measures how the cost per row grows with the log, the number of queues and the size of bodies, and how long it
takes to compute the lag of many groups.

There are no peers to compare with.
"""

import time

from benchmarks import cluster, spark, targets
from benchmarks.bench import Bench, must_be
from benchmarks.cluster import OurCluster
from benchmarks.contest import Contestant, Results, Sample
from benchmarks.figures import Missing, Series
from benchmarks.sends import our_sends
from benchmarks.spark import Spark
from benchmarks.targets import Target
from rocketsim_client import MessageQueue

SIZE = 100
GROUPS, GROUP_QUEUES = (10, 100, 1000), 16
QUEUES = (4, 64, 1024)
BODIES = (100, 1024, 64 << 10)


def run(bench: Bench) -> None:
    made, _ = bench.enter(spark.session(bench))
    with bench.section():
        by_log(bench, made)
    with bench.section():
        by_queues(bench, made)
    with bench.section():
        by_backlog(bench, made)
    with bench.section():
        by_size(bench)
    with bench.section():
        by_groups(bench)


def by_log(bench: Bench, made: Spark) -> None:
    """Reads the same rows from a small log, from the middle of a larger log, and from both ends of the largest log."""
    rows = bench.plan.pick(1_000_000, 300_000, 20_000)
    sizes = [size << 20 for size in bench.plan.pick((1 << 10, 4 << 10, 16 << 10), (256, 1024), (8,))]
    usual = log_of(sizes[0])
    every: dict[str, Contestant | Missing] = {}
    for size in sizes:
        one = bench.enter(cluster.running(bench, f"log-{size >> 20}"))
        one.fill("first", rows, SIZE)
        grow(bench, one, size)
        every |= readers(log_of(size), one, made, "first", rows)
    one.fill("last", rows, SIZE)
    end = f"{log_of(sizes[-1])}, rows at its end"
    every |= readers(end, one, made, "last", rows)
    results = bench.contest(every, "log:")
    for what in (*map(log_of, sizes[1:]), end):
        both(bench, what, results, what, usual, usual, targets.GROWTH_LOG, by_amount=True)


def log_of(size: int) -> str:
    return f"{size >> 30} GiB of log" if size >> 30 else f"{size >> 20} MiB of log"


def grow(bench: Bench, one: OurCluster, wanted: int) -> None:
    """Fills the log with messages of another topic, up to about `wanted` bytes."""
    step, filled = 100_000, 0
    a_record = 4096 + 200
    one.topic("filler")
    while filled + step * a_record <= wanted:
        bench.doing(f"filling the log, {filled >> 20:,} of {wanted >> 20:,} MiB")
        one.load.ask("fill", topic="filler", count=step, size=4096)
        filled += step * a_record


def by_queues(bench: Bench, made: Spark) -> None:
    one = bench.enter(cluster.running(bench, "queues"))
    rows = bench.plan.pick(1_000_000, 1_000_000, 20_000)
    every: dict[str, Contestant | Missing] = {}
    for queues in QUEUES:
        every |= readers(f"{queues} queues", one, made, one.fill(f"queues{queues}", rows, SIZE, queues), rows)
    results = bench.contest(every, "queues:")
    for queues in QUEUES[1:]:
        usual, what = f"{QUEUES[0]} queues", f"{queues} queues"
        both(bench, what, results, what, usual, usual, targets.GROWTH_QUEUES)


def by_backlog(bench: Bench, made: Spark) -> None:
    """Reads backlogs of several sizes to their end, without a target for the figures."""
    one = bench.enter(cluster.running(bench, "backlog"))
    every: dict[str, Contestant | Missing] = {}
    backlogs = bench.plan.pick((250_000, 1_000_000, 4_000_000), (100_000, 400_000), (10_000, 20_000))
    for rows in backlogs:
        every |= readers(f"{rows:,} rows", one, made, one.fill(f"backlog{rows}", rows, SIZE), rows)
    results = bench.contest(every, "backlog:")
    for rows in backlogs[1:]:
        usual, what = f"{backlogs[0]:,} rows", f"{rows:,} rows"
        both(bench, f"a backlog of {what}", results, what, f"a backlog of {usual}", usual)


def by_size(bench: Bench) -> None:
    """Pulls and sends bodies of several sizes, without a target for the figures."""
    one = bench.enter(cluster.running(bench, "sizes"))
    every: dict[str, Contestant | Missing] = {}
    for size in BODIES:
        count = bench.plan.pick(256 << 20, 64 << 20, 8 << 20) // (size + 150)
        topic = one.fill(f"pull{size}", count, size)
        every[f"columnar pull, {size:,} B"] = lambda topic=topic: one.load.ask("pull_columns", topic=topic)  # type: ignore[misc]
        every[f"columnar send, {size:,} B"] = our_sends(
            one, "send_columns", one.topic(f"send{size}"), size=size, seconds=bench.plan.pick(2, 1, 1)
        )
    results = bench.contest(every, "size:")
    for name in every:
        size = int(name.split()[2].replace(",", ""))
        rates = results.series(name)
        bench.report(f"{name}: messages", "msgs/s", rates)
        if isinstance(rates, Series):
            bench.report(f"{name}: bodies", "MB/s", Series.of(value * size / 1e6 for value in rates.values))


def by_groups(bench: Bench) -> None:
    one = bench.enter(cluster.running(bench, "groups"))
    topic = one.fill("groups", 16_000, SIZE, GROUP_QUEUES)
    ends = {queue: found.max_offset for queue, found in one.admin.cluster.bounds(topic).items()}
    for groups in bench.plan.pick(GROUPS, GROUPS, GROUPS[:1]):
        one.load.ask("commit_groups", topic=topic, groups=groups)
        results = bench.contest({"lag": lambda groups=groups: lag(one, groups, ends)}, f"{groups} groups:")  # type: ignore[misc]
        name = f"lag of {groups:,} groups x {GROUP_QUEUES} queues"
        bench.report(name, "s", results.series("lag", "seconds"), target=targets.GROWTH_LAG)


def lag(one: OurCluster, groups: int, ends: dict[MessageQueue, int]) -> Sample:
    begun = time.perf_counter()
    progress = [each for each in one.admin.consumer_progress() if each.group.startswith("lag-")]
    total = sum(each.diff for each in progress)
    seconds = time.perf_counter() - begun
    must_be("queues with a lag", len(progress), groups * GROUP_QUEUES)
    must_be("the lag of all groups", total, sum(lag_of(ends, number) for number in range(groups)))
    return {"seconds": seconds}


def lag_of(ends: dict[MessageQueue, int], number: int) -> int:
    """Returns the lag that the group with this number has after `commit_groups` in load.py has run."""
    return sum(end - number % 7 for end in ends.values())


def readers(name: str, one: OurCluster, made: Spark, topic: str, rows: int) -> dict[str, Contestant | Missing]:
    """Returns contestants that measure microseconds per row, one with a pull and one with Spark."""
    source = spark.rocketsim(one.name_server.address, topic, schemaProfile="kafka")

    def pull() -> Sample:
        answer = one.load.ask("pull_columns", topic=topic)
        must_be(f"messages of {topic}", answer["messages"], rows)
        return {"messages": rows, "us": answer["seconds"] / rows * 1e6}

    def read() -> Sample:
        return {"messages": rows, "us": made.batch(source, rows)["seconds"] / rows * 1e6}

    return {f"{name}: pull": pull, f"{name}: Spark": read}


def both(
    bench: Bench,
    what: str,
    results: Results,
    name: str,
    reference: str,
    reference_name: str,
    target: Target | None = None,
    *,
    by_amount: bool = False,
) -> None:
    for reader, words in (("pull", "columnar pull"), ("Spark", "Spark read, Kafka's columns")):
        cost, usual = (results.series(f"{one}: {reader}", "us") for one in (name, reference_name))
        bench.report(f"{words}, {what}", "µs a row", cost, reference, usual, target, by_amount=by_amount)
