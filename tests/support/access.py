"""Starts brokers with access control in the test's process, and makes signed calls to them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
from rocketmq_v2.service_pb2_grpc import MessagingServiceStub
from rocketsim_proto import namesrv_pb2, namesrv_pb2_grpc
from rocketsim_proto.admin_pb2_grpc import AdminStub
from rocketsim_proto.signature import Credentials, SigningChannel, v2_signature

from broker_service.config.namesrv_config import NamesrvConfig
from broker_service.namesrv.route_table import RouteTable
from broker_service.namesrv.server import interceptors
from broker_service.namesrv.servicer import NamesrvServicer
from broker_service.node.node import BrokerNode
from broker_service.runtime.server import Service, start_server
from testbed.polling import until
from tests.support.brokers import NameServer

ADMIN = Credentials("admin", "4dm1n-s3cr3t")
INNER = Credentials("broker", "1nn3r-s3cr3t")
KEYS: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": f'{{"username":"{ADMIN.access_key}","password":"{ADMIN.secret_key}"}}',
    "inner_client_authentication_credentials": (
        f'{{"accessKey":"{INNER.access_key}","secretKey":"{INNER.secret_key}"}}'
    ),
}
# The same settings with the names of configuration files.  SIGNED is for name servers, and CONTROLLED for brokers.
SIGNED: dict[str, Any] = {
    "authenticationEnabled": "true",
    "innerClientAuthenticationCredentials": KEYS["inner_client_authentication_credentials"],
}
CONTROLLED = SIGNED | {"authorizationEnabled": "true", "initAuthenticationUser": KEYS["init_authentication_user"]}
DATE = "20160101T000000Z"


def allowed(_topic: str) -> None:
    """The check of a topic that every user passes."""


@asynccontextmanager
async def signed(node: BrokerNode, who: Credentials | None, stub_class: type[Any] = AdminStub) -> AsyncIterator[Any]:
    """Yields a stub for our own services that signs its calls.  With None, calls have no signature."""
    channel = grpc.aio.insecure_channel(node.address, options=[("grpc.use_local_subchannel_pool", 1)])
    async with channel:
        yield stub_class(channel if who is None else SigningChannel(channel, who))


def v2_headers(who: Credentials, client_id: str = "client-1") -> list[tuple[str, str]]:
    signed = v2_signature(who.secret_key, DATE).upper()
    return [
        ("x-mq-client-id", client_id),
        ("x-mq-date-time", DATE),
        (
            "authorization",
            f"MQv2-HMAC-SHA1 Credential={who.access_key}//Rocketmq, SignedHeaders=x-mq-date-time, Signature={signed}",
        ),
    ]


@asynccontextmanager
async def v2_stub(node: BrokerNode) -> AsyncIterator[Any]:
    await until(lambda: bool(node.v2_port.address), "the port for RocketMQ 5's clients is open")
    # Without this, gRPC would widen the window of 64 KiB by its own measurements, on a busy machine to megabytes.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(node.v2_port.address, options=options) as channel:
        yield MessagingServiceStub(channel)


async def first_user(node: BrokerNode) -> None:
    assert node.access is not None
    users = node.access.users
    await until(lambda: users.get(ADMIN.access_key) is not None, "the first user is made")


@asynccontextmanager
async def guarded_name_server(**keys: Any) -> AsyncIterator[NameServer]:
    """Runs a name server with access control."""
    table = RouteTable()
    wanted = {name: value for name, value in KEYS.items() if name != "authorization_enabled"} | keys
    server, port = await start_server(
        [
            Service(
                namesrv_pb2.DESCRIPTOR.services_by_name["NameServer"].full_name,
                namesrv_pb2_grpc.add_NameServerServicer_to_server,
                NamesrvServicer(table, SimpleNamespace(monotonic=lambda: 0.0)),
            )
        ],
        bind_address="127.0.0.1",
        port=0,
        address_file=None,
        max_message_bytes=1 << 20,
        interceptors=interceptors(NamesrvConfig(**wanted)),
    )
    try:
        yield NameServer(table, f"127.0.0.1:{port}")
    finally:
        await server.stop(0)
