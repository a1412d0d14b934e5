"""One index file in RocketMQ's format: a hash table on disk, which finds the records of a key, newest first.

    0            8           16           24          32          36                  40
    | first time | last time | first offs.| last offs.| slots used| next entry number | slots 4 each | entries 20 each |

    entry: | hash 4 | commit_log_offset 8 | seconds since the first time 4 | previous entry of the slot 4 |

The hash of a key, modulo the number of slots, gives the key's slot.  A slot has the number of its newest entry, and
each entry has the number of the slot's previous entry.  Entry 0 is not used.

`put` writes first the entries and then the header, so that the header never counts entries that are missing.  Slots are
kept in memory and written from time to time; they can be rebuilt from the entries.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from broker_service.store.files import Files
from broker_service.store.open_files import OpenFiles

HEADER = struct.Struct(">qqqqii")
HEADER_SIZE = HEADER.size
SLOT_SIZE = 4
ENTRY = np.dtype([("hash", ">i4"), ("commit_log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
ENTRY_SIZE = ENTRY.itemsize
_ENTRY = struct.Struct(">iqii")
_MAX_SECONDS = 2**31 - 1
_PAGE_SLOTS = 1024  # slots are written a page at a time
# Store times may be out of order by this much, because a promoted slave's clock differs and clocks are set.
CLOCK_MARGIN_MS = 10_000
STEPS_BEFORE_SCAN = 512  # the number of too new entries that are skipped along a chain before `_scan` is used
SCAN = 8192  # entries that are scanned at a time
SCAN_COST = 200  # entries that are scanned in the time that one step along a chain takes

Hashes = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]


@dataclass(slots=True)
class IndexHeader:
    first_timestamp: int = 0
    last_timestamp: int = 0
    first_offset: int = 0
    last_offset: int = 0
    slots_used: int = 0
    next_entry: int = 1

    def pack(self) -> bytes:
        times = self.first_timestamp, self.last_timestamp
        return HEADER.pack(*times, self.first_offset, self.last_offset, self.slots_used, self.next_entry)


@dataclass(slots=True)
class Search:
    """A search for a key among records before log offset `before`, stored up to `until_ms`, newest first.

    `budget` limits the number of steps along chains, since each step is a read.  A search is repeated if a part of a
    file was not in memory.  Each step lowers `before`, so that a repeated search does not examine the same entries
    again.  A repeated search only follows the chain again from the slot to the first entry before `before`, which takes
    few steps and does not count.
    """

    before: int  # log offset; only records before it are still to be searched
    until_ms: int
    budget: int


class IndexFile:
    def __init__(self, files: Files, open_files: OpenFiles, path: Path, slot_count: int, entry_limit: int) -> None:
        self.path = path
        self.header = IndexHeader()
        self.size = HEADER_SIZE + slot_count * SLOT_SIZE + entry_limit * ENTRY_SIZE
        self._files = files
        self._open = open_files
        self._slot_count = slot_count
        self._entry_limit = entry_limit
        # kept only for the file that is being written; loaded when first needed
        self._slots: npt.NDArray[np.int32] | None = None
        self._dirty_pages = np.zeros(-(-slot_count // _PAGE_SLOTS), np.bool_)

    def create(self) -> None:
        """Creates a sparse file, since most of the 420 MB that RocketMQ's default settings need is never used."""
        handle = self._files.open(self.path, create=True)
        try:
            self._files.resize(handle, self.size)
            self._files.pwrite(handle, self.header.pack(), 0)
        except OSError:
            self._files.remove(self.path)
            raise
        finally:
            self._files.close(handle)
        self._slots = np.zeros(self._slot_count, np.int32)

    def load(self) -> str | None:
        """Reads the header; returns what is wrong with the file, or None."""
        size = self._files.size(self.path)
        if size != self.size:
            return f"{size} bytes instead of {self.size}"
        self.header = IndexHeader(*HEADER.unpack(self._open.read(self.path, HEADER_SIZE, 0)))
        head = self.header
        if not 1 <= head.next_entry <= self._entry_limit or not 0 <= head.slots_used <= self._slot_count:
            return f"{head.next_entry} entries in {head.slots_used} slots"
        if not 0 <= head.first_offset <= head.last_offset:
            return f"offsets from {head.first_offset} to {head.last_offset}"
        return None

    @property
    def _handle(self) -> int:
        return self._open.handle(self.path)

    @property
    def room(self) -> int:
        return self._entry_limit - self.header.next_entry

    # --- writing --------------------------------------------------------------------------------------------------

    def put(self, hashes: Hashes, offsets: Offsets, timestamps: Offsets) -> None:
        """Adds at most `room` entries in their order.  After an OSError the file counts the same entries as before."""
        head, count = self.header, len(hashes)
        slots = self._load_slots()
        previous, places, numbers = _chain(hashes, head.next_entry, slots)
        first_timestamp = head.first_timestamp if head.next_entry > 1 else int(timestamps[0])
        entries = np.empty(count, ENTRY)
        entries["hash"] = hashes
        entries["commit_log_offset"] = offsets
        entries["seconds"] = _seconds(timestamps, first_timestamp)
        entries["previous"] = previous
        after = IndexHeader(
            first_timestamp,
            int(timestamps[-1]),
            head.first_offset if head.next_entry > 1 else int(offsets[0]),
            int(offsets[-1]),
            head.slots_used + int(np.count_nonzero(previous == 0)),
            head.next_entry + count,
        )
        self._files.pwrite(self._handle, entries.view(np.uint8).data, self._entry_at(head.next_entry))
        self._files.pwrite(self._handle, after.pack(), 0)
        self.header = after
        slots[places] = numbers
        self._dirty_pages[places // _PAGE_SLOTS] = True

    def write_slots(self) -> None:
        """Writes the slots that have changed to the file."""
        if self._slots is None:
            return
        pages = np.flatnonzero(self._dirty_pages)
        if not len(pages):
            return
        slots = self._slots.astype(">i4")
        for extent in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1):
            first, last = int(extent[0]) * _PAGE_SLOTS, (int(extent[-1]) + 1) * _PAGE_SLOTS
            self._files.pwrite(self._handle, slots[first:last].tobytes(), HEADER_SIZE + first * SLOT_SIZE)
        self._dirty_pages[:] = False

    def finish(self) -> None:
        """Writes the slots of a full file and frees their memory."""
        self.write_slots()
        self._slots = None

    def truncate(self, log_offset: int, last_timestamp: int) -> None:
        """Removes the entries of records at or behind `log_offset`.

        `last_timestamp` is the store time of the newest record that stays.
        """
        entries = self.entries()
        keep = int(np.searchsorted(entries["commit_log_offset"].astype(np.int64), log_offset))
        kept, head = entries[:keep], self.header
        cut = len(entries) - keep
        self.header = IndexHeader(
            head.first_timestamp if keep else 0,
            last_timestamp if keep else 0,
            head.first_offset if keep else 0,
            int(kept["commit_log_offset"][-1]) if keep else 0,
            int((kept["previous"] == 0).sum()),
            keep + 1,
        )
        self._files.pwrite(self._handle, self.header.pack(), 0)
        self._files.pwrite(self._handle, bytes(cut * ENTRY_SIZE), self._entry_at(keep + 1))
        self._rebuild_slots(kept)

    def slots_are_newer(self) -> bool:
        """Returns True if a slot has the number of an entry that the header does not count."""
        data = self._open.read(self.path, self._slot_count * SLOT_SIZE, HEADER_SIZE)
        return bool((np.frombuffer(data, ">i4") >= self.header.next_entry).any())

    def repair(self, sure_until: int) -> str | None:
        """Rebuilds the slots from the entries after an unclean stop; returns what is wrong with the entries, or None.

        The header, the slots, and the entries of records from `sure_until` on are written even if they are unchanged,
        since they may be in the page cache only.
        """
        entries, head = self.entries(), self.header
        if not len(entries):
            self._rebuild_slots(entries)
            return None
        offsets = entries["commit_log_offset"].astype(np.int64)
        previous, _, _ = _chain(entries["hash"].astype(np.int32), 1, np.zeros(self._slot_count, np.int32))
        if (previous != entries["previous"]).any() or (np.diff(offsets) < 0).any():
            return "its entries are not chained correctly"
        if offsets[0] != head.first_offset or offsets[-1] != head.last_offset:
            return "its entries are not those of its header"
        # A power loss may have left zeros instead of an entry.  Zeros look like an entry of log offset 0 with hash 0,
        # which is hardly ever a real hash.
        if not entries["hash"][: np.searchsorted(offsets, 1)].all():
            return "an entry of log offset 0 is missing"
        first = int(np.searchsorted(offsets, sure_until))
        self._files.pwrite(self._handle, entries[first:].tobytes(), self._entry_at(first + 1))
        self._files.pwrite(self._handle, head.pack(), 0)
        self._rebuild_slots(entries)
        return None

    def _rebuild_slots(self, entries: npt.NDArray[Any]) -> None:
        self._slots = np.zeros(self._slot_count, np.int32)
        # If several entries have the same slot, numpy keeps the last one, which is the newest.
        self._slots[entries["hash"].astype(np.int64) % self._slot_count] = np.arange(1, len(entries) + 1)
        on_disk = np.frombuffer(self._open.read(self.path, self._slot_count * SLOT_SIZE, HEADER_SIZE), ">i4")
        # Pages that are zero and stay zero are not written, because the file is sparse, and such pages may have no
        # blocks.
        used = (on_disk != 0) | (self._slots != 0)
        self._dirty_pages = np.logical_or.reduceat(used, np.arange(0, self._slot_count, _PAGE_SLOTS))
        self.write_slots()

    def _load_slots(self) -> npt.NDArray[np.int32]:
        if self._slots is None:
            data = self._open.read(self.path, self._slot_count * SLOT_SIZE, HEADER_SIZE)
            self._slots = np.frombuffer(data, ">i4").astype(np.int32)
            # RocketMQ also ignores slots with impossible entry numbers.
            self._slots[(self._slots < 0) | (self._slots >= self.header.next_entry)] = 0
        return self._slots

    # --- reading --------------------------------------------------------------------------------------------------

    def find(self, hash_code: int, search: Search) -> Iterator[tuple[int, int, int]]:
        """Yields the log offset, the earliest and the latest possible store time of the entries with this hash.

        The newest entry comes first.  An entry has its store time as whole seconds since the file's first store time.
        An entry with 0 seconds can also be of a record that was stored up to CLOCK_MARGIN_MS before the file's first
        store time.
        """
        limit = self._limit(search)
        number = self._newest(hash_code, limit, search)
        while 0 < number < limit and search.budget > 0:  # numbers must decrease, so a damaged chain cannot loop
            limit = number
            code, offset, seconds, number = self._entry(limit)
            search.budget -= 1
            # The same record may have an older entry with this hash.
            search.before = min(search.before, offset + (code != hash_code))
            if code == hash_code:
                about = self.header.first_timestamp + seconds * 1000
                yield offset, about if seconds else about - CLOCK_MARGIN_MS, about + 999

    def _limit(self, search: Search) -> int:
        """Finds the number of the first entry that is too new, by binary search, since entries are in log order."""
        head = self.header
        low, high = 1, head.next_entry
        if head.last_offset < search.before and head.last_timestamp <= search.until_ms:
            return high
        seconds_limit = (search.until_ms - head.first_timestamp + CLOCK_MARGIN_MS) // 1000
        while low < high:
            middle = (low + high) // 2
            _, offset, seconds, _ = self._entry(middle)
            if offset >= search.before or seconds > seconds_limit:
                high = middle
            else:
                low = middle + 1
        return low

    def _newest(self, hash_code: int, limit: int, search: Search) -> int:
        """Returns the newest entry before `limit` that is on the chain of this hash; 0 if there is none."""
        place = hash_code % self._slot_count
        if self._slots is not None:
            number = int(self._slots[place])
        else:
            slot = self._open.read(self.path, SLOT_SIZE, HEADER_SIZE + place * SLOT_SIZE)
            number = int.from_bytes(slot, "big", signed=True)
        newer = self.header.next_entry
        for _ in range(STEPS_BEFORE_SCAN):
            if not limit <= number < newer:
                return number
            newer, number = number, self._entry(number)[3]
        return self._scan(hash_code, limit, search)

    def _scan(self, hash_code: int, limit: int, search: Search) -> int:
        """Finds the newest entry with this hash before `limit` by a backward scan of all entries.

        Returns 0 if no entry is found or the budget is spent.
        """
        while limit > 1 and search.budget > 0:
            begin = max(limit - SCAN, 1)
            data = self._open.read(self.path, (limit - begin) * ENTRY_SIZE, self._entry_at(begin))
            entries = np.frombuffer(data, ENTRY)
            found = np.flatnonzero(entries["hash"] == hash_code)
            if len(found):
                return begin + int(found[-1])
            search.budget -= -(-len(entries) // SCAN_COST)
            # The record of the chunk's first entry can have more entries before the chunk, so `before` stays behind
            # this record.
            search.before = min(search.before, int(entries["commit_log_offset"][0]) + 1)
            limit = begin
        return 0

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        """Reads an entry: its hash, log offset, seconds and previous entry."""
        return _ENTRY.unpack(self._open.read(self.path, ENTRY_SIZE, self._entry_at(number)))

    def entries(self) -> npt.NDArray[Any]:
        """Reads all entries, from number 1 on."""
        data = self._open.read(self.path, (self.header.next_entry - 1) * ENTRY_SIZE, self._entry_at(1))
        return np.frombuffer(data, ENTRY)

    def count_at(self, log_offset: int) -> int:
        """Counts the entries of the record at `log_offset` among the newest entries of the file."""
        number = self.header.next_entry
        while number > 1:
            data = self._open.read(self.path, ENTRY_SIZE, self._entry_at(number - 1))
            if np.frombuffer(data, ENTRY)["commit_log_offset"][0] != log_offset:
                break
            number -= 1
        return self.header.next_entry - number

    def delete(self) -> None:
        self._open.forget(self.path)
        self._files.remove(self.path)

    def _entry_at(self, number: int) -> int:
        return HEADER_SIZE + self._slot_count * SLOT_SIZE + number * ENTRY_SIZE

    def __str__(self) -> str:
        return f"{self.path.name}: {self.header.next_entry - 1} entries up to log offset {self.header.last_offset}"


def _seconds(timestamps: Offsets, first: int) -> npt.NDArray[np.int64] | int:
    """Returns the seconds from the file's first store time to each of these times."""
    if (timestamps == timestamps[0]).all():
        return min(max((int(timestamps[0]) - first) // 1000, 0), _MAX_SECONDS)
    return np.clip((timestamps - first) // 1000, 0, _MAX_SECONDS)


def _chain(
    hashes: Hashes, first: int, slots: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Links new entries, numbered from `first` on, into the chains of their slots.

    Returns each entry's predecessor in its slot, the slots that change, and the entry numbers that these slots get.
    The sort keys are integers, slot << 32 | row, which keeps the order within a slot and is several times faster than
    `argsort`.
    """
    count = np.int32(len(slots))
    places = hashes - hashes // count * count  # numpy's division is faster than its modulo
    keys = np.sort(places.astype(np.int64) << 32 | np.arange(len(places)))
    rows = keys & 0xFFFFFFFF
    keys >>= 32
    is_first = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    begins = np.flatnonzero(is_first)
    changed = keys[begins]
    before = np.empty(len(keys), np.int32)
    before[1:] = rows[:-1] + first
    before[begins] = slots[changed]
    previous = np.empty_like(before)
    previous[rows] = before
    return previous, changed, rows[np.append(begins[1:], len(rows)) - 1] + first
