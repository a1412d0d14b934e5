"""The port for RocketMQ 5's clients takes plaintext and TLS at once."""

import asyncio
import shutil
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s
from rocketmq_v2.service_pb2_grpc import MessagingServiceStub
from rocketsim_proto import admin_pb2
from rocketsim_proto.admin_pb2_grpc import AdminStub
from rocketsim_proto.records import record
from rocketsim_proto.signature import Credentials

from broker_service.access.policies import Acl, Policy
from broker_service.access.users import User
from broker_service.broker.core.mastership import Standing
from broker_service.modes import BrokerRole, TlsMode
from broker_service.node.node import BrokerNode
from broker_service.runtime import server
from broker_service.wire.v2 import front as module
from broker_service.wire.v2.front import Front
from testbed.polling import PATIENCE_S, until
from tests.support.access import KEYS, first_user, v2_headers
from tests.support.asyncio_servers import stop_accepting
from tests.support.brokers import running
from tests.support.stores import records_of
from tests.support.tls import CA, DATA, OTHER_CA, certificate_of, channel, keys_of, replace
from tests.support.v2 import CLIENT, Client, make_topics, message, resource

PREFACE = b"PRI * HTTP/2.0"
HELLO = b"\x16\x03\x01"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_BYTE_S", "LINGER_S", "CONNECT_S"):
        monkeypatch.setattr(module, name, 60.0)


@asynccontextmanager
async def tls_broker(root: Path, **keys: Any) -> AsyncIterator[BrokerNode]:
    async with running(root, grpc_server_port=0, **keys_of(), **keys) as node:
        await until(lambda: bool(node.v2_port.address), "the port for RocketMQ 5's clients is open")
        make_topics(node)
        yield node


async def is_answered(node: BrokerNode, ca: Path | None, name: str = "") -> bool:
    async with channel(node.v2_port.address, ca, name) as made:
        try:
            answer = await Client(made).send(message())
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return False
    return answer.status.code == d.OK


# --- with real clients ------------------------------------------------------------------------------------------------


async def test_clients_with_and_without_tls_use_one_port(tmp_path: Path) -> None:
    async with tls_broker(tmp_path) as node:
        assert await is_answered(node, None)
        assert await is_answered(node, CA)
        assert not await is_answered(node, OTHER_CA)


async def test_enforcing_takes_tls_only(tmp_path: Path) -> None:
    async with tls_broker(tmp_path, grpc_server_tls_mode=TlsMode.ENFORCING) as node:
        assert await is_answered(node, CA)
        assert not await is_answered(node, None)


async def test_enforcing_may_ask_for_a_certificate(tmp_path: Path) -> None:
    keys = {"grpc_server_tls_mode": TlsMode.ENFORCING, "tls_client_auth": "grpcServerPort"}
    async with tls_broker(tmp_path, **keys) as node:
        assert await is_answered(node, CA, "client")
        assert not await is_answered(node, CA)
        assert not await is_answered(node, CA, "stranger")
        async with channel(
            node.address, CA
        ) as own:  # `tls_client_auth` does not list this port, so it needs no certificate
            await AdminStub(own).HaStatus(admin_pb2.HaStatusRequest(), timeout=60)


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
async def test_a_certificate_is_replaced_while_the_port_is_open(tmp_path: Path, mode: TlsMode) -> None:
    for suffix in ("pem", "key"):
        shutil.copy(DATA / f"server.{suffix}", tmp_path / f"server.{suffix}")
    files = {"tls_cert": tmp_path / "server.pem", "tls_key": tmp_path / "server.key", "tls_ca": CA}
    async with running(tmp_path / "store", grpc_server_port=0, grpc_server_tls_mode=mode, **files) as node:
        await until(lambda: bool(node.v2_port.address), "the port for RocketMQ 5's clients is open")

        async def name() -> str:
            return await asyncio.to_thread(certificate_of, node.v2_port.address)

        assert await name() == "test server"
        replace("renewed", files["tls_cert"], files["tls_key"])
        assert await name() == "test renewed"
        shutil.copy(DATA / "client.key", files["tls_key"])  # this key does not belong to the certificate
        assert await name() == "test renewed"


