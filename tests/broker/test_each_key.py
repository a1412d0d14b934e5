"""Configuration keys whose behaviour no other file tests.  `tests/config/behaviours.py` lists the test of each key."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest
from rocketsim_proto.metadata_pb2 import Metadata
from rocketsim_proto.records import record

from broker_service.broker.core.mastership import Standing
from broker_service.broker.reads.commits import CommitEntry, Commits
from broker_service.broker.reads.pull import Pull
from broker_service.delayed.schedule_service import ScheduleService
from broker_service.errors import DiskFull
from broker_service.leadership.exchange import MetadataExchange
from broker_service.modes import BrokerRole, FlushDiskType
from broker_service.node.app import broker
from broker_service.node.node import BrokerNode
from broker_service.put_result import PutStatus
from broker_service.replication.acknowledgement import put_waits
from broker_service.replication.master_frame import MasterFrame
from broker_service.replication.tracker import Tracker
from broker_service.replication.transfer import Transfer
from broker_service.runtime.machine import Machine
from broker_service.store.files import DiskUsage, Files
from broker_service.store.message_store import MessageStore
from testbed.polling import until, wait_until
from tests.support.brokers import bodies_in, message, name_server, put, put_send, running, send_of, small_config

SLAVE: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
HOUR_MS = 3_600_000


# --- who and where ----------------------------------------------------------------------------------------------------


async def test_name_servers_hear_its_names(tmp_path: Path) -> None:
    async with (
        name_server() as names,
        running(tmp_path, broker_cluster_name="north", broker_name="broker-z", namesrv_addr=names.address) as node,
    ):
        found = names.table.live()["broker-z"]
        assert (found.cluster_name, found.members[0].registration.address) == ("north", node.address)


async def test_broker_ip1(tmp_path: Path) -> None:
    """The records, the name servers and the address file get the address `brokerIP1`; the broker listens on
    `bindAddress`.
    """
    async with (
        name_server() as names,
        running(tmp_path, broker_ip1="127.0.0.3", namesrv_addr=names.address) as node,
    ):
        await put(node, "t", b"x")
        found = await node.wire.pulls.pull(Pull(group="g", topic="t", queue_id=0, queue_offset=0))
        port = int(node.address.rpartition(":")[2])
        assert record.decode(found.records).store_host == record.encode_host("127.0.0.3", port)
        assert node.address == f"127.0.0.3:{port}"
        assert names.table.live()["broker-a"].members[0].registration.address == node.address
        assert (tmp_path / "rocketsim/address").read_text().strip() == node.address


async def test_register_name_server_period(tmp_path: Path) -> None:
    """Within `until`'s time, the default of 30 seconds would give fewer answers."""
    async with (
        name_server() as names,
        running(tmp_path, namesrv_addr=names.address, register_name_server_period=100) as node,
    ):
        (link,) = node.registration.links
        answers = link.answers
        await until(lambda: link.answers > answers + 5, "a registration every 100 ms")


async def test_bind_address(tmp_path: Path) -> None:
    async with running(tmp_path, bind_address="127.0.0.2") as node:
        host, _, port = node.address.rpartition(":")
        assert host == "127.0.0.2"
        socket.create_connection((host, int(port)), 5).close()
        # A connection to another address would prove nothing: another process may listen there on the same port.
        listening = [found.laddr for found in psutil.Process().net_connections("tcp") if found.status == "LISTEN"]
        addresses = {found.ip.removeprefix("::ffff:") for found in listening if found.port == int(port)}
        assert addresses == {"127.0.0.2"}


async def test_address_file(tmp_path: Path) -> None:
    async with running(tmp_path / "store", address_file=tmp_path / "where") as node:
        assert (tmp_path / "where").read_text().strip() == node.address
    async with running(tmp_path / "store") as node:
        assert (tmp_path / "store/rocketsim/address").read_text().strip() == node.address


async def test_store_path_root_dir(tmp_path: Path) -> None:
    async with running(tmp_path / "elsewhere", store_path_root_dir=tmp_path / "here") as node:
        await put(node, "t", b"x")
    assert list((tmp_path / "here/commitlog").iterdir())
    assert not (tmp_path / "elsewhere").exists()


