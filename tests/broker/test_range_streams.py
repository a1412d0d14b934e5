"""PullRange over plain sockets gives the gRPC call's answers, and endures clients that stop reading, lie, vanish or are
many.
"""

import asyncio
import errno
import socket
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import range_stream
from rocketsim_proto.range_stream import Kind

from broker_service.errors import ReadFailed
from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from broker_service.store.files import Files
from broker_service.store.residency import Cold
from broker_service.wire.own import range_streams
from testbed.polling import PATIENCE_S, until
from tests.support.brokers import bodies_in, put, running, stub_of


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives slow machines time: a client that is only busy must not count as silent."""
    monkeypatch.setattr(range_streams, "REQUEST_S", 600.0)
    monkeypatch.setattr(range_streams, "SILENCE_S", 600.0)


Answer = tuple[Kind, pb.PullFrame | pb.SendResponse | pb.StreamRefusal | None]


async def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await asyncio.get_running_loop().sock_recv(connection, size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


async def next_answer(connection: socket.socket) -> Answer:
    async with asyncio.timeout(PATIENCE_S):
        answer = range_stream.answer_of(await read(connection, range_stream.ANSWER_HEAD.size))
        message = await read(connection, answer.message_bytes)
        records = await read(connection, answer.records_bytes)
    if answer.kind is Kind.FRAME:
        frame = pb.PullFrame.FromString(message)
        frame.records = records
        return answer.kind, frame
    if answer.kind is Kind.SENT:
        return answer.kind, pb.SendResponse.FromString(message)
    return answer.kind, pb.StreamRefusal.FromString(message) if answer.kind is Kind.REFUSED else None


async def answers(connection: socket.socket) -> list[Answer]:
    """Returns the answers up to the one that ends the stream."""
    found = [await next_answer(connection)]
    while found[-1][0] is Kind.FRAME:
        found.append(await next_answer(connection))
    return found


@asynccontextmanager
async def connected(node: BrokerNode) -> AsyncIterator[socket.socket]:
    await until(lambda: node.range_streams.offer() is not None, "the streams to be offered")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, f"\0{node.range_streams.unix_name}")
        yield connection


async def ask(connection: socket.socket, node: BrokerNode, pull: pb.PullRangeRequest, **fields: Any) -> None:
    offer = node.range_streams.offer()
    instance = offer.instance if offer else b""
    request = pb.StreamRequest(
        **({"version": range_stream.VERSION, "instance": instance, "timeout_ms": 10_000, "pull": pull} | fields)
    )
    await asyncio.get_running_loop().sock_sendall(connection, range_stream.request(request.SerializeToString()))


def ranges(until_offset: int, *queue_ids: int, topic: str = "t", **fields: Any) -> pb.PullRangeRequest:
    wanted = [
        pb.PullRangeRequest.Range(topic=topic, queue_id=queue_id, until_offset=until_offset)
        for queue_id in queue_ids or (0,)
    ]
    return pb.PullRangeRequest(**({"ranges": wanted, "consumer_group": "g"} | fields))


async def fill(node: BrokerNode, size: int = 60_000, count: int = 100) -> list[bytes]:
    """Puts more bytes than a socket takes at once; returns the bodies."""
    bodies = [b"%04d" % number * (size // 4) for number in range(count)]
    for body in bodies:
        await put(node, "t", body)
    return bodies


def most_buffer() -> int:
    """Returns the largest SO_SNDBUF that the kernel takes."""
    limit = Path("/proc/sys/net/core/wmem_max")
    return int(limit.read_text()) if limit.exists() else 0


def maps_of(folder: Path) -> list[str]:
    """Returns the lines in which the kernel lists this process's memory maps of the folder's files."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


def waiting_bytes(node: BrokerNode) -> int:
    return node.range_streams.unsent_bytes + node.range_streams.queued_bytes


async def stalled(node: BrokerNode, connection: socket.socket, frame_bytes: int = 4 << 20, **fields: Any) -> None:
    """Opens a stream whose client does not read, so its first frame waits in the kernel or in this process."""
    before, serving = waiting_bytes(node), node.range_streams.serving
    await ask(connection, node, ranges(100, max_frame_bytes=frame_bytes), **fields)
    await until(lambda: waiting_bytes(node) > before + frame_bytes - 100_000, "a frame that waits for its client")
    assert node.range_streams.serving == serving + 1


