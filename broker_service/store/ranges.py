"""Reads ranges of many queues into one frame.  The statuses are those of RocketMQ's table D3, the limits our own.

Python runs once a range, never once a record: the queue entries of all ranges are one array, and which of them are
taken, how many fit and where their records lie is found for all of them at once.

    entries | queue 3: e e e e e | queue 7: e e e e | queue 9: e e e |
    taken   |          .   x x x |          x x x x |          x x x |   the others are filtered out, or removed
    fitting |          .   x x x |          x x     |                |   full: the next frame continues in queue 7
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from broker_service.errors import StoreCorrupt
from broker_service.model import GetMessageStatus
from broker_service.store.batch_read import Positions, are_there, read_records
from broker_service.store.commit_log import CommitLog
from broker_service.store.consume_queue import ENTRY, ENTRY_SIZE, FILLER_SIZE, ConsumeQueue
from broker_service.store.residency import Cold

TagsCodes = frozenset[int] | None

_FIRST_ENTRIES = 512  # looked at before it is known how large the messages are
_ENTRIES_AT_A_TIME = 16384
_MAX_ENTRIES_SCANNED = 1 << 18  # of a frame: 0.25 million entries take some ms
_MAX_SPANS = 256  # of a frame: those that have little or nothing cost, too


class Span(NamedTuple):
    """Messages [offset, until) of a queue, if there is one, of which readers see those before `max_offset`."""

    queue: ConsumeQueue | None
    offset: int
    until: int
    max_offset: int


@dataclass(slots=True)
class RangeAnswer:
    """What a frame has of a span: `count` messages up to queue offset `next_offset`; `status` says why there are
    none.
    """

    span_index: int
    status: GetMessageStatus
    next_offset: int
    min_offset: int
    max_offset: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class RangesResult:
    """`records` are those of all answers in order, back to back; a view is good for as long as the log is not cut."""

    answers: list[RangeAnswer]
    records: list[memoryview]
    sizes: bytes  # of each record, little-endian uint32
    suggest_pull_from_slave: bool


def read_ranges(
    log: CommitLog, spans: Iterable[Span], max_bytes: int, tags_codes: TagsCodes, memory: int, entries: int = 0
) -> RangesResult:
    """As many messages as fit into `max_bytes`, at least one; a span that ends early gets an answer that says why.

    `memory`: how many bytes of the log's end count as being in memory; `entries`: about how many are likely to fit,
    0 if nobody knows.
    """
    filling = _Filling(log, max_bytes, tags_codes, entries or _FIRST_ENTRIES)
    looks = filling.looks(spans)
    look = next(looks, None)
    while look is not None and (wanted := filling.entries_wanted()) > 0:
        part: list[tuple[_Look, int]] = []
        while look is not None and wanted > 0:
            count = min(wanted, look.end - look.at)
            wanted -= count
            part.append((look, count))
            if count == look.end - look.at:
                look = next(looks, None)
        filling.take(part)
    if look is not None and not filling.is_full:
        filling.end_at(look.answer)
    return filling.result(memory)


def outside(exists: bool, offset: int, min_offset: int, max_offset: int) -> tuple[GetMessageStatus, int] | None:
    """Table D3 for an offset at which there is nothing to read: status and corrected next offset."""
    if not exists:
        return GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0
    if max_offset == 0:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < min_offset:
        return GetMessageStatus.OFFSET_TOO_SMALL, min_offset
    if offset == max_offset:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > max_offset:
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, max_offset
    return None


def damaged(queue: ConsumeQueue, queue_offset: int) -> StoreCorrupt:
    return StoreCorrupt(
        f"consume queue {queue.directory} is damaged at or behind offset {queue_offset}: "
        "stop the broker and run `rocketsim store verify`. If it finds no damage in the log, delete that folder and "
        "start again: it is made anew from the log. Else take the log from the other broker"
    )


def check_expired(queue: ConsumeQueue, queue_offset: int, size: int, log_min: int) -> None:
    """StoreCorrupt if this entry, whose record lies before the log's minimum, is damaged: no entry has such a size, or
    the queue's first record is still there, and so are all behind it.
    """
    first = queue.read(queue.min_offset, 1)[0]
    is_there = first["size"] != FILLER_SIZE and first["commit_log_offset"] >= log_min
    if size <= 0 or (is_there and queue_offset > queue.min_offset):
        raise damaged(queue, queue_offset)


@dataclass(slots=True)
class _Look:
    """A span with something to read: the entries [at, end) are still to be looked at."""

    queue: ConsumeQueue
    answer: RangeAnswer
    at: int
    end: int
    last_examined: int = -1  # log offset

    def read(self, count: int) -> bytes:
        data = self.queue.read_bytes(self.at, count)
        if len(data) != count * ENTRY_SIZE:
            raise damaged(self.queue, self.at)
        return data


def _read(part: list[tuple[_Look, int]]) -> list[bytes]:
    """The entries of each; Cold for all together, if some are not in memory."""
    data, cold = [], []
    for look, count in part:
        try:
            data.append(look.read(count))
        except Cold as one:
            cold += one.places
    if cold:
        raise Cold(cold)
    return data


class _Filling:
    """A frame while it is filled: the places of its records, part by part."""

    def __init__(self, log: CommitLog, room: int, tags_codes: TagsCodes, first_entries: int) -> None:
        self._log = log
        self._first_entries = first_entries
        self._room = self._size = room
        self._tags = None if tags_codes is None else np.fromiter(tags_codes, np.int64, len(tags_codes))
        self.is_full = False
        self._scanned = 0
        self._answers: list[RangeAnswer] = []
        self._looked: list[tuple[_Look, int]] = []  # with the number of records taken, in the order of the records
        self._offsets: list[Positions] = []
        self._sizes: list[Positions] = []
        self._queue_offsets: list[Positions] = []

    def looks(self, spans: Iterable[Span]) -> Iterator[_Look]:
        """Gives each span its answer, before it is looked at, and another if readers do not see all of it."""
        for index, (queue, offset, until, max_offset) in enumerate(islice(spans, _MAX_SPANS)):
            min_offset = queue.min_offset if queue else 0
            nothing = outside(queue is not None, offset, min_offset, max_offset)
            if queue is not None and nothing is None:
                status = GetMessageStatus.NO_MATCHED_MESSAGE
                answer = RangeAnswer(index, status, offset, min_offset, max_offset)
                self._answers.append(answer)
                if offset < until:
                    yield _Look(queue, answer, offset, min(until, max_offset))
                nothing = outside(True, max_offset, min_offset, max_offset) if max_offset < until else None
            if nothing is not None:
                self._answers.append(RangeAnswer(index, *nothing, min_offset, max_offset))

    def entries_wanted(self) -> int:
        """How many may be looked at next: about as many as fit."""
        if self.is_full or self._scanned >= _MAX_ENTRIES_SCANNED:
            return 0
        if not self._scanned:
            return min(self._first_entries, _ENTRIES_AT_A_TIME)
        an_entry = (self._size - self._room) / self._scanned
        fitting = int(self._room / max(an_entry, 1.0)) + 8
        return min(fitting, _ENTRIES_AT_A_TIME, _MAX_ENTRIES_SCANNED - self._scanned)

    def take(self, part: list[tuple[_Look, int]]) -> None:
        """What fits of the next `count` entries of each."""
        entries = np.frombuffer(b"".join(_read(part)), ENTRY)
        offsets, sizes = entries["commit_log_offset"].astype(np.int64), entries["size"].astype(np.int64)
        taking = (offsets >= self._log.min_offset) & (sizes != FILLER_SIZE)
        removed = not taking.all()
        if removed:
            self._check_expired(part, offsets, sizes)
        if self._tags is not None:
            taking &= np.isin(entries["tags_code"], self._tags)
        rows = np.flatnonzero(taking)
        bytes_until = np.cumsum(sizes[rows])
        fitting = int(np.searchsorted(bytes_until, self._room, side="right"))
        if not fitting and not self._sizes:
            fitting = min(1, len(rows))
        self.is_full = fitting < len(rows)
        examined = int(rows[fitting]) if self.is_full else len(entries)
        rows = rows[:fitting]
        counts = np.array([count for _, count in part])
        ends = np.cumsum(counts)
        begins = ends - counts
        found = np.searchsorted(rows, ends) - np.searchsorted(rows, begins)
        firsts = np.array([look.at for look, _ in part])
        if fitting:
            self._offsets.append(offsets[rows])
            self._sizes.append(sizes[rows])
            self._queue_offsets.append(rows + np.repeat(firsts - begins, found))
            self._room -= int(bytes_until[fitting - 1])
        self._scanned += examined
        stops = np.minimum(ends, examined).tolist()
        for (look, _), begin, stop, taken in zip(part, begins.tolist(), stops, found.tolist(), strict=True):
            if stop > begin:
                self._move(look, stop - begin, taken, int(offsets[stop - 1]), removed)
        if self.is_full:
            self.end_at(part[int(np.searchsorted(ends, examined, side="right"))][0].answer)

    def _check_expired(self, part: list[tuple[_Look, int]], offsets: Positions, sizes: Positions) -> None:
        expired = np.flatnonzero((offsets < self._log.min_offset) & (sizes != FILLER_SIZE))
        begin = 0
        for look, count in part:
            rows = expired[np.searchsorted(expired, begin) : np.searchsorted(expired, begin + count)]
            if len(rows):
                last = int(rows[-1])
                check_expired(look.queue, look.at + last - begin, int(sizes[rows].min()), self._log.min_offset)
            begin += count

    def _move(self, look: _Look, examined: int, taken: int, last_examined: int, removed: bool) -> None:
        look.at += examined
        look.last_examined = last_examined
        answer = look.answer
        answer.next_offset = look.at
        answer.count += taken
        if answer.count:
            answer.status = GetMessageStatus.FOUND
        elif removed and self._tags is None:
            answer.status = GetMessageStatus.MESSAGE_WAS_REMOVING
        self._looked.append((look, taken))

    def end_at(self, last: RangeAnswer) -> None:
        """Removes the answers behind this one, and this one if nothing of its span was looked at."""
        at = next(number for number, answer in enumerate(self._answers) if answer is last)
        was_reached = any(look.answer is last for look, _ in self._looked)
        del self._answers[at + was_reached :]

    def result(self, memory: int) -> RangesResult:
        if not self._sizes:
            offsets = sizes = np.empty(0, np.int64)
        else:
            offsets, sizes = np.concatenate(self._offsets), np.concatenate(self._sizes)
            self._check(offsets, sizes)
        end = self._log.end_offset
        return RangesResult(
            answers=self._answers,
            records=read_records(self._log, offsets, sizes),
            sizes=sizes.astype("<u4").tobytes(),
            suggest_pull_from_slave=any(end - look.last_examined > memory for look, _ in self._looked),
        )

    def _check(self, offsets: Positions, sizes: Positions) -> None:
        """StoreCorrupt if the log has other records at these offsets: a queue's files are damaged."""
        taken = np.array([taken for _, taken in self._looked])
        queue_ids = np.repeat([look.queue.queue_id for look, _ in self._looked], taken)
        queue_offsets = np.concatenate(self._queue_offsets)
        there = are_there(self._log, offsets, sizes, queue_offsets, queue_ids)
        if not there.all():
            row = int(there.argmin())
            look, _ = self._looked[int(np.searchsorted(np.cumsum(taken), row, side="right"))]
            raise damaged(look.queue, int(queue_offsets[row]))
