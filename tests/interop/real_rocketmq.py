"""A real Apache RocketMQ on this machine: name server and broker from Maven's jars, one process each, on a given store.

Needs Java 17 and Maven.  The jars are fetched once, into the user's cache directory.
"""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.jars import fetch_jars

HERE = Path(__file__).parent
VERSION = "5.5.0"  # as in pom.xml
BROKER_NAME = "interop"
START_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 600
# Java 17 hides from RocketMQ what it maps its files with.
OPENS = [
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang", "java.util")),
]


class RocketMQError(Exception):
    """A process of RocketMQ did not start, or ended with an error; the message has what it printed."""


def rocketmq_jars() -> Path:
    """The directory with RocketMQ's jars."""
    return fetch_jars(HERE / "pom.xml", f"rocketmq-{VERSION}")


def free_port() -> int:
    """A port that is free, with those beside it that RocketMQ opens too: two below, and one above."""
    while True:
        with ExitStack() as sockets:
            first = sockets.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                for neighbour in (port - 2, port + 1):
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", neighbour))
            except OSError:
                continue
            return port


@dataclass(frozen=True)
class RocketMQ:
    """A running name server and broker."""

    jars: Path
    work: Path
    name_server: str
    address: str
    broker: "subprocess.Popen[bytes]"

    def read(self, requests: list[tuple[str, ...]]) -> list[dict[str, Any]]:
        """What RocketMQ's client reads; see Reader.java."""
        return self._run("Reader.java", requests)

    def pop(self, requests: list[tuple[str, ...]]) -> list[dict[str, Any]]:
        """What RocketMQ's client pops, having sent and acknowledged; see Popper.java."""
        return self._run("Popper.java", requests)

    def admin(self, *words: str) -> str:
        """What mqadmin says to a command for this broker."""
        command = _java(self.jars, self.work, "256m", "org.apache.rocketmq.tools.command.MQAdminStartup", *words)
        answer = subprocess.run([*command, "-b", self.address], capture_output=True, text=True, timeout=READ_TIMEOUT_S)
        if answer.returncode:
            raise RocketMQError(f"mqadmin {' '.join(words)} ended with {answer.returncode}\n{answer.stderr[-4000:]}")
        return answer.stdout

    def kill(self) -> None:
        """SIGKILL for the broker."""
        self.broker.kill()
        self.broker.wait()

    def _run(self, program: str, requests: list[tuple[str, ...]]) -> list[dict[str, Any]]:
        file = self.work / "requests"
        file.write_text("".join("\t".join(words) + "\n" for words in requests), encoding="utf-8")
        command = _java(self.jars, self.work, "512m", str(HERE / program), self.name_server, BROKER_NAME, str(file))
        answer = subprocess.run(command, capture_output=True, text=True, timeout=READ_TIMEOUT_S)
        if answer.returncode:
            raise RocketMQError(f"{program} ended with {answer.returncode}\n{answer.stderr[-4000:]}")
        return [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]


@contextmanager
def running(store: Path, work: Path, **settings: object) -> Iterator[RocketMQ]:
    """Serves the store directory, which RocketMQ writes to: give it a copy.  Leaving stops both processes cleanly.

    `settings`: further keys of RocketMQ's broker.
    """
    jars = rocketmq_jars()
    work.mkdir(parents=True, exist_ok=True)
    name_server_port, broker_port = free_port(), free_port()
    name_server = f"127.0.0.1:{name_server_port}"
    namesrv_conf, broker_conf = work / "namesrv.properties", work / "broker.properties"
    namesrv_conf.write_text(_properties({"listenPort": name_server_port, "kvConfigPath": work / "kvConfig.json"}))
    broker_conf.write_text(
        _properties(
            {
                "brokerClusterName": "interop",
                "brokerName": BROKER_NAME,
                "brokerId": 0,
                "brokerRole": "ASYNC_MASTER",
                "listenPort": broker_port,
                "haListenPort": broker_port + 1,
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",
                "namesrvAddr": name_server,
                "storePathRootDir": store,
                "storePathCommitLog": store / "commitlog",
                "autoCreateTopicEnable": "false",
                "timerWheelEnable": "false",
                "fileReservedTime": 1_000_000,  # the messages may be of any age
                "diskMaxUsedSpaceRatio": 95,
                **_file_sizes(store),
                **settings,
            }
        )
    )
    main = "org.apache.rocketmq."
    with (
        _process(jars, work, "namesrv", name_server_port, main + "namesrv.NamesrvStartup", str(namesrv_conf)),
        _process(jars, work, "broker", broker_port, main + "broker.BrokerStartup", str(broker_conf)) as broker,
    ):
        yield RocketMQ(jars, work, name_server, f"127.0.0.1:{broker_port}", broker)


def _file_sizes(store: Path) -> dict[str, int]:
    """RocketMQ refuses files of another size than configured.  Index files have four times as many entries as slots."""
    sizes = {}
    for key, pattern in {
        "mappedFileSizeCommitLog": "commitlog/*",
        "mappedFileSizeConsumeQueue": "consumequeue/*/*/*",
    }.items():
        first = next((path for path in store.glob(pattern) if path.name.isdigit()), None)
        if first is not None:
            sizes[key] = first.stat().st_size
    index = next((path for path in (store / "index").glob("*") if path.name.isdigit()), None)
    if index is not None:
        slots = (index.stat().st_size - 40) // (4 + 4 * 20)
        sizes |= {"maxHashSlotNum": slots, "maxIndexNum": 4 * slots}
    return sizes


def _properties(values: dict[str, object]) -> str:
    return "".join(f"{key}={value}\n" for key, value in values.items())


def _java(jars: Path, work: Path, heap: str, *main: str) -> list[str]:
    settings = [
        "-XX:+UseSerialGC",
        f"-Xms{heap}",
        f"-Xmx{heap}",
        f"-Duser.home={work}",
        "-Drocketmq.client.logUseSlf4j=false",
    ]
    # Its own checks of the disk would delete or refuse on a machine that is nearly full.
    settings += [f"-Drocketmq.broker.diskSpace{name}Ratio=0.99" for name in ("WarningLevel", "CleanForcibly")]
    return ["java", *settings, *OPENS, "-cp", f"{jars}/*", *main]


@contextmanager
def _process(
    jars: Path, work: Path, name: str, port: int, main: str, config: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs until the context is left; entered once its port accepts connections."""
    environment = {**os.environ, "ROCKETMQ_HOME": str(work)}
    output = work / f"{name}.out"
    with output.open("wb") as log:
        command = _java(jars, work, "512m", main, "-c", config)
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=work)
    try:
        if not accepts_connections(process, port, START_TIMEOUT_S):
            raise RocketMQError(f"nothing accepts on port {port}\n{output.read_text(errors='replace')[-4000:]}")
        yield process
    finally:
        process.terminate()
        try:
            process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def accepts_connections(process: "subprocess.Popen[bytes]", port: int, timeout_s: float) -> bool:
    """Whether the process does in time; False as soon as it has ended."""
    for _ in range(int(timeout_s / 0.1)):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return True
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    return False


def copy_store(store: Path, target: Path, *, whole: bool = False) -> Path:
    """A copy; holes stay holes.  Unless it is `whole`, without the files of our brokers that RocketMQ does not know."""
    target.mkdir(parents=True)
    subprocess.run(["cp", "-a", "--sparse=always", f"{store}/.", str(target)], check=True)
    if not whole:
        shutil.rmtree(target / "rocketsim", ignore_errors=True)
    return target
