"""The broker's tables on a full disk: a change is made completely or refused."""

import asyncio
import contextlib
import errno
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_service.admin.operations import Operations
from broker_service.broker.core.mastership import Standing
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.messages import floors_to_proto
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.errors import DiskFull, ServiceNotAvailable, SubscriptionGroupNotExist
from broker_service.node.app import broker
from broker_service.node.node import BrokerNode
from broker_service.pop.deliveries import Pop
from broker_service.runtime.machine import Machine, now_ms
from broker_service.store.files import Buffer, Files
from broker_service.store.json_file import JsonFile
from broker_service.store.message_store import MessageStore
from broker_service.store.offset_journal import NO_OFFSET, OffsetJournal
from testbed.polling import until
from tests.support import stores
from tests.support.brokers import put, small_config
from tests.support.memory_files import PAGE, MemoryFiles, PowerCut

ROOT = Path("/store")


def opened(disk: MemoryFiles) -> BrokerNode:
    return BrokerNode.open(small_config(ROOT), Machine(files=disk))


def with_a_topic(disk: MemoryFiles) -> BrokerNode:
    node = opened(disk)
    node.topics.auto_create("t", 4, 4, 1)
    for _ in range(3):
        stores.put(node.store, "t", [0, 1], [b"x", b"y"])
    stores.flush_thoroughly(node.store, now_ms())
    return node


def delete_topic(node: BrokerNode) -> None:
    """Does the steps of Operations.delete_topic."""
    store: MessageStore = node.store
    ends = store.queues.ends("t")
    asyncio.run(node.topics.apply(lambda: node.topics.removing("t", 2, ends)))
    store.forget_before({"t": ends})


@pytest.mark.parametrize("room", range(0, 10))
def test_a_topic_is_deleted_on_a_full_disk_or_not_at_all(room: int) -> None:
    disk = MemoryFiles()
    node = with_a_topic(disk)
    disk.make_room(room * PAGE)
    with contextlib.suppress(DiskFull):
        delete_topic(node)
    there = "t" in node.topics.entries
    assert node.store.queues.bounds("t", 0) == ((0, 3) if there else (3, 3))
    assert ("t" in node.topics.tombstones) != there, "slaves would take it for deleted and made again"
    disk = disk.kill()
    disk.make_room()
    node = opened(disk)
    assert ("t" in node.topics.entries) == there
    assert ("t" in node.topics.tombstones) != there
    assert node.store.queues.bounds("t", 0) == ((0, 3) if there else (3, 3))
    if not there:
        node.topics.auto_create("t", 4, 4, 3)
        appended = stores.put(node.store, "t", 0, [b"new"])
        assert appended.queues[0].first_queue_offset == 3


def floors_for_slaves(node: BrokerNode) -> dict[tuple[str, int], int]:
    """Returns up to which offset this broker's slaves must delete the entries of each queue."""
    tombstones = node.topics.tombstones
    return {(floor.topic, floor.queue_id): floor.next_offset for floor in floors_to_proto(tombstones, tombstones)}


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("call", range(1, 24))
def test_a_deletion_that_is_cut_off_leaves_no_tombstone_of_a_topic_that_is_there(call: int, made_again: bool) -> None:
    """The crash also leaves the tombstone of an earlier deletion."""
    disk = MemoryFiles()
    node = with_a_topic(disk)
    before: dict[tuple[str, int], int] = {}
    if made_again:
        delete_topic(node)
        node.topics.auto_create("t", 4, 4, 3)
        stores.put(node.store, "t", [0, 1], [b"x", b"y"])
        stores.flush_thoroughly(node.store, now_ms() + stores.MINUTE)
        before = {("t", 0): 3, ("t", 1): 3}
        assert floors_for_slaves(node) == before
    disk.stop_at = disk.calls + call
    with contextlib.suppress(PowerCut):
        delete_topic(node)
    for seed in range(3):
        left = disk.as_powerless(random.Random(seed)) if seed else disk.as_killed()
        for _ in range(2):
            node = opened(left)
            there = "t" in node.topics.entries
            end = 4 if made_again else 3
            assert floors_for_slaves(node) == (before if there else {("t", 0): end, ("t", 1): end})
            left = left.kill()
        if there:
            continue
        node = opened(left)
        node.topics.auto_create("t", 4, 4, 4)
        node = opened(left.kill())
        assert floors_for_slaves(node) == {("t", 0): end, ("t", 1): end}, "it was made again"