async def test_large_messages_and_streams_pass(tmp_path: Path) -> None:
    body = bytes(range(256)) * 8192  # 2 MiB: more than is buffered on the way
    async with (
        tls_broker(tmp_path, mapped_file_size_commit_log=16 << 20) as node,
        channel(node.v2_port.address) as made,
    ):
        client = Client(made)
        telemetry = client.calls.Telemetry(metadata=CLIENT)
        await telemetry.write(
            s.TelemetryCommand(settings=d.Settings(client_type=d.PRODUCER, publishing=d.Publishing()))
        )
        assert (await telemetry.read()).status.code == d.OK
        for _ in range(3):
            assert (await client.send(message(body=body))).status.code == d.OK
        request = s.ReceiveMessageRequest(
            group=resource("g"), message_queue=d.MessageQueue(topic=resource("T")), batch_size=3
        )
        request.invisible_duration.FromSeconds(60)
        request.long_polling_timeout.FromSeconds(5)
        bodies = []
        while len(bodies) < 3:
            bodies += [part.message.body async for part in client.ReceiveMessage(request) if part.HasField("message")]
        assert bodies == [body] * 3
        assert node.v2_port.endpoint.front is not None and len(node.v2_port.endpoint.front.ends) == 2


async def test_a_message_keeps_its_producers_address(tmp_path: Path) -> None:
    async with tls_broker(tmp_path) as node, channel(node.v2_port.address) as made:
        assert (await Client(made).send(message())).status.code == d.OK
        peers = [end.transport.get_extra_info("peername") for end in node.v2_port.endpoint.front.ends]
        # The other peer is the Unix socket behind the front.
        (client,) = [peer for peer in peers if isinstance(peer, tuple)]
        (stored,) = [found for found in records_of(node.store) if found.topic == "T"]
        assert record.decode_host(stored.born_host) == client


async def test_access_control_sees_through_the_front(tmp_path: Path) -> None:
    """Calls through the front need a signature, too, and a policy for an address is checked against the client's own
    address.
    """
    user = Credentials("n", "s3cr3t")
    async with tls_broker(tmp_path, **KEYS) as node, channel(node.v2_port.address) as made:
        await first_user(node)
        await node.access.users.settled()
        node.access.users.put(User(user.access_key, user.secret_key), 0)

        async def send(*headers: tuple[str, str]) -> int:
            request = s.SendMessageRequest(messages=[message()])
            calls = MessagingServiceStub(made)
            return (await calls.SendMessage(request, metadata=headers or CLIENT, timeout=60)).status.code

        def allow(address: str) -> None:
            policy = Policy.parse("Topic:T", ["Pub"], source_ips=[address])
            node.access.acls.put(Acl("User:n").with_policies([policy]), 0)

        assert await send() == d.UNAUTHORIZED
        allow("10.0.0.1")
        assert await send(*v2_headers(user)) == d.UNAUTHORIZED
        allow("127.0.0.1")
        assert await send(*v2_headers(user)) == d.OK


@pytest.mark.parametrize("ca", [CA, None], ids=["TLS", "plaintext"])
async def test_a_client_whose_first_bytes_come_one_by_one_is_served(tmp_path: Path, ca: Path | None) -> None:
    async with tls_broker(tmp_path) as node:
        host, _, port = node.v2_port.address.rpartition(":")
        sizes: list[int] = []

        async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, singly: int) -> None:
            while data := await reader.read(1 if len(sizes) < singly else 65536):
                if singly:
                    sizes.append(len(data))
                writer.write(data)
            writer.close()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner = await asyncio.open_connection(host, int(port))
            inner[1].get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.gather(pipe(reader, inner[1], 100), pipe(inner[0], writer, 0))

        async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
            async with channel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", ca) as made:
                assert (await Client(made).send(message())).status.code == d.OK
            assert sizes[:100] == [1] * 100
            await until(lambda: not node.v2_port.endpoint.front.ends, "it has left")


