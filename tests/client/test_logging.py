"""The client logs retries, fallbacks and new routes; docs/client.md names the loggers."""

import logging
import os
import subprocess
import sys

import pytest

from rocketsim_client import Message, Producer, PullConsumer
from testbed.polling import PROCESS_PATIENCE_S
from testbed.processes import ROOT
from tests.support.fake_broker import Break, FakeCluster


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    assert all(record.name.startswith("rocketsim_client.") for record in caplog.records)
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_another_attempt_is_a_warning_without_the_body(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "rocketsim_client")
    for name in ("broker-a", "broker-b"):
        cluster.brokers[name, 0].script["Send"].append(Break())
    with Producer(cluster.address) as producer:
        producer.send(Message("T", b"secret body", keys="secret key"))
    attempts = [line for line in lines(caplog, logging.WARNING) if line.startswith("topic 'T': attempt ")]
    assert len(attempts) == 2 and "at broker broker-" in attempts[0] and "not reachable" in attempts[0]
    assert "secret" not in caplog.text


def test_a_broker_that_cannot_be_reached_is_said_once_and_so_is_its_return(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rocketsim_client")
    with PullConsumer(cluster.address, "g") as consumer:
        queue = next(queue for queue in consumer.message_queues("T") if queue.broker_name == "broker-a")
        master = consumer.cluster.route("T").addresses("broker-a")[0]
        cluster.brokers["broker-a", 0].script["Pull"].append(Break())
        consumer.pull(queue, 0)
        assert [line for line in lines(caplog, logging.WARNING) if line.startswith(f"{master} is tried last")]
        said = len(caplog.records)
        consumer.pull(queue, 0)  # at the slave
        assert len(caplog.records) == said
        consumer.cluster.answered(master)
        consumer.cluster.answered(master)
    assert lines(caplog, logging.INFO).count(f"{master} answers again") == 1


def test_a_changed_route_is_said_with_its_brokers(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rocketsim_client")
    with PullConsumer(cluster.address, "g") as consumer:
        consumer.message_queues("T")
        cluster.stop("broker-a")
        consumer.cluster.route("T", fresh=True)
        consumer.cluster.route("T", fresh=True)
    (changed,) = lines(caplog, logging.INFO)
    assert changed.startswith("the route of topic 'T' has changed: broker-a (4 queues to read, 4 to write")
    assert "at 1@127.0.0.1:" in changed


def test_nothing_is_printed_unless_the_application_configures_logging() -> None:
    """The command line's errors are JSON lines on standard error."""
    code = """
from rocketsim_client import NameServerUnavailable, PullConsumer
with PullConsumer("127.0.0.1:1", "g") as consumer:
    try:
        consumer.message_queues("T")
    except NameServerUnavailable:
        print("not reachable")
"""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=PROCESS_PATIENCE_S
    )
    assert (done.stdout, done.stderr) == ("not reachable\n", "")