def test_a_deletion_that_failed_does_not_come_true_with_a_later_change() -> None:
    disk = MemoryFiles()
    node = with_a_topic(disk)
    disk.fail("rename", errno.EIO, matching="config/topics.json")
    with pytest.raises(ServiceNotAvailable):
        delete_topic(node)
    assert not floors_for_slaves(node)
    node.topics.auto_create("u", 4, 4, 5)
    node.topics.remove("u", 6, {0: 7})
    node = opened(disk.kill())
    assert set(node.topics.of_users()) == {"t"}
    assert floors_for_slaves(node) == {("u", 0): 7}


def test_queues_that_a_crash_left_of_a_deleted_topic_go_at_a_start_on_a_full_disk() -> None:
    node = with_a_topic(disk := MemoryFiles())
    node.topics.remove("t", 2, {0: 3, 1: 3})
    disk = disk.kill()
    disk.make_room(0)
    for _ in range(2):
        node = opened(disk)
        assert ("t", 0) not in node.store.queues.keys()
        disk = disk.kill()
        disk.make_room()


def test_queues_that_a_slave_had_no_time_to_delete_of_a_topic_made_again_go_at_its_start() -> None:
    """The slave has died after it wrote the tables, in which the topic is a new one, and before it deleted
    the queues.
    """
    node = with_a_topic(disk := MemoryFiles())
    topic = node.topics.entries["t"]
    node.topics.adopt(node.topics.version.next(2), [topic], {"t": {0: 3, 1: 2}}, complete=True)
    node = opened(disk.kill())
    assert "t" in node.topics.entries
    assert (node.store.queues.bounds("t", 0), node.store.queues.bounds("t", 1)) == ((3, 3), (2, 3))


def test_a_topic_that_a_master_does_not_name_keeps_its_queues_over_a_restart() -> None:
    """The master's table may be lost.  A topic that had been deleted and created again also keeps its queues."""
    node = with_a_topic(disk := MemoryFiles())
    version = node.topics.version.next(2)
    node.topics.adopt(version, [], {}, complete=True)
    assert "t" not in node.topics.tombstones, "slaves of this broker would delete the queues, once it is promoted"
    node.topics.auto_create("t", 4, 4, 3)
    delete_topic(node)
    node.topics.auto_create("t", 4, 4, 4)
    stores.put(node.store, "t", [0, 1], [b"x", b"y"])
    node.topics.adopt(version, [], {}, complete=True)
    stores.flush_thoroughly(node.store, now_ms() + stores.MINUTE)
    for _ in range(2):
        disk = disk.kill()
        node = opened(disk)
        assert node.store.queues.bounds("t", 0) == (3, 4)


def test_a_tombstone_of_an_older_version_deletes_no_queues_at_a_start() -> None:
    """The old tombstone names no queues, because it was made when a master did not name the topic."""
    node = with_a_topic(disk := MemoryFiles())
    node.topics.adopt(node.topics.version.next(2), [], {}, complete=True)
    left = JsonFile(ROOT / "rocketsim/deleted_topics.json", disk)
    left.save({"deleted": {"t": {"timestamp": 2, "queueOffsets": {}}}})
    node = opened(disk.kill())
    assert "t" in node.topics.deleted()
    assert node.store.queues.bounds("t", 0) == (0, 3)


class FullJournal(Files):
    """While `is_full`, the disk has room for everything but committed offsets."""

    is_full = False

    def __init__(self) -> None:
        self._journals: set[int] = set()

    def open(self, path: Path, *, create: bool = False, read_only: bool = False, private: bool = False) -> int:
        handle = super().open(path, create=create, read_only=read_only, private=private)
        (self._journals.add if path.name.startswith("offsets.journal") else self._journals.discard)(handle)
        return handle

    def preallocate(self, handle: int, size: int) -> None:
        self._refuse(handle)
        super().preallocate(handle, size)

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        self._refuse(handle)
        super().pwrite(handle, data, offset)

    def _refuse(self, handle: int) -> None:
        if self.is_full and handle in self._journals:
            raise OSError(errno.ENOSPC, "no room")


