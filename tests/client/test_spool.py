"""Producers with a spool: nothing accepted is lost while brokers are away, disks are full and processes die."""

import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import defaultdict, deque
from concurrent.futures import Future
from dataclasses import replace as but

import pyarrow as pa
import pytest
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record

from rocketsim_client import (
    Admin,
    ClientClosed,
    Cluster,
    InvalidParameter,
    Message,
    MessageQueue,
    NameServerUnavailable,
    NoRoute,
    Producer,
    PullConsumer,
    SendFailed,
    SendStatus,
    SpoolFailed,
    SpoolUnusable,
)
from rocketsim_client.errors import CallTimeout, MessageIllegal, QueueNotExist
from rocketsim_client.model import BatchPart
from rocketsim_client.retry import Backoff
from rocketsim_client.sending import replay, spool_file
from rocketsim_client.sending.publish_info import PublishTable
from rocketsim_client.sending.spool import ANY_QUEUE, Lane, Spool
from rocketsim_client.sending.spool_file import SpoolFile, SpoolView
from testbed.polling import wait_until
from testbed.processes import ROOT
from tests.client.test_fork import in_child
from tests.support.fake_broker import Break, FakeCluster, Hang, LoseAnswer, Refuse
from tests.support.mounted_disks import PowerlessDisk, SmallDisk

SPOOLED, SEND_OK = SendStatus.SPOOLED, SendStatus.SEND_OK


