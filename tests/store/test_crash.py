"""After a crash at any point, everything flushed is stored, nothing refused reappears, and the queues equal a replay of
the log.
"""

import contextlib
import errno
import random
import threading
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_service.errors import FlushFailed, ServiceNotAvailable, StoreCorrupt
from broker_service.store.checkpoint import Checkpoint
from broker_service.store.message_store import MessageStore
from tests.support.memory_files import MemoryFiles, MemoryPath, PowerCut
from tests.support.stores import (
    LOG_FILE,
    MINUTE,
    NOW,
    bodies,
    check_sound,
    config,
    flush_thoroughly,
    log_bytes,
    open_store,
    put,
    tree,
)

ROOT = MemoryPath("/store")
HOUR = 3_600_000
FOUR = int(datetime(2026, 11, 20, 4, 30).timestamp() * 1000)  # in the morning, when retention deletes

steps = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 2), st.integers(1, 9), st.integers(0, 700)),
    st.tuples(st.just("put"), st.integers(0, 2), st.integers(1, 9), st.integers(0, 700)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("thorough")),
    st.tuples(st.just("tick")),
    st.tuples(st.just("truncate"), st.integers(0, 20)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("fail_sync"), st.integers(1, 6), st.floats(0, 1)),
)


class Run:
    """A store on a disk that will lose power, and what its callers know of it."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.store: MessageStore | None = None
        self.number = 0
        self.now_ms = NOW
        self.accepted: list[bytes] = []  # everything in the log, in order
        self.in_doubt: list[bytes] = []  # a put that the crash interrupted
        self.flushed = 0  # how many of `accepted` are known to be on disk
        self.unsure = (
            # true if the end of `accepted` may be missing, because a truncation or a start was interrupted
            False
        )

    def step(self, step: tuple) -> None:
        name, *arguments = step
        try:
            if self.store is None:
                self.store = open_store(ROOT, self.files)
            getattr(self, name)(*arguments)
        except FlushFailed:
            self.start_after_a_failed_sync()

    def start_after_a_failed_sync(self) -> None:
        """Starts the store again after it has refused all writes, and drops some pages from memory."""
        self.files.heal()
        store, self.store = self.store, None
        if store is not None:
            assert not store.admission.writable
            store.close()
            assert "abort" in self.files.names(ROOT)
        left = None if self.files.stop_at is None else max(1, self.files.stop_at - self.files.calls)
        self.files = self.files.kill()
        self.files.evict_some(random.Random(self.number))
        self.files.stop_at = left
        self.in_doubt, self.unsure = [], True
        self.store = open_store(ROOT, self.files)
        found = bodies(self.store)
        assert found == self.accepted[: len(found)] and len(found) >= self.flushed, self.store.recovery
        self.accepted, self.unsure = found, False
        self.flushed = len(found)  # the store's flushed offset is the end of its log

    def fail_sync(self, nth: int, part: float) -> None:
        """Makes one of the next syncs fail, after which only a part of its data is on disk."""
        self.files.fail("fdatasync", errno.EIO, nth=nth, part=part)

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
        self.now_ms += MINUTE
        self.tick()
        self.flush()

    def tick(self) -> None:
        self.store.tick(self.now_ms)

    def truncate(self, keep: int) -> None:
        if keep < len(self.accepted):
            self.unsure, self.flushed = True, min(self.flushed, keep)
            offset = next(one.commit_log_offset for one in _records(self.store) if one.body == self.accepted[keep])
            self.store.truncate(offset, ROOT / "rocketsim" / "diverged")
            del self.accepted[keep:]
            self.unsure = False

    def restart(self) -> None:
        # raises the error of a failed sync that has not stopped the store, for example a sync of the index
        self.store.disk.check()
        self.store.close()
        self.store = None
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
    disk = run.files
    disk = disk.power_loss(chance) if power else disk.kill()
    written = len(run.accepted) if not power and not run.unsure else run.flushed
    # A crash may interrupt the next start, too.
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
    # A store that a crash left goes on as if nothing had happened.
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
    """Shows that the test above can fail: without a sync a power loss takes the data."""
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"x" * 300] * 8)
    lost = [len(bodies(open_store(ROOT, disk.power_loss(random.Random(seed))))) for seed in range(10)]
    assert min(lost) < 8


@pytest.mark.parametrize("seed", range(5))
def test_a_record_of_a_refused_put_never_comes_alive(seed):
    """A failed write leaves stale records where the next, shorter append ends; they must be overwritten with zeros
    first."""
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


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("matching", ["commitlog/", "consumequeue", "index", "queues.json", "flushed"])
def test_what_a_failed_sync_left_off_the_disk_is_written_again_before_it_counts_as_flushed(matching, seed):
    """After a failed sync the page cache still has the data, on pages that the kernel calls clean: recovery finds the
    data, but another sync would not write it.
    """
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    keyed = [("KEYS", "k"), ("UNIQ_KEY", "u")]
    put(store, "topic", [0, 1, 2] * 4, [b"a" * 300] * 12, properties=keyed)
    flush_thoroughly(store)
    put(store, "topic", [0, 1, 2] * 9, [b"b" * 300] * 27, properties=keyed)
    store.tick(NOW + 2 * MINUTE)
    disk.fail("fdatasync", errno.EIO, matching=matching)
    with pytest.raises(FlushFailed):
        store.flush()
    store.close()
    disk = disk.kill()  # a kill and a restart on the same machine
    store = open_store(ROOT, disk)
    put(store, "topic", [0, 1, 2], [b"c" * 300] * 3, properties=keyed)
    assert store.flush() == store.end_offset  # SYNC_FLUSH would answer OK
    killed = disk.kill()
    store = open_store(ROOT, killed.power_loss(random.Random(seed)))
    assert len(bodies(store)) == 42
    check_sound(store)
    # The data also survives a clean stop, after which a start trusts the store without a check.
    store = open_store(ROOT, disk := disk.kill())
    store.close()
    store = open_store(ROOT, disk.power_loss(random.Random(seed)))
    assert store.recovery.clean and len(bodies(store)) == 42
    check_sound(store)
    assert len(store.key_search("topic", "k", 100, 0, 2 * NOW).run().offsets) == 42


def test_a_log_that_starts_over_begins_at_the_masters_minimum_only_with_its_queues():
    """A log that begins at the master's minimum must also have the queues' lowest offsets, because the master does not
    send these offsets again to a slave whose log begins there.  A queue whose messages have all expired would then
    begin at 0.
    """
    begun = 0
    for call in range(1, 100):
        disk = MemoryFiles()
        store = open_store(ROOT, disk)
        put(store, "old", 0, [b"x" * 300] * 3)
        store.flush()
        disk.stop_at = disk.calls + call
        try:
            store.start_over(10 * LOG_FILE, [("topic", 0, 7)])
        except PowerCut:
            pass
        else:
            break
        for left in (disk.as_killed(), *(disk.as_powerless(random.Random(seed)) for seed in range(4))):
            store = open_store(ROOT, left)
            if store.min_offset == 10 * LOG_FILE:
                begun += 1
                assert store.queues.bounds("topic", 0) == (7, 7), f"at call {call}"
    assert begun and call < 99


@pytest.mark.parametrize("call", range(1, 60, 3))
def test_writing_again_can_be_interrupted_and_is_done_again(call):
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"x" * 900] * 20)
    disk.fail("fdatasync", errno.EIO, matching="commitlog")
    with pytest.raises(FlushFailed):
        store.flush()
    disk = disk.kill()
    disk.stop_at = call
    with contextlib.suppress(PowerCut):
        open_store(ROOT, disk)
    store = open_store(ROOT, disk.kill())
    assert len(bodies(store)) == 20 and store.flushed_offset == store.end_offset
    check_sound(store)


def _with_many_files_in_doubt() -> MemoryFiles:
    """Returns a disk whose log has more than three files, none of which is known to be on disk."""
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"x" * 900] * 40)
    assert store.end_offset > 3 * LOG_FILE
    disk.fail("fdatasync", errno.EIO, matching="commitlog")
    with pytest.raises(FlushFailed):
        store.flush()
    return disk.kill()


def test_files_in_doubt_are_synced_while_later_ones_are_read_and_written_again():
    disk = _with_many_files_in_doubt()
    first, second, last = (ROOT / "commitlog" / f"{number * LOG_FILE:020d}" for number in (0, 1, 3))
    sync_begins = {first: threading.Event(), second: threading.Event()}
    last_is_written = threading.Event()
    went_on: list[bool] = []

    def before(call: str, path: Path) -> None:
        if call == "fdatasync" and path in sync_begins:
            sync_begins[path].set()
            went_on.append(last_is_written.wait(30))
        elif call == "pwrite" and path == last:
            went_on.extend(event.wait(30) for event in sync_begins.values())
            last_is_written.set()

    disk.before = before
    store = open_store(ROOT, disk)
    assert len(went_on) >= 4 and all(went_on)
    assert len(bodies(store)) == 40
    check_sound(store)


def test_a_sync_that_fails_while_later_files_are_written_again_refuses_the_start():
    disk = _with_many_files_in_doubt()
    disk.fail("fdatasync", errno.EIO, matching=f"commitlog/{0:020d}")
    with pytest.raises(FlushFailed, match=r"commitlog/0.*log offset 0 to .*another disk"):
        open_store(ROOT, disk)
    store = open_store(ROOT, disk.kill())
    assert len(bodies(store)) == 40 and store.flushed_offset == store.end_offset
    check_sound(store)


def test_no_sync_is_under_way_after_a_start_was_refused():
    disk = _with_many_files_in_doubt()
    third = f"commitlog/{2 * LOG_FILE:020d}"
    disk.fail("pwrite", errno.EIO, matching=third)
    is_refused = threading.Event()
    ended: list[bool] = []

    def before(call: str, path: Path) -> None:
        if call == "pwrite" and str(path).endswith(third):
            is_refused.set()
        elif call == "fdatasync" and path == ROOT / "commitlog" / f"{0:020d}":
            ended.append(is_refused.wait(30))

    disk.before = before
    with pytest.raises(ServiceNotAvailable, match="cannot be written again"):
        open_store(ROOT, disk)
    assert ended == [True]


def test_zeros_that_a_cut_left_in_the_page_cache_only_reach_the_disk_with_the_next_start():
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"old %d" % number for number in range(9)])
    flush_thoroughly(store)
    offset = _records(store)[3].commit_log_offset
    disk.fail("fdatasync", errno.EIO, matching="commitlog/")
    with pytest.raises(FlushFailed):
        store.truncate(offset, None)
    store.close()
    disk = disk.kill()
    store = open_store(ROOT, disk)
    assert bodies(store) == [b"old 0", b"old 1", b"old 2"]
    put(store, "topic", 0, [b"new 3"])
    store.flush()
    store = open_store(ROOT, disk.power_loss(random.Random(1)))
    assert bodies(store) == [b"old 0", b"old 1", b"old 2", b"new 3"]
    check_sound(store)


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_disk_that_fails_again_refuses_the_start_and_names_file_and_offset(call):
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    put(store, "topic", 0, [b"x" * 900] * 3)
    store.flush()
    flushed = store.end_offset
    put(store, "topic", 0, [b"x" * 900] * 3)
    disk.fail("fdatasync", errno.EIO, matching="commitlog")
    with pytest.raises(FlushFailed):
        store.flush()
    disk = disk.kill()
    disk.fail(call, errno.EIO, matching="commitlog/", for_good=True)
    with pytest.raises(ServiceNotAvailable, match=f"commitlog/0.*log offset {flushed}.*another disk"):
        open_store(ROOT, disk)
    disk.heal()
    assert len(bodies(open_store(ROOT, disk.kill()))) == 6


def test_a_store_of_rocketmqs_counts_as_flushed_up_to_the_file_that_its_checkpoint_names():
    """A store of RocketMQ has no flushed offset, so everything stored until 3 s before its checkpoint's time counts as
    flushed, as it does for RocketMQ.
    """
    disk = MemoryFiles()
    store = open_store(ROOT, disk)
    for number in range(40):
        put(store, "topic", 0, [b"%02d" % number + b"x" * 898], now_ms=NOW + number * 1000)
    flush_thoroughly(store)
    store = None
    for name in tree(disk, ROOT / "rocketsim"):
        disk.remove(ROOT / "rocketsim" / name)
    Checkpoint(NOW + 30_000, NOW + 30_000, NOW + 30_000).save(disk, ROOT / "checkpoint")
    disk = disk.kill()
    store = open_store(ROOT, disk)
    assert len(bodies(store)) == 40
    written = sorted({line.split()[1] for line in disk.log if line.startswith("pwrite /store/commitlog")})
    first = _records(store)[27].commit_log_offset // LOG_FILE * LOG_FILE
    assert Path(written[0]).name == f"{first:020d}"
    disk.overwrite(ROOT / "commitlog" / f"{0:020d}", 4, b"oops")
    for name in tree(disk, ROOT / "rocketsim"):
        disk.remove(ROOT / "rocketsim" / name)
    with pytest.raises(StoreCorrupt, match="damaged at log offset 0"):
        open_store(ROOT, disk.kill())


@pytest.mark.parametrize("call", range(1, 40))
def test_a_crash_while_a_store_is_made_leaves_one_that_opens(call):
    """The file of the flushed offset either has its first value or does not exist."""
    for seed in range(3):
        disk = MemoryFiles()
        disk.stop_at = call
        with contextlib.suppress(PowerCut):
            store = open_store(ROOT, disk)
            put(store, "topic", 0, [b"x"])
            store.flush()
        found = open_store(ROOT, disk.power_loss(random.Random(seed)))
        assert bodies(found) in ([], [b"x"])
        put(found, "topic", 0, [b"y"])


@pytest.mark.parametrize(
    ("at", "value"), [(12, b"\x80"), (20, b"\x80"), (139, b"to/ic"), (139, b"to\0ic"), (139, b"\xff\xfe")], ids=str
)
@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_record_that_no_queue_can_have_is_cut_above_the_flushed_offset_and_stops_the_start_below(
    at, value, is_flushed
):
    store = open_store(ROOT, disk := MemoryFiles())
    put(store, "topic", 0, [b"x" * 50] * 2)
    store.flush()
    whole = store.end_offset
    put(store, "topic", 0, [b"y" * 50] * 3)
    if is_flushed:
        store.flush()
    disk = disk.kill()
    disk.overwrite(ROOT / "commitlog" / f"{0:020d}", whole + at, value)
    if is_flushed:
        with pytest.raises(StoreCorrupt, match=f"is damaged at log offset {whole}"):
            open_store(ROOT, disk)
    else:
        store = open_store(ROOT, disk)
        assert store.end_offset == whole and store.recovery.truncated_to == whole
        check_sound(store)


def in_many_files(disk: MemoryFiles, **changes: int) -> MessageStore:
    store = open_store(ROOT, disk, **changes)
    for number in range(18):
        put(store, "topic", 0, [b"%d " % number + b"x" * 900], now_ms=FOUR - 100 * HOUR)
    assert store.end_offset > 4 * LOG_FILE
    return store


@pytest.mark.parametrize("seed", range(20))
def test_of_log_files_made_since_the_last_flush_any_name_may_be_lost(seed):
    store = in_many_files(disk := MemoryFiles())
    all_bodies = bodies(store)
    found = open_store(ROOT, disk.power_loss(random.Random(seed)))
    assert found.min_offset == 0, "the first file says where the log begins"
    assert bodies(found) == all_bodies[: len(bodies(found))]
    put(found, "topic", 0, [b"x"])
    check_sound(found)


def test_a_start_says_which_files_it_has_deleted_behind_one_whose_name_was_lost():
    in_many_files(disk := MemoryFiles())
    disk = disk.kill()
    disk.remove(ROOT / "commitlog" / f"{2 * LOG_FILE:020d}")
    store = open_store(ROOT, disk)
    assert [int(path.name) for path in store.recovery.deleted_files] == [4 * LOG_FILE, 3 * LOG_FILE]
    assert f"{3 * LOG_FILE:020d}" in str(store.recovery)
    assert len(bodies(store)) == 8
    check_sound(store)


@pytest.mark.parametrize("call", range(2, 9))
def test_a_power_loss_while_files_expire_leaves_a_log_without_a_gap(call):
    store = in_many_files(disk := MemoryFiles(), file_reserved_time_h=72)
    flush_thoroughly(store)
    disk.stop_at = disk.calls + call
    with contextlib.suppress(PowerCut):
        store.retention.delete_expired(FOUR)
    assert len(disk.names(ROOT / "commitlog")) < 5, "some have expired"
    for seed in range(4):
        found = open_store(ROOT, disk.as_powerless(random.Random(seed)))
        assert bodies(found)[-1].startswith(b"17 ")
        check_sound(found)


FILES = {
    "one file": lambda store: put(store, "topic", 0, [b"x" * 900] * 2),
    "two files": lambda store: put(store, "topic", 0, [b"x" * 900] * 6),
    "five files": lambda store: put(store, "topic", 0, [b"x" * 900] * 18),
    "the fifth file, the others expired": lambda store: [
        put(store, "topic", 0, [b"x" * 900] * 18, now_ms=FOUR - 100 * HOUR),
        store.flush(),
        store.retention.delete_expired(FOUR),
    ],
}
STOPS = ["closed", "killed", "killed with unflushed files behind", "killed with an empty file behind"]
OTHER_SIZES = [
    LOG_FILE // 4,
    LOG_FILE // 2,
    LOG_FILE - 1,
    LOG_FILE + 1,
    LOG_FILE * 3 // 2,
    *(LOG_FILE << n for n in (1, 2, 8)),
]


def behind_the_log(disk: MemoryFiles) -> int:
    """Returns the log offset at which the file after the last one would start."""
    return int(disk.names(ROOT / "commitlog")[-1]) + LOG_FILE


def check_refused(disk: MemoryFiles, size: int) -> None:
    """Checks that a store does not open with this file size, and that nothing in it changes."""
    before = tree(disk, ROOT)
    with pytest.raises(StoreCorrupt, match=f"mappedFileSizeCommitLog is {size}: correct the configuration"):
        open_store(ROOT, disk, mapped_file_size_commit_log=size)
    assert tree(disk, ROOT) == before


@pytest.mark.parametrize("size", OTHER_SIZES)
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("fill", FILES.values(), ids=FILES)
def test_a_start_with_another_file_size_is_refused_and_changes_nothing(fill, stop, size):
    store = open_store(ROOT, disk := MemoryFiles(), file_reserved_time_h=72)
    fill(store)
    store.flush()
    if stop == "killed with unflushed files behind":
        put(store, "topic", 0, [b"y" * 900] * 8)
    there = bodies(store)
    if stop == "closed":
        store.close()
    elif stop == "killed with an empty file behind":
        disk.open(ROOT / "commitlog" / f"{behind_the_log(disk):020d}", create=True)
    disk = disk.kill()
    check_refused(disk, size)
    store = open_store(ROOT, disk.kill())
    assert bodies(store) == there
    check_sound(store)


@pytest.mark.parametrize("size", OTHER_SIZES)
def test_a_start_with_another_file_size_changes_no_file_of_which_nothing_is_flushed(size):
    in_many_files(disk := MemoryFiles())
    check_refused(disk.kill(), size)
    disk = disk.kill()
    log_file = ROOT / "commitlog" / f"{0:020d}"
    left = disk.read(log_file)[:700]  # a power loss can leave the file as short as this
    disk.remove(log_file)
    disk.pwrite(disk.open(log_file, create=True), left, 0)
    check_refused(disk, size)


@pytest.mark.parametrize("size", OTHER_SIZES)
@pytest.mark.parametrize("was_flushed", [False, True])
def test_a_start_with_another_file_size_is_refused_for_one_file_whatever_is_flushed_of_it(was_flushed, size):
    store = open_store(ROOT, disk := MemoryFiles())
    FILES["one file"](store)
    if was_flushed:
        store.flush()
    check_refused(disk.kill(), size)


@pytest.mark.parametrize("size", OTHER_SIZES)
def test_the_file_that_retention_leaves_refuses_another_size_too(size):
    """Retention deletes a log file only once a part of the next file is flushed."""
    store = open_store(ROOT, disk := MemoryFiles(), file_reserved_time_h=72)
    while store.end_offset <= LOG_FILE:
        put(store, "topic", 0, [b"x" * 900], now_ms=FOUR - 100 * HOUR)
    store.truncate(LOG_FILE, None)
    store.flush()
    put(store, "topic", 0, [b"x" * 900], now_ms=FOUR - 100 * HOUR)
    assert store.flushed_offset == LOG_FILE
    store.retention.delete_expired(FOUR)
    assert store.min_offset == 0
    check_refused(disk.as_killed(), size)
    store.flush()
    store.retention.delete_expired(FOUR)
    assert store.min_offset == LOG_FILE
    check_refused(disk.kill(), size)


@pytest.mark.parametrize("call", range(1, 60))
def test_a_power_loss_while_the_first_file_is_made_leaves_a_store_that_opens(call):
    for seed in range(2):
        disk = MemoryFiles()
        disk.stop_at = call
        with contextlib.suppress(PowerCut):
            store = open_store(ROOT, disk)
            put(store, "topic", 0, [b"x" * 900] * 6)
            store.flush()
        store = open_store(ROOT, disk.power_loss(random.Random(seed)))
        put(store, "topic", 0, [b"y"])
        check_sound(store)


@pytest.mark.parametrize("size", OTHER_SIZES)
@pytest.mark.parametrize("clean", [True, False])
def test_a_start_of_a_store_of_rocketmqs_with_another_file_size_deletes_no_file_that_was_allocated_ahead(clean, size):
    """The start is refused even without a flushed offset, and changes nothing."""
    store = in_many_files(disk := MemoryFiles())
    ahead = behind_the_log(disk)
    if clean:
        store.close()
    disk = disk.kill()
    disk.preallocate(disk.open(ROOT / "commitlog" / f"{ahead:020d}", create=True), LOG_FILE)
    disk.remove(ROOT / "rocketsim" / "flushed")
    check_refused(disk, size)