@pytest.fixture(params=["a frame's", "the kernel's"])
def buffers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the test with send buffers that hold a whole frame, and with the kernel's default ones."""
    if request.param == "the kernel's":
        monkeypatch.setattr(range_streams, "MAX_BUFFER_BYTES", 0)


async def test_a_range_stream_answers_what_the_call_answers(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connected(node) as connection, stub_of(node) as stub:
        await put(node, "t", *(b"%03d" % number * 300 for number in range(90)))
        await put(node, "t", b"other", queue_id=1)
        asked = ranges(95, 0, 1, max_frame_bytes=20_000)
        by_call = [frame async for frame in stub.PullRange(asked, timeout=60)]
        await ask(connection, node, asked)
        by_stream = await answers(connection)
        assert [answer for _, answer in by_stream[:-1]] == by_call
        assert by_stream[-1] == (Kind.END, None)
        assert len(by_call) > 2
        assert by_call[-1].segments[-1].status == pb.PullResponse.OFFSET_OVERFLOW_ONE
        await until(lambda: node.range_streams.serving == 0, "the stream to end")


async def test_a_range_stream_refuses_what_the_call_refuses(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connected(node) as connection, stub_of(node) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            [frame async for frame in stub.PullRange(ranges(1, topic="absent"), timeout=60)]
        await ask(connection, node, ranges(1, topic="absent"))
        kind, refusal = await next_answer(connection)
        assert kind is Kind.REFUSED
        assert isinstance(refusal, pb.StreamRefusal)
        assert (refusal.status, refusal.details) == (refused.value.code().value[0], refused.value.details())
        assert refusal.code == 17


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"instance": b"x" * 16}, id="another broker's"),
        pytest.param({"version": range_stream.VERSION + 1}, id="newer"),
        pytest.param({"version": 0}, id="no version"),
        pytest.param({"credentials": b"token"}, id="credentials, of which nothing is known"),
    ],
)
async def test_a_client_that_asks_for_something_else_is_sent_to_grpc(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with running(tmp_path) as node, connected(node) as connection:
        await put(node, "t", b"x")
        await ask(connection, node, ranges(1), **fields)
        assert await next_answer(connection) == (Kind.NOT_HERE, None)
        with pytest.raises(EOFError):
            await next_answer(connection)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(range_stream.REQUEST_HEAD.pack(range_stream.MAGIC, range_stream.MAX_REQUEST_BYTES + 1), id="long"),
        pytest.param(range_stream.request(b"\xff\xff\xff"), id="no message"),
    ],
)
async def test_what_is_no_request_or_too_long_is_not_waited_for(tmp_path: Path, said: bytes) -> None:
    async with running(tmp_path) as node, connected(node) as connection:
        await asyncio.get_running_loop().sock_sendall(connection, said)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises((EOFError, ConnectionResetError)):
                await read(connection, 1)
        assert node.range_streams.serving == 0


async def test_a_request_that_does_not_come_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_streams, "REQUEST_S", 0.05)
    async with running(tmp_path) as node, connected(node) as connection:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(EOFError):
                await read(connection, 1)


