"""Brokers of a pair are killed and restarted under running queries: which records are read from which broker, and where
offsets are committed.
"""

import shutil
import time
from typing import Any

import pytest

from rocketsim_client import Message, MessageQueue, Producer
from rocketsim_client.errors import ServiceNotAvailable
from testbed.polling import wait_until
from tests.source.bench import TIMEOUT_S, Bench, batches, failure_of, source_progress, wait_idle

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture(autouse=True)
def both_up(pair: Bench) -> Any:
    """Starts the brokers that a test has left dead."""
    yield
    pair.stop_queries()
    for broker in (pair.master, pair.slave):
        if not broker.is_running():
            broker.start()
    wait_until(pair.is_writable, "the master to take writes", TIMEOUT_S)


def offsets_at(pair: Bench, broker: Any, group: str, topic: str) -> dict[MessageQueue, int]:
    """Returns the group's offsets at one broker, or nothing while a returning master has not received its slave's
    offsets.
    """
    queues = [MessageQueue(topic, "broker-a", queue_id) for queue_id in range(4)]
    try:
        answer = pair.cluster.transport.reads.query_offsets(broker.address, group, queues, False, TIMEOUT_S)
    except ServiceNotAvailable:
        return {}
    return {MessageQueue(of_topic, "broker-a", queue_id): offset for of_topic, queue_id, offset in answer.offsets}


