"""P22 measures what idle streaming queries of Spark cost, and how soon the first message of a quiet topic is committed.

Every query reads a topic of its own, with Spark's default trigger and into the noop sink.  All queries are in one Spark
session, so they share its JVM, but Spark's Python reader has a process of its own for each query.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import psutil

from benchmarks import cluster, cpu, spark, targets
from benchmarks.bench import Bench, WrongResult, must_be
from benchmarks.cluster import OurCluster
from benchmarks.contest import Sample
from benchmarks.cpu import Used
from benchmarks.figures import Series
from benchmarks.spark import Spark, ended_ms
from rocketsim_source.commits.termination import RUNNER
from testbed.polling import wait_until

SIZE = 100
# kinds of processes, as cpu.py names them
SERVERS = ("name server", "master", "slave")
READERS = ("Spark's Python",)
JVM = ("Spark's JVM",)


class Idle(NamedTuple):
    """A streaming query, and the topic that it reads."""

    topic: str
    query: Any


def run(bench: Bench) -> None:
    made, _ = bench.enter(spark.session(bench))
    pair = bench.enter(cluster.running(bench, "pair", pair=True))
    number = bench.plan.pick(20, 20, 2)
    topics = [pair.topic(f"idle-{count:02}") for count in range(number)]
    bench.doing("measuring the servers without queries")
    time.sleep(bench.plan.pick(5.0, 2.0, 0.1))
    without = used_in(bench.plan.pick(60.0, 20.0, 1.0))
    with started(bench, made, pair, topics) as queries:
        bench.doing(f"{number} queries become idle")
        time.sleep(bench.plan.pick(30.0, 10.0, 0.5))
        idle_cpu(bench, number, without)
        must_be("queries that are still active", sum(one.query.isActive for one in queries), number)
        first_rows(bench, pair, queries)


@contextmanager
def started(bench: Bench, made: Spark, pair: OurCluster, topics: Sequence[str]) -> Iterator[list[Idle]]:
    """Starts a query for each topic, and stops the queries at the end of the block.

    Each query starts when the one before it has finished its first trigger, because Spark waits only ten seconds for
    the process of a query, and many processes that start together take longer.
    """
    before = reader_processes()
    queries: list[Idle] = []
    try:
        for topic in topics:
            bench.doing(f"starting query {len(queries) + 1} of {len(topics)}")
            frame = spark.rocketsim(pair.name_server.address, topic).frame(made.session.readStream)
            query = frame.writeStream.format("noop").option("checkpointLocation", made.checkpoint()).start()
            queries.append(Idle(topic, query))
            query.processAllAvailable()
        if (found := len(reader_processes() - before)) < len(queries):
            raise WrongResult(f"{len(queries)} queries have only {found} Python processes, but each must have its own")
        yield queries
    finally:
        for one in queries:
            one.query.stop()


def reader_processes() -> set[int]:
    """Returns the ids of the processes in which Spark runs the readers of streaming queries."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if RUNNER in process.cmdline():
                found.add(process.pid)
        except psutil.Error:
            continue  # the process has just ended
    return found


# --- CPU ------------------------------------------------------------------------------------------------------------


def idle_cpu(bench: Bench, number: int, without: Used) -> None:
    """Measures the CPU of `number` idle queries.  `without` is what was used before the queries were started."""
    seconds = bench.plan.pick(20.0, 15.0, 1.0)
    plan = replace(bench.plan, warm_up=0)  # the queries have had time to settle
    results = bench.contest({"idle": lambda: per_query(used_in(seconds), without, number)}, f"{number} queries,", plan)
    for key, what, target in (
        ("readers", "their Python processes", None),
        ("servers", "name server and brokers, beyond their CPU without queries", None),
        ("together", "Python processes and servers together", targets.IDLE_QUERIES),
        ("jvm", "Spark's JVM", None),
    ):
        name = f"{number} idle queries, CPU a query: {what}"
        bench.report(name, "% of a core", results.series("idle", key), target=target)


def used_in(seconds: float) -> Used:
    """Returns the CPU that is used in the next `seconds`."""
    meter = cpu.Meter()
    time.sleep(seconds)
    return meter()


def per_query(used: Used, without: Used, number: int) -> Sample:
    """Returns what each of `number` queries uses, in percent of one core.

    `without` was measured before the queries were started.  The servers' part is what they use beyond it.
    """
    readers = percent(used, READERS) / number
    servers = max(0.0, percent(used, SERVERS) - percent(without, SERVERS)) / number
    jvm = percent(used, JVM) / number
    return {"readers": readers, "servers": servers, "together": readers + servers, "jvm": jvm}


def percent(used: Used, kinds: Collection[str]) -> float:
    """Returns the CPU of these kinds of processes, in percent of one core."""
    return 100 * sum(used.seconds.get(kind, 0.0) for kind in kinds) / used.wall


# --- the first rows -------------------------------------------------------------------------------------------------


def first_rows(bench: Bench, pair: OurCluster, queries: Sequence[Idle]) -> None:
    """Sends single messages to one topic after the other, and measures how soon Spark has committed each of them.

    The first row of the session is a figure of its own, because only for this row Spark starts a Python worker.
    """
    turn = cycle(queries)
    bench.doing("sending the first message")
    first = commit_ms(pair, next(turn))
    pause_s = bench.plan.pick(2.0, 1.0, 0.1)

    def later() -> Sample:
        time.sleep(pause_s)
        return {"ms": commit_ms(pair, next(turn))}

    plan = replace(bench.plan, rounds=bench.plan.pick(15, 9, 1), warm_up=0)
    results = bench.contest({"first row": later}, "quiet topics,", plan)
    name = "a quiet topic, from a send to the row's commit"
    bench.report(f"{name}: the session's first row", "ms", Series.of([first]))
    bench.report(f"{name}: first rows of further topics", "ms", results.series("first row", "ms"))


def commit_ms(pair: OurCluster, idle: Idle) -> float:
    """Sends a message, and returns the milliseconds until the query of its topic has committed the row."""
    before = len(batches_with_rows(idle.query))
    begun_ms = time.time() * 1000
    pair.stored_at_least(idle.topic, pair.load.ask("paced", topic=idle.topic, size=SIZE, rate=1, seconds=1)["messages"])
    batch = wait_until(partial(next_batches, idle.query, before), f"a row of {idle.topic}")[0]
    must_be(f"rows of the first batch of {idle.topic}", batch["numInputRows"], 1)
    return ended_ms(batch) - begun_ms


def next_batches(query: Any, before: int) -> list[Any]:
    """Waits until the query has no more data, and returns its batches with rows except the first `before` ones.

    The list can be empty, because the trigger that is under way may have looked for messages before the last one came.
    """
    query.processAllAvailable()
    return batches_with_rows(query)[before:]


def batches_with_rows(query: Any) -> list[Any]:
    return [one for one in query.recentProgress if one["numInputRows"]]
