"""A cluster in this process for every test that asks for one: two pairs with topic T."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketsim_client import Admin, RocketSimError
from testbed.polling import wait_until
from testbed.processes import Processes, ServerProcess
from tests.support.fake_broker import FakeCluster


class RealPair(NamedTuple):
    name_server: str
    master: ServerProcess
    slave: ServerProcess


def start_real_pair(processes: Processes, **keys: object) -> RealPair:
    """Starts a name server, and the pair broker-a, whose slave follows its master."""
    name_server = processes.start_namesrv()
    master, slave = processes.start_pair("broker-a", name_server, **keys)
    with Admin(name_server.address) as admin:

        def both_are_there() -> bool:
            try:
                return len(admin.cluster_list()) == 2 and bool(admin.ha_status(broker_addr=master.address)[0].slaves)
            except RocketSimError:  # a busy machine may not answer in time
                return False

        wait_until(both_are_there, "the slave follows")
    return RealPair(name_server.address, master, slave)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster("T") as fake:
        for name in ("broker-a", "broker-b"):
            for broker_id in (0, 1):
                fake.start(name, broker_id)
        yield fake


@pytest.fixture
def real_pair(tmp_path: Path) -> Iterator[Callable[[str], RealPair]]:
    """Yields a function: `real_pair(topic)` starts a SYNC_MASTER and its slave, which both have the topic with four
    queues.
    """
    with Processes(tmp_path) as processes:

        def start(topic: str) -> RealPair:
            started = start_real_pair(processes, brokerRole="SYNC_MASTER")
            with Admin(started.name_server) as admin:
                admin.update_topic(topic, read_queue_nums=4, write_queue_nums=4)
                for address in (started.master.address, started.slave.address):
                    wait_until(
                        lambda at=address: topic in {config.topic_name for config in admin.topic_configs(at)},
                        "the topic",
                    )
                wait_until(lambda: topic in admin.topic_list(), "the topic's route")
            return started

        yield start