async def test_requests_have_a_bounded_number_of_bytes_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit counts requests that are not read completely and requests of running calls."""
    monkeypatch.setattr(range_streams, "MAX_REQUESTED_BYTES", 5_000)
    async with running(tmp_path) as node, connected(node) as first, connected(node) as second:
        offer = node.range_streams.offer()
        assert offer is not None
        pull = ranges(1, sub_expression="x" * 3_000)
        told = pb.StreamRequest(version=range_stream.VERSION, instance=offer.instance, timeout_ms=10_000, pull=pull)
        whole = range_stream.request(told.SerializeToString())
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(first, whole[:-1])
        await until(lambda: node.range_streams.requested_bytes > 3_000, "the head to be read")
        await loop.sock_sendall(second, whole[: range_stream.REQUEST_HEAD.size])
        assert await next_answer(second) == (Kind.NO_ROOM, None)
        node.metrics.take_snapshot()
        shown = {sample.name: sample.value for metric in node.metrics.collect() for sample in metric.samples}
        assert shown["rocketsim_stream_request_bytes"] == len(whole) - range_stream.REQUEST_HEAD.size
        await loop.sock_sendall(first, whole[-1:])
        assert (await next_answer(first))[0] is Kind.REFUSED  # there is no such topic
        await until(lambda: node.range_streams.requested_bytes == 0, "its room to be free")


async def test_a_call_that_accepts_a_stream_is_told_where_and_another_gets_frames(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connected(node), stub_of(node) as stub:
        await put(node, "t", b"x")
        (told,) = [frame async for frame in stub.PullRange(ranges(1, accepts_stream=True), timeout=60)]
        assert told == pb.PullFrame(stream=node.range_streams.offer())
        assert (told.stream.unix_name, told.stream.port) == (node.range_streams.unix_name, 0)
        (frame,) = [frame async for frame in stub.PullRange(ranges(1), timeout=60)]
        assert bodies_in(frame.records) == [b"x"]


async def test_more_clients_than_there_may_be_get_their_frames_over_grpc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_streams, "MAX_STREAMS", 1)
    async with running(tmp_path) as node, connected(node) as first, connected(node) as second, stub_of(node) as stub:
        offer = node.range_streams.offer()
        assert offer is not None
        await fill(node)
        await stalled(node, first)
        await ask(second, node, ranges(1), instance=offer.instance)
        assert await next_answer(second) == (Kind.NO_ROOM, None)
        (frame,) = [frame async for frame in stub.PullRange(ranges(1, accepts_stream=True), timeout=60)]
        assert len(bodies_in(frame.records)) == 1


@pytest.mark.usefixtures("buffers")
async def test_a_client_that_stops_reading_gets_what_was_planned_whatever_becomes_of_the_log(tmp_path: Path) -> None:
    """The client's frame was copied or is in the kernel, so a cut of the log neither waits for it nor changes it.  Only
    a slave cuts its log.
    """
    async with running(tmp_path) as node, connected(node) as connection:
        bodies = await fill(node)
        node.broker.mastership.role = BrokerRole.SLAVE
        await stalled(node, connection)
        node.store.truncate(0, None)
        _, frame = await next_answer(connection)
        assert isinstance(frame, pb.PullFrame)
        found = bodies_in(frame.records)
        assert found == bodies[: len(found)]
        assert len(found) > 50
        later = await answers(connection)
        assert {
            segment.count for kind, frame in later if isinstance(frame, pb.PullFrame) for segment in frame.segments
        } == {0}


@pytest.mark.usefixtures("buffers")
async def test_a_client_that_stops_reading_gets_its_frame_although_its_log_file_is_deleted(tmp_path: Path) -> None:
    async with running(tmp_path, mapped_file_size_commit_log=1 << 20) as node, connected(node) as connection:
        bodies = await fill(node)
        await stalled(node, connection)
        assert len(node.store.log.delete_before(5 << 20)) == 5
        _, frame = await next_answer(connection)
        assert isinstance(frame, pb.PullFrame)
        found = bodies_in(frame.records)
        assert len(found) > 50
        assert found == bodies[: len(found)]


# --- large pieces of the log ------------------------------------------------------------------------------------------


@pytest.fixture
def sent_uncopied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which the size of each piece is added that is sent without a copy."""
    sizes, send = list[int](), Files.send

    def noting(files: Files, *piece: int) -> int:
        sizes.append(send(files, *piece))
        return sizes[-1]

    monkeypatch.setattr(Files, "send", noting)
    return sizes


async def bodies_by_stream(node: BrokerNode, connection: socket.socket, pull: pb.PullRangeRequest) -> list[bytes]:
    await ask(connection, node, pull)
    *frames, end = await answers(connection)
    assert end == (Kind.END, None)
    return [body for _, frame in frames if isinstance(frame, pb.PullFrame) for body in bodies_in(frame.records)]


