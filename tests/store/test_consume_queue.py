"""The files of one queue: entries across files, filling up as RocketMQ does, and bounds that follow the log."""

from pathlib import Path

import numpy as np
import pytest

from broker_service.store.consume_queue import ENTRY, FILLER_SIZE, ConsumeQueue
from broker_service.store.open_files import OpenFiles
from tests.support.memory_files import MemoryFiles

DIRECTORY = Path("/consumequeue/topic/3")
SIZE = 100  # bytes a record
END = 1 << 40


def entries(first: int, count: int) -> np.ndarray:
    """Entry n of the queue points to log offset 1000 * n."""
    found = np.empty(count, ENTRY)
    found["commit_log_offset"] = 1000 * np.arange(first, first + count)
    found["size"] = SIZE
    found["tags_code"] = np.arange(first, first + count)
    return found


@pytest.fixture
def disk():
    disk = MemoryFiles()
    disk.make_directory(DIRECTORY)
    return disk


def queue_on(disk: MemoryFiles) -> ConsumeQueue:
    return ConsumeQueue(disk, OpenFiles(disk), DIRECTORY, 100)  # 5 entries a file


def reopened(disk: MemoryFiles, log_min: int = 0, log_end: int = END) -> ConsumeQueue:
    queue = queue_on(disk)
    assert queue.load(log_min, log_end, sure_until=None) is None
    return queue


def test_entries_are_found_by_queue_offset_across_files(disk):
    queue = queue_on(disk)
    queue.put(0, entries(0, 3))
    queue.put(3, entries(3, 9))
    for reader in (queue, reopened(disk)):
        assert (reader.topic, reader.queue_id, reader.min_offset, reader.max_offset) == ("topic", 3, 0, 12)
        assert reader.read(2, 8).tolist() == entries(2, 8).tolist()
        assert reader.read(10, 99).tolist() == entries(10, 2).tolist()
        assert reader.log_end == 11_000 + SIZE
        assert [reader.file_end(offset) for offset in (0, 4, 5)] == [5, 5, 10]
    assert disk.names(DIRECTORY) == [f"{start:020d}" for start in (0, 100, 200)]
    assert {disk.size(DIRECTORY / name) for name in disk.names(DIRECTORY)} == {100}


def test_a_queue_that_starts_above_zero_is_filled_up_as_rocketmq_does(disk):
    queue = queue_on(disk)
    queue.put(7, entries(7, 2))
    assert disk.names(DIRECTORY) == [f"{100:020d}"]
    filler = bytes(8) + FILLER_SIZE.to_bytes(4, "big") + bytes(8)
    data = disk.read(DIRECTORY / f"{100:020d}")
    assert data == filler * 2 + entries(7, 2).tobytes() + bytes(20)
    for reader in (queue, reopened(disk)):
        assert (reader.min_offset, reader.max_offset, reader.first_offset) == (7, 9, 5)


def test_bounds_follow_the_log(disk):
    queue = queue_on(disk)
    queue.put(0, entries(0, 12))
    assert queue.trim(0) == []
    deleted = queue.trim(6500)
    assert [path.name for path in deleted] == [f"{0:020d}"] and queue.min_offset == 7
    assert reopened(disk, 6500).min_offset == 7
    assert queue.truncate(9000 + SIZE) and queue.max_offset == 10 and queue.log_end == 9000 + SIZE
    assert not queue.truncate(9000 + SIZE)
    assert queue.truncate(9000 + SIZE - 1) and queue.max_offset == 9
    assert reopened(disk, 6500).max_offset == 9
    queue.put(9, entries(9, 1))
    assert reopened(disk).read(9, 1).tolist() == entries(9, 1).tolist()
    queue.trim(END)
    assert (queue.min_offset, queue.max_offset) == (10, 10)
    assert len(disk.names(DIRECTORY)) == 1, "the last file keeps the queue's offset"
    assert reopened(disk, END).max_offset == 10


@pytest.mark.parametrize("confirm", range(0, 130, 5))
def test_readers_see_entries_whose_record_is_confirmed(disk, confirm):
    queue = queue_on(disk)
    queue.put(0, entries(0, 130))
    assert queue.max_at(confirm * 1000 + SIZE) == confirm + 1
    assert queue.max_at(confirm * 1000 + SIZE - 1) == confirm
    assert queue.max_at(None) == 130


def test_putting_what_is_there_writes_nothing(disk):
    queue = queue_on(disk)
    queue.put(0, entries(0, 7))
    calls = disk.calls
    assert not queue.put_if_different(2, entries(2, 5)) and disk.calls == calls
    assert queue.put_if_different(2, entries(90, 5))
    assert queue.put_if_different(7, entries(95, 1)) and queue.max_offset == 8


@pytest.mark.parametrize(
    ("at", "data", "kept"),
    [
        (40, bytes(20), 2),  # a hole
        (40, b"\xff" * 20, 2),
        (48, bytes(4), 2),  # no size
        (40, (500).to_bytes(8, "big"), 2),  # a record that lies before the previous entry's record
        (40, (END).to_bytes(8, "big"), 2),  # behind the log
        (0, bytes(20), 0),
    ],
)
def test_loading_keeps_the_sound_beginning_and_zeroes_the_rest(disk, at, data, kept):
    queue_on(disk).put(0, entries(0, 12))
    disk.overwrite(DIRECTORY / f"{0:020d}", at, data)
    queue = queue_on(disk)
    assert queue.load(0, END, sure_until=None)
    assert queue.max_offset == kept and queue.read(0, 99).tolist() == entries(0, kept).tolist()
    assert disk.names(DIRECTORY) == [f"{0:020d}"]
    assert disk.read(DIRECTORY / f"{0:020d}")[kept * 20 :] == bytes(100 - kept * 20)


def test_open_files_are_bounded_and_reopened_when_needed(disk):
    paths = [DIRECTORY / f"{number}" for number in range(10)]
    for path in paths:
        disk.close(disk.open(path, create=True))
    files = OpenFiles(disk, handles=3, maps=2)
    for _ in range(2):
        for path in paths:
            disk.pwrite(files.handle(path), path.name.encode(), 0)
            assert bytes(files.map(path)) == path.name.encode()
    assert disk.open_handles == 3 and str(files) == "open files: 3 handles, 2 maps"
    files.forget(paths[-1])
    assert disk.open_handles == 2
    files.close()
    assert disk.open_handles == 0
