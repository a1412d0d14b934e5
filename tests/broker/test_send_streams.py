"""Send over plain sockets gives the gRPC call's answers, and endures clients that stop half-way, hang up, lie or are
many.
"""

import asyncio
import socket
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import range_stream
from rocketsim_proto.range_stream import Kind

from broker_service.broker.put import Placed, PutPath
from broker_service.node.node import BrokerNode
from broker_service.put_result import PutStatus
from broker_service.wire.own import range_streams
from testbed.polling import PATIENCE_S, until
from tests.broker.test_range_streams import connected, next_answer, patient, read
from tests.support.brokers import bodies_in, message, put, put_send, running, send_of, stub_of

__all__ = ["patient"]  # every test's


def request(data: bytes, count: int, /, **fields: Any) -> pb.SendRequest:
    return pb.SendRequest(**({"topic": "t", "count": count, "crc32": zlib.crc32(data)} | fields))


def frame(*bodies: bytes, topic: str = "t") -> bytes:
    return b"".join(message(topic, body, number % 2) for number, body in enumerate(bodies))


def asked(node: BrokerNode, send: pb.SendRequest, records: bytes, **fields: Any) -> bytes:
    """Returns all the bytes that a client writes for the send."""
    offer = node.range_streams.offer()
    assert offer is not None
    told = pb.StreamRequest(
        **(
            {
                "version": range_stream.VERSION,
                "instance": offer.instance,
                "timeout_ms": 10_000,
                "send": send,
                "records_bytes": len(records),
            }
            | fields
        )
    )
    return range_stream.request(told.SerializeToString()) + records


async def say(connection: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, data)


async def is_over(connection: socket.socket) -> None:
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises((EOFError, ConnectionResetError)):
            await read(connection, 1)


@asynccontextmanager
async def half_sent(
    node: BrokerNode, *, waits: bool = True, **fields: Any
) -> AsyncIterator[tuple[socket.socket, bytes]]:
    """Yields a connection and the missing bytes of its frame.  With `waits`, the broker is already
    receiving the frame.
    """
    async with connected(node) as connection:
        records = frame(*[b"h" * 1000] * 100)
        whole = asked(node, request(records, 100), records, **fields)
        await say(connection, whole[:-50_000])
        if waits:
            await until(lambda: node.range_streams.sends == 1, "the broker to receive it")
        yield connection, whole[-50_000:]


