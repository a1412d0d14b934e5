"""A slave's stream over a plain socket: what the two ends do if the other end, or the way between them, fails."""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketsim_proto import range_stream
from rocketsim_proto import replication_pb2 as pb
from rocketsim_proto.broker_pb2 import StreamOffer, StreamRequest
from rocketsim_proto.range_stream import ANSWER_HEAD, MESSAGE_HEAD, Kind

from broker_service.errors import ServiceNotAvailable
from broker_service.replication import master as master_module
from broker_service.replication import socket_streams
from broker_service.replication.master_frame import MasterFrame
from broker_service.replication.refusals import ProtocolViolation
from broker_service.replication.slave import SlaveSettings
from broker_service.replication.socket_streams import MasterSocket, SlaveSocket
from broker_service.replication.transfer import TransferSettings
from broker_service.runtime.peer_call import PeerLost
from tests.support.memory_log import MemoryLog
from tests.support.pair import Node, hello, until
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture(autouse=True)
def plain_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "plain_sockets", "unix")


def ends() -> tuple[SlaveSocket, MasterSocket]:
    one, other = socket.socketpair()
    return SlaveSocket(one), MasterSocket(other)


def pair(tmp_path: Path) -> tuple[Node, Node]:
    return Node(MemoryLog(), tmp_path / "m", 0), Node(MemoryLog(), tmp_path / "s", 1)


@dataclass
class Offered:
    sockets: StreamOffer

    def offer_to_slave(self) -> StreamOffer:
        return self.sockets


def offer_of(master: Node) -> StreamOffer:
    """Returns a copy of what the master offers."""
    assert master.master.sockets is not None
    made, offer = StreamOffer(), master.master.sockets.offer_to_slave()
    assert offer is not None
    made.CopyFrom(offer)
    return made


async def follows_over(master: Node, slave: Node, caplog: pytest.LogCaptureFixture) -> str:
    """Returns over what the slave follows the master, after a record has reached it."""
    caplog.set_level(logging.INFO)
    async with slave.following(master):
        master.put(b"a record")
        await until(lambda: slave.log.data == master.log.data and slave.slave.is_following())
    (line,) = [line for line in caplog.messages if line.startswith("following")]
    return line.partition(" over ")[2].partition(":")[0]


# --- the messages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_000, 65_536, 3 << 20])
async def test_log_bytes_and_messages_arrive_as_they_were_sent(size: int) -> None:
    slave, master = ends()
    data = bytes(range(256)) * (size // 256 + 1)
    message = pb.MasterMessage()
    message.log.epoch = 7
    sending = asyncio.create_task(slave.write(MasterFrame(message, memoryview(data)[:size])))
    received = await master.read()
    assert (received.message, bytes(received.data)) == (message, data[:size])
    await sending
    acknowledged = pb.SlaveMessage(ack=pb.Ack(ack_offset=size, epoch=7))
    await master.write(acknowledged)
    assert await anext(slave) == acknowledged
    master.cancel()
    with pytest.raises(PeerLost, match="has closed the connection"):
        await anext(slave)
    slave.close()


async def test_a_refusal_names_its_status_and_its_reason() -> None:
    slave, master = ends()
    await slave.refuse(ServiceNotAvailable("this broker is stopping"))
    with pytest.raises(PeerLost, match=r"^UNAVAILABLE this broker is stopping$"):
        await master.read()
    slave.close()
    master.cancel()


async def test_a_refusal_follows_a_message_whose_writer_was_cancelled() -> None:
    """If the refusal came in the middle of a message, the slave would take it for log bytes."""
    slave, master = ends()
    message = pb.MasterMessage()
    message.log.epoch = 1
    sending = asyncio.create_task(slave.write(MasterFrame(message, bytes(40 << 20))))
    await asyncio.sleep(0)  # the kernel has room for the first part only
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    refusing = asyncio.create_task(slave.refuse(ServiceNotAvailable("this broker is stopping")))
    assert len((await master.read()).data) == 40 << 20
    with pytest.raises(PeerLost, match="UNAVAILABLE this broker is stopping"):
        await master.read()
    await refusing
    slave.close()
    master.cancel()


async def test_a_slave_that_reads_nothing_does_not_hold_up_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_streams, "REFUSE_S", 0.01)
    one, other = socket.socketpair()
    one.setblocking(False)
    try:
        while True:
            one.send(bytes(65_536))
    except BlockingIOError:
        pass
    slave = SlaveSocket(one)
    await slave.refuse(ServiceNotAvailable("this broker is stopping"))
    slave.close()
    other.close()


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        (MESSAGE_HEAD.pack(socket_streams.MAX_SLAVE_BYTES), "at most"),
        (MESSAGE_HEAD.pack(3) + b"\xff\xff\xff", "cannot be decoded"),
    ],
)
async def test_a_slave_that_sends_no_valid_message_is_refused(sent: bytes, refused: str) -> None:
    one, other = socket.socketpair()
    slave = SlaveSocket(one)
    other.sendall(sent)
    with pytest.raises(ProtocolViolation, match=refused):
        await anext(slave)
    slave.close()
    other.close()


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (ANSWER_HEAD.pack(Kind.FRAME, 0, 1 << 40), "at most"),
        (ANSWER_HEAD.pack(77, 0, 0), "unknown kind 77"),
        (range_stream.answer(Kind.FRAME, b"\xff\xff\xff"), "cannot be decoded"),
        (range_stream.answer(Kind.REFUSED, b"\xff\xff\xff"), "cannot be decoded"),
        (range_stream.answer(Kind.NOT_HERE), "serves no slave"),
        (range_stream.answer(Kind.NO_ROOM), "serves no slave"),
    ],
)
async def test_what_no_master_sends_ends_the_stream(sent: bytes, error: str) -> None:
    one, other = socket.socketpair()
    master = MasterSocket(one)
    other.sendall(sent)
    with pytest.raises((PeerLost, ProtocolViolation), match=error):
        await master.read()
    master.cancel()
    other.close()


