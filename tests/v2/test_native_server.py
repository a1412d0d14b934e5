"""The library in Rust serves RocketMQ 5's clients as gRPC's own server does (`grpcServerLibrary=pygrpc_native`)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s
from rocketmq_v2 import service_pb2_grpc

from broker_service.broker.core.mastership import Standing
from broker_service.config.broker_config import BrokerConfig
from broker_service.errors import ConfigError
from broker_service.modes import BrokerRole, GrpcServerLibrary
from broker_service.node.app import broker
from broker_service.wire.v2.native_server import NativeServer, check_installed
from testbed.polling import PATIENCE_S, until
from tests.support.brokers import name_server, running, small_config
from tests.support.v2 import CLIENT, client_of, make_topics, message, receive, v2_broker
from tests.v2.test_python_client import run

NATIVE: dict[str, Any] = {"tls_test_mode_enable": False, "grpc_server_library": GrpcServerLibrary.pygrpc_native}
MOST_BYTES = 1 << 20
Handler = Callable[[Any, Any], Awaitable[Any]]


@asynccontextmanager
async def serving(**handlers: Handler) -> AsyncIterator[tuple[NativeServer, Any]]:
    """Runs a server whose methods are these functions.  Yields the server and a stub."""
    servicer = service_pb2_grpc.MessagingServiceServicer()
    for name, handler in handlers.items():
        setattr(servicer, name, handler)
    server = NativeServer(MOST_BYTES)
    service_pb2_grpc.add_MessagingServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", -1)]) as one:
        try:
            yield server, service_pb2_grpc.MessagingServiceStub(one)
        finally:
            await server.stop(0)


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code(), refused.value.details() or ""


async def test_a_message_is_sent_received_and_acknowledged(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **NATIVE) as (node, client):
        sent = await client.send(message(body=b"body"))
        assert sent.status.code == d.OK
        answers = [one async for one in client.calls.ReceiveMessage(receive(), metadata=CLIENT, timeout=60)]
        (found,) = [one.message for one in answers if one.HasField("message")]
        assert (found.body, found.system_properties.message_id) == (b"body", sent.entries[0].message_id)
        assert found.system_properties.born_host == "127.0.0.1", "the client's address is that of its connection"
        entry = s.AckMessageEntry(
            message_id=sent.entries[0].message_id, receipt_handle=found.system_properties.receipt_handle
        )
        acked = await client.AckMessage(s.AckMessageRequest(group=receive().group, topic=found.topic, entries=[entry]))
        assert acked.status.code == d.OK
        telemetry = client.calls.Telemetry(metadata=CLIENT)
        await telemetry.write(s.TelemetryCommand(settings=d.Settings(publishing=d.Publishing())))
        assert (await telemetry.read()).status.code == d.OK
        await until(lambda: node.clients.stream_of("client-1") is not None, "the client's stream")
        telemetry.cancel()


async def test_the_official_client_works(tmp_path: Path) -> None:
    library = GrpcServerLibrary.pygrpc_native
    keys: dict[str, Any] = {"tls_test_mode_enable": False, "mapped_file_size_commit_log": 8 << 20}
    async with v2_broker(tmp_path / "store", grpc_server_library=library, **keys) as (node, _):
        found = await run(tmp_path, "all", node.v2_port.address, "T", "F")
    assert [body for body, *_ in found["received"]] == [f"m{number}" for number in range(4)]
    assert found["left"] == 0


async def test_the_port_closes_with_its_mastership_and_opens_again_with_the_same_number(tmp_path: Path) -> None:
    slave: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
    async with (
        name_server() as names,
        running(tmp_path / "m", namesrv_addr=names.address, grpc_server_port=0, **NATIVE) as master,
        running(tmp_path / "s", namesrv_addr=names.address, grpc_server_port=0, **NATIVE, **slave) as other,
        client_of(master) as client,
    ):
        address = master.v2_port.address
        make_topics(master)
        assert (await client.send(message())).status.code == d.OK
        await until(lambda: other.store.end_offset == master.store.end_offset, "the slave has all")
        await other.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        async with client_of(other) as second:
            assert (await second.send(message())).status.code == d.OK
        await until(lambda: master.mastership.standing is Standing.FENCED, "the former master is fenced")
        await until(lambda: not master.v2_port.address, "the former master's port is closed")
        code, _ = await refusal(client.send(message()))
        assert code is grpc.StatusCode.UNAVAILABLE
    async with running(tmp_path / "n", grpc_server_port=int(address.rpartition(":")[2]), **NATIVE) as node:
        await until(lambda: node.v2_port.address == address, "the port is free")


async def test_a_poll_that_its_client_ends_takes_no_message(tmp_path: Path) -> None:
    async with v2_broker(tmp_path, **NATIVE) as (node, client):
        call = client.calls.ReceiveMessage(receive(), metadata=CLIENT)
        await until(lambda: node.consumption.polls_held, "the poll is held")
        call.cancel()
        await until(lambda: not node.consumption.polls_held, "the poll has ended")
        await client.send(message())
        answers = [one async for one in client.calls.ReceiveMessage(receive(), metadata=CLIENT, timeout=60)]
        (found,) = [one.message for one in answers if one.HasField("message")]
        assert found.system_properties.delivery_attempt == 1


async def test_the_writes_of_a_call_end_with_it() -> None:
    """The servicer then gives back what it has not written."""
    written, ended = 0, asyncio.Event()

    async def send_much(request: Any, context: Any) -> None:
        nonlocal written
        try:
            while True:
                await context.write(s.ReceiveMessageResponse(message=d.Message(body=bytes(1 << 20))))
                written += 1
        except asyncio.CancelledError:
            ended.set()
            raise

    async with serving(ReceiveMessage=send_much) as (_, stub):
        call = stub.ReceiveMessage(s.ReceiveMessageRequest())
        await call.read()
        call.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
        assert written > 0


async def test_clients_that_do_not_read_delay_no_other_call_and_no_thread() -> None:
    begun = 0

    async def send_much(request: Any, context: Any) -> None:
        nonlocal begun
        begun += 1
        for _ in range(100):
            await context.write(s.ReceiveMessageResponse(message=d.Message(body=bytes(1 << 20))))

    async def answer(request: Any, context: Any) -> Any:
        return await asyncio.to_thread(s.HeartbeatResponse)

    async with serving(ReceiveMessage=send_much, Heartbeat=answer) as (_, stub):
        calls = [stub.ReceiveMessage(s.ReceiveMessageRequest()) for _ in range(40)]
        for call in calls:
            await call.read()
        assert begun == 40
        await stub.Heartbeat(s.HeartbeatRequest(), timeout=PATIENCE_S)
        for _ in range(99):
            assert len((await calls[7].read()).message.body) == 1 << 20
        assert await calls[7].read() is grpc.aio.EOF
        for call in calls:
            call.cancel()


async def test_a_call_ends_with_its_deadline_or_its_client() -> None:
    ended, left_s = list[BaseException](), list[float | None]()

    async def wait(request: Any, context: Any) -> Any:
        left_s.append(context.time_remaining())
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            ended.append(error)
            raise

    async with serving(Heartbeat=wait) as (_, stub), asyncio.timeout(PATIENCE_S):
        while not ended:  # on a busy machine a call may end before it has come
            code, _ = await refusal(stub.Heartbeat(s.HeartbeatRequest(), timeout=0.5))
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: len(ended) == len(left_s), "the end of all calls")
        assert all(0 <= left <= 1 for left in left_s if left is not None)
        assert None not in left_s
        before = len(left_s)
        call = stub.Heartbeat(s.HeartbeatRequest())
        await until(lambda: len(left_s) > before, "the call without a deadline")
        call.cancel()
        await until(lambda: len(ended) > before, "the end of the call")
    assert all(isinstance(error, asyncio.CancelledError) for error in ended)
    assert left_s[-1] is None


async def test_errors_are_those_of_grpcs_own_server(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: Any, context: Any) -> Any:
        raise ZeroDivisionError("by zero")

    async with serving(Heartbeat=fail) as (_, stub):
        code, text = await refusal(stub.Heartbeat(s.HeartbeatRequest(), timeout=PATIENCE_S))
        assert (code, text) == (grpc.StatusCode.UNKNOWN, "unexpected ZeroDivisionError: by zero")
        assert "a call of /apache.rocketmq.v2.MessagingService/Heartbeat failed" in caplog.text
        too_large = s.HeartbeatRequest(group=d.Resource(name="g" * MOST_BYTES))
        code, text = await refusal(stub.Heartbeat(too_large, timeout=PATIENCE_S))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert text == f"a request of {too_large.ByteSize()} bytes; at most {MOST_BYTES} are allowed"


async def test_what_is_no_request_or_no_method_is_refused() -> None:
    async def answer(request: Any, context: Any) -> Any:
        return s.HeartbeatResponse()

    async with serving(Heartbeat=answer) as (server, _), grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as one:
        raw = one.unary_unary("/apache.rocketmq.v2.MessagingService/Heartbeat")
        assert await raw(b"", timeout=PATIENCE_S) == b""
        code, _ = await refusal(raw(b"\xff\xff", timeout=PATIENCE_S))
        assert code is grpc.StatusCode.INTERNAL
        code, _ = await refusal(one.unary_unary("/apache.rocketmq.v2.MessagingService/None")(b"", timeout=PATIENCE_S))
        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert await raw(b"", timeout=PATIENCE_S) == b""


async def test_a_stop_waits_for_calls_and_refuses_new_ones() -> None:
    came, go_on = asyncio.Event(), asyncio.Event()

    async def answer(request: Any, context: Any) -> Any:
        came.set()
        await go_on.wait()
        return s.HeartbeatResponse(status=d.Status(message="done"))

    async with serving(Heartbeat=answer) as (server, stub):
        call = stub.Heartbeat(s.HeartbeatRequest(), timeout=PATIENCE_S)
        await came.wait()
        stopping = asyncio.ensure_future(server.stop(PATIENCE_S))
        await until(lambda: server.is_stopping, "the beginning of the stop")
        code, _ = await refusal(stub.Heartbeat(s.HeartbeatRequest(), timeout=PATIENCE_S))
        assert code is grpc.StatusCode.UNAVAILABLE
        go_on.set()
        assert (await call).status.message == "done"
        await stopping


async def test_a_stop_ends_calls_that_take_longer() -> None:
    came = asyncio.Event()

    async def wait(request: Any, context: Any) -> Any:
        came.set()
        await asyncio.Event().wait()

    async with serving(Heartbeat=wait) as (server, stub):
        call = stub.Heartbeat(s.HeartbeatRequest(), timeout=PATIENCE_S)
        await came.wait()
        await server.stop(0)
        code, _ = await refusal(call)
        assert code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)


@pytest.mark.parametrize(
    "keys",
    [
        {"tls_test_mode_enable": True},
        {
            "authentication_enabled": True,
            "inner_client_authentication_credentials": '{"accessKey":"a","secretKey":"b"}',
        },
    ],
    ids=["TLS", "access control"],
)
def test_what_the_library_cannot_do_is_refused_at_the_start(tmp_path: Path, keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="serves grpcServerPort without TLS and without access control; set tlsTest"):
        small_config(tmp_path, grpc_server_port=0, **NATIVE | keys)
    assert isinstance(small_config(tmp_path, **NATIVE | keys), BrokerConfig), "no such port is opened"


async def test_a_missing_package_is_named_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed()
    monkeypatch.setattr("broker_service.wire.v2.native_server.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'rocketsim\[native\]', or set grpcServerLibrary=grpcio"):
        async with broker(small_config(tmp_path, grpc_server_port=0, **NATIVE)):
            pass
    async with broker(small_config(tmp_path, grpc_server_port=-1, **NATIVE)):
        pass
