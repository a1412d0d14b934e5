"""Makes the message bodies that RocketSim and all peers send: a number of 20 digits, and then filler.

0        20                     size
| number | xxxxxxxxxxxxxxxxxxxx |
"""

import zlib
from typing import Any

import numpy as np
import pyarrow as pa

DIGITS = 20
RECORD_CRC = 0x7FFFFFFF  # the bits of a CRC-32 that RocketMQ keeps in a record


def bodies(start: int, count: int, size: int) -> Any:
    """Makes an Arrow array of `count` bodies, whose numbers begin with `start`."""
    if size < DIGITS:
        raise ValueError(f"bodies of {size} bytes have no room for a number")
    filled = np.full((count, size), ord("x"), np.uint8)
    numbers = np.arange(start, start + count)
    for column in range(DIGITS - 1, -1, -1):
        numbers, digit = np.divmod(numbers, 10)
        filled[:, column] = digit + ord("0")
    offsets = np.arange(count + 1, dtype=np.int32) * size
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(filled)])


def checksum(start: int, count: int, size: int, mask: int = 0xFFFFFFFF) -> int:
    """Returns the sum of the bodies' CRC-32 values, which does not depend on their order.

    The stored records keep only 31 bits of each CRC, which `mask` selects.
    """
    step = 100_000
    total = 0
    for at in range(start, start + count, step):
        total += sum(zlib.crc32(body) & mask for body in bodies(at, min(step, start + count - at), size).to_pylist())
    return total


def spark_expression(size: int, name: str) -> str:
    """Returns a Spark SQL expression that makes the same bodies as `bodies`, numbered by the column `id`."""
    return f"cast(concat(lpad(cast(id as string), {DIGITS}, '0'), repeat('x', {size - DIGITS})) as binary) as {name}"
