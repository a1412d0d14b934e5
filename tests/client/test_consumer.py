"""Pulls and offsets against brokers in this process."""

import threading
import time

import grpc
import numpy as np
import pytest
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record

from rocketsim_client import Message, MessageQueue, Producer, PullConsumer, PullStatus
from rocketsim_client.errors import (
    BadAnswer,
    BrokerUnavailable,
    ClientClosed,
    ExpressionInvalid,
    InvalidParameter,
    MasterNotExist,
)
from testbed.polling import wait_until
from tests.support.fake_broker import Answer, Hang, Refuse

BADLY = pb.PullResponse.OFFSET_OVERFLOW_BADLY
QUEUE = MessageQueue("T", "broker-a", 1)


@pytest.fixture
def consumer(cluster):
    with PullConsumer(cluster.address, "g") as made:
        yield made


@pytest.fixture
def filled(cluster):
    with Producer(cluster.address, compress_msg_body_over_howmuch=50) as producer:
        for number in range(10):
            tags = ("A", "B", None)[number % 3]
            producer.send(Message("T", b"%d" % number * 20, tags=tags, keys=f"k{number}"), queue=QUEUE)
    return cluster


def master(cluster):
    return cluster.brokers["broker-a", 0]


def slave(cluster):
    return cluster.brokers["broker-a", 1]


def test_queues_are_those_of_the_route(consumer):
    queues = consumer.message_queues("T")
    assert len(queues) == 8 and QUEUE in queues


def test_messages_come_with_all_their_fields(filled, consumer):
    result = consumer.pull(QUEUE, 3, max_msg_nums=4)
    assert (result.status, result.next_begin_offset, result.min_offset, result.max_offset) == (
        PullStatus.FOUND,
        7,
        0,
        10,
    )
    assert [message.queue_offset for message in result.messages] == [3, 4, 5, 6]
    message = result.messages[0]
    assert (message.body, message.tags, message.keys, message.message_queue) == (b"3" * 20, "A", "k3", QUEUE)
    assert message.msg_id == message.properties["UNIQ_KEY"]
    assert message.store_host == ("127.0.0.1", 10911)
    assert message.offset_msg_id == record.offset_message_id(message.record.store_host, message.commit_log_offset)


def test_compressed_bodies_are_unpacked(cluster, consumer):
    with Producer(cluster.address, compress_msg_body_over_howmuch=10) as producer:
        producer.send(Message("T", b"x" * 1000), queue=QUEUE)
    assert consumer.pull(QUEUE, 0).messages[0].body == b"x" * 1000


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        pytest.param(10, PullStatus.NO_NEW_MSG, 10, id="at the end"),
        pytest.param(11, PullStatus.OFFSET_ILLEGAL, 10, id="beyond the end"),
        pytest.param(1, PullStatus.OFFSET_ILLEGAL, 2, id="before the first"),
    ],
)
def test_without_messages_there_is_a_status_and_where_to_go_on(filled, consumer, offset, status, following):
    filled.brokers["broker-a", 0].store.min_offsets["T", 1] = 2
    result = consumer.pull(QUEUE, offset)
    assert (result.status, result.next_begin_offset, len(result.messages)) == (status, following, 0)


def test_tags_are_checked_again_by_string(filled, consumer):
    # The fake broker filters nothing, as if all hash codes were equal.
    result = consumer.pull(QUEUE, 0, expression="A || C")
    assert [message.tags for message in result.messages] == ["A"] * 4
    assert result.next_begin_offset == 10
    assert [message.body[:1] for message in result.messages] == [b"0", b"3", b"6", b"9"]
    nothing = consumer.pull(QUEUE, 0, expression="C")
    assert (nothing.status, nothing.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 10)


def test_a_bad_expression_or_offset_is_refused_before_a_call(filled, consumer):
    with pytest.raises(ExpressionInvalid):
        consumer.pull(QUEUE, 0, expression="A |")
    with pytest.raises(InvalidParameter):
        consumer.pull(QUEUE, -1)
    assert master(filled).calls["Pull"] == []


def test_the_suggested_broker_is_asked_next_and_only_for_that_queue(filled, consumer):
    master(filled).suggest = 1
    assert consumer.pull(QUEUE, 0, 1).broker_id == 0
    slave(filled).suggest = 1
    assert consumer.pull(QUEUE, 1, 1).broker_id == 1
    assert consumer.pull(QUEUE._replace(queue_id=2), 0, 1).broker_id == 0
    slave(filled).suggest = 0
    assert consumer.pull(QUEUE, 2, 1).broker_id == 1
    assert consumer.pull(QUEUE, 3, 1).broker_id == 0


