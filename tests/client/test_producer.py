"""Sends to brokers in this process: what arrives, what is retried, and what callers are told."""

import random
import threading
import time
import zlib
from collections import Counter, deque
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto.records import record
from rocketsim_proto.records.compression import decompress

from rocketsim_client import Message, MessageQueue, Producer, PullConsumer, RocketSimError, SendFailed, SendStatus
from rocketsim_client.errors import (
    BadAnswer,
    BrokerNotExist,
    ClientClosed,
    InvalidParameter,
    MessageIllegal,
    QueueNotExist,
    TopicNotExist,
)
from rocketsim_client.sending import attempts, sender
from rocketsim_client.transport.own.channels import Channels
from testbed.polling import wait_until
from tests.support.fake_broker import Answer, Break, FakeCluster, Hang, LoseAnswer, Refuse


@pytest.fixture
def producer(cluster):
    with Producer(cluster.address, "p", linger_ms=1) as made:
        yield made


def masters(cluster):
    return [broker for (_, broker_id), broker in sorted(cluster.brokers.items()) if broker_id == 0]


def test_a_message_arrives_with_all_that_was_said(cluster, producer):
    result = producer.send(Message("T", b"body", tags="A", keys=["k1", "k2"], properties={"x": "y"}, flag=7))
    (stored,) = cluster.messages("T")
    assert (stored.body, stored.flag, stored.sys_flag) == (b"body", 7, 0)
    assert stored.properties == {"TAGS": "A", "KEYS": "k1 k2", "x": "y", "UNIQ_KEY": result.msg_id}
    assert next(iter(stored.properties)) == "TAGS"
    assert (result.send_status, result.message_queue.queue_id) == (SendStatus.SEND_OK, stored.queue_id)
    assert result.queue_offset == stored.queue_offset
    assert result.offset_msg_id == record.offset_message_id(stored.store_host, stored.commit_log_offset)


def test_messages_go_round_all_queues_of_all_masters(producer):
    queues = {producer.send(Message("T", b"x")).message_queue for _ in range(8)}
    assert len(queues) == 8


@pytest.mark.parametrize(("kind", "flag"), [("ZLIB", 0x301), ("LZ4", 0x101), ("ZSTD", 0x201)])
def test_a_large_body_is_compressed_and_marked(cluster, kind, flag):
    with Producer(cluster.address, compress_type=kind) as producer:
        producer.send(Message("T", b"x" * 4096))
        producer.send(Message("T", b"x" * 4095))
    large, small = sorted(cluster.messages("T"), key=lambda stored: -stored.sys_flag)
    assert (large.sys_flag, small.sys_flag, small.body) == (flag, 0, b"x" * 4095)
    assert len(large.body) < 4096
    assert decompress(large.body, large.sys_flag, 4096) == b"x" * 4096


@pytest.mark.parametrize("kind", ["ZLIB", "LZ4", "ZSTD"])
def test_a_body_that_compression_would_make_longer_stays_as_it_is(cluster, kind):
    """Compressed, a body of the greatest length would be refused by the broker."""
    body = random.Random(1).randbytes(4096)
    with Producer(cluster.address, compress_type=kind) as producer:
        producer.send(Message("T", body))
    (stored,) = cluster.messages("T")
    assert (stored.sys_flag, stored.body) == (0, body)


def test_ordered_messages_and_columns_that_meet_in_one_lane_are_all_sent_in_their_order(cluster, producer):
    broker, go_on = cluster.brokers["broker-a", 0], threading.Event()
    broker.before_send = go_on.wait
    queue = MessageQueue("T", "broker-a", 1)
    sent = [producer.send_async(Message("T", b"0"), queue=queue)]
    sent.append(producer.send_async(Message("T", b"1"), queue=queue))
    sent += producer.send_columns_async("T", pa.array([b"2"]), queue=queue)
    sent += producer.send_columns_async("T", pa.array([b"3"]), queue=queue)
    sent.append(producer.send_async(Message("T", b"4"), queue=queue))
    go_on.set()
    for future in sent:
        future.result(30)
    assert [stored.body for stored in cluster.messages("T")] == [b"%d" % number for number in range(5)]


def test_messages_of_a_group_that_threads_send_at_once_are_all_sent(cluster, producer):
    """The first message is sent by its own thread; the others wait for that send, and are sent as soon as it ends."""
    go_on = threading.Event()
    for broker in masters(cluster):
        broker.before_send = go_on.wait
    statuses = []

    def send():
        statuses.append(producer.send(Message("T", b"x"), message_group="g", timeout_s=60).send_status)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: str(producer).startswith("producer p: 3 waiting"), "three that wait")
    go_on.set()
    for thread in threads:
        thread.join(50)
    assert statuses == [SendStatus.SEND_OK] * 4


def test_a_message_of_a_group_keeps_its_id_when_its_queue_is_gone_and_an_answer_was_lost(cluster):
    cluster.stop("broker-b")
    broker = cluster.brokers["broker-a", 0]
    broker.script["Send"].append(LoseAnswer())

    def before_send():
        if broker.calls["Send"]:
            broker.write_queues = cluster.write_queues = 1

    broker.before_send = before_send
    with Producer(cluster.address, "p", timeout_s=10) as producer:
        group = next(str(number) for number in range(9) if zlib.crc32(str(number).encode()) % 4)
        result = producer.send(Message("T", b"x"), message_group=group)
    assert [stored.message_id for stored in cluster.messages("T")] == [result.msg_id] * 2


