"""The values that callers use: messages, queues and results.  This module uses neither gRPC nor generated code.

A queue offset counts the messages of one queue.  An offset to commit or to pull from is the offset of the next message
to read.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, IntEnum
from typing import NamedTuple, overload

from rocketsim_proto.model import NO_EPOCH as NO_EPOCH
from rocketsim_proto.model import GetMessageStatus as GetMessageStatus
from rocketsim_proto.model import LogEpoch as LogEpoch
from rocketsim_proto.records import record
from rocketsim_proto.reserved import MASTER_ID as MASTER_ID

from rocketsim_client.errors import MessageIllegal


class SendStatus(IntEnum):
    """RocketMQ's SendStatus (table D4), with the numbers of broker.proto.  With every status but SPOOLED the message is
    stored on the master.  SPOOLED means that the message is on this machine's disk and, as far as the producer knows,
    on no broker."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SPOOLED = 100  # never from a broker


class CommitStatus(IntEnum):
    """Says which brokers have stored a change.  A change is a committed offset, an ack, a nack, or a change by an
    operator.  The numbers are those of message.proto.

    A change for which a SYNC_MASTER has answered `COMMIT_OK` is on one of its slaves, too, and survives the loss of one
    broker as long as the slaves of the broker name answer.  A change for which an ASYNC_MASTER has answered `COMMIT_OK`
    may be lost with the master.
    """

    UNSAID = 0  # the broker reported no status, or one that this client does not know
    COMMIT_OK = 1  # a SYNC_MASTER and one of its slaves have the change, or an ASYNC_MASTER has it
    FLUSH_SLAVE_TIMEOUT = 2  # the master has the change, and its slave did not acknowledge in time
    SLAVE_NOT_AVAILABLE = 3  # the master has the change, and had no slave
    MASTER_NOT_AVAILABLE = 4  # the slave that answered has the change, and will pass it on to its master
    # The master has the change, but did not flush its log in time; a committed offset never gets this status.
    FLUSH_DISK_TIMEOUT = 5


def commit_status(number: int) -> CommitStatus:
    """Returns the status with this number.  A status that only newer brokers know becomes UNSAID, and not OK."""
    try:
        return CommitStatus(number)
    except ValueError:
        return CommitStatus.UNSAID


def worst(statuses: Iterable[CommitStatus]) -> CommitStatus:
    """Returns the least safe of several statuses, and `COMMIT_OK` if the list is empty."""
    return max((one for one in statuses if one is not CommitStatus.COMMIT_OK), default=CommitStatus.COMMIT_OK)


class PullStatus(Enum):
    """RocketMQ's PullStatus (table D3)."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


class MessageQueue(NamedTuple):
    """One queue of a topic.  A topic has queues on several broker names.  The value is ordered, hashable, and small
    when pickled."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


class Message:
    """A message to send.  `keys` may be several keys, separated by spaces or given as a list.  `properties` are the
    caller's own properties, whose names and values are texts that are not empty.  A property name to which RocketMQ
    gives a meaning is not allowed.

    The message is delivered after a delay if `delay_level` is set (1 to 18 with RocketMQ's levels: 1 s to 2 h), or at
    the time `deliver_at` (a datetime or seconds since 1970).  A message cannot have both `delay_level` and
    `deliver_at`.  Messages with the same `message_group` go to one queue, in the order of their sends.  `Producer.send`
    says what delivery times and message groups promise.  `Producer.send` also takes a delivery time and a message group
    as arguments, for messages without their own.
    """

    __slots__ = (
        "body",
        "delay_level",
        "deliver_at",
        "deliver_ms",
        "flag",
        "keys",
        "message_group",
        "properties",
        "tags",
        "topic",
        "wait_store_msg_ok",
    )

    def __init__(
        self,
        topic: str,
        body: bytes,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        flag: int = 0,
        delay_level: int = 0,
        wait_store_msg_ok: bool = True,
        deliver_at: datetime | float | None = None,
        message_group: str | None = None,
    ) -> None:
        self.topic: str = topic
        self.body: bytes = body
        self.tags: str | None = tags
        self.keys: str | None = keys if keys is None or isinstance(keys, str) else " ".join(keys)
        self.properties: Mapping[str, str] | None = properties
        self.flag: int = flag
        self.delay_level: int = delay_level
        self.deliver_at: datetime | float | None = deliver_at
        # `deliver_at` in milliseconds since 1970, which the producer sets in its own copy of the message.
        self.deliver_ms: int = 0
        self.message_group: str | None = message_group
        self.wait_store_msg_ok: bool = wait_store_msg_ok

    @classmethod
    def json(
        cls,
        topic: str,
        value: object,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        flag: int = 0,
        delay_level: int = 0,
        wait_store_msg_ok: bool = True,
        deliver_at: datetime | float | None = None,
        message_group: str | None = None,
    ) -> "Message":
        """Makes a message whose body is the value as JSON in UTF-8.  `MessageView.json` reads the value back.  Raises
        MessageIllegal if JSON cannot express the value, for example a datetime or NaN."""
        try:
            body = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise MessageIllegal(f"topic {topic!r}: the value is not JSON: {error}; convert it first") from error
        return cls(
            topic,
            body,
            tags,
            keys,
            properties,
            flag=flag,
            delay_level=delay_level,
            wait_store_msg_ok=wait_store_msg_ok,
            deliver_at=deliver_at,
            message_group=message_group,
        )

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {len(self.body)} bytes, tags={self.tags!r}, keys={self.keys!r})"


