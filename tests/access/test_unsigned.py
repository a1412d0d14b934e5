"""Requests of unauthenticated callers: a call that needs a signature is refused by its headers, and the requests of
calls that anybody may make are received in turn.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketsim_proto import namesrv_pb2
from rocketsim_proto.namesrv_pb2_grpc import NameServerStub
from rocketsim_proto.signature import Credentials, signed_headers

from broker_service.access import unsigned
from broker_service.access.rights import NAMESRV_RIGHTS, Caller
from broker_service.access.unsigned import UnsignedRequests
from broker_service.access.users import User
from broker_service.errors import SystemBusy
from broker_service.node.access_control import BROKER_RIGHTS
from broker_service.runtime.server import SENT_AHEAD, UNREAD_BYTES, build_server
from broker_service.wire.v2.rights import V2_RIGHTS, repeats
from testbed.polling import until
from tests.support.access import INNER, KEYS, first_user, guarded_name_server, v2_headers
from tests.support.brokers import name_server, running
from tests.support.http2 import half_sent

ROUTE, LIST = "/rocketsim.NameServer/TopicRoute", "/rocketsim.NameServer/TopicList"


@asynccontextmanager
async def servers(tmp_path: Path, **keys: Any) -> AsyncIterator[dict[str, str]]:
    """Starts a name server and a broker; yields their addresses, and that of the broker's port for RocketMQ 5's
    clients.
    """
    async with AsyncExitStack() as stack:
        names = await stack.enter_async_context(guarded_name_server() if keys else name_server())
        node = await stack.enter_async_context(running(tmp_path, grpc_server_port=0, **keys))
        await until(lambda: bool(node.v2_port.address), "the port for RocketMQ 5's clients is open")
        if keys:
            await first_user(node)
        yield {"name server": names.address, "broker": node.address, "v2": node.v2_port.address}


GUARDED = [
    (server, method)
    for server, rights in (("name server", NAMESRV_RIGHTS), ("broker", BROKER_RIGHTS), ("v2", V2_RIGHTS))
    for method, right in rights.items()
    if right.caller is not Caller.ANYBODY and not repeats(method)
]


async def test_a_call_without_a_signature_is_refused_before_its_request_has_come(tmp_path: Path) -> None:
    """Nothing of the request is received, unpacked or parsed, whether or not it is ever complete."""
    async with servers(tmp_path, **KEYS) as addresses, AsyncExitStack() as stack:
        channels = {
            name: await stack.enter_async_context(grpc.aio.insecure_channel(address))
            for name, address in addresses.items()
        }
        for server, method in GUARDED:
            headers = (("x-mq-client-id", "c"),)
            call = channels[server].stream_stream(method)(metadata=headers, timeout=60)
            answers = 1 if server == "v2" else 0
            if answers:
                assert await call.read() is not grpc.aio.EOF
            code = await call.code()
            said = method, code
            assert said == (method, grpc.StatusCode.OK if answers else grpc.StatusCode.UNAUTHENTICATED)


@pytest.mark.parametrize("keys", [{}, KEYS], ids=["open", "access control"])
async def test_no_port_unpacks_what_grpc_has_compressed(tmp_path: Path, keys: dict[str, Any]) -> None:
    """Compressed requests are refused from any caller: none of our clients compresses, and a few KiB can unpack to 100
    MiB.
    """
    calls = {
        "name server": LIST,
        "broker": "/rocketsim.Admin/ListTopics",
        "v2": "/apache.rocketmq.v2.MessagingService/QueryRoute",
    }
    async with servers(tmp_path, **keys) as addresses:
        for name, method in calls.items():
            headers = v2_headers(INNER) if name == "v2" else signed_headers(INNER, method, time.time())
            async with grpc.aio.insecure_channel(addresses[name]) as channel:
                call = channel.unary_unary(method)(
                    bytes(1 << 20), metadata=tuple(headers), compression=grpc.Compression.Gzip, timeout=60
                )
                assert (name, await call.code()) == (name, grpc.StatusCode.UNIMPLEMENTED)
                assert "gzip" in (await call.details() or "")


async def test_half_sent_requests_of_anybody_hold_up_no_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsigned, "PATIENCE_S", 0.05)
    async with guarded_name_server() as names, AsyncExitStack() as stack:
        attackers = [await stack.enter_async_context(half_sent(names.address)) for _ in range(4)]
        streams = [(one, await one.begin(ROUTE, 900_000)) for one in attackers for _ in range(3)]
        for one, stream in streams:
            stack.callback(asyncio.create_task(one.send(stream, bytes(500_000))).cancel)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(names.address))
        stub, answered = NameServerStub(channel), 0
        while answered < 3:
            try:
                await stub.TopicList(namesrv_pb2.TopicListRequest(), timeout=60)
                answered += 1
            except grpc.aio.AioRpcError as error:  # this machine was too busy to receive the request within 0.1 s
                assert "did not arrive completely in time" in (error.details() or "")
        for one, stream in streams:
            assert b"did not arrive completely in time" in await asyncio.wait_for(one.end_of(stream), 60)


def test_a_client_sends_little_ahead_of_what_is_asked_for_where_calls_are_signed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With gRPC's default windows, 4 MiB a stream and up to 64 MiB, any caller could fill the server's memory."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr("grpc.aio.server", lambda **arguments: made.append(dict(arguments["options"])))
    build_server(1 << 20)
    build_server(1 << 20, [object()])  # type: ignore[list-item]
    assert [options.get("grpc.http2.bdp_probe") for options in made] == [None, 0]
    assert made[1]["grpc.http2.lookahead_bytes"] == UNREAD_BYTES
    assert dict(SENT_AHEAD).keys() <= made[1].keys()


class Call:
    """A call over the connection `name`, whose request arrives when `came` is set."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.came = asyncio.Event()
        self.is_read = False

    def peer(self) -> str:
        return self.name

    async def read(self) -> bytes:
        self.is_read = True
        await self.came.wait()
        return b"request"


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def received(requests: UnsignedRequests, calls: list[Call]) -> list["asyncio.Task[Any]"]:
    tasks = [asyncio.create_task(requests.receive(call)) for call in calls]  # type: ignore[arg-type]
    await settled()
    return tasks


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsigned, "PATIENCE_S", 600.0)