def test_a_lost_answer_is_sent_again_to_the_other_pair_under_the_same_id(cluster, producer):
    only_once = deque([LoseAnswer()])
    for broker in masters(cluster):
        broker.script["Send"] = only_once
    result = producer.send(Message("T", b"again"))
    copies = [stored for stored in cluster.messages("T") if stored.body == b"again"]
    assert len(copies) == 2
    assert {stored.message_id for stored in copies} == {result.msg_id}
    assert (producer.stats.sent, producer.stats.acknowledged, producer.stats.sent_again) == (1, 1, 1)
    assert [len(broker.calls["Send"]) for broker in masters(cluster)] == [1, 1]


def test_retries_end_with_their_number_and_say_where_they_were(cluster, producer):
    for broker in masters(cluster):
        broker.script["Send"].extend([Break()] * 9)
    with pytest.raises(SendFailed, match="3 attempts") as failed:
        producer.send(Message("T", b"x"))
    assert (failed.value.attempts, failed.value.maybe_stored) == (3, True)
    assert sum(len(broker.calls["Send"]) for broker in masters(cluster)) == 3
    assert producer.stats.failed == 1


def test_a_definite_no_is_told_from_an_unknown_outcome(cluster, producer):
    for broker in masters(cluster):
        broker.script["Send"].extend([Refuse(14)] * 9)
    with pytest.raises(SendFailed) as failed:
        producer.send(Message("T", b"x"))
    assert (failed.value.code, failed.value.maybe_stored) == (14, False)


def test_an_illegal_message_is_not_tried_again(cluster, producer):
    for broker in masters(cluster):
        broker.script["Send"].append(Refuse(13, reason="too strange"))
    with pytest.raises(MessageIllegal, match="too strange"):
        producer.send(Message("T", b"x"))
    assert sum(len(broker.calls["Send"]) for broker in masters(cluster)) == 1


def test_one_total_timeout_bounds_a_send_to_brokers_that_hang(cluster, monkeypatch):
    given: list[float] = []
    call = Channels.call

    def noted(self, address, stub, method, request, timeout_s):
        if method == "Send":
            given.append(timeout_s)
        return call(self, address, stub, method, request, timeout_s)

    with Producer(cluster.address, send_msg_timeout_ms=300) as producer:
        producer.send(Message("T", b"x"), timeout_s=60)  # so that the producer knows the route
        monkeypatch.setattr(Channels, "call", noted)
        for broker in masters(cluster):
            broker.script["Send"].extend([Hang()] * 9)
        with pytest.raises(SendFailed) as failed:
            producer.send(Message("T", b"x"))
        assert failed.value.maybe_stored
    assert given and sum(given) <= 0.3


@pytest.fixture
def held_routes(monkeypatch):
    """After `held_routes(producer)` no question for a route is answered; the returned list collects the topics that
    were asked for.
    """
    answer = threading.Event()

    def hold(producer):
        transport, asked = producer.cluster.transport, deque()
        ask = transport.routes.topic_route

        def held(topic, timeout_s):
            asked.append(topic)
            assert answer.wait(60)
            return ask(topic, timeout_s)

        monkeypatch.setattr(transport.routes, "topic_route", held)
        monkeypatch.setattr(transport, "close", lambda close=transport.close: (answer.set(), close()))
        return asked

    yield hold
    answer.set()


def test_a_send_that_has_failed_waits_for_no_name_server(cluster, held_routes):
    with Producer(cluster.address, timeout_s=0.3) as producer:
        producer.send(Message("T", b"x"), timeout_s=60)
        asked = held_routes(producer)
        for broker in masters(cluster):
            broker.script["Send"].extend([Hang()] * 9)
        for _ in range(2):
            with pytest.raises(SendFailed):
                producer.send(Message("T", b"x"))
        wait_until(lambda: list(asked) == ["T"], "the question for a new route")


def test_a_send_goes_on_to_another_broker_though_no_name_server_answers(cluster, held_routes):
    with Producer(cluster.address) as producer:
        producer.send(Message("T", b"x"))
        asked = held_routes(producer)
        once = deque([Break()])
        for broker in masters(cluster):
            broker.script["Send"] = once
        # The send has half of its time left, because the question for a new route may take the first half.
        assert producer.send(Message("T", b"x"), timeout_s=4).send_status == SendStatus.SEND_OK
        assert list(asked) == ["T"] and producer.stats.sent_again == 1


def test_where_no_thread_can_be_started_any_more_the_send_asks_for_the_route_itself(cluster, monkeypatch):
    """At the end of a process, Python 3.12 starts no more threads."""
    with Producer(cluster.address) as producer:
        producer.send(Message("T", b"x"))
        calls = len(cluster.route_calls)
        once = deque([Break()])
        for broker in masters(cluster):
            broker.script["Send"] = once
        start = threading.Thread.start

        def refused(thread):
            if thread.name.startswith("rocketsim-"):
                raise RuntimeError("can't create new thread at interpreter shutdown")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refused)
        assert producer.send(Message("T", b"x")).send_status == SendStatus.SEND_OK
        assert len(cluster.route_calls) == calls + 1


def test_a_route_that_is_due_holds_up_no_send(cluster, held_routes):
    now = [0.0]
    with Producer(cluster.address, poll_interval_s=0, clock=lambda: now[0]) as producer:
        producer.send(Message("T", b"x"))
        asked = held_routes(producer)
        now[0] += 2  # after this time the table of routes asks the cluster again
        assert producer.send(Message("T", b"x")).send_status == SendStatus.SEND_OK
        assert list(asked) == ["T"]


def test_weak_statuses_are_results_and_only_tried_elsewhere_on_request(cluster):
    masters(cluster)[0].put_status = pb.SendResponse.FLUSH_SLAVE_TIMEOUT
    with Producer(cluster.address) as producer:
        statuses = {producer.send(Message("T", b"x")).send_status for _ in range(4)}
        assert statuses == {SendStatus.SEND_OK, SendStatus.FLUSH_SLAVE_TIMEOUT}
    with Producer(cluster.address, retry_another_broker_when_not_store_ok=True) as producer:
        assert {producer.send(Message("T", b"x")).send_status for _ in range(4)} == {SendStatus.SEND_OK}


