"""P3 measures how Spark writes generated bodies to one broker, to a SYNC_MASTER pair and to Kafka."""

from functools import partial

from benchmarks import cluster, spark, targets
from benchmarks.bench import Bench, must_be
from benchmarks.cluster import OurCluster
from benchmarks.contest import Contestant, Sample, warmed_up, with_full_rate
from benchmarks.figures import Missing
from benchmarks.peers.kafka import Kafka
from benchmarks.spark import Spark
from benchmarks.spark_read import FEW


def run(bench: Bench) -> None:
    made, kafka_missing = bench.enter(spark.session(bench))
    alone = bench.enter(cluster.running(bench, "alone"))
    pair = bench.enter(cluster.running(bench, "pair", pair=True, keys=cluster.modes(sync=True, flush=False)))
    peer = spark.kafka_peer(bench, kafka_missing)
    warm_up(bench, into_kafka(made, peer, "sink-warm-up", bench.plan.pick(1_000_000, 1_000_000, 1_000), 100))
    plan = bench.plan
    for size in bench.plan.sizes:
        full, quick = (1_500_000, 1_000_000) if size == 100 else (400_000, 300_000)
        rows, times = bench.plan.pick((full, 1.0), (quick, full / quick), (20_000, 1.0))

        def sinks(topic: str, rows: int, size: int = size) -> dict[str, Contestant | Missing]:
            return {
                "alone": into_rocketsim(made, alone, topic, rows, size),
                "pair": into_rocketsim(made, pair, topic, rows, size),
                "Kafka": into_kafka(made, peer, topic, rows, size),
                "generator": lambda: generator(made, rows, size),
            }

        every = in_full(bench, sinks(f"sink{size}", rows), sinks(f"few{size}", FEW), times)
        results = bench.contest(every, f"{size} B,", plan)
        plan = plan.again()
        reference, reference_in_full = results.series("Kafka"), results.series("Kafka", "full_rate")
        bench.report(
            f"{size} B, one broker",
            "rows/s",
            results.series("alone"),
            "Kafka sink",
            reference,
            targets.SINK_ALONE[size],
            in_full=(results.series("alone", "full_rate"), reference_in_full),
        )
        bench.report(
            f"{size} B, SYNC_MASTER pair",
            "rows/s",
            results.series("pair"),
            "Kafka sink",
            reference,
            targets.SINK_PAIR[size],
            in_full=(results.series("pair", "full_rate"), reference_in_full),
        )
        bench.report(f"{size} B, generator alone", "rows/s", results.series("generator"))


def in_full(
    bench: Bench, sinks: dict[str, Contestant | Missing], few: dict[str, Contestant | Missing], times: float
) -> dict[str, Contestant | Missing]:
    """Adds to each sink's samples the rate that is predicted for a full run.

    The sinks in `few` write few rows, which shows how long the start of a write takes.
    """
    runs = bench.plan.pick(0, 2, 1)
    found: dict[str, Contestant | Missing] = {}
    for name, write in sinks.items():
        start = few[name]
        if not runs or isinstance(write, Missing) or isinstance(start, Missing):
            found[name] = write if isinstance(write, Missing) else partial(once, write, 0.0, times)
            continue
        bench.doing(f"the start of {name}")
        found[name] = partial(once, write, min(start()["seconds"] for _ in range(runs)), times)
    return found


def once(write: Contestant, start_s: float, times: float) -> Sample:
    return with_full_rate(write(), start_s, times)


def warm_up(bench: Bench, write: Contestant | Missing) -> None:
    """Writes for some time, because Kafka's JVMs are twice as fast after a dozen writes as after the first one."""
    if not isinstance(write, Missing):
        bench.doing("warming up Kafka's sink")
        warmed_up(write, bench.plan.pick(20, 20, 0))


def into_rocketsim(made: Spark, one: OurCluster, topic: str, rows: int, size: int) -> Contestant:
    one.topic(topic)
    written = 0

    def write() -> Sample:
        nonlocal written
        # With the default of 3 s, a busy machine would send messages again that are already stored.
        options = {"nameServer": one.name_server.address, "topic": topic, "sendTimeoutMs": "60s"}
        sample = made.write(rows, size, "body", "rocketsim", options)
        written += rows
        must_be(f"messages in {topic} of {one.title}", one.count(topic), written)
        return sample

    return write


def into_kafka(made: Spark, peer: Kafka | Missing, topic: str, rows: int, size: int) -> Contestant | Missing:
    if isinstance(peer, Missing):
        return peer
    peer.topic(topic)
    options = {"kafka.bootstrap.servers": peer.address, "topic": topic}
    return lambda: made.write(rows, size, "value", "kafka", options)


def generator(made: Spark, rows: int, size: int) -> Sample:
    return made.write(rows, size, "value", "noop", {})
