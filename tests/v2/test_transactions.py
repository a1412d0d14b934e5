"""Transactions of RocketMQ 5's clients: half messages, commit, rollback, the broker's questions, and crashes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record
from rocketsim_proto.reserved import DISCARDED_TOPIC, HALF_TOPIC, OP_TOPIC

from broker_service.broker.metadata.topics import TopicConfig
from broker_service.errors import DiskFull, ReadFailed
from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from broker_service.put_result import PutStatus
from broker_service.state import half_messages, snapshot
from broker_service.state.transaction_changes import Checked, Resolution, Resolved, TransactionId
from broker_service.state.transitions import Place
from broker_service.transactions import copies
from broker_service.transactions import transactions as module
from broker_service.transactions.copies import find_copies
from broker_service.wire import clients
from testbed.polling import PATIENCE_S, until
from tests.support.brokers import goes_by, running
from tests.support.v2 import Client, client_of, make_topics, message, receive, resource, v2_broker

COMMIT, ROLLBACK = d.COMMIT, d.ROLLBACK
QUIET = {"transaction_time_out": 3_600_000}  # nobody is asked


def half(name: str = "a", topic: str = "X", **system: Any) -> d.Message:
    return message(topic, name.encode(), message_id=name, message_type=d.TRANSACTION, **system)


async def prepare(client: Client, *names: str) -> None:
    for name in names:
        sent = await client.send(half(name))
        assert sent.status.code == d.OK, sent


async def end(
    client: Client, name: str, resolution: d.TransactionResolution = COMMIT, topic: str = "X", **fields: Any
) -> d.Status:
    request = s.EndTransactionRequest(topic=resource(topic), transaction_id=name, resolution=resolution, **fields)
    status: d.Status = (await client.EndTransaction(request)).status
    return status


def records(node: BrokerNode, topic: str) -> list[Record]:
    """Returns all records of a topic, including those that readers cannot see yet."""
    store = node.store
    return [
        record.decode(store.log.record_at(at))
        for name, queue_id in sorted(store.queues.keys())
        if name == topic
        for at in store.queues.log_offsets(topic, queue_id, 0)
    ]


def bodies(node: BrokerNode, topic: str = "X") -> list[str]:
    return sorted(one.body.decode() for one in records(node, topic))


def without_snapshots(root: Path) -> None:
    for path in (root / "rocketsim").glob("consumption.snapshot*"):
        path.unlink()


def refused(*arguments: Any) -> Any:
    raise DiskFull("no room")


def opened(node: BrokerNode) -> list[str]:
    node.consumption.writer.catch_up()
    return sorted(name for _, name in node.consumption.state.transactions.open)


# --- commit and rollback --------------------------------------------------------------------------------------------


async def test_a_half_message_is_nobodys_until_it_is_committed(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        sent = await client.send(half("a", tag="A", orphaned_transaction_recovery_duration=Duration(seconds=30)))
        (entry,) = sent.entries
        assert (entry.transaction_id, entry.offset) == ("a", 0)
        (waiting,) = records(node, HALF_TOPIC)
        assert bodies(node) == []
        assert (waiting.sys_flag, waiting.queue_id) == (0, 0)
        real_queue = int(waiting.properties["REAL_QID"])
        assert (
            waiting.properties.items()
            >= {
                "REAL_TOPIC": "X",
                "TRAN_MSG": "true",
                "PGROUP": "X",
                "__transactionId__": "a",
                "CHECK_IMMUNITY_TIME_IN_SECONDS": "30",
            }.items()
        )
        assert (await end(client, "a", message_id="a")).code == d.OK
        (copy,) = records(node, "X")
        assert (copy.sys_flag, copy.queue_id, copy.prepared_transaction_offset) == (
            8,
            real_queue,
            waiting.commit_log_offset,
        )
        assert {"REAL_TOPIC", "REAL_QID", "__CHECK"}.isdisjoint(copy.properties)
        (op,) = records(node, OP_TOPIC)
        assert (op.body, op.properties["TAGS"]) == (b"0,", "d")
        assert opened(node) == []


async def test_consumers_get_it_as_a_transactional_message(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (_, client):
        await prepare(client, "a", "b")
        await end(client, "b")
        answers = [answer async for answer in client.ReceiveMessage(receive("X", poll_s=0))]
        (found,) = [answer.message for answer in answers if answer.HasField("message")]
        assert (found.body, found.system_properties.message_type) == (b"b", d.TRANSACTION)
        assert dict(found.user_properties) == {"__transactionId__": "b"}


async def test_a_rollback_is_an_op_record_alone(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a", "b")
        assert (await end(client, "b", ROLLBACK)).code == d.OK
        assert bodies(node) == []
        assert [one.body for one in records(node, OP_TOPIC)] == [b"1,"]
        assert opened(node) == ["a"]


async def test_a_second_end_of_the_same_kind_is_ok_and_does_nothing(tmp_path: Path) -> None:
    """Clients may end a transaction twice."""
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a", "b")
        for _ in range(2):
            assert (await end(client, "a")).code == d.OK
            assert (await end(client, "b", ROLLBACK)).code == d.OK
        assert bodies(node) == ["a"]
        assert len(records(node, OP_TOPIC)) == 2
        for name, resolution, was in (("a", ROLLBACK, "COMMIT"), ("b", COMMIT, "ROLLBACK")):
            refused = await end(client, name, resolution)
            assert refused.code == d.INVALID_TRANSACTION_ID
            assert f"has ended already, with {was}" in refused.message
        assert bodies(node) == ["a"]


async def test_ends_at_the_same_time_make_one_copy(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a")
        statuses = await asyncio.gather(*(end(client, "a") for _ in range(8)))
        assert {status.code for status in statuses} == {d.OK}
        assert bodies(node) == ["a"]


async def test_a_checker_that_does_not_know_changes_nothing(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a")
        assert (await end(client, "a", d.TRANSACTION_RESOLUTION_UNSPECIFIED)).code == d.OK
        assert opened(node) == ["a"]


@pytest.mark.parametrize(
    ("name", "fields", "code", "says"),
    [
        ("", {}, d.INVALID_TRANSACTION_ID, "blank"),
        (" ", {}, d.INVALID_TRANSACTION_ID, "blank"),
        ("forged", {}, d.INVALID_TRANSACTION_ID, "cannot found transaction data"),
        ("f" * 100_000, {}, d.INVALID_TRANSACTION_ID, "cannot found transaction data"),
        ("a", {"topic": "M"}, d.INVALID_TRANSACTION_ID, "cannot found transaction data"),
        ("a", {"message_id": "b"}, d.INVALID_TRANSACTION_ID, "does not have the message"),
        ("a", {"topic": "nowhere"}, d.TOPIC_NOT_FOUND, "nowhere"),
        ("a", {"topic": HALF_TOPIC}, d.ILLEGAL_TOPIC, HALF_TOPIC),
        ("a", {"topic": ""}, d.ILLEGAL_TOPIC, "missing"),
        ("forged", {"resolution": d.TRANSACTION_RESOLUTION_UNSPECIFIED}, d.INVALID_TRANSACTION_ID, "cannot found"),
    ],
)
async def test_forged_and_foreign_transactions_are_refused(
    tmp_path: Path, name: str, fields: dict[str, Any], code: d.Code, says: str
) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a")
        refused = await end(client, name, **fields)
        assert (refused.code, says in refused.message) == (code, True), refused
        assert len(refused.message) < 1000
        assert (opened(node), bodies(node)) == (["a"], [])


async def test_what_a_transactional_send_may_not_be(tmp_path: Path) -> None:
    async with v2_broker(tmp_path) as (node, client):
        for messages, code in (
            ([half("a", topic="T")], d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
            ([message("X")], d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
            ([half("a", delivery_timestamp=Timestamp(seconds=1))], d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
            ([half("a"), half("b")], d.BAD_REQUEST),
            ([half("a", orphaned_transaction_recovery_duration=Duration(seconds=3601))], d.BAD_REQUEST),
        ):
            assert (await client.send(*messages)).status.code == code, messages
        assert records(node, HALF_TOPIC) == []


async def test_a_half_message_that_is_sent_again_is_stored_once(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        for _ in range(2):
            assert (await client.send(half("a"))).entries[0].offset == 0
        await node.v2_port.close(0)
        node.broker.members_changed.notify()  # the port opens again, without a memory of recent sends
        async with client_of(node) as again:
            assert (await again.send(half("a"))).entries[0].offset == 0
        assert len(records(node, HALF_TOPIC)) == 1


async def test_a_half_message_is_the_same_one_if_what_its_user_has_set_is_the_same(tmp_path: Path) -> None:
    """The sender and the fields that a client sets for each attempt may differ."""
    async with v2_broker(tmp_path, **QUIET) as (node, client), client_of(node, "client-2") as other:
        await client.send(half("a", tag="A", keys=["k"], born_timestamp=Timestamp(seconds=1)))
        later = half("a", tag="A", keys=["k"], born_timestamp=Timestamp(seconds=2), delivery_attempt=2, born_host="h")
        assert (await other.send(later)).entries[0].offset == 0
        assert len(records(node, HALF_TOPIC)) == 1


@pytest.mark.parametrize("differs", ["body", "tag", "user_properties", "message_group"])
async def test_another_message_under_the_id_of_an_open_transaction_is_refused(tmp_path: Path, differs: str) -> None:
    """If the broker accepted the second message, its sender would commit the first message."""
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a")
        another = half("a")
        match differs:
            case "body":
                another.body = b"another"
            case "user_properties":
                another.user_properties["amount"] = "9"
            case _:
                setattr(another.system_properties, differs, "x")
        refused = (await client.send(another)).status
        assert (refused.code, "is open with another message" in refused.message) == (d.ILLEGAL_MESSAGE_ID, True)
        assert len(records(node, HALF_TOPIC)) == 1


async def test_of_two_messages_that_begin_one_transaction_at_once_one_is_refused(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        one, other = half("a"), half("a")
        other.body = b"another"
        answers = await asyncio.gather(client.send(one), client.send(other), client.send(one))
        assert sorted(answer.status.code for answer in answers) in (
            [d.OK, d.OK, d.ILLEGAL_MESSAGE_ID],
            [d.OK, d.ILLEGAL_MESSAGE_ID, d.ILLEGAL_MESSAGE_ID],
        )
        assert len(records(node, HALF_TOPIC)) == 1


async def test_the_id_of_a_transaction_that_has_ended_begins_no_other_one(tmp_path: Path) -> None:
    """If the id could begin another transaction, a repeated commit of the ended one would commit the new message.  A
    repeated send of the ended transaction's own message gets the same answer as before.
    """
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a")
        await end(client, "a")
        another = half("a")
        another.body = b"another"
        refused = (await client.send(another)).status
        assert (refused.code, "has ended already, with COMMIT" in refused.message) == (d.ILLEGAL_MESSAGE_ID, True)
        assert (await client.send(half("a"))).status.code == d.OK
        assert len(records(node, HALF_TOPIC)) == 1 and bodies(node) == ["a"]


async def test_open_transactions_are_bounded_and_those_of_one_topic_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 4)
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        node.topics.put(replace(node.topics.entries["X"], topic_name="Y"), 0)
        await prepare(client, "a", "b")
        assert (await client.send(half("c"))).status.code == d.TOO_MANY_REQUESTS
        assert (await client.send(half("y", topic="Y"))).status.code == d.OK
        assert (await client.send(half("z", topic="Y"))).status.code == d.TOO_MANY_REQUESTS
        assert (await client.send(message("T"))).status.code == d.OK
        for name in "ab":
            await end(client, name, ROLLBACK)
        await prepare(client, "c")
        node.consumption.writer.catch_up()
        assert node.consumption.state.transactions.open_of == {"X": 1, "Y": 1}


async def test_a_topic_that_has_fewer_queues_by_now_gets_the_message_all_the_same(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, *"abcd")
        node.topics.update(TopicConfig("X", 1, 1, attributes={"message.type": "TRANSACTION"}), 0)
        for name in "abcd":
            assert (await end(client, name)).code == d.OK
        assert [one.queue_id for one in records(node, "X")] == [0] * 4


async def test_a_topic_that_was_deleted_gets_nothing(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a")
        node.topics.remove("X", 0, {})
        assert (await end(client, "a")).code == d.TOPIC_NOT_FOUND
        make_topics(node)
        assert (await end(client, "a")).code == d.INVALID_TRANSACTION_ID
        assert (opened(node), bodies(node)) == ([], [])


async def test_a_deletion_that_the_disk_cut_off_ends_its_transactions_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a")
        with monkeypatch.context() as full:
            full.setattr(node.store, "append_one", refused)
            node.topics.remove("X", 0, {})
        assert opened(node) == ["a"]
        await until(lambda: not opened(node), "it is dropped")
        assert bodies(node) == []


# --- checks back ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def listening(node: BrokerNode, client_id: str, *topics: str) -> AsyncIterator[list[Any]]:
    """Opens a producer with a stream, and yields the list of the commands that the producer gets."""
    commands: list[Any] = []
    async with client_of(node, client_id) as client:
        stream = client.calls.Telemetry(metadata=client.metadata)
        settings = d.Settings(
            client_type=d.PRODUCER, publishing=d.Publishing(topics=[resource(topic) for topic in topics])
        )
        await stream.write(s.TelemetryCommand(settings=settings))
        assert (await stream.read()).status.code == d.OK

        async def read() -> None:
            while command := await stream.read():
                commands.append(command.recover_orphaned_transaction_command)

        reading = asyncio.create_task(read())
        try:
            yield commands
        finally:
            reading.cancel()
            stream.cancel()


async def test_the_client_that_sent_it_is_asked(tmp_path: Path) -> None:
    """A check that goes to another client ends no transaction.  The sender is asked even if only another client has
    declared the topic.
    """
    async with (
        v2_broker(tmp_path, transaction_time_out=100, transaction_check_interval=100) as (node, client),
        listening(node, "other", "X") as others,
        listening(node, "client-1") as own,
    ):
        await prepare(client, "a")
        await until(lambda: len(own) >= 2, "it is asked, and asked again")
        assert others == []
        asked = own[0]
        assert asked.transaction_id == "a"
        assert (asked.message.body, asked.message.topic.name) == (b"a", "X")
        system = asked.message.system_properties
        assert (system.message_id, system.message_type) == ("a", d.TRANSACTION)
        assert (system.body_encoding, system.body_digest.type) == (d.IDENTITY, d.MD5)
        assert (await end(client, "a", source=d.SOURCE_SERVER_CHECK)).code == d.OK
        assert bodies(node) == ["a"]
        assert node.consumption.state.transactions.next_due_ms() is None


@pytest.mark.parametrize("declares", [True, False])
async def test_another_producer_of_the_topic_is_asked_when_the_sender_is_gone(tmp_path: Path, declares: bool) -> None:
    async with (
        v2_broker(tmp_path, transaction_time_out=100) as (node, client),
        listening(node, "stranger", "T") as strangers,
        listening(node, "other", *(["X"] if declares else [])) as others,
        client_of(node, "other") as other,
    ):
        if not declares:
            # Nobody is asked about this one, however late its end comes.
            late = half("z", orphaned_transaction_recovery_duration=Duration(seconds=3600))
            assert (await other.send(late)).status.code == d.OK
            await end(other, "z")
        await prepare(client, "a")  # it has no stream
        await until(lambda: others, "the other one is asked")
        assert [one.transaction_id for one in others] == ["a"]
        assert strangers == []


async def test_nobody_is_asked_before_the_time_that_the_message_names(tmp_path: Path) -> None:
    async with (
        v2_broker(tmp_path, transaction_time_out=1) as (node, client),
        listening(node, "client-1") as asked,
    ):
        await client.send(half("later", orphaned_transaction_recovery_duration=Duration(seconds=3600)))
        await prepare(client, "a")
        await until(lambda: asked, "the one without is asked about")
        assert {one.transaction_id for one in asked} == {"a"}
        due = node.consumption.state.transactions.open[TransactionId("X", "later")].due_ms
        assert due > node.broker.now_ms() + 3_000_000


async def test_a_producer_that_never_answers_is_given_up(tmp_path: Path) -> None:
    keys = {"transaction_time_out": 1, "transaction_check_interval": 1, "transaction_check_max": 3}
    async with v2_broker(tmp_path, **keys) as (node, client), listening(node, "client-1") as asked:
        await prepare(client, "a", "b")
        await until(lambda: not opened(node), "both are given up")
        await until(lambda: len(asked) >= 6, "all questions have come")
        assert sorted(one.transaction_id for one in asked) == ["a"] * 3 + ["b"] * 3
        assert bodies(node, DISCARDED_TOPIC) == ["a", "b"]
        assert sorted(one.body for one in records(node, OP_TOPIC)) == [b"0,", b"1,"]
        refused = await end(client, "a")
        assert refused.code == d.INVALID_TRANSACTION_ID
        assert "has ended already, with DISCARDED" in refused.message
        assert bodies(node) == []


async def test_what_is_given_up_is_not_lost_because_the_disk_cannot_read_it_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_service.broker.core.master_loop.AFTER_TROUBLE_S", 0.001)
    keys = {"transaction_time_out": 1, "transaction_check_interval": 1, "transaction_check_max": 1}
    async with v2_broker(tmp_path, **keys) as (node, client):
        transactions, record_at = node.consumption.transactions, node.store.log.record_at
        at, reads = node.store.end_offset, 0
        fails = True

        def reading(log_offset: int) -> bytes:
            nonlocal reads
            if log_offset == at:
                reads += 1
                if fails and reads > 1:
                    raise ReadFailed("too many open files")
            return record_at(log_offset)

        monkeypatch.setattr(node.store.log, "record_at", reading)
        await prepare(client, "a")
        await until(lambda: reads >= 4, "it is tried several times")
        assert (opened(node), records(node, OP_TOPIC)) == (["a"], [])
        await until(lambda: (transactions.needed_from() or 0) > at, "it keeps no log file")
        fails = False
        await until(lambda: not opened(node), "it is given up")
        assert bodies(node, DISCARDED_TOPIC) == ["a"]


async def test_a_producer_with_many_open_transactions_is_asked_about_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MAX_COMMANDS", 2)
    keys = {"transaction_time_out": 3_600_000, "transaction_check_interval": 3_600_000}
    async with v2_broker(tmp_path, **keys) as (node, client), listening(node, "client-1") as asked:
        names = {f"n{number}" for number in range(50)}
        await prepare(client, *names)
        in_an_hour = node.broker.now_ms() + 3_700_000
        goes_by(node.broker, lambda: in_an_hour)
        await until(lambda: len(asked) >= 50, "all are asked about")
        assert {one.transaction_id for one in asked} == names


async def test_a_client_that_reads_nothing_holds_little_memory_and_nobody_up(tmp_path: Path) -> None:
    body = b"x" * (1 << 20)
    keys = {"mapped_file_size_commit_log": 64 << 20, "transaction_time_out": 1, "transaction_check_interval": 60_000}
    async with (
        v2_broker(tmp_path, **keys) as (node, _),
        listening(node, "reader") as asked,
        client_of(node, "hangs") as hanging,
        client_of(node, "reader") as reader,
    ):
        stream = hanging.calls.Telemetry(metadata=hanging.metadata)
        await stream.write(s.TelemetryCommand(settings=d.Settings(publishing=d.Publishing(topics=[resource("X")]))))
        await until(lambda: node.clients.stream_of("hangs") is not None, "its stream is there")
        for number in range(30):
            one = half(f"h{number}")
            one.body = body
            assert (await hanging.send(one)).status.code == d.OK
        await prepare(reader, "r")
        await until(lambda: asked, "the other one is asked")
        waiting = node.clients.stream_of("hangs")
        assert waiting is not None
        large = s.TelemetryCommand()
        large.recover_orphaned_transaction_command.message.body = body
        # If gRPC has just taken a question from the stream, one more command fits, but never two.
        assert not (waiting.send(large) and waiting.send(large)), "what it has not read is all that it gets"
        stream.cancel()


# --- what a crash leaves --------------------------------------------------------------------------------------------


async def test_a_restart_knows_what_is_open_with_and_without_a_snapshot(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a", "b", "c")
        await end(client, "a")
        await end(client, "b", ROLLBACK)
        waiting = node.consumption.state.transactions.open
    for with_snapshot in (True, False):
        if not with_snapshot:
            without_snapshots(tmp_path)
        async with running(tmp_path, grpc_server_port=0, **QUIET) as node, client_of(node) as client:
            assert node.consumption.state.transactions.open == waiting
            assert (await end(client, "a")).code == d.OK
            assert (await end(client, "b", ROLLBACK)).code == d.OK
            assert bodies(node) == ["a"]
    async with running(tmp_path, grpc_server_port=0, **QUIET) as node, client_of(node) as client:
        assert (await end(client, "c")).code == d.OK
        assert bodies(node) == ["a", "c"]


async def test_a_copy_of_rocketmqs_is_found_in_front_of_its_last_op_record(tmp_path: Path) -> None:
    """RocketMQ writes an op record some seconds after the copies of committed messages, one for many copies, so the
    search for a copy must begin before the last op record.
    """
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a", "b")
        first, second = records(node, HALF_TOPIC)
        for one in (half_messages.committed_copy(second, 0), Record(OP_TOPIC, b"0,", properties={"TAGS": "d"})):
            node.store.append_one(one, node.broker.now_ms(), node.broker.store_host)
        assert first.body == b"a"
    async with running(tmp_path, grpc_server_port=0, **QUIET) as node, client_of(node) as client:
        await until(lambda: not opened(node), "the copy is found")
        assert (await end(client, "b")).code == d.OK
        assert bodies(node) == ["b"]


async def test_a_snapshot_of_before_there_were_transactions_is_not_used(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a")
        store = node.store
        place = Place("g", "T", 0), 0, {}, ()
        old = snapshot.encode(store.end_offset, store.tail_crc(snapshot.TAIL_BYTES), [place])
    for path in (tmp_path / "rocketsim").glob("consumption.snapshot*"):
        path.write_bytes(old[:8] + b"\0\0\0\1" + old[12:])
    async with running(tmp_path, **QUIET) as node:
        assert opened(node) == ["a"]


@pytest.mark.parametrize("puts_follow", [False, True])
async def test_a_crash_between_copy_and_op_record_makes_no_second_copy(tmp_path: Path, puts_follow: bool) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a", "b", "c")
        await end(client, "a")
        await end(client, "b")
        without_snapshots(tmp_path)
        ops = records(node, OP_TOPIC)
        node.store.truncate(ops[-1].commit_log_offset, None)
        node.consumption.writer.reload()
        assert opened(node) == ["b", "c"]
        if puts_follow:  # other messages go to the same queues before the op record is written again
            for queue_id in range(4):
                plain = Record("X", b"plain", queue_id=queue_id)
                node.store.append_one(plain, node.broker.now_ms(), node.broker.store_host)
    async with running(tmp_path, grpc_server_port=0, **QUIET) as node, client_of(node) as client:
        await until(lambda: opened(node) == ["c"], "the copy is found")
        await until(lambda: len(records(node, OP_TOPIC)) == 2, "the op record is written")
        assert (await end(client, "b")).code == d.OK
        assert (await end(client, "c")).code == d.OK
        assert bodies(node) == ["a", "b", "c", *(["plain"] * 4 if puts_follow else [])]


async def test_copies_are_looked_up_in_frames_beside_other_work_and_past_unreadable_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "FRAME_BYTES", 4096)
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a", "b", "c")
        store, read_ranges = node.store, node.store.queues.read_ranges

        def append(message: Record) -> None:
            store.append_one(message, node.broker.now_ms(), node.broker.store_host)

        for half_message in records(node, HALF_TOPIC)[:2]:
            for number in range(300):
                append(Record("X", b"plain %d" % number))
            append(half_messages.committed_copy(half_message, 0))
        turns = 0
        turns_of_reads = []

        def reading(ranges: list[tuple[str, int, int, int]], max_bytes: int) -> Any:
            turns_of_reads.append(turns)
            found = read_ranges(ranges, max_bytes)
            if ranges[0][2] <= 20 < found.answers[0].next_offset:
                raise ReadFailed("a bad sector under the record of queue offset 20")
            return found

        async def beat() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        monkeypatch.setattr(store.queues, "read_ranges", reading)
        beating = asyncio.create_task(beat())
        await find_copies(node.store, node.consumption.transactions.state)
        beating.cancel()
        assert opened(node) == ["c"]
        assert 30 < len(turns_of_reads) < 150
        assert turns_of_reads[-1] - turns_of_reads[0] >= len(turns_of_reads) // 2


async def test_an_op_record_that_the_disk_refuses_is_written_before_the_next_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a", "b")
        append = node.store.append_one
        is_full = True

        def full_for_ops(message: Record, *arguments: Any) -> Any:
            if is_full and message.topic == OP_TOPIC:
                raise DiskFull("no room")
            return append(message, *arguments)

        monkeypatch.setattr(node.store, "append_one", full_for_ops)
        assert (await end(client, "a")).code == d.TOO_MANY_REQUESTS
        assert (await end(client, "a")).code == d.OK  # the copy is there
        assert (await end(client, "b", ROLLBACK)).code == d.TOO_MANY_REQUESTS
        assert (bodies(node), opened(node)) == (["a"], ["b"])
        is_full = False
        for _ in range(2):
            assert (await end(client, "a")).code == d.OK
        assert (await end(client, "b", ROLLBACK)).code == d.OK
        assert bodies(node) == ["a"]
        assert sorted(one.body for one in records(node, OP_TOPIC)) == [b"0,", b"1,"]


async def test_the_op_records_of_commits_are_the_first(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a", "b")
        assert opened(node) == ["a", "b"]
        transactions = node.consumption.transactions
        for name, resolution in (("a", Resolution.UNKNOWN), ("b", Resolution.COMMIT)):
            transactions.state.apply(Resolved(TransactionId("X", name), resolution))
        await transactions.move(0)
        ops = [(one.body, one.properties["__RESOLUTION"]) for one in records(node, OP_TOPIC)]
        assert ops == [(b"1,", "COMMIT"), (b"0,", "UNKNOWN")]


async def test_an_end_waits_as_long_as_its_caller_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a")
        assert opened(node) == ["a"]
        clock, passed_s = node.broker.clock, 0.0
        waits: list[float] = []

        async def two_seconds() -> None:
            nonlocal passed_s
            passed_s += 2.0

        async def wait(end_offset: int, timeout_s: float) -> PutStatus:
            waits.append(timeout_s)
            return PutStatus.PUT_OK

        monkeypatch.setattr(node.broker, "clock", lambda: clock() + passed_s)
        monkeypatch.setattr(node.broker.acknowledgements, "wait", wait)
        transactions = node.consumption.transactions
        monkeypatch.setattr(transactions.ready, "wait", two_seconds)
        await transactions.end(TransactionId("X", "a"), Resolution.ROLLBACK, 3.0)
        assert len(waits) == 1
        assert waits[0] <= 1.0


@pytest.mark.parametrize("resolution", [Resolution.COMMIT, Resolution.ROLLBACK])
async def test_a_repeated_end_waits_for_the_slave_like_the_first_one(tmp_path: Path, resolution: Resolution) -> None:
    """If the slave is connected and does not have the end of the transaction, the second call has to wait for it like
    the first one.
    """
    keys = {"broker_role": BrokerRole.SYNC_MASTER, "slave_wait_time_ms": 0, "slave_timeout": 3_600_000}
    async with v2_broker(tmp_path, **QUIET | keys) as (node, client):
        await client.send(half("a"))  # no slave has connected yet
        acknowledgements, transactions = node.broker.acknowledgements, node.consumption.transactions
        slave = acknowledgements.on_join(1, "a slow slave", 0)
        acknowledgements.on_ack(slave, node.store.end_offset)
        transaction = TransactionId("X", "a")
        for _ in range(2):
            assert await transactions.end(transaction, resolution, timeout_s=0.0) is PutStatus.FLUSH_SLAVE_TIMEOUT
        waiting = asyncio.create_task(transactions.end(transaction, resolution, timeout_s=PATIENCE_S))
        await until(lambda: "1 put waiting" in str(acknowledgements), "it waits for the slave")
        acknowledgements.on_ack(slave, node.store.end_offset)
        assert await waiting is PutStatus.PUT_OK


async def test_a_half_message_that_moves_keeps_how_often_and_when_it_was_asked_for(tmp_path: Path) -> None:
    """If a broker forgot its checks of a transaction, it would count them from zero again whenever the log file of the
    half message expires.
    """
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a")
        transactions = node.consumption.transactions
        node.consumption.writer.append(Checked(9_999_999_999_999, ((0, 7),)))
        await transactions.move(node.store.end_offset)
        (waits,) = transactions.state.open.values()
        assert (waits.queue_offset, waits.checks, waits.due_ms) == (1, 7, 9_999_999_999_999)
    without_snapshots(tmp_path)
    async with running(tmp_path, **QUIET) as node:
        assert list(node.consumption.state.transactions.open.values()) == [waits]


async def test_no_half_message_moves_before_all_commits_are_known(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a")
        transactions = node.consumption.transactions
        transactions.ready.clear()
        await transactions.move(node.store.end_offset)
        assert len(records(node, HALF_TOPIC)) == 1
        transactions.ready.set()
        await transactions.move(node.store.end_offset)
        assert len(records(node, HALF_TOPIC)) == 2


async def test_half_messages_are_appended_again_before_their_log_file_goes(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a", "b", "c")
        await end(client, "a")
        transactions = node.consumption.transactions
        second = records(node, HALF_TOPIC)[1]
        before = node.consumption.state.transactions.open[TransactionId("X", "b")]
        await transactions.move(second.commit_log_offset + 1)
        *_, moved = records(node, HALF_TOPIC)
        assert (moved.body, moved.queue_offset) == (b"b", 3)
        now = node.consumption.state.transactions.open[TransactionId("X", "b")]
        assert (now.due_ms, now.client_id, now.log_offset) == (before.due_ms, "client-1", moved.commit_log_offset)
        assert sorted(one.body for one in records(node, OP_TOPIC)) == [b"0,", b"1,"]
        assert (await end(client, "b")).code == d.OK
        assert bodies(node) == ["a", "b"]
        assert [one.prepared_transaction_offset for one in records(node, "X") if one.body == b"b"] == [now.log_offset]
        assert opened(node) == ["c"]


async def test_a_log_file_goes_once_its_half_messages_are_on_disk_elsewhere(tmp_path: Path) -> None:
    hours = ";".join(f"{hour:02}" for hour in range(24))
    keys = QUIET | {"mapped_file_size_commit_log": 8192, "file_reserved_time": 0, "delete_when": hours}
    async with v2_broker(tmp_path, **keys, flush_interval_commit_log=50) as (node, client):
        store, begun = node.store, node.broker.now_ms()
        await prepare(client, "a", "b")
        await end(client, "a")
        (second,) = (one.commit_log_offset for one in records(node, HALF_TOPIC) if one.body == b"b")
        for _ in range(20):
            await client.send(message("T", bytes(1000)))
        await until(lambda: node.broker.now_ms() > begun + 1000, "the first files have expired")
        transactions = node.consumption.state.transactions.open
        kept = TransactionId("X", "b")
        while store.min_offset <= second:
            await node.retention.delete_expired()
            assert store.min_offset <= transactions[kept].log_offset
            assert store.min_offset <= second or store.flushed_offset > transactions[kept].log_offset
            await until(lambda: store.flushed_offset == store.end_offset, "all is on disk")
        assert transactions[kept].log_offset > second
        assert (await end(client, "b")).code == d.OK
        assert [one.body for one in records(node, "X") if one.body == b"b"] == [b"b"]


async def test_a_clean_stop_says_where_rocketmq_goes_on(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **QUIET) as (_, client):
        await prepare(client, *"abcd")
        for name in "bad":
            await end(client, name)
    async with running(tmp_path, **QUIET) as node:
        offsets = node.offsets
        assert offsets.get("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0).offset == 2
        # All op records from this offset on are about half messages that come later.
        assert offsets.get("CID_RMQ_SYS_TRANS", OP_TOPIC, 0).offset == 0