def test_a_weak_status_everywhere_is_still_a_result(cluster):
    for broker in masters(cluster):
        broker.put_status = pb.SendResponse.SLAVE_NOT_AVAILABLE
    with Producer(cluster.address, retry_another_broker_when_not_store_ok=True) as producer:
        assert producer.send(Message("T", b"x")).send_status == SendStatus.SLAVE_NOT_AVAILABLE


def test_a_dead_master_is_left_at_once_though_the_route_still_names_it(cluster, producer):
    producer.send(Message("T", b"x"))
    cluster.freeze()
    cluster.stop("broker-a")
    names = {producer.send(Message("T", b"x")).message_queue.broker_name for _ in range(8)}
    assert names == {"broker-b"}


def test_the_route_is_asked_again_after_a_failure(cluster, producer):
    producer.send(Message("T", b"x"))
    cluster.stop("broker-a")
    for _ in range(4):
        producer.send(Message("T", b"x"))
    assert {queue.broker_name for queue in producer.publish_queues("T")} == {"broker-b"}


@pytest.mark.parametrize("columns", [False, True])
def test_a_master_that_is_away_for_a_moment_is_waited_for(cluster, monkeypatch, columns):
    """No other pair can take the message, so each attempt without a broker counts as failed, and more follow."""
    pauses = []

    def sleep(pause_s):
        pauses.append(pause_s)
        if len(pauses) == 3:
            cluster.start("broker-a")
        time.sleep(pause_s)

    cluster.stop("broker-b")
    retries = {"retry_times_when_send_failed": 30, "retry_times_when_send_async_failed": 30}
    with Producer(cluster.address, send_msg_timeout_ms=60_000, **retries) as producer:
        producer.send(Message("T", b"x"))
        cluster.stop("broker-a")  # from now on the route names only the slave of broker-a
        monkeypatch.setattr(attempts, "time", SimpleNamespace(sleep=sleep))
        if columns:
            assert len(producer.send_columns("T", pa.array([b"y"] * 3))) == 3
        else:
            producer.send(Message("T", b"y"))
        assert producer.stats.failed == 0
    assert {stored.body for stored in cluster.messages("T")} == {b"x", b"y"}


def test_retries_without_a_master_end_with_their_number(cluster):
    cluster.stop("broker-b")
    with Producer(cluster.address, send_msg_timeout_ms=60_000, retry_times_when_send_failed=2) as producer:
        producer.send(Message("T", b"x"))
        cluster.stop("broker-a")
        with pytest.raises(SendFailed, match=r"after 3 attempts .*no live master") as raised:
            producer.send(Message("T", b"y"))
        assert raised.value.attempts == 3


def test_without_a_master_the_error_says_so(cluster, producer):
    for name in ("broker-a", "broker-b"):
        cluster.stop(name)
    with pytest.raises(BrokerNotExist, match="no live master"):
        producer.send(Message("T", b"x"))


def test_a_topic_that_is_nowhere_is_an_error_unless_brokers_make_topics(cluster, producer):
    with pytest.raises(TopicNotExist, match="New"):
        producer.send(Message("New", b"x"))
    cluster.topics.add("TBW102")
    producer.send(Message("New", b"x"))
    request = next(broker.calls["Send"][0] for broker in masters(cluster) if broker.calls["Send"])
    assert (request.topic, request.default_topic_queue_nums) == ("New", 4)


def test_a_slow_broker_is_avoided_with_latency_faults(cluster):
    now = [0.0]
    with Producer(cluster.address, send_latency_fault_enable=True, clock=lambda: now[0]) as producer:
        slow = masters(cluster)[0]
        slow.before_send = lambda: now.__setitem__(0, now[0] + 0.6)
        names = [producer.send(Message("T", b"x")).message_queue.broker_name for _ in range(10)]
    assert names.count(slow.name) <= 2


def test_asynchronous_sends_share_frames_and_each_has_its_result(cluster, producer):
    futures = [producer.send_async(Message("T", b"%d" % number)) for number in range(1000)]
    results = [future.result(10) for future in futures]
    assert len({result.msg_id for result in results}) == 1000
    calls = sum(len(broker.calls["Send"]) for broker in masters(cluster))
    assert calls < 500
    stored = {item.message_id: item for item in cluster.messages("T")}
    for number, result in enumerate(results):
        item = stored[result.msg_id]
        assert item.body == b"%d" % number
        assert (item.queue_id, item.queue_offset) == (result.message_queue.queue_id, result.queue_offset)
        assert result.offset_msg_id == record.offset_message_id(item.store_host, item.commit_log_offset)


def test_an_asynchronous_failure_reaches_its_future(cluster, producer):
    for broker in masters(cluster):
        broker.script["Send"].extend([Break()] * 9)
    with pytest.raises(SendFailed):
        producer.send_async(Message("T", b"x")).result(10)


def test_an_illegal_message_takes_no_neighbours_with_it(cluster):
    for broker in masters(cluster):
        broker.max_message_size = 100
    with Producer(cluster.address, linger_ms=50) as producer:
        futures = [producer.send_async(Message("T", b"x" * (101 if number == 13 else 10))) for number in range(40)]
        failed = [number for number, future in enumerate(futures) if future.exception(10)]
    assert failed == [13]
    assert len(cluster.messages("T")) == 39
    stats = producer.stats
    assert (stats.sent, stats.acknowledged, stats.failed) == (40, 39, 1)