async def test_metrics_port(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with running(tmp_path, metrics_port=port) as node:
        await put(node, "t", b"a", b"b")

        def shown() -> bool:
            """Returns whether the metrics show the messages; they are updated every second."""
            page = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
            return "rocketsim_messages_in_total 2.0" in page

        await asyncio.to_thread(wait_until, shown, "both messages")


async def test_default_topic_queue_nums(tmp_path: Path) -> None:
    async with running(tmp_path, default_topic_queue_nums=3) as node:
        await put_send(node, send_of("t", message("t", b"x"), default_queue_nums=8))
        assert node.topics.entries["t"].write_queue_nums == 3


# --- files ------------------------------------------------------------------------------------------------------------


async def test_sizes_of_files(tmp_path: Path) -> None:
    keys = {"mapped_file_size_consume_queue": 50 * 20, "max_hash_slot_num": 30, "max_index_num": 60}
    async with running(tmp_path, **keys) as node:
        await put(node, "t", b"x", KEYS="k")
        assert (tmp_path / "consumequeue/t/0" / f"{0:020}").stat().st_size == 50 * 20
        (index,) = await until(lambda: list((tmp_path / "index").glob("*")), "the index file")
        assert index.stat().st_size == 40 + 30 * 4 + 60 * 20


@pytest.mark.parametrize("enabled", [True, False])
async def test_message_index_enable(tmp_path: Path, enabled: bool) -> None:
    async with running(tmp_path, message_index_enable=enabled) as node:
        await put(node, "t", b"x", KEYS="k")
    assert bool(list((tmp_path / "index").glob("*"))) is enabled  # an index is written by the stop at the latest


# --- acknowledgements -------------------------------------------------------------------------------------------------


async def test_slave_timeout_and_sync_flush_timeout(tmp_path: Path) -> None:
    """A put waits `slaveTimeout` for a slave that is in sync, and `syncFlushTimeout` for the disk."""
    modes: dict[str, Any] = {"broker_role": BrokerRole.SYNC_MASTER, "flush_disk_type": FlushDiskType.SYNC_FLUSH}
    tracker = Tracker(1 << 20)
    tracker.ack(tracker.join(1, "slave", 0, 0), 0, 0)

    def waits(node: BrokerNode) -> list[float]:
        levels = node.acknowledgements.levels
        return [wait.deadline for wait in put_waits(levels, tracker, 0, 100, now=1000.0, timeout_s=500.0)]

    async with running(tmp_path, slave_timeout=70_000, sync_flush_timeout=80_000, **modes) as node:
        assert waits(node) == [1080.0, 1070.0]
        node.broker.update_config({"slaveTimeout": "4000", "syncFlushTimeout": "6000"})
        assert waits(node) == [1006.0, 1004.0]


# --- a slave ----------------------------------------------------------------------------------------------------------


async def test_ha_slave_fallbehind_max(tmp_path: Path) -> None:
    """A put does not wait for a slave that is further behind; with 0 every slave is too far behind."""
    async with (
        name_server() as names,
        running(
            tmp_path / "m",
            namesrv_addr=names.address,
            broker_role=BrokerRole.SYNC_MASTER,
            ha_slave_fallbehind_max=0,
            slave_timeout=60_000,
        ) as master,
        running(tmp_path / "s", namesrv_addr=names.address, **SLAVE) as slave,
    ):
        await until(slave.replication.slave.is_following, "the slave follows")
        assert (await put_send(master, send_of("t", message("t", b"x"))))[1] is PutStatus.SLAVE_NOT_AVAILABLE
        master.broker.update_config({"haSlaveFallbehindMax": "1000000"})
        await until(lambda: master.status.slaves()[0].in_sync, "the slave counts as in sync")
        assert (await put_send(master, send_of("t", message("t", b"x"))))[1] is PutStatus.PUT_OK


async def test_ha_transfer_batch_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    view_log = MessageStore.view_log

    def noted(store: MessageStore, offset: int, max_bytes: int) -> memoryview:
        found = view_log(store, offset, max_bytes)
        sent.append(len(found))
        return found

    async with name_server() as names:
        common: dict[str, Any] = {"namesrv_addr": names.address, "ha_transfer_batch_size": 1024}
        async with running(tmp_path / "m", **common) as master:
            await put(master, "t", *[b"x" * 100] * 40)
            monkeypatch.setattr(MessageStore, "view_log", noted)
            async with running(tmp_path / "s", **common, **SLAVE) as slave:
                await until(lambda: slave.store.end_offset == master.store.end_offset, "the slave has all")
    assert max(sent) <= 1024 and sum(sent) >= master.store.end_offset > 4000


async def test_sync_metadata_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within `until`'s time, the default of ten seconds would give fewer snapshots."""
    snapshots: list[MetadataExchange] = []
    snapshot = MetadataExchange.snapshot

    def noted(exchange: MetadataExchange) -> Metadata:
        snapshots.append(exchange)
        return snapshot(exchange)

    monkeypatch.setattr(MetadataExchange, "snapshot", noted)
    async with name_server() as names:
        common: dict[str, Any] = {"namesrv_addr": names.address, "sync_metadata_interval": 20}
        async with running(tmp_path / "m", **common), running(tmp_path / "s", **common, **SLAVE):
            await until(lambda: len(snapshots) > 20, "a snapshot every 20 ms")


async def test_ha_send_heartbeat_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within `until`'s time, the default of five seconds would give fewer messages on an idle stream."""
    heartbeats: list[float] = []
    next_message = Transfer.next_message

    def noted(transfer: Transfer, now: float) -> MasterFrame | None:
        message = next_message(transfer, now)
        if message is not None:
            heartbeats.append(now)
        return message

    async with name_server() as names:
        common: dict[str, Any] = {"namesrv_addr": names.address, "ha_send_heartbeat_interval": 20}
        async with running(tmp_path / "m", **common), running(tmp_path / "s", **common, **SLAVE) as slave:
            await until(slave.replication.slave.is_following, "the slave follows")
            monkeypatch.setattr(Transfer, "next_message", noted)
            await until(lambda: len(heartbeats) > 20, "a sign of life every 20 ms")


@pytest.mark.parametrize("hasty", ["master", "slave"])
async def test_ha_housekeeping_interval(tmp_path: Path, caplog: pytest.LogCaptureFixture, hasty: str) -> None:
    """Master and slave each close a stream on which the other one is silent."""
    intervals = {"master": HOUR_MS, "slave": HOUR_MS} | {hasty: 100}
    async with name_server() as names:
        common: dict[str, Any] = {"namesrv_addr": names.address, "ha_send_heartbeat_interval": HOUR_MS}
        async with (
            running(tmp_path / "m", ha_housekeeping_interval=intervals["master"], **common),
            running(tmp_path / "s", ha_housekeeping_interval=intervals["slave"], **common, **SLAVE),
        ):
            closed = {"master": "stream of slave-1", "slave": "master 127.0.0.1"}[hasty]

            def said() -> list[str]:
                return [line for line in caplog.messages if "nothing heard for 0.1 s" in line and closed in line]

            await until(said, "the silent stream is closed")


# --- pulls ------------------------------------------------------------------------------------------------------------


async def pulled(node: BrokerNode) -> int:
    found = await node.wire.pulls.pull(Pull(group="g", topic="t", queue_id=0, queue_offset=0, max_msg_nums=50))
    return len(bodies_in(found.records))


@pytest.mark.parametrize(
    ("where", "memory"), [("Memory", 0), ("Disk", 1)], ids=["near the end", "further behind than memory reaches"]
)
async def test_max_transfer_on_message(tmp_path: Path, where: str, memory: int) -> None:
    async with running(tmp_path, physical_memory=memory) as node:
        await put(node, "t", *[b"x" * 100] * 60)
        size = node.store.end_offset // 60
        usual = await pulled(node)
        assert usual == {"Memory": 32, "Disk": 8}[where]
        other = {"Memory": "Disk", "Disk": "Memory"}[where]
        for count in (3, 5):
            node.broker.update_config({f"maxTransferCountOnMessageIn{where}": str(count)})
            assert await pulled(node) == count
        node.broker.update_config({f"maxTransferCountOnMessageIn{where}": "50"})
        node.broker.update_config({f"maxTransferBytesOnMessageIn{where}": str(4 * size)})
        assert await pulled(node) == 4
        node.broker.update_config({f"maxTransferCountOnMessageIn{other}": "1"})
        node.broker.update_config({f"maxTransferBytesOnMessageIn{other}": "1"})
        assert await pulled(node) == 4


# --- what is written when ---------------------------------------------------------------------------------------------


def committed_in_json(root: Path) -> dict[str, Any]:
    path = root / "config/consumerOffset.json"
    found: dict[str, Any] = json.loads(path.read_text())["offsetTable"] if path.exists() else {}
    return found


@pytest.mark.parametrize("interval", [20, HOUR_MS])
async def test_flush_consumer_offset_interval(tmp_path: Path, interval: int) -> None:
    async with running(tmp_path, flush_consumer_offset_interval=interval) as node:
        await put(node, "t", b"x")
        Commits(node.broker).commit("g", [CommitEntry("t", 0, 1)])
        if interval == HOUR_MS:
            assert committed_in_json(tmp_path) == {}  # it is in the journal
        else:
            await until(lambda: committed_in_json(tmp_path) == {"t@g": {"0": 1}}, "the offset in RocketMQ's file")
    assert committed_in_json(tmp_path) == {"t@g": {"0": 1}}


async def test_flush_delay_offset_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within `until`'s time, the default of ten seconds would give fewer writes."""
    looks: list[ScheduleService] = []
    saving = ScheduleService.saving

    def noted(schedule: ScheduleService) -> Callable[[], None] | None:
        looks.append(schedule)
        return saving(schedule)

    monkeypatch.setattr(ScheduleService, "saving", noted)
    async with running(tmp_path, flush_delay_offset_interval=20):
        await until(lambda: len(looks) > 20, "a look every 20 ms whether there is a new position to write")


@pytest.mark.parametrize("interval", [50, HOUR_MS])
async def test_flush_consume_queue_thorough_interval(tmp_path: Path, interval: int) -> None:
    """The checkpoint names the time up to which queues are on disk, so that recovery reads no older records."""

    def logics_timestamp() -> int:
        path = tmp_path / "checkpoint"
        return int.from_bytes(path.read_bytes()[8:16], "big") if path.exists() else 0

    async with running(tmp_path, flush_consume_queue_thorough_interval=interval, flush_interval_commit_log=10) as node:
        await put(node, "t", b"x")
        await until(lambda: node.store.flushed_offset == node.store.end_offset, "the log is flushed")
        if interval == HOUR_MS:
            assert logics_timestamp() == 0
        else:
            await until(lambda: logics_timestamp() > 0, "the checkpoint")


async def test_flush_interval_commit_log(tmp_path: Path) -> None:
    async with running(tmp_path, flush_interval_commit_log=HOUR_MS) as node:
        await put(node, "t", b"x")
        assert node.store.flushed_offset < node.store.end_offset
    async with running(tmp_path, flush_interval_commit_log=10) as node:
        await put(node, "t", b"x")
        await until(lambda: node.store.flushed_offset == node.store.end_offset, "the log is flushed")


# --- a full disk ------------------------------------------------------------------------------------------------------


class FillingDisk(Files):
    used = 10

    def disk_usage(self, path: Path) -> DiskUsage:
        return DiskUsage(total=100 << 20, free=(100 - self.used) << 20)


@asynccontextmanager
async def on_filling_disk(root: Path, **keys: Any) -> AsyncIterator[tuple[BrokerNode, FillingDisk]]:
    """Yields a broker with five flushed log files; the hour at which it deletes files is far away."""
    files = FillingDisk()
    not_now = f"{(time.localtime().tm_hour + 12) % 24:02}"
    config = small_config(
        root, delete_when=not_now, mapped_file_size_commit_log=16 << 10, flush_interval_commit_log=10, **keys
    )
    async with broker(config, Machine(files=files)) as node:
        await until(lambda: node.mastership.standing is Standing.WRITABLE, "the master takes writes")
        for _ in range(9):
            await put(node, "t", b"x" * 8000)
        await until(lambda: node.store.flushed_offset == node.store.end_offset, "the log is flushed")
        yield node, files


def deleted(node: BrokerNode) -> int:
    return len(node.store.retention.delete_expired(time.time_ns() // 1_000_000 + 1000))


async def test_disk_max_used_space_ratio(tmp_path: Path) -> None:
    async with on_filling_disk(tmp_path, disk_max_used_space_ratio=50, file_reserved_time=0) as (node, disk):
        disk.used = 50
        assert deleted(node) == 0
        disk.used = 51
        node.broker.update_config({"diskMaxUsedSpaceRatio": "60"})
        assert deleted(node) == 0
        node.broker.update_config({"diskMaxUsedSpaceRatio": "50"})
        assert deleted(node) > 0


async def test_disk_space_clean_forcibly_ratio(tmp_path: Path) -> None:
    keys = {"disk_max_used_space_ratio": 50, "disk_space_clean_forcibly_ratio": 70, "file_reserved_time": 72}
    async with on_filling_disk(tmp_path, **keys) as (node, disk):
        disk.used = 70
        assert deleted(node) == 0  # nothing has expired
        disk.used = 71
        assert deleted(node) > 0


async def test_disk_space_warning_level_ratio(tmp_path: Path) -> None:
    async with on_filling_disk(tmp_path, disk_space_warning_level_ratio=80) as (node, disk):
        disk.used = 81
        assert deleted(node) == 0
        with pytest.raises(DiskFull, match=r"above 80 % .* takes no messages from clients"):
            await put(node, "t", b"x")
        node.broker.update_config({"diskSpaceWarningLevelRatio": "90"})
        assert deleted(node) == 0
        await put(node, "t", b"x")