def test_the_slave_is_read_at_once_when_the_master_is_gone(filled, consumer):
    consumer.pull(QUEUE, 0, 1)
    filled.freeze()
    filled.stop("broker-a")
    result = consumer.pull(QUEUE, 1)
    assert (result.status, result.broker_id, len(result.messages)) == (PullStatus.FOUND, 1, 9)


def test_a_suggested_slave_that_is_gone_does_not_stop_the_consumer(filled, consumer):
    master(filled).suggest = 1
    consumer.pull(QUEUE, 0, 1)
    filled.freeze()
    filled.stop("broker-a", 1)
    assert consumer.pull(QUEUE, 1).broker_id == 0


def test_with_nobody_left_the_error_is_quick_and_names_the_address(filled, consumer):
    consumer.pull(QUEUE, 0, 1)
    addresses = [broker.address for broker in (master(filled), slave(filled))]
    filled.freeze()
    filled.stop("broker-a")
    filled.stop("broker-a", 1)
    with pytest.raises(BrokerUnavailable) as gone:
        consumer.pull(QUEUE, 1)
    assert gone.value.address in addresses


def test_told_to_retry_without_progress_the_master_is_asked_after_a_pause(filled, consumer):
    """A slave that is behind the consumer answers PULL_RETRY_IMMEDIATELY with the offset that it was asked for."""
    master(filled).suggest = 1
    consumer.pull(QUEUE, 0, 5)
    behind = pb.PullResponse(
        code=20,
        status=pb.PullResponse.OFFSET_OVERFLOW_BADLY,
        next_begin_offset=5,
        max_offset=2,
        suggest_which_broker_id=1,
        broker_id=1,
    )
    slave(filled).script["Pull"].append(Answer(behind))
    result = consumer.pull(QUEUE, 5)
    assert (result.status, result.broker_id, len(result.messages)) == (PullStatus.FOUND, 0, 5)
    assert len(slave(filled).calls["Pull"]) == 1


def test_told_to_retry_without_progress_for_ever_a_consumer_does_not_spin(filled, consumer):
    filled.stop("broker-a", 0)
    behind = pb.PullResponse(code=20, status=BADLY, next_begin_offset=5, suggest_which_broker_id=1)
    slave(filled).script["Pull"].extend([Answer(behind)] * 1000)
    began = time.monotonic()
    calls = 0
    while time.monotonic() - began < 1:
        assert consumer.pull(QUEUE, 5).status is PullStatus.NO_MATCHED_MSG
        calls += 1
    assert calls < 10


GOOD = record.encode(Record("T", b"body", queue_id=1))
GARBAGE = [
    pytest.param(GOOD[:-1], 1, None, id="cut short"),
    pytest.param(GOOD + b"\0\0\0", 1, None, id="bytes behind"),
    pytest.param(GOOD, 2, None, id="wrong count"),
    pytest.param(GOOD[:89] + b"?" + GOOD[90:], 1, None, id="changed byte"),
    pytest.param(b"\xff" * 500, 1, None, id="noise"),
    pytest.param(record.encode(Record("U", b"body", queue_id=1)), 1, None, id="another topic"),
    pytest.param(record.encode(Record("T", b"body", queue_id=2)), 1, "another queue", id="another queue"),
]


@pytest.mark.parametrize(("records", "count", "reason"), GARBAGE)
def test_garbage_is_an_error_and_the_next_pull_gets_everything(filled, consumer, records, count, reason):
    answer = pb.PullResponse(code=0, next_begin_offset=1, count=count, records=records)
    master(filled).script["Pull"].append(Answer(answer))
    with pytest.raises(BadAnswer, match=reason):
        consumer.pull(QUEUE, 0)
    assert len(consumer.pull(QUEUE, 0).messages) == 10


def test_records_are_walked_where_their_sizes_are_absent_and_checked_where_not(filled, consumer):
    sizes = np.array([len(GOOD)], "<u4").tobytes()
    for given in (b"", sizes):
        answer = pb.PullResponse(code=0, next_begin_offset=1, count=1, records=GOOD, sizes=given)
        master(filled).script["Pull"].append(Answer(answer))
        assert consumer.pull(QUEUE, 0).messages[0].body == b"body"
    wrong = np.array([len(GOOD) - 1], "<u4").tobytes()
    master(filled).script["Pull"].append(Answer(pb.PullResponse(count=1, records=GOOD, sizes=wrong)))
    with pytest.raises(BadAnswer):
        consumer.pull(QUEUE, 0)


