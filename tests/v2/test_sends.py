"""SendMessage: which messages are stored, which are refused with which code, and which consumers read them."""

import asyncio
import gzip
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s
from rocketsim_proto import broker_pb2
from rocketsim_proto.records import record

from broker_service.broker.metadata.topics import TopicConfig
from broker_service.modes import BrokerRole
from broker_service.put_result import PutStatus
from broker_service.wire.v2.message_rules import (
    MAX_CLIENTS_DELAY_MS,
    MAX_ORIGIN_BYTES,
    MAX_PROPERTIES_BYTES,
    RESERVED_PROPERTIES,
)
from broker_service.wire.v2.recent_sends import REMEMBERED_S
from broker_service.wire.v2.sends import SendPath
from rocketsim_client import PullConsumer
from testbed.polling import PATIENCE_S
from tests.support.brokers import goes_by, put, stub_of
from tests.support.v2 import client_of, message, v2_broker
from tests.v2.test_receiving import received


async def stored(node: Any, topic: str) -> list[record.Record]:
    """Returns all records of a topic, queue by queue."""
    found = []
    async with stub_of(node) as stub:
        for queue_id in range(node.topics.entries[topic].read_queue_nums):
            request = broker_pb2.PullRequest(consumer_group="g", topic=topic, queue_id=queue_id, max_msg_nums=32)
            data, at = (await stub.Pull(request, timeout=60)).records, 0
            while at < len(data):
                found.append(record.decode(data, at))
                at += record.locate(data, at).size
    return found


