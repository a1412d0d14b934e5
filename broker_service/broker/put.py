"""PutPath checks and appends the records that clients send, and waits until their sends may be acknowledged.

A put has two steps.  `append` checks the records and appends them.  `safe` waits until the records are as safe as the
broker's mode promises: SYNC_FLUSH promises that they are flushed to disk, and SYNC_MASTER that a slave has them.  One
flush, or one acknowledgement of a slave, ends the waiting of all puts that it covers
(`replication/acknowledgement.py`), so simultaneous puts share its cost.

A caller that must act between check and append calls the two parts of `append` itself: `admit`, which checks, and
`place`, which appends.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
from rocketsim_proto.records import record
from rocketsim_proto.records.record import PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC, Record
from rocketsim_proto.reserved import SCHEDULE_TOPIC

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.traffic import Traffic
from broker_service.broker.frame import Frame, FrameLimits, check_frame, check_records
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.errors import (
    DiskFull,
    InvalidParameter,
    MessageIllegal,
    QueueNotExist,
    RocketSimError,
    SystemBusy,
    TopicNotExist,
)
from broker_service.put_result import Appended, PutStatus
from broker_service.runtime.figures import Figure, by_labels
from broker_service.runtime.histogram import Histogram
from broker_service.state.timer_record import MAX_TIMERS, waiting_record

logger = logging.getLogger(__name__)

# Limit for the bytes of waiting puts, because gRPC keeps a request in memory until its call ends.  If no other put
# waits, a put may be larger than this limit.
MAX_PENDING_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(ABC):
    """The records of one send call, all to one topic.  Either all records are stored or all are refused."""

    topic: str
    epoch: int = 0
    broker_name: str = ""
    default_queue_nums: int = 0

    @property
    @abstractmethod
    def size(self) -> int:
        """Returns the size of the records in bytes."""

    @property
    @abstractmethod
    def message(self) -> Record:
        """Returns the first record, which may not have been checked yet.  Raises MessageIllegal if the record cannot be
        decoded.
        """

    @abstractmethod
    def check(self, limits: FrameLimits) -> Frame: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSend(Send):
    """A send whose records the client has encoded.  If `records` is writable, storing the records may change its
    bytes.
    """

    records: bytes | memoryview
    count: int
    crc32: int

    @property
    def size(self) -> int:
        return len(self.records)

    @property
    def message(self) -> Record:
        try:
            return record.decode(self.records, check_crc=False)
        except record.RecordError as error:
            raise MessageIllegal(f"topic {self.topic}: the record cannot be read: {error}") from error

    def check(self, limits: FrameLimits) -> Frame:
        return check_frame(self.topic, self.records, self.count, self.crc32, limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsSend(Send):
    """A send whose records the broker has made from the client's messages.  The send has at least one record."""

    records: Sequence[Record]

    @property
    def size(self) -> int:
        return sum([record.size_of(one) for one in self.records])

    @property
    def message(self) -> Record:
        return self.records[0]

    def check(self, limits: FrameLimits) -> Frame:
        return check_records(self.topic, self.records, limits)


@dataclass(frozen=True, slots=True)
class Placed:
    """Appended records, with their size in bytes.

    With `waits` the sender waits until the records are safe, and without it only until they are appended.  `began` is
    the time when the append began, on the broker's monotonic clock.  `sizes` has the sizes of a send's records, and is
    empty if something else was appended in place of its only record.
    """

    appended: Appended
    size: int = 0
    waits: bool = True
    began: float = 0.0
    sizes: Sequence[int] | npt.NDArray[np.int64] = ()


