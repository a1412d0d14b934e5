"""Outgoing messages as one frame of record bytes.  Pure.

A few messages are packed one by one, which takes microseconds; many go column by column, which takes none each, but as
long to begin with as some fifty messages.
"""

from typing import Any

import numpy as np
from rocketsim_proto.records import columnar, record

from rocketsim_client.transport.sends import Outgoing

ONE_BY_ONE = 64


def encode(outgoing: Outgoing, born_ipv4: bytes) -> tuple[bytes | memoryview, Any]:
    """(records back to back, their sizes)."""
    born_host = born_ipv4 + _NO_PORT
    if len(outgoing) > ONE_BY_ONE or not isinstance(outgoing.bodies, list):
        records, sizes = columnar.encode(
            outgoing.topic,
            outgoing.queue_ids,
            outgoing.bodies,
            outgoing.properties,
            born_timestamp=outgoing.born_timestamp,
            born_host=born_host,
            flags=outgoing.flags,
            sys_flags=outgoing.sys_flags,
        )
        return records, sizes
    frames = [
        _encode_one(
            outgoing.topic.encode(),
            body,
            properties,
            int(queue_id),
            _nth(outgoing.flags, index),
            _nth(outgoing.sys_flags, index),
            outgoing.born_timestamp,
            born_host,
        )
        for index, (queue_id, body, properties) in enumerate(
            zip(outgoing.queue_ids, outgoing.bodies, outgoing.properties, strict=True)
        )
    ]
    return b"".join(frames), [len(frame) for frame in frames]


_NO_PORT = bytes(4)  # Each connection has another one; RocketMQ's brokers see it, we do not.
_FOR_BROKER = bytes(8 + 8)  # store timestamp, store host
_NO_TAIL = bytes(12)  # reconsume times, prepared transaction offset


def _encode_one(
    topic: bytes,
    body: bytes,
    properties: bytes,
    queue_id: int,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
) -> bytes:
    """`record.encode` for one who has no Record, and properties that are encoded already."""
    size = record.MIN_SIZE + len(body) + len(topic) + len(properties)
    crc = record.body_crc(body)
    return b"".join(
        (
            record.HEAD.pack(size, record.MESSAGE_MAGIC, crc, queue_id, flag, 0, 0, sys_flag, born_timestamp),
            born_host,
            _FOR_BROKER,
            _NO_TAIL,
            len(body).to_bytes(4, "big"),
            body,
            bytes((len(topic),)),
            topic,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    )


def _nth(values: Any, index: int) -> int:
    return int(values) if isinstance(values, int | np.integer) else int(values[index])