@pytest.mark.parametrize("count", [1, 20, 200], ids=["one", "few", "many"])
async def test_a_send_stream_stores_and_answers_as_the_call_does(tmp_path: Path, count: int) -> None:
    async with running(tmp_path) as node, connected(node) as connection, stub_of(node) as stub:
        records = frame(*(b"%04d" % number * 100 for number in range(count)))
        by_call = await stub.Send(request(records, count, records=records), timeout=60)
        first_end = node.store.end_offset
        await say(connection, asked(node, request(records, count), records))
        kind, by_stream = await next_answer(connection)
        assert kind is Kind.SENT
        assert isinstance(by_stream, pb.SendResponse)
        assert [(queue.queue_id, queue.count) for queue in by_stream.queues] == [
            (queue.queue_id, queue.count) for queue in by_call.queues
        ]
        assert [queue.first_queue_offset for queue in by_stream.queues] == [queue.count for queue in by_call.queues]
        assert [run.count for run in by_stream.runs] == [count]
        assert by_stream.runs[0].commit_log_offset == first_end
        assert (by_stream.status, by_stream.store_host, by_stream.epoch) == (0, by_call.store_host, by_call.epoch)
        await is_over(connection)
        queue = await stub.Pull(pb.PullRequest(consumer_group="g", topic="t", queue_id=0, max_msg_nums=400), timeout=60)
        bodies = bodies_in(records)[::2]
        assert bodies_in(queue.records) == (bodies * 2)[: queue.count]
        assert node.range_streams.sends == node.range_streams.taken_bytes == 0
        assert node.status.counters()["put_messages"] == 2 * count


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"crc32": 1}, id="damaged"),
        pytest.param({"count": 3}, id="another count"),
        pytest.param({"topic": "u"}, id="another topic"),
        pytest.param({"broker_name": "another"}, id="another broker's"),
    ],
)
async def test_a_send_stream_refuses_what_the_call_refuses(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with running(tmp_path) as node, connected(node) as connection, stub_of(node) as stub:
        await put(node, "t", b"x")
        end = node.store.end_offset
        records = frame(b"a", b"b")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Send(
                request(records, 2, records=records, **fields | {"count": fields.get("count", 2)}), timeout=9
            )
        await say(connection, asked(node, request(records, 2, **fields), records))
        kind, refusal = await next_answer(connection)
        assert kind is Kind.REFUSED
        assert isinstance(refusal, pb.StreamRefusal)
        assert (refusal.status, refusal.details) == (refused.value.code().value[0], refused.value.details())
        assert node.store.end_offset == end


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"instance": b"x" * 16}, id="another broker's"),
        pytest.param({"version": range_stream.VERSION + 1}, id="newer"),
        pytest.param({"credentials": b"token"}, id="credentials, of which nothing is known"),
        pytest.param({"records_bytes": range_stream.MAX_SEND_BYTES + 1}, id="too long"),
        pytest.param({"records_bytes": 2**64 - 1}, id="much too long"),
    ],
)
async def test_what_is_not_taken_here_is_sent_to_grpc_before_it_is_received(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    async with running(tmp_path) as node, connected(node) as connection:
        records = frame(b"a")
        await say(connection, asked(node, request(records, 1), records, **fields)[: -len(records)])
        assert await next_answer(connection) == (Kind.NOT_HERE, None)
        await is_over(connection)
        assert node.store.end_offset == node.store.min_offset


def streams() -> list[asyncio.Task[Any]]:
    """Returns the tasks of the connections that the broker serves."""
    return [task for task in asyncio.all_tasks() if task.get_name() == "range-stream"]


async def test_nothing_is_stored_of_a_frame_whose_client_hangs_up(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        async with connected(node):
            records = frame(*[b"x" * 500] * 50)
            whole = asked(node, request(records, 50), records)
        end, head = node.store.end_offset, len(whole) - len(records)
        for size in (0, 3, range_stream.REQUEST_HEAD.size, head - 1, head, head + 1, head + 9_000, len(whole) - 1):
            async with connected(node) as connection:
                await say(connection, whole[:size])
        async with connected(node) as last:  # the broker has accepted the others before it answers this one
            newer = asked(node, request(records, 50), records, version=range_stream.VERSION + 1)
            await say(last, newer[: -len(records)])
            assert await next_answer(last) == (Kind.NOT_HERE, None)
        await until(lambda: not streams(), "the broker to notice")
        assert (node.range_streams.sends, node.range_streams.taken_bytes) == (0, 0)
        assert node.store.end_offset == end


async def test_a_frame_whose_client_has_given_up_is_not_stored(tmp_path: Path) -> None:
    """The broker reads the frame late, as if it had been frozen, when the connection is closed already."""
    async with running(tmp_path) as node:
        async with connected(node):
            records = frame(*[b"x" * 500] * 50)
            whole = asked(node, request(records, 50), records)
        end = node.store.end_offset
        given_up = socket.socket(socket.AF_UNIX)
        given_up.connect(f"\0{node.range_streams.unix_name}")
        given_up.sendall(whole)
        given_up.close()  # closed before the event loop has run
        async with connected(node) as connection:
            await say(connection, whole)
            kind, response = await next_answer(connection)
        assert kind is Kind.SENT
        assert isinstance(response, pb.SendResponse)
        assert [run.commit_log_offset for run in response.runs] == [end]
        await until(lambda: not streams(), "both to end")
        assert node.store.end_offset == end + len(records)


async def test_half_a_frame_and_then_silence_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_streams, "SILENCE_S", 0.2)
    async with running(tmp_path) as node, half_sent(node, waits=False) as (connection, _):
        await is_over(connection)
        assert (node.range_streams.sends, node.range_streams.taken_bytes) == (0, 0)
        assert node.store.end_offset == node.store.min_offset


async def test_a_frame_that_comes_too_slowly_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, all of them would take long."""
    monkeypatch.setattr(range_streams, "SILENCE_S", 0.5)
    monkeypatch.setattr(range_streams, "SLOWEST_BYTES_S", 1 << 40)
    async with running(tmp_path) as node, half_sent(node, waits=False, timeout_ms=60_000) as (connection, rest):

        async def drip() -> None:
            for byte in rest:
                await say(connection, bytes([byte]))
                await asyncio.sleep(range_streams.SILENCE_S / 50)

        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                await drip()
        assert (node.range_streams.sends, node.range_streams.taken_bytes) == (0, 0)
        assert node.store.end_offset == node.store.min_offset


def test_a_larger_frame_may_come_for_longer() -> None:
    assert range_streams.receive_s(0) == range_streams.SILENCE_S
    assert range_streams.receive_s(range_stream.MAX_SEND_BYTES) == range_streams.SILENCE_S + 16


async def test_a_frame_that_comes_as_fast_as_it_is_received_leaves_the_event_loop_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    real, size, turns = loop.sock_recv_into, 8 << 20, 0
    at_receives: list[int] = []

    async def fast(connection: socket.socket, view: memoryview) -> int:
        if connection is not always_full:
            return await real(connection, view)
        at_receives.append(turns)
        return min(len(view), 200_000)  # without waiting

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(loop, "sock_recv_into", fast)
    with socket.socket(socket.AF_UNIX) as always_full:
        working = asyncio.ensure_future(others())
        await range_streams.fill(always_full, memoryview(bytearray(size)))
        working.cancel()
    in_one_turn = max(Counter(at_receives).values())
    assert in_one_turn * 200_000 < range_streams.RECEIVE_AT_ONCE + 200_000


async def test_half_a_frame_ends_with_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_streams, "LATE_S", 0.0)
    monkeypatch.setattr(range_streams, "SILENCE_S", 1000.0)
    async with running(tmp_path) as node, half_sent(node, waits=False, timeout_ms=500) as (connection, _):
        await is_over(connection)
        assert (node.range_streams.sends, node.range_streams.taken_bytes) == (0, 0)


async def test_half_a_frame_delays_no_other_put_no_cut_and_no_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_streams, "SILENCE_S", 1000.0)
    monkeypatch.setattr(range_streams, "STOP_S", 0.05)
    async with running(tmp_path) as node:
        async with half_sent(node) as (connection, _):
            await put(node, "t", b"x")
            node.store.truncate(0, None)
            async with asyncio.timeout(PATIENCE_S):
                await node.range_streams.stop(1000.0)
            await is_over(connection)
            assert (node.range_streams.sends, node.range_streams.taken_bytes) == (0, 0)


async def test_what_was_half_sent_before_a_cut_is_stored_behind_it(tmp_path: Path) -> None:
    async with running(tmp_path) as node, half_sent(node) as (connection, rest):
        await put(node, "t", b"x")
        node.store.truncate(0, None)
        await say(connection, rest)
        kind, response = await next_answer(connection)
        assert kind is Kind.SENT
        assert isinstance(response, pb.SendResponse)
        assert [run.commit_log_offset for run in response.runs] == [0]


async def test_frames_beyond_the_memory_for_them_are_sent_to_grpc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_streams, "MAX_TAKEN_BYTES", 150_000)
    async with running(tmp_path) as node, half_sent(node) as (first, rest), connected(node) as second:
        records = frame(*[b"x" * 1000] * 100)
        assert node.range_streams.taken_bytes > 100_000
        await say(second, asked(node, request(records, 100), b"", records_bytes=len(records)))
        assert await next_answer(second) == (Kind.NO_ROOM, None)
        node.metrics.take_snapshot()
        shown = {sample.name: sample.value for metric in node.metrics.collect() for sample in metric.samples}
        assert shown["rocketsim_send_streams"] == 1
        assert shown["rocketsim_send_stream_bytes"] == node.range_streams.taken_bytes
        await say(first, rest)
        assert (await next_answer(first))[0] is Kind.SENT
        await until(lambda: node.range_streams.taken_bytes == 0, "its room to be free")


async def test_more_clients_than_there_may_be_are_sent_to_grpc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_streams, "MAX_SENDS", 1)
    async with running(tmp_path) as node, half_sent(node), connected(node) as second:
        records = frame(b"x")
        await say(second, asked(node, request(records, 1), b"", records_bytes=len(records)))
        assert await next_answer(second) == (Kind.NO_ROOM, None)


async def test_more_connections_than_there_may_be_are_sent_to_grpc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker answers that it has no room, because a client that has sent its whole frame could not tell from a
    closed connection that the frame is not stored.
    """
    monkeypatch.setattr(range_streams, "MAX_CONNECTIONS", 1)
    async with running(tmp_path) as node, half_sent(node), connected(node) as second:
        assert await next_answer(second) == (Kind.NO_ROOM, None)
        await is_over(second)


async def test_a_put_that_waits_when_the_broker_stops_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_streams, "STOP_S", 0.05)
    is_safe = asyncio.Event()
    real = PutPath.safe

    async def slow(self: PutPath, placed: Placed, timeout_s: float) -> PutStatus:
        status = await real(self, placed, timeout_s)
        await is_safe.wait()
        return status

    async with running(tmp_path) as node, connected(node) as connection, connected(node) as other:
        monkeypatch.setattr(PutPath, "safe", slow)
        records = frame(b"x")
        await say(connection, asked(node, request(records, 1), records))
        await say(other, asked(node, request(records, 1), records)[:-1])
        await until(lambda: node.store.end_offset > 0 and node.range_streams.sends == 2, "the put")
        stopping = asyncio.ensure_future(node.range_streams.stop(1000.0))
        await is_over(other)  # a connection whose frame is incomplete is ended first
        assert not stopping.done()
        is_safe.set()
        assert (await next_answer(connection))[0] is Kind.SENT
        async with asyncio.timeout(PATIENCE_S):
            await stopping
        assert (node.range_streams.sends, node.range_streams.taken_bytes) == (0, 0)