@asynccontextmanager
async def serving(root: Path, files: Files, interval: int = 20) -> AsyncIterator[tuple[BrokerNode, Operations]]:
    """Yields a master that takes writes, with topic t of two messages and the offsets of group g."""
    async with broker(small_config(root, flush_consumer_offset_interval=interval), Machine(files=files)) as node:
        await until(lambda: node.mastership.standing is Standing.WRITABLE, "the master takes writes")
        await put(node, "t", b"x", b"y")
        node.offsets.commit("g", "t", {0: 2})
        yield node, Operations(node.broker, node.leadership)


async def test_the_offsets_of_a_deleted_topic_go_when_there_is_room_for_that(tmp_path: Path) -> None:
    async with serving(tmp_path, disk := FullJournal()) as (node, operations):
        disk.is_full = True
        await operations.delete_topic("t")
        assert "t" not in node.topics.entries and node.offsets.get("g", "t", 0) == (0, 2)
        disk.is_full = False
        await until(lambda: node.offsets.get("g", "t", 0) == (1, NO_OFFSET), "they are gone")
    async with broker(small_config(tmp_path), Machine()) as node:
        assert node.offsets.groups() == []


async def test_the_offsets_of_a_topic_that_is_made_again_before_there_is_room_stay(tmp_path: Path) -> None:
    async with serving(tmp_path, disk := FullJournal()) as (node, operations):
        disk.is_full = True
        await operations.delete_topic("t")
        await put(node, "t", b"z")
        disk.is_full = False
        node.offsets.commit("g", "t", {0: 3})
        node.saving.complete_deletions()
        assert node.offsets.get("g", "t", 0) == (0, 3)


async def test_the_offsets_of_a_topic_whose_deletion_a_crash_cut_off_go_with_the_next_start(tmp_path: Path) -> None:
    async with serving(tmp_path, Files(), interval=3_600_000) as (node, _):
        node.topics.remove("t", 2, {0: 2})  # the crash prevents everything that follows this step
    async with broker(small_config(tmp_path, flush_consumer_offset_interval=20), Machine()) as node:
        await until(lambda: node.offsets.get("g", "t", 0) == (1, NO_OFFSET), "they are gone")


async def test_a_group_whose_offsets_the_disk_refused_to_delete_is_deleted_again(tmp_path: Path) -> None:
    async with serving(tmp_path, disk := FullJournal()) as (node, operations):
        await operations.update_group(SubscriptionGroup("g"))
        disk.is_full = True
        with pytest.raises(DiskFull, match="settings of group g are deleted, but not all"):
            await operations.delete_group("g", remove_offset=True)
        assert node.offsets.get("g", "t", 0) == (0, 2)
        disk.is_full = False
        await operations.delete_group("g", remove_offset=True)
        assert node.offsets.groups() == []
        with pytest.raises(SubscriptionGroupNotExist):
            await operations.delete_group("g", remove_offset=True)


async def popped(node: BrokerNode, *queue_ids: int) -> None:
    """Puts a message in each of these queues, and lets group g have all of them under way."""
    node.topics.put(TopicConfig("t", 100, 100), 3)
    for queue_id in queue_ids:
        await put(node, "t", b"x", queue_id=queue_id)
    while (await node.consumption.pop(Pop(group="g", topic="t", invisible_ms=600_000))).deliveries:
        pass
    assert {place.queue_id for place in node.consumption.state.queues} >= set(queue_ids)


def places_of(node: BrokerNode) -> dict[int, int]:
    return {place.queue_id: queue.next for place, queue in node.consumption.state.queues.items()}


