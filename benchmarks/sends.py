"""P4 to P6 measure sends from a single process, in comparison with RocketMQ's Java producer and its official Python
client.
"""

from collections.abc import Callable
from typing import Any

from benchmarks import cluster, targets
from benchmarks.bench import Bench
from benchmarks.cluster import OurCluster
from benchmarks.contest import Contestant, Sample, warmed_up
from benchmarks.driver import python_driver
from benchmarks.figures import Missing
from benchmarks.peers import python, rocketmq
from benchmarks.peers.rocketmq import RocketMqPeer

WINDOW = 16_384
PYTHON_WINDOW = 500
MODES = {"ASYNC_MASTER": False, "SYNC_MASTER": True}
Ask = Callable[..., dict[str, Any]]  # like Driver.ask


def seconds(bench: Bench) -> int:
    return bench.plan.pick(3, 1, 1)


def modes(bench: Bench) -> list[str]:
    return bench.plan.pick([*MODES], [*MODES], ["ASYNC_MASTER"])


def our_pair(bench: Bench, mode: str) -> OurCluster:
    keys = cluster.modes(sync=MODES[mode], flush=False)
    return bench.enter(cluster.running(bench, f"ours-{mode}", pair=True, keys=keys))


def their_pair(bench: Bench, mode: str) -> RocketMqPeer | Missing:
    folder = bench.folder / f"rocketmq-{mode}"
    return bench.peer("RocketMQ", lambda: bench.enter(rocketmq.running(folder, pair=True, sync=MODES[mode])))


def our_sends(ours: OurCluster, command: str, topic: str, **options: object) -> Contestant:
    """Returns a contestant that runs one of load.py's commands, and checks that all acknowledged messages are
    stored.

    A run ends when the slave has everything, so that the slave of an ASYNC_MASTER uses no CPU in the next run.
    """

    def run() -> Sample:
        answer = ours.load.ask(command, topic=topic, **options)
        ours.stored_at_least(topic, answer["messages"])
        if ours.slave is not None:
            ours.await_slave()
        return answer

    return run


def java_sends(bench: Bench, peer: RocketMqPeer | Missing, topic: str, **options: object) -> Contestant | Missing:
    """Returns a contestant that sends with a Java producer which is warmed up."""
    if isinstance(peer, Missing):
        return peer

    def ready() -> Contestant:
        java_rate(bench, peer, topic, **options)
        return lambda: peer.ask("produce", topic=topic, **options)

    return bench.peer("RocketMQ's Java producer", ready)


def java_rate(bench: Bench, peer: RocketMqPeer, topic: str, **options: object) -> float:
    """Warms up the Java producer and the brokers.  Returns the rate after the warm-up, which is ten times the rate at
    the start.
    """
    peer.topic(topic)
    given = options | {"seconds": bench.plan.pick(2, 1, 1)}

    def produce() -> Sample:
        bench.doing(f"warming up the Java producer on {topic}, {peer.loaded_s:.0f} s")
        answer = peer.ask("produce", topic=topic, **given)
        peer.loaded_s += answer["seconds"]
        return answer

    return warmed_up(produce, bench.plan.pick(30, 15, 0) - peer.loaded_s)


def send_async(bench: Bench) -> None:
    """Runs P4: sends of one message per call, each with a result."""
    for mode in modes(bench):
        with bench.section():
            send_async_to(bench, mode)


def send_async_to(bench: Bench, mode: str) -> None:
    ours, peer = our_pair(bench, mode), their_pair(bench, mode)
    client = official_client(bench, peer) if mode == "ASYNC_MASTER" else None
    plan = bench.plan
    for size in bench.plan.sizes:
        topic = ours.topic(f"async{size}")
        every: dict[str, Contestant | Missing] = {
            "ours": our_sends(ours, "send_async", topic, size=size, seconds=seconds(bench), window=WINDOW),
            "Java": java_sends(bench, peer, topic, size=size, threads=64, seconds=seconds(bench)),
        }
        if client is not None and size == 100:
            every["Python"] = official_calls(
                bench, client, "send_async", size=size, seconds=seconds(bench), window=PYTHON_WINDOW
            )
        results = bench.contest(every, f"{mode}, {size} B,", plan)
        plan = plan.again()
        name = f"send_async, {mode} pair, {size} B"
        mine, theirs = results.series("ours"), results.series("Java")
        bench.report(name, "msgs/s", mine, "RocketMQ's Java producer, 64 threads", theirs, targets.ASYNC_JAVA[size])
        if "Python" in every:
            theirs = results.series("Python")
            bench.report(name, "msgs/s", mine, "official Python client through the proxy", theirs, targets.ASYNC_PYTHON)


