"""Encodes a batch of messages of one topic into record bytes.  Pure.

Queue offset, log offset, store timestamp and store host are zero, because the broker fills in these four fields
(`Records.stamp`).
"""

from array import array
from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal import isal_zlib

from rocketsim_proto.records import kernels
from rocketsim_proto.records.layout import HOST_FLAGS, layout
from rocketsim_proto.records.property_columns import joined
from rocketsim_proto.records.record import (
    MAX_PROPERTIES_SIZE,
    MAX_TOPIC_SIZE,
    MESSAGE_MAGIC,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    RecordError,
)
from rocketsim_proto.records.slices import (
    Bytes,
    Positions,
    binary_array,
    binary_slices,
    fixed_binary,
    flat_bytes,
    gather,
    offsets,
)

CRC_MASK = 0x7FFFFFFF  # RocketMQ stores CRC-32 without its top bit
_SMALL = 256  # average bytes per body, below which two copies in C are cheaper than a slice in Python


def _crcs(bodies: Iterable[bytes | memoryview]) -> npt.NDArray[np.uint32]:
    """Computes the checksum of each body in a loop, because no library computes many checksums in one call.

    ISA-L's CRC-32 gives the same result as zlib's and is three to five times faster.  An `array` is used, because it
    takes Python numbers faster than numpy does.
    """
    return np.array(array("I", map(isal_zlib.crc32, bodies)), np.uint32) & np.uint32(CRC_MASK)


def slice_crcs(data: Bytes, starts: Positions, sizes: Positions) -> npt.NDArray[np.uint32]:
    """Computes the checksums of bodies that lie in a buffer.  The caller must have checked that the bodies are inside
    the buffer.

    Without the compiled module, a slice in Python costs about 150 ns, whatever its size.  Copying bodies (into an
    array, then into bytes objects) is cheaper for small bodies, and cheapest if all have the same size.
    """
    if kernels.compiled is not None:
        return kernels.compiled.crcs(data, np.ascontiguousarray(starts), np.ascontiguousarray(sizes))
    size = int(sizes[0]) if len(sizes) else 0
    if 0 < size < _SMALL and (sizes == size).all():
        return _crcs(gather(data, starts, f"V{size}").tolist())
    if int(sizes.sum()) < _SMALL * len(sizes):
        return _crcs(binary_slices(data, starts, sizes).to_pylist())
    view = data.data
    bounds = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    return _crcs(view[start:end] for start, end in bounds)


def encode(
    topic: str,
    queue_ids: npt.ArrayLike,
    bodies: Any,
    properties: Any,
    *,
    born_timestamp: npt.ArrayLike,
    born_host: bytes,
    store_host_v6: bool = False,
    flags: npt.ArrayLike = 0,
    sys_flags: npt.ArrayLike = 0,
) -> tuple[memoryview, npt.NDArray[np.uint32]]:
    """Returns the records back to back, and their sizes.

    `bodies` and `properties` are binary arrays or lists of bytes of the same length; the properties are already encoded
    (see `encode_property_columns`).  All arguments after `properties` are arrays, or one value for all records.  Raises
    RecordError, whose `at` is the index of the row, if a topic or properties are too long for the format.
    """
    if kernels.compiled is not None:
        done = kernels.compiled.encode(
            topic.encode(),
            _column(queue_ids, np.int32),
            _pieces(bodies),
            _pieces(properties),
            _column(born_timestamp, np.int64),
            born_host,
            store_host_v6,
            _column(flags, np.int32),
            _column(sys_flags, np.int32),
        )
        if done is not None:
            return done
    if not isinstance(bodies, list) or not isinstance(properties, list) or None in bodies or None in properties:
        bodies, properties = binary_array(bodies), binary_array(properties)
    if len(bodies) != len(properties):
        raise ValueError(f"{len(bodies)} bodies, {len(properties)} properties")
    name = topic.encode()
    if not 1 <= len(name) <= MAX_TOPIC_SIZE:
        raise RecordError(0, f"topic of {len(name)} bytes; 1 to {MAX_TOPIC_SIZE} are possible")
    count, body_sizes, properties_sizes = len(bodies), _sizes(bodies), _sizes(properties)
    if count and properties_sizes.max() > MAX_PROPERTIES_SIZE:
        row = int(properties_sizes.argmax())
        raise RecordError(row, f"properties of {properties_sizes[row]} bytes; {MAX_PROPERTIES_SIZE} at most")

    form = layout(born_v6=len(born_host) == 20, store_v6=store_host_v6)
    host_flags = SYS_FLAG_BORN_HOST_V6 if len(born_host) == 20 else 0
    host_flags |= SYS_FLAG_STORE_HOST_V6 if store_host_v6 else 0
    heads = np.zeros(count, form)
    sizes = form.itemsize + body_sizes + 1 + len(name) + 2 + properties_sizes
    heads["size"] = sizes
    heads["magic"] = MESSAGE_MAGIC
    heads["body_crc"] = _crcs(bodies if isinstance(bodies, list) else bodies.to_pylist())
    heads["queue_id"] = queue_ids
    heads["flag"] = flags
    heads["sys_flag"] = np.asarray(sys_flags) & ~HOST_FLAGS | host_flags
    heads["born_timestamp"] = born_timestamp
    heads["born_host"] = np.void(born_host)
    heads["body_size"] = body_sizes

    topic_size_and_name, sizes_of_properties = bytes((len(name),)) + name, properties_sizes.astype(">u2")
    if isinstance(bodies, list):
        pieces = heads.view(f"V{form.itemsize}").tolist(), sizes_of_properties.view("V2").tolist()
        rows = zip(pieces[0], bodies, repeat(topic_size_and_name), pieces[1], properties, strict=False)
        return memoryview(b"".join(chain.from_iterable(rows))), sizes.astype(np.uint32)
    between: list[bytes | pa.BinaryArray]
    if count and (properties_sizes == properties_sizes[0]).all():
        between = [topic_size_and_name + sizes_of_properties[:1].tobytes()]
    else:
        between = [topic_size_and_name, fixed_binary(sizes_of_properties.view(np.uint8), 2)]
    records = joined([fixed_binary(heads.view(np.uint8), form.itemsize), bodies, *between, properties])
    return flat_bytes(records).data, sizes.astype(np.uint32)


def _sizes(values: "list[bytes] | pa.BinaryArray") -> Positions:
    if isinstance(values, list):
        return np.fromiter(map(len, values), np.int64, len(values))
    return np.diff(offsets(values)).astype(np.int64)


def _column(values: npt.ArrayLike, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Makes a column of the values.  A single value for all records becomes a column with one element."""
    return np.ascontiguousarray(values, dtype)


def _pieces(values: Any) -> Any:
    """Converts a binary array to (offsets, bytes), which the compiled `encode` takes.  A list of bytes is returned
    unchanged.
    """
    if isinstance(values, list):
        return values
    array = binary_array(values)
    data = array.buffers()[2] if len(array) else None
    return offsets(array), b"" if data is None else data