async def test_two_requests_are_received_at_once_and_one_of_each_connection(patient: None) -> None:
    calls = [Call(name) for name in "aaabc"]
    tasks = await received(UnsignedRequests(), calls)
    assert [call.is_read for call in calls] == [True, False, False, True, False]
    calls[3].came.set()
    await settled()
    assert [call.is_read for call in calls] == [True, False, False, True, True]
    for call in calls:
        call.came.set()
    assert await asyncio.wait_for(asyncio.gather(*tasks), 60) == [b"request"] * 5


async def test_a_slow_client_is_disconnected_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsigned, "PATIENCE_S", 0.01)
    calls = [Call(name) for name in "abc"]
    calls[2].came.set()
    tasks = await received(UnsignedRequests(), calls)
    assert await asyncio.wait_for(tasks[2], 60) == b"request"
    for task in tasks[:2]:
        with pytest.raises(SystemBusy, match="did not arrive completely in time"):
            await asyncio.wait_for(task, 60)


async def test_waiting_requests_are_bounded_and_a_client_that_leaves_makes_room(
    patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsigned, "MOST_WAITING_OF_ONE", 2)
    monkeypatch.setattr(unsigned, "MOST_WAITING", 3)
    requests = UnsignedRequests()
    first = await received(requests, [Call("a"), Call("a"), Call("a"), Call("a")])
    with pytest.raises(SystemBusy, match="wait to be received"):
        await first[3]
    others = await received(requests, [Call("b"), Call("b"), Call("c")])
    with pytest.raises(SystemBusy, match="wait to be received"):
        await others[2]
    for task in (*first[:3], *others[:2]):
        task.cancel()
    await settled()
    call = Call("d")
    call.came.set()
    assert await asyncio.wait_for(requests.receive(call), 60) == b"request"  # type: ignore[arg-type]


async def test_a_user_who_goes_while_his_request_is_on_its_way_is_refused(tmp_path: Path) -> None:
    """The user is deleted after the signature was checked and before the request arrives."""
    who = Credentials("n", "n0rm4l-s3cr3t")
    async with running(tmp_path, **KEYS) as node:
        await first_user(node)
        assert node.access is not None
        node.access.users.put(User(who.access_key, who.secret_key, "Super"), 0)
        method = "/rocketsim.Admin/ListTopics"
        async with grpc.aio.insecure_channel(node.address) as channel:
            call = channel.stream_stream(method)(metadata=signed_headers(who, method, time.time()), timeout=60)
            other = channel.stream_stream(method)(metadata=(), timeout=60)
            # the server has checked the headers of both calls now
            assert await other.code() is grpc.StatusCode.UNAUTHENTICATED
            node.access.users.delete("n", 0)
            await call.write(b"")
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "User:n is not found" in (await call.details() or "")
