"""After a crash at any point everything flushed is there, nothing refused comes alive, and the queues equal a replay of
the log.
"""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_service.store.message_store import MessageStore
from tests.support.memory_files import MemoryFiles, PowerCut
from tests.support.stores import NOW, bodies, check_sound, config, log_bytes, open_store, put

ROOT = Path("/store")

steps = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 2), st.integers(1, 9), st.integers(0, 700)),
    st.tuples(st.just("put"), st.integers(0, 2), st.integers(1, 9), st.integers(0, 700)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("thorough")),
    st.tuples(st.just("tick")),
    st.tuples(st.just("truncate"), st.integers(0, 20)),
    st.tuples(st.just("restart")),
)


class Run:
    """A store on a disk that will lose power, and what is known of it from outside."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.store: MessageStore | None = None
        self.number = 0
        self.accepted: list[bytes] = []  # everything in the log, in order
        self.in_doubt: list[bytes] = []  # a put that the crash interrupted
        self.flushed = 0  # of `accepted`, known to be on disk
        self.cutting = False  # a truncation was interrupted

    def step(self, step: tuple) -> None:
        if self.store is None:
            self.store = open_store(ROOT, self.files)
        name, *arguments = step
        getattr(self, name)(*arguments)

    def put(self, queue_id: int, count: int, size: int) -> None:
        new = [b"%d:" % (self.number + i) + b"x" * size for i in range(count)]
        self.number += count
        self.in_doubt = new
        put(self.store, "topic", [(queue_id + i) % 3 for i in range(count)], new)
        self.accepted += new
        self.in_doubt = []

    def flush(self) -> None:
        self.store.flush()
        self.flushed = len(self.accepted)

    def thorough(self) -> None:
        self.store._request_thorough()
        self.flush()

    def tick(self) -> None:
        self.store.tick(NOW)

    def truncate(self, keep: int) -> None:
        if keep < len(self.accepted):
            self.cutting, self.flushed = True, min(self.flushed, keep)
            offset = next(one.commit_log_offset for one in _records(self.store) if one.body == self.accepted[keep])
            self.store.truncate(offset, ROOT / "rocketsim" / "diverged")
            del self.accepted[keep:]
            self.cutting = False

    def restart(self) -> None:
        store, self.store = self.store, None
        store.close()
        self.flushed = len(self.accepted)
        self.store = open_store(ROOT, self.files)
        assert self.store.recovery.clean and self.store.recovery.scanned_from is None, self.store.recovery

    def check(self, store: MessageStore) -> None:
        found = bodies(store)
        possible = self.accepted + self.in_doubt
        assert found == possible[: len(found)]
        assert len(found) >= self.flushed, f"{len(found)} records, {self.flushed} were flushed; {store.recovery}"
        check_sound(store)


def _records(store: MessageStore):
    from tests.support.stores import records_of

    return records_of(store)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(
    script=st.lists(steps, min_size=1, max_size=14),
    crash_at=st.integers(1, 160),
    seed=st.integers(),
    power=st.booleans(),
)
def test_everything_flushed_survives_a_crash_at_any_call(script, crash_at, seed, power):
    disk = MemoryFiles()
    disk.stop_at = crash_at
    run = Run(disk)
    try:
        for step in script:
            run.step(step)
    except PowerCut:
        pass
    chance = random.Random(seed)
    disk = disk.power_loss(chance) if power else disk.kill()
    written = len(run.accepted) if not power and not run.cutting else run.flushed
    # The next start may be interrupted, too.
    disk.stop_at = chance.randint(1, 60)
    try:
        found = bodies(open_store(ROOT, disk))
        written = run.flushed = max(len(found), run.flushed)
    except PowerCut:
        pass
    if chance.random() < 0.5:
        disk = disk.power_loss(chance)
    else:
        disk, run.flushed = disk.kill(), written
    store = open_store(ROOT, disk)
    run.check(store)
    # What a crash left goes on as if nothing had been.
    run.accepted = bodies(store)
    run.in_doubt = []
    run.store, run.files = store, disk
    run.put(0, 3, 50)
    run.restart()
    run.check(run.store)


def test_the_log_of_a_killed_process_is_complete():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", [0, 1, 0], [b"a", b"b", b"c"])
    before = log_bytes(store)
    store = MessageStore.open(config(ROOT), NOW, disk.kill())
    assert not store.recovery.clean
    assert log_bytes(store) == before
    check_sound(store)


def test_a_disk_that_never_syncs_loses_what_was_not_flushed():
    """Shows that the test above can fail: without a sync the power takes it."""
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"x" * 300] * 8)
    lost = [len(bodies(open_store(ROOT, disk.power_loss(random.Random(seed))))) for seed in range(10)]
    assert min(lost) < 8


@pytest.mark.parametrize("seed", range(5))
def test_a_record_of_a_refused_put_never_comes_alive(seed):
    """A failed write leaves stale records exactly where the next, shorter append ends; the zeroes must be there
    first.
    """
    import errno

    from broker_service.errors import ServiceNotAvailable

    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    fault = disk.fail("pwrite", errno.EIO, part=1.0, matching="commitlog")
    with pytest.raises(ServiceNotAvailable):
        put(store, "topic", 0, [b"refused %d" % n for n in range(5)])
    assert fault.nth == 0
    put(store, "topic", 0, [b"refused ?"])
    store = open_store(ROOT, disk.kill())
    assert bodies(store) == [b"refused ?"]
    check_sound(store)


@pytest.mark.parametrize("seed", range(5))
def test_what_a_recovery_found_is_on_disk_before_it_counts_as_flushed(seed):
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"x" * 900] * 20)
    disk = disk.kill()
    store = open_store(ROOT, disk)
    assert store.flushed_offset == store.end_offset
    store = open_store(ROOT, disk.power_loss(random.Random(seed)))
    assert len(bodies(store)) == 20