@pytest.mark.parametrize(
    "garbage",
    [
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n" + PREFACE,
        b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12) + PREFACE,  # the binary PROXY header
        HELLO + b"\x00\x05hello" + PREFACE,
        b"\x16",
        PREFACE[:5],
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(1000),
    ],
)
async def test_a_connection_that_is_neither_tls_nor_http2_is_closed_and_disturbs_nobody(
    tmp_path: Path, garbage: bytes
) -> None:
    """A PROXY header, which names another address as the client's, is refused as well, because the front trusts no
    proxy.
    """
    async with tls_broker(tmp_path) as node:
        host, _, port = node.v2_port.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        writer.write_eof()
        with suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 60)
        await until(lambda: not node.v2_port.endpoint.front.ends, "it is closed")
        writer.close()
        assert await is_answered(node, CA) and await is_answered(node, None)


@asynccontextmanager
async def passed_on(name: str, to: str) -> AsyncIterator[str]:
    """Yields the address of a port that forwards its connection to the abstract Unix socket `to`, from a socket that is
    bound to `name`.
    """
    made = socket.socket(socket.AF_UNIX)
    made.setblocking(False)
    made.bind(f"\0{name}")
    made.connect(f"\0{to}")
    inner, ended = await asyncio.open_unix_connection(sock=made), asyncio.Event()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.gather(pipe(reader, inner[1]), pipe(inner[0], writer))
        ended.set()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await stop_accepting(server)
        await ended.wait()


async def test_another_process_does_not_pass_for_a_client_that_has_left(tmp_path: Path) -> None:
    """Every process of the machine can connect to the sockets behind the front, and can take the name of an ended
    connection.
    """
    user = Credentials("n", "s3cr3t")
    async with tls_broker(tmp_path, **KEYS) as node:
        await first_user(node)
        await node.access.users.settled()
        node.access.users.put(User(user.access_key, user.secret_key), 0)
        front = node.v2_port.endpoint.front
        host, _, port = node.v2_port.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0))
        writer.write(PREFACE)
        await until(lambda: len(front.ends) == 2, "it is taken")
        inner = [end.transport.get_extra_info("sockname") for end in front.ends]
        (name,) = [where[1:].decode() for where in inner if isinstance(where, bytes)]
        assert front.client_of(f"unix-abstract:{name}").startswith("ipv4:127.0.0.2:")
        writer.close()
        await until(lambda: not front.ends, "it has left")
        # The front still knows the client, for the calls that the client has sent.
        assert front.sender_of(f"unix-abstract:{name}").startswith("ipv4:127.0.0.2:")

        async def send(address: str) -> int:
            policy = Policy.parse("Topic:T", ["Pub"], source_ips=[address])
            node.access.acls.put(Acl("User:n").with_policies([policy]), 0)
            request = s.SendMessageRequest(messages=[message()])
            answer = await MessagingServiceStub(made).SendMessage(request, metadata=v2_headers(user), timeout=60)
            return answer.status.code

        async with passed_on(name, front.plaintext) as address, grpc.aio.insecure_channel(address) as made:
            assert await send("127.0.0.2") == d.UNAUTHORIZED
            assert await send("127.0.0.1") == d.UNAUTHORIZED  # nobody knows which process it is
        async with passed_on("another-name", front.plaintext) as address, grpc.aio.insecure_channel(address) as made:
            assert await send("127.0.0.2") == d.UNAUTHORIZED
            assert await send("127.0.0.1") == d.OK  # an unknown name is a process of this machine