@dataclass(slots=True)
class _Turn:
    """Sends that wait, in their order, until a change of their topic is written."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sends: int = 0


class PutPath:
    """Stores sends.  `timers` returns how many messages wait for their delivery time, where a recall counts as
    several.
    """

    def __init__(self, broker: Broker, traffic: Traffic, timers: Callable[[], int] = lambda: 0) -> None:
        self._broker = broker
        self._timers = timers
        self._traffic = traffic
        self._refused: Counter[str] = Counter()
        self.seconds = Histogram(
            "rocketsim_put_seconds",
            "Time from the append of a send until it was as safe as the broker's mode promises.",
        )
        self._pending = 0
        self._pending_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._turns: dict[str, _Turn] = {}  # topic that is being created, changed or deleted -> its waiting sends

    async def append(self, send: Send) -> Placed:
        """Checks and appends a send.

        Check and append are one step of the event loop, so two sends never mix.  If the topic must be created first,
        this send and later sends to the topic wait until the topic is on disk.
        """
        return self.place(send, await self.admit(send))

    def append_at_once(self, send: Send) -> Placed | None:
        """Does the same as `append`, or returns None if the topic must be created first or is being changed.

        Several sends may be joined, and may then be tried one by one, so the caller counts refusals with
        `count_refused`.
        """
        frame = self._admitted_at_once(send, send.size)
        return None if frame is None else self.place(send, frame)

    def count_refused(self, error: RocketSimError, sends: int = 1) -> None:
        self._refused[type(error).__name__] += sends

    async def admit(self, send: Send) -> Frame:
        """Checks a send and returns its records as a frame.

        The caller must append this frame with `place` before it awaits anything else, because what was checked can
        change during an await.
        """
        try:
            return await self._admitted(send)
        except RocketSimError as error:
            self.count_refused(error)
            raise

    async def _admitted(self, send: Send) -> Frame:
        size = send.size
        frame = self._admitted_at_once(send, size)
        if frame is not None:
            return frame
        with self._counted(size):
            return await self._admitted_in_turn(send, size)

    def _admitted_at_once(self, send: Send, size: int) -> Frame | None:
        """Checks a send.  Returns None if the send has to wait until its topic is created or changed."""
        self._check_room(size)
        if send.topic in self._turns or self._broker.topics.is_changing(send.topic):
            return None
        return self._checked(send, size)

    def place(self, send: Send, frame: Frame, instead: Record | None = None) -> Placed:
        """Appends the records of a frame that `admit` has returned.  If the record `instead` is given, it is appended
        in place of the frame's only message.
        """
        began = self._broker.clock()
        self._broker.acknowledgements.check_room()
        stored = instead or self._waiting(frame)
        appended = self._broker.append(frame.batch, send.topic) if stored is None else self._append_one(stored)
        size = frame.batch.size
        self._traffic.add((send.topic,), len(frame.batch), size)
        return Placed(appended, size, frame.waits, began, () if stored is not None else frame.batch.sizes)

    def append_own(self, message: Record) -> Placed:
        """Appends a record that the broker has made at a client's request, such as a recall.

        The append works even while the disk is above its warning level.
        """
        broker = self._broker
        broker.check_writable()
        if reason := broker.store.admission.why_not_writable():
            raise DiskFull(reason)
        broker.acknowledgements.check_room()
        self._check_timers()
        began = self._broker.clock()
        return Placed(self._append_one(message), len(message.body), began=began)

    def append_back(self, message: Record, delay_level: int) -> Placed:
        """Appends a copy of a message that a consumer has returned for a later delivery.  The caller has already
        created the copy's topic.

        If `delay_level` is not 0, the copy is delivered after the delay of this level.  The copy is appended even while
        the disk is above its warning level.
        """
        self._broker.check_writable()
        if reason := self._broker.store.admission.why_not_writable():
            raise DiskFull(reason)
        self._broker.acknowledgements.check_room()
        stored = self._delayed(delay_level, message) if delay_level else message
        return Placed(self._append_one(stored), len(message.body))

    async def safe(self, placed: Placed, timeout_s: float) -> PutStatus:
        """Waits until the records are as safe as the broker's mode promises, or until the time-out.  Returns the
        status.
        """
        if not placed.waits:
            self.observe(placed)
            return PutStatus.PUT_OK
        with self._counted(placed.size):
            status = await self._broker.acknowledgements.wait(placed.appended.end_offset, timeout_s)
        self.observe(placed)
        return status

    def figures(self) -> Iterator[Figure]:
        help_text = "Refused sends, by the error that the client got."
        refused = [((error,), count) for error, count in sorted(self._refused.items())]
        yield by_labels("rocketsim_sends_refused", help_text, ("error",), refused, is_counter=True)

    def observe(self, placed: Placed) -> None:
        """Records how long a send took until it was safe.  A caller that does not call `safe` calls this method."""
        self.seconds.observe(self._broker.clock() - placed.began)

    @contextmanager
    def _counted(self, size: int) -> Iterator[None]:
        """While the context is open, counts a put of this size as waiting."""
        self._pending += 1
        self._pending_bytes += size
        self._idle.clear()
        try:
            yield
        finally:
            self._pending -= 1
            self._pending_bytes -= size
            if not self._pending:
                self._idle.set()

    def _check_room(self, size: int) -> None:
        if self._pending and self._pending_bytes + size > MAX_PENDING_BYTES:
            raise SystemBusy(
                f"puts of {self._pending_bytes} bytes wait for a disk or a slave already; send again in a moment"
            )

    async def _admitted_in_turn(self, send: Send, size: int) -> Frame:
        """Does the work of `admit` while the topic is being created, deleted or changed.

        Waiting sends to the topic keep their order, because the lock is fair, and the next send continues only in a
        later step of the event loop.
        """
        turn = self._turns.setdefault(send.topic, _Turn())
        turn.sends += 1
        try:
            async with turn.lock:
                await self._broker.topics.settled()
                frame = self._checked(send, size)
                if frame is None:
                    await self._make_topic(send)
                    frame = self._checked(send, size)
        finally:
            turn.sends -= 1
            if not turn.sends:
                del self._turns[send.topic]
        if frame is None:
            raise TopicNotExist(f"topic {send.topic} was deleted as soon as this message had created it; send again")
        return frame

    async def drained(self) -> None:
        """Waits until no put is waiting any more."""
        await self._idle.wait()

    def _checked(self, send: Send, size: int) -> Frame | None:
        """Checks a send.  Returns None if the send is valid but its topic does not exist.  A topic is created only for
        a valid send.
        """
        broker = self._broker
        if send.broker_name and send.broker_name != broker.config.broker_name:
            raise InvalidParameter(
                f"this is broker {broker.config.broker_name}, not {send.broker_name}; query the route again"
            )
        broker.check_writable(send.epoch)
        if reason := broker.store.admission.why_no_sends(size):
            raise DiskFull(reason)
        topic = broker.topics.writable(send.topic, broker.config.broker_permission)
        limits = FrameLimits(
            max_message_size=broker.config.max_message_size,
            log_file_size=broker.config.mapped_file_size_commit_log,
            store_host_size=len(broker.store_host),
        )
        frame = send.check(limits)
        if topic is None:
            return None
        self._check_queues(topic, frame.queues)
        return frame

    async def _make_topic(self, send: Send) -> None:
        config = self._broker.config
        if not config.auto_create_topic_enable:
            raise TopicNotExist(
                f"topic {send.topic} does not exist and autoCreateTopicEnable is false; "
                "create it with `rocketsim admin updateTopic`"
            )
        queue_nums = send.default_queue_nums, config.default_topic_queue_nums
        plan = partial(self._broker.topics.auto_creating, send.topic, *queue_nums, self._broker.now_ms())
        if await self._broker.topics.apply(plan):
            logger.info("created topic %s for its first message", send.topic)

    def _check_queues(self, topic: TopicConfig, queues: tuple[int, int]) -> None:
        for queue_id in queues:
            if not 0 <= queue_id < topic.write_queue_nums:
                raise QueueNotExist(
                    f"queue {queue_id} of topic {topic.name}, which has {topic.write_queue_nums} write queues"
                )

    def _waiting(self, frame: Frame) -> Record | None:
        """Returns the record in which a delayed message waits, or None if the message is delivered at once."""
        if frame.message is None:
            return None
        if frame.delay_level:
            return self._delayed(frame.delay_level, frame.message)
        if frame.deliver_ms > (day_ms := self._broker.day_ms()):
            self._check_timers()
            return waiting_record(frame.message, frame.deliver_ms, day_ms)
        return None

    def _delayed(self, delay_level: int, message: Record) -> Record:
        """Makes the record of a delayed message for the schedule topic.  As in RocketMQ, the message's real topic and
        queue become properties of this record.
        """
        level = min(delay_level, len(self._broker.config.delay_levels_ms))
        properties = {
            **message.properties,
            PROPERTY_REAL_TOPIC: message.topic,
            PROPERTY_REAL_QUEUE_ID: str(message.queue_id),
            record.PROPERTY_DELAY: str(level),
        }
        # As in RocketMQ, a delay level takes precedence over a delivery time.
        properties.pop(record.PROPERTY_DELIVER_MS, None)
        return replace(message, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=properties)

    def _append_one(self, message: Record) -> Appended:
        try:
            return self._broker.append_one(message)
        except record.RecordError as error:
            raise MessageIllegal(f"the message cannot be stored in {message.topic}: {error}") from error

    def _check_timers(self) -> None:
        if self._timers() >= MAX_TIMERS:
            raise SystemBusy(f"{MAX_TIMERS} messages and recalls wait for their delivery time; try again later")
