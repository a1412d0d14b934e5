"""Runs brokers inside the test's own process, with a real store in a folder and real gRPC."""

import inspect
import itertools
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from rocketsim_proto import namesrv_pb2, namesrv_pb2_grpc
from rocketsim_proto.broker_pb2_grpc import BrokerStub
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record

from broker_service.broker.core import master_loop
from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.broker.put import FrameSend, Send
from broker_service.config.broker_config import BrokerConfig
from broker_service.leadership.registration import Registration
from broker_service.leadership.slave_link import SlaveLink
from broker_service.namesrv.route_table import RouteTable
from broker_service.namesrv.servicer import NamesrvServicer
from broker_service.node.app import broker
from broker_service.node.node import BrokerNode
from broker_service.put_result import Appended, PutStatus
from broker_service.runtime import cold_reads, deadlines
from broker_service.runtime.server import Service, start_server
from testbed.polling import PATIENCE_S, until
from tests.support.ports import own_port


def small_config(root: Path, **keys: Any) -> BrokerConfig:
    """Returns a configuration whose files are small, so that they are made quickly and rolled often.  `keys` are fields
    of BrokerConfig.
    """
    small: dict[str, Any] = {
        "broker_name": "broker-a",
        "listen_port": own_port(),
        "grpc_server_port": -1,
        "store_path_root_dir": root,
        "mapped_file_size_commit_log": 1 << 20,
        "mapped_file_size_consume_queue": 20 * 1000,
        "max_hash_slot_num": 100,
        "max_index_num": 400,
        "register_name_server_period": 200,
        "disk_max_used_space_ratio": 100,
        "disk_space_clean_forcibly_ratio": 100,
        "disk_space_warning_level_ratio": 100,
    }
    return BrokerConfig(**(small | keys))


@asynccontextmanager
async def running(root: Path, *, writable: bool = True, **keys: Any) -> AsyncIterator[BrokerNode]:
    """Runs a broker.  A master takes writes when the block begins, unless `writable` is False."""
    async with broker(small_config(root, **keys)) as node:
        if writable and not node.broker.is_slave:
            await until(lambda: node.mastership.standing is Standing.WRITABLE, "the master takes writes")
        yield node


def goes_by(broker: Broker, now_ms: Callable[[], int]) -> None:
    """Makes the broker take this function's time for the right one."""
    for name in ("now_ms", "day_ms"):
        setattr(broker, name, now_ms)
        setattr(broker.time, name, now_ms)
    broker.time.expiry_ms = now_ms  # type: ignore[method-assign]


@asynccontextmanager
async def stub_of(node: BrokerNode, stub_class: type[Any] = BrokerStub) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(
        node.address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 32 << 20)]
    ) as channel:
        yield stub_class(channel)


def message(topic: str, body: bytes, queue_id: int = 0, /, **fields: Any) -> bytes:
    """Returns one record as a client sends it.  Upper-case keyword arguments are properties, the others are fields."""
    properties = {name: value for name, value in fields.items() if name.lstrip("_").isupper()}
    others = {name: value for name, value in fields.items() if name not in properties}
    return record.encode(Record(topic=topic, body=body, queue_id=queue_id, properties=properties, **others))


def send_of(topic: str, *records: bytes, **fields: Any) -> FrameSend:
    data = b"".join(records)
    return FrameSend(**({"topic": topic, "records": data, "count": len(records), "crc32": zlib.crc32(data)} | fields))


async def put_send(node: BrokerNode, send: Send, timeout_s: float = PATIENCE_S) -> tuple[Appended, PutStatus]:
    placed = await node.puts.append(send)
    return placed.appended, await node.puts.safe(placed, timeout_s)


async def put(node: BrokerNode, topic: str, *bodies: bytes, queue_id: int = 0, **properties: Any) -> PutStatus:
    """Puts all bodies as messages of one frame."""
    records = (message(topic, body, queue_id, **properties) for body in bodies)
    return (await put_send(node, send_of(topic, *records)))[1]


def while_reading(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], *, call: int = 1) -> None:
    """Calls `act` at the `call`th use of `cold_reads.read`, where other code may run on the event loop."""
    real, calls = cold_reads.read, itertools.count(1)

    async def read(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            done = act()
            if inspect.isawaitable(done):
                await done
        return await real(*arguments, **options)

    monkeypatch.setattr(cold_reads, "read", read)


def bodies_in(data: bytes) -> list[bytes]:
    bodies, at = [], 0
    while at < len(data):
        bodies.append(record.decode(data, at).body)
        at += int.from_bytes(data[at : at + 4], "big")
    return bodies


def answers_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a call wait for only a tenth of its caller's time, so that the answer arrives in time on a busy machine,
    too.
    """
    monkeypatch.setattr(deadlines, "ANSWER_SHARE", 0.9)
    monkeypatch.setattr(deadlines, "ANSWER_MAX_S", deadlines.NO_DEADLINE_S)


def registers_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps brokers from registering again during a test, because `registerNameServerPeriod` may be
    a minute at most.
    """
    init = Registration.__init__

    def rarely(registration: Registration, *arguments: Any, **others: Any) -> None:
        init(registration, *arguments, **(others | {"period_s": 1e6}))

    monkeypatch.setattr(Registration, "__init__", rarely)


class NameServer:
    def __init__(self, table: RouteTable, address: str) -> None:
        self.table = table
        self.address = address


@asynccontextmanager
async def name_server(port: int = 0) -> AsyncIterator[NameServer]:
    table = RouteTable()
    service = Service(
        namesrv_pb2.DESCRIPTOR.services_by_name["NameServer"].full_name,
        namesrv_pb2_grpc.add_NameServerServicer_to_server,
        NamesrvServicer(table, SimpleNamespace(monotonic=lambda: 0.0)),
    )
    server, bound = await start_server(
        [service], bind_address="127.0.0.1", port=port or own_port(), address_file=None, max_message_bytes=1 << 20
    )
    try:
        yield NameServer(table, f"127.0.0.1:{bound}")
    finally:
        await server.stop(0)


def metrics_of(node: BrokerNode) -> dict[str, float]:
    """Returns the values that a scrape would get now, by the name of the sample.  Of several samples with the same
    name, one is returned.
    """
    node.metrics.take_snapshot()
    return {sample.name: sample.value for family in node.metrics.collect() for sample in family.samples}


def slave_link(node: BrokerNode) -> SlaveLink:
    """Returns a link with which a test changes the broker as its replication does."""
    metadata, writer = node.replication.metadata, node.consumption.writer
    return SlaveLink(node.broker, metadata, node.schedule, writer, node.storage.master_file)


def time_of_trouble_passes(broker: Broker) -> None:
    """Moves the broker's monotonic clock to the time when unreadable messages are tried again."""
    clock = broker.clock
    broker.clock = lambda: clock() + master_loop.AFTER_TROUBLE_S  # type: ignore[method-assign]
