"""Runs the Java programs of this folder, which use RocketMQ's own client and mqadmin."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed.real_rocketmq import (
    BROKER_NAME,
    COMMAND_TIMEOUT_S,
    NEWEST,
    RocketMQ,
    client_jars,
    is_version_4,
    java,
    write_logging,
)

HERE = Path(__file__).parent
# the versions of RocketMQ's Java client and mqadmin that the tests run at our `remotingPort`
CLIENT_VERSIONS = [NEWEST, "5.1.4", "4.9.8"]


def read(rocketmq: RocketMQ, requests: list[tuple[str, ...]]) -> list[dict[str, Any]]:
    """Returns what Reader.java reads for these requests."""
    return _run(rocketmq, "Reader.java", requests)


def pop(rocketmq: RocketMQ, requests: list[tuple[str, ...]]) -> list[dict[str, Any]]:
    """Returns what Popper.java pops for these requests, after it has sent and acknowledged messages."""
    return _run(rocketmq, "Popper.java", requests)


def _run(rocketmq: RocketMQ, program: str, requests: list[tuple[str, ...]]) -> list[dict[str, Any]]:
    file = rocketmq.work / "requests"
    file.write_text("".join("\t".join(words) + "\n" for words in requests), encoding="utf-8")
    version = NEWEST if is_version_4(rocketmq.version) else None  # some classes of 4.x have other names
    printed = rocketmq.run(str(HERE / program), rocketmq.name_server, BROKER_NAME, str(file), version=version)
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


@contextmanager
def asked_consumer(home: Path, name_server: str, topic: str, group: str, version: str, *refused: str) -> Iterator[Path]:
    """Runs AskedConsumer.java, a push consumer of RocketMQ's Java client.  Yields the file of what it prints.

    A message with the body `refused`, if one is given, becomes a dead letter.
    """
    printed = home / "consumer.out"
    command = java(client_jars(version), home, "128m", str(HERE / "AskedConsumer.java"), name_server, topic, group)
    with printed.open("wb") as out:
        process = subprocess.Popen(
            [*command, *refused], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, cwd=home
        )
    try:
        yield printed
    finally:
        try:
            process.communicate(timeout=COMMAND_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()


def client_id_in(printed: Path) -> str:
    """Returns the client id that an `asked_consumer` has printed."""
    found = re.search(r"^client (\S+)$", printed.read_text(), re.MULTILINE)
    assert found is not None, printed.read_text()
    return found[1]


def consumed(printed: Path) -> dict[str, int]:
    """Returns how often an `asked_consumer` got each message."""
    return {
        body: int(times) for body, times in re.findall(r"^consumed (\w+) (\d+)$", printed.read_text(), re.MULTILINE)
    }


class MqAdmin:
    """Runs commands of mqadmin in one JVM, because each start of mqadmin takes seconds."""

    def __init__(self, version: str, home: Path) -> None:
        home.mkdir(parents=True)
        write_logging(home, version)
        self._errors = home / "stderr"
        command = java(client_jars(version), home, "128m", str(HERE / "Commands.java"))
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=home,
                env=os.environ | {"ROCKETMQ_HOME": str(home)},
            )

    def run(self, line: str) -> str:
        """Returns the output and the errors of the command, without Logback's first lines about itself."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\t".join(line.split()).encode() + b"\n")
        self.process.stdin.flush()
        size = self.process.stdout.readline()
        assert size, f"{line}: the JVM has ended: {self._errors.read_text()[-4000:]}"
        lines = self.process.stdout.read(int(size)).decode().splitlines(keepends=True)
        printed = "".join(line for line in lines if not re.match(r"\d\d:\d\d:\d\d,\d+ \|-", line))
        # `consumerStatus` prints a setting whose name ends with "Exception", followed by blanks and a colon.
        assert not re.search(r"Exception(?! +:)", printed), f"{line}\n{printed}"
        return printed

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=COMMAND_TIMEOUT_S)
