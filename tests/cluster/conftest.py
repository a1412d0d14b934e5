"""Real processes for every test of this folder; all of them end with the test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketsim_client.connection import Connection
from rocketsim_client.transport.own.transport import GrpcTransport
from testbed.processes import Processes, ServerProcess
from tests.cluster.one_broker import OneBroker


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as started:
        yield started


@pytest.fixture
def namesrv(processes: Processes) -> ServerProcess:
    return processes.start_namesrv()


@pytest.fixture
def alone() -> Iterator[Callable[[ServerProcess], OneBroker]]:
    """Yields a function: `alone(process)` returns calls to that broker, without fallback to another one."""
    transport = GrpcTransport(Connection.of("127.0.0.1:1"))
    yield lambda process: OneBroker(process, transport)
    transport.close()


@pytest.fixture
def pair_with_topic(
    processes: Processes, namesrv: ServerProcess, alone: Callable[[ServerProcess], OneBroker]
) -> Callable[..., tuple[ServerProcess, ServerProcess]]:
    """Returns a function: `pair_with_topic(**keys)` starts a master and its slave, in sync, which both have the topic
    T.
    """

    def start(**keys: object) -> tuple[ServerProcess, ServerProcess]:
        master, slave = processes.start_pair("broker-a", namesrv, **keys)
        alone(master).update_topic("T")
        alone(master).wait_for_slaves()
        alone(slave).wait_for_topic("T")
        return master, slave

    return start
