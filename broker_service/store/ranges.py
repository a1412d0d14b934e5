"""Reads ranges of many queues into one frame, which is the content of one answer.

The statuses are RocketMQ's (table D3 of docs/decision_tables.md); the limits are RocketSim's.  Python code runs once
per range and never once per record.  The queue entries of all ranges are put into one array.  Numpy then finds, for all
entries at once, which of them are taken, how many fit into the frame, and where their records lie:

    entries | queue 3: e e e e e | queue 7: e e e e | queue 9: e e e |
    taken   |          .   x x x |          x x x x |          x x x |   the other messages are filtered or expired
    fitting |          .   x x x |          x x     |                |   full: the next frame continues in queue 7
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from rocketsim_proto.model import GetMessageStatus

from broker_service.errors import StoreCorrupt
from broker_service.store.batch_read import LogRead, NotInLog, Positions, read_records
from broker_service.store.commit_log import CommitLog
from broker_service.store.consume_queue import ENTRY, ENTRY_SIZE, FILLER_SIZE, ConsumeQueue
from broker_service.store.residency import Cold

TagsCodes = frozenset[int] | None

FIRST_ENTRIES = 512  # entries to read while the size of the messages is not known yet
_ENTRIES_AT_A_TIME = 16384
MAX_ENTRIES_SCANNED = 1 << 18  # entries per frame; 0.25 million entries take some ms
MAX_SPANS = 256  # spans per frame; a span takes time even if it has few messages or none


class Span(NamedTuple):
    """A request for messages [offset, until) of a queue; readers may see the messages before `max_offset`."""

    queue: ConsumeQueue | None
    offset: int
    until: int
    max_offset: int


@dataclass(slots=True)
class RangeAnswer:
    """The answer to a span, or to the part of the span that fits into the frame.  The answer has `count` messages
    before queue offset `next_offset`.

    If `count` is 0, `status` is the reason.
    """

    span_index: int
    status: GetMessageStatus
    next_offset: int
    min_offset: int
    max_offset: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class RangesResult:
    """The answers of a frame, and their records in the same order, back to back.

    `records` may be views of the log, which are valid until the log is cut.  `runs` has the log offsets at which each
    view begins and ends.  It is empty if `records` are a copy.
    """

    answers: list[RangeAnswer]
    records: list[memoryview]
    runs: list[tuple[int, int]]
    sizes: bytes  # the size of each record, little-endian uint32
    suggest_pull_from_slave: bool


def read_ranges(
    log: CommitLog, spans: Iterable[Span], max_bytes: int, tags_codes: TagsCodes, memory: int, entries: int = 0
) -> RangesResult:
    """Reads as many messages as fit into `max_bytes`, but at least one.

    If a queue ends before the `until` of its span, a further answer says so.  `memory` is the number of bytes at the
    log's end that count as in memory.  `entries` is an estimate of how many messages fit; 0 means unknown.
    """
    filling = _Filling(log, max_bytes, tags_codes, entries or FIRST_ENTRIES)
    cursors = filling.cursors(spans)
    cursor = next(cursors, None)
    while cursor is not None and (wanted := filling.entries_wanted()) > 0:
        part: list[tuple[_Cursor, int]] = []
        while cursor is not None and wanted > 0:
            count = min(wanted, cursor.end - cursor.at)
            wanted -= count
            part.append((cursor, count))
            if count == cursor.end - cursor.at:
                cursor = next(cursors, None)
        filling.take(part)
    if cursor is not None and not filling.is_full:
        filling.end_at(cursor.answer)
    return filling.result(memory)


def outside(exists: bool, offset: int, min_offset: int, max_offset: int) -> tuple[GetMessageStatus, int] | None:
    """Returns status and corrected next offset, by table D3, if nothing can be read at this offset; otherwise None."""
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
        "start the broker, which rebuilds it from the log. Otherwise take the log from the other broker"
    )


def check_expired(queue: ConsumeQueue, queue_offset: int, size: int, log_min: int) -> None:
    """Raises StoreCorrupt if this entry, which does not point into the log, is damaged and not just expired.

    An entry with an impossible size is damaged.  While the log has the record of the queue's first entry, it also has
    the records of all later entries, so a later entry that does not point into the log is damaged.
    """
    first = queue.read(queue.min_offset, 1)[0]
    log_has_first = first["size"] != FILLER_SIZE and first["commit_log_offset"] >= log_min
    if size <= 0 or (log_has_first and queue_offset > queue.min_offset):
        raise damaged(queue, queue_offset)


@dataclass(slots=True)
class _Cursor:
    """A position in a span, whose entries [at, end) are still to be examined."""

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


def _read(part: list[tuple[_Cursor, int]]) -> list[bytes]:
    """Reads the entries of each cursor; raises one Cold for all entries that are not in memory."""
    data, cold = [], []
    for cursor, count in part:
        try:
            data.append(cursor.read(count))
        except Cold as one:
            cold += one.places
    if cold:
        raise Cold(cold)
    return data


class _Filling:
    """A frame while it is being filled: the places of its records are collected part by part."""

    def __init__(self, log: CommitLog, room: int, tags_codes: TagsCodes, first_entries: int) -> None:
        self._log = log
        self._first_entries = first_entries
        self._room = self._size = room
        self._tags = None if tags_codes is None else np.fromiter(tags_codes, np.int64, len(tags_codes))
        self.is_full = False
        self._scanned = 0
        self._answers: list[RangeAnswer] = []
        self._examined: list[tuple[_Cursor, int]] = []  # (cursor, records taken), in the order of the records
        self._offsets: list[Positions] = []
        self._sizes: list[Positions] = []
        self._queue_offsets: list[Positions] = []

    def cursors(self, spans: Iterable[Span]) -> Iterator[_Cursor]:
        """Yields a cursor for each span with something to read, and adds the spans' answers.

        The answer to a span is added before the span is read.  If a span's `until` lies behind the last record that
        readers may see, a second answer is added, whose status says that the queue ends there.
        """
        for index, (queue, offset, until, max_offset) in enumerate(islice(spans, MAX_SPANS)):
            min_offset = queue.min_offset if queue else 0
            nothing = outside(queue is not None, offset, min_offset, max_offset)
            if queue is not None and nothing is None:
                status = GetMessageStatus.NO_MATCHED_MESSAGE
                answer = RangeAnswer(index, status, offset, min_offset, max_offset)
                self._answers.append(answer)
                if offset < until:
                    yield _Cursor(queue, answer, offset, min(until, max_offset))
                nothing = outside(True, max_offset, min_offset, max_offset) if max_offset < until else None
            if nothing is not None:
                self._answers.append(RangeAnswer(index, *nothing, min_offset, max_offset))

    def entries_wanted(self) -> int:
        """Returns how many entries to read next, which is about as many as fit."""
        if self.is_full or self._scanned >= MAX_ENTRIES_SCANNED:
            return 0
        if not self._scanned:
            return min(self._first_entries, _ENTRIES_AT_A_TIME)
        an_entry = (self._size - self._room) / self._scanned
        fitting = int(self._room / max(an_entry, 1.0)) + 8
        return min(fitting, _ENTRIES_AT_A_TIME, MAX_ENTRIES_SCANNED - self._scanned)

    def take(self, part: list[tuple[_Cursor, int]]) -> None:
        """Examines the next `count` entries of each cursor, and takes their messages as long as these fit into the
        frame.
        """
        entries = np.frombuffer(b"".join(_read(part)), ENTRY)
        offsets, sizes = entries["commit_log_offset"].astype(np.int64), entries["size"].astype(np.int64)
        taking = (offsets >= self._log.min_offset) & (sizes != FILLER_SIZE)
        removed = not taking.all()
        if removed:
            self._check_expired(part, offsets, sizes)
        if self._tags is not None:
            taking &= np.isin(entries["tags_code"], self._tags)
        takes_all = bool(taking.all())
        rows = np.arange(len(entries)) if takes_all else np.flatnonzero(taking)
        bytes_until = np.cumsum(sizes if takes_all else sizes[rows])
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
        firsts = np.array([cursor.at for cursor, _ in part])
        if fitting:
            chosen = slice(fitting) if takes_all else rows
            self._offsets.append(offsets[chosen])
            self._sizes.append(sizes[chosen])
            self._queue_offsets.append(rows + np.repeat(firsts - begins, found))
            self._room -= int(bytes_until[fitting - 1])
        self._scanned += examined
        stops = np.minimum(ends, examined).tolist()
        for (cursor, _), begin, stop, taken in zip(part, begins.tolist(), stops, found.tolist(), strict=True):
            if stop > begin:
                self._move(cursor, stop - begin, taken, int(offsets[stop - 1]), removed)
        if self.is_full:
            self.end_at(part[int(np.searchsorted(ends, examined, side="right"))][0].answer)

    def _check_expired(self, part: list[tuple[_Cursor, int]], offsets: Positions, sizes: Positions) -> None:
        expired = np.flatnonzero((offsets < self._log.min_offset) & (sizes != FILLER_SIZE))
        begin = 0
        for cursor, count in part:
            rows = expired[np.searchsorted(expired, begin) : np.searchsorted(expired, begin + count)]
            if len(rows):
                last = int(rows[-1])
                check_expired(cursor.queue, cursor.at + last - begin, int(sizes[rows].min()), self._log.min_offset)
            begin += count

    def _move(self, cursor: _Cursor, examined: int, taken: int, last_examined: int, removed: bool) -> None:
        cursor.at += examined
        cursor.last_examined = last_examined
        answer = cursor.answer
        answer.next_offset = cursor.at
        answer.count += taken
        if answer.count:
            answer.status = GetMessageStatus.FOUND
        elif removed and self._tags is None:
            answer.status = GetMessageStatus.MESSAGE_WAS_REMOVING
        self._examined.append((cursor, taken))

    def end_at(self, last: RangeAnswer) -> None:
        """Removes the answers behind `last`.  Removes `last` itself, too, if no entry of its span was examined."""
        at = next(number for number, answer in enumerate(self._answers) if answer is last)
        was_reached = any(cursor.answer is last for cursor, _ in self._examined)
        del self._answers[at + was_reached :]

    def result(self, memory: int) -> RangesResult:
        end = self._log.end_offset
        read = self._records() if self._sizes else LogRead([], [])
        return RangesResult(
            answers=self._answers,
            records=read.slices,
            runs=read.runs,
            sizes=b"".join([sizes.astype("<u4").tobytes() for sizes in self._sizes]),
            suggest_pull_from_slave=any(end - cursor.last_examined > memory for cursor, _ in self._examined),
        )

    def _records(self) -> LogRead:
        """Raises StoreCorrupt if the log has other records at these offsets, since a queue's files are damaged then."""
        taken = np.array([taken for _, taken in self._examined])
        queue_ids = np.repeat([cursor.queue.queue_id for cursor, _ in self._examined], taken)
        queue_offsets = np.concatenate(self._queue_offsets)
        try:
            return read_records(
                self._log, np.concatenate(self._offsets), np.concatenate(self._sizes), queue_ids, queue_offsets
            )
        except NotInLog as error:
            cursor, _ = self._examined[int(np.searchsorted(np.cumsum(taken), error.row, side="right"))]
            raise damaged(cursor.queue, int(queue_offsets[error.row])) from None