# --- the way to the socket --------------------------------------------------------------------------------------------


async def test_a_slave_of_another_machine_uses_the_port(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Node, "plain_sockets", "tcp")
    master, slave = pair(tmp_path)
    async with master.serving():
        assert offer_of(master).port
        assert await follows_over(master, slave, caplog) == "a plain socket"


def nobody_listens(offer: StreamOffer) -> None:
    offer.unix_name = "rocketsim-nobody"


def has_no_socket(offer: StreamOffer) -> None:
    offer.unix_name = ""


def has_a_closed_port(offer: StreamOffer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        offer.port = closed.getsockname()[1]
    offer.unix_name = ""


def is_of_a_process_that_has_ended(offer: StreamOffer) -> None:
    offer.instance = bytes(16)


@pytest.mark.parametrize(
    "spoil",
    [nobody_listens, has_no_socket, has_a_closed_port, is_of_a_process_that_has_ended],
    ids=lambda spoil: spoil.__name__,
)
async def test_an_offer_that_does_not_work_leaves_the_stream_on_grpc(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[StreamOffer], None]
) -> None:
    master, slave = pair(tmp_path)
    async with master.serving():
        spoiled = offer_of(master)
        spoil(spoiled)
        master.master.sockets = Offered(spoiled)
        assert await follows_over(master, slave, caplog) == "gRPC"


async def test_a_slave_that_reaches_its_master_through_a_proxy_does_not_evade_it(tmp_path, caplog):
    master, slave = pair(tmp_path)
    async with master.serving():
        with TcpProxy(master.address) as wire:
            master.address = wire.address
            assert await follows_over(master, slave, caplog) == "gRPC"
            assert wire.carried > 0


