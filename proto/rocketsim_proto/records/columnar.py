"""Reads and writes whole batches of records as columns, with numpy and Arrow, without Python code per record.  Pure.

`record.py` shows the bytes of a record, and does the same for one record at a time, with the same results.  The bytes
are not trusted: a length is checked before it is used to reach other bytes.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketsim_proto.limits import MAX_BODY_BYTES
from rocketsim_proto.records import kernels, record
from rocketsim_proto.records.arrays import binaries, booleans, numbers, numpy_of, texts
from rocketsim_proto.records.compression import CompressionError, decompress
from rocketsim_proto.records.encoding import encode, slice_crcs
from rocketsim_proto.records.framing import check_sizes, walk_sizes
from rocketsim_proto.records.java_hash import java_hash
from rocketsim_proto.records.layout import FIELDS, HOST_FLAGS, layout_of
from rocketsim_proto.records.properties import Matrix, Properties
from rocketsim_proto.records.property_columns import encode_property_columns
from rocketsim_proto.records.record import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, MIN_SIZE, SYS_FLAG_COMPRESSED, RecordError
from rocketsim_proto.records.slices import (
    Bytes,
    Positions,
    as_bytes,
    binary_slices,
    fixed_binary,
    gather,
    offsets,
    windows,
)
from rocketsim_proto.records.unique_ids import UniqIds, hex_strings

__all__ = ["RecordError", "Records", "UniqIds", "encode", "encode_property_columns", "java_hash"]


class Records:
    """Whole records in one buffer, seen as columns.  A column is computed when it is first used, and then kept.

    `starts` are positions in `data`, in any order.  The fields before the body lie at fixed positions.  Before bodies,
    topics and properties are used, the lengths of all records are checked, and RecordError is raised if a length is
    wrong.
    """

    _found: Positions  # the columns that a compiled function has found, in the order of `kernels.Columns`

    def __init__(self, data: Bytes, starts: Positions, sizes: Positions) -> None:
        self.data = data
        self.starts = starts
        self.sizes = sizes

    @classmethod
    def walk(cls, data: Any, count: int | None = None, sizes: Any = None) -> "Records":
        """Finds the records that fill `data` exactly, one behind the other.

        `sizes` may be the sizes of a pull frame (little-endian uint32 bytes) or an array; they are checked against the
        records' own sizes.  Raises RecordError if the records do not end exactly at the end of the data, if a record is
        blank, or if there are not `count` records.
        """
        data = as_bytes(data)
        if isinstance(sizes, (bytes, bytearray, memoryview)):
            if memoryview(sizes).nbytes % 4:
                raise RecordError(0, f"{memoryview(sizes).nbytes} bytes of record sizes, four each")
            sizes = np.frombuffer(sizes, "<u4").astype(np.int64)
        elif sizes is not None:
            sizes = np.ascontiguousarray(sizes, np.int64)
        if kernels.compiled is not None:
            found = kernels.compiled.walk(data, sizes, -1 if count is None else count, heads=True)
            if found is not None:
                return cls.at(data, found)
        if sizes is None:
            sizes = walk_sizes(data)
        starts = np.cumsum(sizes) - sizes
        check_sizes(data, starts, sizes)
        if count is not None and count != len(starts):
            raise RecordError(0, f"{len(starts)} records, {count} announced")
        return cls(data, starts, sizes)

    @classmethod
    def at(cls, data: Bytes, columns: Positions) -> "Records":
        """Makes Records from what a compiled function has found: the records' starts and sizes, and the positions of
        their parts.
        """
        records = cls(data, columns[0], columns[1])
        records._found = columns
        return records

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: "slice | npt.NDArray[Any]") -> "Records":
        """Selects records by slice, index array or mask.  The result shares the buffer."""
        return Records(self.data, self.starts[rows], self.sizes[rows])

    # --- fixed fields -------------------------------------------------------------------------------------------------

    @cached_property
    def _heads(self) -> list[tuple[Any, npt.NDArray[np.void]]]:
        """The fields before the body: (rows, structured array) for each layout in the batch (usually one)."""
        heads = gather(self.data, self.starts, layout_of(0))
        host_flags = heads["sys_flag"] & HOST_FLAGS
        if not host_flags.any():
            return [(slice(None), heads)]
        parts: list[tuple[Any, npt.NDArray[np.void]]] = []
        for flags in np.unique(host_flags).tolist():
            form = layout_of(flags)
            rows = np.flatnonzero(host_flags == flags)
            small = rows[self.sizes[rows] < form.itemsize + MIN_SIZE - record.FIXED_SIZE_V4]
            if len(small):
                raise self._error(int(small[0]), "too small for its hosts")
            parts.append((rows, gather(self.data, self.starts[rows], form)))
        return parts

    def _field(self, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        found: Positions | None = self.__dict__.get("_found")
        if found is not None and len(found) > kernels.PLACES and name in kernels.HEADS:
            read: npt.NDArray[Any] = found[kernels.PLACES + kernels.HEADS.index(name)]
            return read.astype(dtype, copy=False)
        if kernels.compiled is not None:
            form, at = FIELDS[name]
            column = kernels.compiled.field(self.data, np.ascontiguousarray(self.starts), at, form.itemsize)
            if column is not None:
                same_size = column.itemsize == np.dtype(dtype).itemsize
                return column.view(dtype) if same_size else column.astype(dtype)
        if len(self._heads) == 1:
            return self._heads[0][1][name].astype(dtype)
        column = np.empty(len(self), dtype)
        for rows, heads in self._heads:
            column[rows] = heads[name]
        return column

    @cached_property
    def magic(self) -> npt.NDArray[np.uint32]:
        return self._field("magic", np.uint32)

    @cached_property
    def body_crc(self) -> npt.NDArray[np.uint32]:
        return self._field("body_crc", np.uint32)

    @cached_property
    def queue_id(self) -> npt.NDArray[np.int32]:
        return self._field("queue_id", np.int32)

    @cached_property
    def flag(self) -> npt.NDArray[np.int32]:
        return self._field("flag", np.int32)

    @cached_property
    def queue_offset(self) -> Positions:
        return self._field("queue_offset", np.int64)

    @cached_property
    def commit_log_offset(self) -> Positions:
        return self._field("commit_log_offset", np.int64)

    @cached_property
    def sys_flag(self) -> npt.NDArray[np.int32]:
        return self._field("sys_flag", np.int32)

    @cached_property
    def born_timestamp(self) -> Positions:
        return self._field("born_timestamp", np.int64)

    @cached_property
    def store_timestamp(self) -> Positions:
        return self._field("store_timestamp", np.int64)

    @cached_property
    def reconsume_times(self) -> npt.NDArray[np.int32]:
        return self._field("reconsume_times", np.int32)

    @cached_property
    def prepared_transaction_offset(self) -> Positions:
        return self._field("prepared_transaction_offset", np.int64)

    # --- where body, topic and properties lie -------------------------------------------------------------------------

    @cached_property
    def _places(self) -> tuple[Positions, Positions, Positions, Positions, Positions, Positions]:
        """Returns the (start, size) of body, topic and properties, after a check of magic numbers and all lengths.

        A length that is found wrong counts as 0 from then on, so that all records can be checked and the first bad
        record is named.
        """
        if "_found" in self.__dict__:
            return tuple(self._found[2 : kernels.PLACES])
        if kernels.compiled is not None:
            starts, sizes = np.ascontiguousarray(self.starts), np.ascontiguousarray(self.sizes)
            if (found := kernels.compiled.places(self.data, starts, sizes)) is not None:
                return tuple(found[2:])
        data, ends = self.data, self.starts + self.sizes
        version_2 = self.magic == MESSAGE_MAGIC_V2
        bad = ~(version_2 | (self.magic == MESSAGE_MAGIC))
        has_version_2 = bool(version_2.any())
        width = 1 + version_2.astype(np.int64) if has_version_2 else 1
        body_starts, body_sizes = self.starts + self._fixed_size, self._field("body_size", np.int64)
        over = (body_sizes < 0) | (body_starts + body_sizes + width + 2 > ends)
        bad |= over
        body_sizes[over] = 0
        body_ends = body_starts + body_sizes
        topic_starts = body_ends + width
        bad |= topic_starts + 2 > ends  # true only for a record of version 2 that is too small
        topic_sizes = data[body_ends].astype(np.int64)
        if has_version_2:
            low = data.take(body_ends + 1, mode="clip")
            topic_sizes = np.where(version_2, topic_sizes << 8 | low, topic_sizes)
        over = topic_starts + topic_sizes + 2 > ends
        bad |= over
        topic_sizes[over] = 0
        at = np.minimum(topic_starts + topic_sizes, len(data) - 2)
        properties_sizes = data[at].astype(np.int64) << 8 | data[at + 1]
        properties_starts = at + 2
        bad |= properties_starts + properties_sizes != ends
        if bad.any():
            raise self._error(int(bad.argmax()), "its lengths do not agree")
        return body_starts, body_sizes, topic_starts, topic_sizes, properties_starts, properties_sizes

    @property
    def _fixed_size(self) -> "int | Positions":
        """The size of the fields before the body."""
        if len(self._heads) == 1:
            return int(self._heads[0][1].dtype.itemsize)
        fixed = np.empty(len(self), np.int64)
        for rows, heads in self._heads:
            fixed[rows] = heads.dtype.itemsize
        return fixed

    def _error(self, row: int, reason: str) -> RecordError:
        """Makes the error for one bad record, with the text that `record.decode` gives."""
        at = int(self.starts[row])
        try:
            record.decode(self.data.data[: at + int(self.sizes[row])], at)
        except RecordError as error:
            return error
        return RecordError(at, reason)

    @property
    def body_start(self) -> Positions:
        return self._places[0]

    @property
    def body_size(self) -> Positions:
        return self._places[1]

    @property
    def topic_start(self) -> Positions:
        return self._places[2]

    @property
    def topic_size(self) -> Positions:
        return self._places[3]

    @property
    def properties_start(self) -> Positions:
        return self._places[4]

    @property
    def properties_size(self) -> Positions:
        return self._places[5]

    # --- checks -------------------------------------------------------------------------------------------------------

    def check(self, *, crc: bool = True) -> None:
        """Checks magic numbers, all lengths, and the bodies' checksums.  RecordError says which record is the first bad
        one.
        """
        _ = self._places
        if crc:
            wrong = slice_crcs(self.data, self.body_start, self.body_size) != self.body_crc
            if wrong.any():
                raise self._error(int(wrong.argmax()), "body CRC")

    def check_topic(self, topic: str) -> None:
        """Raises RecordError unless all records have exactly this topic."""
        other = self._other_topic(np.frombuffer(topic.encode(), np.uint8))
        if other.any():
            row = int(other.argmax())
            found = self[row : row + 1]._strings(self.topic_start[row : row + 1], self.topic_size[row : row + 1])
            raise RecordError(int(self.starts[row]), f"topic {found[0].as_py()!r}, {topic!r} expected")
        self._topic_codes = [topic], np.zeros(len(self), np.int64)

    def _other_topic(self, name: Bytes) -> npt.NDArray[np.bool_]:
        """Returns a mask of the records whose topic is not `name`."""
        other: npt.NDArray[np.bool_] = self.topic_size != len(name)
        if not other.any() and len(name):
            names = gather(self.data, self.topic_start, f"V{len(name)}").view(np.uint8)
            if names.tobytes() != name.tobytes() * len(self):  # comparing row by row takes ten times as long
                other = (names.reshape(len(self), len(name)) != name).any(axis=1)
        return other

    # --- columns of variable size -------------------------------------------------------------------------------------

    def topics(self) -> pa.StringArray:
        return self._strings(self.topic_start, self.topic_size)

    def topic_codes(self) -> tuple[list[str], Positions]:
        """Returns the different topics, and for each record the index of its topic among them."""
        return self._topic_codes

    @cached_property
    def _topic_codes(self) -> tuple[list[str], Positions]:
        if len(self):
            at, size = int(self.topic_start[0]), int(self.topic_size[0])
            name = self.data[at : at + size]
            if size and not self._other_topic(name).any():
                try:
                    return [name.tobytes().decode()], np.zeros(len(self), np.int64)
                except UnicodeDecodeError:
                    raise RecordError(int(self.starts[0]), "a topic that is not UTF-8") from None
        names = self.topics().dictionary_encode()
        return names.dictionary.to_pylist(), numpy_of(names.indices).astype(np.int64)

    def _strings(self, starts: Positions, sizes: Positions) -> pa.StringArray:
        array = binary_slices(self.data, starts, sizes)
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            for row, piece in enumerate(array.to_pylist()):
                try:
                    piece.decode()
                except UnicodeDecodeError:
                    raise RecordError(int(self.starts[row]), "a topic that is not UTF-8") from None
            raise

    def bodies(self) -> pa.BinaryArray:
        """Returns the bodies as stored.  A body that `sys_flag` marks as compressed is still compressed."""
        return binary_slices(self.data, self.body_start, self.body_size)

    def bodies_uncompressed(
        self, most_bytes: int, max_size: int = MAX_BODY_BYTES
    ) -> Iterator[tuple[slice, pa.BinaryArray]]:
        """Yields (rows, uncompressed bodies) for all rows in order, in pieces of at most `most_bytes`.

        A body that is larger than `most_bytes` is a piece of its own.  At most one body is uncompressed in advance.
        Raises RecordError for a body that cannot be uncompressed, or is larger than `max_size` once it is uncompressed.
        """
        compressed = np.flatnonzero(self.sys_flag & SYS_FLAG_COMPRESSED).tolist()
        # In the usual case all bodies are one piece, and are gathered without the arithmetic that follows.
        if len(self) and not compressed and int(self.body_size.sum()) <= most_bytes:
            yield slice(0, len(self)), self.bodies()
            return
        sizes = self.body_size.copy()
        stored_before = np.cumsum(sizes) - sizes
        unpacked: dict[int, bytes] = {}
        start = known = size = 0  # rows from `start` to `known`, of `size` bytes together, are in no piece yet

        def pieces() -> Iterator[slice]:
            """Yields each piece that is full.  A piece is full once the next row does not fit into it."""
            nonlocal start, size
            if size <= most_bytes:
                return
            ends, first, before = np.cumsum(sizes[start:known]), start, 0
            while True:
                end = max(start + 1, first + int(np.searchsorted(ends, before + most_bytes, side="right")))
                if end >= known:
                    break
                yield slice(start, end)
                start, before = end, int(ends[end - first - 1])
            size = int(ends[-1]) - before

        for row in compressed:
            unpacked[row] = self._unpacked(row, max_size)
            sizes[row] = len(unpacked[row])
            size += int(stored_before[row] - stored_before[known]) + len(unpacked[row])
            known = row + 1
            for rows in pieces():
                yield rows, self._bodies_with(rows, unpacked)
        size += int(sizes[known:].sum())
        known = len(self)
        for rows in pieces():
            yield rows, self._bodies_with(rows, unpacked)
        if start < known:
            rows = slice(start, known)
            yield rows, self._bodies_with(rows, unpacked)

    def _unpacked(self, row: int, max_size: int) -> bytes:
        start = int(self.body_start[row])
        body = self.data[start : start + int(self.body_size[row])].tobytes()
        try:
            return decompress(body, int(self.sys_flag[row]), max_size)
        except CompressionError as error:
            raise RecordError(int(self.starts[row]), str(error)) from error

    def _bodies_with(self, rows: slice, unpacked: dict[int, bytes]) -> pa.BinaryArray:
        """Returns the bodies of the rows, and takes the compressed ones from `unpacked`."""
        mine = [row for row in unpacked if row < rows.stop]
        bodies = [unpacked.pop(row) for row in mine]
        if len(mine) == rows.stop - rows.start:
            return binaries(bodies)
        stored = binary_slices(self.data, self.body_start[rows], self.body_size[rows])
        if not mine:
            return stored
        import pyarrow.compute as pc  # imported late, because it takes 60 ms of CPU, and most processes never get here

        mask = np.zeros(len(stored), np.bool_)
        mask[np.array(mine) - rows.start] = True
        return pc.replace_with_mask(stored, booleans(mask), binaries(bodies))

    @cached_property
    def _properties(self) -> Properties:
        return Properties(self.data, self.properties_start, self.properties_size)

    def property(self, name: str) -> pa.StringArray:
        """Returns one property as a column, with null for records that do not have the property."""
        return self._properties.column(name)

    def property_matrix(self) -> Matrix | None:
        """Returns all properties as a table, if all records have the same names and values of the same sizes."""
        return self._properties.matrix

    def property_names(self) -> frozenset[bytes]:
        """Returns the names of all properties that at least one record has."""
        return self._properties.names()

    def properties(self) -> pa.MapArray:
        return self._properties.maps()

    def born_hosts(self) -> pa.StringArray:
        return self._hosts("born_host")

    def store_hosts(self) -> pa.StringArray:
        return self._hosts("store_host")

    def _hosts(self, name: str) -> pa.StringArray:
        """Formats hosts as 1.2.3.4:port or [::1]:port.  A batch has few hosts, so each host is formatted only once."""
        if len(self._heads) > 1:
            return self._by_layout(lambda records: records._hosts(name))
        hosts = np.ascontiguousarray(self._heads[0][1][name])
        codes = fixed_binary(hosts.view(np.uint8), hosts.itemsize).dictionary_encode()
        return texts([_host_text(host) for host in codes.dictionary.to_pylist()]).take(codes.indices)

    def _by_layout(self, column: Callable[["Records"], pa.StringArray]) -> pa.StringArray:
        """Computes a column separately for the records of each layout, and joins the results in row order."""
        parts = [column(self[rows]) for rows, _ in self._heads]
        order = np.concatenate([rows for rows, _ in self._heads])
        return pa.concat_arrays(parts).take(numbers(np.argsort(order)))

    def message_ids(self) -> pa.StringArray:
        """Returns each record's UNIQ_KEY, or its offset message id if the record has no UNIQ_KEY."""
        ids = self.property(record.PROPERTY_UNIQ_KEY)
        missing = np.diff(offsets(ids)) == 0  # the id is null or empty
        if not missing.any():
            return ids
        import pyarrow.compute as pc  # imported late, because it takes 60 ms of CPU, and most processes never get here

        return pc.replace_with_mask(ids, booleans(missing), self[missing].offset_message_ids())

    def offset_message_ids(self) -> pa.StringArray:
        """Returns each record's store host and log offset in hex, as `record.offset_message_id` does."""
        if len(self._heads) > 1:
            return self._by_layout(Records.offset_message_ids)
        heads = self._heads[0][1]
        hosts = np.ascontiguousarray(heads["store_host"]).view(np.uint8).reshape(len(self), -1)
        offsets = np.ascontiguousarray(heads["commit_log_offset"]).view(np.uint8).reshape(len(self), 8)
        return hex_strings(np.hstack((hosts, offsets)))

    def tags_codes(self) -> npt.NDArray[np.int64]:
        """Returns Java's hash of each record's TAGS, which consume queues have, and 0 for records without TAGS."""
        return self._properties.java_hash(record.PROPERTY_TAGS)

    def index_hashes(
        self, topics: Positions, keys_before: npt.NDArray[np.int32], tags_before: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int32], Positions] | None:
        """Returns the hashes of keys and tags, and the record of each hash.  The docstring of the compiled
        `index_hashes` explains the hashes.

        Returns None without the compiled module, and if a key or tag is not ASCII.
        """
        if kernels.compiled is None:
            return None
        places = np.ascontiguousarray(self.properties_start), np.ascontiguousarray(self.properties_size)
        return kernels.compiled.index_hashes(self.data, *places, topics, keys_before, tags_before)

    # --- the broker's side --------------------------------------------------------------------------------------------

    def stamp(
        self, queue_offsets: npt.ArrayLike, commit_log_offsets: npt.ArrayLike, store_timestamp: int, store_host: bytes
    ) -> None:
        """Writes the broker's fields into the records in place, so `data` must be writable.  The broker's fields are
        queue offset, log offset, store timestamp and store host.
        """
        for rows, heads in self._heads:
            room = heads.dtype["store_host"].itemsize
            if room != len(store_host) and len(heads):
                raise RecordError(int(self.starts[rows][0]), f"{room} bytes for a store host of {len(store_host)}")
        for rows, heads in self._heads:
            for name, values in (("queue_offset", queue_offsets), ("commit_log_offset", commit_log_offsets)):
                offsets = np.asarray(values, np.int64)
                heads[name] = offsets[rows] if offsets.ndim else offsets
            heads["store_timestamp"] = store_timestamp
            heads["store_host"] = np.void(store_host)
            width = heads.dtype.itemsize
            windows(self.data, width)[self.starts[rows]] = heads.view(f"V{width}")
        self.forget_stamp()

    def forget_stamp(self) -> None:
        """Forgets the columns that a stamp has changed."""
        if "_found" in self.__dict__:
            self._found = self._found[: kernels.PLACES]
        for column in ("_heads", "queue_offset", "commit_log_offset", "store_timestamp"):
            self.__dict__.pop(column, None)

    def take_bytes(self) -> bytes:
        """Returns a copy of the records, back to back."""
        return bytes(self.view_bytes())

    def view_bytes(self) -> memoryview:
        """Returns the records back to back, without a copy if they lie back to back in the buffer."""
        if not len(self):
            return memoryview(b"")
        if (self.starts[1:] == self.starts[:-1] + self.sizes[:-1]).all():
            return self.data.data[int(self.starts[0]) : int(self.starts[-1] + self.sizes[-1])]
        return memoryview(binary_slices(self.data, self.starts, self.sizes).buffers()[2])


def _host_text(host: bytes) -> str:
    address, port = record.decode_host(host)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
