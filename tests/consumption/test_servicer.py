"""The services Consumption and Transactions: the requests that they refuse, and calls that end early."""

import asyncio
import zlib
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketsim_proto import consumption_pb2 as pb
from rocketsim_proto import transactions_pb2 as transactions
from rocketsim_proto.consumption_pb2_grpc import ConsumptionStub
from rocketsim_proto.message_pb2 import CommitStatus
from rocketsim_proto.records import record
from rocketsim_proto.reserved import HALF_TOPIC
from rocketsim_proto.transactions_pb2_grpc import TransactionsStub

from broker_service.broker.metadata.topics import TopicConfig
from broker_service.pop.deliveries import HandleStatus, Settled
from broker_service.put_result import PutStatus
from broker_service.state.state import State
from testbed.polling import PATIENCE_S, until
from tests.support.brokers import message, put, running, stub_of


def pop_of(**fields: Any) -> pb.PopRequest:
    defaults: dict[str, Any] = {"consumer_group": "g", "topic": "T", "max_messages": 10, "invisible_ms": 60_000}
    return pb.PopRequest(**defaults | fields)


async def test_messages_are_popped_with_their_facts_and_settled(tmp_path: Path) -> None:
    async with running(tmp_path) as node, stub_of(node, ConsumptionStub) as stub:
        node.topics.put(TopicConfig("T", 1, 1), 0)
        await put(node, "T", b"1", b"2")
        popped = await stub.Pop(pop_of(broker_name="broker-a"), timeout=PATIENCE_S)
        assert [record.decode(popped.records, at).body for at in (0, len(popped.records) // 2)] == [b"1", b"2"]
        assert [one.attempt for one in popped.deliveries] == [1, 1] and not popped.in_order
        assert all(0 < one.left_ms <= 60_000 for one in popped.deliveries)
        first, second = (one.receipt_handle for one in popped.deliveries)
        acked = await stub.Ack(pb.AckRequest(consumer_group="g", topic="T", receipt_handles=[first, "x"]))
        assert list(acked.valid) == [True, False] and not acked.again
        entries = [pb.ChangeInvisibleRequest.Entry(receipt_handle=second, invisible_ms=0, uncounted=True)]
        changed = await stub.ChangeInvisible(pb.ChangeInvisibleRequest(consumer_group="g", topic="T", entries=entries))
        assert list(changed.valid) == [True]
        again = await stub.Pop(pop_of(poll_ms=30_000), timeout=PATIENCE_S)
        assert [one.attempt for one in again.deliveries] == [1]


async def test_an_ack_that_disk_or_slave_did_not_take_in_time_is_to_be_asked_again(tmp_path: Path) -> None:
    async with running(tmp_path) as node, stub_of(node, ConsumptionStub) as stub:
        node.topics.put(TopicConfig("T", 1, 1), 0)
        ack = pb.AckRequest(consumer_group="g", topic="T", receipt_handles=["h"])
        for stored, again in (
            (PutStatus.PUT_OK, False),
            (PutStatus.SLAVE_NOT_AVAILABLE, False),
            (PutStatus.FLUSH_SLAVE_TIMEOUT, True),
            (PutStatus.FLUSH_DISK_TIMEOUT, True),
        ):

            async def settled(*_: Any, stored: PutStatus = stored) -> list[Settled]:
                return [Settled(HandleStatus.OK, stored)]

            node.consumption.ack = settled  # type: ignore[method-assign, assignment]
            answer = await stub.Ack(ack)
            assert (list(answer.valid), answer.again) == ([True], again)
            assert CommitStatus.Name(answer.status).removeprefix("COMMIT_") == stored.name.removeprefix("PUT_")


REFUSED: list[tuple[Any, int | None, str]] = [
    (pop_of(broker_name="broker-b"), 14, "this is broker broker-a, not broker-b"),
    (pop_of(topic="missing"), 17, "missing"),
    (pop_of(topic=""), 13, "topic is missing"),
    (pop_of(consumer_group=""), 29, "consumer group is missing"),
    (pop_of(topic="rmq_sys_rocketsim_state"), 16, "the broker's own"),
    (pop_of(topic="RMQ_SYS_TRANS_HALF_TOPIC"), 16, "the broker's own"),
    (pop_of(consumer_group="CID_RMQ_SYS_x"), 16, "the broker's own"),
    (pop_of(max_messages=0), 29, "a pop asks for 0 messages"),
    (pop_of(invisible_ms=0), 29, "for 0 ms"),
    (pop_of(sub_expression="A||*"), 23, "must stand alone"),
    (pop_of(sub_expression="a = 1", expression_type="SQL92"), None, "enablePropertyFilter"),
    (pb.AckRequest(consumer_group="g", topic="T"), 29, "0 receipt handles"),
    (pb.AckRequest(consumer_group="g", topic="T", receipt_handles=["h"] * 1025), 29, "1025 receipt handles"),
    (pb.ChangeInvisibleRequest(consumer_group="g", topic="T"), 29, "0 receipt handles"),
]


async def test_what_is_refused_names_its_reason(tmp_path: Path) -> None:
    async with running(tmp_path) as node, stub_of(node, ConsumptionStub) as stub:
        node.topics.put(TopicConfig("T", 1, 1), 0)
        for request, code, text in REFUSED:
            call = getattr(stub, type(request).__name__.removesuffix("Request"))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(request, timeout=PATIENCE_S)
            metadata = dict(caught.value.trailing_metadata() or ())
            assert text in (caught.value.details() or "")
            assert code is None or metadata["rocketsim-code"] == str(code)


async def test_a_client_that_stops_has_its_poll_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as node, stub_of(node, ConsumptionStub) as stub:
        node.topics.put(TopicConfig("T", 1, 1), 0)
        polls = [
            asyncio.ensure_future(stub.Pop(pop_of(client_id=name, poll_ms=600_000), timeout=PATIENCE_S))
            for name in ("stops", "stays")
        ]
        await until(lambda: node.consumption.polls_held == 2, "the polls are held")
        await put(node, "T", b"taken by one of them")
        await until(lambda: node.consumption.polls_held == 1, "one has the message")
        await until(lambda: any(poll.done() for poll in polls), "its answer is here")
        (held,) = (name for name, poll in zip(("stops", "stays"), polls, strict=True) if not poll.done())
        for ends in (pop_of(client_id=held, ends_polls=True, max_messages=0), pop_of(client_id=held, ends_polls=True)):
            assert not (await stub.Pop(ends, timeout=PATIENCE_S)).deliveries
        answers = await asyncio.gather(*polls)
        assert sorted(len(answer.deliveries) for answer in answers) == [0, 1]


async def test_a_poll_that_is_cancelled_takes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as node, stub_of(node, ConsumptionStub) as stub:
        node.topics.put(TopicConfig("T", 1, 1), 0)
        held = stub.Pop(pop_of(poll_ms=30_000), timeout=PATIENCE_S)
        await until(lambda: node.consumption.polls_held, "the call that is held")
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        await until(lambda: not node.consumption.polls_held, "its end at the broker")
        await put(node, "T", b"1")
        state: State = node.consumption.state
        assert state.under_way_count == 0
        popped = await stub.Pop(pop_of(), timeout=PATIENCE_S)
        assert [one.attempt for one in popped.deliveries] == [1]


# --- transactions ---------------------------------------------------------------------------------------------------


def prepare_of(*, name: str = "a", body: bytes = b"x", **fields: Any) -> transactions.PrepareRequest:
    data = message(
        "T", body, fields.pop("queue_id", 0), **{"UNIQ_KEY": name} if name else {}, **fields.pop("properties", {})
    )
    return transactions.PrepareRequest(**{"topic": "T", "record": data, "crc32": zlib.crc32(data)} | fields)


async def test_a_half_message_that_is_sent_again_is_stored_once(tmp_path: Path) -> None:
    async with running(tmp_path) as node, stub_of(node, TransactionsStub) as stub:
        node.topics.put(TopicConfig("T", 1, 1), 0)
        await stub.Prepare(prepare_of(name="other"), timeout=PATIENCE_S)
        first, again = [await stub.Prepare(prepare_of(), timeout=PATIENCE_S) for _ in range(2)]
        assert first.queues == again.queues and first.queues[0].first_queue_offset == 1
        assert first.runs == again.runs
        assert node.store.queues.end(HALF_TOPIC, 0) == 2


async def test_another_message_under_the_id_of_a_transaction_is_refused(tmp_path: Path) -> None:
    """The id stays refused after the transaction's end, because a commit of the second message would commit the first
    one.
    """
    async with running(tmp_path) as node, stub_of(node, TransactionsStub) as stub:
        node.topics.put(TopicConfig("T", 2, 2), 0)
        first = await stub.Prepare(prepare_of(client_id="one"), timeout=PATIENCE_S)
        same = await stub.Prepare(prepare_of(client_id="another", queue_id=1), timeout=PATIENCE_S)
        assert first.runs == same.runs
        others = prepare_of(body=b"another"), prepare_of(properties={"TAGS": "A"}), prepare_of(properties={"P": "1"})
        for other in others:
            with pytest.raises(grpc.aio.AioRpcError, match="transaction a of topic T is open with another message"):
                await stub.Prepare(other, timeout=PATIENCE_S)
        await stub.End(transactions.EndRequest(topic="T", transaction_id="a", resolution="COMMIT"), timeout=PATIENCE_S)
        for again in (*others, prepare_of()):
            with pytest.raises(grpc.aio.AioRpcError, match="transaction a of topic T has ended already, with COMMIT"):
                await stub.Prepare(again, timeout=PATIENCE_S)
        assert node.store.queues.end(HALF_TOPIC, 0) == 1


@pytest.mark.parametrize("bodies", [(b"x", b"x"), (b"x", b"another")], ids=["the same message", "another message"])
async def test_two_prepares_at_once_while_their_topic_is_made_are_one_transaction(
    tmp_path: Path, bodies: tuple[bytes, bytes]
) -> None:
    async with running(tmp_path) as node, stub_of(node, TransactionsStub) as stub:
        calls = (stub.Prepare(prepare_of(body=body), timeout=PATIENCE_S) for body in bodies)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        refused = [one for one in answers if isinstance(one, grpc.aio.AioRpcError)]
        stored = [one for one in answers if not isinstance(one, BaseException)]
        assert len(stored) + len(refused) == 2
        assert len(refused) == len(set(bodies)) - 1
        assert {one.runs[0].commit_log_offset for one in stored} == {stored[0].runs[0].commit_log_offset}
        assert node.store.queues.end(HALF_TOPIC, 0) == 1


REFUSED_TRANSACTIONS: list[tuple[Any, str]] = [
    (prepare_of(broker_name="broker-b"), "this is broker broker-a"),
    (prepare_of(name=""), "must have an id"),
    (prepare_of(record=b"x"), "cannot be read"),
    (prepare_of(crc32=1), "CRC"),
    (prepare_of(topic="U"), "topic"),
    (prepare_of(properties={"DELAY": "1"}), "cannot have a delay"),
    (prepare_of(properties={"TIMER_DELIVER_MS": "99999999999999"}), "cannot have a delay"),
    (transactions.EndRequest(topic="T", transaction_id="a"), "COMMIT or ROLLBACK"),
    (transactions.EndRequest(topic="T", transaction_id="a", resolution="COMMIT"), "no transaction 'a'"),
    (transactions.EndRequest(broker_name="broker-b", resolution="COMMIT"), "this is broker broker-a"),
]


async def test_a_transaction_that_is_refused_names_its_reason(tmp_path: Path) -> None:
    async with running(tmp_path) as node, stub_of(node, TransactionsStub) as stub:
        node.topics.put(TopicConfig("T", 1, 1), 0)
        for request, text in REFUSED_TRANSACTIONS:
            with pytest.raises(grpc.aio.AioRpcError, match=text):
                await getattr(stub, type(request).__name__.removesuffix("Request"))(request, timeout=PATIENCE_S)
        assert node.store.queues.end(HALF_TOPIC, 0) == 0


async def test_a_call_for_questions_ends_with_the_master(tmp_path: Path) -> None:
    async with running(tmp_path) as node, stub_of(node, TransactionsStub) as stub:
        call = stub.Check(transactions.CheckRequest(client_id="c", topics=["T"]), timeout=PATIENCE_S)
        await until(lambda: node.clients.stream_of("c"), "the stream")
        node.broker.stopping = True
        assert [one async for one in call] == []
        assert node.clients.stream_of("c") is None
        with pytest.raises(grpc.aio.AioRpcError, match="names no client id"):
            node.broker.stopping = False
            await stub.Check(transactions.CheckRequest(), timeout=PATIENCE_S).read()
        with pytest.raises(grpc.aio.AioRpcError, match="must name their topics"):
            await stub.Check(transactions.CheckRequest(client_id="c"), timeout=PATIENCE_S).read()
