"""P17 measures RocketMQ 5's official clients with RocketSim's broker, with RocketMQ's broker and proxy, and with a
server that stores nothing.  RocketSim's broker is measured with each library that can serve its port.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial

import psutil

from benchmarks import cluster, targets
from benchmarks.bench import Bench
from benchmarks.cluster import OurCluster
from benchmarks.contest import Contestant, Results, Sample, warmed_up
from benchmarks.driver import Driver, python_driver
from benchmarks.figures import Missing, Series
from benchmarks.peers import rocketmq
from benchmarks.peers.rocketmq import RocketMqPeer
from benchmarks.targets import Target
from testbed.real_rocketmq import free_port

SIZE = 100
GROUP = "official"
WINDOW = 500
THREADS = 16
OURS, NATIVE, THEIRS, NULL = "ours", "ours, pygrpc-native", "RocketMQ", "null broker"
REFERENCES = {THEIRS: "RocketMQ's broker and proxy", NULL: "a server that stores nothing"}
Peer = RocketMqPeer | Missing
Endpoints = Mapping[str, str | Missing]


def run(bench: Bench) -> None:
    ours = bench.enter(broker(bench, "v2", "grpcio"))
    native = bench.enter(broker(bench, "v2-native", "pygrpc_native"))
    log = bench.folder / "null-broker.log"
    null = bench.enter(python_driver(NULL, "benchmarks.null_broker", log, str(SIZE)))
    peer = bench.peer(THEIRS, lambda: bench.enter(rocketmq.running(bench.folder / "rocketmq")))
    messages = {"python": bench.plan.pick(100_000, 50_000, 5_000), "java": bench.plan.pick(800_000, 300_000, 20_000)}
    for topic, count in messages.items():
        for one in (ours, native):
            one.fill(topic, count, SIZE)
        if not isinstance(peer, Missing):
            peer.topic(topic, type="NORMAL")
            peer.fill(topic, count, SIZE)
    endpoints = {
        OURS: f"127.0.0.1:{ours.master.keys['grpcServerPort']}",
        NATIVE: f"127.0.0.1:{native.master.keys['grpcServerPort']}",
        THEIRS: peer if isinstance(peer, Missing) else bench.peer("RocketMQ's proxy", partial(proxy_of, bench, peer)),
        NULL: f"127.0.0.1:{null.ask('port')['port']}",
    }
    python(bench, peer, endpoints)
    java(bench, peer, endpoints)
    memory(bench, ours, peer)


def broker(bench: Bench, title: str, library: str) -> AbstractContextManager[OurCluster]:
    """Starts a broker whose port for RocketMQ 5's clients is served by this library."""
    keys = {"grpcServerPort": free_port(), "tlsTestModeEnable": False, "grpcServerLibrary": library}
    return cluster.running(bench, title, keys=keys)


def proxy_of(bench: Bench, peer: RocketMqPeer) -> str:
    peer.ask("group", group=GROUP, broker=peer.address)
    return bench.enter(rocketmq.proxy(peer))


def python(bench: Bench, peer: Peer, endpoints: Endpoints) -> None:
    """Measures the official Python client, in the version that is installed for the tests."""

    def start(name: str, endpoint: str) -> Driver:
        log = bench.folder / f"python-{name}.log"
        module = "benchmarks.peers.rocketmq_client"
        return bench.enter(python_driver(f"the Python client at {name}", module, log, endpoint, "python", GROUP))

    calls = callers(bench, peer, endpoints, "official Python client", start)
    seconds = bench.plan.pick(3, 2, 1)
    results = compare(bench, calls, "Python client,", "send_async", size=SIZE, seconds=seconds, window=WINDOW)
    report(bench, results, f"Python client: send_async, {WINDOW} in flight", "rate", targets.V2_SEND, targets.V2_ECHO)
    results = compare(bench, calls, "Python client,", "send", size=SIZE, seconds=seconds)
    report(bench, results, "Python client: blocking send, p99", "p99_ms", targets.V2_P99)
    results = compare(bench, calls, "Python client,", "consume", seconds=seconds, batch=32)
    report(bench, results, "Python client: receive(32)", "receive_rate", targets.V2_RECEIVE)
    report(bench, results, "Python client: ack", "ack_rate", targets.V2_SEND, targets.V2_ECHO)
    report(bench, results, "Python client: receive(32), p99", "receive_p99_ms", targets.V2_P99)
    report(bench, results, "Python client: ack, p99", "ack_p99_ms", targets.V2_P99)


