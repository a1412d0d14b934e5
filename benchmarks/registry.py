"""Lists the benchmarks by name, with what each of them measures and needs."""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.bench import Bench


class Benchmark(NamedTuple):
    name: str
    targets: str
    what: str
    needs: str
    run: Callable[[Bench], None]
    spark: bool = False  # True if the benchmark starts a Spark session


# Each function imports its module only when it is called, so that listing the benchmarks loads neither Spark nor Arrow.


def spark_read(bench: Bench) -> None:
    from benchmarks import spark_read

    spark_read.all_columns(bench)


def spark_stream(bench: Bench) -> None:
    from benchmarks import spark_stream

    spark_stream.run(bench)


def spark_body(bench: Bench) -> None:
    from benchmarks import spark_read

    spark_read.body_only(bench)


def spark_sink(bench: Bench) -> None:
    from benchmarks import spark_sink

    spark_sink.run(bench)


def send_async(bench: Bench) -> None:
    from benchmarks import sends

    sends.send_async(bench)


def send_batch(bench: Bench) -> None:
    from benchmarks import sends

    sends.send_batch(bench)


def send(bench: Bench) -> None:
    from benchmarks import sends

    sends.send(bench)


def sync_ratio(bench: Bench) -> None:
    from benchmarks import durability

    durability.replication(bench)


def flush_ratio(bench: Bench) -> None:
    from benchmarks import durability

    durability.disk(bench)


def pull(bench: Bench) -> None:
    from benchmarks import pull

    pull.run(bench)


def catchup(bench: Bench) -> None:
    from benchmarks import catchup

    catchup.run(bench)


def recovery(bench: Bench) -> None:
    from benchmarks import recovery

    recovery.run(bench)


def latency(bench: Bench) -> None:
    from benchmarks import latency

    latency.run(bench)


def memory(bench: Bench) -> None:
    from benchmarks import memory

    memory.run(bench)


def growth(bench: Bench) -> None:
    from benchmarks import growth

    growth.run(bench)


def cold_backlog(bench: Bench) -> None:
    from benchmarks import cold_backlog

    cold_backlog.run(bench)


def consumption(bench: Bench) -> None:
    from benchmarks import consumption

    consumption.run(bench)


def v2(bench: Bench) -> None:
    from benchmarks import v2

    v2.run(bench)


def idle_streams(bench: Bench) -> None:
    from benchmarks import idle_streams

    idle_streams.run(bench)


def scrapes(bench: Bench) -> None:
    from benchmarks import scrapes

    scrapes.run(bench)


def on_rocketmq(bench: Bench) -> None:
    from benchmarks import on_rocketmq

    on_rocketmq.run(bench)


def codec(bench: Bench) -> None:
    from benchmarks import codec

    codec.run(bench)


def idle_queries(bench: Bench) -> None:
    from benchmarks import idle_queries

    idle_queries.run(bench)


_KAFKA = "Java 17, Maven: Kafka 4.2.1 and Spark's connector"
_ROCKETMQ = "Java 17, Maven: RocketMQ 5.5.0"

BENCHMARKS = (
    Benchmark("spark-read", "P1", "Spark batches: Kafka's columns, all columns", f"{_KAFKA}; 8 GiB", spark_read, True),
    Benchmark(
        "spark-stream", "P1", "Spark streams: the steady rate; the first rows", f"{_KAFKA}; 20 GiB", spark_stream, True
    ),
    Benchmark("spark-body", "P2", "Spark reads the bodies alone", f"{_KAFKA}; 8 GiB", spark_body, True),
    Benchmark("spark-sink", "P3", "Spark writes: one broker, a pair", f"{_KAFKA}; 25 GiB", spark_sink, True),
    Benchmark("send-async", "P4", "a message a call, a result each", f"{_ROCKETMQ}, pip; 15 GiB", send_async),
    Benchmark("send-batch", "P5", "lists of 500 messages; Arrow columns", f"{_ROCKETMQ}; 30 GiB", send_batch),
    Benchmark("send", "P6", "blocking sends, 64 threads and one", f"{_ROCKETMQ}; 5 GiB", send),
    Benchmark("sync-ratio", "P7", "what waiting for the slave costs", f"{_ROCKETMQ}; 20 GiB", sync_ratio),
    Benchmark("flush-ratio", "P8", "what waiting for the disk costs", f"{_ROCKETMQ}; 20 GiB", flush_ratio),
    Benchmark("pull", "P9", "pulls in plain Python: batches, messages", f"{_ROCKETMQ}, Kafka 4.2.1, pip; 10 GiB", pull),
    Benchmark("catchup", "P10", "an empty slave catches up; replication lag", f"{_ROCKETMQ}; 15 GiB", catchup),
    Benchmark("recovery", "P11", "restarts on a full log; queues made again", f"{_ROCKETMQ}; 8 GiB", recovery),
    Benchmark("latency", "P12", "producer to the micro-batch's commit", f"{_KAFKA}, pip; 2 GiB", latency, True),
    Benchmark("memory", "P13", "memory after millions of messages", "Java 17; 40 GiB", memory, True),
    Benchmark("growth", "P14", "what more log, queues and groups cost", "Java 17; 30 GiB", growth, True),
    Benchmark("cold-backlog", "P15", "puts while a cold backlog is read", "Linux, a disk; 10 GiB", cold_backlog),
    Benchmark("consumption", "P16", "what pending timers, deliveries and groups cost", "8 GiB", consumption),
    Benchmark("v2", "P17", "RocketMQ 5's official clients beside the real one", f"{_ROCKETMQ}; 5 GiB", v2),
    Benchmark("idle-streams", "P18", "what 10,000 idle Telemetry streams cost", "2 GiB of memory", idle_streams),
    Benchmark("scrapes", "P19", "what a scrape of the metrics costs at 10,000 queues", "1 GiB", scrapes),
    Benchmark(
        "on-rocketmq",
        "P20",
        "our client and Spark on a real RocketMQ; its Java client at our port",
        f"{_ROCKETMQ}, Kafka 4.2.1; 10 GiB",
        on_rocketmq,
        True,
    ),
    Benchmark("codec", "P21", "what a row costs the record codec, compiled and in Python", "1 GiB", codec),
    Benchmark("idle-queries", "P22", "what idle Spark queries cost", "Java 17; 6 GiB of memory", idle_queries, True),
)

BY_NAME = {one.name: one for one in BENCHMARKS}
GROUPS = {
    "all": BENCHMARKS,
    "with-spark": tuple(one for one in BENCHMARKS if one.spark),
    "without-spark": tuple(one for one in BENCHMARKS if not one.spark),
}
