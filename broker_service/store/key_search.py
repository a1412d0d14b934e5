"""KeySearch: records by key, UNIQ_KEY or KEYS, newest first.

The index has the hash of a key only, so each record that it finds is read and compared.
"""

from typing import NamedTuple

from rocketsim_proto.records.record import PROPERTY_KEYS, PROPERTY_UNIQ_KEY, Record, decode

from broker_service.store.commit_log import CommitLog
from broker_service.store.index import Index
from broker_service.store.index_file import CLOCK_MARGIN_MS, Search
from broker_service.store.residency import Cold

_BUDGET = 2048  # entries of the index that one search walks to: some milliseconds
_RECORD_COST = 8  # a record that is read takes as long as so many entries


class Found(NamedTuple):
    """Log offsets of records, newest first; `before`: how to ask for older ones, None if there are no more."""

    offsets: list[int]
    before: int | None


class KeySearch:
    """One search.  After a `run` that ended with Cold the next one continues with the record it ended at."""

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
        self._search = Search(log.end_offset if before is None else before, end_ms, _BUDGET)

    def run(self) -> Found:
        """At most `max_num` records stored in [begin_ms, end_ms], as far as the budget goes: some milliseconds."""
        search, found = self._search, self._offsets
        for offset, about in self._index.find(self._topic, self._key, search, self._begin_ms):
            if about + CLOCK_MARGIN_MS < self._begin_ms:
                return Found(found, None)
            # The index keeps seconds.
            if about > self._end_ms or about + 1000 < self._begin_ms or offset in found:
                continue
            try:
                matches = self._matches(offset)
            except Cold:
                search.before = offset + 1
                raise
            search.budget -= _RECORD_COST
            if matches and len(found) == self._max_num:
                return Found(found, found[-1])
            if matches:
                found.append(offset)
        return Found(found, search.before if search.budget <= 0 else None)

    def _matches(self, offset: int) -> bool:
        if not self._log.has_record_at(offset):
            return False  # Expired.
        record = decode(self._log.record_at(offset), check_crc=False)
        return (
            record.topic == self._topic
            and self._key in _keys(record)
            and self._begin_ms <= record.store_timestamp <= self._end_ms
        )


def _keys(record: Record) -> set[str | None]:
    return {record.properties.get(PROPERTY_UNIQ_KEY), *record.properties.get(PROPERTY_KEYS, "").split(" ")}
