"""P1 and P2 measure batch reads: Spark reads 4 queues into the noop sink, in comparison with Kafka's source and the
null source.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

from rocketsim_proto.records.columnar import Records

from benchmarks import cluster, null_source, spark, targets
from benchmarks.bench import Bench, must_be
from benchmarks.bodies import checksum
from benchmarks.cluster import OurCluster
from benchmarks.contest import Contestant, Results, Sample, with_full_rate
from benchmarks.figures import Missing
from benchmarks.peers import kafka
from benchmarks.peers.kafka import Kafka
from benchmarks.spark import Source, Spark
from benchmarks.targets import Target
from rocketsim_client import MessageQueue, QueueRange
from rocketsim_client.arrow import OfQueue
from rocketsim_source.options.source_options import source_options
from rocketsim_source.reading.decode import Decoder
from rocketsim_source.schema import source_schema

NULL = "null Arrow source"
FOUR_TASKS = "minPartitions=4"
FEW = 1000  # number of rows of a batch that takes hardly longer than its start
LARGE = 1 << 20


def rows_of(bench: Bench, size: int) -> tuple[int, float]:
    """Returns the number of rows to read, and how many times as many rows the full plan reads.

    The start of a batch takes a second, and longer with Kafka.  With any plan a run should read so many rows that
    reading takes longer than the start.
    """
    full, quick = (6_000_000, 4_000_000) if size == 100 else (2_000_000, 1_300_000)
    return bench.plan.pick((full, 1.0), (quick, full / quick), (20_000, 1.0))


def all_columns(bench: Bench) -> None:
    """Runs P1: batches with Kafka's columns, and batches with all columns."""
    made, kafka_missing = bench.enter(spark.session(bench))
    ours = bench.enter(cluster.running(bench, "reader"))
    peer = spark.kafka_peer(bench, kafka_missing)
    plan = bench.plan.again()  # needs no warm-up, because checking the answers has warmed up all servers
    null_source.register(made.session)
    for size in bench.plan.sizes:
        rows, times = rows_of(bench, size)
        topic = ours.fill(f"read{size}", rows, size)
        sources = with_kafkas(bench, made, ours, peer, topic, rows, size)
        null = sources[NULL] = ceiling(ours, topic, bench.folder / f"null{size}", rows)
        few = {NULL: null.having({"rows": str(FEW)})} | with_kafkas(
            bench, made, ours, peer, ours.fill(f"few{size}", FEW, size), FEW, size
        )
        every = contestants(made, sources, rows, start_s(bench, made, few), times)
        results = bench.contest(every, f"{size} B,", plan)
        for what, reference, target in (
            ("Kafka's columns", "Kafka source", targets.READ_KAFKA[size]),
            ("Kafka's columns", "Kafka source, tuned", targets.READ_TUNED[size]),
            ("all columns", "Kafka source", targets.READ_ALL_KAFKA),
            ("all columns", NULL, targets.READ_ALL_CEILING),
        ):
            report(bench, results, f"batch, {size} B", what, reference, target)
    large_records(bench, made, ours)


def large_records(bench: Bench, made: Spark, ours: OurCluster) -> None:
    """Reads a small number of 1 MiB records, for which Spark's plan must choose several tasks because of their size
    alone.
    """
    rows = bench.plan.pick(1000, 400, 40)
    topic = ours.fill("large", rows, LARGE)
    address = ours.name_server.address
    sources: dict[str, Source | Missing] = {
        "Kafka's columns": spark.rocketsim(address, topic, schemaProfile="kafka"),
        FOUR_TASKS: spark.rocketsim(address, topic, schemaProfile="kafka", minPartitions="4"),
    }
    check(bench, made, sources, rows, LARGE)
    # A read takes about a second, and twice as long if it waits for the host, so five rounds would say little.
    plan = replace(bench.plan.again(), rounds=bench.plan.pick(15, 9, 1))
    results = bench.contest(contestants(made, sources, rows, {}, 1.0), "1 MiB,", plan)
    report(bench, results, "batch, 1 MiB", "Kafka's columns", FOUR_TASKS, targets.READ_LARGE)


def body_only(bench: Bench) -> None:
    """Runs P2: batches that read the bodies alone."""
    made, kafka_missing = bench.enter(spark.session(bench))
    ours = bench.enter(cluster.running(bench, "reader"))
    peer = spark.kafka_peer(bench, kafka_missing)
    plan = bench.plan.again()  # needs no warm-up, because the check has warmed up all servers
    for size in bench.plan.sizes:
        rows, times = rows_of(bench, size)
        sources = bodies_of(bench, made, ours, peer, ours.fill(f"body{size}", rows, size), rows, size)
        few = bodies_of(bench, made, ours, peer, ours.fill(f"few{size}", FEW, size), FEW, size)
        every = contestants(made, sources, rows, start_s(bench, made, few), times)
        results = bench.contest(every, f"{size} B,", plan)
        report(bench, results, f"batch, {size} B", "body", "Kafka source, value", targets.BODY_KAFKA[size])


