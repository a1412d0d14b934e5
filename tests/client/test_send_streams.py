"""Sends over plain sockets in the client: when sockets are used, how a call ends, and what is sent again."""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import range_stream
from rocketsim_proto.range_stream import Kind
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records

from rocketsim_client import Cluster, Message, Producer, PullConsumer, SendStatus
from rocketsim_client.errors import BadAnswer, BrokerUnavailable, CallTimeout, ClientClosed, SendFailed, SystemBusy
from rocketsim_client.transport.own import stream_call, stream_offers
from rocketsim_client.transport.own.range_streams import RangeStreams
from rocketsim_client.transport.own.stream_offers import StreamOffers
from rocketsim_client.transport.own.stream_sockets import StreamSockets
from testbed.polling import wait_until
from testbed.processes import Processes
from tests.client.test_fork import in_child
from tests.client.test_range_streams import ADDRESS, Scripted, await_writable, ended_by_closing, streams_of

BODIES = pa.array([b"%06d" % number * 100 for number in range(500)])
FRAME = b"f" * (1 << 20)
LONG = b"l" * (20 << 20)  # more bytes than a socket takes at once
REQUEST = pb.SendRequest(topic="T", count=1)


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.close()


@pytest.fixture
def streams(scripted: Scripted) -> RangeStreams:
    made = RangeStreams()
    made.offers.offered(ADDRESS, scripted.offer)
    return made


def send(streams: RangeStreams, records: bytes = FRAME, timeout_s: float = 30.0) -> pb.SendResponse | None:
    return streams.send(ADDRESS, REQUEST, records, timeout_s)


def opens(monkeypatch: pytest.MonkeyPatch, sockets: StreamSockets, kind: Callable[..., Any]) -> None:
    """From now on the calls use sockets of this kind."""
    monkeypatch.setattr(sockets, "opened", lambda family: kind(family, socket.SOCK_STREAM))


def seconds_of(timeout: bytes) -> float:
    """Returns the value of a socket's SO_RCVTIMEO."""
    seconds, micros = struct.unpack("@ll", timeout)
    return float(seconds + micros / 1e6)


def answered(*, status: int = 0) -> bytes:
    return range_stream.answer(Kind.SENT, pb.SendResponse(status=status, epoch=7).SerializeToString())


# --- a server that does what it is told -------------------------------------------------------------------------------


def test_a_frame_comes_as_it_was_sent_and_its_answer_is_the_calls(scripted, streams):
    scripted.said = answered()
    assert send(streams) == pb.SendResponse(epoch=7)
    (asked,) = scripted.asked
    assert (asked.version, asked.instance, asked.send) == (range_stream.VERSION, b"i", REQUEST)
    assert 0 < asked.timeout_ms <= 30_000
    assert scripted.taken == [FRAME]
    assert not streams.sockets.open
    assert streams.offers.accepts(ADDRESS)


@pytest.mark.parametrize("records", [FRAME, LONG], ids=["sent", "half sent"])
@pytest.mark.parametrize("takes", [True, False])
def test_a_broker_without_room_is_asked_again_by_the_next_call(scripted, streams, records, takes):
    scripted.said, scripted.takes = range_stream.answer(Kind.NO_ROOM), takes
    assert send(streams, records) is None
    assert streams.offers.accepts(ADDRESS)
    assert not streams.offers.wants_offer(ADDRESS)
    assert not streams.sockets.open
    scripted.said, scripted.takes = answered(), True
    assert send(streams, records) is not None


@pytest.mark.parametrize("records", [FRAME, LONG], ids=["sent", "half sent"])
def test_what_the_broker_does_not_take_is_left_to_grpc(scripted, streams, records):
    scripted.said, scripted.takes = range_stream.answer(Kind.NOT_HERE), False
    assert send(streams, records) is None
    assert send(streams, records) is None
    assert len(scripted.asked) == 1, "the offer is used once more"
    assert not streams.sockets.open


def test_a_broker_that_hangs_up_before_it_has_all_is_left_to_grpc(scripted, streams):
    """A broker that closes the connection so early cannot have stored anything."""
    scripted.takes = False
    assert send(streams, LONG) is None
    assert not streams.sockets.open


