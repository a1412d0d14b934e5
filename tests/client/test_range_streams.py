"""Ranges over plain sockets in the client: when sockets are used, how a stream ends, and forks."""

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import range_stream
from rocketsim_proto.bytes_field import Received
from rocketsim_proto.range_stream import Kind

from rocketsim_client import Cluster, Message, MessageQueue, Producer, QueueRange
from rocketsim_client.connection import Connection
from rocketsim_client.errors import (
    BadAnswer,
    BrokerUnavailable,
    CallTimeout,
    ClientClosed,
    RocketSimError,
    TopicNotExist,
)
from rocketsim_client.transport.own import stream_call
from rocketsim_client.transport.own.range_streams import RangeStreams
from rocketsim_client.transport.own.reads import GrpcReads
from rocketsim_client.transport.own.stream_offers import StreamOffers
from rocketsim_client.transport.own.transport import GrpcTransport
from testbed.polling import wait_until
from testbed.processes import Processes
from tests.client.test_fork import in_child
from tests.support.brokers import message

QUEUE = MessageQueue("T", "broker-a", 0)
COUNT = 400
RANGES = [QueueRange("T", 0, 0, COUNT)]
ADDRESS = "127.0.0.1:1"


# --- a broker ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as made:
        yield made


def start(processes: Processes, **keys: object) -> tuple[Any, Any]:
    """Starts a broker with COUNT messages of 10,000 bytes in one queue, more than the sockets' buffers hold."""
    name_server = processes.start_namesrv()
    broker = processes.start_broker("broker-a", 0, name_server, **keys)
    with Cluster(name_server.address) as cluster:
        await_writable(cluster)
    with Producer(name_server.address) as producer:
        producer.send_batch([Message("T", b"x") for _ in range(4)])
        for _ in range(COUNT // 50):
            producer.send_batch([Message("T", os.urandom(10_000)) for _ in range(50)], queue=QUEUE)
    return name_server, broker


def await_writable(cluster: Cluster) -> None:
    def is_writable() -> bool:
        try:
            return bool(cluster.route("TBW102", fresh=True).writable_queues())
        except RocketSimError:
            return False

    wait_until(is_writable, "a master that takes writes")


@pytest.fixture
def taken(monkeypatch) -> list[int]:
    """Notes the address family of each socket that a range was read from."""
    found: list[int] = []
    real = stream_call.StreamCall.frames

    def frames(self: Any) -> Any:
        found.append(self._socket.family)
        return real(self)

    monkeypatch.setattr(stream_call.StreamCall, "frames", frames)
    return found


def streams_of(cluster: Cluster) -> RangeStreams:
    assert isinstance(cluster.transport.reads, GrpcReads) and cluster.transport.reads.streams is not None
    return cluster.transport.reads.streams


def count(frames: Any) -> int:
    return sum(frame.count for frame in frames)


@pytest.mark.cluster
def test_the_first_call_asks_and_all_go_over_the_unix_socket(processes, taken, caplog):
    name_server, broker = start(processes)
    caplog.set_level("INFO", "rocketsim_client.transport.own.reads")
    with Cluster(name_server.address) as cluster:
        assert count(cluster.pull_range("broker-a", RANGES)) == COUNT
        assert count(cluster.pull_range("broker-a", RANGES, max_frame_bytes=50_000)) == COUNT
        assert taken == [socket.AF_UNIX] * 2
        assert cluster.broker_bounds("T", "broker-a")[0].ranges_pulled == (2, 0)
        assert caplog.messages == [f"ranges of {broker.address} come over a plain socket"]
        with pytest.raises(TopicNotExist):
            list(cluster.transport.reads.pull_range(broker.address, [QueueRange("absent", 0, 0, 1)], **CALL))
        assert len(taken) == 3
        # The restarted broker has a new socket: the next call notices that, asks for an offer again, and gets its
        # stream.
        broker.kill()
        broker.start()
        await_writable(cluster)
        del taken[:]
        assert count(cluster.pull_range("broker-a", RANGES)) == COUNT
        assert taken == [socket.AF_UNIX]
        frames = cluster.pull_range("broker-a", RANGES, max_frame_bytes=20_000)
        next(frames)  # reads only one frame: a client that does not read must not keep a broker from stopping
        assert broker.stop() == 0
        frames.close()  # type: ignore[attr-defined]  # a generator


@pytest.mark.cluster
def test_grpc_is_used_where_the_client_or_the_broker_wants_it(processes, taken, caplog):
    name_server, broker = start(processes)
    caplog.set_level("INFO", "rocketsim_client.transport.own.reads")
    with Cluster(name_server.address, range_streams=False) as cluster:
        assert count(cluster.pull_range("broker-a", RANGES, group="g")) == COUNT
        told = cluster.broker_bounds("T", "broker-a", group="g")[0]
        assert (told.offers_streams, told.ranges_pulled) == (True, (0, 1)), "what is offered is not what is used"
        assert cluster.broker_bounds("T", "broker-a", group="other")[0].ranges_pulled == (0, 0)
        assert caplog.messages == [f"ranges of {broker.address} come over gRPC"]
    broker.stop()
    broker.keys["pullRangeStreamEnable"] = "false"
    broker.start()
    with Cluster(name_server.address) as cluster:
        await_writable(cluster)
        assert count(cluster.pull_range("broker-a", RANGES)) == COUNT
    assert taken == []


@pytest.mark.cluster
def test_a_client_on_another_machine_uses_the_port(processes, taken, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    name_server, _ = start(processes, pullRangeStreamPort=port)
    real = StreamOffers.offered

    def offered(self: StreamOffers, address: str, offer: pb.StreamOffer) -> None:
        assert offer.port == port
        real(self, address, pb.StreamOffer(instance=offer.instance, unix_name="not on this machine", port=offer.port))

    monkeypatch.setattr(StreamOffers, "offered", offered)
    with Cluster(name_server.address) as cluster:
        assert count(cluster.pull_range("broker-a", RANGES)) == COUNT
    assert taken == [socket.AF_INET]


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_reads_by_streams_of_its_own_and_holds_none_of_its_parents(processes, taken):
    name_server, _ = start(processes)
    with Cluster(name_server.address) as cluster:
        assert count(cluster.pull_range("broker-a", RANGES)) == COUNT
        frames = cluster.pull_range("broker-a", RANGES, max_frame_bytes=20_000)
        first = next(frames)
        inherited = next(iter(streams_of(cluster).sockets.open)).fileno()

        def child() -> None:
            with pytest.raises(OSError):
                os.fstat(inherited)
            assert count(cluster.pull_range("broker-a", RANGES)) == COUNT

        for _ in range(3):
            in_child(child)
        assert first.count + count(frames) == COUNT
        assert not streams_of(cluster).sockets.open


CALL: dict[str, Any] = {"group": "g", "expression": "*", "max_frame_bytes": 1 << 20, "timeout_s": 5.0}


# --- a server that does what it is told -------------------------------------------------------------------------------


class Scripted:
    """A scripted server: it sends `said` on each connection, and closes the connection unless `holds`.  Over TCP the
    server also offers a Unix socket that does not exist.
    """

    def __init__(self, family: socket.AddressFamily = socket.AF_UNIX) -> None:
        self.said = b""
        self.holds = False
        self.takes = True  # whether to read the records of a Send
        self.asked: list[pb.StreamRequest] = []
        self.taken: list[bytes] = []
        self.offer = pb.StreamOffer(
            instance=b"i", unix_name=f"rocketsim-test-{os.getpid()}-{id(self)}", max_send_bytes=32 << 20
        )
        self._listening = socket.socket(family)
        if family == socket.AF_UNIX:
            self._listening.bind(f"\0{self.offer.unix_name}")
        else:
            self._listening.bind(("127.0.0.1", 0))
            self.offer.port = self._listening.getsockname()[1]
        self._listening.listen()
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._held.append(connection)
            head = connection.recv(range_stream.REQUEST_HEAD.size, socket.MSG_WAITALL)
            if len(head) < range_stream.REQUEST_HEAD.size:  # the client's time was up before it had sent its request
                continue
            size = range_stream.request_length(head)
            self.asked.append(pb.StreamRequest.FromString(connection.recv(size, socket.MSG_WAITALL)))
            if self.takes and (rest := self.asked[-1].records_bytes):
                self.taken.append(connection.recv(rest, socket.MSG_WAITALL))
            with contextlib.suppress(OSError):  # the client does not wait for the whole answer
                connection.sendall(self.said)
            if not self.holds:
                connection.close()

    def close(self) -> None:
        if self._listening.fileno() >= 0:
            self._listening.shutdown(socket.SHUT_RDWR)  # ends the thread's accept
            self._thread.join()  # the thread first closes a connection that it has just accepted
            self._listening.close()
        for one in self._held:
            one.close()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.close()


@pytest.fixture
def streams(scripted) -> RangeStreams:
    made = RangeStreams()
    made.offers.offered(ADDRESS, scripted.offer)
    return made


def frame_bytes(*bodies: bytes) -> bytes:
    records = [message("T", body) for body in bodies]
    sizes = struct.pack(f"<{len(records)}I", *map(len, records))
    told = pb.PullFrame(sizes=sizes, segments=[{"count": len(records), "next_offset": len(records)}])
    return range_stream.answer(Kind.FRAME, told.SerializeToString(), sum(map(len, records))) + b"".join(records)


def asked_for(streams: RangeStreams, timeout_s: float = 10.0) -> Any:
    return streams.frames(ADDRESS, pb.PullRangeRequest(), time.monotonic() + timeout_s, timeout_s)


def test_frames_come_as_they_were_sent_and_cannot_be_written_to(scripted, streams):
    scripted.said = frame_bytes(b"a", b"b") + frame_bytes() + frame_bytes(b"c") + range_stream.answer(Kind.END)
    found = list(asked_for(streams))
    assert [one.message.segments[0].count for one in found] == [2, 0, 1]
    assert bytes(found[0].records) == message("T", b"a") + message("T", b"b")
    assert found[0].records.readonly
    assert (scripted.asked[0].version, scripted.asked[0].instance) == (range_stream.VERSION, b"i")
    assert 0 < scripted.asked[0].timeout_ms <= 10_000
    assert streams.offers.accepts(ADDRESS)


@pytest.mark.parametrize("said", [b"", range_stream.answer(Kind.NOT_HERE)], ids=["closed", "not here"])
def test_a_stream_that_cannot_be_had_is_left_to_grpc(scripted, streams, said):
    scripted.said = said
    assert asked_for(streams) is None
    assert asked_for(streams) is None
    assert len(scripted.asked) == 1, "the offer is used once more"


def test_a_broker_without_room_is_asked_again_by_the_next_call(scripted, streams, monkeypatch):
    """A call that finds no room continues over gRPC, and does not ask for a stream there."""
    transport = GrpcTransport(Connection.of("127.0.0.1:1"))
    transport.streams = transport.reads.streams = streams
    over_grpc: list[bool] = []

    def stream(address: str, stub: object, call: str, request: pb.PullRangeRequest, timeout_s: float) -> Iterator[Any]:
        over_grpc.append(request.accepts_stream)
        yield Received(memoryview(b""), pb.PullFrame(suggest_which_broker_id=7))

    monkeypatch.setattr(transport.channels, "stream", stream)
    for _ in range(2):
        scripted.said = range_stream.answer(Kind.NO_ROOM)
        (frame,) = transport.reads.pull_range(ADDRESS, RANGES, **CALL)
        assert frame.suggest_which_broker_id == 7
    scripted.said = range_stream.answer(Kind.END)
    assert list(transport.reads.pull_range(ADDRESS, RANGES, **CALL)) == []
    assert over_grpc == [False, False]
    assert len(scripted.asked) == 3
    transport.close()


def test_the_same_offer_is_not_tried_again_for_a_while(scripted, streams, monkeypatch):
    transport = GrpcTransport(Connection.of("127.0.0.1:1"))
    transport.streams = transport.reads.streams = streams
    over_grpc: list[bool] = []

    def stream(address: str, stub: object, call: str, request: pb.PullRangeRequest, timeout_s: float) -> Iterator[Any]:
        over_grpc.append(request.accepts_stream)
        yield Received(memoryview(b""), pb.PullFrame(stream=scripted.offer if request.accepts_stream else None))

    monkeypatch.setattr(transport.channels, "stream", stream)
    scripted.said = range_stream.answer(Kind.NOT_HERE)
    for _ in range(2):
        assert len(list(transport.reads.pull_range(ADDRESS, RANGES, **CALL))) == 1
    assert over_grpc == [True, False, False]
    assert len(scripted.asked) == 1
    assert not streams.offers.accepts(ADDRESS)
    transport.close()


def test_a_socket_that_is_not_there_is_left_to_grpc(scripted, streams):
    scripted.close()
    assert asked_for(streams) is None


def test_a_request_that_is_too_long_is_left_to_grpc(scripted, streams, monkeypatch):
    monkeypatch.setattr(range_stream, "MAX_REQUEST_BYTES", 3)
    assert asked_for(streams) is None
    assert scripted.asked == []
    assert streams.offers.accepts(ADDRESS)
    assert not streams.offers.wants_offer(ADDRESS)


@pytest.mark.parametrize("cut", [1, 16, 30, -1])
def test_a_stream_that_breaks_off_is_an_error_and_grpc_is_used_for_a_while(scripted, streams, cut):
    scripted.said = frame_bytes(b"a") + frame_bytes(b"b")[:cut]
    frames = asked_for(streams)
    assert next(frames).message.segments[0].count == 1
    with pytest.raises(BrokerUnavailable):
        next(frames)
    assert not streams.offers.accepts(ADDRESS)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(range_stream.ANSWER_HEAD.pack(0, 0, 1 << 60), id="records"),
        pytest.param(range_stream.ANSWER_HEAD.pack(0, 1 << 31, 0), id="message"),
        pytest.param(range_stream.ANSWER_HEAD.pack(7, 0, 0), id="kind"),
        pytest.param(range_stream.answer(Kind.FRAME, b"\xff\xff\xff"), id="no message"),
    ],
)
@pytest.mark.parametrize("before", [b"", frame_bytes(b"a")], ids=["first", "behind a frame"])
def test_an_answer_that_cannot_be_is_not_read(scripted, streams, head, before):
    scripted.said = before + head
    scripted.holds = True
    with pytest.raises(BadAnswer):
        list(asked_for(streams))
    assert not streams.offers.accepts(ADDRESS)


