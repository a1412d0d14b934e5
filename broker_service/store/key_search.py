"""KeySearch finds records by key (UNIQ_KEY or one of KEYS), newest first.

The index has only hashes of keys, so each record that it finds is read and compared.
"""

from typing import NamedTuple

from rocketsim_proto.records.record import PROPERTY_KEYS, PROPERTY_UNIQ_KEY, Record, decode

from broker_service.store.commit_log import CommitLog
from broker_service.store.index import Index
from broker_service.store.index_file import CLOCK_MARGIN_MS, Search
from broker_service.store.residency import Cold

BUDGET = 2048  # steps in the index that one search may take, which last some milliseconds
_RECORD_COST = 8  # reading a record takes as long as this number of steps


class KeySearchResult(NamedTuple):
    """The log offsets of the records that a search found, newest first."""

    offsets: list[int]
    before: int | None  # the log offset from which a further search continues; None if there are no older records


class KeySearch:
    """A search by key.  If `run` raises Cold, the next `run` continues at the record that was not in memory."""

    def __init__(
        self,
        index: Index,
        log: CommitLog,
        topic: str,
        key: str,
        *,
        max_num: int,
        begin_ms: int,
        end_ms: int,
        before: int | None,
    ) -> None:
        self._index = index
        self._log = log
        self._topic = topic
        self._key = key
        self._max_num = max_num
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._offsets: list[int] = []
        self._search = Search(log.end_offset if before is None else before, end_ms, BUDGET)

    def run(self) -> KeySearchResult:
        """Finds at most `max_num` records stored in [begin_ms, end_ms], or fewer if the budget is spent before."""
        search, found = self._search, self._offsets
        for offset, earliest, latest in self._index.find(self._topic, self._key, search, self._begin_ms):
            if latest + CLOCK_MARGIN_MS < self._begin_ms:
                return KeySearchResult(found, None)
            if earliest > self._end_ms or latest < self._begin_ms or offset in found:
                continue
            try:
                matches = self._matches(offset)
            except Cold:
                search.before = offset + 1
                raise
            search.budget -= _RECORD_COST
            if matches and len(found) == self._max_num:
                return KeySearchResult(found, found[-1])
            if matches:
                found.append(offset)
        return KeySearchResult(found, search.before if search.budget <= 0 else None)

    def _matches(self, offset: int) -> bool:
        if not self._log.has_record_at(offset):
            return False  # The record has expired.
        record = decode(self._log.record_at(offset), check_crc=False)
        return (
            record.topic == self._topic
            and self._key in _keys(record)
            and self._begin_ms <= record.store_timestamp <= self._end_ms
        )


def _keys(record: Record) -> set[str | None]:
    return {record.properties.get(PROPERTY_UNIQ_KEY), *record.properties.get(PROPERTY_KEYS, "").split(" ")}