class SendResult:
    """The result of sending one message.  With a `send_status` other than SEND_OK the message is stored, but less
    safely than its broker's role asks for.  A SPOOLED message (only with a spool) has the offset -1, and has no queue
    unless the caller named one."""

    __slots__ = ("_commit_log_offset", "_store_host", "message_queue", "msg_id", "queue_offset", "send_status")

    def __init__(
        self,
        send_status: SendStatus,
        msg_id: str,
        message_queue: MessageQueue,
        queue_offset: int,
        store_host: bytes = b"",
        commit_log_offset: int = -1,
    ) -> None:
        self.send_status: SendStatus = send_status
        self.msg_id: str = msg_id
        self.message_queue: MessageQueue = message_queue
        self.queue_offset: int = queue_offset
        self._store_host = store_host
        self._commit_log_offset = commit_log_offset

    @property
    def offset_msg_id(self) -> str:
        """RocketMQ's other id, which says where the broker has stored the message.  The id is empty if the broker did
        not tell where the message is."""
        if self._commit_log_offset < 0 or not self._store_host:
            return ""
        return record.offset_message_id(self._store_host, self._commit_log_offset)

    def __repr__(self) -> str:
        queue = self.message_queue
        where = f"{queue.topic}/{queue.broker_name}/{queue.queue_id}@{self.queue_offset}"
        return f"SendResult({self.send_status.name}, {self.msg_id}, {where})"


class SendResults(Sequence[SendResult]):
    """The results of a batch, one for each message.  A result is made when it is first used."""

    __slots__ = ("_message_ids", "_parts", "_starts")

    def __init__(self, parts: Sequence["BatchPart"]) -> None:
        self._parts = parts
        self._starts = [0]
        for part in parts:
            self._starts.append(self._starts[-1] + len(part.msg_ids))

    @property
    def send_status(self) -> SendStatus:
        """The least safe status of all parts, or SEND_OK for an empty batch."""
        return max((part.send_status for part in self._parts), default=SendStatus.SEND_OK)

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> SendResult: ...
    @overload
    def __getitem__(self, index: slice) -> list[SendResult]: ...
    def __getitem__(self, index: int | slice) -> SendResult | list[SendResult]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(index)
        part_index = next(i for i in range(len(self._parts)) if at < self._starts[i + 1])
        return self._parts[part_index].result(at - self._starts[part_index])

    def __repr__(self) -> str:
        return f"SendResults({len(self)} messages, {self.send_status.name})"


@dataclass(slots=True)
class BatchPart:
    """One acknowledged frame: the id, queue and offset of each message, as columns."""

    send_status: SendStatus
    topic: str
    broker_name: str
    msg_ids: Sequence[str]
    queue_ids: Sequence[int]
    queue_offsets: Sequence[int]
    store_host: bytes = b""
    commit_log_offsets: Sequence[int] = field(default_factory=list)
    # If the rows went to several brokers, `places` has each message's frame, and the message's number in that frame.
    places: "Sequence[tuple[BatchPart, int]]" = ()

    @classmethod
    def joined(cls, parts: "Sequence[tuple[BatchPart, Sequence[int]]]") -> "BatchPart":
        """Joins several acknowledged frames into one BatchPart.  `parts` has each frame with the numbers that the
        frame's messages get in the result."""
        places = dict(sorted((row, (part, at)) for part, rows in parts for at, row in enumerate(rows))).values()
        return cls(
            max(part.send_status for part, _ in parts),
            parts[0][0].topic,
            parts[0][0].broker_name,
            [str(part.msg_ids[at]) for part, at in places],
            [int(part.queue_ids[at]) for part, at in places],
            [int(part.queue_offsets[at]) for part, at in places],
            places=list(places),
        )

    def result(self, index: int) -> SendResult:
        """Returns the result of the message with the number `index`."""
        if self.places:
            part, at = self.places[index]
            return part.result(at)
        queue = MessageQueue(self.topic, self.broker_name, int(self.queue_ids[index]))
        log_offset = int(self.commit_log_offsets[index]) if len(self.commit_log_offsets) else -1
        queue_offset = int(self.queue_offsets[index])
        return SendResult(self.send_status, str(self.msg_ids[index]), queue, queue_offset, self.store_host, log_offset)


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """The first offset of a queue and its exclusive end.  `broker_id` is the id of the broker that answered, where 0 is
    the master.  A queue beyond the topic's reduced number of read queues still exists, but is not `readable`, so it
    cannot be pulled.  A queue beyond the reduced number of write queues is not `writable`, so nothing can be sent to
    it."""

    min_offset: int
    max_offset: int
    last_store_timestamp: int = 0
    size_bytes: int = 0
    broker_id: int = 0
    is_master: bool = True  # the broker is a master that has lost nothing, as far as it knows
    readable: bool = True
    writable: bool = True
    log_epoch: LogEpoch = field(default=NO_EPOCH, compare=False)
    # Each leader epoch that the caller has asked about, and that is over -> the offset at which it ended in this queue.
    ends_in: Mapping[LogEpoch, int] = field(default_factory=dict, compare=False)
    offers_streams: bool = field(default=False, compare=False)  # the broker offers plain sockets for pulls of ranges
    # How often the group that the caller named has pulled ranges of the topic since the broker's start, by plain
    # sockets and by gRPC.
    ranges_pulled: tuple[int, int] = field(default=(0, 0), compare=False)


