"""Only frequent methods are registered with gRPC, because each registered method makes all calls more expensive."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.brokers import running

FREQUENT = {
    *("/rocketsim.Broker/Send", "/rocketsim.Broker/Pull", "/rocketsim.Broker/PullRange"),
    "/rocketsim.Replication/Replicate",
    *("/rocketsim.Consumption/Pop", "/rocketsim.Consumption/Ack"),
}
FREQUENT_V2 = {
    f"/apache.rocketmq.v2.MessagingService/{method}"
    for method in ("SendMessage", "ReceiveMessage", "AckMessage", "QueryRoute", "Telemetry")
}


async def test_few_methods_are_registered_because_each_of_them_costs_all_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: set[str] = set()
    server = type(grpc.aio.server())
    register = server.add_registered_method_handlers

    def record(self: Any, service: str, handlers: Any) -> None:
        registered.update(f"/{service}/{method}" for method in handlers)
        register(self, service, handlers)

    monkeypatch.setattr(server, "add_registered_method_handlers", record)
    async with running(tmp_path, grpc_server_port=0):
        reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"  # registers itself
        assert registered == FREQUENT | FREQUENT_V2 | {reflection}
