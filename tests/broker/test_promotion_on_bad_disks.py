"""Any disk call of a promotion may fail.  After a failure the broker is either a master, on disk and in memory, or
still a slave.
"""

import errno
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_service.errors import RocketSimError
from broker_service.modes import BrokerRole
from broker_service.node.masters_work import MastersWork
from broker_service.node.node import BrokerNode
from broker_service.replication.epochs import PROMOTION, EpochList
from broker_service.runtime.machine import Machine, now_ms
from tests.support import stores
from tests.support.brokers import small_config
from tests.support.memory_files import MemoryFiles

ROOT = Path("/store")
OF_MASTER = EpochList.of((1, 0))


@pytest.fixture(autouse=True)
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A promoted broker makes no disk calls except those of its promotion."""
    monkeypatch.setattr(MastersWork, "begin", lambda self: None)


def opened(disk: MemoryFiles) -> BrokerNode:
    return BrokerNode.open(small_config(ROOT, broker_role=BrokerRole.SLAVE, broker_id=1), Machine(files=disk))


def slave_on(disk: MemoryFiles) -> BrokerNode:
    """A slave with three messages of its master; a consumer's offset lies beyond the last one."""
    node = opened(disk)
    node.epochs.save(OF_MASTER)
    stores.put(node.store, "t", 0, [b"x", b"y", b"z"])
    stores.flush_thoroughly(node.store, now_ms())
    node.offsets.commit("g", "t", {0: 5})
    node.assemble("127.0.0.1:1", bytes(8))
    return node


async def promote(node: BrokerNode) -> bool:
    node.flusher.start()
    try:
        await node.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
    except (OSError, RocketSimError):
        return False
    finally:
        await node.flusher.close()
    return True


def refusing(nth: int, error: int, *, for_good: bool) -> tuple[Callable[[str, Path], None], list[str]]:
    calls: list[str] = []

    def before(call: str, path: Path) -> None:
        calls.append(call)
        if len(calls) == nth or (for_good and len(calls) > nth):
            raise OSError(error, "as if", str(path))

    return before, calls


def adopt(node: BrokerNode) -> None:
    """Gives the slave its master's epochs, as it gets them before it takes bytes."""
    node.epochs.save(OF_MASTER.with_ids_of(node.epochs.epochs))


def is_master(node: BrokerNode) -> bool:
    master = node.config.broker_role is BrokerRole.ASYNC_MASTER
    assert node.epochs.epochs.last == (PROMOTION if master else 1)
    assert node.epochs.begun_here == master
    return master


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EMFILE], ids=errno.errorcode.get)
async def test_a_promotion_that_any_call_of_the_disk_fails_is_whole_or_has_not_been(error: int, for_good: bool) -> None:
    nth, refused, calls = 0, 0, ["first"]
    while nth < len(calls) + 1:
        nth += 1
        disk = MemoryFiles()
        node = slave_on(disk)
        disk.before, calls = refusing(nth, error, for_good=for_good)
        promoted = await promote(node)
        disk.before = None
        refused += not promoted
        what = (nth, calls[nth - 1 :][:1], node.store.disk.fatal)
        assert node.broker.is_slave != promoted, what
        assert node.epochs.epochs.last == (PROMOTION if promoted else 1), what
        # a stopped broker says "restart the broker", and follows nobody before that
        stopped = node.store.disk.fatal is not None
        if not promoted and not stopped:
            adopt(node)
            stores.put(node.store, "t", 0, [b"of the master"])
        for left in (disk.power_loss(random.Random(nth)), disk.kill()):
            assert is_master(opened(left)) == promoted or (stopped and not promoted), what
    assert promoted and refused >= 8, (refused, "the last one met no fault")


async def test_a_promotion_that_died_before_its_role_was_on_disk_has_not_been() -> None:
    disk = MemoryFiles()
    node = slave_on(disk)
    node.flusher.start()
    assert await node.replication_master.begin_epoch(promotion=True) == PROMOTION
    await node.flusher.close()
    assert not is_master(opened(disk.kill()))


async def test_a_promotion_that_died_forgets_no_epoch_that_the_slave_had_heard_of() -> None:
    """A slave that forgot the epoch would follow the master that was replaced in it, and acknowledge records that are
    cut later.
    """
    disk = MemoryFiles()
    node = slave_on(disk)
    # an epoch of which the slave has no byte yet
    heard_of = EpochList.of((1, 0), (PROMOTION, node.store.end_offset, 7))
    node.epochs.save(heard_of)
    node.flusher.start()
    assert await node.replication_master.begin_epoch(promotion=True) == 2 * PROMOTION
    await node.flusher.close()
    disk = disk.kill()
    for _ in range(2):
        assert opened(disk).epochs.epochs == heard_of
        disk = disk.kill()


async def test_a_promotion_that_an_older_version_began_is_forgotten_too() -> None:
    """The older version noted only epochs with bytes."""
    node = slave_on(disk := MemoryFiles())
    entries = [{"epoch": 1, "startOffset": 0}, {"epoch": PROMOTION, "startOffset": node.store.end_offset, "id": "7"}]
    content = {"epochs": entries, "begunHere": True, "goesOn": True, "promotion": {"begunHereBefore": False}}
    node.store.disk.write_atomically(ROOT / "rocketsim" / "epochs.json", json.dumps(content).encode())
    assert not is_master(opened(disk.kill()))


async def test_an_epoch_with_bytes_stays_when_the_role_is_taken_away() -> None:
    """The epoch stays when an operator removes `rocketsim/role.json`, because its records were acknowledged."""
    disk = MemoryFiles()
    node = slave_on(disk)
    assert await promote(node)
    stores.put(node.store, "t", 0, [b"acknowledged"])
    disk = disk.kill()
    disk.remove(ROOT / "rocketsim" / "role.json")
    again = opened(disk)
    assert again.config.broker_role is BrokerRole.SLAVE and again.epochs.epochs.last == PROMOTION
