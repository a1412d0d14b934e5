"""Outgoing messages as one frame of record bytes.  Pure.

A few messages are packed one by one, which takes microseconds; many go column by column, which takes none each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rocketsim_proto import columnar, record

from rocketsim_client.transport import Outgoing

ONE_BY_ONE = 8


def encode(outgoing: Outgoing) -> tuple[bytes, Sequence[int]]:
    """(records back to back, their sizes)."""
    if len(outgoing) > ONE_BY_ONE or not isinstance(outgoing.bodies, list):
        records, sizes = columnar.encode(
            outgoing.topic,
            outgoing.queue_ids,
            outgoing.bodies,
            outgoing.properties,
            born_timestamp=outgoing.born_timestamp,
            born_host=BORN_HOST,
            flags=outgoing.flags,
            sys_flags=outgoing.sys_flags,
        )
        return bytes(records), sizes.tolist()
    frames = [
        _encode_one(
            outgoing, body, properties, int(queue_id), _nth(outgoing.flags, index), _nth(outgoing.sys_flags, index)
        )
        for index, (queue_id, body, properties) in enumerate(
            zip(outgoing.queue_ids, outgoing.bodies, outgoing.properties, strict=True)
        )
    ]
    return b"".join(frames), [len(frame) for frame in frames]


# A client behind several addresses cannot know which one the broker sees; RocketMQ has the broker fill this in.
BORN_HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
_HOSTS = BORN_HOST + bytes(8) + bytes(8)  # born host, store time, store host
_NO_TAIL = bytes(12)  # reconsume times, prepared transaction offset


def _encode_one(outgoing: Outgoing, body: bytes, properties: bytes, queue_id: int, flag: int, sys_flag: int) -> bytes:
    topic = outgoing.topic.encode()
    size = record.MIN_SIZE + len(body) + len(topic) + len(properties)
    head = record.HEAD.pack(
        size,
        record.MESSAGE_MAGIC,
        record.body_crc(body),
        queue_id,
        flag,
        0,
        0,
        sys_flag,
        outgoing.born_timestamp,
    )
    return b"".join(
        (
            head,
            _HOSTS,
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
