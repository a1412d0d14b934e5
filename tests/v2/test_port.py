"""The port is open only while its broker is a master that takes writes."""

import asyncio
import socket
import ssl
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc.aio._server import Server as Implementation
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s

from broker_service.broker.core.mastership import Standing
from broker_service.modes import BrokerRole
from broker_service.runtime.server import Network, build_server, most_connections
from testbed.polling import until
from tests.support.brokers import name_server, running
from tests.support.tls import keys_of
from tests.support.v2 import CLIENT, Client, client_of, make_topics, message

WITHOUT_FRONT: dict[str, Any] = {"tls_test_mode_enable": False}  # gRPC itself listens on the port, without the front
SLAVE: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}


def listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


async def test_a_slave_opens_it_when_it_is_promoted_and_the_former_master_closes_it(tmp_path: Path) -> None:
    async with (
        name_server() as names,
        running(tmp_path / "m", namesrv_addr=names.address, grpc_server_port=0) as master,
        running(tmp_path / "s", namesrv_addr=names.address, grpc_server_port=0, **SLAVE) as slave,
        client_of(master) as client,
    ):
        port = int(master.v2_port.address.rpartition(":")[2])
        make_topics(master)
        assert (await client.send(message())).status.code == d.OK
        await until(lambda: slave.store.end_offset == master.store.end_offset, "the slave has all")
        assert slave.v2_port.address == "" and not (tmp_path / "s/rocketsim/address.grpc").exists()
        telemetry = client.calls.Telemetry(metadata=CLIENT)
        await telemetry.write(settings())
        await telemetry.read()
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        async with client_of(slave) as second:
            assert (await second.send(message())).status.code == d.OK
        assert (tmp_path / "s/rocketsim/address.grpc").read_text().strip() == slave.v2_port.address
        await until(lambda: master.mastership.standing is Standing.FENCED, "the former master is fenced")
        await until(lambda: not master.v2_port.address, "the former master's port is closed")
        assert not listens(port)
        # The streams of the former master end, so its clients connect again.
        assert await telemetry.read() is grpc.aio.EOF


async def test_a_stop_that_meets_a_closing_port_ends_though_grpc_swallows_the_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, closing, stopped = Implementation.stop, asyncio.Event(), asyncio.Event()

    async def deaf(server: Any, grace: float | None) -> None:
        ends = {asyncio.ensure_future(stop(server, grace))}
        if not closing.is_set():
            closing.set()
            ends.add(asyncio.ensure_future(stopped.wait()))
        while not all(one.done() for one in ends):
            with suppress(asyncio.CancelledError):
                await asyncio.wait(ends)

    async with asyncio.timeout(60), running(tmp_path, grpc_server_port=0) as node:
        await until(lambda: bool(node.v2_port.address), "the port for RocketMQ 5's clients is open")
        monkeypatch.setattr(Implementation, "stop", deaf)
        node.broker.stopping = True
        node.broker.members_changed.notify()
        await closing.wait()
        # By then, all background loops of the broker have been cancelled.
        asyncio.get_running_loop().call_later(1.0, stopped.set)


def settings() -> s.TelemetryCommand:
    return s.TelemetryCommand(settings=d.Settings(client_type=d.PRODUCER, publishing=d.Publishing()))


async def opened(client: Client, client_id: str) -> Any:
    """Returns a Telemetry stream and the first answer on it."""
    stream = client.calls.Telemetry(metadata=(("x-mq-client-id", client_id),))
    await stream.write(settings())
    return stream, await stream.read()


@pytest.mark.parametrize("keys", [WITHOUT_FRONT, keys_of()], ids=["plaintext", "front"])
async def test_open_streams_are_bounded_with_and_without_a_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    """At the limit, open streams continue.  A stream beyond the limit gets the reason and ends, and can be opened again
    after another stream has ended.
    """
    monkeypatch.setattr("broker_service.wire.clients.MAX_STREAMS", 2)
    async with running(tmp_path, grpc_server_port=0, **keys) as node, client_of(node) as client:
        there = [await opened(client, client_id) for client_id in "ab"]
        assert [answer.status.code for _, answer in there] == [d.OK, d.OK]
        node.metrics.take_snapshot()
        (streams,) = (one.samples[0] for one in node.metrics.collect() if one.name == "rocketsim_client_streams")
        assert streams.value == 2
        late, answer = await opened(client, "c")
        assert answer.status.code == d.TOO_MANY_REQUESTS and "2 streams" in answer.status.message
        assert await late.read() is grpc.aio.EOF
        for stream, _ in there:
            await stream.write(settings())
            assert (await stream.read()).status.code == d.OK
        there[0][0].cancel()
        await until(lambda: node.clients.stream_count == 1, "the end of a stream")
        again, answer = await opened(client, "c")
        assert answer.status.code == d.OK
        for stream in (there[1][0], again):
            stream.cancel()