def test_messages_of_a_key_keep_their_order_over_failures(cluster):
    broker_of = {}
    # On a slow machine all six breaks of a broker may hit one batch.
    with Producer(cluster.address, linger_ms=1, timeout_s=60, retry_times_when_send_failed=9) as producer:
        for number in range(300):
            for broker in masters(cluster):
                if number % 50 == 0 and not broker.script["Send"]:
                    broker.script["Send"].append(Break())
            for key in ("k1", "k2", "k3"):
                producer.send_async(Message("T", b"%d" % number), message_group=key).add_done_callback(
                    lambda future, key=key: broker_of.setdefault(key, set()).add(future.result().message_queue)
                )
        producer.flush(60)
    assert all(len(queues) == 1 for queues in broker_of.values())
    for key in ("k1", "k2", "k3"):
        mine = [stored for stored in cluster.messages("T") if stored.properties.get("__SHARDINGKEY") == key]
        assert [int(stored.body) for stored in sorted(mine, key=lambda s: s.queue_offset)] == list(range(300))


def test_a_chosen_queue_is_the_queue(cluster, producer):
    queue = MessageQueue("T", "broker-b", 3)
    results = [producer.send(Message("T", b"x"), queue=queue) for _ in range(3)]
    assert [(result.message_queue, result.queue_offset) for result in results] == [(queue, 0), (queue, 1), (queue, 2)]


def test_one_way_sends_are_tried_once(cluster, producer):
    for broker in masters(cluster):
        broker.script["Send"].append(Break())
    producer.send_oneway(Message("T", b"x"))
    producer.flush(10)
    assert sum(len(broker.calls["Send"]) for broker in masters(cluster)) == 1
    assert producer.stats.failed == 1


def test_a_batch_lands_in_one_queue_with_consecutive_offsets(cluster, producer):
    results = producer.send_batch([Message("T", b"%d" % number) for number in range(100)])
    assert len(results) == 100 and results.send_status == SendStatus.SEND_OK
    assert len({result.message_queue for result in results}) == 1
    assert [result.queue_offset for result in results] == list(range(100))
    assert len(cluster.messages("T")) == 100
    assert sum(len(broker.calls["Send"]) for broker in masters(cluster)) == 1
    assert results[-1].msg_id == cluster.messages("T")[-1].message_id


def test_a_batch_above_the_size_limit_is_split(cluster):
    with Producer(cluster.address, max_message_size=10_000) as producer:
        results = producer.send_batch([Message("T", b"x" * 3000) for _ in range(10)])
    assert len({result.message_queue for result in results}) == 1
    assert [result.queue_offset for result in results] == list(range(10))
    requests = [request for broker in masters(cluster) for request in broker.calls["Send"]]
    assert len(requests) >= 4
    assert all(len(request.records) <= 10_000 for request in requests)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "empty batch"),
        ([Message("T", b"x"), Message("U", b"x")], "one topic"),
        ([Message("T", b"x"), Message("T", b"x", wait_store_msg_ok=False)], "WAIT"),
        ([Message("T", b"x", delay_level=1)], r"delayed messages \(delay_level\).*`send_async`"),
        ([Message("T", b"y"), Message("T", b"x", deliver_at=4e9)], r"delayed messages \(deliver_at\).*`send_async`"),
        ([Message("T", b"y"), Message("T", b"x", message_group="g")], "message_group 'g' in a batch.*`queue`"),
        ([Message("T", b"")], "empty"),
        ([Message("T", "text")], r"a body is bytes, not str; body\.encode\(\)"),
    ],
)
def test_batches_that_rocketmq_refuses_are_refused(producer, messages, reason):
    with pytest.raises(MessageIllegal, match=reason):
        producer.send_batch(messages)


def test_delayed_messages_travel_alone(cluster, producer):
    futures = [producer.send_async(Message("T", b"x", delay_level=3)) for _ in range(5)]
    assert all(future.result(10) for future in futures)
    requests = [request for broker in masters(cluster) for request in broker.calls["Send"]]
    assert [request.count for request in requests] == [1] * 5
    assert {stored.properties["DELAY"] for stored in cluster.messages("T")} == {"3"}


def test_messages_with_a_delivery_time_travel_alone(cluster, producer):
    due = datetime(2026, 12, 24, 18, tzinfo=UTC)
    given = Message("T", b"x")
    futures = [producer.send_async(given, deliver_at=due) for _ in range(5)]
    assert all(future.result(10) for future in futures)
    producer.send(given, deliver_at=1_798_135_200.25)
    producer.send(given, deliver_at=1_798_135_200.2504)  # not before its time
    producer.send(given, deliver_at=datetime.fromtimestamp(1_798_135_201))
    producer.send(given)
    requests = [request for broker in masters(cluster) for request in broker.calls["Send"]]
    assert [request.count for request in requests] == [1] * 9
    times = [stored.properties.get("TIMER_DELIVER_MS") for stored in cluster.messages("T")]
    assert sorted(map(str, times)) == ["1798135200000"] * 5 + [
        "1798135200250",
        "1798135200251",
        "1798135201000",
        "None",
    ]


@pytest.mark.parametrize(
    ("message", "deliver_at"),
    [
        (Message("T", b"x"), 0),
        (Message("T", b"x"), 1e12),
        (Message("T", b"x"), float("nan")),
        (Message("T", b"x"), "2026-12-24"),
        (Message("T", b"x"), datetime.min),
        (Message("T", b"x", delay_level=1), 1_798_135_200),
    ],
    ids=["zero", "milliseconds", "no number", "text", "out of range", "with a delay level"],
)
def test_delivery_times_that_are_none_are_refused(producer, message, deliver_at):
    with pytest.raises(MessageIllegal, match=r"deliver_at|not both"):
        producer.send(message, deliver_at=deliver_at)