@pytest.mark.usefixtures("buffers")
@pytest.mark.parametrize("role", [BrokerRole.ASYNC_MASTER, BrokerRole.SLAVE])
async def test_only_a_master_sends_its_log_without_a_copy(
    tmp_path: Path, sent_uncopied: list[int], role: BrokerRole
) -> None:
    async with running(tmp_path, mapped_file_size_commit_log=1 << 20) as node, connected(node) as connection:
        bodies = await fill(node)
        node.broker.mastership.role = role
        assert await bodies_by_stream(node, connection, ranges(100, max_frame_bytes=3 << 20)) == bodies
        assert (sum(sent_uncopied) > 100_000) == (role is BrokerRole.ASYNC_MASTER)


async def test_a_log_that_was_sent_without_a_copy_is_not_cut(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connected(node) as connection:
        bodies = await fill(node, count=20)
        assert await bodies_by_stream(node, connection, ranges(20)) == bodies
        with pytest.raises(AssertionError, match="without a copy"):
            node.store.truncate(0, None)
        with pytest.raises(AssertionError, match="without a copy"):
            node.store.start_over(0, [])
        async with connected(node) as another:  # the refused cuts have changed nothing
            assert await bodies_by_stream(node, another, ranges(20)) == bodies


async def test_small_pieces_of_the_log_are_copied(tmp_path: Path, sent_uncopied: list[int]) -> None:
    async with running(tmp_path) as node, connected(node) as connection:
        for number in range(20):
            await put(node, "t", b"%d" % number * 1000)
            await put(node, "u", b"between them")
        found = await bodies_by_stream(node, connection, ranges(20))
        assert found == [b"%d" % number * 1000 for number in range(20)]
        assert sent_uncopied == []


async def test_a_file_system_that_can_only_copy_serves_the_same_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "no sendfile here")

    monkeypatch.setattr(Files, "send", refuse)
    async with running(tmp_path) as node, connected(node) as connection:
        bodies = await fill(node)
        assert await bodies_by_stream(node, connection, ranges(100, max_frame_bytes=3 << 20)) == bodies


async def test_a_disk_that_fails_in_the_middle_of_a_frame_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Files.send

    def fail_later(files: Files, handle: int, size: int, offset: int, to: int) -> int:
        if offset:
            raise OSError(errno.EIO, "a bad sector")
        return send(files, handle, min(size, 1000), offset, to)

    monkeypatch.setattr(Files, "send", fail_later)
    async with running(tmp_path) as node, connected(node) as connection:
        await fill(node)
        await ask(connection, node, ranges(100))
        with pytest.raises(EOFError):
            await next_answer(connection)
        await until(lambda: node.range_streams.serving == 0, "the stream to end")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.usefixtures("buffers")
async def test_a_client_that_stops_reading_keeps_no_deleted_file_on_the_disk(tmp_path: Path) -> None:
    async with running(tmp_path, mapped_file_size_commit_log=1 << 20) as node, connected(node) as connection:
        await fill(node)
        node.broker.mastership.role = BrokerRole.SLAVE
        await stalled(node, connection)
        assert len(maps_of(tmp_path / "commitlog")) > 3
        node.store.truncate(0, None)
        assert [line for line in maps_of(tmp_path / "commitlog") if line.endswith("(deleted)")] == []
        assert len(maps_of(tmp_path / "commitlog")) <= 2


