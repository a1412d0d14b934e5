"""Makes the index entries of records: the hashes of their keys, in RocketMQ 5.5's order.  Pure.

A record has an entry for UNIQ_KEY and one for each word of KEYS, both hashed as TOPIC#KEY, and then one for its tags,
hashed as TOPIC#T#TAGS.  Rolled-back transactional records have no entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rocketsim_proto.records.columnar import Records, java_hash
from rocketsim_proto.records.record import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    SYS_FLAG_TRANSACTION_MASK,
    tags_code,
)
from rocketsim_proto.records.slices import flat_bytes, offsets

from broker_service.store.dispatch import ROLLED_BACK


@dataclass(frozen=True, slots=True)
class IndexKeys:
    """Index entries in the order in which they are put.  Hashes are never negative."""

    hashes: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, rows: slice) -> "IndexKeys":
        return IndexKeys(self.hashes[rows], self.offsets[rows], self.timestamps[rows])


NO_KEYS = IndexKeys(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
_MARKS = {PROPERTY_UNIQ_KEY: "#", PROPERTY_KEYS: "#", PROPERTY_TAGS: "#T#"}


def joined(parts: Sequence[IndexKeys]) -> IndexKeys:
    if len(parts) == 1:
        return parts[0]
    return IndexKeys(
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.timestamps for part in parts]),
    )


def index_keys(records: Records) -> IndexKeys:
    """Makes all index entries of these records."""
    rolled_back = (records.sys_flag & SYS_FLAG_TRANSACTION_MASK) == ROLLED_BACK
    if rolled_back.any():
        records = records[~rolled_back]
    topics, codes = records.topic_codes()
    before = [_hashes_before(topics, name) for name in (PROPERTY_KEYS, PROPERTY_TAGS)]
    if (found := records.index_hashes(codes, *before)) is not None:
        hashes, rows = found
        return IndexKeys(hashes, records.commit_log_offset[rows], records.store_timestamp[rows])
    table = _of_one_shape(records, topics[0]) if len(topics) == 1 else None
    if table is None:
        return _of_any_shape(records, topics, codes)
    return IndexKeys(
        _magnitude(table.reshape(-1)),
        np.repeat(records.commit_log_offset, table.shape[1]),
        np.repeat(records.store_timestamp, table.shape[1]),
    )


def _of_one_shape(records: Records, topic: str) -> npt.NDArray[np.int32] | None:
    """Computes the hashes, one row per record, if all records have the same keys with values of the same sizes.

    Returns None if the records differ in their keys or sizes.

    | UNIQ_KEY of the first record | its KEYS | its TAGS |
    | of the second ...
    """
    matrix = records.property_matrix()
    if matrix is None or matrix.has(PROPERTY_KEYS.encode(), b" "):
        return None
    present = [name for name in _MARKS if name.encode() in matrix.names()]
    table = np.empty((len(records), len(present)), np.int32)
    for column, name in enumerate(present):
        hashes = matrix.java_hash(name.encode(), tags_code(topic + _MARKS[name]))
        if hashes is None:
            return None
        table[:, column] = hashes
    return table


def _of_any_shape(records: Records, topics: list[str], codes: npt.NDArray[np.int64]) -> IndexKeys:
    keys, key_rows = _tokens(records.property(PROPERTY_KEYS))
    rows, hashes = [], []
    for name, values, at in (
        (PROPERTY_UNIQ_KEY, records.property(PROPERTY_UNIQ_KEY), None),
        (PROPERTY_KEYS, keys, key_rows),
        (PROPERTY_TAGS, records.property(PROPERTY_TAGS), None),
    ):
        present = np.flatnonzero(np.diff(offsets(values)))  # the rows whose value is neither null nor empty
        if not len(present):
            continue
        if len(present) < len(values):
            values = values.take(pa.array(present))
        row = present if at is None else at[present]
        hashes.append(java_hash(values, _hashes_before(topics, name)[codes[row]]))
        rows.append(row)
    if not rows:
        return NO_KEYS
    order, all_rows = _in_turn(rows, len(records))
    return IndexKeys(
        _magnitude(np.concatenate(hashes)[order]),
        records.commit_log_offset[all_rows],
        records.store_timestamp[all_rows],
    )


def _hashes_before(topics: list[str], name: str) -> npt.NDArray[np.int32]:
    """Returns, for each topic, the hash of the text in front of this property's values, such as TOPIC#."""
    return np.array([tags_code(topic + _MARKS[name]) for topic in topics], np.int32)


def _in_turn(rows: list[npt.NDArray[np.int64]], count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Orders entries by record: all of the first record, then all of the second one.

    Returns the entries' numbers in the new order, and the record of each entry.
    """
    if all(len(row) == count for row in rows) and count and all((row == rows[0]).all() for row in rows):
        order = np.arange(count * len(rows)).reshape(len(rows), count).T.reshape(-1)
        return order, np.repeat(rows[0], len(rows))
    all_rows = np.concatenate(rows)
    order = np.argsort(all_rows, kind="stable")
    return order, all_rows[order]


def key_hash(topic: str, key: str) -> int:
    """Returns the hash under which records with this key are indexed."""
    return int(_magnitude(np.array([tags_code(f"{topic}#{key}")], np.int32))[0])


def _magnitude(hashes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Returns Java's Math.abs of each hash, or 0 where that is still negative (the smallest integer)."""
    return np.maximum(np.abs(hashes), 0)


def _tokens(keys: pa.StringArray) -> tuple[pa.StringArray, npt.NDArray[np.int64]]:
    """Splits each value into its words; returns the words and the row of each word."""
    if keys.null_count == len(keys):
        return pa.array([], pa.string()), np.empty(0, np.int64)
    if not (flat_bytes(keys) == ord(" ")).any():
        return keys, np.arange(len(keys))
    import pyarrow.compute as pc  # imported here, as it loads slowly; `node/app.py` loads it once the broker serves

    lists = pc.split_pattern(keys, " ")
    return pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy().astype(np.int64)