def java(bench: Bench, peer: Peer, endpoints: Endpoints) -> None:
    def start(name: str, endpoint: str) -> Driver:
        return bench.enter(rocketmq.v2_client(bench.folder / "java", name, endpoint, "java", GROUP))

    where = f"RocketMQ's Java client {rocketmq.V2_CLIENT}"
    client = bench.peer(where, rocketmq.v2_jars)
    if isinstance(client, Missing):
        return
    calls = callers(bench, peer, endpoints, where, start)
    seconds = bench.plan.pick(3, 2, 1)
    results = compare(bench, calls, "Java client,", "send", warm_s=20, size=SIZE, seconds=seconds, threads=THREADS)
    report(bench, results, f"Java client: send, {THREADS} threads", "rate", targets.V2_JAVA, targets.V2_ECHO)
    report(bench, results, f"Java client: send, {THREADS} threads, p99", "p99_ms")
    results = compare(bench, calls, "Java client,", "consume", warm_s=20, seconds=seconds, threads=THREADS)
    name = f"Java client: receive(32) and ack each, {THREADS} threads"
    report(bench, results, name, "rate", targets.V2_JAVA, targets.V2_ECHO)


Call = Callable[..., Sample]


def callers(
    bench: Bench, peer: Peer, endpoints: Endpoints, what: str, start: Callable[[str, str], Driver]
) -> dict[str, Call | Missing]:
    """Starts a client process for each endpoint, and returns, for each process, a function that sends commands to
    it.
    """

    def caller(name: str, endpoint: str) -> Call:
        client = start(name, endpoint)

        def call(words: str, **options: object) -> Sample:
            if name != THEIRS or isinstance(peer, Missing):
                return client.ask(words, **options)
            with peer.awake():
                return client.ask(words, **options)

        return call

    found: dict[str, Call | Missing] = {}
    for name, endpoint in endpoints.items():
        if isinstance(endpoint, Missing):
            found[name] = endpoint
        elif name == THEIRS:
            found[name] = bench.peer(f"{what} at {name}", partial(caller, name, endpoint))
        else:
            found[name] = caller(name, endpoint)
    return found


def compare(
    bench: Bench, calls: Mapping[str, Call | Missing], what: str, words: str, warm_s: int = 0, **options: object
) -> Results:
    """Runs a command with all endpoints, after a warm-up of at least `warm_s` seconds.  RocketMQ's proxy is always
    warmed up, because it is a JVM.
    """
    contestants: dict[str, Contestant | Missing] = {}
    for name, call in calls.items():
        if isinstance(call, Missing):
            contestants[name] = call
            continue
        run = contestants[name] = partial(call, words, **options)
        if bench.plan.warm_up and (least_s := 20 if name == THEIRS else warm_s):
            bench.doing(f"warming up {what} {words} at {name}")
            warmed_up(run, bench.plan.pick(least_s, least_s * 0.4, 0))
    return bench.contest(contestants, f"{what} {words},", bench.plan.again())


def report(
    bench: Bench, results: Results, what: str, key: str, target: Target | None = None, ceiling: Target | None = None
) -> None:
    unit = "ms" if key.endswith("_ms") else "msgs/s"
    for name, one in ((THEIRS, target), (NULL, ceiling)):
        theirs = results.series(name, key)
        bench.report(f"{what}, {SIZE} B", unit, results.series(OURS, key), REFERENCES[name], theirs, one)
    native = results.series(NATIVE, key)
    words = f"{what}, {SIZE} B, grpcServerLibrary=pygrpc_native"
    bench.report(words, unit, native, REFERENCES[THEIRS], results.series(THEIRS, key), target)


def memory(bench: Bench, ours: OurCluster, peer: Peer) -> None:
    """Measures the servers' resident memory after all runs, while they are still running."""
    theirs: Series | Missing
    if isinstance(peer, Missing):
        theirs = peer
    else:
        theirs = Series.of([sum(resident_mib(one.pid) for one in (peer.master, peer.servers.proxy) if one is not None)])
    mine = Series.of([resident_mib(ours.master.pid)])
    words = f"RocketMQ's broker and proxy, heaps of {rocketmq.HEAP} each"
    bench.report(
        "resident memory of the broker afterwards", "MiB", mine, words, theirs, targets.V2_MEMORY, by_amount=True
    )


def resident_mib(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 2**20
