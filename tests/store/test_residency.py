"""The event loop never waits for data that is not in memory, and reads data through a map only after it was loaded."""

import asyncio
import errno
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records.columnar import Records

from broker_service.errors import ReadFailed
from broker_service.runtime import cold_reads
from broker_service.store import key_search, residency
from broker_service.store.files import CANNOT_TELL, Files, all_resident
from broker_service.store.message_store import MessageStore
from broker_service.store.residency import BLOCK, Cold, Place, Residency, blocks_of
from tests.support.memory_files import MemoryFiles
from tests.support.stores import NOW, open_store, put

ROOT = Path("/store")
PAGE = mmap.PAGESIZE


class ColdDisk(MemoryFiles):
    """Only pages that were read or written since the last `chill` are in memory."""

    bad: tuple[str, int] | None = None  # the file and the position that the disk cannot read

    def __init__(self) -> None:
        super().__init__()
        self.warm: set[tuple[Path, int]] | None = None
        self.looked = 0
        self.nothing_stays = False
        self.maps_nothing = False

    def chill(self) -> None:
        self.warm = set()

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:  # type: ignore[override]
        super().pwrite(handle, data, offset)
        self._touch(handle, len(data), offset)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        path = self._handles[handle][0]
        if self.bad is not None and path.name == self.bad[0] and offset <= self.bad[1] < offset + size:
            raise OSError(errno.EIO, "Input/output error")
        self._touch(handle, size, offset)
        return super().pread(handle, size, offset)

    def pread_cached(self, handle: int, size: int, offset: int) -> bytes | None:
        data = super().pread(handle, size, offset)
        return data if self.is_cached(handle, len(data), offset) else None

    def map(self, handle: int) -> memoryview:
        if self.maps_nothing:
            raise OSError(errno.ENOMEM, "ENOMEM")
        return super().map(handle)

    def is_cached(self, handle: int, size: int, offset: int) -> bool:
        self.looked += 1
        return not self.nothing_stays and (self.warm is None or self._pages(handle, size, offset) <= self.warm)

    def _touch(self, handle: int, size: int, offset: int) -> None:
        if self.warm is not None:
            self.warm |= self._pages(handle, size, offset)

    def _pages(self, handle: int, size: int, offset: int) -> set[tuple[Path, int]]:
        return {(self._handles[handle][0], page) for page in range(offset // 4096, (offset + size - 1) // 4096 + 1)}


def filled(disk: ColdDisk | None = None) -> tuple[ColdDisk, MessageStore]:
    """Makes a store with four queues and some MiB of log in several files.  No part of the log is in memory, or known
    to be in memory.
    """
    disk = disk or ColdDisk()
    store = open_store(ROOT, disk, mapped_file_size_commit_log=3 << 19)
    for number in range(40):
        put(store, "topic", number % 4, [b"%d" % number * 10_000] * 5, now_ms=NOW + number)
    store.close()
    store = open_store(ROOT, disk, mapped_file_size_commit_log=3 << 19)
    disk.chill()
    return disk, store


def looks(store: MessageStore) -> list[object]:
    """Returns every kind of read that the event loop makes."""

    def messages() -> object:
        return store.queues.get_message("topic", 1, 3, 20, 1 << 20, None)

    def ranges() -> object:
        found = store.queues.read_ranges([("topic", queue, 0, 50) for queue in range(4)], 4 << 20)
        return b"".join(found.records), found.answers

    def log() -> object:
        return bytes(store.view_log(100_000, 1 << 20))

    def by_time() -> object:
        return [store.queues.search_offset_by_time("topic", queue, NOW + 20) for queue in range(4)]

    return [messages, ranges, log, by_time, lambda: store.queues.size_and_time_of("topic", 0, 7)]


@pytest.mark.parametrize("which", range(5))
def test_what_is_cold_is_read_by_a_thread_and_found_then(which: int) -> None:
    disk, store = filled()
    look = looks(store)[which]
    with pytest.raises(Cold), store.without_waiting({}):
        look()
    found = asyncio.run(cold_reads.read(store, look))
    with store.without_waiting({}):
        assert look() == found, "it is known to be in memory now"
    assert found == look(), "as who waits sees it"
    disk.warm = None
    assert found == looks(open_store(ROOT, disk.kill(), mapped_file_size_commit_log=3 << 19))[which]()


def test_a_smaller_read_may_follow_one_that_has_to_wait_for_the_disk() -> None:
    _, store = filled()

    def read(size: int) -> int:
        return len(store.view_log(0, size))

    def at_first_two_pages() -> int:
        return asyncio.run(cold_reads.read(store, lambda: read(2 * PAGE), after_cold=lambda: read(PAGE)))

    assert at_first_two_pages() == PAGE
    assert at_first_two_pages() == 2 * PAGE, "both were read from the disk"


@pytest.mark.parametrize("which", range(5))
def test_a_bad_sector_is_an_error_that_names_it(which: int) -> None:
    disk, store = filled()
    look = looks(store)[which]
    # The damaged place: a record, the queue entry where a search begins, or the entry that is asked for.  A queue file
    # has 8 entries.
    start, position = [(0, 150_000), (0, 150_000), (0, 150_000), (480, 25 * 20 - 480), (0, 7 * 20)][which]
    name = f"{start:020d}"
    disk.bad = (name, position)
    for read in (lambda: asyncio.run(cold_reads.read(store, look)), look):
        with pytest.raises(ReadFailed, match=rf"{name} cannot be read at \d+: Input/output error"):
            read()
    disk.bad = None
    assert look() == asyncio.run(cold_reads.read(store, look))


def test_who_can_do_without_what_a_bad_sector_has_goes_on() -> None:
    disk, store = filled()
    disk.bad = f"{0:020d}", 150_000

    def look() -> object:
        failures, found = [], b""
        for offset in (100_000, 3 << 19):  # an offset of the first file, and one of the second
            try:
                found += bytes(store.view_log(offset, 60_000))
            except ReadFailed as failure:
                failures.append(failure)
        return len(failures), len(found)

    assert asyncio.run(cold_reads.read(store, look)) == look() == (1, 60_000)


@pytest.mark.parametrize("which", range(5))
def test_a_file_that_cannot_be_opened_is_an_error_that_names_it(which: int) -> None:
    disk, store = filled()
    look = looks(store)[which]
    for read in (lambda: asyncio.run(cold_reads.read(store, look)), look):
        store._open_files.close()
        disk.fail("open", errno.EIO)
        with pytest.raises(ReadFailed, match=r"0{17}\d{3} cannot be read at \d+: EIO"):
            read()
    assert look() == asyncio.run(cold_reads.read(store, look))


@pytest.mark.parametrize("which", range(3))
def test_a_file_that_cannot_be_mapped_is_an_error_that_names_it(which: int) -> None:
    disk, store = filled()
    disk.maps_nothing = True
    with pytest.raises(ReadFailed, match=r"0{20} cannot be read at 0: ENOMEM"):
        asyncio.run(cold_reads.read(store, looks(store)[which]))


def test_what_was_just_written_is_not_looked_for() -> None:
    disk, store = filled()
    store.tick(NOW)
    put(store, "topic", 0, [b"new" * 10_000] * 100)
    disk.looked = 0
    with store.without_waiting({}):
        data = store.view_log(store.end_offset - 100_000, 100_000)
    assert (len(data), disk.looked) == (100_000, 0)


def test_what_was_found_is_looked_for_again_after_a_while() -> None:
    disk, store = filled()
    asyncio.run(cold_reads.read(store, look := looks(store)[2]))
    disk.chill()
    store.tick(NOW)
    with store.without_waiting({}):
        look()
    store.tick(NOW + 6000)
    store.tick(NOW + 12000)
    with store.without_waiting({}), pytest.raises(Cold):
        look()


def test_what_was_found_is_looked_for_again_when_another_block_is_read_from_the_disk() -> None:
    """In a full memory, the block that a client reads pushes out the one that it needs next."""
    disk, store = filled()
    for block in (0, 1):
        asyncio.run(cold_reads.read(store, lambda block=block: store.view_log(block * BLOCK, BLOCK)))  # type: ignore[misc]
    disk.chill()
    with store.without_waiting({}):
        assert len(store.view_log(BLOCK, BLOCK)) > 0, "nothing was read from the disk since this block was found"
    with store.without_waiting({}), pytest.raises(Cold):
        store.view_log(0, BLOCK)


def test_what_was_written_is_looked_for_again_when_much_was_read_from_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "PUSHED_OUT_AFTER", 2)
    disk, store = filled()
    store.tick(NOW)
    put(store, "topic", 0, [b"new" * 10_000] * 100)
    begin = store.end_offset - 100_000
    disk.chill()
    with store.without_waiting({}):
        assert len(store.view_log(begin, 100_000)) == 100_000
    for block in range(4):
        asyncio.run(cold_reads.read(store, lambda block=block: store.view_log(block * BLOCK, BLOCK)))  # type: ignore[misc]
    with store.without_waiting({}), pytest.raises(Cold):
        store.view_log(begin, 100_000)


def test_where_memory_is_so_short_that_nothing_stays_it_waits_in_the_end() -> None:
    disk, store = filled()
    disk.nothing_stays = True
    look = looks(store)[2]
    assert asyncio.run(cold_reads.read(store, look)) == look()


class CountingDisk(ColdDisk):
    reads = 0

    def pread_cached(self, handle: int, size: int, offset: int) -> bytes | None:
        self.reads += 1
        return super().pread_cached(handle, size, offset)


def test_a_search_by_key_continues_after_each_cold_record() -> None:
    """The search does not start over, so twice the records take about twice the reads."""

    def reads_for(wanted: int) -> int:
        disk = CountingDisk()
        store = open_store(ROOT, disk, mapped_file_size_commit_log=1 << 23)
        for number in range(50):
            put(store, "topic", 0, [b"x" * 70_000], properties=[("KEYS", "k")], now_ms=NOW + number)
        expected = store.key_search("topic", "k", wanted, 0, 2 * NOW).run()
        search = store.key_search("topic", "k", wanted, 0, 2 * NOW)
        disk.chill()
        with pytest.raises(Cold), store.without_waiting({}):
            search.run()
        disk.reads = 0
        assert asyncio.run(cold_reads.read(store, search.run)) == expected
        assert len(expected.offsets) == wanted
        return disk.reads

    assert reads_for(40) < 2.5 * reads_for(20)


@pytest.mark.parametrize("newest", [100, 90], ids=["from the newest", "from behind others of the key"])
def test_a_search_by_key_that_starts_over_pays_once_for_what_it_has_looked_at(
    newest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry of the key is on a page of its own, so that the search starts over at each of them."""
    # a record costs 8, its entry 1, and each new start of the search 1
    monkeypatch.setattr(key_search, "BUDGET", 64 * 12)
    disk = ColdDisk()
    store = open_store(ROOT, disk, max_hash_slot_num=10_000, max_index_num=100_000, mapped_file_size_commit_log=1 << 23)
    others = [("KEYS", " ".join(f"other{number}" for number in range(20)))] * 10
    ends = []
    for _ in range(100):
        put(store, "topic", 0, [b"x"] * 10, properties=others)
        put(store, "topic", 0, [b"x"], properties=[("KEYS", "k")])
        ends.append(store.end_offset)
    before = ends[newest - 1]
    expected = store.key_search("topic", "k", 64, 0, 2 * NOW, before).run()
    assert len(expected.offsets) == 64
    search = store.key_search("topic", "k", 64, 0, 2 * NOW, before)
    disk.chill()
    assert asyncio.run(cold_reads.read(store, search.run)) == expected
    assert disk.looked > 128, "entries and records were cold"


class LittleMemory(ColdDisk):
    """Memory keeps only what was read last."""

    def _touch(self, handle: int, size: int, offset: int) -> None:
        if self.warm is not None:
            self.warm = self._pages(handle, size, offset)


def test_places_that_push_one_another_out_of_memory_are_waited_for_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In each round, reading one place drops another place from memory."""
    _, store = filled(LittleMemory())
    warm, warmed = store.warm, []

    def counting(places: Iterable[Place]) -> None:
        warmed.append(places)
        assert len(warmed) < 10, "it goes on for ever"
        warm(places)

    def look() -> list[tuple[int, int] | None]:
        return [store.queues.entry("topic", queue_id, 0) for queue_id in (0, 1)]

    monkeypatch.setattr(store, "warm", counting)
    assert asyncio.run(cold_reads.read(store, look)) == look()
    assert len(warmed) == 2, "each place once"


def test_a_file_that_is_deleted_meanwhile_does_not_matter() -> None:
    _, store = filled()
    store.warm([(ROOT / "commitlog" / "absent", 0, 100)])


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3 * BLOCK)), min_size=1, max_size=20))
def test_the_blocks_of_records_are_all_that_they_touch(places: list[tuple[int, int]]) -> None:
    offsets = np.array([at * (BLOCK // 4) for at, _ in places], np.int64)
    sizes = np.array([size for _, size in places], np.int64)
    touched = {
        block
        for at, size in zip(offsets, sizes, strict=True)
        for block in range(at // BLOCK, (at + size - 1) // BLOCK + 1)
    }
    assert blocks_of(offsets, sizes) == touched


def test_a_block_is_known_for_two_ages() -> None:
    residency = Residency()
    assert residency.unknown(range(3)) == [0, 1, 2]
    residency.found([1])
    residency.age(2 * BLOCK)
    assert residency.unknown(range(4)) == [0]
    residency.age(3 * BLOCK)
    assert residency.unknown(range(4)) == [0, 1]
    residency.age(3 * BLOCK)
    assert residency.unknown(range(4)) == [0, 1, 2]


def test_a_written_block_is_known_until_many_others_had_to_be_read() -> None:
    residency = Residency()
    residency.age(BLOCK)
    residency.missed(127, 2 * BLOCK)
    residency.missed(1, 2 * BLOCK)
    residency.missed(127, 2 * BLOCK)
    assert residency.unknown(range(2)) == [0]
    residency.missed(1, 2 * BLOCK)
    assert residency.unknown(range(2)) == [0, 1]


def test_the_kernel_is_asked_without_waiting(tmp_path: Path) -> None:
    path, files = tmp_path / "file", Files()
    path.write_bytes(bytes(range(256)) * 100)
    handle = files.open(path, read_only=True)
    assert files.pread_cached(handle, 10, 256) == bytes(range(10))
    assert files.pread_cached(handle, 100, 25590) == bytes(range(246, 256)), "fewer where the file ends"
    assert files.is_cached(handle, 25600, 0) and not files.is_cached(handle, 25601, 0)
    files.close(handle)


@pytest.mark.parametrize("unsupported", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_where_the_kernel_cannot_tell_it_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsupported: int
) -> None:
    """On tmpfs, for example, the kernel does not say whether data is in memory, even after a thread has read it, so the
    event loop reads it at once.
    """
    real = os.preadv

    def preadv(handle: int, buffers: Sequence[bytearray | memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(unsupported, os.strerror(unsupported))
        return real(handle, buffers, offset)

    path, files = tmp_path / "file", Files()
    path.write_bytes(bytes(range(256)))
    handle = files.open(path, read_only=True)
    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr("broker_service.store.files.mincore", None)
    assert files.pread_cached(handle, 10, 5) == bytes(range(5, 15))
    assert files.is_cached(handle, 256, 0) and not files.is_cached(handle, 257, 0)
    files.close(handle)


def test_what_the_page_cache_has_is_not_read_to_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranges are a part of a page, several pages, and one that begins and ends within pages."""
    path, files = tmp_path / "file", Files()
    path.write_bytes(bytes(20_000))
    handle = files.open(path, read_only=True)
    read: list[int] = []
    real = os.preadv

    def preadv(handle: int, buffers: Sequence[bytearray | memoryview], offset: int, flags: int = 0) -> int:
        read.append(offset)
        return real(handle, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", preadv)
    for size, offset in (10, 5), (20_000, 0), (9_000, 4_000):
        assert files.is_cached(handle, size, offset)
    assert read == []
    assert not files.is_cached(handle, 20_001, 0)
    assert set(read) == {0}, "what the file does not have"
    files.close(handle)


@given(st.sets(st.integers(0, 5)), st.integers(1, 5 * PAGE), st.integers(0, PAGE))
def test_every_page_of_a_range_counts(gone: set[int], size: int, offset: int) -> None:
    """A range is in memory only if its first and its last page are, too, even if the range has only a part of these
    pages.  The test replaces the kernel's answer, because the kernel evicts pages as it likes.
    """
    asked = range(offset // PAGE, (offset + size - 1) // PAGE + 1)

    def mincore(address: int, length: int, pages: Any) -> int:
        """Answers as Linux does, with a byte for each page, also for one that is only partly asked for; the lowest bit
        counts.
        """
        assert address % PAGE == 0
        for number in range(-(-length // PAGE)):
            # raises an IndexError if the array is too short
            pages[number] = 0b1010_1010 | (asked[0] + number not in gone)
        return 0

    with TemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        file.truncate(7 * PAGE)
        patch.setattr("broker_service.store.files.mincore", mincore)
        assert all_resident(file.fileno(), size, offset) == gone.isdisjoint(asked)


def test_the_kernel_says_of_each_page_what_a_read_that_does_not_wait_finds(tmp_path: Path) -> None:
    """The test asks the kernel which pages it has evicted, because kernels differ: they evict no page of a file system
    in memory, and more pages than were asked for if they use large folios.
    """
    path, files = tmp_path / "file", Files()
    path.write_bytes(bytes(range(256)) * (64 * PAGE // 256) + b"and a part of a page")
    handle = files.open(path)
    size = path.stat().st_size
    # A read that does not wait starts the read of its page, which may end before the next look at that page.
    for _ in range(20):
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)  # no page is read ahead
        for number in 0, 3, 40, 64:
            os.preadv(handle, [bytearray(1)], number * PAGE)
        told = [all_resident(handle, min(PAGE, size - at), at) for at in range(0, size, PAGE)]
        assert told[0] and told[3] and told[40] and told[64]
        assert all_resident(handle, size, 0) == all(told)
        assert all_resident(handle, size - 63 * PAGE, 63 * PAGE) == (told[63] and told[64])
        try:
            found = [can_be_read_at_once(handle, at) for at in range(0, size, PAGE)]
        except OSError as error:
            assert error.errno in CANNOT_TELL
            break
        if told == found:
            break
    else:
        pytest.fail(f"mincore says {told}, and reads say {found}")
    files.close(handle)


def can_be_read_at_once(handle: int, offset: int) -> bool:
    try:
        return os.preadv(handle, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


def test_a_bad_sector_does_not_count_as_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def preadv(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path, files = tmp_path / "file", Files()
    path.write_bytes(bytes(256))
    handle = files.open(path, read_only=True)
    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr("broker_service.store.files.mincore", lambda *_: -1)
    assert not files.is_cached(handle, 256, 0)
    with pytest.raises(OSError, match="Input/output error"):
        files.pread_cached(handle, 10, 5)
    files.close(handle)


def test_a_real_log_that_left_the_page_cache_is_found_all_the_same(tmp_path: Path) -> None:
    store = open_store(tmp_path, mapped_file_size_commit_log=1 << 22)
    bodies = [b"%d" % number * 20_000 for number in range(50)]
    put(store, "topic", 0, bodies)
    store.close()
    store = open_store(tmp_path, mapped_file_size_commit_log=1 << 22)
    path = tmp_path / "commitlog" / f"{0:020d}"
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def look() -> bytes:
        return b"".join(store.queues.read_ranges([("topic", 0, 0, 50)], 4 << 20).records)

    found = record_bytes(asyncio.run(cold_reads.read(store, look)))
    assert found == bodies
    store.close()


def record_bytes(data: bytes) -> list[bytes]:
    return [bytes(body) for body in Records.walk(data).bodies().to_pylist()]