async def test_a_reset_that_the_journal_has_no_room_for_moves_no_pops_either(tmp_path: Path) -> None:
    async with serving(tmp_path, disk := FullJournal()) as (node, operations):
        await popped(node, 1)
        before, end, committed = places_of(node), node.store.end_offset, node.offsets.progress("g", "t", 0)
        disk.is_full = True
        with pytest.raises(DiskFull, match="no room"):
            await operations.reset_offset_by_time("g", "t", 0, [], force=True)
        assert (places_of(node), node.store.end_offset) == (before, end)
        assert node.offsets.progress("g", "t", 0) == committed
        disk.is_full = False
        await operations.reset_offset_by_time("g", "t", 0, [], force=True)
        assert set(places_of(node).values()) == {0}


async def test_a_reset_that_the_log_refuses_moves_no_committed_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, Files()) as (node, operations):
        await popped(node, 1)
        before, committed = places_of(node), list(node.offsets.everything())

        def full(*_: object) -> None:
            raise DiskFull("no room")

        monkeypatch.setattr(node.store, "append_one", full)
        with pytest.raises(DiskFull, match=r"^no room$"):
            await operations.reset_offset_by_time("g", "t", 0, [], force=True)
        assert (places_of(node), list(node.offsets.everything())) == (before, committed)


async def test_a_reset_that_the_disk_refuses_half_way_says_which_half_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, Files()) as (node, operations):
        await popped(node, 1)
        committed = list(node.offsets.everything())
        with monkeypatch.context() as broken:

            def refuse(*_: object, **__: object) -> None:
                raise ServiceNotAvailable("the disk refuses")

            broken.setattr(OffsetJournal, "append", refuse)
            with pytest.raises(ServiceNotAvailable, match=r"on topic t have moved, its committed offsets have not"):
                await operations.reset_offset_by_time("g", "t", 0, [], force=True)
        assert set(places_of(node).values()) == {0} and list(node.offsets.everything()) == committed
        await operations.reset_offset_by_time("g", "t", 0, [], force=True)


async def test_a_reset_of_many_queues_that_the_log_refuses_half_way_names_those_that_have_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, Files()) as (node, operations):
        queue_ids = range(40)
        await popped(node, *queue_ids)
        before, append, records = places_of(node), node.store.append_one, 0

        def full_after_one(*arguments: Any) -> Any:
            nonlocal records
            records += 1
            if records == 2:
                raise DiskFull("no room")
            return append(*arguments)

        with monkeypatch.context() as broken:
            broken.setattr(node.store, "append_one", full_after_one)
            with pytest.raises(ServiceNotAvailable, match=r"in topic t only queues 0-29 have moved"):
                await operations.reset_offset_by_time("g", "t", 0, list(queue_ids), force=True)
        after = places_of(node)
        assert {queue_id for queue_id in queue_ids if after[queue_id] != before[queue_id]} == set(range(30))
        await operations.reset_offset_by_time("g", "t", 0, list(queue_ids), force=True)
        assert set(places_of(node).values()) == {0}


async def test_a_topic_whose_tombstone_is_refused_keeps_its_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above relies on this order: the table changes first, and the queues go after that."""
    async with serving(tmp_path, Files()) as (node, operations):

        def full(file: JsonFile, value: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(JsonFile, "save", full)
        with pytest.raises(DiskFull):
            await operations.delete_topic("t")
        monkeypatch.undo()
        assert "t" in node.topics.entries and node.store.queues.bounds("t", 0) == (0, 2)
        assert node.offsets.get("g", "t", 0) == (0, 2)
        await put(node, "t", b"z")


@pytest.mark.parametrize("room", range(0, 4))
def test_a_broker_that_was_killed_opens_on_a_full_disk(room: int) -> None:
    disk = MemoryFiles()
    node = with_a_topic(disk)
    node.epochs.save(node.epochs.epochs.begin(100, 0), begun_here=True, may_resume=True)
    disk = disk.kill()
    disk.make_room(room * PAGE)
    node = opened(disk)
    assert node.store.queues.bounds("t", 0) == (0, 3) and not node.epochs.may_resume
    disk = disk.kill()
    disk.make_room()
    node = opened(disk)
    assert not node.epochs.may_resume, "bytes of that epoch may be missing, also after another start"
    assert opened(disk.kill()).epochs.is_noted
