"""Starts RocketMQ as a peer (name server, master, slave and proxy) from Maven's jars, and a load process in Java.

An empty slave of RocketMQ copies only the newest log file, but a slave that has the beginning of the log copies all the
rest.
"""

import hashlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import leash
from benchmarks.bench import Unavailable
from benchmarks.driver import Driver
from benchmarks.peers import maven
from testbed import real_rocketmq
from testbed.jars import NotFetched, cache_folder
from testbed.real_rocketmq import NO_OPTIONS, JavaServer, Jvms, RocketMQ, RocketMQError

V2_CLIENT = "5.2.0"
FILE_SIZE = 256 << 20  # the size of a log file, as for RocketSim's broker
CATCH_UP_S = 120.0
SETTLE_S = 0.5
HEAP = "1g"
# The JVMs have the options of RocketMQ's own scripts.  The servers are killed at the end of a benchmark, which needs
# their stores no more.
JVMS = Jvms(
    heaps={"namesrv": "256m", "master": HEAP, "slave": HEAP, "proxy": HEAP},
    options=("-server", "-XX:MaxDirectMemorySize=2g", "-XX:+UseG1GC"),
    launch=leash.start,
    stops_cleanly=False,
)
# The keys with which the benchmarks' brokers differ from those of the tests.
BROKER: dict[str, object] = {
    "autoCreateTopicEnable": "true",
    "timerWheelEnable": "true",
    "mappedFileSizeCommitLog": FILE_SIZE,
    "registerNameServerPeriod": 10_000,
    "deleteWhen": "04",
    "fileReservedTime": 480,
    "slaveTimeout": 60_000,  # as for our broker
    "syncFlushTimeout": 60_000,
    "haHousekeepingInterval": 600_000,  # the master must not drop a slave that was stopped between runs
    "waitTimeMillsInSendQueue": 5_000,  # with the default of 200 ms, sends are refused when the machine stalls
    "osPageCacheBusyTimeOutMills": 5_000,
}
RAISED_LIMITS = {
    "maxTransferCountOnMessageInMemory": 1024,
    "maxTransferBytesOnMessageInMemory": 4 << 20,
    "maxTransferCountOnMessageInDisk": 1024,
    "maxTransferBytesOnMessageInDisk": 4 << 20,
}


class RocketMqPeer:
    """A running RocketMQ.  `load` is the Java client's load process, which has sent for `loaded_s` seconds in all.

    RocketMQ is a `Sleeper`, because its brokers use 0.1 to 0.3 cores even when idle, and more while they build consume
    queues.
    """

    def __init__(self, servers: RocketMQ, load: Driver) -> None:
        self.servers = servers
        self.load = load
        self.loaded_s = 0.0
        self._asleep = False

    @property
    def name_server(self) -> str:
        return self.servers.name_server

    @property
    def address(self) -> str:
        return self.servers.address

    @property
    def master(self) -> JavaServer:
        return self.servers.master

    @property
    def slave(self) -> JavaServer | None:
        return self.servers.slave

    def sleep(self) -> None:
        """Stops (SIGSTOP) all processes except the name server, because a stopped name server would later remove the
        brokers.
        """
        self._asleep = True
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._asleep = False
        self._signal(signal.SIGCONT)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Wakes the processes for the block, which begins after a pause in which they finish earlier work.  If the
        processes slept before the block, they sleep again after it.
        """
        asleep = self._asleep
        if asleep:
            self.wake()
            time.sleep(SETTLE_S)
        try:
            yield
        finally:
            if asleep:
                self.sleep()

    def _signal(self, number: signal.Signals) -> None:
        for server in filter(None, (self.master, self.slave, self.servers.proxy)):
            server.send_signal(number)
        os.kill(self.load.pid, number)

    def ask(self, words: str, **options: object) -> dict[str, Any]:
        """Sends a command to the Java client's load process and returns its answer."""
        with self.awake():
            return self.load.ask(words, **options)

    def topic(self, name: str, queues: int = 4, **options: object) -> str:
        self.ask("topic", topic=name, queues=queues, broker=self.address, **options)
        return name

    def fill(self, topic: str, count: int, size: int) -> None:
        """Sends the bodies with the numbers from 0 to `count` to a topic, and waits until its queues have them.

        RocketMQ adds messages to its queues up to seconds after it has stored them, and a pull does not get messages
        that the queue does not have yet.
        """
        self.ask("fill", topic=topic, count=count, size=size)
        self.ask("count", topic=topic, until=count)

    def await_slave(self) -> None:
        deadline = time.monotonic() + CATCH_UP_S
        while (answer := self.ask("ha", broker=self.address))["end"] != answer["acknowledged"]:
            if time.monotonic() > deadline:
                raise Unavailable(f"RocketMQ's slave does not catch up: {answer}")
            time.sleep(0.1)