def official_client(bench: Bench, peer: RocketMqPeer | Missing) -> Ask | Missing:
    """Starts RocketMQ's proxy and its official Python client, with a topic and a group of their own, and returns a
    function that sends commands to the client.
    """
    if isinstance(peer, Missing):
        return peer

    def start() -> Ask:
        python.environment()
        peer.topic("official", type="NORMAL")
        peer.ask("group", group="official", broker=peer.address)
        endpoint = bench.enter(rocketmq.proxy(peer))
        log = bench.folder / "official.log"
        name = "RocketMQ's official Python client"
        client = bench.enter(python.driver(name, "rocketmq_client", log, endpoint, "official", "official"))

        def ask(words: str, **options: object) -> dict[str, Any]:
            with peer.awake():
                return client.ask(words, **options)

        return ask

    return bench.peer("RocketMQ's official Python client", start)


def official_calls(bench: Bench, client: Ask | Missing, command: str, **options: object) -> Contestant | Missing:
    """Returns a contestant that calls the official client, after a warm-up because the client's proxy is a JVM."""
    if isinstance(client, Missing):
        return client

    def call() -> Sample:
        return client(command, **options)

    def ready() -> Contestant:
        bench.doing("warming up RocketMQ's official Python client")
        warmed_up(call, bench.plan.pick(20, 8, 0))
        return call

    return bench.peer("RocketMQ's official Python client", ready)


def send_batch(bench: Bench) -> None:
    """Runs P5: sends of lists of messages and of Arrow columns."""
    for mode in modes(bench):
        with bench.section():
            send_batch_to(bench, mode)


def send_batch_to(bench: Bench, mode: str) -> None:
    size, duration = (
        100,
        bench.plan.pick(2, 1, 1),
    )  # a short duration, because verifying the messages afterwards takes as long as sending them
    ours, peer = our_pair(bench, mode), their_pair(bench, mode)
    for topic in ("list", "columns"):
        ours.topic(topic)
    results = bench.contest(
        {
            "list": our_sends(ours, "send_list", "list", size=size, seconds=duration, threads=4, batch=500),
            "columns": our_sends(ours, "send_columns", "columns", size=size, seconds=duration),
            "Java": java_sends(bench, peer, "batch", size=size, seconds=duration, threads=16, batch=500),
        },
        f"{mode},",
    )
    reference, theirs = "RocketMQ's Java batch of 500, 16 threads", results.series("Java")
    name = f"{mode} pair, {size} B"
    bench.report(
        f"list of 500, 4 threads, {name}", "msgs/s", results.series("list"), reference, theirs, targets.BATCH_LIST[mode]
    )
    bench.report(
        f"columns with tags and keys, {name}",
        "msgs/s",
        results.series("columns"),
        reference,
        theirs,
        targets.BATCH_COLUMNS[mode],
    )


def send(bench: Bench) -> None:
    """Runs P6: blocking sends."""
    mode, size, duration = "ASYNC_MASTER", 100, seconds(bench)
    ours, peer = our_pair(bench, mode), their_pair(bench, mode)
    raw = bench.enter(python_driver("raw gRPC", "benchmarks.raw", bench.folder / "raw.log"))
    ours.topic("send")
    results = bench.contest(
        {
            "64 threads": our_sends(ours, "send", "send", size=size, seconds=duration, threads=64),
            "Java": java_sends(bench, peer, "send", size=size, seconds=duration, threads=64),
            "one thread": our_sends(ours, "send", "send", size=size, seconds=duration, threads=1),
            "round trips": lambda: raw.ask("round_trips", size=size, seconds=duration),
        }
    )
    many, java = "64 threads", "RocketMQ's Java producer, 64 threads"
    name = f"send, {many}, {mode} pair, {size} B"
    bench.report(f"{name}: rate", "msgs/s", results.series(many), java, results.series("Java"), targets.SEND_RATE)
    for key, what in (("p50_ms", "p50"), ("p99_ms", "p99")):
        bench.report(f"{name}: {what}", "ms", results.series(many, key), java, results.series("Java", key))
    bench.report(
        f"send, one thread, {mode} pair, {size} B: p50",
        "ms",
        results.series("one thread", "p50_ms"),
        "raw gRPC round trip",
        results.series("round trips", "p50_ms"),
        targets.SEND_P50,
    )