def test_a_socket_that_is_not_there_is_left_to_grpc_and_asked_for_anew_later(scripted, streams, monkeypatch):
    passed_s = 0.0
    monkeypatch.setattr(stream_offers, "time", SimpleNamespace(monotonic=lambda: 1000 + passed_s))
    scripted.close()
    assert send(streams) is None
    assert streams.offers.wants_offer(ADDRESS)
    streams.offers.offered(ADDRESS, scripted.offer)  # the same offer again: this machine cannot use it
    assert not streams.offers.wants_offer(ADDRESS)
    other = pb.StreamOffer(instance=b"j", unix_name="another", max_send_bytes=1)
    passed_s = stream_offers.NOT_AGAIN_FOR_S
    assert streams.offers.wants_offer(ADDRESS)
    streams.offers.offered(ADDRESS, other)
    assert not streams.offers.wants_offer(ADDRESS)
    assert streams.offers.usable(ADDRESS) == other


@pytest.mark.parametrize("most", [0, len(FRAME) - 1], ids=["an older broker", "a long frame"])
def test_a_frame_that_is_longer_than_offered_is_left_to_grpc(scripted, most):
    streams = RangeStreams(tcp=False)
    scripted.offer.max_send_bytes = most
    streams.offers.offered(ADDRESS, scripted.offer)
    assert send(streams) is None
    assert scripted.asked == []
    assert not streams.offers.wants_offer(ADDRESS)


def test_over_tcp_a_small_frame_is_left_to_grpc_whose_connection_is_there():
    scripted = Scripted(socket.AF_INET)
    with closing(scripted):
        elsewhere = RangeStreams()
        elsewhere.offers.offered(ADDRESS, scripted.offer)
        scripted.said = answered()
        small = b"s" * (range_stream.MIN_TCP_SEND_BYTES - 1)
        assert send(elsewhere, small) is not None, "the first one finds that there is no Unix socket"
        assert send(elsewhere, small) is None
        assert send(elsewhere, small + b"s") is not None
        assert not elsewhere.offers.wants_offer(ADDRESS)
    assert [len(taken) for taken in scripted.taken] == [len(small), len(small) + 1]


@pytest.mark.parametrize("cut", [0, 1, 15, 17, -1])
def test_a_connection_that_ends_before_the_answer_says_nothing_of_the_frame(scripted, streams, cut):
    scripted.said = answered()[:cut]
    with pytest.raises(BrokerUnavailable):
        send(streams)
    assert scripted.taken == [FRAME]
    assert not streams.offers.accepts(ADDRESS)
    assert not streams.sockets.open


def test_a_refusal_is_the_calls(scripted, streams):
    told = pb.StreamRefusal(status=8, code=2, details="busy")
    scripted.said = range_stream.answer(Kind.REFUSED, told.SerializeToString())
    with pytest.raises(SystemBusy, match="busy"):
        send(streams)
    assert streams.offers.accepts(ADDRESS)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(range_stream.ANSWER_HEAD.pack(Kind.SENT, 1 << 31, 0), id="long"),
        pytest.param(range_stream.ANSWER_HEAD.pack(9, 0, 0), id="kind"),
        pytest.param(range_stream.answer(Kind.END), id="another call's"),
        pytest.param(range_stream.answer(Kind.SENT, b"\xff\xff\xff"), id="no message"),
    ],
)
def test_an_answer_that_cannot_be_is_not_believed(scripted, streams, said):
    scripted.said = said
    with pytest.raises(BadAnswer):
        send(streams)
    assert not streams.offers.accepts(ADDRESS)


@pytest.mark.parametrize("records", [FRAME, LONG], ids=["sent", "half sent"])
def test_a_silent_broker_is_a_timeout(scripted, streams, records):
    scripted.holds, scripted.takes = True, False
    with pytest.raises(CallTimeout):
        send(streams, records, timeout_s=0.3)
    assert not streams.sockets.open