async def test_a_slave_whose_socket_is_cut_off_notices_the_silence_and_follows_over_grpc(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte and no error arrives, and only the way to the socket is cut."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(Node, "plain_sockets", "tcp")
    slaves = SlaveSettings(housekeeping_s=1.0, retry_first_s=0.01, retry_last_s=0.05)
    masters = TransferSettings(heartbeat_s=0.1, housekeeping_s=1.0)
    master = Node(MemoryLog(), tmp_path / "m", 0, transfer=masters)
    slave = Node(MemoryLog(), tmp_path / "s", 1, slave=slaves)
    async with master.serving():
        offer = offer_of(master)
        with TcpProxy(f"127.0.0.1:{offer.port}") as wire:
            offer.port = int(wire.address.rpartition(":")[2])
            master.master.sockets = Offered(offer)
            async with slave.following(master):
                await until(slave.slave.is_following)
                assert "over a plain socket" in caplog.text
                await asyncio.to_thread(wire.cut)
                await until(lambda: "lost: nothing heard for 1.0 s" in caplog.text)
                master.put(b"a record")
                await until(lambda: slave.log.data == master.log.data)
    assert wire.carried > 0 and "over gRPC" in caplog.text


async def test_a_slave_tries_the_socket_again_after_its_stream_over_grpc_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master, slave = pair(tmp_path)
    async with master.serving():
        sockets, spoiled = master.master.sockets, offer_of(master)
        spoiled.instance = bytes(16)
        master.master.sockets = Offered(spoiled)
        caplog.set_level(logging.INFO)
        async with slave.following(master):
            await until(lambda: "over gRPC" in caplog.text)
            master.master.sockets = sockets
            master.master.disconnect("so that it connects again")
            await until(lambda: "over a plain socket" in caplog.text)


@pytest.mark.parametrize(
    ("settings", "offers"),
    [(SlaveSettings(plain_sockets=False), "unix"), (SlaveSettings(tcp_sockets=False), "tcp")],
    ids=["switched off", "TLS"],
)
async def test_a_slave_that_may_not_use_a_socket_does_not(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    settings: SlaveSettings,
    offers: str,
) -> None:
    monkeypatch.setattr(Node, "plain_sockets", offers)
    master = Node(MemoryLog(), tmp_path / "m", 0)
    slave = Node(MemoryLog(), tmp_path / "s", 1, slave=settings)
    async with master.serving():
        assert await follows_over(master, slave, caplog) == "gRPC"


async def test_a_second_offer_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A faulty master must not end the slave's work for good."""
    master, slave = pair(tmp_path)
    async with master.serving():
        offered, write = MasterFrame(pb.MasterMessage(stream=offer_of(master))), SlaveSocket.write

        async def offers_again(stream: SlaveSocket, frame: MasterFrame) -> None:
            await write(stream, offered)
            await write(stream, frame)

        monkeypatch.setattr(SlaveSocket, "write", offers_again)
        async with slave.following(master):
            await until(lambda: "unexpected kind stream" in caplog.text)
            await until(slave.slave.is_following)


async def test_a_stream_that_begins_while_the_master_stops_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "CLOSE_S", 0.05)
    master, _ = pair(tmp_path)
    one, other = socket.socketpair()
    async with master.serving():
        master.master.disconnect("this broker is stopping")
        master.master.take(one)
        await master.master.close_sockets()
        other.settimeout(60)
        assert other.recv(1) == b""
    other.close()


async def test_a_master_of_an_older_version_is_followed_over_grpc(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Node, "plain_sockets", "")
    master, slave = pair(tmp_path)
    async with master.serving():
        assert await follows_over(master, slave, caplog) == "gRPC"


async def test_a_slave_of_an_older_version_is_offered_nothing(tmp_path):
    master, _ = pair(tmp_path)
    async with master.serving(), grpc.aio.insecure_channel(master.address) as channel:
        call: Any = channel.stream_stream(
            "/rocketsim.Replication/Replicate",
            request_serializer=pb.SlaveMessage.SerializeToString,
            response_deserializer=pb.MasterMessage.FromString,
        )()
        await call.write(hello(master))  # an older version does not set `accepts_stream`
        assert (await call.read()).WhichOneof("kind") == "handshake"
        call.cancel()


async def test_a_master_has_room_for_so_many_slaves_only(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(master_module, "MAX_SOCKETS", 0)
    master, slave = pair(tmp_path)
    async with master.serving():
        assert await follows_over(master, slave, caplog) == "gRPC"


async def test_a_silent_connection_is_closed(tmp_path, caplog):
    """A peer that connects and sends no handshake is told why, and disconnected."""
    caplog.set_level(logging.INFO)
    settings = TransferSettings(housekeeping_s=0.05)
    master = Node(MemoryLog(), tmp_path / "m", 0, transfer=settings)
    async with master.serving():
        offer = offer_of(master)
        with socket.socket(socket.AF_UNIX) as peer:
            peer.setblocking(False)
            peer.connect(f"\0{offer.unix_name}")
            request = StreamRequest(version=range_stream.VERSION, instance=offer.instance, replication=True)
            peer.send(range_stream.request(request.SerializeToString()))
            loop = asyncio.get_running_loop()
            answer = b""
            while part := await loop.sock_recv(peer, 65_536):
                answer += part
        assert answer[0] == Kind.REFUSED and b"nothing heard" in answer