@pytest.mark.parametrize("keys", [WITHOUT_FRONT, keys_of()], ids=["plaintext", "front"])
async def test_a_connection_without_a_call_is_closed_and_one_with_a_stream_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    """The broker never ends an idle Telemetry stream."""
    monkeypatch.setattr("broker_service.wire.v2.port.IDLE_MS", 500)  # the stream has to begin within this time
    async with running(tmp_path, grpc_server_port=0, **keys) as node, client_of(node) as client:
        stream, _ = await opened(client, "a")
        host, _, port = node.v2_port.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(NOTHING)
        said = await reader.read()  # until its end
        assert frame_types(said)[-1] == GOAWAY and said.endswith(b"connection idle"), "not for a ping without an answer"
        writer.close()
        await stream.write(settings())
        assert (await stream.read()).status.code == d.OK
        stream.cancel()


@pytest.mark.parametrize("keys", [WITHOUT_FRONT, keys_of()], ids=["plaintext", "front"])
async def test_a_call_that_grpc_has_compressed_is_refused_before_it_is_unpacked(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    async with running(tmp_path, grpc_server_port=0, **keys) as node, client_of(node) as client:
        large = s.QueryRouteRequest(topic=d.Resource(resource_namespace="n" * (1 << 20)))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.calls.QueryRoute(large, metadata=CLIENT, compression=grpc.Compression.Gzip, timeout=60)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "gzip" in (refused.value.details() or "")
        assert (await client.QueryRoute(large)).status.code == d.BAD_REQUEST


async def dialled(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Returns a connection that has sent the preface of HTTP/2 and empty SETTINGS."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(NOTHING)
    return reader, writer


async def is_taken(reader: asyncio.StreamReader) -> bool:
    with suppress(ConnectionResetError):
        return bool(await reader.read(1))
    return False


@pytest.mark.parametrize("is_own", [False, True], ids=["grpcServerPort", "listenPort"])
async def test_connections_to_a_port_without_a_front_are_bounded_and_lost_ones_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool
) -> None:
    """The limit also holds after connections that break off before, during or after the first exchange, because gRPC
    counts each of them once.
    """
    monkeypatch.setattr("broker_service.runtime.server.open_file_limit", lambda: 8)
    async with running(tmp_path, grpc_server_port=0, **WITHOUT_FRONT) as node:
        address = node.address if is_own else node.v2_port.address
        there = [await dialled(address) for _ in range(3)]
        assert [await is_taken(reader) for reader, _ in there] == [True] * 3
        for _ in range(20):
            late, writer = await dialled(address)
            assert not await is_taken(late)
            writer.close()
        for _, writer in there:
            writer.transport.abort()
        host, _, port = address.rpartition(":")
        for begin in (b"", NOTHING[:10], NOTHING, b"GET / HTTP/1.1\r\n\r\n"):
            for _ in range(10):
                with socket.create_connection((host, int(port))) as broken:
                    broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                    broken.sendall(begin)
        again: list[asyncio.StreamWriter] = []

        async def has_room() -> bool:
            reader, writer = await dialled(address)
            if await is_taken(reader):
                again.append(writer)
            else:
                writer.close()
            return len(again) == 3

        async with asyncio.timeout(60):
            while not await has_room():
                pass
        late, writer = await dialled(address)
        assert not await is_taken(late)
        for one in (*again, writer):
            one.transport.abort()


@pytest.mark.parametrize(("handles", "most"), [(-1, 20_000), (0, 1), (1000, 375), (65_536, 20_000)])
def test_how_many_connections_there_may_be_without_a_front(handles: int, most: int) -> None:
    assert most_connections(handles) == most


def test_pings_without_a_call_are_no_offence(monkeypatch: pytest.MonkeyPatch) -> None:
    """C++'s client sends a ping each minute, while gRPC by default ends a connection with more than one ping in five
    minutes.
    """
    made: list[dict[str, Any]] = []
    monkeypatch.setattr("grpc.aio.server", lambda **arguments: made.append(dict(arguments["options"])))
    build_server(1 << 20)
    assert made[0]["grpc.http2.min_ping_interval_without_data_ms"] < 60_000


def test_grpc_keeps_no_records_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC's channelz would take memory for each connection, and nobody reads its records."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr("grpc.aio.server", lambda **arguments: made.append(dict(arguments["options"])))
    build_server(1 << 20)
    assert made[0]["grpc.enable_channelz"] == 0


async def test_a_tls_hello_on_a_plaintext_port_ends_that_connection_alone(tmp_path: Path) -> None:
    """The clients for Java, Go, C# and C++ begin with TLS."""
    async with running(tmp_path, grpc_server_port=0, **WITHOUT_FRONT) as node, client_of(node) as client:
        stream, _ = await opened(client, "a")
        host, _, port = node.v2_port.address.rpartition(":")
        hello = ssl.MemoryBIO()
        tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(hello.read())
        with suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 60)  # to its end
        writer.close()
        await stream.write(settings())
        assert (await stream.read()).status.code == d.OK
        stream.cancel()


