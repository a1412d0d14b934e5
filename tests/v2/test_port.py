"""The port is open while its broker is a master that takes writes, and at no other time."""

import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s

from broker_service.broker.core.mastership import Standing
from broker_service.model import BrokerRole
from tests.support.brokers import name_server, running
from tests.support.polling import until
from tests.support.v2 import CLIENT, client_of, make_topics, message

SLAVE: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}


def listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def test_a_slave_opens_it_when_it_is_promoted_and_the_former_master_closes_it(tmp_path: Path) -> None:
    port = free_port()
    async with (
        name_server() as names,
        running(tmp_path / "m", namesrv_addr=names.address, grpc_server_port=port) as master,
        running(tmp_path / "s", namesrv_addr=names.address, grpc_server_port=0, **SLAVE) as slave,
        client_of(master) as client,
    ):
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
        assert await telemetry.read() is grpc.aio.EOF  # its streams ended, so that its clients connect anew


def settings() -> s.TelemetryCommand:
    return s.TelemetryCommand(settings=d.Settings(client_type=d.PRODUCER, publishing=d.Publishing()))


async def test_name_servers_hear_of_it(tmp_path: Path) -> None:
    async with (
        name_server() as names,
        running(tmp_path, namesrv_addr=names.address, grpc_server_port=0) as node,
    ):
        await until(lambda: names.table.live()["broker-a"].v2_address == node.v2_port.address != "", "its address")


async def test_minus_one_is_no_port(tmp_path: Path) -> None:
    async with running(tmp_path, grpc_server_port=-1) as node:
        await until(lambda: any(task.get_name() == "v2-port" and task.done() for task in node.tasks._tasks), "the end")
        assert node.v2_port.address == ""


async def test_a_port_that_is_taken_is_said_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_service.v2.port.TRY_AGAIN_S", 0.01)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with running(tmp_path, grpc_server_port=port) as node:
            await until(lambda: f"grpcServerPort={port}: cannot listen on" in caplog.text, "the error")
            taken.close()
            await until(lambda: node.v2_port.address == f"127.0.0.1:{port}", "the port")
    assert caplog.text.count("cannot listen on") == 1


async def test_a_disk_that_is_not_trusted_closes_it(tmp_path: Path) -> None:
    async with running(tmp_path, grpc_server_port=0) as node:
        await until(lambda: node.v2_port.address, "the port")
        node._flush_failed(OSError("no"))
        await until(lambda: not node.v2_port.address, "its end")
