"""P1 for streams measures the steady rate of rows, and as a separate figure the time until the first rows.

The rate is computed over all micro-batches with data, from the start of the first one to the end of the last one.  The
times are those of the query's progress, so the query's start is not included.  The other figure is the time from just
before `load()` until the first rows are committed, for a new query and for a query that continues from its checkpoint.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks import cluster, null_source, spark, targets
from benchmarks.bench import Bench, WrongResult, must_be
from benchmarks.cluster import OurCluster
from benchmarks.contest import Contestant, Sample
from benchmarks.figures import Missing
from benchmarks.peers.kafka import Kafka
from benchmarks.spark import Source, Spark, ended_ms, started_ms
from benchmarks.spark_read import NULL, ceiling, report, with_kafkas

NULL_KAFKA = f"{NULL} with Kafka's columns"
TIMEOUT_S = 600
FULL_BATCHES = 8
FEW = 1000  # rows of a first micro-batch, so few that only the fixed cost of a batch counts


def run(bench: Bench) -> None:
    made, kafka_missing = bench.enter(spark.session(bench))
    ours = bench.enter(cluster.running(bench, "reader"))
    peer = spark.kafka_peer(bench, kafka_missing)
    null_source.register(made.session)
    plan = bench.plan
    nulls = {}
    for size in bench.plan.sizes:
        # The size of a micro-batch is the same in all plans, so that its fixed cost has the same share of the time.
        batch = bench.plan.pick(*((2_500_000, 2_500_000, 5_000) if size == 100 else (625_000, 625_000, 5_000)))
        rows = batch * bench.plan.pick(FULL_BATCHES, 2, 2)
        topic = ours.fill(f"stream{size}", rows, size)
        sources = with_kafkas(bench, made, ours, peer, topic, rows, size)
        sources[NULL] = nulls[size] = ceiling(ours, topic, bench.folder / f"null{size}", rows)
        sources[NULL_KAFKA] = ceiling(ours, topic, bench.folder / f"null-kafka{size}", rows, "kafka")
        limit = {"maxOffsetsPerTrigger": str(batch)}
        streams: dict[str, Contestant | Missing] = {
            name: source if isinstance(source, Missing) else partial(stream, made, source.having(limit), rows)
            for name, source in sources.items()
        }
        results = bench.contest(streams, f"{size} B,", plan)
        plan = plan.again()
        name = f"stream, {size} B"
        for what, reference, target in (
            ("Kafka's columns", "Kafka source", targets.STREAM_KAFKA[size]),
            ("Kafka's columns", "Kafka source, tuned", targets.STREAM_TUNED[size]),
            ("Kafka's columns", NULL_KAFKA, targets.STREAM_CEILING),
            ("all columns", "Kafka source", targets.READ_ALL_KAFKA),
            ("all columns", NULL, targets.READ_ALL_CEILING),
        ):
            report(bench, results, name, what, reference, target)
    start(bench, made, ours, peer, nulls[100])


# --- the rate -------------------------------------------------------------------------------------------------------


def stream(made: Spark, source: Source, rows: int) -> Sample:
    """Runs an AvailableNow query into the noop sink."""
    query = (
        source.frame(made.session.readStream)
        .writeStream.format("noop")
        .option("checkpointLocation", made.checkpoint())
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(TIMEOUT_S):
        query.stop()
        raise TimeoutError(f"{source} did not end in {TIMEOUT_S} s")
    sample = steady(query.recentProgress)
    must_be(f"rows of {source}", sample["messages"], rows)
    return sample


def steady(progress: Sequence[Mapping[str, Any]]) -> Sample:
    """Computes the rate in rows per second, from the start of the first batch with data to the end of the last one.

    `full_rate` is the rate that is predicted for FULL_BATCHES batches.  The prediction assumes that further batches are
    as fast as those in `progress` after the first.
    """
    batches = [one for one in progress if one["numInputRows"]]
    if len(batches) < 2:
        raise WrongResult(f"the stream had {len(batches)} batches with data, and a steady rate needs at least 2")
    rows = sum(one["numInputRows"] for one in batches)
    seconds = (ended_ms(batches[-1]) - started_ms(batches[0])) / 1000
    later_s = (ended_ms(batches[-1]) - started_ms(batches[1])) / 1000
    later = sum(one["numInputRows"] for one in batches[1:])
    times = (FULL_BATCHES - 1) / (len(batches) - 1)
    full_rate = (rows + later * (times - 1)) / (seconds + later_s * (times - 1))
    sample = {"messages": rows, "seconds": seconds, "rate": rows / seconds, "batches": len(batches)}
    return sample | {"full_rate": full_rate}


# --- the start ------------------------------------------------------------------------------------------------------


def start(bench: Bench, made: Spark, ours: OurCluster, peer: Kafka | Missing, null: Source) -> None:
    topic = ours.topic("start")
    sent = repeated = 0

    def more_of_ours() -> Source:
        nonlocal sent
        ours.load.ask("fill", topic=topic, count=FEW, size=100, start=sent)
        sent += FEW
        return spark.rocketsim(ours.name_server.address, topic)

    def more_of_null() -> Source:
        nonlocal repeated
        repeated += FEW
        return null.having({"rows": str(repeated)})

    def more_of_kafka(peer: Kafka) -> Source:
        made.write(FEW, 100, "value", "kafka", {"kafka.bootstrap.servers": peer.address, "topic": topic})
        return spark.kafka_source(peer.address, topic)

    every: dict[str, Contestant | Missing] = {
        "ours": partial(first_rows, made, more_of_ours),
        "null source": partial(first_rows, made, more_of_null),
    }
    if isinstance(peer, Missing):
        every["Kafka source"] = peer
    else:
        peer.topic(topic)
        every["Kafka source"] = partial(first_rows, made, partial(more_of_kafka, peer))
    results = bench.contest(every, "start,")
    for key, words in (("new_ms", "a new query"), ("restarted_ms", "a restarted query")):
        name, mine = f"{words} to its first committed rows", results.series("ours", key)
        null_ms, kafka_ms = results.series("null source", key), results.series("Kafka source", key)
        bench.report(name, "ms", mine, "null Python stream", null_ms, targets.FIRST_ROWS)
        bench.report(name, "ms", mine, "Kafka source", kafka_ms)


def first_rows(made: Spark, more: Callable[[], Source]) -> Sample:
    """Measures the time until the first rows of a new query and of a restarted query.

    Each call of `more` returns a source with FEW more rows than before.
    """
    checkpoint = made.checkpoint()
    new = first_rows_ms(made, more(), checkpoint)
    return {"new_ms": new, "restarted_ms": first_rows_ms(made, more(), checkpoint)}


def first_rows_ms(made: Spark, source: Source, checkpoint: str) -> float:
    """Returns the time from just before the source is loaded until the first rows are committed, with the default
    trigger.
    """
    begun_ms = time.time() * 1000
    frame = source.frame(made.session.readStream)
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    try:
        query.processAllAvailable()
        first = next((one for one in query.recentProgress if one["numInputRows"]), None)
    finally:
        query.stop()
    if first is None:
        raise WrongResult(f"{source}: no batch of its stream had a row")
    return ended_ms(first) - begun_ms