async def test_a_message_is_stored_with_the_properties_that_rocketmqs_proxy_writes(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        sent = await client.send(
            message(
                user={"a": "1", "b": "zwei"},
                tag="TagA",
                keys=["k1", "k2"],
                born_timestamp=Timestamp(seconds=1_700_000_000, nanos=5_000_000),
                born_host="host-7",
                trace_context="00-4bf9-01",
                queue_id=99,
                message_id="01ABCDEF",
            )
        )
        (entry,) = sent.entries
        assert (sent.status.code, sent.status.message, entry.status.code) == (d.OK, "OK", d.OK)
        assert (entry.message_id, entry.transaction_id, entry.offset) == ("01ABCDEF", "01ABCDEF", 0)
        (found,) = await stored(node, "T")
    assert found.properties == {
        "a": "1",
        "b": "zwei",
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "UNIQ_KEY": "01ABCDEF",
        "RECONSUME_TIME": "0",
        "PGROUP": "T",
        "TRACE_CONTEXT": "00-4bf9-01",
        "__BORNHOST": "host-7",
        "BORN_TIMESTAMP": "1700000000005",
    }
    assert (found.topic, found.body, found.born_timestamp) == ("T", b"hello", 1_700_000_000_005)
    assert record.decode_host(found.born_host)[0] == "127.0.0.1"
    assert (found.message_id, found.reconsume_times) == ("01ABCDEF", 0)


async def test_our_own_client_reads_it_by_tag(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        await client.send(message(tag="A", keys=["k"], user={"colour": "red"}))
        await client.send(message(tag="B", message_id="2"))

        def read() -> list[Any]:
            with PullConsumer(group="g", brokers={"broker-a": {0: node.address}}) as consumer:
                queues = consumer.message_queues("T")
                return [found for queue in queues for found in consumer.pull(queue, 0, expression="A").messages]

        (found,) = await asyncio.to_thread(read)
    assert (found.body, found.tags, found.keys, found.properties["colour"]) == (b"hello", "A", "k", "red")


async def test_what_is_left_out_is_the_callers_address_and_the_time_of_now(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        before = node.broker.now_ms()
        await client.send(message(born_timestamp=Timestamp(seconds=-5), born_host=" "))
        (found,) = await stored(node, "T")
        assert found.properties["__BORNHOST"] == "127.0.0.1"
        assert before <= found.born_timestamp <= node.broker.now_ms()


async def test_messages_sent_together_get_an_entry_each_and_consecutive_offsets(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        for first in (0, 0, 0, 0, 2):  # the sends go to the four queues in turn
            messages = message(body=b"a"), message(body=b"b")
            ids = [one.system_properties.message_id for one in messages]
            sent = await client.send(*messages)
            assert [(entry.message_id, entry.offset) for entry in sent.entries] == [
                (ids[0], first),
                (ids[1], first + 1),
            ]


async def test_a_message_group_stays_in_its_queue_whatever_queue_the_client_names(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        for number in range(12):
            await client.send(
                message("F", str(number).encode(), message_group=f"g{number % 3}", message_type=d.FIFO, queue_id=number)
            )
        queues: dict[str, set[int]] = {}
        for found in await stored(node, "F"):
            queues.setdefault(found.properties["__SHARDINGKEY"], set()).add(found.queue_id)
    assert sorted(queues) == ["g0", "g1", "g2"]
    assert {len(used) for used in queues.values()} == {1}


async def test_a_gzip_body_is_kept_and_unpacked_by_our_readers(tmp_path: Path) -> None:
    packed = gzip.compress(b"hello")
    async with v2_broker(tmp_path) as (node, client):
        await client.send(message(body=packed, body_encoding=d.GZIP))
        (found,) = await stored(node, "T")
        assert (found.body, found.sys_flag & record.SYS_FLAG_COMPRESSED) == (packed, record.SYS_FLAG_COMPRESSED)

        def read() -> list[bytes]:
            with PullConsumer(group="g", brokers={"broker-a": {0: node.address}}) as consumer:
                return [
                    found.body for queue in consumer.message_queues("T") for found in consumer.pull(queue, 0).messages
                ]

        assert await asyncio.to_thread(read) == [b"hello"]


NOW = Timestamp(seconds=1)
REFUSED = [
    (message(""), d.ILLEGAL_TOPIC, "topic is missing"),
    (message("a b"), d.ILLEGAL_TOPIC, "a b"),
    (message("t" * 128), d.ILLEGAL_TOPIC, "128 characters"),
    (message("TBW102"), d.ILLEGAL_TOPIC, "cannot access system topic"),
    (message("rmq_sys_x"), d.ILLEGAL_TOPIC, "cannot access system topic"),
    (message("none"), d.TOPIC_NOT_FOUND, "CODE: 17  DESC: No topic route info in name server for the topic: none"),
    (message(body=b""), d.MESSAGE_BODY_EMPTY, "empty"),
    (message(body=bytes((4 << 20) + 1)), d.MESSAGE_BODY_TOO_LARGE, "message body cannot exceed the max 4194304"),
    (message(message_id=""), d.ILLEGAL_MESSAGE_ID, "message id"),
    (message(message_id="a\x01b"), d.ILLEGAL_MESSAGE_ID, "control character"),
    (message(tag=" "), d.ILLEGAL_MESSAGE_TAG, "whitespace"),
    (message(tag="a|b"), d.ILLEGAL_MESSAGE_TAG, "|"),
    (message(tag="a\x02"), d.ILLEGAL_MESSAGE_TAG, "control character"),
    (message(keys=["ok", " "]), d.ILLEGAL_MESSAGE_KEY, "whitespace"),
    (message(keys=["a\x7f"]), d.ILLEGAL_MESSAGE_KEY, "control character"),
    (message(user={str(n): "1" for n in range(129)}), d.MESSAGE_PROPERTIES_TOO_LARGE, "max is 128"),
    (message(trace_context="t" * MAX_ORIGIN_BYTES, born_host="h"), d.MESSAGE_PROPERTIES_TOO_LARGE, "max is 8192"),
    (message(trace_context="t\n"), d.BAD_REQUEST, "control character"),
    (message(born_host="h\x01"), d.BAD_REQUEST, "control character"),
    (message(user={"a": "x" * MAX_PROPERTIES_BYTES}), d.MESSAGE_PROPERTIES_TOO_LARGE, "max is 16384"),
    (message(tag="x" * MAX_PROPERTIES_BYTES, keys=["k"]), d.MESSAGE_PROPERTIES_TOO_LARGE, "max is 16384"),
    (message(user={"a\n": "1"}), d.ILLEGAL_MESSAGE_PROPERTY_KEY, "control character"),
    (message(user={"a": "1\x00"}), d.ILLEGAL_MESSAGE_PROPERTY_KEY, "control character"),
    (message(user={"": "1"}), d.ILLEGAL_MESSAGE_PROPERTY_KEY, "its name is empty"),
    (message(user={"a": "1", "b": ""}), d.ILLEGAL_MESSAGE_PROPERTY_KEY, "property 'b': its value is empty"),
    (message("X", user={"b": ""}, message_type=d.TRANSACTION), d.ILLEGAL_MESSAGE_PROPERTY_KEY, "value is empty"),
    (message(user={"KEYS": "1"}), d.ILLEGAL_MESSAGE_PROPERTY_KEY, "property is used by system: KEYS"),
    *(
        (message(user={name: "1"}), d.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        for name in ("__DELAY_LEVEL", "__DELAY_OFFSET", "__SOURCE", "__CHECK", "__TIMER_SOURCE")  # a consumer sees none
    ),
    (message("F", message_group=" "), d.ILLEGAL_MESSAGE_GROUP, "whitespace"),
    (message("F", message_group="g" * 64), d.ILLEGAL_MESSAGE_GROUP, "63"),
    (message("F", message_group="ü" * 32), d.ILLEGAL_MESSAGE_GROUP, "63 bytes"),
    (message("F", message_group="g\t"), d.ILLEGAL_MESSAGE_GROUP, "control character"),
    (message("D", delivery_timestamp=Timestamp(seconds=1 << 33)), d.ILLEGAL_DELIVERY_TIME, str(MAX_CLIENTS_DELAY_MS)),
    (message("D", delivery_timestamp=Timestamp(seconds=1 << 60)), d.ILLEGAL_DELIVERY_TIME, "1970 to 9999"),
    (message("D", delivery_timestamp=Timestamp(seconds=-1)), d.ILLEGAL_DELIVERY_TIME, "1970 to 9999"),
    (message("X", orphaned_transaction_recovery_duration=Duration(seconds=3601)), d.BAD_REQUEST, "3600"),
    (message("M", priority=-1), d.BAD_REQUEST, "priority -1"),
    (message(message_group="g"), d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "is NORMAL, but actual type is FIFO"),
    (message("F"), d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "the expected type is FIFO, but actual type is NORMAL"),
    (message("D"), d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "the expected type is DELAY, but actual type is NORMAL"),
    (
        message("D", delivery_timestamp=NOW, message_type=d.TRANSACTION),
        d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        "TRANSACTION",
    ),
    (message("F", delivery_timestamp=NOW, message_group="g"), d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "type is DELAY"),
    (message(priority=1), d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "actual type is PRIORITY"),
    (message(lite_topic="l"), d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "actual type is LITE"),
    (message("M", priority=1), d.UNSUPPORTED, "priority"),
    (message("M", lite_topic="l"), d.UNSUPPORTED, "lite topics"),
]


async def test_what_is_refused_with_which_code(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        for refused, code, text in REFUSED:
            sent = await client.send(refused)
            assert (d.Code.Name(sent.status.code), list(sent.entries)) == (d.Code.Name(code), []), text
            assert text in sent.status.message and d.Code.Name(code) in sent.status.message
        assert node.store.end_offset == 0
        assert "none" not in node.topics.entries  # autoCreateTopicEnable creates topics only for our own clients


async def test_an_empty_key_is_none(tmp_path: Path) -> None:
    """An empty key is dropped, as by RocketMQ's proxy.  Some clients let their users set an empty key."""
    async with v2_broker(tmp_path) as (node, client):
        for keys in ([""], ["a", "", "b"]):
            assert (await client.send(message(keys=keys))).status.code == d.OK
        found = [one.properties.get("KEYS") for one in await stored(node, "T")]
        assert found == [None, "a b"]


async def test_no_message_and_two_topics_are_refused(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        assert (await client.send()).status.code == d.MESSAGE_CORRUPTED
        assert (await client.send(message("T"), message("M"))).status.code == d.MESSAGE_CORRUPTED


async def test_a_day_is_the_longest_delay(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        assert (await client.send(message("D", delivery_timestamp=NOW))).status.code == d.OK
        now_s = node.machine.now_ms() // 1000
        too_late = Timestamp(seconds=now_s + MAX_CLIENTS_DELAY_MS // 1000 + 60)
        assert (await client.send(message("D", delivery_timestamp=too_late))).status.code == d.ILLEGAL_DELIVERY_TIME
        in_a_day = Timestamp(seconds=now_s + MAX_CLIENTS_DELAY_MS // 1000)
        assert (await client.send(message("D", delivery_timestamp=in_a_day))).status.code == d.OK


async def test_the_largest_that_is_allowed_is_stored(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, mapped_file_size_commit_log=8 << 20) as (_, client):
        origin = {"born_host": "host", "trace_context": "t" * (MAX_ORIGIN_BYTES - 4)}
        largest = message(body=bytes(4 << 20), user={"a": "x" * (MAX_PROPERTIES_BYTES - 1)}, **origin)
        assert (await client.send(largest)).status.code == d.OK
        assert (await client.send(message(user={str(number): "1" for number in range(128)}))).status.code == d.OK


async def test_a_mixed_topic_takes_normal_and_ordered_messages(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        assert (await client.send(message("M"))).status.code == d.OK
        assert (await client.send(message("M", message_group="g" * 63, message_type=d.FIFO))).status.code == d.OK


async def test_the_fields_of_a_message_say_its_type_and_a_priority_beside_others_is_dropped(tmp_path: Path) -> None:
    """As in RocketMQ, a delivery time comes before a message group, and a message group before a priority."""
    async with v2_broker(tmp_path) as (_, client):
        for one in (
            message("F", message_group="g", priority=3),  # its type says NORMAL
            message("D", message_group="g", priority=3, delivery_timestamp=NOW, message_type=d.FIFO),
        ):
            assert (await client.send(one)).status.code == d.OK
        for topic, message_type in (("F", d.FIFO), ("D", d.DELAY)):
            (found,) = await received(client, topic=topic, long_polling_timeout=Duration(seconds=20))
            system = found.system_properties
            assert (system.message_type, system.message_group) == (message_type, "g")
            assert not system.HasField("priority")


async def test_an_id_stays_as_it_is_and_an_attempt_that_a_producer_names_counts_nothing(tmp_path: Path) -> None:
    """Ids of the Rust client differ by capital and small letters."""
    async with v2_broker(tmp_path) as (_, client):
        sent = [await client.send(message(message_id=name, delivery_attempt=5)) for name in ("01aBcD", "01AbCd")]
        assert [one.entries[0].message_id for one in sent] == ["01aBcD", "01AbCd"]
        found = await received(client)
        assert sorted(one.system_properties.message_id for one in found) == ["01AbCd", "01aBcD"]
        assert {one.system_properties.delivery_attempt for one in found} == {1}
        assert not any(one.user_properties for one in found)


async def test_properties_that_rocketmq_does_not_reserve_are_the_users(tmp_path: Path) -> None:
    users = dict.fromkeys(
        "__transactionId__ TRACE_CONTEXT TRANSACTION_CHECK_TIMES CHECK_IMMUNITY_TIME_IN_SECONDS INNER_NUM".split(), "x"
    )
    async with v2_broker(tmp_path) as (_, client):
        assert (await client.send(message(user=users))).status.code == d.OK
        (found,) = await received(client)
        assert dict(found.user_properties) == users


async def test_a_message_that_no_slave_has_is_stored_and_says_so(tmp_path: Path) -> None:
    """The answer has no message ids, as RocketMQ's has none.  The clients send the message again under the same id."""
    keys = {"broker_role": BrokerRole.SYNC_MASTER, "slave_wait_time_ms": 0}
    async with v2_broker(tmp_path, **keys) as (node, client):
        sent = await client.send(message())
        assert (sent.status.code, sent.status.message) == (
            d.HA_NOT_AVAILABLE,
            "HA_NOT_AVAILABLE: send message failed, sendStatus=SLAVE_NOT_AVAILABLE",
        )
        assert [(entry.status.code, entry.message_id) for entry in sent.entries] == [(d.HA_NOT_AVAILABLE, "")]
        assert len(await stored(node, "T")) == 1


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (PutStatus.FLUSH_DISK_TIMEOUT, d.MASTER_PERSISTENCE_TIMEOUT),
        (PutStatus.FLUSH_SLAVE_TIMEOUT, d.SLAVE_PERSISTENCE_TIMEOUT),
    ],
)
async def test_a_message_that_is_not_safe_in_time_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: PutStatus, code: d.Code
) -> None:
    """The first send and every repeated send are answered with the time-out until the message is safe."""

    async def wait(end_offset: int, timeout_s: float) -> PutStatus:
        return outcome

    async with v2_broker(tmp_path) as (node, client):
        monkeypatch.setattr(node.broker.acknowledgements, "wait", wait)
        again = message()
        for _ in range(2):
            sent = await client.send(again)
            (entry,) = sent.entries
            assert (sent.status.code, entry.status.code, entry.message_id) == (code, code, "")
            assert f"sendStatus={outcome.name}" in sent.status.message
        monkeypatch.undo()
        assert (await client.send(again)).entries[0].offset == 0
        assert len(await stored(node, "T")) == 1


async def test_a_message_that_is_sent_again_is_stored_once(tmp_path: Path) -> None:
    """When no slave has a message, clients get an error and send the message again."""
    keys = {"broker_role": BrokerRole.SYNC_MASTER, "slave_wait_time_ms": 0}
    async with v2_broker(tmp_path, **keys) as (node, client):
        again = message(body=b"once")
        for _ in range(3):
            assert (await client.send(again)).status.code == d.HA_NOT_AVAILABLE
        node.broker.become(replace(node.broker.config, broker_role=BrokerRole.ASYNC_MASTER))
        sent = await client.send(again)
        assert (sent.status.code, sent.entries[0].offset) == (d.OK, 0)
        assert sent.entries[0].message_id == again.system_properties.message_id
        # A batch counts as sent before only if all its messages were sent before.
        both = await client.send(message(), again)
        assert both.status.code == d.OK
        assert len(await stored(node, "T")) == 3


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_message_that_is_sent_again_while_the_first_call_is_under_way_is_stored_once(
    tmp_path: Path, leaves: bool
) -> None:
    """A broker that was held up gets both calls at once, after the deadline may have ended the first one."""
    again = s.SendMessageRequest(messages=[message(body=b"once")])
    async with v2_broker(tmp_path) as (node, _):
        sends = SendPath(node.broker, node.puts, node.consumption.transactions)
        call = partial(sends.send, again.messages, ("127.0.0.1", bytes(8)), 60.0, "client-1")
        other = partial(sends.send, [message()], ("127.0.0.1", bytes(8)), 60.0, "client-2")
        calls = [asyncio.create_task(one()) for one in (other, call, call, call)]
        await asyncio.sleep(0)
        if leaves:
            calls.pop(1).cancel()
        answers = await asyncio.gather(*calls)
        assert {one.status.code for one in answers} == {d.OK}
        assert len({one.entries[0].offset for one in answers[1:]}) == 1
        assert sum(one.body == b"once" for one in await stored(node, "T")) == 1
        again_later = await asyncio.wait_for(call(), PATIENCE_S)  # it does not wait for a call that is over
        assert again_later.entries[0].offset == answers[-1].entries[0].offset


async def test_a_send_that_is_refused_leaves_its_id_free(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        node.topics.update(TopicConfig("R", 4, 4, perm=4), 0)
        again = message("R")
        assert (await client.send(again)).status.code == d.FORBIDDEN
        node.topics.update(TopicConfig("R", 4, 4, perm=6), 0)
        assert (await client.send(again)).status.code == d.OK
        assert len(await stored(node, "R")) == 1


async def test_messages_of_one_call_are_all_stored_whatever_their_ids(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        for _ in range(2):
            both = await client.send(message(message_id="same"), message(message_id="same"))
            assert both.status.code == d.OK
        assert len(await stored(node, "T")) == 4


async def test_a_message_that_was_stored_before_a_restart_is_not_stored_again(tmp_path: Path) -> None:
    """The broker answers OK only when the log is safe up to the end of that message."""
    again = message()
    async with v2_broker(tmp_path) as (node, client):
        first, end = await client.send(again), node.store.end_offset
    waited_for: list[int] = []
    async with v2_broker(tmp_path) as (node, client):
        wait = node.broker.acknowledgements.wait

        async def noted(end_offset: int, timeout_s: float) -> PutStatus:
            waited_for.append(end_offset)
            return await wait(end_offset, timeout_s)

        node.broker.acknowledgements.wait = noted
        assert (await client.send(again)).entries == first.entries
        assert waited_for == [end]
        assert (await client.send(message(keys=[again.system_properties.message_id]))).status.code == d.OK
        assert len(await stored(node, "T")) == 2


async def test_a_port_that_opens_again_knows_only_the_messages_that_the_log_has_by_then(tmp_path: Path) -> None:
    """While the port is closed, another master may store messages, and replication may cut messages from this broker's
    log.
    """
    lost, from_another_master = message(), message()
    async with v2_broker(tmp_path) as (node, client):
        end = node.store.end_offset
        await client.send(lost)
        await node.v2_port.close(0)
        node.store.truncate(end, None)
        await put(node, "T", from_another_master.body, UNIQ_KEY=from_another_master.system_properties.message_id)
        node.broker.members_changed.notify()
        async with client_of(node) as again:
            for one in (from_another_master, lost):
                assert (await again.send(one)).status.code == d.OK
        assert sorted(one.message_id for one in await stored(node, "T")) == sorted(
            one.system_properties.message_id for one in (from_another_master, lost)
        )


async def test_a_message_that_was_stored_long_before_a_restart_is_stored_again(tmp_path: Path) -> None:
    """Clients repeat a send only within a minute, so the broker forgets older sends, with or without a restart."""
    again = message()
    async with v2_broker(tmp_path) as (_, client):
        await client.send(again)
    async with v2_broker(tmp_path) as (node, client):
        now_ms = node.broker.now_ms() + int(1000 * REMEMBERED_S) + 60_000
        goes_by(node.broker, lambda: now_ms)
        assert (await client.send(again)).status.code == d.OK
        assert len(await stored(node, "T")) == 2


async def test_sends_after_a_restart_do_not_bring_the_index_up_to_date_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = message()
    async with v2_broker(tmp_path) as (_, client):
        await client.send(before)
    async with v2_broker(tmp_path) as (node, client):
        monkeypatch.setattr(node.store, "tick", lambda now_ms: None)  # the tick would build the index, too
        behind = node.store.index.behind
        end = node.store.end_offset
        assert (await client.send(message())).status.code == d.OK
        assert (await client.send(before)).status.code == d.OK
        assert node.store.index.behind == behind + node.store.end_offset - end
        assert len(await stored(node, "T")) == 2


async def test_the_same_id_in_another_topic_is_another_message(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        for topic in ("T", "M"):
            assert (await client.send(message(topic, message_id="same"))).status.code == d.OK
            assert len(await stored(node, topic)) == 1


async def test_another_message_under_the_same_id_is_stored_too(tmp_path: Path) -> None:
    """Ids can be guessed, so nobody may use an id to make the broker answer another client's message without storing
    it.
    """
    first, second = message(message_id="same", body=b"a"), message(message_id="same", body=b"b")
    async with v2_broker(tmp_path) as (node, client):
        sent = [(await client.send(one)).entries[0].offset for one in (first, second, second, first)]
        assert sent == [0, 0, 0, 0] and len(await stored(node, "T")) == 2
    async with v2_broker(tmp_path) as (node, client):
        assert (await client.send(message(message_id="same", body=b"c"))).status.code == d.OK
        assert len(await stored(node, "T")) == 3


async def test_a_topic_that_may_only_be_read_is_forbidden(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        node.topics.update(TopicConfig("R", 4, 4, perm=4), 0)
        assert (await client.send(message("R"))).status.code == d.FORBIDDEN


async def test_a_caller_without_a_client_id_is_refused(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        sent = await client.calls.SendMessage(s.SendMessageRequest(messages=[message()]), timeout=60)
        assert sent.status.code == d.CLIENT_ID_REQUIRED and "client id cannot be empty" in sent.status.message


def test_the_reserved_names_are_those_of_rocketmq() -> None:
    assert len(RESERVED_PROPERTIES) == 54
    assert not RESERVED_PROPERTIES & {"__SHARDINGKEY", "__transactionId__", "TRACE_CONTEXT"}


async def test_properties_without_room_in_a_record_are_refused(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (_, client):
        for system in ({"trace_context": "t" * 40_000}, {"born_host": "h" * 40_000}):
            assert (await client.send(message(**system))).status.code == d.MESSAGE_PROPERTIES_TOO_LARGE
        # A record has no room for the separators of so many keys.
        assert (await client.send(message(keys=["k"] * 16_384))).status.code == d.BAD_REQUEST