@pytest.mark.parametrize("said", [b"", frame_bytes(b"a")[:40], frame_bytes(b"a")], ids=["nothing", "a part", "a frame"])
def test_a_silent_broker_is_a_timeout(scripted, streams, said):
    scripted.said, scripted.holds = said, True
    with pytest.raises(CallTimeout):
        list(asked_for(streams, timeout_s=0.2))
    assert not streams.sockets.open


def ended_by_closing(scripted: Scripted, streams: RangeStreams, call: Callable[[], object]) -> list[BaseException]:
    """Closes the client while a thread waits in `call`, and returns what the call raises there."""
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            call()
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: scripted.asked, "the call")
    streams.close()
    thread.join(60)
    return ended


@pytest.mark.parametrize("said", [b"", frame_bytes(b"a")], ids=["before the first frame", "behind it"])
def test_closing_the_client_ends_a_call_that_waits(scripted, streams, said):
    scripted.said, scripted.holds = said, True
    ended = ended_by_closing(scripted, streams, lambda: list(asked_for(streams)))
    assert [type(error) for error in ended] == [ClientClosed]
    with pytest.raises(ClientClosed):
        asked_for(streams)


def test_a_caller_that_stops_closes_its_connection(scripted, streams):
    scripted.said, scripted.holds = frame_bytes(b"a"), True
    frames = asked_for(streams)
    next(frames)
    assert len(streams.sockets.open) == 1
    frames.close()
    assert not streams.sockets.open


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_the_broker_hears_of_a_call_that_ends_though_a_child_lives(scripted, streams):
    scripted.said, scripted.holds = frame_bytes(b"a"), True
    frames = asked_for(streams)
    next(frames)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        frames.close()
        wait_until(lambda: scripted._held, "the connection")
        scripted._held[0].settimeout(10)
        assert scripted._held[0].recv(1) == b""
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
