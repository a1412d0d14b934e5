"""Received messages, whose fields are decoded at their first use.  Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, overload

import pyarrow as pa
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.compression import CompressionError, decompress
from rocketsim_proto.records.record import Record, RecordError

from rocketsim_client.errors import BadAnswer
from rocketsim_client.model import MessageQueue


class MessageView:
    """One received message.  A field is decoded when it is read."""

    __slots__ = ("_body_end", "_body_start", "_data", "_record", "_start", "_sys_flag", "broker_name")

    def __init__(
        self, data: bytes, start: int, body_start: int, body_size: int, sys_flag: int, broker_name: str
    ) -> None:
        self._data = data
        self._start = start
        self._body_start = body_start
        self._body_end = body_start + body_size
        self._sys_flag = sys_flag
        self.broker_name: str = broker_name
        self._record: Record | None = None

    @property
    def record(self) -> Record:
        """The decoded record, with all its fields as they are in the broker's log."""
        if self._record is None:
            try:
                self._record = record.decode(self._data, self._start, check_crc=False)
            except RecordError as error:
                raise BadAnswer(f"a message of broker {self.broker_name} cannot be decoded: {error}") from error
        return self._record

    @property
    def topic(self) -> str:
        """The topic that the record names."""
        return self.record.topic

    @property
    def queue_id(self) -> int:
        """The id of the queue, counted from 0 at each broker name."""
        return self.record.queue_id

    @property
    def queue_offset(self) -> int:
        """The message's position in its queue, counted from 0."""
        return self.record.queue_offset

    @property
    def message_queue(self) -> MessageQueue:
        """The topic, broker name and queue id together."""
        return MessageQueue(self.record.topic, self.broker_name, self.record.queue_id)

    @property
    def body(self) -> bytes:
        """The body as it was sent, decompressed if the producer compressed it."""
        body = self._data[self._body_start : self._body_end]
        if not self._sys_flag & record.SYS_FLAG_COMPRESSED:
            return body
        try:
            return decompress(body, self._sys_flag)
        except CompressionError as error:
            raise BadAnswer(f"the body of message {self.msg_id} cannot be unpacked: {error}") from error

    def json(self) -> Any:
        """Parses the body as JSON.  Raises ValueError, with topic and message id, if the body is not JSON."""
        body = self.body
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"the body of message {self.msg_id} of topic {self.topic!r} is not JSON: {error}; `body` has its bytes"
            ) from error

    @property
    def msg_id(self) -> str:
        """The id that the producer gave the message (UNIQ_KEY), which all attempts of a send share.  For a message
        without UNIQ_KEY, this is the offset message id."""
        return self.record.message_id

    @property
    def offset_msg_id(self) -> str:
        """RocketMQ's other id, made from the broker's address and the position in its log."""
        return record.offset_message_id(self.record.store_host, self.record.commit_log_offset)

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, the caller's own and RocketMQ's."""
        return self.record.properties

    @property
    def tags(self) -> str | None:
        """RocketMQ's property TAGS, or None if the message has none."""
        return self.record.properties.get(record.PROPERTY_TAGS)

    @property
    def keys(self) -> str | None:
        """RocketMQ's property KEYS, separated by spaces, or None if the message has none."""
        return self.record.properties.get(record.PROPERTY_KEYS)

    @property
    def message_group(self) -> str | None:
        """RocketMQ 4's sharding key.  Messages of one group are in one queue, in the order of their sends."""
        return self.record.properties.get(record.PROPERTY_SHARDING_KEY)

    @property
    def sharding_key(self) -> str | None:
        """An older name of `message_group`."""
        return self.message_group

    @property
    def flag(self) -> int:
        """The number that the producer has set for its own use."""
        return self.record.flag

    @property
    def born_timestamp(self) -> int:
        """When the producer made the message, by the producer's clock, in ms since 1970."""
        return self.record.born_timestamp

    @property
    def store_timestamp(self) -> int:
        """When the master stored the message, by the master's clock, in ms since 1970."""
        return self.record.store_timestamp

    @property
    def commit_log_offset(self) -> int:
        """Where the record begins in the broker's log, in bytes."""
        return self.record.commit_log_offset

    @property
    def reconsume_times(self) -> int:
        """How often the message was delivered before.  The count is 0 except in retry and dead-letter topics."""
        return self.record.reconsume_times

    @property
    def born_host(self) -> tuple[str, int]:
        """The address and port of the producer."""
        return record.decode_host(self.record.born_host)

    @property
    def store_host(self) -> tuple[str, int]:
        """The address and port of the master that stored the message."""
        return record.decode_host(self.record.store_host)

    def __repr__(self) -> str:
        where = f"{self.topic}/{self.broker_name}/{self.queue_id}@{self.queue_offset}"
        return f"MessageView({where}, {self.msg_id}, {self._body_end - self._body_start} bytes)"


class FoundMessages(list[MessageView]):
    """The messages that a search found.  If `more` is True, the search has not looked at all messages, so older
    messages may exist."""

    def __init__(self, messages: Iterable[MessageView], *, more: bool) -> None:
        super().__init__(messages)
        self.more = more


class Messages(Sequence[MessageView]):
    """Received messages.  The messages of a pull are in queue order.  `records` has the fields of these messages as
    numpy columns."""

    def __init__(self, records: Records, data: bytes, broker_name: str) -> None:
        self.records = records
        self._data = data
        self._broker_name = broker_name

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns the messages as a table with the columns of `PullConsumer.read`.  Compressed bodies are unpacked."""
        from rocketsim_client import arrow

        schema = arrow.schema_of(columns)
        topic = self[0].topic if self else ""
        queues = arrow.queues_in(self.records, topic, self._broker_name)
        try:
            return pa.Table.from_batches(arrow.RecordDecoder(schema).batches(self.records, queues, 0), schema)
        except RecordError as error:
            raise BadAnswer(f"messages of broker {self._broker_name} cannot be decoded: {error}") from error

    @cached_property
    def _views(self) -> list[MessageView]:
        records = self.records
        return list(
            map(
                MessageView,
                repeat(self._data),
                records.starts.tolist(),
                records.body_start.tolist(),
                records.body_size.tolist(),
                records.sys_flag.tolist(),
                repeat(self._broker_name),
            )
        )

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[MessageView]:
        return iter(self._views)

    @overload
    def __getitem__(self, index: int) -> MessageView: ...
    @overload
    def __getitem__(self, index: slice) -> list[MessageView]: ...
    def __getitem__(self, index: int | slice) -> MessageView | list[MessageView]:
        return self._views[index]

    def __repr__(self) -> str:
        return f"Messages({len(self)} of broker {self._broker_name})"


def no_messages(broker_name: str) -> Messages:
    return Messages(Records.walk(b""), b"", broker_name)
