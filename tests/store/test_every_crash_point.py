"""A store dies in every single call of its disk, by a kill and by power losses, and each resulting disk is recovered
and checked.

The scripts come from seeds.  Each script runs once.  Before each call that changes the disk, the disk is copied as a
crash would leave it, and the copies are opened.
"""

import random
from pathlib import Path

import pytest

from broker_service.store.message_store import MessageStore
from tests.support.memory_files import MemoryFiles, MemoryPath
from tests.support.stores import (
    MINUTE,
    NOW,
    actual_queues,
    bodies,
    delete_topic,
    expected_queues,
    flush_thoroughly,
    open_store,
    put,
    records_of,
)

ROOT = MemoryPath("/store")
STEPS = 14
POWER_LOSSES = 3  # power losses tried at each call; each one leaves another part of the data that was not synced
PARTS = 6  # tests of each script: all run the whole script, and each crashes at other calls
WEIGHTS = {"append": 9, "flush": 3, "flush_all": 3, "tick": 2, "cut": 2, "restart": 1, "delete_topic": 1}


class Script:
    """The store first dies in call number `part`, and then in every `PARTS`-th call."""

    def __init__(self, seed: int, part: int) -> None:
        self.disk = MemoryFiles()
        self.points = self.checked = 0
        self._part = part
        self._calls = 0
        self._now_ms = NOW
        self._chance = random.Random(seed)
        self._accepted: list[bytes] = []  # all records in the log, in order
        self._doubtful: list[bytes] = []  # records of an append that is under way
        self._flushed = 0  # how many of the accepted records are known to be on disk
        self._kept = 0  # the least number of records that a cut under way keeps
        self._cutting = False
        self._topics = 0
        self.disk.before = self._crash_here
        self._store = open_store(ROOT, self.disk)

    def run(self) -> None:
        names, weights = zip(*WEIGHTS.items(), strict=True)
        for step in self._chance.choices(names, weights, k=STEPS):
            getattr(self, step)()
        self._store.close()

    # --- what a store is asked to do ------------------------------------------------------------------------------

    def append(self) -> None:
        first = len(self._accepted) + 1000 * self.points
        count, size = self._chance.randint(1, 5), self._chance.choice((10, 200, 900))
        self._doubtful = [b"%d.%d " % (first, n) + b"x" * size for n in range(count)]
        put(self._store, f"T{self._topics}", [self._chance.randrange(3) for _ in range(count)], self._doubtful)
        self._accepted += self._doubtful
        self._doubtful = []

    def flush(self) -> None:
        self._store.flush()
        self._flushed = len(self._accepted)

    def flush_all(self) -> None:
        self._now_ms += MINUTE
        flush_thoroughly(self._store, self._now_ms)
        self._flushed = len(self._accepted)

    def tick(self) -> None:
        self._store.tick(self._now_ms)

    def cut(self) -> None:
        keep = self._chance.randint(0, len(self._accepted))
        if keep == len(self._accepted):
            return
        offset = records_of(self._store)[keep].commit_log_offset
        self._cutting, self._flushed = True, min(self._flushed, keep)
        self._store.truncate(offset, ROOT / "rocketsim" / "diverged")
        del self._accepted[keep:]
        self._cutting, self._flushed = False, keep

    def restart(self) -> None:
        self._store.close()
        self._flushed = len(self._accepted)
        self._store = open_store(ROOT, self.disk)

    def delete_topic(self) -> None:
        # the old topic's records stay but its queues go, so the queues no longer equal a replay of the log
        self._topics += 1
        delete_topic(self._store, f"T{self._topics - 1}")

    # --- crashes --------------------------------------------------------------------------------------------------

    def _crash_here(self, call: str, path: Path) -> None:
        chances = random.Random(self._chance.random())
        self.points += 1 + POWER_LOSSES
        self._calls += 1
        if self._calls % PARTS != self._part:
            return
        self._check(self.disk.as_killed(), len(self._accepted) if not self._cutting else self._flushed, call, path)
        for _ in range(POWER_LOSSES):
            self._check(self.disk.as_powerless(chances), self._flushed, call, path)

    def _check(self, left: MemoryFiles, at_least: int, call: str, path: Path) -> None:
        self.checked += 1
        store: MessageStore = open_store(ROOT, left)
        found = bodies(store)
        possible = self._accepted + self._doubtful
        assert found == possible[: len(found)], (call, path, store.recovery)
        assert len(found) >= at_least, f"{len(found)} of {at_least} after a crash in {call} of {path}: {store.recovery}"
        expected, actual = expected_queues(store), actual_queues(store)
        for queue in (f"T{self._topics}", 0), (f"T{self._topics}", 1), (f"T{self._topics}", 2):
            assert actual.get(queue) == expected.get(queue), (call, path, store.recovery)
        put(store, "later", 0, [b"goes on"])
        assert bodies(store) == [*found, b"goes on"]


def dies_in_every_call(seed: int, part: int) -> None:
    script = Script(seed, part)
    script.run()
    assert script.points > 500, script.points
    assert script.checked >= script.points // PARTS - POWER_LOSSES, (script.checked, script.points)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("seed", range(12))
def test_a_store_may_die_in_any_call_of_its_disk(seed: int, part: int) -> None:
    dies_in_every_call(seed, part)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("seed", range(100, 140))
def test_a_store_may_die_in_any_call_of_its_disk_for_long(seed: int, part: int) -> None:
    dies_in_every_call(seed, part)
