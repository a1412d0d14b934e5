"""P1 and P2 as batches: Spark reads 4 queues into noop, beside Kafka's source and the null source."""

from functools import partial
from pathlib import Path

from rocketsim_proto.records.columnar import Records

from benchmarks import cluster, null_source, spark, targets
from benchmarks.bench import Bench, must_be
from benchmarks.bodies import checksum
from benchmarks.cluster import OurCluster
from benchmarks.contest import Contestant
from benchmarks.figures import Missing
from benchmarks.peers import kafka
from benchmarks.peers.kafka import Kafka
from benchmarks.spark import Source, Spark
from rocketsim_client import MessageQueue, QueueRange
from rocketsim_client.arrow import OfQueue
from rocketsim_source.options.source_options import source_options
from rocketsim_source.reading.decode import Decoder
from rocketsim_source.schema import source_schema


def rows_of(bench: Bench, size: int) -> int:
    """A batch takes a second to start, and longer with Kafka: in any plan a run should take much longer than that."""
    full, quick = (6_000_000, 4_000_000) if size == 100 else (2_000_000, 1_300_000)
    return bench.plan.pick(full, quick, 20_000)


def all_columns(bench: Bench) -> None:
    """P1."""
    made, kafka_missing = bench.enter(spark.session(bench))
    ours = bench.enter(cluster.running(bench, "reader"))
    peer = spark.kafka_peer(bench, kafka_missing)
    plan = bench.plan.again()  # the check has warmed everybody
    null_source.register(made.session)
    for size in bench.plan.sizes:
        rows = rows_of(bench, size)
        topic = ours.fill(f"read{size}", rows, size)
        sources = with_kafkas(bench, made, ours, peer, topic, rows, size)
        sources["null source"] = ceiling(ours, topic, bench.folder / f"null{size}", rows)
        results = bench.contest(contestants(made, sources, rows), f"{size} B,", plan)
        name = f"batch, {size} B"
        narrow, wide = results.series("Kafka's columns"), results.series("all columns")
        usual, tuned = results.series("Kafka source"), results.series("Kafka source, tuned")
        null = results.series("null source")
        bench.report(f"{name}, Kafka's columns", "rows/s", narrow, "Kafka source", usual, targets.READ_KAFKA[size])
        bench.report(
            f"{name}, Kafka's columns", "rows/s", narrow, "Kafka source, tuned", tuned, targets.READ_TUNED[size]
        )
        bench.report(f"{name}, all columns", "rows/s", wide, "Kafka source", usual, targets.READ_ALL_KAFKA)
        bench.report(f"{name}, all columns", "rows/s", wide, "null Arrow source", null, targets.READ_ALL_CEILING)


def body_only(bench: Bench) -> None:
    """P2."""
    made, kafka_missing = bench.enter(spark.session(bench))
    ours = bench.enter(cluster.running(bench, "reader"))
    peer = spark.kafka_peer(bench, kafka_missing)
    plan = bench.plan.again()  # the check has warmed everybody
    for size in bench.plan.sizes:
        rows = rows_of(bench, size)
        topic = ours.fill(f"body{size}", rows, size)
        kafka_topic = bench.peer("Kafka", partial(fill_kafka, bench, made, peer, topic, rows, size))
        sources: dict[str, Source | Missing] = {
            "body": spark.rocketsim(ours.name_server.address, topic, schema="body binary"),
            "Kafka's value": kafka_of(kafka_topic, peer, "value"),
        }
        check(bench, made, sources, rows, size)
        results = bench.contest(contestants(made, sources, rows), f"{size} B,", plan)
        bench.report(
            f"batch, {size} B, body",
            "rows/s",
            results.series("body"),
            "Kafka source, value",
            results.series("Kafka's value"),
            targets.BODY_KAFKA[size],
        )


def with_kafkas(
    bench: Bench, made: Spark, ours: OurCluster, peer: Kafka | Missing, topic: str, rows: int, size: int
) -> dict[str, Source | Missing]:
    """Our topic as narrow and wide rows and the same bodies in Kafka, default and tuned; all data are checked."""
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
    """Writes the same bodies with Spark's Kafka sink."""
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
    """Checks that every source reads all of the same bodies once."""
    wanted = (rows, checksum(0, rows, size))
    there = {name: source for name, source in sources.items() if not isinstance(source, Missing)}
    for name, source in there.items():
        bench.doing(f"checking what {name} reads")
        must_be(f"rows and checksum of {name}", made.summary(source), wanted)


def contestants(made: Spark, sources: dict[str, Source | Missing], rows: int) -> dict[str, Contestant | Missing]:
    return {
        name: source if isinstance(source, Missing) else partial(made.batch, source, rows)
        for name, source in sources.items()
    }


def ceiling(ours: OurCluster, topic: str, path: Path, rows: int) -> Source:
    """The null source, which repeats a batch that our decoder made of a frame."""
    options = source_options({"nameServer": ours.name_server.address, "topic": topic}, streaming=True)
    schema = source_schema(options)
    end = ours.admin.cluster.bounds(topic)[MessageQueue(topic, cluster.BROKER, 0)].max_offset
    ranges = [QueueRange(topic, 0, 0, end)]
    frame = next(iter(ours.admin.cluster.pull_range(cluster.BROKER, ranges, max_frame_bytes=options.pull_max_bytes)))
    records = Records.walk(frame.records, frame.count, frame.sizes or None)
    runs = [OfQueue(MessageQueue(topic, cluster.BROKER, 0), len(records))]
    (batch,) = Decoder(schema, options).batches(records, runs, 0)
    null_source.save(path, batch, schema)
    given = {"path": str(path), "rows": str(rows), "partitions": "4"}
    return Source(null_source.NAME, given, body="body")
