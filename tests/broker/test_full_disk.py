"""The broker's tables on a full disk: a change is made completely or refused."""

import contextlib
from pathlib import Path

import pytest

from broker_service.admin.operations import Operations
from broker_service.broker.metadata.config_table import Tombstone
from broker_service.errors import DiskFull
from broker_service.machine import Machine
from broker_service.node import BrokerNode
from broker_service.store.message_store import MessageStore
from tests.support import stores
from tests.support.brokers import small_config
from tests.support.memory_files import PAGE, MemoryFiles

ROOT = Path("/store")


def opened(disk: MemoryFiles) -> BrokerNode:
    return BrokerNode.open(small_config(ROOT), Machine(files=disk))


def with_a_topic(disk: MemoryFiles) -> BrokerNode:
    node = opened(disk)
    node.topics.auto_create("t", 4, 4, 1)
    for _ in range(3):
        stores.put(node.store, "t", [0, 1], [b"x", b"y"])
    node.store._flush_thoroughly()
    return node


def delete_topic(node: BrokerNode) -> None:
    """As Operations.delete_topic does it."""
    store: MessageStore = node.store
    ends = store.queue_ends("t")
    node.topics.remove("t", 2, ends)
    store.forget_before({"t": ends})


@pytest.mark.parametrize("room", range(0, 10))
def test_a_topic_is_deleted_on_a_full_disk_or_not_at_all(room: int) -> None:
    disk = MemoryFiles()
    node = with_a_topic(disk)
    disk.make_room(room * PAGE)
    with contextlib.suppress(DiskFull):
        delete_topic(node)
    there = "t" in node.topics.entries
    assert node.store.queue_bounds("t", 0) == ((0, 3) if there else (0, 0))
    assert ("t" in node.topics.tombstones) != there, "slaves would take it for deleted and made again"
    disk = disk.kill()
    disk.make_room()
    node = opened(disk)
    assert ("t" in node.topics.entries) == there
    assert node.store.queue_bounds("t", 0) == ((0, 3) if there else (0, 0))
    if not there:
        node.topics.auto_create("t", 4, 4, 3)
        appended = stores.put(node.store, "t", 0, [b"new"])
        assert appended.queues[0].first_queue_offset == 3


def test_queues_that_a_crash_left_of_a_deleted_topic_go_at_a_start_on_a_full_disk() -> None:
    node = with_a_topic(disk := MemoryFiles())
    node.topics.remove("t", 2, {0: 3, 1: 3})
    disk = disk.kill()
    disk.make_room(0)
    for _ in range(2):
        node = opened(disk)
        assert ("t", 0) not in node.store.queues()
        disk = disk.kill()
        disk.make_room()


def test_a_topic_that_a_master_does_not_name_keeps_its_queues_over_a_restart() -> None:
    """The master may have lost its file; also where the topic was deleted by name and made again before that."""
    node = with_a_topic(disk := MemoryFiles())
    version = node.topics.version.next(2)
    node.topics.adopt(version, [], {}, complete=True)
    assert "t" not in node.topics.tombstones, "slaves of this broker would delete the queues, once it is promoted"
    node.topics.auto_create("t", 4, 4, 3)
    delete_topic(node)
    node.topics.auto_create("t", 4, 4, 4)
    stores.put(node.store, "t", [0, 1], [b"x", b"y"])
    node.topics.adopt(version, [], {}, complete=True)
    node.store._flush_thoroughly()
    for _ in range(2):
        disk = disk.kill()
        node = opened(disk)
        assert node.store.queue_bounds("t", 0) == (3, 4)


def test_a_tombstone_of_an_older_version_deletes_no_queues_at_a_start() -> None:
    """It was buried with no queues, because a master did not name the topic."""
    node = with_a_topic(disk := MemoryFiles())
    node.topics.adopt(node.topics.version.next(2), [], {}, complete=True)
    node.topics._bury({"t": Tombstone(2, {})})
    node = opened(disk.kill())
    assert "t" in node.topics.deleted()
    assert node.store.queue_bounds("t", 0) == (0, 3)


def test_operations_delete_a_topic_in_this_order() -> None:
    """The test above stands for it."""
    names = Operations.delete_topic.__code__.co_names
    assert names.index("remove") < names.index("forget_before")


@pytest.mark.parametrize("room", range(0, 4))
def test_a_broker_that_was_killed_opens_on_a_full_disk(room: int) -> None:
    disk = MemoryFiles()
    node = with_a_topic(disk)
    node.epochs.save(node.epochs.epochs.begin(100, 0), begun_here=True, may_resume=True)
    disk = disk.kill()
    disk.make_room(room * PAGE)
    node = opened(disk)
    assert node.store.queue_bounds("t", 0) == (0, 3) and not node.epochs.may_resume
    disk = disk.kill()
    disk.make_room()
    node = opened(disk)
    assert not node.epochs.may_resume, "bytes of that epoch may be missing, also after another start"
    assert opened(disk.kill()).epochs.is_noted