def test_a_dead_masters_backlog_is_read_and_committed_at_its_slave_and_handed_back(
    pair: Bench, checkpoint: str
) -> None:
    topic, group = pair.topic(40), pair.name("group")
    stream = pair.stream(topic, group=group, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    pair.wait_for_slave(topic)
    ends = pair.end(topic)
    query = pair.start(stream, checkpoint, processingTime="300 milliseconds")
    wait_until(lambda: len(pair.rows(checkpoint)) >= 8, "the first rows", TIMEOUT_S)
    pair.master.kill()
    wait_until(lambda: len(pair.rows(checkpoint)) == 40, "all rows", TIMEOUT_S)
    assert query.exception() is None
    assert pair.bodies(checkpoint) == sorted(map(str, range(40)))
    assert {row.servedByBrokerId for row in pair.rows(checkpoint)} == {0, 1}
    wait_until(lambda: offsets_at(pair, pair.slave, group, topic) == ends, "the offsets at the slave", TIMEOUT_S)
    pair.master.start()
    wait_until(lambda: offsets_at(pair, pair.master, group, topic) == ends, "the offsets at the master", TIMEOUT_S)
    assert offsets_at(pair, pair.slave, group, topic) == ends
    pair.wait_committed(group, topic)
    wait_until(pair.is_writable, "the master to take writes", TIMEOUT_S)
    pair.send(topic, ["after"])
    wait_until(lambda: "after" in pair.bodies(checkpoint), "the query to go on", TIMEOUT_S)
    wait_until(
        lambda: source_progress(query)["latestOffset"]["route"] == {"broker-a": 0}, "the master again", TIMEOUT_S
    )


def test_an_empty_route_loses_nothing_and_doubles_nothing(pair: Bench, checkpoint: str) -> None:
    """A driver starts while all brokers are down and the name server has forgotten them."""
    topic = pair.topic(20)
    options = {"startingOffsets": "earliest", "failOnDataLoss": False, "idlePollMs": 0, "queueDiscoveryIntervalMs": 0}
    pair.run(pair.stream(topic, **options), checkpoint)
    pair.send(topic, range(20, 30))
    pair.wait_for_slave(topic)
    pair.master.kill()
    pair.slave.kill()
    wait_until(lambda: not pair.is_known(topic), "the name server to forget the topic", TIMEOUT_S)
    planned = batches(checkpoint)
    query = pair.start(pair.stream(topic, **options), checkpoint)
    wait_idle(query)
    pair.master.start()
    pair.slave.start()
    wait_until(lambda: len(pair.rows(checkpoint)) >= 30, "the rest", TIMEOUT_S)
    pair.wait_caught_up(query, topic)
    assert pair.bodies(checkpoint) == sorted(map(str, range(30)))
    assert batches(checkpoint) == planned + 1


def test_a_commit_that_only_a_master_may_take_waits_for_it_and_ends_no_query(pair: Bench, checkpoint: str) -> None:
    topic, group = pair.topic(16), pair.name("group")
    pair.wait_for_slave(topic)
    stream = pair.stream(topic, group=group, startingOffsets="earliest", commitTarget="masterOnly", commitRetries=0)
    query = pair.start(stream, checkpoint)
    pair.wait_committed(group, topic)
    pair.send(topic, range(4))
    pair.wait_caught_up(query, topic)
    pair.wait_for_slave(topic)
    pair.master.kill()
    failing = pair.start(
        pair.stream(
            topic,
            group=pair.name("group"),
            startingOffsets="earliest",
            commitTarget="masterOnly",
            commitFailurePolicy="fail",
        ),
        checkpoint + "-2",
    )
    assert "could not be committed" in failure_of(failing)
    assert query.isActive
    pair.master.start()
    pair.wait_committed(group, topic)
    assert query.isActive


def test_the_suggested_slave_is_followed_inside_a_task_and_kept_for_the_next(pair: Bench, checkpoint: str) -> None:
    """The master sends readers that are far behind to its slave, which sends them back when they have caught up."""
    for broker in (pair.master, pair.slave):
        broker.stop()
        # Only 40 % of `physicalMemory` counts as cached, so even a small backlog counts as too large for memory.
        broker.start(slaveReadEnable=True, physicalMemory=256 << 10)
    wait_until(pair.is_writable, "the master to take writes", TIMEOUT_S)
    small = {"pullMaxBytes": "32k"}
    served: list[int] = []
    deadline = time.monotonic() + TIMEOUT_S
    # A Spark worker that has found the master dead asks the master last for some seconds, so try again.
    while not served or (served[0] == 1 and time.monotonic() < deadline):
        topic = pair.topic()
        pair.send(topic, [f"{n:06}" + "x" * 2000 for n in range(400)], queue_id=0)
        pair.wait_for_slave(topic)
        rows = (
            pair.batch(topic, schema="queueOffset bigint, servedByBrokerId int", **small)
            .where("queueOffset >= 1")
            .collect()
        )
        served = [row.servedByBrokerId for row in sorted(rows, key=lambda row: row.queueOffset)]
    assert len(served) >= 399
    assert served[0] == 0  # the master serves the first frame, which suggests the slave for the next ones
    assert 1 in served
    # The slave decides in the same way by its own log, and sends the reader back to the master at the end.
    stream = pair.stream(
        topic,
        schema="queueId int, queueOffset bigint, servedByBrokerId int",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=100,
        **small,
    )
    pair.run(stream, checkpoint)
    by_batch = [{row.servedByBrokerId for row in rows} for _, rows in sorted(pair.kept[checkpoint].items()) if rows]
    assert by_batch[0] == {0, 1} or by_batch[0] == {1}
    assert any(served == {1} for served in by_batch[1:]), by_batch


@pytest.mark.parametrize(("policy", "ends"), [({}, True), ({"dataLossAction": "truncated=earliest"}, False)])
def test_a_master_that_comes_back_empty_is_noticed(
    pair: Bench, checkpoint: str, policy: dict[str, str], ends: bool
) -> None:
    topic = pair.topic(20)
    pair.run(pair.stream(topic, startingOffsets="earliest"), checkpoint)
    for broker in (pair.master, pair.slave):
        broker.kill()
        shutil.rmtree(broker.store)
    # A name server that remembers the old epochs would refuse the empty pair, so the test restarts it.
    pair.name_server.stop()
    pair.name_server.start()
    for broker in (pair.master, pair.slave):
        broker.launch()
    for broker in (pair.master, pair.slave):
        broker.wait_until_ready()
    wait_until(pair.is_writable, "the master to take writes", TIMEOUT_S)
    # The pair's old producer knows a newer epoch.
    with Producer(pair.name_server.address, group="after", timeout_s=60) as producer:
        producer.send(Message(topic, b"new"))
    query = pair.start(pair.stream(topic, startingOffsets="earliest", **policy), checkpoint)
    if ends:
        said = failure_of(query)
        assert "restarted empty, or lost its tail" in said or "gone" in said
    else:
        wait_until(lambda: "new" in pair.bodies(checkpoint), "the new message", TIMEOUT_S)