def test_a_message_may_have_its_group_and_time_itself(cluster, producer):
    sends = (producer.send, lambda message, **more: producer.send_async(message, **more).result(10))
    queues = {send(Message("T", b"x", message_group="g")).message_queue for send in sends}
    queues.add(producer.send(Message("T", b"x"), message_group="g").message_queue)
    producer.send_oneway(Message("T", b"x", message_group="g", deliver_at=4e9))
    due = Message("T", b"x", message_group="g", deliver_at=datetime.fromtimestamp(4_000_000_000))
    queues.update(send(due, message_group="g").message_queue for send in sends)
    producer.flush(10)
    assert len(queues) == 1 and due.deliver_ms == 0
    found = [stored.properties for stored in cluster.messages("T")]
    assert {one["__SHARDINGKEY"] for one in found} == {"g"}
    assert [one.get("TIMER_DELIVER_MS") for one in found].count("4000000000000") == 3


@pytest.mark.parametrize(
    ("message", "given", "error", "reason"),
    [
        (
            Message("T", b"x", message_group="a"),
            {"message_group": "b"},
            InvalidParameter,
            "message_group is 'a' in the",
        ),
        (
            Message("T", b"x", deliver_at=4e9),
            {"deliver_at": 5e9},
            InvalidParameter,
            "deliver_at is 4000000000.0 in the",
        ),
        (
            Message("T", b"x", deliver_at=4e9, delay_level=2),
            {},
            MessageIllegal,
            "delay_level=2 and deliver_at=4000000000.0, not both: deliver_at is for a time, delay_level for a delay",
        ),
        (Message("T", b"x", delay_level=-1), {}, MessageIllegal, "delay level -1"),
    ],
)
def test_a_wrong_combination_is_refused_by_its_names(producer, message, given, error, reason):
    for send in (producer.send, producer.send_async):
        with pytest.raises(error, match=reason):
            send(message, **given)


def test_json_arrives_as_it_was_sent(cluster, producer):
    value = {"price": 1.5, "name": "kü", "tags": [None, True, "\u2028"]}
    sent = Message.json("T", value, "tag", ["a", "b"], {"p": "q"}, message_group="g", delay_level=2, deliver_at=None)
    assert sent.body == '{"price":1.5,"name":"kü","tags":[null,true,"\u2028"]}'.encode()
    assert (sent.tags, sent.keys, sent.properties, sent.delay_level) == ("tag", "a b", {"p": "q"}, 2)
    producer.send(Message.json("T", value, message_group="g"))
    producer.send(Message("T", b"{half", message_group="g"))
    with PullConsumer(cluster.address) as consumer:
        (queue,) = [queue for queue in consumer.message_queues("T") if consumer.max_offset(queue)]
        whole, half = consumer.pull(queue, 0).messages
        assert whole.json() == value
        with pytest.raises(ValueError, match=f"the body of message {half.msg_id} of topic 'T' is not JSON"):
            half.json()


@pytest.mark.parametrize("value", [datetime(2026, 1, 1), float("nan"), {1: {2}}, "\ud800"])
def test_a_value_that_is_no_json_is_refused(value):
    with pytest.raises(MessageIllegal, match="topic 'T': the value is not JSON: "):
        Message.json("T", value)


def test_a_delayed_message_stays_where_it_was_sent_to(cluster, producer):
    """Delayed messages are not ordered ones, but the producer gathers them in batches of their own."""
    queue = MessageQueue("T", "broker-a", 2)
    cluster.brokers["broker-a", 0].script["Send"].extend([Break()] * 2)
    assert producer.send(Message("T", b"x", delay_level=3), queue=queue).message_queue == queue
    by_key = producer.send(Message("T", b"x"), message_group="k").message_queue
    cluster.brokers[by_key.broker_name, 0].script["Send"].extend([Break()] * 2)
    assert producer.send(Message("T", b"x", delay_level=3), message_group="k").message_queue == by_key
    lower_queue_count(cluster, 1)
    assert producer.send(Message("T", b"x", delay_level=3), message_group="k").message_queue.queue_id == 0


def test_columns_arrive_row_by_row(cluster, producer):
    count = 5000
    bodies = pa.array([b"%d" % row for row in range(count)])
    tags = pa.array([None if row % 2 else "even" for row in range(count)])
    keys = pa.array([f"k{row}" for row in range(count)])
    maps = pa.array([[("row", str(row))] for row in range(count)], pa.map_(pa.string(), pa.string()))
    results = producer.send_columns("T", bodies, tags=tags, keys=keys, properties=maps)
    stored = {item.message_id: item for item in cluster.messages("T")}
    assert len(results) == len(stored) == count
    for row in range(0, count, 97):
        item = stored[results[row].msg_id]
        assert item.body == b"%d" % row
        assert item.properties == (
            ({} if row % 2 else {"TAGS": "even"})
            | {"KEYS": f"k{row}", "UNIQ_KEY": results[row].msg_id, "row": str(row)}
        )
    assert {(item.queue_id) for item in stored.values()} == {0, 1, 2, 3}


def test_rows_of_a_message_group_keep_their_order_in_one_queue(cluster, producer):
    count = 3000
    bodies = pa.array([b"%d" % row for row in range(count)])
    producer.send_columns("T", bodies, message_groups=pa.array([f"key-{row % 7}" for row in range(count)]))
    by_key: dict[str, list[record.Record]] = {}
    for item in cluster.messages("T"):
        by_key.setdefault(item.properties["__SHARDINGKEY"], []).append(item)
    assert len(by_key) == 7
    for items in by_key.values():
        rows = [int(item.body) for item in items]
        assert rows == sorted(rows)
    same = producer.send(Message("T", b"one"), message_group="key-3").message_queue.queue_id
    assert by_key["key-3"][0].queue_id == same


