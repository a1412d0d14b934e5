"""Every call of every service is refused by a real broker or name server if its user lacks the right."""

import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2
from rocketsim_proto.signature import Credentials, signed_headers

from broker_service.access.rights import NAMESRV_RIGHTS, Caller, Right
from broker_service.access.signature import MAX_AGE_S
from broker_service.access.users import User
from broker_service.node.access_control import BROKER_RIGHTS
from broker_service.wire.v2.rights import V2_RIGHTS
from testbed.polling import until
from tests.support.access import ADMIN, INNER, KEYS, first_user, guarded_name_server, v2_headers
from tests.support.brokers import running

NORMAL = Credentials("n", "n0rm4l-s3cr3t")
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
NAMES_NOTHING = {"PullRange", "Check"}  # calls that are refused or have no effect if they name no topic
V2_NAMES_NOTHING = {"SendMessage", "Heartbeat", "NotifyClientTermination", "Telemetry"}
OTHER_METHOD = "/rocketsim.Another/Method"
Headers = tuple[tuple[str, str], ...]

FORGED = {
    "unsigned": lambda method: (),
    "nobody": lambda method: signed_headers(Credentials("nobody", "x"), method, time.time()),
    "wrong secret": lambda method: signed_headers(Credentials("admin", "x"), method, time.time()),
    "of another call": lambda method: signed_headers(INNER, OTHER_METHOD, time.time()),
    "too old": lambda method: signed_headers(INNER, method, time.time() - MAX_AGE_S - 60),
    "of the future": lambda method: signed_headers(INNER, method, time.time() + MAX_AGE_S + 60),
    "of RocketMQ 5": lambda method: v2_headers(INNER),
}


async def outcome(channel: grpc.aio.Channel, method: str, headers: Headers) -> tuple[grpc.StatusCode, list[bytes]]:
    """Returns the status of a call with one empty message, and its answers; on the wire a unary call is a stream of
    one.

    The message is sent together with the headers.  A separate write would fail if the server has refused the call by
    then, and gRPC for Python would report INTERNAL instead of the server's status.
    """
    call = channel.unary_stream(method)(b"", metadata=headers, timeout=60)
    answers: list[bytes] = []
    try:
        answers = [answer async for answer in call]
    except grpc.aio.AioRpcError:
        pass
    return await call.code(), answers


def guarded(rights: dict[str, Right]) -> list[str]:
    return [method for method, right in rights.items() if right.caller is not Caller.ANYBODY]


def last(method: str) -> str:
    return method.rpartition("/")[2]


@pytest.mark.parametrize("forged", FORGED)
async def test_no_call_is_made_without_a_signature_of_its_own(tmp_path: Path, forged: str) -> None:
    async with (
        running(tmp_path, **KEYS) as node,
        guarded_name_server() as names,
        grpc.aio.insecure_channel(node.address) as broker,
        grpc.aio.insecure_channel(names.address) as name_server,
    ):
        await first_user(node)
        for channel, rights in ((broker, BROKER_RIGHTS), (name_server, NAMESRV_RIGHTS)):
            methods = guarded(rights)
            assert methods
            for method in methods:
                found = await outcome(channel, method, FORGED[forged](method))
                assert (method, found) == (method, (UNAUTHENTICATED, []))


async def test_a_user_without_policies_makes_no_call(tmp_path: Path) -> None:
    async with running(tmp_path, **KEYS) as node, grpc.aio.insecure_channel(node.address) as channel:
        await first_user(node)
        assert node.access is not None
        await node.access.users.settled()
        node.access.users.put(User(NORMAL.access_key, NORMAL.secret_key), 0)
        for method in guarded(BROKER_RIGHTS):
            if last(method) not in NAMES_NOTHING:
                found = await outcome(channel, method, signed_headers(NORMAL, method, time.time()))
                assert (method, found) == (method, (UNAUTHENTICATED, []))


async def test_anybody_may_ask_a_name_server_for_routes_and_nothing_else() -> None:
    free = {last(method) for method, right in NAMESRV_RIGHTS.items() if right.caller is Caller.ANYBODY}
    assert free == {"TopicRoute", "TopicList", "ClusterList", "Check", "Watch", "List", "ServerReflectionInfo"}
    async with guarded_name_server() as names, grpc.aio.insecure_channel(names.address) as channel:
        assert (await outcome(channel, "/rocketsim.NameServer/TopicList", ()))[0] is grpc.StatusCode.OK


def v2_code(method: str, answer: bytes) -> Any:
    kind = service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name[last(method)].output_type
    answered: Any = GetMessageClass(kind).FromString(answer)
    return answered.status.code


@pytest.mark.parametrize("who", [None, Credentials("admin", "x"), Credentials("nobody", "x"), NORMAL])
async def test_a_user_without_the_right_makes_no_call_of_rocketmq_5(tmp_path: Path, who: Credentials | None) -> None:
    async with running(tmp_path, grpc_server_port=0, **KEYS) as node:
        await until(lambda: bool(node.v2_port.address), "the port for RocketMQ 5's clients is open")
        await first_user(node)
        assert node.access is not None
        await node.access.users.settled()
        node.access.users.put(User(NORMAL.access_key, NORMAL.secret_key), 0)
        headers = tuple(v2_headers(who)) if who is not None else (("x-mq-client-id", "c"),)
        async with grpc.aio.insecure_channel(node.v2_port.address) as channel:
            for method in guarded(V2_RIGHTS):
                if who is NORMAL and last(method) in V2_NAMES_NOTHING:
                    continue
                status, answers = await outcome(channel, method, headers)
                codes = [v2_code(method, answer) for answer in answers]
                assert (method, status, codes) == (method, grpc.StatusCode.OK, [d.UNAUTHORIZED])


async def test_a_signature_that_was_seen_serves_for_its_own_call_only(tmp_path: Path) -> None:
    """A signature is valid for a quarter of an hour at this port and at that for RocketMQ 5's clients, but only for the
    call it was made for.
    """
    async with running(tmp_path, grpc_server_port=0, **KEYS) as node:
        await until(lambda: bool(node.v2_port.address), "the port for RocketMQ 5's clients is open")
        await first_user(node)
        listing, deleting = "/rocketsim.Admin/ListUsers", "/rocketsim.Admin/DeleteUser"
        seen = signed_headers(ADMIN, listing, time.time() - MAX_AGE_S / 2)
        async with (
            grpc.aio.insecure_channel(node.address) as channel,
            grpc.aio.insecure_channel(node.v2_port.address) as v2,
        ):
            assert (await outcome(channel, listing, seen))[0] is grpc.StatusCode.OK
            assert await outcome(channel, deleting, seen) == (UNAUTHENTICATED, [])
            route = "/apache.rocketmq.v2.MessagingService/QueryRoute"
            _, (answer,) = await outcome(v2, route, (*seen, ("x-mq-client-id", "c")))
            assert v2_code(route, answer) == d.UNAUTHORIZED