def test_the_answer_has_the_time_that_sending_left(scripted, streams, monkeypatch):
    scripted.said = answered()
    left: list[float] = []
    passed_s = 0.0

    class Slow(socket.socket):
        """A socket that takes 20 seconds for each write."""

        def sendmsg(self, *given: Any) -> int:
            nonlocal passed_s
            passed_s += 20.0
            return super().sendmsg(*given)

        def setsockopt(self, level: int, option: int, value: Any) -> None:  # type: ignore[override]
            if option == socket.SO_RCVTIMEO:
                left.append(seconds_of(value))
            super().setsockopt(level, option, value)

    opens(monkeypatch, streams.sockets, Slow)
    monkeypatch.setattr(stream_call, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s))
    assert send(streams, timeout_s=1020.0) is not None
    assert len(left) >= 2 and max(left) <= 1000, "the head and the message"


class Dripping:
    """A socket that accepts all data, and whose peer sends `said` at once and then a byte a second."""

    family = socket.AF_INET

    def __init__(self, said: bytes) -> None:
        self.now = 1000.0
        self.limits: list[float] = []  # the time limit of each read, in seconds
        self._said = said

    def connect(self, where: object) -> None: ...

    def settimeout(self, timeout_s: float) -> None: ...

    def setblocking(self, blocks: bool) -> None: ...

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if option == socket.SO_RCVTIMEO:
            self.limits.append(seconds_of(value))

    def sendmsg(self, parts: list[memoryview], *others: object) -> int:
        return sum(map(len, parts))

    def recv_into(self, view: memoryview, size: int, flags: int) -> int:
        if not self._said:
            self.now += 1
            return 1
        got = min(len(view), len(self._said))
        view[:got], self._said = self._said[:got], self._said[got:]
        return got

    def recvmsg_into(self, parts: list[memoryview], size: int, flags: int) -> tuple[int]:
        return (self.recv_into(parts[0], size, flags),)


@pytest.mark.parametrize("said", [b"", range_stream.ANSWER_HEAD.pack(Kind.SENT, 40, 40)], ids=["head", "body"])
def test_a_broker_that_drips_bytes_holds_no_call_beyond_its_deadline(monkeypatch, said):
    dripping, sockets = Dripping(said), StreamSockets()
    monkeypatch.setattr(stream_call, "time", SimpleNamespace(monotonic=lambda: dripping.now))
    opens(monkeypatch, sockets, lambda *_: dripping)
    call = stream_call.StreamCall(StreamOffers(), sockets, "Send", ADDRESS, dripping.now + 10, 10.0)
    with pytest.raises(CallTimeout):
        call.send(pb.StreamOffer(port=1), REQUEST, FRAME)
    assert dripping.now == 1010
    assert dripping.limits[bool(said) :] == pytest.approx(range(10, 0, -1), abs=1e-3)


def test_connecting_takes_no_longer_than_the_call(monkeypatch):
    limits: list[float | None] = []

    class Silent(socket.socket):
        def connect(self, where: object) -> None:
            limits.append(self.gettimeout())
            raise TimeoutError

    elsewhere = RangeStreams()
    elsewhere.offers.offered(ADDRESS, pb.StreamOffer(port=1, max_send_bytes=len(FRAME)))
    opens(monkeypatch, elsewhere.sockets, Silent)
    assert send(elsewhere, timeout_s=0.5) is None
    (limit_s,) = limits
    assert limit_s is not None and limit_s <= 0.5


@pytest.mark.parametrize("records", [FRAME, LONG], ids=["sent", "half sent"])
def test_closing_the_client_ends_a_call_that_waits(scripted, streams, records):
    scripted.holds, scripted.takes = True, False
    ended = ended_by_closing(scripted, streams, lambda: send(streams, records))
    assert [type(error) for error in ended] == [ClientClosed]


