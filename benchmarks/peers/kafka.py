"""Starts an Apache Kafka broker (KRaft, combined mode) from Maven's jars, and finds the jars of Spark's Kafka
connector.
"""

import base64
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import leash
from benchmarks.bench import Unavailable
from benchmarks.peers import maven
from testbed.real_rocketmq import accepts_connections, free_port

BROKER_VERSION = "4.2.1"
CONNECTOR_VERSION = "4.2.0"
HEAP = "1g"
START_TIMEOUT_S = 60.0
# The JVM options that Kafka's own kafka-run-class.sh uses.
_GC = "-server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 -Djava.awt.headless=true"
# With its defaults of 64 KiB sockets and 500 records a poll, Spark's Kafka source leaves half of two cores idle.
TUNED_SOURCE = {"kafka.receive.buffer.bytes": str(2 << 20), "kafka.max.poll.records": "5000"}


def connector_jars() -> list[str]:
    """Returns the jars of Spark's Kafka connector, for `spark.jars`."""
    folder = maven.jars("kafka.xml", "spark", f"spark-kafka-{CONNECTOR_VERSION}")
    return sorted(str(path) for path in folder.glob("*.jar"))


@dataclass(frozen=True)
class Kafka:
    address: str
    jars: Path
    folder: Path

    def topic(self, name: str, partitions: int = 4) -> str:
        self._tool("--create", "--topic", name, "--partitions", str(partitions), "--replication-factor", "1")
        return name

    def _tool(self, *words: str) -> None:
        command = _java(self.jars, "256m", "org.apache.kafka.tools.TopicCommand")
        ended = subprocess.run(
            [*command, "--bootstrap-server", self.address, *words], capture_output=True, text=True, check=False
        )
        if ended.returncode:
            raise Unavailable(f"Kafka's topic tool failed: {ended.stdout[-500:]}{ended.stderr[-500:]}")


@contextmanager
def running(folder: Path) -> Iterator[Kafka]:
    jars = maven.jars("kafka.xml", "broker", f"kafka-{BROKER_VERSION}")
    folder.mkdir(parents=True)
    port, controller = free_port(), free_port()
    config = folder / "server.properties"
    config.write_text(
        f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder / "data"}
num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""
    )
    _format(jars, config)
    with (folder / "log").open("wb") as log:
        process = leash.start(
            [*_java(jars, HEAP, "kafka.Kafka"), str(config)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        if not accepts_connections(process, port, START_TIMEOUT_S):
            output = (folder / "log").read_text(errors="replace")
            raise Unavailable(f"Kafka does not answer: {output[-500:]}")
        yield Kafka(f"127.0.0.1:{port}", jars, folder)
    finally:
        leash.kill(process)  # with SIGKILL, because the broker's store is not needed any more
        process.wait()


def _format(jars: Path, config: Path) -> None:
    tool = _java(jars, "256m", "kafka.tools.StorageTool")
    identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    try:
        subprocess.run(
            [*tool, "format", f"--cluster-id={identity}", "-c", str(config)], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        raise Unavailable("java is not installed") from None
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"Kafka's storage tool failed: {error.stderr[-500:]}") from error


def _java(jars: Path, heap: str, main: str) -> list[str]:
    settings = [
        f"-Xmx{heap}",
        f"-Xms{heap}",
        *_GC.split(),
        f"-Dlog4j2.configurationFile={maven.HERE}/log4j2.properties",
    ]
    return ["java", *settings, "-cp", f"{jars}/*", main]