NOTHING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)  # preface and empty SETTINGS of HTTP/2
GOAWAY = 7


def frame_types(received: bytes) -> list[int]:
    """Returns the types of these HTTP/2 frames, whose header is the length (3 bytes), the type, the flags and the
    stream's id.
    """
    types = []
    while received:
        types.append(received[3])
        received = received[9 + int.from_bytes(received[:3], "big") :]
    return types


async def test_a_peer_that_answers_no_ping_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Telemetry stream ends when the client's host has died.  A living host answers pings by itself, even if its
    client is busy.
    """

    def impatient(*arguments: Any) -> grpc.aio.Server:
        server = grpc.aio.server

        def quick(*, options: list[tuple[str, Any]], **others: Any) -> grpc.aio.Server:
            keys = {name for name, _ in options}
            assert {"grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"} <= keys
            waits = dict.fromkeys(keys & {"grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"}, 3000)
            return server(options=list((dict(options) | waits | {"grpc.keepalive_time_ms": 1000}).items()), **others)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("grpc.aio.server", quick)
            return build_server(*arguments)

    monkeypatch.setattr("broker_service.runtime.server.build_server", impatient)
    async with running(tmp_path, grpc_server_port=0, **WITHOUT_FRONT) as node, client_of(node) as client:
        stream, _ = await opened(client, "a")
        host, _, port = node.v2_port.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(NOTHING)
        said = await reader.read()
        assert said.endswith(b"ping_timeout")
        writer.close()
        await stream.write(settings())
        assert (await stream.read()).status.code == d.OK
        stream.cancel()


async def test_name_servers_hear_of_it(tmp_path: Path) -> None:
    async with (
        name_server() as names,
        running(tmp_path, namesrv_addr=names.address, grpc_server_port=0) as node,
    ):
        await until(lambda: names.table.live()["broker-a"].v2_address == node.v2_port.address != "", "its address")


async def test_minus_one_is_no_port(tmp_path: Path) -> None:
    async with running(tmp_path, grpc_server_port=-1) as node:
        await until(lambda: not any(task.get_name() == "v2-port" for task in asyncio.all_tasks()), "its end")
        assert node.v2_port.address == ""


async def test_a_port_that_is_taken_is_said_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_service.wire.v2.port.TRY_AGAIN_S", 0.01)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with running(tmp_path, grpc_server_port=port) as node:
            await until(lambda: f"grpcServerPort={port}: cannot listen on" in caplog.text, "the error")
            taken.close()
            await until(lambda: node.v2_port.address == f"127.0.0.1:{port}", "the port")
    assert caplog.text.count("cannot listen on") == 1


async def test_a_port_that_is_taken_is_one_line_of_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """gRPC by itself would write a line to standard error at each attempt."""
    attempts = []
    listen = Network.listen

    def counted(*arguments: Any, **others: Any) -> Any:
        attempts.append(arguments)
        return listen(*arguments, **others)

    monkeypatch.setattr(Network, "listen", counted)
    monkeypatch.setattr("broker_service.wire.v2.port.TRY_AGAIN_S", 0.01)
    async with running(tmp_path / "first", grpc_server_port=0, **WITHOUT_FRONT) as first:
        await until(lambda: bool(first.v2_port.address), "the port of the first broker")
        port = int(first.v2_port.address.rpartition(":")[2])
        async with running(tmp_path / "second", grpc_server_port=port, **WITHOUT_FRONT):
            await until(lambda: len(attempts) > 6, "some attempts")
    assert capfd.readouterr().err == ""
    (said,) = [one.getMessage() for one in caplog.records if "cannot connect" in one.getMessage()]
    assert f"grpcServerPort={port}: cannot listen on 127.0.0.1:{port} (Address already in use)" in said
    assert "or 0 for any free one, or -1" in said


async def test_a_disk_that_is_not_trusted_closes_it(tmp_path: Path) -> None:
    async with running(tmp_path, grpc_server_port=0) as node:
        await until(lambda: node.v2_port.address, "the port")
        node.core.flush_failed(OSError("no"))
        await until(lambda: not node.v2_port.address, "its end")
