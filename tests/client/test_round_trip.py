"""Messages sent to a real pair are received unchanged, for every way to send and to receive."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from rocketsim_proto.records.columnar import Records

from rocketsim_client import (
    Admin,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    QueueRange,
    SubscriptionGroupConfig,
)
from rocketsim_client.errors import MessageIllegal, QueueNotExist, TopicNotExist
from testbed.polling import PATIENCE_S, PROCESS_PATIENCE_S, wait_until
from testbed.processes import ROOT, Processes
from tests.client.conftest import start_real_pair

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with Processes(tmp_path_factory.mktemp("round-trip")) as processes:
        yield start_real_pair(processes, brokerRole="SYNC_MASTER", slaveReadEnable=True)


@pytest.fixture
def topic(pair, request):
    name = f"T-{abs(hash(request.node.name))}"
    with Admin(pair[0]) as admin:
        admin.update_topic(name, read_queue_nums=4, write_queue_nums=4)
        wait_until(lambda: name in admin.topic_list(), "the topic")
    return name


@pytest.fixture
def producer(pair):
    with Producer(pair[0], "p", timeout_s=PATIENCE_S) as made:
        yield made


@pytest.fixture
def consumer(pair):
    with PullConsumer(pair[0], "g", timeout_s=PATIENCE_S) as made:
        yield made


def everything(consumer, topic, expression="*"):
    found = []
    for queue in consumer.message_queues(topic):
        offset = 0
        while (result := consumer.pull(queue, offset, 100, expression)).status is not PullStatus.NO_NEW_MSG:
            assert result.next_begin_offset > offset
            found += result.messages
            offset = result.next_begin_offset
    return found


def test_single_messages(topic, producer, consumer):
    sent = {}
    for number in range(20):
        message = Message(
            topic, b"%d" % number, "A" if number % 2 else "B", f"k{number}", {"n": str(number)}, flag=number
        )
        result = producer.send(message)
        assert result.send_status == 0
        sent[result.msg_id] = (message, result)
    got = everything(consumer, topic)
    assert {message.msg_id for message in got} == set(sent)
    for item in got:
        message, result = sent[item.msg_id]
        assert (item.body, item.tags, item.keys, item.flag) == (message.body, message.tags, message.keys, message.flag)
        assert item.properties["n"] == (message.properties or {})["n"]
        assert (item.message_queue, item.queue_offset) == (result.message_queue, result.queue_offset)
        assert item.offset_msg_id == result.offset_msg_id
        assert abs(item.store_timestamp - item.born_timestamp) < 60_000


def test_asynchronous_messages_batches_and_columns(topic, producer, consumer):
    ids = [future.result(10).msg_id for future in [producer.send_async(Message(topic, b"a")) for _ in range(500)]]
    ids += [result.msg_id for result in producer.send_batch([Message(topic, b"b") for _ in range(500)])]
    results = producer.send_columns(topic, pa.array([b"c"] * 5000), tags=pa.array(["A", None] * 2500))
    ids += [result.msg_id for result in results]
    got = everything(consumer, topic)
    assert sorted(message.msg_id for message in got) == sorted(ids)
    assert [sum(message.body == body for message in got) for body in (b"a", b"b", b"c")] == [500, 500, 5000]
    where = {message.msg_id: (message.queue_id, message.queue_offset) for message in got}
    for index in range(0, 5000, 371):
        result = results[index]
        assert where[result.msg_id] == (result.message_queue.queue_id, result.queue_offset)


def test_tags_are_filtered_by_the_broker(topic, producer, consumer):
    producer.send_columns(topic, pa.array([b"x"] * 900), tags=pa.array(["A", "B", "C"] * 300))
    got = everything(consumer, topic, "A || C")
    assert (len(got), {message.tags for message in got}) == (600, {"A", "C"})


def test_ranges_come_as_frames(topic, producer, consumer):
    bodies = pa.array([b"%d" % row for row in range(10_000)])
    producer.send_columns(topic, bodies)
    ends = {queue: bounds.max_offset for queue, bounds in consumer.bounds(topic).items()}
    ranges = [QueueRange(topic, queue.queue_id, 0, end) for queue, end in ends.items()]
    got = []
    for frame in consumer.pull_range("broker-a", ranges, max_frame_bytes=100_000):
        assert len(frame.records) < 200_000
        records = Records.walk(frame.records, frame.count, frame.sizes)
        records.check()
        got += records.bodies().to_pylist()
    assert sorted(got) == sorted(bodies.to_pylist())


def test_large_bodies_are_compressed_on_the_way(topic, producer, consumer):
    body = b"0123456789" * 10_000
    producer.send(Message(topic, body))
    (message,) = everything(consumer, topic)
    assert message.body == body
    assert len(message.record.body) < 10_000


def test_a_held_pull_is_answered_when_a_message_arrives(topic, producer, consumer):
    queue = consumer.message_queues(topic)[0]
    consumer.pull(queue, 0)
    timer = threading.Timer(0.3, lambda: producer.send(Message(topic, b"x"), queue=queue))
    began = time.monotonic()
    timer.start()
    result = consumer.pull(queue, 0, suspend=True)
    assert (result.status, len(result.messages)) == (PullStatus.FOUND, 1)
    assert time.monotonic() - began > 0.2
    timer.join()
    began = time.monotonic()
    assert consumer.pull(queue, 1, suspend=0.3).status is PullStatus.NO_NEW_MSG
    assert time.monotonic() - began > 0.25


def test_messages_of_a_key_stay_in_order(topic, producer, consumer):
    for number in range(200):
        for key in ("a", "b"):
            producer.send_async(Message(topic, b"%d" % number), message_group=key)
    producer.flush(10)
    got = everything(consumer, topic)
    for key in ("a", "b"):
        mine = [message for message in got if message.message_group == key]
        assert [int(message.body) for message in mine] == list(range(200))
        assert len({message.queue_id for message in mine}) == 1


def test_a_delayed_message_comes_later(topic, producer, consumer):
    sent_ms = int(time.time() * 1000)
    result = producer.send(Message(topic, b"later", delay_level=1))
    assert result.send_status == 0
    (message,) = wait_until(lambda: everything(consumer, topic), "the delayed message")
    assert message.body == b"later" and message.store_timestamp >= sent_ms + 1000
    with pytest.raises(MessageIllegal):
        producer.send_batch([Message(topic, b"x", delay_level=1)])


def test_a_message_with_a_delivery_time_comes_then(topic, producer, consumer):
    due = time.time() + 1
    producer.send(Message(topic, b"later"), deliver_at=due)
    (message,) = wait_until(lambda: everything(consumer, topic), "the message")
    assert message.body == b"later" and message.store_timestamp >= due * 1000 - 1


def test_an_illegal_message_for_the_broker_is_told_as_such(pair, topic):
    with Admin(pair[0]) as admin:
        admin.update_broker_config({"maxMessageSize": "10000"}, broker_addr=pair[1].address)
        try:
            with Producer(pair[0], "p", compress_msg_body_over_howmuch=1 << 30) as producer:
                with pytest.raises(MessageIllegal):
                    producer.send(Message(topic, b"x" * 20_000))
                assert producer.send(Message(topic, b"x"))
        finally:
            admin.update_broker_config({"maxMessageSize": str(4 << 20)}, broker_addr=pair[1].address)


def test_a_topic_that_does_not_exist_yet_is_made_by_the_broker(pair, producer, consumer):
    producer.send(Message("MadeOnDemand", b"x"))
    wait_until(lambda: exists(consumer, "MadeOnDemand"), "the route of the new topic")
    assert len(everything(consumer, "MadeOnDemand")) == 1


def exists(consumer, topic):
    try:
        return consumer.message_queues(topic)
    except TopicNotExist:
        return None


def test_a_group_that_is_sent_to_the_slave_reads_from_the_slave(pair, topic, producer):
    with Admin(pair[0]) as admin:
        admin.update_sub_group(SubscriptionGroupConfig(group_name="from-slave", broker_id=1))
    producer.send_batch([Message(topic, b"x")] * 10)
    with PullConsumer(pair[0], "from-slave") as consumer:
        queue = next(queue for queue, bounds in consumer.bounds(topic).items() if bounds.max_offset)
        first = consumer.pull(queue, 0, 1)
        assert (first.broker_id, first.suggest_which_broker_id) == (0, 1)
        # The master answers for the slave until the slave has heard of the topic.
        rest = wait_until(lambda: answer_of(1, consumer, queue), "the messages on the slave")
        assert len(rest.messages) == 9


def answer_of(broker_id, consumer, queue):
    result = consumer.pull(queue, 1)
    return result if result.messages and result.broker_id == broker_id else None


def test_a_process_that_forgets_to_close_its_producer_loses_nothing(pair, topic, consumer):
    script = f"""