async def test_the_front_closes_with_its_broker_and_opens_again(tmp_path: Path) -> None:
    """A broker that is no longer the master ends all connections, even those that have sent nothing yet."""
    async with tls_broker(tmp_path) as node, channel(node.v2_port.address) as made:
        assert (await Client(made).send(message())).status.code == d.OK
        host, _, port = node.v2_port.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await until(lambda: len(node.v2_port.endpoint.front.ends) == 3, "the silent connection")
        front = node.v2_port.endpoint.front
        await node.v2_port.close(0)
        assert not front.ends
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "front"]
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        with socket.socket() as caller:
            assert caller.connect_ex((host, int(port)))
        node.broker.members_changed.notify()
        await until(lambda: bool(node.v2_port.address), "it is open again")
        assert node.v2_port.address == f"{host}:{port}" and await is_answered(node, CA)


# --- the front alone --------------------------------------------------------------------------------------------------


class Behind:
    """Listens in place of the server behind the front, on both Unix sockets, and answers nothing by itself."""

    def __init__(self) -> None:
        self.connections: asyncio.Queue[tuple[str, asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def front(self, most: int = module.MAX_CONNECTIONS) -> AsyncIterator[tuple[Front, str, int]]:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        front = Front(listening, most)
        servers = [
            await asyncio.start_unix_server(self._taker(kind), path=f"\0{name}")
            for kind, name in (("plaintext", front.plaintext), ("tls", front.tls))
        ]
        await front.start()
        try:
            yield front, *listening.getsockname()
        finally:
            await front.close()
            for server in servers:
                await stop_accepting(server)
            for writer in self.writers:
                writer.close()

    def _taker(self, kind: str) -> Any:
        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.writers.append(writer)
            await self.connections.put((kind, reader, writer))

        return take


@pytest.mark.parametrize(("first", "kind"), [(PREFACE, "plaintext"), (HELLO, "tls"), (b"GET", "plaintext")])
async def test_the_first_byte_decides(first: bytes, kind: str) -> None:
    behind = Behind()
    async with behind.front() as (front, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(first)
        found, inner_reader, inner_writer = await behind.connections.get()
        assert found == kind and await inner_reader.readexactly(len(first)) == first
        inner_writer.write(b"answer")
        assert await reader.readexactly(6) == b"answer"
        name = inner_writer.get_extra_info("peername")[1:].decode()
        own = writer.get_extra_info("sockname")
        assert front.client_of(f"unix-abstract:{name}") == f"ipv4:{own[0]}:{own[1]}"
        assert front.client_of("ipv4:10.0.0.1:1") == "ipv4:10.0.0.1:1"
        assert front.client_of("unix-abstract:another-process") == "ipv4:127.0.0.1:0"
        writer.close()


async def test_an_end_of_one_direction_leaves_the_other_one_open() -> None:
    behind = Behind()
    async with behind.front() as (front, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(HELLO)
        writer.write_eof()
        _, inner_reader, inner_writer = await behind.connections.get()
        assert await inner_reader.read() == HELLO  # and the end
        inner_writer.write(b"late")
        inner_writer.write_eof()
        assert await reader.read() == b"late"
        writer.close()
        await until(lambda: not front.ends, "both ends are gone")


async def test_an_end_that_the_other_side_does_not_answer_is_waited_for_a_while(monkeypatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.01)
    behind = Behind()
    async with behind.front() as (front, host, port):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(HELLO)
        writer.write_eof()
        _, inner_reader, _ = await behind.connections.get()
        await inner_reader.read()
        await until(lambda: not front.ends, "the front has given up")
        writer.close()


async def test_a_connection_that_breaks_ends_the_other_side() -> None:
    behind = Behind()
    async with behind.front() as (front, host, port):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(HELLO)
        _, inner_reader, _ = await behind.connections.get()
        await inner_reader.readexactly(len(HELLO))
        at_once = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        writer.transport.abort()
        assert await inner_reader.read() == b""
        await until(lambda: not front.ends, "both ends are gone")


async def test_a_client_that_does_not_read_gets_a_bounded_number_of_bytes() -> None:
    """The front reads from the client only as fast as the server reads, and from the server only as fast as the client
    reads.
    """
    behind = Behind()
    async with behind.front() as (front, host, port):
        reader, writer = await asyncio.open_connection(host, port, limit=1024)
        writer.write(HELLO)
        _, inner_reader, inner_writer = await behind.connections.get()
        await inner_reader.readexactly(len(HELLO))
        data = bytes(64 << 20)
        inner_writer.write(data)
        slow = next(end for end in front.ends if isinstance(end.transport.get_extra_info("peername"), tuple))
        await until(lambda: not slow.other.transport.is_reading(), "the front has stopped reading")
        assert slow.transport.get_write_buffer_size() < 2 << 20
        assert inner_writer.transport.get_write_buffer_size() > 32 << 20
        assert len(await reader.readexactly(len(data))) == len(data)
        writer.write(data)
        await until(lambda: not slow.transport.is_reading(), "the front has stopped reading")
        assert slow.other.transport.get_write_buffer_size() < 2 << 20
        assert writer.transport.get_write_buffer_size() > 32 << 20
        assert len(await inner_reader.readexactly(len(data))) == len(data)
        writer.close()


async def test_a_client_that_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_BYTE_S", 0.01)
    behind = Behind()
    async with behind.front() as (_, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert behind.connections.empty()
        writer.close()


async def test_so_many_say_nothing_that_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SILENT", 2)
    behind = Behind()
    async with behind.front() as (front, host, port):
        made = []
        for number in range(3):
            made.append(await asyncio.open_connection(host, port))
            await until(lambda number=number: len(front.ends) == min(number + 1, 2), "it is there")
        with suppress(ConnectionResetError):
            assert await made[0][0].read() == b""
        made[2][1].write(HELLO)  # the other connections are served
        await behind.connections.get()
        for _, writer in made:
            writer.close()


async def test_with_too_many_connections_new_ones_are_closed_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    behind = Behind()
    async with behind.front(most=2) as (front, host, port):
        made = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(HELLO)
            made.append((reader, writer, await behind.connections.get()))
        for number in range(1, 4):
            late, gone = await asyncio.open_connection(host, port)
            with suppress(ConnectionResetError):
                assert await late.read() == b""
            gone.close()
            assert front.refused == number
        await until(lambda: front.connections == 2, "they are not counted any more")
        assert len([line for line in caplog.messages if "the most that are allowed" in line]) == 1
        for reader, writer, (_, inner_reader, inner_writer) in made:
            await inner_reader.readexactly(len(HELLO))
            inner_writer.write(b"answer")
            assert await reader.readexactly(6) == b"answer"
            writer.close()
            inner_writer.close()
        await until(lambda: front.connections == 0, "there is room again")
        _, writer = await asyncio.open_connection(host, port)
        writer.write(PREFACE)
        await behind.connections.get()
        writer.close()
        assert front.refused == 3


async def test_connections_that_say_nothing_make_room_for_others() -> None:
    behind = Behind()
    async with behind.front(most=2) as (front, host, port):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(HELLO)
        await behind.connections.get()
        silent, gone = await asyncio.open_connection(host, port)
        await until(lambda: front.connections == 2, "all that there may be")
        _, late = await asyncio.open_connection(host, port)
        late.write(PREFACE)
        with suppress(ConnectionResetError):
            assert await silent.read() == b""
        kind, *_ = await behind.connections.get()
        assert kind == "plaintext" and front.refused == 0
        assert not writer.is_closing()
        for one in (writer, gone, late):
            one.close()


def test_how_many_connections_there_may_be_follows_from_the_open_files() -> None:
    assert module.most_connections(65_536) > 10_000
    assert 3 * module.most_connections(1024) <= 512
    assert module.most_connections(1) == 1
    assert module.most_connections(1 << 30) == module.most_connections(-1) == module.MAX_CONNECTIONS


@pytest.mark.parametrize("first", [HELLO, PREFACE])
async def test_a_client_that_does_not_finish_the_handshake_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_TIMEOUT_MS", 200)
    async with tls_broker(tmp_path) as node:
        host, _, port = node.v2_port.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(first)
        await until(lambda: node.v2_port.connections == 1, "it is there")
        with suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await until(lambda: node.v2_port.connections == 0, "it is gone")


async def test_connections_and_refusals_are_counted_also_after_the_port_has_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_service.wire.v2.port.most_connections", lambda _: 1)

    def counted(node: BrokerNode) -> list[float]:
        node.metrics.take_snapshot()
        found = {one.name: one.samples[0].value for one in node.metrics.collect() if "front" in one.name}
        return [found[f"rocketsim_front_connections{what}"] for what in ("", "_refused")]

    async with tls_broker(tmp_path) as node:
        assert counted(node) == [0, 0]
        where = node.v2_port.address.split(":")
        _, first = await asyncio.open_connection(*where)
        first.write(HELLO)
        front = node.v2_port.endpoint.front
        assert front is not None
        await until(lambda: len(front.ends) == 2, "it has said something and is passed on")
        for _ in range(2):
            reader, other = await asyncio.open_connection(*where)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            other.close()
        assert counted(node) == [1, 2]
        await node.v2_port.close(0)
        assert counted(node) == [0, 2]
        first.close()


async def test_a_front_without_a_server_behind_it_closes_the_connection() -> None:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    front = Front(listening)
    await front.start()
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(HELLO)
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    await front.close()
    assert not front.ends


async def test_a_front_that_never_started_leaves_no_socket() -> None:
    listening = socket.socket()
    front = Front(listening)
    await front.close()
    assert listening.fileno() == -1


async def test_a_connection_that_was_being_taken_at_the_end_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_BYTE_S", 3600)  # so that its silence does not end the connection
    loop, made = asyncio.get_running_loop(), []
    create_server = loop.create_server

    async def noted(protocol: Any, **given: Any) -> asyncio.Server:
        made.append(protocol)
        return await create_server(protocol, **given)

    monkeypatch.setattr(loop, "create_server", noted)
    front = Front(socket.create_server(("127.0.0.1", 0)))
    await front.start()
    await front.close()
    taken, client = socket.socketpair()
    with client:
        # The server may have accepted the connection before the close.
        await loop.connect_accepted_socket(made[0], taken)
        client.setblocking(False)
        assert await asyncio.wait_for(loop.sock_recv(client, 1), PATIENCE_S) == b""
    await front.close()


async def test_a_connection_that_has_just_broken_leaves_no_task_behind_the_close() -> None:
    def connecting() -> list[Any]:
        return [task for task in asyncio.all_tasks() if task.get_name() == "front"]

    listening = socket.create_server(("127.0.0.1", 0))
    front, address = Front(listening), listening.getsockname()
    with socket.socket(socket.AF_UNIX) as server_of_plaintext, socket.socket(socket.AF_UNIX) as fills_its_queue:
        server_of_plaintext.bind(f"\0{front.plaintext}")
        server_of_plaintext.listen(0)
        fills_its_queue.connect(f"\0{front.plaintext}")
        await front.start()
        _, writer = await asyncio.open_connection(*address)
        writer.write(PREFACE)
        await until(lambda: bool(connecting()), "the front connects to the server")
        (broken,) = front.ends
        broken.abort()
        await asyncio.sleep(0)
        assert connecting() and not front.ends
        await front.close()
        assert not connecting()
        writer.close()


async def test_a_slave_takes_no_connection(tmp_path: Path) -> None:
    async with running(tmp_path, grpc_server_port=0, broker_role=BrokerRole.SLAVE, broker_id=1, **keys_of()) as node:
        assert node.mastership.standing is not Standing.WRITABLE and node.v2_port.endpoint.front is None