@pytest.mark.parametrize("absent", [None, ""])
def test_a_row_whose_message_group_is_null_or_empty_goes_as_if_there_were_no_keys(cluster, producer, absent):
    count = 800
    bodies = pa.array([b"%d" % row for row in range(count)])
    none = pa.array([absent] * count, pa.string())
    producer.send_columns("T", bodies, message_groups=none)
    queues = Counter(stored.queue_id for stored in cluster.messages("T"))
    assert queues == dict.fromkeys(range(4), count // 4)
    assert not any("__SHARDINGKEY" in stored.properties for stored in cluster.messages("T"))


def test_a_message_whose_group_is_empty_goes_as_if_it_had_none(cluster, producer):
    results = [producer.send(Message("T", b"%d" % number), message_group="") for number in range(4)]
    assert len({result.message_queue for result in results}) > 1
    assert not any("__SHARDINGKEY" in stored.properties for stored in cluster.messages("T"))


def test_rows_with_and_without_a_message_group_in_one_call(cluster, producer):
    rows = range(800)
    keys = pa.array([f"key-{row % 4}" if row % 2 else None for row in rows])
    results = producer.send_columns("T", pa.array([b"%d" % row for row in rows]), message_groups=keys)
    assert len({result.msg_id for result in results}) == 800
    of_key: dict[str | None, list[record.Record]] = {}
    for stored in cluster.messages("T"):
        of_key.setdefault(stored.properties.get("__SHARDINGKEY"), []).append(stored)
    assert {key: len(found) for key, found in of_key.items()} == {None: 400, "key-1": 200, "key-3": 200}
    for key in ("key-1", "key-3"):
        assert len({stored.queue_id for stored in of_key[key]}) == 1
        assert [int(stored.body) for stored in of_key[key]] == sorted(int(stored.body) for stored in of_key[key])
    assert {stored.queue_id for stored in of_key[None]} == {0, 1, 2, 3}


# --- a route that is older than a lowered queue count -------------------------------------------------------------


def lower_queue_count(cluster, count, *, route_too=True):
    for broker in masters(cluster):
        broker.write_queues = count
    if route_too:
        cluster.write_queues = count


@pytest.mark.parametrize("old_code", [False, True])
def test_a_send_to_a_queue_that_is_gone_is_routed_anew(cluster, producer, old_code):
    producer.send(Message("T", b"x"))
    for broker in masters(cluster):
        broker.old_code = old_code
    lower_queue_count(cluster, 1)
    results = [producer.send(Message("T", b"%d" % number)) for number in range(8)]
    assert {result.message_queue.queue_id for result in results} == {0}
    futures = [producer.send_async(Message("T", b"a%d" % number)) for number in range(100)]
    assert {future.result(10).message_queue.queue_id for future in futures} == {0}
    assert producer.stats.failed == 0


def test_a_route_that_stays_old_for_a_moment_is_waited_for(cluster):
    with Producer(cluster.address, send_msg_timeout_ms=20_000, retry_times_when_send_failed=90) as producer:
        producer.send(Message("T", b"x"))
        lower_queue_count(cluster, 1, route_too=False)
        threading.Timer(0.1, lambda: lower_queue_count(cluster, 1)).start()
        assert {producer.send(Message("T", b"%d" % number)).message_queue.queue_id for number in range(8)} == {0}


def test_columns_and_batches_are_routed_anew(cluster, producer):
    producer.send(Message("T", b"x"))
    lower_queue_count(cluster, 2)
    results = producer.send_columns("T", pa.array([b"%d" % row for row in range(500)]))
    assert {result.message_queue.queue_id for result in results} == {0, 1}
    for _ in range(4):
        with Producer(cluster.address, max_message_size=1000) as small:
            cluster.write_queues = 4
            small.send(Message("T", b"x", tags="first"), queue=MessageQueue("T", "broker-a", 0))
            cluster.write_queues = 2
            results = small.send_batch([Message("T", b"y" * 300) for _ in range(10)])
            assert len({result.message_queue for result in results}) == 1
            assert len({result.msg_id for result in results}) == 10


@pytest.mark.parametrize("old_code", [False, True])
def test_keys_find_their_new_queue_and_keep_their_order(cluster, producer, old_code):
    keys = [f"key-{row % 9}" for row in range(900)]
    producer.send(Message("T", b"x"))
    for broker in masters(cluster):
        broker.old_code = old_code
    lower_queue_count(cluster, 1)
    results = producer.send_columns("T", pa.array([b"%d" % row for row in range(900)]), message_groups=pa.array(keys))
    assert len({result.msg_id for result in results}) == 900
    by_id = {stored.message_id: stored for stored in cluster.messages("T")}
    for result in results:  # joined results name the broker and the place of each row
        stored = by_id[result.msg_id]
        assert (result.message_queue.queue_id, result.queue_offset) == (stored.queue_id, stored.queue_offset)
        assert result.offset_msg_id == record.offset_message_id(stored.store_host, stored.commit_log_offset)
    names = {}
    for result in results:
        names.setdefault(by_id[result.msg_id].properties["__SHARDINGKEY"], set()).add(result.message_queue)
    again = {key: producer.send(Message("T", b"z"), message_group=key).message_queue for key in set(keys)}
    assert names == {key: {queue} for key, queue in again.items()}
    for key in set(keys):
        rows = [int(stored.body) for stored in cluster.messages("T") if keys_of(stored) == key and stored.body != b"z"]
        assert rows == sorted(rows) and len(rows) == 100
    assert producer.stats.failed == 0


@pytest.mark.parametrize("old_code", [False, True])
def test_of_two_batches_by_an_old_route_the_second_waits_for_the_route_that_the_first_asks_for(
    cluster, monkeypatch, old_code
):
    """The first batch's request for a route is held until the second batch waits for that route, or has failed three
    times without it.
    """
    with Producer(cluster.address, linger_ms=1, retry_times_when_send_failed=0) as producer:
        producer.send(Message("T", b"x"))
        for broker in masters(cluster):
            broker.old_code = old_code
        lower_queue_count(cluster, 1)
        directory, second_is_there, refusals = producer.cluster, threading.Event(), Counter()
        ask, send = directory.transport.routes.topic_route, directory.transport.sends.send
        refresh, waiting = directory.refresh_within, deque[str]()

        def held(topic, timeout_s):
            assert second_is_there.wait(60)
            return ask(topic, timeout_s)

        def watched_refresh(wait_s, topic, **kwargs):
            waiting.append(topic)
            if len(waiting) == 2:
                second_is_there.set()
            return refresh(wait_s, topic, **kwargs)

        def watched(address, outgoing, call, timeout_s):
            try:
                return send(address, outgoing, call, timeout_s)
            except RocketSimError:
                refusals[call.broker_name] += 1
                if refusals[call.broker_name] == 3:
                    second_is_there.set()
                raise

        monkeypatch.setattr(directory.transport.routes, "topic_route", held)
        monkeypatch.setattr(directory.transport.sends, "send", watched)
        monkeypatch.setattr(directory, "refresh_within", watched_refresh)
        keys = pa.array([f"key-{row % 9}" for row in range(90)])
        results = producer.send_columns("T", pa.array([b"%d" % row for row in range(90)]), message_groups=keys)
        assert {result.message_queue.queue_id for result in results} == {0}
        assert producer.stats.failed == 0


def keys_of(stored):
    return stored.properties.get("__SHARDINGKEY")


def test_messages_by_key_are_routed_anew_too_and_pinned_ones_fail_alone(cluster):
    with Producer(cluster.address, linger_ms=50) as producer:
        producer.send(Message("T", b"x"))
        gone, there = MessageQueue("T", "broker-a", 3), MessageQueue("T", "broker-a", 0)
        lower_queue_count(cluster, 1)
        by_key = [producer.send_async(Message("T", b"%d" % n), message_group=f"key-{n % 5}") for n in range(50)]
        pinned = [producer.send_async(Message("T", b"p"), queue=queue) for queue in (gone, there)]
        assert {future.result(10).message_queue.queue_id for future in by_key} == {0}
        assert pinned[1].result(10).message_queue == there
        with pytest.raises(QueueNotExist, match=r"topic 'T' has 1 queues .* queue 3"):
            pinned[0].result(10)
        stats = producer.stats
        assert (stats.sent, stats.acknowledged, stats.failed) == (53, 52, 1)


def test_an_own_queue_that_is_gone_is_an_error_with_topic_and_count(cluster, producer):
    producer.send(Message("T", b"x"))
    lower_queue_count(cluster, 2)
    with pytest.raises(QueueNotExist, match=r"topic 'T' has 2 queues to write to at broker 'broker-b'.* queue 2"):
        producer.send(Message("T", b"x"), queue=MessageQueue("T", "broker-b", 2))
    for message_groups in (None, pa.array(["a", "b", None])):
        with pytest.raises(SendFailed, match="topic 'T' has 2 queues"):
            producer.send_columns(
                "T", pa.array([b"y"] * 3), message_groups=message_groups, queue=MessageQueue("T", "broker-b", 3)
            )
    assert [stored.body for stored in cluster.messages("T")] == [b"x"]


def test_columns_with_message_groups_and_an_own_queue_go_there_in_their_order(cluster, producer):
    queue = MessageQueue("T", "broker-b", 3)
    keys = pa.array([["a", "b", None][row % 3] for row in range(90)])
    producer.send_columns("T", pa.array([b"%d" % row for row in range(90)]), message_groups=keys, queue=queue)
    stored = cluster.messages("T")
    assert {one.queue_id for one in stored} == {3}
    assert [int(one.body) for one in stored] == list(range(90))
    assert [keys_of(one) for one in stored] == keys.to_pylist()


# --- errors that nobody thought of --------------------------------------------------------------------------------


def test_an_unexpected_error_reaches_its_caller_and_ends_no_sender(cluster, producer, monkeypatch):
    """The test does this for each sender thread, and for each way to send."""

    def broken(*args, **kwargs):
        raise ZeroDivisionError("a bug")

    sends = producer.cluster.transport.sends
    with monkeypatch.context() as patch:
        patch.setattr(sends, "send", broken)
        for number in range(40):
            with pytest.raises(ZeroDivisionError):
                producer.send_async(Message("T", b"%d" % number)).result(10)
            with pytest.raises(ZeroDivisionError):
                producer.send(Message("T", b"%d" % number), message_group="k")
            with pytest.raises(SendFailed, match="a bug"):
                producer.send_columns("T", pa.array([b"x"]), timeout_s=10)
    assert producer.send_async(Message("T", b"good")).result(10).send_status == SendStatus.SEND_OK
    assert len(producer.send_columns("T", pa.array([b"x"] * 3), timeout_s=10)) == 3
    producer.flush(10)
    assert producer.stats.failed == 120


def test_an_answer_that_cannot_be_made_into_results_reaches_all_callers(cluster, monkeypatch):
    """The error comes after the acknowledgement, when some callers have their results already."""
    with Producer(cluster.address, linger_ms=20) as producer:
        with monkeypatch.context() as patch:
            patch.setattr(sender, "results", lambda part, entries: iter([object()]))
            futures = [producer.send_async(Message("T", b"%d" % number)) for number in range(10)]
            assert all(isinstance(future.exception(10), ValueError) or future.result(0) for future in futures)
        assert producer.send_async(Message("T", b"good")).result(10).send_status == SendStatus.SEND_OK


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"bodies": pa.array([b"x", b""])}, "row 1: the body is empty"),
        ({"bodies": pa.array([b"x", None], pa.binary())}, "null"),
        ({"bodies": pa.array([b"x"]), "tags": pa.array(["a\x01"])}, "TAGS"),
        ({"bodies": pa.array([b"x" * 5_000_000])}, "5000000 bytes"),
    ],
)
def test_illegal_columns_are_refused_before_anything_is_sent(cluster, producer, columns, reason):
    with pytest.raises(MessageIllegal, match=reason):
        producer.send_columns("T", **columns)
    assert cluster.messages("T") == []