def test_offsets_are_committed_to_the_master(filled, consumer):
    assert consumer.committed(QUEUE) == -1
    assert consumer.commit(QUEUE, 5) == 5
    assert consumer.committed(QUEUE) == 5
    assert consumer.commit(QUEUE, 3) == 5
    assert len(master(filled).calls["CommitOffsets"]) == 2
    assert slave(filled).calls["CommitOffsets"] == []


def test_offsets_go_to_the_slave_while_the_master_is_gone_and_to_the_master_when_it_is_back(filled, consumer):
    consumer.commit(QUEUE, 1)
    filled.stop("broker-a")
    assert consumer.commit_all({QUEUE: 2}).broker_ids == {"broker-a": 1}
    assert consumer.committed(QUEUE) == 2
    filled.start("broker-a")
    wait_until(lambda: consumer.commit_all({QUEUE: 3}).broker_ids == {"broker-a": 0}, "the master again", 2)


def test_an_offset_that_only_a_slave_was_asked_for_and_lacks_is_not_said_to_be_none(filled, consumer):
    other = MessageQueue("T", "broker-b", 0)
    consumer.commit(QUEUE, 1)
    filled.stop("broker-a")
    assert consumer.committed(QUEUE) == 1  # the slave has the offset of this queue
    asked = [QUEUE, MessageQueue("T", "broker-a", 3), other]
    with pytest.raises(MasterNotExist, match="if group 'g' has an offset of T@broker-a:3: the master does not answer"):
        consumer.committed_all(asked)
    assert consumer.committed(other) == -1  # its master says so
    filled.start("broker-a")
    wait_until(lambda: len(consumer.cluster.route("T", fresh=True).addresses("broker-a")) == 2, "the master")
    wait_until(lambda: not consumer.cluster.bad_addresses(), "the master is asked again")
    assert consumer.committed_all(asked) == {asked[0]: 1, asked[1]: -1, other: -1}


def test_while_the_master_is_gone_all_slaves_are_asked_for_an_offset_and_the_newest_counts(cluster, consumer):
    slaves = [slave(cluster), cluster.start("broker-a", 2)]
    cluster.stop("broker-a")
    for offsets in ((5, 7), (7, 5)):
        for broker, offset in zip(slaves, offsets, strict=True):
            answer = pb.QueryOffsetsResponse(broker_id=broker.broker_id)
            answer.entries.add(topic="T", queue_id=QUEUE.queue_id, offset=offset)
            broker.script["QueryOffsets"].append(Answer(answer))
        assert consumer.committed(QUEUE) == 7
    answer.entries[0].offset = 5
    slaves[0].script["QueryOffsets"].append(Refuse("1", grpc.StatusCode.UNAVAILABLE, "not now"))
    slaves[1].script["QueryOffsets"].append(Answer(answer))
    assert consumer.committed(QUEUE) == 5  # of those that answer


def test_a_master_that_refuses_for_now_has_its_slave_take_the_commit(filled, consumer):
    master(filled).script["CommitOffsets"].append(Refuse(14))
    assert consumer.commit_all({QUEUE: 2}).broker_ids == {"broker-a": 1}


def test_one_call_a_broker_commits_many_queues(filled, consumer):
    queues = consumer.message_queues("T")
    result = consumer.commit_all({queue: 7 for queue in queues})
    assert result.broker_ids == {"broker-a": 0, "broker-b": 0}
    assert consumer.committed_all(queues) == {queue: 7 for queue in queues}
    assert len(master(filled).calls["CommitOffsets"]) == 1


def test_bounds_and_search_also_work_from_a_slave_when_there_is_no_master(filled, consumer):
    for _ in range(2):
        assert (consumer.min_offset(QUEUE), consumer.max_offset(QUEUE), consumer.search_offset(QUEUE, 70)) == (0, 10, 7)
        filled.brokers.get(("broker-a", 0)) and filled.stop("broker-a")
    assert slave(filled).calls["SearchOffsets"]


def test_a_held_pull_ends_with_close(cluster):
    consumer = PullConsumer(cluster.address, "g")
    for broker_id in (0, 1):
        cluster.brokers["broker-a", broker_id].script["Pull"].append(Hang())
    ended = []

    def pull():
        with pytest.raises(ClientClosed):
            consumer.pull(QUEUE, 0, suspend=True)
        ended.append(True)

    held = threading.Thread(target=pull)
    held.start()
    wait_until(lambda: master(cluster).calls["Pull"], "the pull at the broker")
    consumer.close()
    held.join(60)
    assert ended
    with pytest.raises(ClientClosed):
        consumer.pull(QUEUE, 0)
