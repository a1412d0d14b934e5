"""A cluster in this process for every test that asks for one: two pairs with topic T."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketsim_client import Admin
from tests.support.fake_broker import FakeCluster
from tests.support.polling import wait_until
from tests.support.processes import Processes, ServerProcess

RealPair = Callable[[str], tuple[str, ServerProcess, ServerProcess]]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster("T") as fake:
        for name in ("broker-a", "broker-b"):
            for broker_id in (0, 1):
                fake.start(name, broker_id)
        yield fake


@pytest.fixture
def real_pair(tmp_path: Path) -> Iterator[RealPair]:
    """`real_pair(topic)`: a name server's address, and the processes of a SYNC_MASTER and its slave, which both have
    the topic with four queues."""
    with Processes(tmp_path) as processes:

        def start(topic: str) -> tuple[str, ServerProcess, ServerProcess]:
            name_server = processes.start_namesrv()
            master, slave = processes.start_pair("broker-a", name_server, brokerRole="SYNC_MASTER")
            with Admin(name_server.address) as admin:
                wait_until(lambda: len(admin.cluster_list()) == 2, "both brokers")
                wait_until(lambda: admin.ha_status(broker_addr=master.address)[0].slaves, "the slave follows")
                admin.update_topic(topic, read_queue_nums=4, write_queue_nums=4)
                for address in (master.address, slave.address):
                    wait_until(
                        lambda at=address: topic in {config.topic_name for config in admin.topic_configs(at)},
                        "the topic",
                    )
                wait_until(lambda: topic in admin.topic_list(), "the topic's route")
            return name_server.address, master, slave

        yield start
