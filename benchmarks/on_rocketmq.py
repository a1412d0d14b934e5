"""P20 measures RocketSim's client and Spark source on a real RocketMQ, and RocketMQ's Java client at the remoting port
of RocketSim's brokers.

RocketMQ answers a pull with 32 messages at most by default, and with 1,024 if its limits are raised.  Pulls are
compared with RocketMQ's own Java consumer, which reads the same topic with four threads.  The Spark source is compared
with Spark's Kafka source, which reads the same rows.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks import cluster, spark, targets
from benchmarks.bench import Bench, must_be
from benchmarks.contest import Contestant, Results, Sample, warmed_up
from benchmarks.driver import Driver, python_driver
from benchmarks.figures import Missing
from benchmarks.peers import rocketmq
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.rocketmq import RAISED_LIMITS, RocketMqPeer
from benchmarks.sends import Ask, java_sends
from benchmarks.spark import Source, Spark
from benchmarks.spark_read import check, fill_kafka, kafka_of
from benchmarks.spark_stream import stream
from benchmarks.targets import Target
from testbed.real_rocketmq import free_port

LIMITS: Mapping[str, Mapping[str, object]] = {"default limits": {}, "limits of 1,024": RAISED_LIMITS}
A_PULL = {"default limits": 32, "limits of 1,024": 1024}
KAFKA, JAVA = "Kafka source", "RocketMQ's Java pull, 4 threads"
THREADS = 64


def run(bench: Bench) -> None:
    for limits in LIMITS:
        with bench.section():
            pulls(bench, limits)
    with bench.section():
        at_our_port(bench)
    made, kafka_missing = bench.enter(spark.session(bench))
    kafka_peer = spark.kafka_peer(bench, kafka_missing)
    for limits in LIMITS:
        with bench.section():
            reads(bench, made, kafka_peer, limits)
    with bench.section():
        sink(bench, made)


def peer_with(bench: Bench, limits: str, what: str) -> RocketMqPeer | Missing:
    folder = bench.folder / f"rocketmq-{what}-{A_PULL[limits]}"
    return bench.peer("RocketMQ", lambda: bench.enter(rocketmq.running(folder, keys=LIMITS[limits])))


def filled(bench: Bench, peer: RocketMqPeer, topic: str, count: int, size: int) -> str:
    """Creates a topic, to which RocketMQ's own client sends the bodies with the numbers from 0 to `count`."""
    bench.doing(f"filling RocketMQ's {topic}")
    peer.topic(topic)
    peer.fill(topic, count, size)
    return topic


# --- pulls --------------------------------------------------------------------------------------------------------


def pulls(bench: Bench, limits: str) -> None:
    peer = peer_with(bench, limits, "pulls")
    if isinstance(peer, Missing):
        return
    log = bench.folder / f"our-client-{A_PULL[limits]}.log"
    ours = bench.enter(python_driver("our client on RocketMQ", "benchmarks.load", log, peer.name_server))
    for size in bench.plan.sizes:
        count = bench.plan.pick(*((1_000_000, 400_000, 5_000) if size == 100 else (400_000, 200_000, 5_000)))
        topic = filled(bench, peer, f"pull{size}", count, size)
        results = bench.contest(
            {
                "ours": partial(counted, peer, ours, count, count * size, "pull_columns", topic=topic),
                JAVA: java_pulls(bench, peer, topic, count, size, A_PULL[limits]),
            },
            f"{limits}, {size} B,",
        )
        target = targets.ROCKETMQ_PULL[size] if limits == "default limits" else targets.ROCKETMQ_PULL_RAISED
        name = f"pull of ranges, {limits}, {size} B"
        bench.report(name, "msgs/s", results.series("ours"), JAVA, results.series(JAVA), target)


def counted(
    peer: RocketMqPeer, client: Driver, count: int, size: int, command: str, **options: object
) -> dict[str, Any]:
    """Wakes RocketMQ, sends a command to a client, and checks that all messages and bytes have come."""
    with peer.awake():
        answer = client.ask(command, **options)
    must_be("messages and bytes pulled", (answer["messages"], answer["bytes"]), (count, size))
    return answer


def java_pulls(bench: Bench, peer: RocketMqPeer, topic: str, count: int, size: int, batch: int) -> Contestant | Missing:
    def pull() -> Sample:
        answer = peer.ask("pull", topic=topic, threads=4, batch=batch)
        must_be("messages and bytes of RocketMQ's pull", (answer["messages"], answer["bytes"]), (count, count * size))
        return answer

    def ready() -> Contestant:
        bench.doing("warming up RocketMQ's pulls")
        warmed_up(pull, bench.plan.pick(20, 8, 0))
        return pull

    return bench.peer(JAVA, ready)


# --- Spark --------------------------------------------------------------------------------------------------------


