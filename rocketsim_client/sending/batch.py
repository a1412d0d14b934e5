"""A batch of messages as columns, which a transport sends.  Pure.

A batch keeps its message ids over all attempts and brokers.  When the batch moves to another broker, only its queues
change.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import lz4.frame
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zstandard
from rocketsim_proto.records import record
from rocketsim_proto.records.arrays import numbers
from rocketsim_proto.records.columnar import encode_property_columns

from rocketsim_client.model import Message, MessageQueue
from rocketsim_client.transport.sends import Outgoing

COMPRESSION: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "ZLIB": (0x300, lambda body: zlib.compress(body, 5)),  # RocketMQ's default type and level
    "LZ4": (0x100, lz4.frame.compress),
    "ZSTD": (0x200, lambda body: zstandard.ZstdCompressor().compress(body)),
}


class OutgoingBatch:
    """Columns of messages for one broker name.  With `may_move` the batch may also go to another broker's queues.  A
    batch with `group_hashes` may not move, but `columns.cut_by_group` cuts it again when the topic's queues have
    changed."""

    def __init__(
        self,
        topic: str,
        broker_name: str,
        queue_ids: Any,
        bodies: Any,
        properties: Any,
        msg_ids: Sequence[str] | pa.StringArray,
        born_timestamp: Any,
        *,
        flags: Any = 0,
        sys_flags: Any = 0,
        may_move: bool = True,
        group_hashes: npt.NDArray[np.int64] | None = None,
        rows: npt.NDArray[np.int32] | None = None,
    ) -> None:
        self.topic = topic
        self.broker_name = broker_name
        self.queue_ids = queue_ids
        self.bodies = bodies
        self.properties = properties
        self.msg_ids = msg_ids
        self.born_timestamp = born_timestamp
        self.flags = flags
        self.sys_flags = sys_flags
        self.may_move = may_move
        self.rows = rows  # the numbers that the rows have in the caller's columns, for errors
        self.group_hashes = group_hashes  # `selection.group_hash` of each row's message group, which chooses its queue
        # True: a batch that moves goes to a single queue again, so that its offsets are consecutive.
        self.one_queue = False

    def __len__(self) -> int:
        return len(self.bodies)

    def outgoing(self) -> Outgoing:
        return Outgoing(
            self.topic, self.queue_ids, self.bodies, self.properties, self.born_timestamp, self.flags, self.sys_flags
        )

    def move(self, queues: Sequence[MessageQueue]) -> None:
        """Spreads the rows over these queues, all of one broker, in equal parts."""
        assert self.may_move and queues
        self.broker_name = queues[0].broker_name
        ids = [queue.queue_id for queue in queues]
        self.queue_ids = spread(ids[:1] if self.one_queue else ids, len(self))

    def slice(self, start: int, end: int) -> "OutgoingBatch":
        return self._selected(lambda values: values[start:end])

    def take(self, rows: npt.NDArray[np.int64]) -> "OutgoingBatch":
        """Returns a batch of these rows.  The method works only for a batch of columns, because rows are taken from
        arrays."""
        return self._selected(
            lambda values: values.take(numbers(rows)) if isinstance(values, pa.Array) else values[rows]
        )

    def _selected(self, pick: Callable[[Any], Any]) -> "OutgoingBatch":
        return OutgoingBatch(
            self.topic,
            self.broker_name,
            pick(self.queue_ids),
            pick(self.bodies),
            pick(self.properties),
            pick(self.msg_ids),
            self.born_timestamp,
            flags=self.flags if isinstance(self.flags, int) else pick(self.flags),
            sys_flags=self.sys_flags if isinstance(self.sys_flags, int) else pick(self.sys_flags),
            may_move=self.may_move,
            group_hashes=None if self.group_hashes is None else pick(self.group_hashes),
            rows=None if self.rows is None else pick(self.rows),
        )


def spread(queue_ids: Sequence[int], count: int) -> npt.NDArray[np.int32]:
    """Spreads `count` rows over the queues, and returns the queue id of each row.  The rows of a queue stay together,
    because they are read faster when they are neighbours in the log."""
    return np.asarray(queue_ids, np.int32)[np.arange(count) * len(queue_ids) // max(count, 1)]


def of_messages(
    messages: Sequence[Message],
    queues: Sequence[MessageQueue],
    msg_ids: Sequence[str],
    born_timestamp: int,
    *,
    may_move: bool,
    compress_over: int,
    compression: str,
    message_groups: Sequence[str | None] | None = None,
) -> OutgoingBatch:
    """Makes a batch of messages that share one topic and one WAIT flag, for queues of one broker."""
    bodies = [message.body for message in messages]
    sys_flags: Any = 0
    if max(map(len, bodies)) >= compress_over:
        bodies, sys_flags = compressed(bodies, compress_over, compression)
    flags = [message.flag for message in messages]
    groups = message_groups or [None] * len(messages)
    return OutgoingBatch(
        messages[0].topic,
        queues[0].broker_name,
        [queue.queue_id for queue in queues],
        bodies,
        list(map(property_bytes, messages, msg_ids, groups)),
        msg_ids,
        born_timestamp,
        flags=flags if any(flags) else 0,
        sys_flags=sys_flags,
        may_move=may_move,
    )


def compressed(bodies: list[bytes], over: int, compression: str) -> tuple[list[bytes], list[int]]:
    """Compresses the bodies of at least `over` bytes, and returns all bodies, with the system flags that say which
    are compressed.  A body that would not get smaller stays as it is, because a broker may refuse a longer one."""
    flag, compress = COMPRESSION[compression]
    smaller = [packed if len(body) >= over and len(packed := compress(body)) < len(body) else None for body in bodies]
    flags = [0 if packed is None else flag | record.SYS_FLAG_COMPRESSED for packed in smaller]
    return [body if packed is None else packed for body, packed in zip(bodies, smaller, strict=True)], flags


def property_bytes(message: Message, msg_id: str, message_group: str | None = None) -> bytes:
    """Encodes the properties in the order TAGS, KEYS, id, others.  TAGS come first, because a broker looks for them at
    the beginning."""
    text = f"UNIQ_KEY\x01{msg_id}\x02"
    if message.keys:
        text = f"KEYS\x01{message.keys}\x02{text}"
    if message.tags:
        text = f"TAGS\x01{message.tags}\x02{text}"
    if message_group is not None:
        text = f"{text}{record.PROPERTY_SHARDING_KEY}\x01{message_group}\x02"
    if message.delay_level:
        text = f"{text}{record.PROPERTY_DELAY}\x01{message.delay_level}\x02"
    if message.deliver_ms:
        text = f"{text}{record.PROPERTY_DELIVER_MS}\x01{message.deliver_ms}\x02"
    if not message.wait_store_msg_ok:
        text = f"{text}WAIT\x01false\x02"
    data = text.encode()
    return data + record.encode_properties(message.properties) if message.properties else data


def column_properties(
    msg_ids: pa.StringArray,
    tags: pa.StringArray | None,
    keys: pa.StringArray | None,
    message_groups: pa.StringArray | None,
    properties: pa.MapArray | None,
) -> pa.BinaryArray:
    columns = {
        record.PROPERTY_TAGS: tags,
        record.PROPERTY_KEYS: keys,
        record.PROPERTY_UNIQ_KEY: msg_ids,
        record.PROPERTY_SHARDING_KEY: message_groups,
    }
    present = {name: column for name, column in columns.items() if column is not None}
    return encode_property_columns(present, properties)