def report(bench: Bench, results: Results, name: str, what: str, reference: str, target: Target) -> None:
    in_full = results.series(what, "full_rate"), results.series(reference, "full_rate")
    mine, theirs = results.series(what), results.series(reference)
    bench.report(f"{name}, {what}", "rows/s", mine, reference, theirs, target, in_full=in_full)


def bodies_of(
    bench: Bench, made: Spark, ours: OurCluster, peer: Kafka | Missing, topic: str, rows: int, size: int
) -> dict[str, Source | Missing]:
    kafka_topic = bench.peer("Kafka", partial(fill_kafka, bench, made, peer, topic, rows, size))
    sources: dict[str, Source | Missing] = {
        "body": spark.rocketsim(ours.name_server.address, topic, schema="body binary"),
        "Kafka source, value": kafka_of(kafka_topic, peer, "value"),
    }
    check(bench, made, sources, rows, size)
    return sources


def with_kafkas(
    bench: Bench, made: Spark, ours: OurCluster, peer: Kafka | Missing, topic: str, rows: int, size: int
) -> dict[str, Source | Missing]:
    """Returns the sources to compare: our topic with Kafka's columns and with all columns, and a Kafka topic with the
    same bodies, read with Kafka's defaults and with tuned options.  Checks all data.
    """
    kafka_topic = bench.peer("Kafka", partial(fill_kafka, bench, made, peer, topic, rows, size))
    address = ours.name_server.address
    sources: dict[str, Source | Missing] = {
        "Kafka's columns": spark.rocketsim(address, topic, schemaProfile="kafka"),
        "all columns": spark.rocketsim(address, topic),
        "Kafka source": kafka_of(kafka_topic, peer),
        "Kafka source, tuned": kafka_of(kafka_topic, peer, **kafka.TUNED_SOURCE),
    }
    check(bench, made, sources, rows, size)
    return sources


def fill_kafka(bench: Bench, made: Spark, peer: Kafka | Missing, topic: str, rows: int, size: int) -> str | Missing:
    """Writes the bodies 0 to `rows` to Kafka with Spark's Kafka sink."""
    if isinstance(peer, Missing):
        return peer
    bench.doing(f"filling Kafka's {topic}")
    peer.topic(topic)
    made.write(rows, size, "value", "kafka", {"kafka.bootstrap.servers": peer.address, "topic": topic})
    return topic


def kafka_of(topic: str | Missing, peer: Kafka | Missing, *select: str, **options: str) -> Source | Missing:
    if isinstance(peer, Missing):
        return peer
    if isinstance(topic, Missing):
        return topic
    return spark.kafka_source(peer.address, topic, *select, **options)


def check(bench: Bench, made: Spark, sources: dict[str, Source | Missing], rows: int, size: int) -> None:
    """Checks that every source returns each body exactly once."""
    wanted = (rows, checksum(0, rows, size))
    there = {name: source for name, source in sources.items() if not isinstance(source, Missing)}
    for name, source in there.items():
        bench.doing(f"checking what {name} reads")
        must_be(f"rows and checksum of {name}", made.summary(source), wanted)


def start_s(bench: Bench, made: Spark, few: dict[str, Source | Missing]) -> dict[str, float]:
    """Returns, by source, how long a batch with few rows takes.  In the full plan the result is empty, because no rate
    has to be predicted.
    """
    runs = bench.plan.pick(0, 2, 1)
    there = {name: source for name, source in few.items() if runs and not isinstance(source, Missing)}
    return {name: min(made.batch(source, FEW)["seconds"] for _ in range(runs)) for name, source in there.items()}


def contestants(
    made: Spark, sources: dict[str, Source | Missing], rows: int, starts: dict[str, float], times: float
) -> dict[str, Contestant | Missing]:
    def batch(name: str, source: Source) -> Sample:
        return with_full_rate(made.batch(source, rows), starts.get(name, 0.0), times)

    return {
        name: source if isinstance(source, Missing) else partial(batch, name, source)
        for name, source in sources.items()
    }


def ceiling(ours: OurCluster, topic: str, path: Path, rows: int, profile: str = "rocketmq") -> Source:
    """Makes a batch with our decoder and the columns of `profile`, and returns the null source that repeats this
    batch.
    """
    given = {"nameServer": ours.name_server.address, "topic": topic, "schemaProfile": profile}
    options = source_options(given, streaming=True)
    schema = source_schema(options)
    end = ours.admin.cluster.bounds(topic)[MessageQueue(topic, cluster.BROKER, 0)].max_offset
    ranges = [QueueRange(topic, 0, 0, end)]
    frame = next(iter(ours.admin.cluster.pull_range(cluster.BROKER, ranges, max_frame_bytes=options.pull_max_bytes)))
    records = Records.walk(frame.records, frame.count, frame.sizes or None)
    runs = [OfQueue(MessageQueue(topic, cluster.BROKER, 0), len(records))]
    (batch,) = Decoder(schema, options).batches(records, runs, 0)
    null_source.save(path, batch, schema)
    repeated = {"path": str(path), "rows": str(rows), "partitions": "4"}
    return Source(null_source.NAME, repeated, body="value" if profile == "kafka" else "body")