@pytest.fixture
def databases(monkeypatch):
    """Collects the databases that are opened from now on."""
    opened, connect = [], sqlite3.connect

    def noted(*given, **options):
        opened.append(connect(*given, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    return opened


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(replay, "BACKGROUND", Backoff(0.1, 0.1))


@pytest.fixture
def one():
    """A cluster of one broker with topics T and U."""
    with FakeCluster("T", "U") as fake:
        fake.start("broker-a")
        yield fake


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "spool"


@pytest.fixture
def producer(one, directory):
    with Producer(one.address, "p", spool=directory, timeout_s=2, linger_s=0.001) as made:
        yield made


def bodies(cluster, topic="T"):
    return [stored.body for stored in cluster.messages(topic)]


def ids(cluster, topic="T"):
    return [stored.message_id for stored in cluster.messages(topic)]


def send_all(producer, numbers, **options):
    return [producer.send(Message("T", b"%d" % number), **options) for number in numbers]


def refuse_all(cluster):
    """The broker stores nothing until its script is changed."""
    broker = cluster.brokers["broker-a", 0]
    broker.script["Send"] = deque([Refuse(14)] * 100_000)
    return broker


def waiting(directory):
    with SpoolView(directory) as view:
        return sum(found.records for found in view.waiting())


# --- without brokers -------------------------------------------------------------------------------------------------


def test_what_no_broker_takes_is_spooled_and_replayed_once_under_its_id(one, producer, directory):
    assert producer.send(Message("T", b"before")).send_status == SEND_OK
    one.stop("broker-a")
    results = send_all(producer, range(5))
    assert {result.send_status for result in results} == {SPOOLED}
    assert {result.queue_offset for result in results} == {-1}
    assert {result.message_queue for result in results} == {MessageQueue("T", "", -1)}
    assert not results[0].offset_msg_id
    status = producer.spool_status()
    assert (status.records, status.dead, status.replayed) == (5, 0, 0) and status.oldest_timestamp > 0
    assert (producer.stats.sent, producer.stats.acknowledged, producer.stats.spooled) == (6, 1, 5)
    assert producer.stats.failed == 0

    one.start("broker-a")
    producer.drain_spool(60)
    assert sorted(bodies(one)) == sorted([b"before", *(b"%d" % number for number in range(5))])
    assert {result.msg_id for result in results} < set(ids(one)) and len(set(ids(one))) == 6
    status = producer.spool_status()
    assert (status.records, status.size_bytes, status.replayed, status.last_error) == (0, 0, 5, "")
    assert waiting(directory) == 0
    assert producer.send(Message("T", b"after")).send_status == SEND_OK


def test_a_record_that_was_spooled_arrives_as_it_was_sent(one, producer):
    one.stop("broker-a")
    message = Message("T", b"x" * 5000, tags="A", keys=["k1", "k2"], properties={"p": "ü"}, flag=7)
    result = producer.send(message, message_group="g")
    born = producer.spool_status().oldest_timestamp
    one.start("broker-a")
    producer.drain_spool(60)
    (stored,) = one.messages("T")
    assert stored.properties == {
        "TAGS": "A",
        "KEYS": "k1 k2",
        "UNIQ_KEY": result.msg_id,
        "__SHARDINGKEY": "g",
        "p": "ü",
    }
    assert (stored.flag, stored.sys_flag) == (7, 0x301) and len(stored.body) < 5000
    assert stored.born_timestamp <= born


def test_when_no_route_is_known_messages_are_spooled_until_there_is_one(directory):
    """At first the name server knows no broker, then it does not answer at all; the producer has never had a route."""
    with FakeCluster() as away, Producer(away.address, spool=directory, timeout_s=1) as producer:
        assert producer.send(Message("T", b"1")).send_status == SPOOLED
        assert producer.send(Message("T", b"2"), message_group="g").send_status == SPOOLED
        away.down = True
        assert producer.send(Message("T", b"3"), message_group="g").send_status == SPOOLED
        assert producer.send_async(Message("T", b"4")).result(30).send_status == SPOOLED
        assert producer.send_batch([Message("T", b"5"), Message("T", b"6")]).send_status == SPOOLED
        rows = producer.send_columns("T", pa.array([b"7", b"8"]), message_groups=pa.array(["g", None]))
        assert rows.send_status == SPOOLED and len(rows) == 2
        assert {row.message_queue for row in rows} == {MessageQueue("T", "", -1)}
        away.down = False
        away.topics.add("T")
        away.start("broker-a")
        producer.drain_spool(60)
        assert sorted(bodies(away)) == [b"%d" % number for number in range(1, 9)]
        of_group = [stored.body for stored in away.messages("T") if stored.properties.get("__SHARDINGKEY") == "g"]
        assert of_group == [b"2", b"3", b"7"]


def test_a_child_and_a_producer_without_a_spool_are_told_that_there_is_no_route():
    with FakeCluster() as away, Producer(away.address, timeout_s=1) as producer:
        with pytest.raises(NoRoute):
            producer.send(Message("T", b"1"))
        with pytest.raises(InvalidParameter, match="this producer has no spool"):
            producer.spool_status()
        away.down = True
        with pytest.raises((NameServerUnavailable, NoRoute)):
            producer.send(Message("T", b"1"))


def test_an_unknown_outcome_is_spooled_and_the_copy_has_the_same_id(one, producer):
    one.brokers["broker-a", 0].script["Send"] = deque([LoseAnswer(), Break(), Break()])
    result = producer.send(Message("T", b"x"))
    assert result.send_status == SPOOLED
    producer.drain_spool(60)
    assert ids(one) == [result.msg_id] * 2


def test_an_unknown_outcome_of_a_replay_keeps_the_record_and_its_id_and_the_order(one, producer):
    broker = refuse_all(one)
    results = send_all(producer, range(3), message_group="g")
    broker.script["Send"] = deque([LoseAnswer(), Break(), LoseAnswer()])
    producer.drain_spool(60)
    assert list(dict.fromkeys(ids(one))) == [result.msg_id for result in results] and len(ids(one)) > 5
    assert (producer.spool_status().replayed, producer.spool_status().dead) == (3, 0)


@pytest.fixture
def no_pauses_in_doubt(monkeypatch):
    monkeypatch.setattr(replay, "COPIES", Backoff(0.01, 0.05))


LESS_SAFE = [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE]


@pytest.mark.parametrize("status", LESS_SAFE)
def test_a_record_stays_until_send_ok_and_one_only_is_copied_meanwhile(
    one, producer, status, caplog, no_pauses_in_doubt
):
    broker = refuse_all(one)
    results = send_all(producer, range(5), message_group="g")
    broker.put_status = status
    broker.script["Send"].clear()
    wait_until(lambda: len(ids(one)) > 5 + 4, "some attempts")
    found = producer.spool_status()
    assert (found.records, found.replayed, found.less_safe) == (5, 0, 0)
    assert f"has stored messages of topic 'T' with {status.name}: the messages stay" in found.last_error
    assert caplog.text.count(f"stores messages with {status.name}, so that they stay in the spool, too") == 1
    assert set(ids(one)[5:]) == {results[0].msg_id}, "the others were sent once"
    assert producer.send(Message("T", b"behind"), message_group="g").send_status == SPOOLED
    assert producer.send(Message("T", b"elsewhere"), message_group="h").send_status == status
    broker.put_status = 0
    producer.drain_spool(60)
    found = producer.spool_status()
    assert (found.records, found.replayed, found.less_safe, found.last_error) == (0, 6, 0, "")
    of_group = [stored.body for stored in one.messages("T") if stored.properties["__SHARDINGKEY"] == "g"]
    assert of_group[-6:] == [b"0", b"1", b"2", b"3", b"4", b"behind"]


def test_a_broker_that_is_lost_after_it_had_the_records_alone_loses_none(one, producer, no_pauses_in_doubt):
    broker = refuse_all(one)
    results = send_all(producer, range(3), message_group="g")
    broker.put_status = SendStatus.SLAVE_NOT_AVAILABLE
    broker.script["Send"].clear()
    wait_until(lambda: len(ids(one)) > 3, "the broker has them")
    one.stop("broker-a")
    one.lose("broker-a")
    one.start("broker-a")
    producer.drain_spool(60)
    assert ids(one) == [result.msg_id for result in results]


def test_messages_for_any_queue_go_to_a_broker_that_says_enough(cluster, directory, no_pauses_in_doubt):
    """The other broker gets copies of one message only, and new messages are not delayed."""
    with Producer(cluster.address, "p", spool=directory, timeout_s=2, linger_s=0.001) as producer:
        brokers = [cluster.brokers[name, 0] for name in ("broker-a", "broker-b")]
        for broker in brokers:
            broker.script["Send"] = deque([Refuse(14)] * 100_000)
        results = send_all(producer, range(3))
        assert {result.send_status for result in results} == {SPOOLED}
        for broker in brokers:
            broker.put_status = SendStatus.SLAVE_NOT_AVAILABLE
            broker.script["Send"].clear()
        wait_until(lambda: "SLAVE_NOT_AVAILABLE" in producer.spool_status().last_error, "an attempt")
        direct = wait_until(
            lambda: (sent := producer.send(Message("T", b"new"))).send_status != SPOOLED and sent, "a direct send"
        )
        assert direct.send_status == SendStatus.SLAVE_NOT_AVAILABLE
        brokers[1].put_status = 0
        producer.drain_spool(60)
        assert {result.msg_id for result in results} <= set(ids(cluster))


def test_a_status_that_the_producer_takes_for_enough_ends_the_stay_and_is_counted(one, directory, caplog):
    enough = [SendStatus.SLAVE_NOT_AVAILABLE]
    with Producer(one.address, "p", spool=directory, timeout_s=2, linger_s=0.001, spool_until=enough) as producer:
        broker = refuse_all(one)
        send_all(producer, range(3), message_group="g")
        broker.put_status = SendStatus.SLAVE_NOT_AVAILABLE
        broker.script["Send"].clear()
        producer.drain_spool(60)
        found = producer.spool_status()
        assert bodies(one) == [b"0", b"1", b"2"]
        assert (found.replayed, found.less_safe, found.last_error) == (3, 3, "")
        assert "stores messages with SLAVE_NOT_AVAILABLE, which is enough by spool_until" in caplog.text
    for wrong in ([SPOOLED], ["SEND_OK"]):
        with pytest.raises(InvalidParameter, match="spool_until"):
            Producer(one.address, "p", spool=directory, spool_until=wrong)


def test_an_answer_to_a_message_that_does_not_wait_says_nothing_of_the_others(one, producer, no_pauses_in_doubt):
    """A broker answers SEND_OK at once to a message that asks it not to wait."""
    broker = refuse_all(one)
    results = [producer.send(Message("T", b"%d" % number, wait_store_msg_ok=number > 0)) for number in range(4)]
    broker.says_ok_without_waiting = True
    broker.put_status = SendStatus.SLAVE_NOT_AVAILABLE
    broker.script["Send"].clear()
    wait_until(lambda: producer.spool_status().records == 3 and len(ids(one)) > 6, "attempts")
    sent = [result.msg_id for result in results]
    assert {one_id for one_id in sent if ids(one).count(one_id) > 1} == {sent[1]}


def test_asynchronous_and_oneway_sends_columns_and_batches_are_spooled_too(one, producer):
    one.stop("broker-a")
    futures = [producer.send_async(Message("T", b"async %d" % number)) for number in range(100)]
    producer.send_oneway(Message("T", b"oneway"))
    batch = producer.send_batch([Message("T", b"batch 1"), Message("T", b"batch 2")])
    groups = pa.array([f"g{number % 7}" for number in range(100)])
    columns = producer.send_columns("T", pa.array([b"row %d" % number for number in range(100)]), message_groups=groups)
    plain = producer.send_columns("T", pa.array([b"plain %d" % number for number in range(100)]))
    assert {future.result(30).send_status for future in futures} == {SPOOLED}
    assert [batch.send_status, columns.send_status, plain.send_status] == [SPOOLED] * 3
    sent = {future.result().msg_id for future in futures}
    sent |= {result.msg_id for results in (batch, columns, plain) for result in results}
    one.start("broker-a")
    producer.drain_spool(60)
    assert len(bodies(one)) == len(set(bodies(one))) == 303
    assert sent < set(ids(one)) and len(set(ids(one))) == 303
    by_group = defaultdict(list)
    for stored in one.messages("T"):
        if stored.body.startswith(b"row"):
            by_group[stored.properties["__SHARDINGKEY"]].append(int(stored.body[4:]))
    assert len(by_group) == 7 and all(rows == sorted(rows) for rows in by_group.values())


# --- lanes -----------------------------------------------------------------------------------------------------------


def test_later_messages_of_a_spooled_group_queue_behind_and_others_do_not(one, producer):
    assert producer.send(Message("T", b"0"), message_group="g").send_status == SEND_OK
    broker = refuse_all(one)
    assert producer.send(Message("T", b"1"), message_group="g").send_status == SPOOLED
    tries = len(broker.calls["Send"])
    wait_until(lambda: len(broker.calls["Send"]) > tries, "a replay that fails")
    assert producer.send(Message("T", b"2"), message_group="g").send_status == SPOOLED
    broker.script["Send"] = deque([Hang()])  # from now on the broker takes every call except one, which is the replay's
    wait_until(lambda: not broker.script["Send"], "the replay")
    assert producer.send(Message("T", b"3"), message_group="g").send_status == SPOOLED
    assert producer.send(Message("T", b"other"), message_group="h").send_status == SEND_OK
    producer.drain_spool(60)
    assert producer.send(Message("T", b"4"), message_group="g").send_status == SEND_OK
    in_group = [stored for stored in one.messages("T") if stored.properties["__SHARDINGKEY"] == "g"]
    assert [int(stored.body) for stored in in_group] == list(range(5))
    assert len({stored.queue_id for stored in in_group}) == 1


def test_order_of_a_group_is_kept_while_brokers_come_and_go_under_asynchronous_sends(one, producer):
    futures = []
    for turn in range(4):
        futures += [
            producer.send_async(Message("T", b"%d" % number), message_group=f"g{number % 3}")
            for number in range(turn * 200, turn * 200 + 200)
        ]
        if turn % 2:
            assert futures[-1].result(60).send_status == SPOOLED  # sent while the broker was away
            one.start("broker-a")
        else:
            one.stop("broker-a")
    for future in futures:
        future.result(60)
    producer.drain_spool(60)
    by_group = defaultdict(dict)
    for stored in one.messages("T"):
        by_group[stored.properties["__SHARDINGKEY"]].setdefault(int(stored.body))
    assert sorted(number for group in by_group.values() for number in group) == list(range(800))
    assert all(list(group) == sorted(group) for group in by_group.values())


def test_a_named_queue_is_kept_and_holds_up_no_other(cluster, directory):
    with Producer(cluster.address, spool=directory, timeout_s=1) as producer:
        queue = MessageQueue("T", "broker-a", 3)
        producer.send(Message("T", b"0"), queue=queue)
        cluster.brokers["broker-a", 0].script["Send"] = deque([Break()] * 10_000)
        first = producer.send(Message("T", b"1"), queue=queue)
        second = producer.send(Message("T", b"2"), queue=queue)
        assert (first.send_status, first.message_queue, second.send_status) == (SPOOLED, queue, SPOOLED)
        other = producer.send(Message("T", b"other"), queue=queue._replace(broker_name="broker-b"))
        assert other.send_status == SEND_OK
        assert producer.send(Message("T", b"any")).send_status == SEND_OK
        cluster.brokers["broker-a", 0].script["Send"].clear()
        producer.drain_spool(60)
    assert [stored.body for stored in cluster.messages("T") if stored.queue_id == 3][:3] == [b"0", b"1", b"2"]


def test_a_lane_that_cannot_be_sent_keeps_no_others(directory, monkeypatch):
    """A lane (spooled messages that keep their order) that fills as fast as it is sent does not block other lanes,
    because each round begins with another lane.
    """
    monkeypatch.setattr(replay, "FRAME_BYTES", 1)
    sent = []

    class Attempts:
        def send(self, batch, deadline, retries):
            if batch.msg_ids[0] == "stuck":
                raise NoRoute("a queue that no route knows")
            sent.extend(batch.msg_ids)
            return BatchPart(SEND_OK, "T", "broker-a", batch.msg_ids, batch.queue_ids, batch.queue_ids)

    class Publish:
        def queues(self, topic):
            return [MessageQueue(topic, "broker-a", 0)]

    spool = Spool(directory, 1 << 20)
    data = record.encode(Record("T", b"x", properties={"UNIQ_KEY": "id"}))
    lanes = [Lane.of_group("T", group) for group in ("a", "b", "c")]
    spool.put(lanes, ["stuck", "b", "c"], [data] * 3)
    replaying = replay.Replay(spool, Attempts(), Publish(), timeout_s=1, clock=lambda: 0.0)
    wait_until(lambda: sorted(sent) == ["b", "c"], "the others are sent")
    replaying.close()
    spool.close()
    assert waiting(directory) == 1


def test_a_broker_that_does_not_answer_holds_up_no_other(cluster, directory, monkeypatch):
    monkeypatch.setattr(replay, "FRAME_BYTES", 1)
    with Producer(cluster.address, spool=directory, timeout_s=1) as producer:
        for name in ("broker-a", "broker-b"):
            cluster.stop(name)
        for number in range(10):
            for name in ("broker-a", "broker-b"):
                result = producer.send(Message("T", b"%d" % number), queue=MessageQueue("T", name, 0))
                assert result.send_status == SPOOLED
    for name in ("broker-a", "broker-b"):
        cluster.start(name)
    silent = cluster.brokers["broker-a", 0]
    silent.script["Send"] = deque([Hang()])
    with Producer(cluster.address, spool=directory, timeout_s=600) as producer:
        wait_until(lambda: producer.spool_status().replayed == 10, "the other broker has its messages")
        wait_until(lambda: not silent.script["Send"], "the frame that is not answered")
        assert bodies(cluster) == [b"%d" % number for number in range(10)]
        assert producer.spool_status().records == 10
        cluster.stop("broker-a")
        cluster.start("broker-a")
        producer.drain_spool(60)
    assert bodies(cluster) == [b"%d" % number for number in range(10)] * 2


def test_replay_goes_on_after_the_system_had_no_thread_for_it(one, producer, monkeypatch):
    one.stop("broker-a")
    send_all(producer, range(3))
    start, refused = threading.Thread.start, []

    def refusing(thread):
        if thread.name == "rocketsim-replay-broker-a" and len(refused) < 3:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    one.start("broker-a")
    producer.drain_spool(60)
    assert len(refused) == 3 and len(bodies(one)) == 3


def test_messages_for_any_queue_go_to_brokers_again_while_the_spool_still_has_some(one, producer, monkeypatch):
    """Messages for any queue have no order to keep, and a busy producer would otherwise never empty its spool."""
    monkeypatch.setattr(replay, "FRAME_BYTES", 1)
    broker = refuse_all(one)
    send_all(producer, range(3))
    broker.script["Send"] = deque([None, Hang()])  # the first frame is taken, the second one hangs
    wait_until(lambda: not broker.script["Send"], "two replays")
    assert producer.send(Message("T", b"direct")).send_status == SEND_OK
    assert producer.spool_status().records == 2
    producer.drain_spool(60)
    assert len(bodies(one)) == 4


def test_delayed_messages_go_alone_and_wait_flags_are_not_mixed(one, producer):
    one.stop("broker-a")
    for number in range(6):
        producer.send(Message("T", b"%d" % number, wait_store_msg_ok=number % 3 != 2))
    producer.send(Message("T", b"late 1", delay_level=3))
    producer.send(Message("T", b"late 2", delay_level=3))
    producer.send(Message("T", b"on time 1"), deliver_at=4e9)
    producer.send(Message("T", b"on time 2"), deliver_at=4e9)
    broker = one.start("broker-a")
    producer.drain_spool(60)
    calls = [call.records for call in broker.calls["Send"]]
    delayed = [records for records in calls if b"DELAY\x01" in records or b"TIMER_DELIVER_MS\x01" in records]
    assert len(delayed) == 4 and all(records.count(b"UNIQ_KEY") == 1 for records in delayed)
    mixed = [records for records in calls if 0 < records.count(b"WAIT\x01false") < records.count(b"UNIQ_KEY")]
    assert not mixed and len(bodies(one)) == 10


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_refusal_is_the_caller_s_when_there_is_a_caller(one, producer):
    one.brokers["broker-a", 0].max_message_size = 10
    with pytest.raises(MessageIllegal, match="body too large"):
        producer.send(Message("T", b"x" * 100))
    with pytest.raises(QueueNotExist):
        producer.send(Message("T", b"x"), queue=MessageQueue("T", "broker-a", 7))
    assert producer.spool_status().records == producer.spool_status().dead == 0


def test_what_a_broker_refuses_for_good_is_dead_and_the_others_arrive(one, producer, directory, caplog):
    broker = refuse_all(one)
    for body in (b"1", b"x" * 100, b"2", b"y" * 100, b"3"):
        producer.send(Message("T", body, tags="t"), message_group="g")
    broker.max_message_size = 10
    broker.script["Send"].clear()
    producer.drain_spool(60)
    assert bodies(one) == [b"1", b"2", b"3"]
    status = producer.spool_status()
    assert (status.records, status.dead, status.replayed) == (0, 2, 3)
    with SpoolView(directory) as view:
        dead = list(view.dead())
    assert [b"x" * 100 in dead[0].record, b"y" * 100 in dead[1].record] == [True, True]
    assert all("body too large" in found.reason for found in dead)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2 and dead[0].msg_id in errors[0] and "xxx" not in caplog.text


def test_a_named_queue_that_is_gone_makes_its_messages_dead_a_group_finds_another(one, producer):
    broker = refuse_all(one)
    assert producer.send(Message("T", b"1"), queue=MessageQueue("T", "broker-a", 3)).send_status == SPOOLED
    groups = [f"g{number}" for number in range(8)]
    for group in groups:
        producer.send(Message("T", b"2"), message_group=group)
    one.write_queues = broker.write_queues = 1
    broker.script["Send"].clear()
    producer.drain_spool(60)
    assert [stored.queue_id for stored in one.messages("T")] == [0] * 8
    assert producer.spool_status().dead == 1


def test_other_refusals_keep_the_messages(one, producer):
    broker = refuse_all(one)
    producer.send(Message("T", b"1"))
    broker.script["Send"] = deque([Refuse(16), Refuse(17), Refuse(2), Refuse(208)])
    producer.drain_spool(60)
    assert bodies(one) == [b"1"] and producer.spool_status().dead == 0
    assert not broker.script["Send"]


# --- the disk --------------------------------------------------------------------------------------------------------


def test_a_full_spool_is_an_error_that_says_what_to_do_and_takes_more_when_there_is_room(one, directory):
    with Producer(one.address, spool=directory, spool_bytes=5000, timeout_s=1) as producer:
        one.stop("broker-a")
        accepted = 0
        with pytest.raises(SpoolFailed, match=r"is full: .*5000 at most \(spool_bytes\).*rocketsim spool") as full:
            while accepted < 100:
                assert producer.send(Message("T", b"x" * 500), message_group="g").send_status == SPOOLED
                accepted += 1
        assert isinstance(full.value, SendFailed) and 3 < accepted < 10
        with pytest.raises(SpoolFailed, match="is full"):
            producer.send(Message("T", os.urandom(5000)), message_group="h")
        assert producer.spool_status().records == accepted
        # a one-way send reports its failure to nobody
        producer.send_oneway(Message("T", os.urandom(5000)), message_group="g")
        producer.flush()
        assert (producer.stats.sent, producer.stats.spooled, producer.stats.failed) == (accepted + 3, accepted, 3)
        one.start("broker-a")
        producer.drain_spool(60)
        assert len(bodies(one)) == accepted
        assert producer.send(Message("T", os.urandom(5000)), message_group="h").send_status == SEND_OK


def test_what_is_being_committed_takes_room_already(directory, monkeypatch):
    spool, lane, is_busy, go_on = Spool(directory, 2000), Lane("T", ANY_QUEUE), threading.Event(), threading.Event()
    insert = SpoolFile.insert
    monkeypatch.setattr(SpoolFile, "insert", lambda *given: (is_busy.set(), go_on.wait(), insert(*given))[2])
    putting = threading.Thread(target=lambda: spool.put([lane], ["1"], [bytes(1000)]))
    putting.start()
    is_busy.wait()
    with pytest.raises(SpoolFailed, match="is full: 1200 bytes and 1200 more, 2000 at most"):
        spool.put([lane], ["2"], [bytes(1000)])
    go_on.set()
    putting.join()
    assert spool.status().size_bytes == 1200
    spool.close()


def test_dead_messages_take_room_until_they_are_discarded_also_after_a_restart(directory):
    lane, data = Lane("T", ANY_QUEUE), bytes(1000)
    spool = Spool(directory, 2000)
    spool.put([lane], ["1"], [data])
    spool.bury(spool.oldest([lane], 1 << 20), "refused")
    for _ in range(2):
        with pytest.raises(SpoolFailed, match=r"is full: 1200 bytes and 1200 more.* 1 are dead"):
            spool.put([lane], ["2"], [data])
        spool.close()
        spool = Spool(directory, 2000)
    spool.close()
    file = SpoolFile(directory)
    with file.transaction():
        assert file.discard_dead() == 1
    file.close()
    spool = Spool(directory, 2000)
    spool.put([lane], ["2"], [data])
    spool.close()


def test_a_full_disk_fails_the_send_and_not_the_ones_before_and_after(one, databases, producer, directory):
    broker = refuse_all(one)
    assert producer.send(Message("T", b"1")).send_status == SPOOLED
    database = databases[0]
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(SpoolFailed, match="database or disk is full"):
        producer.send(Message("T", os.urandom(30_000)))
    with pytest.raises(SendFailed, match=r"not acknowledged after .*not spooled either: .*disk is full"):
        producer.send(Message("T", os.urandom(30_000)), message_group="g")
    database.execute("PRAGMA max_page_count = 100000")
    assert producer.send(Message("T", b"2")).send_status == SPOOLED
    assert (producer.spool_status().records, waiting(directory)) == (2, 2)
    assert (producer.stats.sent, producer.stats.spooled, producer.stats.failed) == (4, 2, 2)
    broker.script["Send"].clear()
    producer.drain_spool(60)
    assert sorted(bodies(one)) == [b"1", b"2"]


def test_a_delete_that_fails_is_repeated_without_sending_again(one, producer, monkeypatch):
    one.stop("broker-a")
    send_all(producer, range(3))
    delete, failures = SpoolFile.delete, [sqlite3.OperationalError("disk I/O error")] * 3

    def failing(file, rows):
        delete(file, rows)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(SpoolFile, "delete", failing)
    one.start("broker-a")
    producer.drain_spool(60)
    assert not failures and sorted(bodies(one)) == [b"0", b"1", b"2"]


def test_a_record_that_is_damaged_on_the_disk_is_dead_and_not_sent(one, directory):
    with Producer(one.address, spool=directory, timeout_s=1) as producer:
        one.stop("broker-a")
        send_all(producer, range(3))
    database = sqlite3.connect(directory / spool_file.DATABASE)
    database.execute("UPDATE records SET record = zeroblob(length(record)) WHERE id = 2")
    database.commit()
    database.close()
    one.start("broker-a")
    with Producer(one.address, spool=directory) as producer:
        producer.drain_spool(60)
        assert producer.spool_status().dead == 1
    assert sorted(bodies(one)) == [b"0", b"2"]


def test_one_that_fails_takes_no_others_with_it(directory, monkeypatch):
    """The messages are committed together, and SQLite refuses one of them."""
    spool, insert, oldest_ms = Spool(directory, 1 << 20), SpoolFile.insert, SpoolFile.oldest_ms
    is_busy, go_on, transactions = threading.Event(), threading.Event(), []

    def failing(file, rows):
        transactions.append(rows)
        if any(row[-1] == b"poison" for row in rows):
            raise sqlite3.OperationalError("disk I/O error")
        insert(file, rows)

    def slow(file):
        is_busy.set()
        go_on.wait()
        return oldest_ms(file)

    monkeypatch.setattr(SpoolFile, "insert", failing)
    monkeypatch.setattr(SpoolFile, "oldest_ms", slow)
    failures = []

    def put(body):
        try:
            spool.put([Lane.of_group("T", body)], ["id"], [body])
        except SpoolFailed as error:
            failures.append(str(error))

    busy = threading.Thread(target=spool.status)
    puts = [threading.Thread(target=put, args=[body]) for body in (b"1", b"poison", b"2")]
    busy.start()
    is_busy.wait()
    for thread in puts:
        thread.start()
    wait_until(lambda: len(spool.lanes()) == 3, "three puts")
    go_on.set()
    for thread in [busy, *puts]:
        thread.join()
    assert spool.status().records == 2 and len(failures) == 1 and "disk I/O error" in failures[0]
    assert len(transactions) > 3  # the rows are first inserted together, then one by one
    spool.close()
    assert waiting(directory) == 2


def test_a_put_that_is_interrupted_and_fails_then_holds_up_nobody(directory, monkeypatch):
    """Ctrl-C ends the wait of a caller that sends for itself."""
    spool, lane, interrupted = Spool(directory, 1 << 20), Lane.of_group("T", "g"), threading.Event()

    def failing(*_):
        interrupted.wait()
        raise sqlite3.OperationalError("database or disk is full")

    def interrupting(*_):
        interrupted.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(SpoolFile, "insert", failing)
    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupting)
        with pytest.raises(KeyboardInterrupt):
            spool.put([lane], ["id"], [b"x"])
    assert spool.wait_until_empty(60) and not spool.holds(lane)
    assert (spool.status().records, spool.status().size_bytes) == (0, 0)
    spool.close()


def test_on_a_full_disk_each_of_many_senders_is_told_and_nothing_is_half_taken(one, tmp_path):
    with SmallDisk(tmp_path / "disk", mib=4) as disk:
        directory = disk.folder / "spool"
        with Producer(one.address, spool=directory, timeout_s=1) as producer:
            broker = refuse_all(one)
            send_all(producer, [0], message_group="g")
            before = producer.spool_status()
            disk.fill()
            large = os.urandom(500_000)
            futures = [producer.send_async(Message("T", large), message_group=f"g{number}") for number in range(8)]
            batch = [Message("T", os.urandom(100_000)) for _ in range(10)]
            with pytest.raises(SpoolFailed, match=rf"spool {directory}: .*full"):
                producer.send_batch(batch)
            assert all(isinstance(future.exception(), SpoolFailed) for future in futures)
            assert but(producer.spool_status(), last_error="") == but(before, last_error="")
            disk.make_room()
            send_all(producer, [1], message_group="g")
            assert producer.send_batch(batch).send_status == SPOOLED
            broker.script["Send"].clear()
            producer.drain_spool(60)
    assert [body for body in bodies(one) if len(body) == 1] == [b"0", b"1"]
    assert sorted(len(body) for body in bodies(one)) == [1, 1, *[100_000] * 10]


def test_a_database_that_proves_damaged_takes_and_gives_nothing_more(directory, monkeypatch):
    spool, lane, ordered = Spool(directory, 1 << 20), Lane("T", ANY_QUEUE), Lane.of_group("T", "g")
    spool.put([lane, ordered], ["id-1", "id-0"], [b"1", b"0"])
    with monkeypatch.context() as patch:
        patch.setattr(SpoolFile, "insert", lambda *_: (_ for _ in ()).throw(sqlite3.DatabaseError("malformed")))
        with pytest.raises(SpoolFailed, match="malformed"):
            spool.put([lane], ["id-2"], [b"2"])
    with pytest.raises(SpoolFailed, match="malformed: it is damaged, and takes nothing more"):
        spool.put([lane], ["id-3"], [b"3"])
    with pytest.raises(SpoolUnusable, match="malformed: it is damaged"):
        spool.oldest([lane], 100)
    assert (spool.holds(lane), spool.holds(ordered)) == (False, True), "what has no order goes to brokers"
    spool.close()
    assert waiting(directory) == 2


def test_an_empty_spool_gives_its_space_back_when_it_is_closed(one, directory):
    with Producer(one.address, spool=directory, timeout_s=1) as producer:
        broker = refuse_all(one)
        for _ in range(20):
            producer.send(Message("T", os.urandom(100_000)))
        broker.script["Send"].clear()
        producer.drain_spool(60)
    assert (directory / spool_file.DATABASE).stat().st_size < 100_000


# --- files that are gone ---------------------------------------------------------------------------------------------


def delete(directory):
    shutil.rmtree(directory)


def move(directory):
    directory.rename(directory.with_name("moved"))


def replace(directory):
    move(directory)
    shutil.copytree(directory.with_name("moved"), directory)


def delete_file(name):
    return lambda directory: (directory / name).unlink()


@pytest.mark.parametrize(
    ("displace", "missing"),
    [
        (delete, "spool.db"),
        (move, "spool.db"),
        (replace, "spool.db"),
        (delete_file("spool.db"), "spool.db"),
        (delete_file("spool.db-wal"), "spool.db-wal"),
        (delete_file("spool.db-shm"), "spool.db-shm"),
    ],
)
def test_a_spool_whose_files_are_gone_takes_nothing_more_and_brings_brokers_what_it_has(
    one, directory, caplog, displace, missing
):
    with Producer(one.address, spool=directory, timeout_s=1) as producer:
        broker = refuse_all(one)
        send_all(producer, range(3), message_group="g")
        displace(directory)
        said = f"spool {directory}: {missing} was deleted, moved or replaced while it was open"
        for group in ("g", "h", None):
            with pytest.raises(SpoolFailed, match=said) as failed:
                producer.send(Message("T", b"not taken"), message_group=group)
            assert not failed.value.maybe_stored
        assert said in producer.spool_status().last_error and producer.spool_status().records == 3
        if displace is move:
            directory.with_name("moved").rename(directory)
            with pytest.raises(SpoolFailed, match=said):
                producer.send(Message("T", b"not taken"), message_group="g")
        broker.script["Send"].clear()
        producer.drain_spool(60)
        assert producer.send(Message("T", b"3"), message_group="g").send_status == SEND_OK
    assert bodies(one) == [b"0", b"1", b"2", b"3"]
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    Producer(one.address, spool=directory).close()


def test_nothing_is_told_to_be_spooled_whose_files_go_while_it_is_committed(one, directory, monkeypatch):
    """The outcome of the message is unknown, because this process still has it."""
    with Producer(one.address, spool=directory, timeout_s=1) as producer:
        broker = refuse_all(one)
        insert = SpoolFile.insert

        def losing(file, rows):
            shutil.rmtree(directory)
            insert(file, rows)

        with monkeypatch.context() as patch:
            patch.setattr(SpoolFile, "insert", losing)
            with pytest.raises(SpoolFailed, match=rf"not acknowledged.*spool {directory}: spool\.db was del") as failed:
                producer.send(Message("T", b"x"))
        assert failed.value.maybe_stored
        broker.script["Send"].clear()
        producer.drain_spool(60)
    assert bodies(one) == [b"x"]


def test_a_spool_without_its_lock_is_left_to_who_may_have_it_now(one, directory):
    with Producer(one.address, spool=directory, timeout_s=1) as producer:
        refuse_all(one)
        send_all(producer, range(3), message_group="g")
        (directory / spool_file.LOCK).unlink()
        with Producer(one.address, spool=directory, timeout_s=1) as other:
            with pytest.raises(SpoolUnusable, match=r"spool\.lock was deleted"):
                producer.spool_status()
            with pytest.raises(SpoolFailed, match=r"spool\.lock was deleted"):
                producer.send(Message("T", b"x"), message_group="g")
            with pytest.raises(SpoolUnusable, match=r"spool\.lock was deleted.*; 3 messages wait in it"):
                producer.drain_spool(60)
            producer.close()
            one.brokers["broker-a", 0].script["Send"].clear()
            other.drain_spool(60)
            assert other.spool_status().replayed == 3
    assert bodies(one) == [b"0", b"1", b"2"]


def test_messages_that_are_lost_with_their_files_are_counted_in_the_log(one, directory, caplog):
    with Producer(one.address, spool=directory, timeout_s=1) as producer:
        refuse_all(one)
        send_all(producer, range(3))
        shutil.rmtree(directory)
    assert (
        f"spool {directory}: 3 messages were not sent, and the spool's files with them were deleted, moved or replaced"
        in caplog.messages
    )


# --- processes -------------------------------------------------------------------------------------------------------


def test_what_is_left_at_close_is_replayed_by_the_next_producer_in_its_order_before_anything_new(
    one, directory, caplog
):
    caplog.set_level(logging.INFO, "rocketsim_client")
    with Producer(one.address, spool=directory, timeout_s=1) as producer:
        one.stop("broker-a")
        send_all(producer, range(50), message_group="g")
        wait_until(lambda: producer.spool_status().last_error, "a replay that fails")
        waits = [line for line in caplog.messages if line.startswith(f"spool {directory}: messages wait for brokers: ")]
        assert len(waits) == 1
    assert waiting(directory) == 50
    one.start("broker-a")
    with Producer(one.address, spool=directory, timeout_s=1) as producer:
        assert f"spool {directory}: 50 messages wait for brokers, 0 are dead" in caplog.messages
        send_all(producer, range(50, 60), message_group="g")
        producer.drain_spool(60)
    assert f"spool {directory}: brokers have stored all of its messages" in caplog.messages
    assert bodies(one) == [b"%d" % number for number in range(60)]


def test_a_close_while_a_replay_hangs_ends_and_keeps_the_records(one, directory):
    with Producer(one.address, spool=directory, timeout_s=0.5) as producer:
        broker = refuse_all(one)
        send_all(producer, range(3), message_group="g")
        broker.script["Send"] = deque([Hang()] * 1000)
        wait_until(lambda: len(broker.script["Send"]) < 1000, "the replay's attempt")
        with pytest.raises(CallTimeout, match=r"messages still wait in the spool after 0\.1 s"):
            producer.drain_spool(0.1)
    assert waiting(directory) == 3
    one.stop("broker-a")
    one.start("broker-a")
    with Producer(one.address, spool=directory) as producer:
        producer.drain_spool(60)
    assert bodies(one) == [b"0", b"1", b"2"]


def outcome_of_drain(producer, monkeypatch):
    """Starts `drain_spool` in a thread, waits until it blocks, and returns a function that waits for its outcome."""
    outcomes, waits = [], threading.Event()
    wait_for = threading.Condition.wait_for

    def waiting_for(changed, condition, timeout_s=None):
        if threading.current_thread() is thread:
            waits.set()  # the thread holds the lock, so nothing changes before it waits
        return wait_for(changed, condition, timeout_s)

    def drain():
        try:
            outcomes.append(producer.drain_spool(60))
        except Exception as error:
            outcomes.append(error)

    def outcome():
        thread.join()
        return outcomes[0]

    monkeypatch.setattr(threading.Condition, "wait_for", waiting_for)
    thread = threading.Thread(target=drain)
    thread.start()
    waits.wait()
    return outcome


def test_who_waits_for_an_empty_spool_is_told_of_its_close(one, directory, monkeypatch):
    producer = Producer(one.address, spool=directory, timeout_s=1)
    refuse_all(one)
    send_all(producer, range(3), message_group="g")
    outcome = outcome_of_drain(producer, monkeypatch)
    producer.close()
    assert isinstance(outcome(), ClientClosed)
    with pytest.raises(ClientClosed, match=f"has been closed; 3 messages wait in {directory} for the next producer"):
        producer.drain_spool(60)
    one.stop("broker-a")
    one.start("broker-a")
    with Producer(one.address, spool=directory) as producer:
        producer.drain_spool(60)
    producer.drain_spool(60)  # closed, and empty


def test_who_waits_for_an_empty_spool_is_told_of_its_damage_which_is_logged_once(one, directory, monkeypatch, caplog):
    with Producer(one.address, spool=directory, timeout_s=1) as producer:
        refuse_all(one)
        send_all(producer, range(3), message_group="g")
        outcome = outcome_of_drain(producer, monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr(SpoolFile, "oldest", lambda *_: (_ for _ in ()).throw(sqlite3.DatabaseError("malformed")))
            assert isinstance(outcome(), SpoolUnusable)
        with pytest.raises(SpoolUnusable, match=f"spool {directory}: malformed: it is damaged.*; 3 messages wait"):
            producer.drain_spool(60)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == [f"spool {directory}: malformed: it is damaged, and takes nothing more"]


def test_who_waits_for_an_empty_spool_is_told_that_replay_has_ended(one, producer, directory, monkeypatch):
    refuse_all(one)
    send_all(producer, range(3), message_group="g")
    outcome = outcome_of_drain(producer, monkeypatch)
    monkeypatch.setattr(Spool, "wait_for_news", lambda *_: 1 / 0)
    assert isinstance(outcome(), SpoolUnusable)
    with pytest.raises(SpoolUnusable, match=f"spool {directory}: replay has ended: ZeroDivisionError.*; 3 messages"):
        producer.drain_spool(60)


def test_replay_outlives_an_error_that_nobody_expects(one, producer, monkeypatch):
    one.stop("broker-a")
    send_all(producer, range(3))
    queues, errors = PublishTable.queues, [ZeroDivisionError()] * 3

    def failing(table, topic):
        if threading.current_thread().name == "rocketsim-replay" and errors:
            raise errors.pop()
        return queues(table, topic)

    monkeypatch.setattr(PublishTable, "queues", failing)
    one.start("broker-a")
    producer.drain_spool(60)
    assert not errors and len(bodies(one)) == 3


def test_a_batch_that_a_close_overtakes_says_whether_it_may_be_stored(one, directory):
    """The caller's own thread sends a batch: `close` does not wait for the caller's thread."""
    cluster = Cluster(one.address)  # a shared cluster, which the producer does not close
    producer = Producer(cluster=cluster, spool=directory, timeout_s=60)
    producer.send(Message("T", b"0"))
    broker, failures = one.brokers["broker-a", 0], []
    broker.script["Send"] = deque([LoseAnswer(), Hang(), Break()])

    def send():
        try:
            producer.send_batch([Message("T", b"1"), Message("T", b"2")])
        except Exception as error:
            failures.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    wait_until(lambda: len(broker.script["Send"]) == 1, "the attempt that hangs")
    producer.close()
    broker.let_go()
    sending.join()
    assert isinstance(failures[0], SpoolFailed) and failures[0].maybe_stored, failures
    assert "not spooled either: this producer has been closed" in str(failures[0])
    cluster.close()
    assert waiting(directory) == 0


def test_a_caller_that_waits_behind_a_hanging_send_is_told_that_its_message_is_spooled(one, directory):
    """The caller's timeout passes while its message is still in the outbox."""
    with Producer(one.address, spool=directory, timeout_s=0.5) as producer:
        producer.send(Message("T", b"0"), message_group="g")
        one.brokers["broker-a", 0].script["Send"] = deque([Hang()] * 1000)
        statuses = []
        threads = [
            threading.Thread(
                target=lambda: statuses.append(producer.send(Message("T", b"x"), message_group="g").send_status)
            )
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses == [SPOOLED] * 8


def test_a_second_producer_with_the_directory_is_refused_and_the_first_goes_on(one, producer, directory):
    with pytest.raises(SpoolUnusable, match=f"process {os.getpid()} has it open"):
        Producer(one.address, spool=directory)
    assert producer.send(Message("T", b"x")).send_status == SEND_OK


@pytest.mark.parametrize("name", ["rocketsim-spool", "rocketsim-replay"])
def test_a_producer_that_the_system_has_no_thread_for_gives_the_directory_free(one, directory, monkeypatch, name):
    start = threading.Thread.start

    def refusing(thread):
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refusing)
        with pytest.raises(RuntimeError, match="can't start new thread") as refused:
            Producer(one.address, spool=directory)
    assert refused.value.__traceback__, "what keeps the frames, and the producer with them"
    Producer(one.address, spool=directory).close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_leaves_the_spool_to_its_parent(directory):
    """No server runs in this test, because a gRPC server does not survive a fork."""
    with Producer("127.0.0.1:1", spool=directory, timeout_s=0.2) as producer:
        assert producer.send(Message("T", b"1"), message_group="g").send_status == SPOOLED

        def child():
            with pytest.raises((NameServerUnavailable, SendFailed)):
                producer.send(Message("T", b"2"), message_group="g", timeout_s=0.2)
            with pytest.raises(NameServerUnavailable):
                producer.send(Message("T", b"2"), timeout_s=0.2)
            with pytest.raises(SpoolUnusable, match="belongs to the parent process"):
                producer.spool_status()
            with pytest.raises(SpoolUnusable, match="belongs to the parent process"):
                producer.drain_spool()
            with pytest.raises(SpoolUnusable, match=f"process {os.getppid()} has it open"):
                Producer("127.0.0.1:1", spool=directory)
            producer.close()

        in_child(child)
        assert producer.send(Message("T", b"3"), message_group="g").send_status == SPOOLED
        assert producer.spool_status().records == 2
    assert waiting(directory) == 2


def test_the_end_of_a_forked_child_harms_no_record_of_its_parent(directory):
    """A process that ends frees its objects: a child that closed its copy of the database would remove its parent's
    log.
    """
    code = f"""
import os, signal
from rocketsim_client import Message, Producer
producer = Producer("127.0.0.1:1", spool={str(directory)!r}, timeout_s=0.2)
assert producer.send(Message("T", b"1")).send_status.name == "SPOOLED"
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    assert producer.send(Message("T", b"2")).send_status.name == "SPOOLED"
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert waiting(directory) == 2


def run_until_killed(one, directory, point):
    program = [sys.executable, "-m", "tests.client.spooling_program", one.address, str(directory), point]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def drained(one, directory):
    with Producer(one.address, spool=directory) as producer:
        producer.drain_spool(60)


def test_killed_before_the_commit_the_send_has_not_returned_and_nothing_is_there(one, directory):
    one.stop("broker-a")
    assert run_until_killed(one, directory, "before the commit") == []
    assert waiting(directory) == 0
    one.start("broker-a")
    drained(one, directory)
    assert bodies(one) == []


def test_killed_after_the_commit_the_message_arrives_though_nobody_was_told(one, directory):
    one.stop("broker-a")
    assert run_until_killed(one, directory, "after the commit") == []
    one.start("broker-a")
    drained(one, directory)
    assert bodies(one) == [b"0"]


def test_killed_between_the_broker_s_ok_and_the_delete_the_message_arrives_twice_under_its_id(one, directory):
    with Producer(one.address, spool=directory, timeout_s=1) as producer:
        one.stop("broker-a")
        (result,) = send_all(producer, [0])
    one.start("broker-a")
    assert run_until_killed(one, directory, "before the delete") == []
    assert ids(one) == [result.msg_id] and waiting(directory) == 1
    drained(one, directory)
    assert ids(one) == [result.msg_id] * 2 and waiting(directory) == 0


def test_what_was_told_to_be_spooled_survives_a_power_loss(one, tmp_path):
    one.stop("broker-a")
    told = tmp_path / "told"
    with PowerlessDisk(tmp_path) as power:
        directory = power.mount / "new" / "spool"
        program = [sys.executable, "-m", "tests.client.spooling_program", one.address, str(directory), "never"]
        with told.open("wb") as output, subprocess.Popen(program, cwd=ROOT, stdout=output, stderr=output) as process:
            try:
                wait_until(lambda: told.read_bytes().count(b"SPOOLED\n") > 100, "messages in the spool")
                before = told.read_text()  # the disk may confirm a sync just while it loses its power
                power.lose_power()
                process.wait()
            finally:
                process.kill()
        power.power_is_back()
        assert "SpoolFailed" in told.read_text().splitlines()[-1]
        spooled = [line.split()[2] for line in before.splitlines() if line.endswith("SPOOLED")]
        file = SpoolFile(directory)
        lanes = [waits.lane for waits in file.waiting()]
        kept = [row.msg_id for row in file.oldest("T", lanes, 1 << 30)]
        file.close()
    assert len(lanes) == 4 and set(spooled) <= set(kept)


def test_without_a_spool_nothing_of_it_is_imported():
    code = (
        "import sys; from rocketsim_client import Producer; Producer('127.0.0.1:1').close(); "
        "print([name for name in sys.modules if 'sqlite3' in name or 'spool' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.cluster
def test_both_brokers_and_the_producer_are_killed_and_everything_that_was_told_arrives_in_order(
    real_pair, directory, tmp_path
):
    pair = real_pair("T")
    program = [sys.executable, "-m", "tests.client.spooling_program", pair.name_server, str(directory), "never"]
    told = tmp_path / "told"
    with told.open("wb") as output, subprocess.Popen(program, cwd=ROOT, stdout=output) as process:
        try:

            def lines(status):
                return [line.split() for line in told.read_text().splitlines() if line.endswith(status)]

            wait_until(lambda: len(lines("SEND_OK")) > 20, "messages at the brokers")
            pair.master.kill()
            pair.slave.kill()
            wait_until(lambda: len(lines("SPOOLED")) > 200, "messages in the spool")
        finally:
            process.kill()
    for broker in (pair.master, pair.slave):
        broker.start()
    with Producer(pair.name_server, spool=directory) as producer:
        assert producer.spool_status().records >= 200
        producer.drain_spool(60)
    with Admin(pair.name_server) as admin, PullConsumer(pair.name_server, "g") as consumer:
        wait_until(lambda: admin.ha_status(broker_addr=pair.master.address)[0].slaves, "the slave follows")
        table = consumer.read("T").read_all()
    rows = sorted(zip(*(table[name].to_pylist() for name in ("queueId", "queueOffset", "body", "msgId")), strict=True))
    found = defaultdict(dict)
    for _, _, body, msg_id in rows:
        found[int(body) % 4].setdefault(int(body), msg_id)
    *whole, _ = told.read_text().split("\n")  # drops the part of a line that the kill has left at the end
    for number, _, msg_id, _ in map(str.split, whole):
        assert found[int(number) % 4][int(number)] == msg_id
    assert all(list(group) == sorted(group) for group in found.values())