async def test_a_call_may_take_as_long_as_its_caller_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that has a deadline of its own may go on for longer than calls without one."""
    monkeypatch.setattr(range_streams, "NO_DEADLINE_S", 0.0)
    monkeypatch.setattr(range_streams, "LATE_S", 0.0)
    async with running(tmp_path) as node, connected(node) as connection:
        await fill(node)
        await stalled(node, connection, timeout_ms=600_000)
        found = await answers(connection)
        assert found[-1][0] is Kind.END
        assert sum(len(bodies_in(frame.records)) for _, frame in found if isinstance(frame, pb.PullFrame)) == 100


@pytest.mark.usefixtures("buffers")
async def test_a_client_that_stops_reading_does_not_keep_a_broker_from_stopping(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        async with connected(node) as connection:
            await fill(node)
            await stalled(node, connection)
            async with asyncio.timeout(PATIENCE_S):
                await node.range_streams.stop(PATIENCE_S)
            assert (node.range_streams.serving, waiting_bytes(node)) == (0, 0)
            assert node.range_streams.offer() is None


@pytest.mark.usefixtures("buffers")
async def test_a_client_that_reads_is_told_when_the_broker_stops(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connected(node) as connection:
        await fill(node)
        await stalled(node, connection)
        node.broker.stopping = True
        *_, (kind, refusal) = await answers(connection)
        assert kind is Kind.REFUSED
        assert isinstance(refusal, pb.StreamRefusal)
        assert (refusal.code, "stopping" in refusal.details) == (14, True)


@pytest.mark.usefixtures("buffers")
async def test_a_stream_ends_with_its_deadline_though_its_client_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_streams, "LATE_S", 0.0)
    async with running(tmp_path) as node, connected(node) as connection:
        await fill(node)
        await stalled(node, connection, timeout_ms=500)
        await until(lambda: node.range_streams.serving == 0, "the deadline")
        assert waiting_bytes(node) == 0


@pytest.mark.usefixtures("buffers")
async def test_a_client_that_vanishes_is_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await fill(node)
        async with connected(node) as connection:
            await stalled(node, connection)
        await until(lambda: node.range_streams.serving == 0, "the broker to notice")
        streams = node.range_streams
        assert (waiting_bytes(node), streams.frame_bytes, streams.buffer_bytes) == (0, 0, 0)


@pytest.mark.usefixtures("buffers")
async def test_a_frame_is_read_from_the_store_when_its_client_has_read_the_one_before(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connected(node) as connection:
        await fill(node)
        before = node.status.counters()["get_messages"]
        await stalled(node, connection)
        for _ in range(100):
            await asyncio.sleep(0)
        taken = node.status.counters()["get_messages"] - before
        _, frame = await next_answer(connection)
        assert isinstance(frame, pb.PullFrame)
        assert taken == len(bodies_in(frame.records))
        await answers(connection)
        assert node.status.counters()["get_messages"] == before + 100


@pytest.mark.skipif(most_buffer() < range_streams.SEND_BUFFER, reason="net.core.wmem_max allows no such buffer")
async def test_a_frame_goes_to_the_kernel_as_a_whole(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connected(node) as connection:
        await fill(node)
        await stalled(node, connection, 3 << 20)
        assert node.range_streams.unsent_bytes == 0
        assert 3_000_000 < node.range_streams.queued_bytes < node.range_streams.buffer_bytes


async def test_large_buffers_have_a_bounded_number_of_bytes_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that exceeds the limit gets the kernel's default buffer."""
    monkeypatch.setattr(range_streams, "MAX_BUFFER_BYTES", 2 * range_streams.SEND_BUFFER)
    async with running(tmp_path) as node, connected(node) as second:
        await fill(node)
        async with connected(node) as first:
            await stalled(node, first)
            of_one = node.range_streams.buffer_bytes
            assert of_one > 0
            await stalled(node, second)
            assert node.range_streams.buffer_bytes == of_one
            assert node.range_streams.unsent_bytes > 3_000_000
        await until(lambda: node.range_streams.serving == 1, "the first one to end")
        assert node.range_streams.buffer_bytes == 0


async def test_frames_of_streams_have_a_bounded_number_of_bytes_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_streams, "MAX_UNSENT_BYTES", 5 << 20)
    async with running(tmp_path) as node, connected(node) as first, connected(node) as second, connected(node) as third:
        await fill(node)
        await stalled(node, first)
        await ask(second, node, ranges(1, max_frame_bytes=4 << 20))
        assert await next_answer(second) == (Kind.NO_ROOM, None)
        await ask(third, node, ranges(1, max_frame_bytes=1 << 20))
        assert (await next_answer(third))[0] is Kind.FRAME


