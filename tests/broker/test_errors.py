"""Every error class says in one place what each kind of caller gets."""

import importlib
import pkgutil
from collections.abc import Iterator

import grpc
import pytest
from rocketmq_v2 import definition_pb2
from rocketsim_proto import message_pb2

import broker_service
from broker_service.errors import RocketSimError
from rocketsim_client import errors as client_errors


def subclasses(kind: type[RocketSimError]) -> Iterator[type[RocketSimError]]:
    yield kind
    for sub in kind.__subclasses__():
        yield from subclasses(sub)


def all_errors() -> list[type[RocketSimError]]:
    for module in pkgutil.walk_packages(broker_service.__path__, "broker_service."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return sorted(set(subclasses(RocketSimError)), key=lambda kind: f"{kind.__module__}.{kind.__name__}")


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_an_error_has_a_status_for_each_protocol(kind: type[RocketSimError]) -> None:
    assert kind.grpc_status in grpc.StatusCode.__members__
    assert kind.v2_code in definition_pb2.Code.keys()
    assert kind.code in message_pb2.ResponseCode.values()


def test_the_client_has_an_error_for_each_code_of_a_refusal_that_is_the_callers_fault() -> None:
    """The client raises `BrokerRefused` for errors that are the broker's or its environment's fault."""
    callers = {"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED"}
    known = {kind.code for kind in vars(client_errors).values() if isinstance(kind, type) and hasattr(kind, "code")}
    missing = {kind.__name__ for kind in all_errors() if kind.grpc_status in callers and kind.code not in known}
    assert not missing
