"""P12 measures the time from a send to the commit of the micro-batch with the message, at 1,000 messages a second.

The streaming query has Spark's default trigger.  A record belongs to the micro-batch whose offset range includes the
record.  The time of a micro-batch's commit is its trigger's start plus `triggerExecution`.  The latencies are computed
after the run, from the query's progress and the send times in the bodies, so that computing does not slow the query.
"""

import json
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import cluster, spark, targets
from benchmarks.bench import Bench
from benchmarks.cluster import BROKER
from benchmarks.contest import Contestant, Sample
from benchmarks.figures import Missing, percentile
from benchmarks.pull import client_of
from benchmarks.spark import Source, Spark, ended_ms

RATE = 1000
SIZE = 100
SETTLE_S = 3.0


class Commit(NamedTuple):
    """One micro-batch: the time of its commit in ms, and the end offset of each queue in it."""

    at_ms: float
    ends: Mapping[int, int]


def run(bench: Bench) -> None:
    made, kafka_missing = bench.enter(spark.session(bench))
    ours = bench.enter(cluster.running(bench, "broker"))
    peer = spark.kafka_peer(bench, kafka_missing)
    client = client_of(bench, peer)
    seconds = bench.plan.pick(15, 8, 3)
    topic = ours.topic("latency")

    def ours_once() -> Sample:
        def send() -> None:
            ours.load.ask("paced", topic=topic, size=SIZE, rate=RATE, seconds=seconds)

        source = spark.rocketsim(ours.name_server.address, topic, "queueId int, queueOffset bigint, body binary")
        return once(made, source, ("queueId", "queueOffset", "body"), send, our_ends)

    every: dict[str, Contestant | Missing] = {"ours": ours_once}
    if isinstance(peer, Missing):
        every["Kafka"] = peer
    elif isinstance(client, Missing):
        every["Kafka"] = client
    else:
        peer.topic(topic)
        address = peer.address
        sender = client

        def kafka_once() -> Sample:
            def send() -> None:
                sender.ask("paced", topic=topic, size=SIZE, rate=RATE, seconds=seconds)

            source = spark.kafka_source(address, topic, "partition", "offset", "value")
            return once(made, source, ("partition", "offset", "value"), send, kafka_ends)

        every["Kafka"] = kafka_once
    results = bench.contest(every)
    for key, what in (("p50_ms", "p50"), ("p99_ms", "p99")):
        bench.report(
            f"producer to commit at {RATE:,} msgs/s: {what}",
            "ms",
            results.series("ours", key),
            "Kafka source",
            results.series("Kafka", key),
            targets.LATENCY,
        )


def once(
    made: Spark,
    source: Source,
    columns: Sequence[str],
    send: Callable[[], None],
    ends: Callable[[Any], dict[int, int]],
) -> Sample:
    """Starts a new query at the latest offsets, and measures it while `send` runs."""
    query = (
        source.having({"startingOffsets": "latest"})
        .frame(made.session.readStream)
        .writeStream.format("noop")
        .option("checkpointLocation", made.checkpoint())
        .start()
    )
    try:
        query.processAllAvailable()  # from here on, the query's starting offsets (`latest`) are fixed
        time.sleep(SETTLE_S)
        begun_ns = time.time_ns()
        send()
        time.sleep(SETTLE_S)
        # Called twice, because the first call can end with a trigger that looked for messages before the last one was
        # sent.
        for _ in range(2):
            query.processAllAvailable()
        progress = [one for one in query.recentProgress if one["numInputRows"]]
    finally:
        query.stop()
    commits = [Commit(ended_ms(one), ends(one["sources"][0]["endOffset"])) for one in progress]
    queue, offset, body = columns
    rows = (
        source.frame(made.session.read)
        .selectExpr(queue, offset, f"cast(substring(cast({body} as string), 1, 20) as bigint) as sent")
        .where(f"sent >= {begun_ns}")
        .collect()
    )
    took = latencies_ms([(row[0], row[1], row[2] / 1e6) for row in rows], commits)
    return {"p50_ms": percentile(took, 0.5), "p99_ms": percentile(took, 0.99)}


def latencies_ms(rows: Sequence[tuple[int, int, float]], commits: Sequence[Commit]) -> list[float]:
    """Returns the latency of each row, which is (queue, offset, time sent).  `commits` must be sorted by time, and must
    include every row.
    """
    by_queue: dict[int, list[int]] = {}
    found = []
    for queue, offset, sent_ms in rows:
        if queue not in by_queue:
            by_queue[queue] = [commit.ends.get(queue, 0) for commit in commits]
        number = bisect_right(by_queue[queue], offset)
        found.append(commits[number].at_ms - sent_ms)
    return found


def our_ends(end: Any) -> dict[int, int]:
    end = json.loads(end) if isinstance(end, str) else end
    (brokers,) = end["q"].values()
    return {int(queue): int(offset) for queue, offset in brokers.get(BROKER, {}).items()}


def kafka_ends(end: Any) -> dict[int, int]:
    end = json.loads(end) if isinstance(end, str) else end
    (partitions,) = end.values()
    return {int(partition): int(offset) for partition, offset in partitions.items()}