async def test_a_broker_that_stops_refuses_what_comes_late(tmp_path: Path) -> None:
    async with running(tmp_path) as node, half_sent(node) as (connection, rest):
        end = node.store.end_offset
        node.broker.stopping = True
        await say(connection, rest)
        kind, refusal = await next_answer(connection)
        assert kind is Kind.REFUSED
        assert isinstance(refusal, pb.StreamRefusal)
        assert (refusal.code, "stopping" in refusal.details) == (14, True)
        assert node.store.end_offset == end


async def test_a_call_that_accepts_a_stream_is_told_where(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connected(node), stub_of(node) as stub:
        records = frame(b"x")
        answer = await stub.Send(request(records, 1, records=records, accepts_stream=True), timeout=60)
        assert answer.stream == node.range_streams.offer()
        assert answer.stream.max_send_bytes == range_stream.MAX_SEND_BYTES
        assert not (await stub.Send(request(records, 1, records=records), timeout=60)).HasField("stream")


async def test_the_log_has_the_bytes_that_were_received_where_they_were_received(tmp_path: Path) -> None:
    """No bytes are copied between the socket and the log: a writable buffer is stamped in place, and a read-only one is
    left unchanged.
    """
    async with running(tmp_path) as node:
        for data in (frame(b"x", b"y"), frame(*[b"z"] * 60)):
            count = len(bodies_in(data))
            ours = memoryview(bytearray(data))
            await put_send(node, send_of("t", data, records=ours, count=count))
            assert ours != data
            assert bytes(ours) in bytes(node.store.read_log(0, node.store.end_offset))
            theirs = bytearray(data)
            await put_send(node, send_of("t", data, records=memoryview(theirs).toreadonly(), count=count))
            assert theirs == data
