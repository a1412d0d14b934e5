"""`rocketsim store verify` reports what is wrong with a store directory, and where.

The command checks the log first, and then the files that are derived from the log.  To check the consume queues, the
command replays the log and compares each entry with its record, without any code of the broker's writer.
"""

from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.reserved import SCHEDULE_TOPIC

from broker_service.errors import StoreCorrupt
from broker_service.store.consume_queue import ENTRY, FILLER_SIZE, Entries
from broker_service.store.files import Files
from broker_service.store.flushed_offset import Flushed, FlushedOffset
from broker_service.store.index_keys import NO_KEYS, index_keys
from broker_service.store.json_file import decoded
from broker_service.store.offline.file import numbered_files
from broker_service.store.offline.index import OfflineIndex
from broker_service.store.offline.log import Blank, Damaged, Misfit, Tail, Whole
from broker_service.store.offline.offsets import committed_offsets
from broker_service.store.offline.queue import OfflineQueue, queues
from broker_service.store.offline.survey import Survey


class Severity(Enum):
    DAMAGE = "damage"  # something that was stored cannot be read
    REPAIRABLE = "repairable"  # a broker repairs it when it starts: it cuts a torn tail and rebuilds the queues
    WARNING = "warning"  # readable, but a broker would not have written it


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect.  `file` is relative to the store's directory; `offset` is a position in the file."""

    severity: Severity
    file: str
    offset: int
    what: str

    def __str__(self) -> str:
        return f"{self.severity.value}: {self.file} at {self.offset}: {self.what}"

    def as_line(self) -> dict[str, Any]:
        return {"kind": "finding", **asdict(self), "severity": self.severity.value}


def verify(directory: Path, survey: Survey | None = None) -> Iterator[Finding]:
    """Yields the defects of a store.  In the store of a running broker, queues and index may lag behind the log."""
    yield from _Verification(directory, survey or Survey()).findings()


