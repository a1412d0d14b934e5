"""Starts RocketMQ as a peer (name server, master, slave and proxy) from Maven's jars, and a load process in Java.

Since 5.0, a SYNC_MASTER of RocketMQ waits for a slave only if it has `inSyncReplicas=2`.  An empty slave of RocketMQ
copies only the newest log file, but a slave that has the beginning of the log copies all the rest.  RocketMQ's proxy
ends at once if no broker is registered yet.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import leash
from benchmarks.bench import Unavailable
from benchmarks.driver import Driver
from benchmarks.peers import maven
from testbed.real_rocketmq import NEWEST as VERSION
from testbed.real_rocketmq import OPENS, free_port

CLUSTER = "bench"
V2_CLIENT = "5.2.0"
BROKER = "peer-a"
HEAP = "1g"
FILE_SIZE = 256 << 20  # the size of a log file, as for RocketSim's broker
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
CATCH_UP_S = 120.0
SETTLE_S = 0.5
WAITS_FOR_ITS_SLAVE: dict[str, object] = {"inSyncReplicas": 2, "totalReplicas": 2}
RAISED_LIMITS = {
    "maxTransferCountOnMessageInMemory": 1024,
    "maxTransferBytesOnMessageInMemory": 4 << 20,
    "maxTransferCountOnMessageInDisk": 1024,
    "maxTransferBytesOnMessageInDisk": 4 << 20,
}
# A smoke run sets, in the environment, options for Spark's JVMs, which RocketMQ's JVMs must not get.
NO_OPTIONS = {"JDK_JAVA_OPTIONS": ""}
_MAIN = "org.apache.rocketmq."


class JavaServer:
    """A JVM that can be ended and then started again on the same files."""

    def __init__(self, jars: Path, folder: Path, name: str, port: int, heap: str, *main: str) -> None:
        self.name = name
        self.port = port
        self._folder = folder
        self._command = java(f"{jars}/*", folder, heap, *main)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Starts the JVM, and returns the seconds until its port accepts connections."""
        begun = time.perf_counter()
        environment = {**os.environ, **NO_OPTIONS, "ROCKETMQ_HOME": str(self._folder)}
        with (self._folder / f"{self.name}.out").open("ab") as log:
            self._process = leash.start(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, cwd=self._folder
            )
        while time.perf_counter() < begun + START_TIMEOUT_S:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", self.port)) == 0:
                    return time.perf_counter() - begun
            if self._process.poll() is not None:
                break
            time.sleep(0.01)
        raise Unavailable(f"RocketMQ's {self.name} does not answer on port {self.port}: {self._tail()}")

    @property
    def pid(self) -> int:
        """The process id of the JVM, which must be running."""
        assert self._process is not None
        return self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to the JVM if it was started."""
        if self._process is not None:
            self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            leash.kill(self._process)
            self._process.wait()

    def _tail(self) -> str:
        return (self._folder / f"{self.name}.out").read_text(errors="replace")[-400:].strip()


class RocketMq:
    """A running RocketMQ.  `load` is the Java client's load process, which has sent for `loaded_s` seconds in all.

    RocketMQ is a `Sleeper`, because its brokers use 0.1 to 0.3 cores even when idle, and more while they build consume
    queues.
    """

    def __init__(
        self, folder: Path, name_server: str, master: JavaServer, slave: JavaServer | None, load: Driver
    ) -> None:
        self.folder = folder
        self.name_server = name_server
        self.master = master
        self.slave = slave
        self.load = load
        self.loaded_s = 0.0
        self.proxy: JavaServer | None = None
        self._asleep = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.master.port}"

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
        for server in filter(None, (self.master, self.slave, self.proxy)):
            server.send_signal(number)
        os.kill(self.load.pid, number)

    def ask(self, words: str, **options: object) -> dict[str, Any]:
        """Sends a command to the Java client's load process and returns its answer."""
        with self.awake():
            return self.load.ask(words, **options)

    def topic(self, name: str, queues: int = 4, **options: object) -> str:
        self.ask("topic", topic=name, queues=queues, broker=self.address, **options)
        return name

    def await_slave(self) -> None:
        deadline = time.monotonic() + CATCH_UP_S
        while (answer := self.ask("ha", broker=self.address))["end"] != answer["acknowledged"]:
            if time.monotonic() > deadline:
                raise Unavailable(f"RocketMQ's slave does not catch up: {answer}")
            time.sleep(0.1)


def java(class_path: str, folder: Path, heap: str, *main: str) -> list[str]:
    settings = ["-server", f"-Xms{heap}", f"-Xmx{heap}", "-XX:MaxDirectMemorySize=2g", "-XX:+UseG1GC", *OPENS]
    settings += [f"-Duser.home={folder}", "-Drocketmq.client.logUseSlf4j=false"]
    settings += [f"-Drocketmq.broker.diskSpace{name}Ratio=0.99" for name in ("WarningLevel", "CleanForcibly")]
    return ["java", *settings, "-cp", class_path, *main]


def load_classes(jars: Path, name: str) -> Path:
    """Compiles NAME.java once for each version of its source, because compiling takes as long as a server's start."""
    source = maven.HERE / f"{name}.java"
    folder = maven.cache() / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=maven.cache()) as made:
            command = ["javac", "-nowarn", "--release", "17", "-cp", f"{jars}/*", "-d", f"{made}/classes", str(source)]
            try:
                ended = subprocess.run(command, capture_output=True, text=True, check=False)
            except FileNotFoundError:
                raise Unavailable("javac is not installed") from None
            if ended.returncode:
                raise Unavailable(f"RocketMQ's Java client does not compile: {ended.stderr[-500:]}")
            Path(made, "classes").rename(folder)
    return folder