def test_closing_sends_what_was_accepted(cluster):
    producer = Producer(cluster.address, linger_ms=60_000)
    futures = [producer.send_async(Message("T", b"x")) for _ in range(100)]
    for _ in range(10):
        producer.send_oneway(Message("T", b"y"))
    producer.close()
    assert all(future.done() and future.result() for future in futures)
    assert len(cluster.messages("T")) == 110
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send(Message("T", b"x"))


def test_a_full_buffer_slows_the_sender_down_and_is_never_exceeded(cluster):
    gate = threading.Event()
    for broker in masters(cluster):
        broker.before_send = lambda: gate.wait(20)
    with Producer(cluster.address, linger_ms=0, buffer_bytes=20_000, send_msg_timeout_ms=10_000) as producer:
        accepted = []

        def send_many():
            for _ in range(100):
                accepted.append(producer.send_async(Message("T", b"x" * 1000)))

        sender = threading.Thread(target=send_many)
        sender.start()
        sender.join(0.5)
        assert sender.is_alive() and len(accepted) < 20
        gate.set()
        sender.join(20)
        assert all(future.result(10) for future in accepted) and len(accepted) == 100


def test_a_full_buffer_that_stays_full_is_an_error_not_a_hang(cluster):
    for broker in masters(cluster):
        broker.script["Send"].extend([Hang()] * 9)
    with Producer(cluster.address, linger_ms=0, buffer_bytes=2000, send_msg_timeout_ms=200) as producer:
        with pytest.raises(SendFailed, match="no space in buffer_bytes"):
            for _ in range(9):
                producer.send_async(Message("T", b"x" * 1000))