class _Verification:
    def __init__(self, directory: Path, survey: Survey) -> None:
        self._directory = directory
        self._survey = survey
        files = numbered_files(directory / "commitlog")
        self._log_min = self._log_end = int(files[0].name) if files else 0
        self._queues = {(queue.topic, queue.queue_id): queue for queue in queues(directory, self._log_min)}
        survey.queues = len(self._queues)
        self._replayed: dict[tuple[str, int], int] = {}  # queue -> the queue offset of the next entry to compare
        self._index = OfflineIndex(directory)

    def findings(self) -> Iterator[Finding]:
        yield from self._log()
        yield from self._queue_files()
        yield from self._queue_ends()
        yield from self._index_findings()
        yield from self._config()

    def _finding(self, severity: Severity, path: Path, offset: int, what: str) -> Finding:
        return Finding(severity, str(path.relative_to(self._directory)), offset, what)

    # --- the log --------------------------------------------------------------------------------------------------

    def _log(self) -> Iterator[Finding]:
        has_files = False
        for part in self._survey.log_parts(self._directory):
            has_files = True
            if isinstance(part, Whole):
                end = part.offset + int(part.records.sizes.sum())
                self._index.compare(index_keys(part.records), part.offset, end)
                yield from self._replay(part.records)
            elif isinstance(part, Blank):
                self._index.compare(NO_KEYS, part.offset, part.offset + part.size)
            elif isinstance(part, Damaged):
                what = f"{part.size} bytes of the log, from {part.offset} on, hold no record: {part.reason}"
                yield self._finding(Severity.DAMAGE, part.path, part.offset - int(part.path.name), what)
            elif isinstance(part, Misfit):
                yield self._finding(Severity.DAMAGE, part.path, part.offset - int(part.path.name), part.reason)
            elif isinstance(part, Tail):
                self._log_end = part.offset
                yield from self._tail(part)
        if not has_files:
            yield from self._lost_log()

    def _lost_log(self) -> Iterator[Finding]:
        """Yields a finding if there is no log file although the log had records."""
        flushed = yield from self._flushed()
        if flushed is not None and flushed.offset > 0:
            what = f"no log file is here, but the log was flushed up to {flushed.offset}"
            yield self._finding(Severity.DAMAGE, self._directory / "commitlog", 0, what)

    def _flushed(self) -> Generator[Finding, None, Flushed | None]:
        """Yields a finding if the file is damaged.  Returns its value if there is one."""
        path = self._directory / "rocketsim" / "flushed"
        try:
            return FlushedOffset(Files(), path).load(log_is_empty=not self._replayed)
        except StoreCorrupt as error:
            yield self._finding(Severity.DAMAGE, path, 0, str(error))
            return None

    def _tail(self, tail: Tail) -> Iterator[Finding]:
        at = tail.offset - int(tail.path.name)
        flushed = yield from self._flushed()
        if flushed is not None and flushed.offset > tail.offset:
            what = f"the log ends at {tail.offset}, but was flushed up to {flushed.offset}: {tail.reason or 'zeros'}"
            yield self._finding(Severity.DAMAGE, tail.path, at, what)
        elif tail.reason:
            what = f"behind the last whole record, which ends at {tail.offset} of the log, is no record: {tail.reason}"
            yield self._finding(Severity.REPAIRABLE, tail.path, at, what)

    # --- the queues -----------------------------------------------------------------------------------------------

    def _replay(self, records: Records) -> Iterator[Finding]:
        """Compares the entries in the queue files with the entries that these records should have."""
        kind = records.sys_flag & 0xC
        records = records[(kind == 0) | (kind == 8)]  # prepared and rolled-back transactions have no entries
        if not len(records):
            return
        names = records.topics().dictionary_encode()
        codes, topics = names.indices.to_numpy().astype(np.int64), names.dictionary.to_pylist()
        tags_codes = records.tags_codes()
        keys = codes << 32 | records.queue_id
        order = np.argsort(keys, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            topic, queue_id = topics[codes[rows[0]]], int(records.queue_id[rows[0]])
            yield from self._compare(topic, queue_id, records[rows], tags_codes[rows])

    def _compare(
        self, topic: str, queue_id: int, records: Records, tags_codes: npt.NDArray[np.int64]
    ) -> Iterator[Finding]:
        queue = self._queues.get((topic, queue_id))
        offsets = records.queue_offset
        expected = self._replayed.get((topic, queue_id), int(offsets[0]))
        steps = offsets - np.concatenate(([expected], offsets[:-1] + 1))
        if steps.any():
            row = int(np.flatnonzero(steps)[0])
            path, at = self._log_place(int(records.commit_log_offset[row]))
            what = f"{topic} queue {queue_id}: has queue offset {offsets[row]} instead of {offsets[row] - steps[row]}"
            yield self._finding(Severity.DAMAGE, path, at, what)
        self._replayed[topic, queue_id] = int(offsets.max()) + 1
        if queue is None:
            return
        present = (offsets >= queue.min_offset) & (offsets < queue.max_offset)
        if not present.any():
            return
        begin, end = int(offsets[present].min()), int(offsets[present].max()) + 1
        entries = queue.read(begin, end)[offsets[present] - begin]
        wrong = self._differ(entries, topic, records[present], tags_codes[present])
        if wrong.any():
            row = int(wrong.argmax())
            path, at = queue.place(int(offsets[present][row]))
            what = (
                f"{int(wrong.sum())} entries from {offsets[present][row]} on are not those of the log's records; "
                f"the first is {_describe(entries[row])}"
            )
            yield self._finding(Severity.REPAIRABLE, path, at, what)

    def _differ(
        self, entries: Entries, topic: str, records: Records, tags_codes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        other_code = entries["tags_code"] != tags_codes
        if topic == SCHEDULE_TOPIC:
            # The tags code in the delay topic is the delivery time, which depends on the delay levels that were
            # configured when the message was stored.
            other_code &= entries["tags_code"] < records.store_timestamp
        differ: npt.NDArray[np.bool_] = (
            (entries["commit_log_offset"] != records.commit_log_offset)
            | (entries["size"] != records.sizes)
            | other_code
        )
        return differ

    def _log_place(self, log_offset: int) -> tuple[Path, int]:
        path = [path for path in numbered_files(self._directory / "commitlog") if int(path.name) <= log_offset][-1]
        return path, log_offset - int(path.name)

    def _queue_files(self) -> Iterator[Finding]:
        for queue in self._queues.values():
            for number, path in enumerate(queue.files):
                start, size = queue.first_offset * ENTRY.itemsize + number * queue.file_size, path.stat().st_size
                if int(path.name) != start:
                    yield self._finding(Severity.REPAIRABLE, path, 0, f"a file is missing before this one, at {start}")
                    break
                if not size or size != queue.file_size or size % ENTRY.itemsize:
                    what = f"{size} bytes, but the first file has {queue.file_size} and an entry {ENTRY.itemsize}"
                    what = what if size else "0 bytes: its entries are lost"
                    yield self._finding(Severity.REPAIRABLE, path, size, what)
                    break

    def _queue_ends(self) -> Iterator[Finding]:
        consumequeue = self._directory / "consumequeue"
        for (topic, queue_id), end in sorted(self._replayed.items()):
            queue = self._queues.get((topic, queue_id))
            if queue is None:
                what = f"missing; the log has records up to queue offset {end}"
                yield self._finding(Severity.REPAIRABLE, consumequeue / topic / str(queue_id), 0, what)
            elif queue.max_offset < end:
                what = f"ends at queue offset {queue.max_offset}, the log's records go on to {end}"
                yield self._finding(Severity.REPAIRABLE, *queue.place(queue.max_offset), what)
        for queue in self._queues.values():
            yield from self._behind_the_log(queue)

    def _behind_the_log(self, queue: OfflineQueue) -> Iterator[Finding]:
        """Yields entries that point to a place without a record of this queue."""
        end = self._replayed.get((queue.topic, queue.queue_id), queue.min_offset)
        extra = queue.read(max(end, queue.min_offset), queue.max_offset)
        extra = extra[extra["size"] != FILLER_SIZE]
        if len(extra):
            what = (
                f"{len(extra)} entries behind the log's last record of this queue; the first is {_describe(extra[0])}"
            )
            yield self._finding(Severity.REPAIRABLE, *queue.place(end), what)
        rest = queue.rest()
        if rest is not None and queue.max_offset >= end:
            what = f"bytes behind the queue's end, {queue.max_offset}, that are no entry"
            yield self._finding(Severity.REPAIRABLE, *queue.place(rest), what)

    # --- the index ------------------------------------------------------------------------------------------------

    def _index_findings(self) -> Iterator[Finding]:
        for path, at, what in self._index.findings(self._log_end):
            what = f"{what}; remove the folder index, and the broker rebuilds it from the log"
            yield self._finding(Severity.REPAIRABLE, path, at, what)

    # --- config ---------------------------------------------------------------------------------------------------

    def _config(self) -> Iterator[Finding]:
        damaged = False
        for path in sorted([*self._directory.glob("config/*.json"), *self._directory.glob("rocketsim/*.json")]):
            try:
                decoded(path, path.read_bytes())
            except ValueError as error:
                damaged = True
                backup = path.with_name(path.name + ".bak")
                severity = Severity.REPAIRABLE if backup.exists() else Severity.DAMAGE
                yield self._finding(severity, path, 0, f"damaged: {error}")
        if not damaged:
            yield from self._offsets()

    def _offsets(self) -> Iterator[Finding]:
        path = self._directory / "config" / "consumerOffset.json"
        try:
            offsets = committed_offsets(self._directory)
        except ValueError as error:
            yield self._finding(Severity.DAMAGE, path, 0, f"{error}; correct it or put its .bak in its place")
            return
        for one in offsets:
            queue = self._queues.get((one.topic, one.queue_id))
            end = self._replayed.get((one.topic, one.queue_id), queue.max_offset if queue else one.offset)
            if one.offset > end:
                what = (
                    f"{one.group} has committed {one.offset} of {one.topic} queue {one.queue_id}, which ends at {end}"
                )
                yield self._finding(Severity.WARNING, path, 0, what)


def _describe(entry: Any) -> str:
    return f"({entry['commit_log_offset']}, {entry['size']}, {entry['tags_code']})"
