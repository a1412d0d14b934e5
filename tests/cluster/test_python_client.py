"""RocketMQ's official Python client, while the master dies and the slave is promoted."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cluster.test_promotion import promote_after_the_masters_death
from tests.support.polling import wait_until
from tests.support.processes import ROOT

pytestmark = pytest.mark.cluster

PROGRAM = ROOT / "tests/v2/python_client.py"


def free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


class Program:
    """One of the programs; `lines` are what it has printed so far."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._errors = (home / f"{arguments[0]}.errors").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            env=os.environ | {"HOME": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def end(self) -> list[str]:
        """Its input ends; all that it has printed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._reading.join()
        self._errors.seek(0)
        assert self.process.wait() == 0, self._errors.read()
        return self.lines

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self._reading.join()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self._errors.close()


def test_it_goes_on_at_the_promoted_slave_and_what_was_stored_is_received(processes, namesrv, alone, tmp_path):
    ports = free_ports(2)
    master = processes.broker("broker-a", 0, namesrv, brokerRole="SYNC_MASTER", grpcServerPort=ports[0])
    slave = processes.broker("broker-a", 1, namesrv, grpcServerPort=ports[1])
    for process in (master, slave):
        process.launch()
    for process in (master, slave):
        process.wait_until_ready()
    alone(master).update_topic("T")
    alone(master).wait_for_slaves()
    alone(slave).wait_for_topic("T")
    endpoints = ";".join(f"127.0.0.1:{port}" for port in ports)
    with Program(tmp_path, "produce", endpoints, "T") as producer:
        wait_until(lambda: len(producer.lines) >= 20, "the first messages", 60)
        master.kill()
        promote_after_the_masters_death(alone, slave)
        before = len(producer.lines)
        wait_until(lambda: len(producer.lines) >= before + 20, "messages at the promoted slave", 60)
        stored = producer.end()
    with Program(tmp_path, "consume", endpoints, "T") as consumer:
        received = consumer.end()
    assert set(stored) <= set(received)
    assert len(received) == len(set(received))