# --- as a producer sees it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["late", "broken"])
@pytest.mark.parametrize("retries", [0, 1])
def test_a_frame_without_an_answer_may_be_stored_and_is_sent_again_under_its_ids(
    cluster, scripted, monkeypatch, ends, retries
):
    """A call over gRPC that gets no answer has the same outcome."""
    cluster.stop("broker-b")
    broker = cluster.brokers["broker-a", 0]
    lost = iter([ends == "late"])

    class Late(socket.socket):
        def recv_into(self, *given: Any) -> int:
            if next(lost, False):
                wait_until(lambda: scripted.taken, "the frame")
                scripted.said, scripted.takes = range_stream.answer(Kind.NO_ROOM), False
                raise BlockingIOError  # as when the socket's SO_RCVTIMEO has passed
            return super().recv_into(*given)

    with Producer(
        cluster.address, retry_times_when_send_failed=retries, retry_times_when_send_async_failed=retries, timeout_s=30
    ) as producer:
        opens(monkeypatch, streams_of(producer.cluster).sockets, Late)
        streams_of(producer.cluster).offers.offered(broker.address, scripted.offer)
        if not retries:
            told = "no answer within" if ends == "late" else "ended before the answer"
            with pytest.raises(SendFailed, match=told) as failed:
                producer.send_columns("T", BODIES)
            assert (failed.value.attempts, failed.value.maybe_stored) == (1, True)
            return
        results = producer.send_columns("T", BODIES)
        assert producer.stats.sent_again == len(BODIES)
    ids = [result.msg_id for result in results]
    (frame,) = scripted.taken
    starts = Records.walk(frame, len(BODIES)).starts.tolist()
    assert sorted(record.decode(frame, at).message_id for at in starts) == sorted(ids)
    assert sorted(stored.message_id for stored in cluster.messages("T")) == sorted(ids)


# --- a broker ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def taken(monkeypatch) -> list[int]:
    """Notes the address family of each socket that took a frame."""
    found: list[int] = []
    real = stream_call.StreamCall.send

    def sent(self: Any, *args: Any) -> Any:
        answer = real(self, *args)
        if answer is not None:
            found.append(self._socket.family)
        return answer

    monkeypatch.setattr(stream_call.StreamCall, "send", sent)
    return found


def ids_in(name_server: Any) -> list[str]:
    with PullConsumer(name_server.address) as consumer:
        return [msg_id for batch in consumer.read("T") for msg_id in batch.column("msgId").to_pylist()]


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_frames_go_over_the_unix_socket_and_are_sent_again_under_their_ids(tmp_path, taken, monkeypatch):
    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv()
        broker = processes.start_broker("broker-a", 0, name_server)
        with Cluster(name_server.address) as cluster, Producer(name_server.address, cluster=cluster) as producer:
            await_writable(cluster)
            sent = [result for _ in range(3) for result in producer.send_columns("T", BODIES)]
            assert taken == [socket.AF_UNIX] * 2  # the first one asks
            assert producer.send(Message("T", b"one")).send_status == SendStatus.SEND_OK
            assert taken == [socket.AF_UNIX] * 3, "one message, too"
            places = [(result.message_queue, result.queue_offset) for result in sent]
            assert len(set(places)) == len(places) == 3 * len(BODIES)

            in_child(lambda: producer.send_columns("T", BODIES))
            assert len(producer.send_columns("T", BODIES)) == len(BODIES)
            assert len(taken) == 4

            lost = iter([True])

            class Lossy(socket.socket):
                def recv_into(self, *given: Any) -> int:
                    got = super().recv_into(*given)
                    return 0 if next(lost, False) else got  # 0: the connection was closed

            opens(monkeypatch, streams_of(cluster).sockets, Lossy)
            again = producer.send_columns("T", BODIES)
            assert producer.stats.sent_again == len(BODIES)
            assert len(taken) == 4, "the second attempt is gRPC's"
            found = ids_in(name_server)
            assert len(found) == 7 * len(BODIES) + 1
            assert len(set(found)) == 6 * len(BODIES) + 1
            assert {msg_id for msg_id in found if found.count(msg_id) > 1} == {result.msg_id for result in again}
            assert broker.stop() == 0


@pytest.mark.cluster
def test_grpc_is_used_where_the_client_or_the_broker_wants_it(tmp_path, taken):
    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv()
        broker = processes.start_broker("broker-a", 0, name_server)
        for streams, enabled in ((False, True), (True, False)):
            if not enabled:
                broker.stop()
                broker.keys["pullRangeStreamEnable"] = "false"
                broker.start()
            with Cluster(name_server.address, range_streams=streams) as cluster:
                await_writable(cluster)
                with Producer(name_server.address, cluster=cluster) as producer:
                    for _ in range(2):
                        assert len(producer.send_columns("T", BODIES)) == len(BODIES)
        assert taken == []