class QueueRange(NamedTuple):
    """The messages [from_offset, until_offset) of one queue.  A call that takes QueueRanges has the broker name as
    another argument."""

    topic: str
    queue_id: int
    from_offset: int
    until_offset: int


class OffsetRange(NamedTuple):
    """The messages [from_offset, until_offset) of one queue, whose broker name is part of `queue`."""

    queue: MessageQueue
    from_offset: int
    until_offset: int

    @property
    def topic(self) -> str:
        """The queue's topic."""
        return self.queue.topic

    @property
    def queue_id(self) -> int:
        """The queue's id."""
        return self.queue.queue_id


Ranges = Sequence[QueueRange | OffsetRange]


@dataclass(slots=True)
class Segment:
    """A part of one range: the next `count` records of the frame."""

    range_index: int
    count: int
    next_offset: int
    min_offset: int
    max_offset: int
    status: GetMessageStatus

    @property
    def ends_range(self) -> bool:
        """True if the broker sends no more of this range after `next_offset`, even if the range is not finished."""
        return self.status not in _RANGE_CONTINUES


_RANGE_CONTINUES = (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE, GetMessageStatus.MESSAGE_WAS_REMOVING)


@dataclass(slots=True)
class PullFrame:
    """Records of one or several ranges, as they are in the log.  `sizes` has a little-endian uint32 for each record,
    or is empty."""

    records: bytes | memoryview
    sizes: bytes
    segments: list[Segment]
    suggest_which_broker_id: int
    broker_id: int

    @property
    def count(self) -> int:
        """How many records the frame has."""
        return sum(segment.count for segment in self.segments)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit of offsets.  `broker_ids` maps each broker name to the id of the broker that took the
    commit (0 is the master).  `offsets` has the offsets after the commit.  `failures` and `statuses` are by broker
    name."""

    broker_ids: dict[str, int] = field(default_factory=dict)
    offsets: dict[MessageQueue, int] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)
    statuses: dict[str, CommitStatus] = field(default_factory=dict)


@dataclass(slots=True)
class ProducerStats:
    """Counts of a producer's messages, not of its calls.  `sent_again` counts messages in second and later attempts.
    In the end each sent message is acknowledged, spooled or failed.  Messages that a spool sends later are not
    counted."""

    sent: int = 0
    acknowledged: int = 0
    sent_again: int = 0
    failed: int = 0
    spooled: int = 0


@dataclass(frozen=True, slots=True)
class SpoolStatus:
    """The state of a producer's spool.  `size_bytes` includes the dead records, which brokers have refused for good.
    The producer's option `spool_bytes` is the limit of `size_bytes`.  `oldest_timestamp` is when the oldest waiting
    record was spooled (ms), or 0 if none waits.  `replayed` counts the records that this producer has sent from the
    spool to brokers.  `less_safe` counts the replayed records that a broker stored with another status than SEND_OK, as
    `spool_until` allows.  `last_error` says why the spool takes no more messages, or why the last replay failed, and is
    empty otherwise."""

    records: int
    size_bytes: int
    oldest_timestamp: int
    dead: int
    replayed: int
    last_error: str
    less_safe: int = 0


def by_broker(queues: Iterable[MessageQueue]) -> Iterator[tuple[str, str, list[MessageQueue]]]:
    """Groups queues by topic and broker name, and yields (topic, broker name, its queues)."""
    groups: dict[tuple[str, str], list[MessageQueue]] = {}
    for queue in queues:
        groups.setdefault((queue.topic, queue.broker_name), []).append(queue)
    for (topic, broker_name), members in groups.items():
        yield topic, broker_name, members