@pytest.mark.usefixtures("buffers")
async def test_metrics_show_streams_and_what_waits_for_their_clients(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connected(node) as connection:
        await fill(node)
        await stalled(node, connection)
        node.metrics.take_snapshot()
        shown = {sample.name: sample.value for metric in node.metrics.collect() for sample in metric.samples}
        unsent, queued = (shown[f"rocketsim_range_stream_{name}_bytes"] for name in ("unsent", "queued"))
        assert shown["rocketsim_range_streams"] == 1
        assert (unsent, queued) == (node.range_streams.unsent_bytes, node.range_streams.queued_bytes)
        assert queued > 0
        assert unsent + queued > 4_000_000


async def test_traffic_counts_what_streams_carry(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connected(node) as connection:
        await put(node, "t", b"x", b"y")
        before = node.status.counters()["get_messages"]
        await ask(connection, node, ranges(2))
        await answers(connection)
        assert node.status.counters()["get_messages"] == before + 2


async def test_a_damaged_log_ends_its_stream_with_the_calls_error(tmp_path: Path) -> None:
    async with running(tmp_path) as node, connected(node) as connection:
        await put(node, "t", b"x")
        (queue,) = (tmp_path / "consumequeue/t/0").iterdir()
        with queue.open("r+b") as file:
            file.write((64).to_bytes(8, "big"))
        await ask(connection, node, ranges(1))
        kind, refusal = await next_answer(connection)
        assert kind is Kind.REFUSED
        assert isinstance(refusal, pb.StreamRefusal)
        assert refusal.status == grpc.StatusCode.DATA_LOSS.value[0]
        async with connected(node) as another:
            await put(node, "u", b"fine")
            await ask(another, node, ranges(1, topic="u"))
            assert [kind for kind, _ in await answers(another)] == [Kind.FRAME, Kind.END]


async def test_what_the_disk_cannot_read_ends_its_stream_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as node, connected(node) as connection, connected(node) as another:
        await put(node, "t", b"x")
        await put(node, "u", b"fine")
        read_ranges = node.store.queues.read_ranges

        def reading(spans: Iterable[tuple[str, int, int, int]], *others: Any) -> Any:
            spans = list(spans)
            if spans[0][0] == "t":
                raise ReadFailed("00000000000000000000: a bad sector")
            return read_ranges(spans, *others)

        monkeypatch.setattr(node.store.queues, "read_ranges", reading)
        await ask(connection, node, ranges(1))
        await ask(another, node, ranges(1, topic="u"))
        kind, refusal = await next_answer(connection)
        assert isinstance(refusal, pb.StreamRefusal)
        assert (kind, refusal.status) == (Kind.REFUSED, grpc.StatusCode.DATA_LOSS.value[0])
        assert "a bad sector" in refusal.details
        assert [kind for kind, _ in await answers(another)] == [Kind.FRAME, Kind.END]


async def test_a_frame_that_comes_from_the_disk_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a large frame of bytes that were just read would block the event loop for too long."""
    async with running(tmp_path) as node, connected(node) as connection:
        bodies = await fill(node)
        log_file = next((tmp_path / "commitlog").iterdir())
        read_ranges, limits = node.store.queues.read_ranges, list[int]()

        def cold_at_first(spans: Iterable[tuple[str, int, int, int]], max_bytes: int, *others: Any) -> Any:
            limits.append(max_bytes)
            if len(limits) in (1, 3):
                raise Cold([(log_file, 0, 4096)])
            return read_ranges(spans, max_bytes, *others)

        monkeypatch.setattr(node.store.queues, "read_ranges", cold_at_first)
        await ask(connection, node, ranges(100, max_frame_bytes=3 << 20))
        frames = [frame for _, frame in await answers(connection) if isinstance(frame, pb.PullFrame)]
        assert limits[:5] == [3 << 20, 1 << 20, 3 << 20, 1 << 20, 3 << 20]
        sizes = [len(frame.records) for frame in frames]
        assert max(sizes[:2]) <= 1 << 20
        assert sizes[2] > 2 << 20
        assert [body for frame in frames for body in bodies_in(frame.records)] == bodies


def test_an_answer_that_is_larger_than_allowed_is_seen_before_it_is_read() -> None:
    for size in ((range_stream.MAX_MESSAGE_BYTES + 1, 0), (0, range_stream.MAX_RECORDS_BYTES + 1)):
        with pytest.raises(range_stream.Illegal):
            range_stream.answer_of(range_stream.ANSWER_HEAD.pack(0, *size))
    with pytest.raises(range_stream.Illegal):
        range_stream.answer_of(range_stream.ANSWER_HEAD.pack(9, 0, 0))