def load_classes(jars: Path, name: str) -> Path:
    """Compiles NAME.java once for each version of its source, because compiling takes as long as a server's start."""
    source = maven.HERE / f"{name}.java"
    cache = cache_folder("benchmarks")
    folder = cache / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=cache) as made:
            command = ["javac", "-nowarn", "--release", "17", "-cp", f"{jars}/*", "-d", f"{made}/classes", str(source)]
            try:
                ended = subprocess.run(command, capture_output=True, text=True, check=False)
            except FileNotFoundError:
                raise Unavailable("javac is not installed") from None
            if ended.returncode:
                raise Unavailable(f"RocketMQ's Java client does not compile: {ended.stderr[-500:]}")
            Path(made, "classes").rename(folder)
    return folder


@contextmanager
def running(
    folder: Path,
    *,
    pair: bool = False,
    sync: bool = False,
    flush: bool = False,
    keys: Mapping[str, object] | None = None,
) -> Iterator[RocketMqPeer]:
    """Starts RocketMQ.  With `sync` the master is a SYNC_MASTER that waits for its slave."""
    settings = BROKER | {"flushDiskType": "SYNC_FLUSH" if flush else "ASYNC_FLUSH"} | dict(keys or {})
    made = real_rocketmq.running(folder, pair=pair, sync=sync, settings=settings, jvms=JVMS)
    with available(made) as servers, java_client(folder, servers.name_server) as load:
        peer = RocketMqPeer(servers, load)
        if pair:
            peer.await_slave()
        yield peer


@contextmanager
def proxy(peer: RocketMqPeer) -> Iterator[str]:
    """Starts a proxy and yields its gRPC endpoint."""
    alone = peer.servers
    with available(real_rocketmq.proxy_of(alone)) as servers:
        assert servers.proxy is not None
        peer.servers = servers
        try:
            yield servers.proxy.address
        finally:
            peer.servers = alone


@contextmanager
def available(made: AbstractContextManager[RocketMQ]) -> Iterator[RocketMQ]:
    """Enters the context; raises Unavailable if its servers do not start."""
    with ExitStack() as stack:
        try:
            servers = stack.enter_context(made)
        except (NotFetched, RocketMQError) as error:
            raise Unavailable(f"RocketMQ {real_rocketmq.NEWEST}: {error}") from None
        yield servers


def jars() -> Path:
    """Returns the folder with the jars of RocketMQ's servers and client."""
    try:
        return real_rocketmq.rocketmq_jars()
    except NotFetched as error:
        raise Unavailable(str(error)) from None


def java_client(folder: Path, name_server: str) -> Driver:
    """Starts a load process with RocketMQ's Java client, for any servers that speak the remoting protocol."""
    folder.mkdir(parents=True, exist_ok=True)
    command = java(jars(), load_classes(jars(), "RocketMqLoad"), folder, HEAP, "RocketMqLoad", name_server)
    return Driver("RocketMQ's Java client", command, folder / "client.log", NO_OPTIONS)


def java(jars: Path, classes: Path, folder: Path, heap: str, *main: str) -> list[str]:
    return real_rocketmq.java(jars, folder, heap, *main, options=JVMS.options, classes=classes)


def v2_jars() -> Path:
    """Returns the folder with the jars of RocketMQ 5's Java client."""
    return maven.jars("rocketmq.xml", "v2-client", f"rocketmq-client-java-{V2_CLIENT}")


def v2_client(folder: Path, name: str, endpoint: str, topic: str, group: str) -> Driver:
    """Starts the load process of RocketMQ 5's Java client."""
    folder.mkdir(parents=True, exist_ok=True)
    classes = load_classes(v2_jars(), "RocketMqV2Load")
    command = java(v2_jars(), classes, folder, "512m", "RocketMqV2Load", endpoint, topic, group)
    return Driver(f"RocketMQ's Java client at {name}", command, folder / f"{name.replace(' ', '-')}.log", NO_OPTIONS)
