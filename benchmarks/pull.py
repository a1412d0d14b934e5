"""P9 measures pulls in plain Python, in comparison with librdkafka, RocketMQ's Java pull consumer, and raw streams of
bytes.

A pull over plain sockets is compared with a raw Unix socket, and a pull over gRPC with a raw gRPC stream.
"""

from functools import partial
from typing import Any

from benchmarks import cluster, targets
from benchmarks.bench import Bench, Unavailable, must_be
from benchmarks.bodies import RECORD_CRC, checksum
from benchmarks.contest import Contestant, Sample, warmed_up
from benchmarks.driver import Driver, python_driver
from benchmarks.figures import Missing, Series
from benchmarks.peers import kafka, python, rocketmq
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.rocketmq import RAISED_LIMITS, RocketMqPeer
from benchmarks.sends import official_calls, official_client

KAFKA, JAVA = "confluent-kafka", "RocketMQ's Java"
GRPC, SOCKETS = "columns over gRPC", "columns over sockets"
RAW = {SOCKETS: "raw Unix socket, frames of 1 MiB", GRPC: "raw gRPC stream of 1 MiB"}
PULL_AT_ONCE = 1024


def run(bench: Bench) -> None:
    ours = bench.enter(cluster.running(bench, "reader", keys=RAISED_LIMITS))
    raw = bench.enter(python_driver("raw streams", "benchmarks.raw", bench.folder / "raw.log"))
    kafka_peer = bench.peer("Kafka", lambda: bench.enter(kafka.running(bench.folder / "kafka")))
    librdkafka = client_of(bench, kafka_peer)
    folder = bench.folder / "rocketmq"
    peer = bench.peer("RocketMQ", lambda: bench.enter(rocketmq.running(folder, keys=RAISED_LIMITS)))
    for size in bench.plan.sizes:
        count = bench.plan.pick(*((3_000_000, 2_000_000, 20_000) if size == 100 else (1_000_000, 800_000, 20_000)))
        topic = ours.fill(f"pull{size}", count, size)
        wanted = (count, count * size, checksum(0, count, size, RECORD_CRC))
        for name, over in ((SOCKETS, "sockets"), (GRPC, "gRPC")):
            answer = columns(ours, topic, name, crc=1)
            found = (answer["messages"], answer["bytes"], answer["checksum"])
            must_be("messages, bytes and checksum pulled", found, wanted)
            must_be(f"what carried {name}", answer["over"], over)
        # The raw streams transfer as many bytes as the frames of RocketSim's pull.
        frames = answer["frame_bytes"] >> 20 or 1
        results = bench.contest(
            {
                SOCKETS: partial(columns, ours, topic, SOCKETS),
                GRPC: partial(columns, ours, topic, GRPC),
                KAFKA: bench.peer(KAFKA, partial(of_kafka, bench, kafka_peer, librdkafka, topic, count, size)),
                JAVA: bench.peer(JAVA, partial(of_rocketmq, bench, peer, topic, count, size)),
                RAW[SOCKETS]: partial(raw.ask, "socket_stream", frames=frames),
                RAW[GRPC]: partial(raw.ask, "stream", frames=frames),
            },
            f"{size} B,",
        )
        name, mine = f"columnar pull, {size} B", results.series(SOCKETS)
        bench.report(
            name,
            "msgs/s",
            mine,
            "confluent-kafka consume(10000), tuned",
            results.series(KAFKA),
            targets.PULL_KAFKA[size],
        )
        bench.report(
            name, "msgs/s", mine, "RocketMQ's Java pull, 4 threads, 1,024", results.series(JAVA), targets.PULL_JAVA
        )
        for pull, words in ((SOCKETS, name), (GRPC, f"columnar pull over gRPC, {size} B")):
            bench.report(
                f"{words}, record bytes",
                "MB/s",
                megabytes(results.series(pull, "bytes_rate")),
                RAW[pull],
                megabytes(results.series(RAW[pull], "bytes_rate")),
                targets.PULL_RAW[size],
            )
    messages(bench, ours, peer)


def columns(ours: cluster.OurCluster, topic: str, name: str, **options: object) -> dict[str, Any]:
    return ours.load.ask("pull_columns", topic=topic, grpc=int(name == GRPC), **options)


def messages(bench: Bench, ours: cluster.OurCluster, peer: RocketMqPeer | Missing) -> None:
    duration = bench.plan.pick(3, 2, 1)
    client = official_client(bench, peer)
    if not isinstance(client, Missing) and not isinstance(peer, Missing):
        # A received message stays invisible for a minute, so the topic gets enough messages for all runs.
        peer.fill("official", bench.plan.pick(400_000, 200_000, 20_000), 100)
    results = bench.contest(
        {
            "messages": lambda: ours.load.ask("pull_messages", topic="pull100", seconds=duration, batch=PULL_AT_ONCE),
            "official": official_calls(bench, client, "receive", seconds=duration, batch=32),
        }
    )
    bench.report(
        f"pull of Message objects, 100 B, {PULL_AT_ONCE:,} a pull",
        "msgs/s",
        results.series("messages"),
        "official Python client's receive(32)",
        results.series("official"),
        targets.PULL_MESSAGES,
    )


def client_of(bench: Bench, peer: Kafka | Missing) -> Driver | Missing:
    if isinstance(peer, Missing):
        return peer
    log = bench.folder / "confluent.log"
    return bench.peer(KAFKA, lambda: bench.enter(python.driver(KAFKA, "kafka_client", log, peer.address)))


def of_kafka(
    bench: Bench, peer: Kafka | Missing, client: Driver | Missing, topic: str, count: int, size: int
) -> Contestant | Missing:
    if isinstance(peer, Missing):
        return peer
    if isinstance(client, Missing):
        return client
    bench.doing(f"filling Kafka's {topic}")
    peer.topic(topic)
    client.ask("fill", topic=topic, count=count, size=size)
    answer = client.ask("consume", topic=topic, crc=1)
    found = (answer["messages"], answer["bytes"], answer["checksum"])
    must_be("messages, bytes and checksum from Kafka", found, (count, count * size, checksum(0, count, size)))
    return lambda: client.ask("consume", topic=topic)


def of_rocketmq(bench: Bench, peer: RocketMqPeer | Missing, topic: str, count: int, size: int) -> Contestant | Missing:
    if isinstance(peer, Missing):
        return peer
    bench.doing(f"filling RocketMQ's {topic}")
    peer.topic(topic)
    peer.fill(topic, count, size)

    def pull() -> Sample:
        answer = peer.ask("pull", topic=topic, threads=4, batch=PULL_AT_ONCE)
        if (answer["messages"], answer["bytes"]) != (count, count * size):
            raise Unavailable(f"RocketMQ's pull gave {answer['messages']} messages of {count}")
        return answer

    bench.doing("warming up RocketMQ's pulls")
    warmed_up(pull, bench.plan.pick(20, 8, 0))
    return pull


def megabytes(series: Series | Missing) -> Series | Missing:
    return series if isinstance(series, Missing) else Series.of(value / 1e6 for value in series.values)
