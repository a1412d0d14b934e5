"""Starts RocketSim's cluster for a benchmark: a name server and brokers, whose log files are as large as the peer's."""

import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, WrongResult, must_be
from benchmarks.contest import SMOKE
from benchmarks.driver import Driver, python_driver
from broker_service.store.offline.verification import Severity, verify
from rocketsim_client import Admin, RocketSimError
from rocketsim_client.route import DEFAULT_TOPIC
from testbed.polling import wait_until
from testbed.processes import Processes, ServerProcess

BROKER = "broker-a"
FILE_SIZE = 256 << 20  # as large as those of RocketMQ's broker
ADMIN_TIMEOUT_S = 60.0  # time-out of an admin call, which is long because the machine may be busy
SIZES = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    # RocketMQ's defaults for these three keys, because the tests' defaults are smaller
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
}
# The time-outs are long, so that a busy machine does not make a run fail.  RocketMQ's broker gets the same time-outs.
PATIENCE = {"slaveTimeout": 60_000, "syncFlushTimeout": 60_000}


class OurCluster:
    """RocketSim's cluster: one broker or a pair, and the load process that sends to it and reads from it."""

    def __init__(
        self, name_server: ServerProcess, master: ServerProcess, slave: ServerProcess | None, load: Driver, title: str
    ) -> None:
        self.name_server = name_server
        self.master = master
        self.slave = slave
        self.load = load
        self.title = title
        self.admin = Admin(name_server.address, timeout_s=ADMIN_TIMEOUT_S)
        self._stored: dict[str, int] = {}

    def await_writable(self) -> None:
        def is_writable() -> bool:
            try:
                return bool(self.admin.cluster.route(DEFAULT_TOPIC, fresh=True).writable_queues())
            except RocketSimError:
                return False

        wait_until(is_writable, "a master that takes writes")

    def topic(self, name: str, queues: int = 4) -> str:
        self.admin.update_topic(name, read_queue_nums=queues, write_queue_nums=queues)
        wait_until(lambda: self._knows(name), f"a route for {name}")
        return name

    def _knows(self, topic: str) -> bool:
        try:
            return bool(self.admin.cluster.queues(topic, fresh=True))
        except RocketSimError:
            return False

    def fill(self, topic: str, count: int, size: int, queues: int = 4) -> str:
        """Creates a topic and sends it the bodies with the numbers from 0 to `count`."""
        self.topic(topic, queues)
        must_be(
            f"messages sent to {topic}", self.load.ask("fill", topic=topic, count=count, size=size)["messages"], count
        )
        must_be(f"messages in {topic}", self.count(topic), count)
        return topic

    def count(self, topic: str) -> int:
        bounds = self.admin.cluster.bounds(topic, fresh=True)
        return sum(found.max_offset - found.min_offset for found in bounds.values())

    def stored_at_least(self, topic: str, acknowledged: int) -> None:
        """Checks that all acknowledged messages are stored.  More messages are allowed, because a retry can store a
        message twice.
        """
        self._stored[topic] = self._stored.get(topic, 0) + acknowledged
        found = self.count(topic)
        if found < self._stored[topic]:
            raise WrongResult(f"{topic}: {self._stored[topic]} messages acknowledged, {found} stored")

    def await_slave(self) -> None:
        """Waits until the slave has the whole log."""
        wait_until(lambda: self.slave_behind() == 0, "the slave to have everything")

    def slave_behind(self) -> int | None:
        """Returns how many bytes the slave is behind, or None if no slave is in sync."""
        try:
            (status,) = self.admin.ha_status(broker_addr=self.master.address)
        except RocketSimError:
            return None
        return next((slave.diff_bytes for slave in status.slaves if slave.in_sync), None)

    def syncs(self) -> int:
        """Returns how many fdatasyncs the master has made so far, if the master runs as counting_broker.py."""
        return int.from_bytes((self.master.folder / "fdatasyncs").read_bytes(), "little")

    def close(self) -> None:
        self.admin.close()
        for process in (self.slave, self.master):
            if process is not None and process.is_running():
                process.stop()

    def verify(self, *, side_by_side: bool) -> None:
        """Verifies the stores after the brokers have ended.  With `side_by_side` two processes verify one store each,
        which is faster for large stores.
        """
        if self.slave is None or not side_by_side:
            for server in filter(None, (self.master, self.slave)):
                verify_store(server.store)
            return
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            list(pool.map(verify_store, (self.master.store, self.slave.store)))


def verify_store(store: Path) -> None:
    found = [str(finding) for finding in verify(store) if finding.severity is not Severity.WARNING]
    if found:
        raise WrongResult(f"the store is not in order afterwards: {'; '.join(found[:3])}")


@contextmanager
def running(
    bench: Bench,
    title: str,
    *,
    pair: bool = False,
    module: str = "broker_service",
    keys: Mapping[str, object] | None = None,
    namesrv: Mapping[str, Any] | None = None,
) -> Iterator[OurCluster]:
    """Starts a cluster.  `keys` is the configuration of master and slave, `namesrv` that of the name server, and
    `module` is the Python module that the brokers run.

    The stores are verified at the end of the block, unless it raises.
    """
    bench.doing(f"starting {title}")
    folder = bench.folder / title
    settings = SIZES | dict(keys or {})
    with Processes(folder) as processes:
        name_server = processes.start_namesrv(**(namesrv or {}))
        master = processes.broker(BROKER, 0, name_server, **settings)
        slave = processes.broker(BROKER, 1, name_server, **(settings | {"brokerRole": "SLAVE"})) if pair else None
        for process in filter(None, (master, slave)):
            process.module = module
            process.launch()
        for process in filter(None, (master, slave)):
            process.wait_until_ready()
        with python_driver(f"load of {title}", "benchmarks.load", folder / "load.log", name_server.address) as load:
            ours = OurCluster(name_server, master, slave, load, title)
            try:
                ours.await_writable()
                if pair:
                    ours.await_slave()
                yield ours
                if master.is_running() and slave is not None and slave.is_running():
                    ours.await_slave()
            finally:
                ours.close()
        bench.doing(f"verifying the store of {title}")
        ours.verify(side_by_side=bench.plan is not SMOKE)
    if not bench.keep:
        shutil.rmtree(folder)  # deleted now, because the next cluster needs the disk space


def modes(sync: bool, flush: bool) -> dict[str, object]:
    return {
        "brokerRole": "SYNC_MASTER" if sync else "ASYNC_MASTER",
        "flushDiskType": "SYNC_FLUSH" if flush else "ASYNC_FLUSH",
        **PATIENCE,
    }
