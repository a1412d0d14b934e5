"""RocketMQ's official Python client, while the master dies and the slave is promoted."""

import sys

import pytest

from testbed.polling import wait_until
from testbed.processes import ROOT
from tests.cluster.test_promotion import promote_after_the_masters_death
from tests.support.programs import Program, free_ports

pytestmark = pytest.mark.cluster

PROGRAM = [sys.executable, str(ROOT / "tests/v2/python_client.py")]


def test_the_python_client_goes_on_at_the_promoted_slave_and_receives_what_was_stored(
    processes, namesrv, alone, tmp_path
):
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
    with Program(tmp_path, [*PROGRAM, "produce", endpoints, "T"], "produce") as producer:
        wait_until(lambda: len(producer.lines) >= 20, "the first messages", 60)
        master.kill()
        # These clients treat SLAVE_NOT_AVAILABLE, the answer of a SYNC_MASTER without a slave, as a failed send.
        promote_after_the_masters_death(alone, slave, broker_role="ASYNC_MASTER")
        before = len(producer.lines)
        wait_until(lambda: len(producer.lines) >= before + 20, "messages at the promoted slave", 60)
        stored = producer.end()
    with Program(tmp_path, [*PROGRAM, "consume", endpoints, "T"], "consume") as consumer:
        received = consumer.end()
    assert set(stored) <= set(received)
    assert len(received) == len(set(received))