def test_concurrent_blocking_sends_share_frames(cluster, producer):
    def send_some():
        for _ in range(25):
            producer.send(Message("T", b"x"))

    threads = [threading.Thread(target=send_some) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cluster.messages("T")) == 400
    assert sum(len(broker.calls["Send"]) for broker in masters(cluster)) < 400


@pytest.mark.parametrize(
    "answer",
    [
        pb.SendResponse(),
        pb.SendResponse(queues=[{"queue_id": 0, "count": 2}], runs=[{"count": 2}]),
        pb.SendResponse(queues=[{"queue_id": 0, "count": 1}], runs=[{"count": 2}]),
    ],
    ids=["empty", "two", "do not agree"],
)
def test_an_acknowledgement_that_cannot_be_true_is_an_error(cluster, producer, answer):
    for broker in masters(cluster):
        broker.script["Send"].extend([Answer(answer)] * 9)
    with pytest.raises(RocketSimError) as failed:
        producer.send(Message("T", b"x"))
    assert isinstance(failed.value, BadAnswer) or isinstance(failed.value.__cause__, BadAnswer)


def test_a_cancelled_future_does_not_disturb_its_neighbours(cluster):
    with Producer(cluster.address, linger_ms=50) as producer:
        futures = [producer.send_async(Message("T", b"x")) for _ in range(10)]
        assert futures[3].cancel()
    assert sum(not future.cancelled() and bool(future.result()) for future in futures) == 9


def test_two_name_servers_of_which_one_is_dead_are_as_good_as_one(cluster):
    with FakeCluster() as other:
        dead = other.address
    for servers in (f"{dead};{cluster.address}", f"{cluster.address};{dead}"):
        with Producer(servers) as producer:
            assert producer.send(Message("T", b"x"))


def test_a_name_server_that_does_not_answer_is_named(cluster):
    with FakeCluster() as other:
        dead = other.address
    with Producer(dead) as producer, pytest.raises(RocketSimError, match=f"no name server answered \\({dead}\\)"):
        producer.send(Message("T", b"x"))


def test_a_message_group_may_be_given_by_its_older_names(cluster):
    with Producer(cluster.address) as older:
        queue = older.send(Message("T", b"x"), key="g").message_queue
        rows = older.send_columns("T", pa.array([b"y"]), sharding_keys=pa.array(["g"]))
    with Producer(cluster.address) as newer:
        assert newer.send(Message("T", b"x"), message_group="g").message_queue == queue == rows[0].message_queue
        with pytest.raises(InvalidParameter, match="given twice"):
            newer.send(Message("T", b"x"), message_group="g", key="g")


@pytest.mark.parametrize(
    "given", [{"timeout_s": 0.25}, {"send_msg_timeout_ms": 250}, {"timeout_s": 0.25, "send_msg_timeout_ms": 9000}]
)
def test_a_timeout_in_seconds_or_by_its_older_name(cluster, given):
    for broker in cluster.brokers.values():
        broker.script["Send"].extend([Hang()] * 2)
    with Producer(cluster.address, **given) as producer, pytest.raises(SendFailed, match=r"within 0\.2\d* s"):
        producer.send(Message("T", b"x"))