def broker(
    jars: Path, folder: Path, name: str, role: str, flush: str, name_server: str, keys: Mapping[str, object]
) -> JavaServer:
    port = free_port()
    store = folder / f"{name}-store"
    settings: dict[str, object] = {
        "brokerClusterName": CLUSTER,
        "brokerName": BROKER,
        "brokerId": 1 if role == "SLAVE" else 0,
        "brokerRole": role,
        "flushDiskType": flush,
        "listenPort": port,
        "haListenPort": port + 1,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "namesrvAddr": name_server,
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "mappedFileSizeCommitLog": FILE_SIZE,
        "registerNameServerPeriod": 10_000,
        "deleteWhen": "04",
        "fileReservedTime": 480,
        "slaveTimeout": 60_000,  # as for our broker
        "syncFlushTimeout": 60_000,
        "haHousekeepingInterval": 600_000,  # the master must not drop a slave that was stopped between runs
        "waitTimeMillsInSendQueue": 5_000,  # with the default of 200 ms, sends are refused when the machine stalls
        "osPageCacheBusyTimeOutMills": 5_000,
        "diskMaxUsedSpaceRatio": 95,
        **keys,
    }
    config = folder / f"{name}.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return JavaServer(jars, folder, name, port, HEAP, _MAIN + "broker.BrokerStartup", "-c", str(config))


@contextmanager
def running(
    folder: Path,
    *,
    pair: bool = False,
    sync: bool = False,
    flush: bool = False,
    keys: Mapping[str, object] | None = None,
) -> Iterator[RocketMq]:
    """Starts RocketMQ.  With `sync` the master is a SYNC_MASTER that really waits for its slave."""
    jars = maven.jars("rocketmq.xml", "all", f"rocketmq-{VERSION}")
    folder.mkdir(parents=True)
    port = free_port()
    config = folder / "namesrv.properties"
    config.write_text(f"listenPort={port}\nkvConfigPath={folder}/kvConfig.json\n")
    name_server = f"127.0.0.1:{port}"
    role, disk = "SYNC_MASTER" if sync else "ASYNC_MASTER", "SYNC_FLUSH" if flush else "ASYNC_FLUSH"
    settings = (WAITS_FOR_ITS_SLAVE if sync else {}) | dict(keys or {})
    namesrv = JavaServer(jars, folder, "namesrv", port, "256m", _MAIN + "namesrv.NamesrvStartup", "-c", str(config))
    master = broker(jars, folder, "master", role, disk, name_server, settings)
    slave = broker(jars, folder, "slave", "SLAVE", disk, name_server, settings) if pair else None
    with ExitStack() as servers, java_client(folder, name_server) as load:
        for server in filter(None, (namesrv, master, slave)):
            # SIGKILL, because the store is not needed any more and a clean stop takes long.
            servers.callback(server.end, signal.SIGKILL)
            server.start()
        peer = RocketMq(folder, name_server, master, slave, load)
        if pair:
            peer.await_slave()
        yield peer


def java_client(folder: Path, name_server: str) -> Driver:
    """Starts the load process of RocketMQ's Java client, which works with any servers that speak the remoting
    protocol.
    """
    jars = maven.jars("rocketmq.xml", "all", f"rocketmq-{VERSION}")
    folder.mkdir(parents=True, exist_ok=True)
    command = java(f"{load_classes(jars, 'RocketMqLoad')}:{jars}/*", folder, HEAP, "RocketMqLoad", name_server)
    return Driver("RocketMQ's Java client", command, folder / "client.log", NO_OPTIONS)


@contextmanager
def proxy(peer: RocketMq) -> Iterator[str]:
    """Starts RocketMQ's proxy and yields its gRPC endpoint.  A topic must have been created before, so that the broker
    is registered.
    """
    jars = maven.jars("rocketmq.xml", "all", f"rocketmq-{VERSION}")
    port, remoting = free_port(), free_port()
    (peer.folder / "conf").mkdir(exist_ok=True)
    config = peer.folder / "conf" / "rmq-proxy.json"
    config.write_text(
        json.dumps(
            {
                "rocketMQClusterName": CLUSTER,
                "namesrvAddr": peer.name_server,
                "proxyMode": "CLUSTER",
                "grpcServerPort": port,
                "remotingListenPort": remoting,
                "localServeAddr": "127.0.0.1",
            }
        )
    )
    peer.proxy = JavaServer(jars, peer.folder, "proxy", port, HEAP, _MAIN + "proxy.ProxyStartup", "-pc", str(config))
    try:
        peer.proxy.start()
        yield f"127.0.0.1:{port}"
    finally:
        peer.proxy.end(signal.SIGKILL)


def v2_classes() -> str:
    """Returns the class path of RocketMqV2Load.java, with the jars of RocketMQ 5's Java client."""
    jars = maven.jars("rocketmq.xml", "v2-client", f"rocketmq-client-java-{V2_CLIENT}")
    return f"{load_classes(jars, 'RocketMqV2Load')}:{jars}/*"


def v2_client(folder: Path, name: str, endpoint: str, topic: str, group: str) -> Driver:
    """Starts the load process of RocketMQ 5's Java client."""
    folder.mkdir(parents=True, exist_ok=True)
    command = java(v2_classes(), folder, "512m", "RocketMqV2Load", endpoint, topic, group)
    return Driver(f"RocketMQ's Java client at {name}", command, folder / f"{name.replace(' ', '-')}.log")