from rocketsim_client import Message, Producer
producer = Producer({pair[0]!r}, "p", linger_ms=50)
for number in range(1000):
    producer.send_async(Message({topic!r}, b"x"))
del producer
"""
    path = f"{ROOT}{os.pathsep}{Path(ROOT) / 'proto'}"
    subprocess.run(
        [sys.executable, "-c", script], check=True, env=os.environ | {"PYTHONPATH": path}, timeout=PROCESS_PATIENCE_S
    )
    assert len(everything(consumer, topic)) == 1000


def test_a_lowered_queue_count_is_found_out_by_the_send_that_it_refuses(pair, topic, producer, consumer):
    """The refused send makes the producer ask for the route, long before it would do so by itself."""
    for number in range(8):
        producer.send(Message(topic, b"before %d" % number))
    with Admin(pair[0]) as admin:
        admin.update_topic(topic, read_queue_nums=4, write_queue_nums=2)
        wait_until(lambda: len(admin.topic_route(topic).writable_queues()) == 2, "the new route")
    assert {producer.send(Message(topic, b"%d" % number)).message_queue.queue_id for number in range(6)} == {0, 1}
    with Admin(pair[0]) as admin:
        admin.update_topic(topic, read_queue_nums=4, write_queue_nums=1)
        wait_until(lambda: len(admin.topic_route(topic).writable_queues()) == 1, "the new route")
    keys = pa.array([f"key-{row % 5}" for row in range(50)])
    results = producer.send_columns(topic, pa.array([b"row %d" % row for row in range(50)]), message_groups=keys)
    assert {result.message_queue.queue_id for result in results} == {0}
    assert producer.stats.failed == 0
    with pytest.raises(QueueNotExist, match=f"topic '{topic}' has 1 queues .* queue 3"):
        producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", 3))
    found = [message.body for message in everything(consumer, topic)]
    assert len(found) == len(set(found)) == 8 + 6 + 50