def reads(bench: Bench, made: Spark, kafka_peer: Kafka | Missing, limits: str) -> None:
    peer = peer_with(bench, limits, "spark")
    if isinstance(peer, Missing):
        return
    for size in bench.plan.sizes:
        rows = bench.plan.pick(*((2_000_000, 1_000_000, 5_000) if size == 100 else (600_000, 300_000, 5_000)))
        # The Kafka server is the same for all limits, so each topic has a name of its own.
        topic = filled(bench, peer, f"spark{size}-{A_PULL[limits]}", rows, size)
        kafka_topic = bench.peer("Kafka", partial(fill_kafka, bench, made, kafka_peer, topic, rows, size))
        sources: dict[str, Source | Missing] = {
            "ours": spark.rocketsim(peer.name_server, topic, schemaProfile="kafka"),
            KAFKA: kafka_of(kafka_topic, kafka_peer),
        }
        check(bench, made, sources, rows, size)
        half = {"maxOffsetsPerTrigger": str(rows // 2)}
        batches: dict[str, Contestant | Missing] = {}
        streams: dict[str, Contestant | Missing] = {}
        for name, source in sources.items():
            if isinstance(source, Missing):
                batches[name] = streams[name] = source
                continue
            batches[name] = partial(awake, peer, partial(made.batch, source, rows))
            streams[name] = partial(awake, peer, partial(stream, made, source.having(half), rows))
        target = targets.ROCKETMQ_SPARK[A_PULL[limits] > 32]
        for what, contestants in (("batch", batches), ("stream", streams)):
            results = bench.contest(contestants, f"{limits}, {what}, {size} B,")
            report(bench, results, f"Spark {what}, {limits}, {size} B", target)


def awake(peer: RocketMqPeer, contestant: Contestant) -> Sample:
    with peer.awake():
        return contestant()


def report(bench: Bench, results: Results, name: str, target: Target) -> None:
    bench.report(name, "rows/s", results.series("ours"), KAFKA, results.series(KAFKA), target)


def sink(bench: Bench, made: Spark) -> None:
    """Measures how Spark writes to a SYNC_MASTER of RocketMQ, in comparison with batches of 500 from RocketMQ's Java
    producer.
    """
    folder = bench.folder / "rocketmq-pair"
    peer = bench.peer("RocketMQ", lambda: bench.enter(rocketmq.running(folder, pair=True, sync=True)))
    if isinstance(peer, Missing):
        return
    size, rows = 100, bench.plan.pick(1_000_000, 400_000, 5_000)
    topic = peer.topic("sink")
    options = {"nameServer": peer.name_server, "topic": topic, "sendTimeoutMs": "60s"}
    written = 0

    def write() -> Sample:
        nonlocal written
        sample = awake(peer, lambda: made.write(rows, size, "body", "rocketsim", options))
        written += rows
        stored = peer.ask("count", topic=topic, until=written)["messages"]
        must_be(f"messages in {topic} of RocketMQ", stored, written)
        return sample

    seconds = bench.plan.pick(3, 2, 1)
    java = java_sends(bench, peer, "batches", size=size, seconds=seconds, threads=16, batch=500)
    name = "RocketMQ's Java batch of 500, 16 threads"
    results = bench.contest({"ours": write, name: java}, "sink,")
    bench.report(
        "Spark sink, SYNC_MASTER pair, 100 B",
        "rows/s",
        results.series("ours"),
        name,
        results.series(name),
        targets.ROCKETMQ_SINK,
    )


# --- our remoting port --------------------------------------------------------------------------------------------


def at_our_port(bench: Bench) -> None:
    """Compares RocketMQ's Java client at RocketSim's broker with the same client at RocketMQ's broker."""
    size, seconds = 100, bench.plan.pick(3, 2, 1)
    count = bench.plan.pick(400_000, 200_000, 5_000)
    peer = peer_with(bench, "default limits", "java")
    if isinstance(peer, Missing):
        return
    ports = {"namesrv": free_port(), "broker": free_port()}
    name_server = f"127.0.0.1:{ports['namesrv']}"
    ours = bench.enter(
        cluster.running(
            bench, "remoting", keys={"remotingPort": ports["broker"]}, namesrv={"remotingPort": ports["namesrv"]}
        )
    )
    java = bench.enter(rocketmq.java_client(bench.folder / "java-at-ours", name_server))
    ours.topic("sends")
    topic = ours.fill("pulls", count, size)
    filled(bench, peer, topic, count, size)
    peer.topic("sends")

    def produce(ask: Ask) -> Sample:
        return ask("produce", topic="sends", size=size, seconds=seconds, threads=THREADS)

    def pull(ask: Ask) -> Sample:
        answer = ask("pull", topic=topic, threads=4, batch=32)
        must_be("messages pulled", answer["messages"], count)
        return answer

    for what, call, target in (
        ("Java producer, 64 threads", produce, targets.REMOTING_SEND),
        ("Java pull, 4 threads", pull, targets.REMOTING_PULL),
    ):
        every: dict[str, Contestant | Missing] = {}
        for name, ask in (("at our port", java.ask), ("at RocketMQ's", peer.ask)):
            bench.doing(f"warming up {what} {name}")
            warmed_up(partial(call, ask), bench.plan.pick(20, 8, 0))
            every[name] = partial(call, ask)
        results = bench.contest(every, f"{what},")
        bench.report(
            f"{what}, at our remotingPort, {size} B",
            "msgs/s",
            results.series("at our port"),
            "the same at RocketMQ's",
            results.series("at RocketMQ's"),
            target,
        )
