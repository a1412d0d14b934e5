"""PutPath: a frame's way from the client through checks and the append to its acknowledgement."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from rocketsim_proto.records import record
from rocketsim_proto.records.record import PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC, Record
from rocketsim_proto.reserved import SCHEDULE_TOPIC

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.traffic import Traffic
from broker_service.broker.frame import Frame, FrameLimits, check_frame
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.errors import DiskFull, InvalidParameter, MessageIllegal, QueueNotExist, SystemBusy, TopicNotExist
from broker_service.model import Appended, PutStatus
from broker_service.state.timer_record import MAX_TIMERS, waiting_record

logger = logging.getLogger(__name__)

MAX_PENDING_BYTES = 256 << 20  # of waiting puts: gRPC keeps a request until its call ends; one put always may wait


@dataclass(slots=True, kw_only=True)
class Send:
    """A client's frame.  `records`, if they can be written to, belong to the put from then on.  It ends after
    `timeout_s` at the latest; `stored` hears where it was appended, before the wait for disk and slave.  `stored_as`
    makes another record of the frame's only message, to be stored in its place: its topic and queues are checked, those
    of the other record are not.
    """

    topic: str
    records: bytes | memoryview
    count: int
    crc32: int
    epoch: int = 0
    broker_name: str = ""
    default_queue_nums: int = 0
    timeout_s: float
    stored: Callable[[Appended], None] = lambda appended: None
    stored_as: Callable[[Record], Record] | None = None


@dataclass(slots=True)
class _Turn:
    """Frames of a topic that wait for its change, one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    frames: int = 0


class PutPath:
    """`timers`: how many messages wait for their delivery time, or would take as much memory."""

    def __init__(self, broker: Broker, traffic: Traffic, timers: Callable[[], int] = lambda: 0) -> None:
        self._broker = broker
        self._timers = timers
        self._traffic = traffic
        self._pending = 0
        self._pending_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._turns: dict[str, _Turn] = {}  # of topics that are being made or changed

    async def put(self, send: Send) -> tuple[Appended, PutStatus]:
        """Append the frame as a whole and wait until it is as safe as the mode promises, or its time is over.

        Everything from the check to the append is one step of the event loop: two frames never interleave.  A frame
        whose topic has to be made waits for the disk before that, and so do the frames behind it.
        """
        size, begun = len(send.records), self._broker.clock()
        self._check_room(size)
        goes_now = send.topic not in self._turns and not self._broker.topics.is_changing(send.topic)
        appended = self._appended(send) if goes_now else None  # the frame's memory is free once this returns
        if appended is None:
            with self._counted(size):
                appended = await self._appended_in_turn(send)
        placed, waits = appended
        if not waits:
            return placed, PutStatus.PUT_OK
        left_s = max(0.0, send.timeout_s - (self._broker.clock() - begun))
        with self._counted(size):
            return placed, await self._broker.acknowledgements.wait(placed.end_offset, left_s)

    async def put_waiting(self, waiting: Record, timeout_s: float) -> PutStatus:
        """Append a record for the timer topic that the broker has made: a recall.  The disk's warning level does not
        keep it out."""
        broker = self._broker
        broker.check_writable()
        if reason := broker.store.why_not_writable():
            raise DiskFull(reason)
        broker.acknowledgements.check_room()
        self._check_timers()
        appended = broker.append_one(waiting)
        with self._counted(len(waiting.body)):
            return await broker.acknowledgements.wait(appended.end_offset, timeout_s)

    @contextmanager
    def _counted(self, size: int) -> Iterator[None]:
        """Among the puts that wait."""
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

    async def _appended_in_turn(self, send: Send) -> tuple[Appended, bool]:
        """As `_appended`, for a topic that is made, deleted or changed meanwhile; its frames keep their order."""
        turn = self._turns.setdefault(send.topic, _Turn())
        turn.frames += 1
        try:
            async with turn.lock:
                await self._broker.topics.settled()
                appended = self._appended(send)
                if appended is None:
                    await self._make_topic(send)
                    appended = self._appended(send)
        finally:
            turn.frames -= 1
            if not turn.frames:
                del self._turns[send.topic]
        if appended is None:
            raise TopicNotExist(f"topic {send.topic} was deleted as soon as this message had made it; send again")
        return appended

    def _appended(self, send: Send) -> tuple[Appended, bool] | None:
        """What became of the frame, and whether its sender waits for disk and slave; None if it makes its topic."""
        frame = self._checked(send)
        if frame is None:
            return None
        self._broker.acknowledgements.check_room()
        appended = self._append(send, frame)
        self._traffic.add(send.count, len(send.records))
        send.stored(appended)
        return appended, frame.waits

    async def drained(self) -> None:
        """Every put has its answer."""
        await self._idle.wait()

    def _checked(self, send: Send) -> Frame | None:
        """None for a valid frame whose topic does not exist: only such a frame makes it."""
        broker = self._broker
        if send.broker_name and send.broker_name != broker.config.broker_name:
            raise InvalidParameter(
                f"this is broker {broker.config.broker_name}, not {send.broker_name}; ask for the route"
            )
        broker.check_writable(send.epoch)
        if reason := broker.store.why_no_sends(len(send.records)):
            raise DiskFull(reason)
        topic = broker.topics.writable(send.topic, broker.config.broker_permission)
        limits = FrameLimits(
            max_message_size=broker.config.max_message_size,
            log_file_size=broker.config.mapped_file_size_commit_log,
            store_host_size=len(broker.store_host),
        )
        frame = check_frame(send.topic, send.records, send.count, send.crc32, limits)
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
            logger.info("topic %s made by its first message", send.topic)

    def _check_queues(self, topic: TopicConfig, queues: tuple[int, int]) -> None:
        for queue_id in queues:
            if not 0 <= queue_id < topic.write_queue_nums:
                raise QueueNotExist(
                    f"queue {queue_id} of topic {topic.name}, which has {topic.write_queue_nums} write queues"
                )

    def _append(self, send: Send, frame: Frame) -> Appended:
        broker = self._broker
        if send.stored_as is not None:
            return self._append_as(send.stored_as, frame)
        if frame.delay_level:
            return self._append_as(partial(self._delayed, frame.delay_level), frame)
        if frame.deliver_ms > (day_ms := broker.day_ms()):
            self._check_timers()
            return self._append_as(partial(waiting_record, deliver_ms=frame.deliver_ms, now_ms=day_ms), frame)
        return broker.append(frame.batch, send.topic)

    def _delayed(self, delay_level: int, message: Record) -> Record:
        """The message for the schedule topic; its real topic and queue become properties, as in RocketMQ."""
        level = min(delay_level, len(self._broker.config.delay_levels_ms))
        message.properties[PROPERTY_REAL_TOPIC] = message.topic
        message.properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
        message.properties[record.PROPERTY_DELAY] = str(level)
        message.properties.pop(record.PROPERTY_DELIVER_MS, None)  # as in RocketMQ a level goes before a time
        message.topic, message.queue_id = SCHEDULE_TOPIC, level - 1
        return message

    def _append_as(self, made: Callable[[Record], Record], frame: Frame) -> Appended:
        message = made(record.decode(frame.batch.view_bytes(), check_crc=False))
        try:
            return self._broker.append_one(message)
        except record.RecordError as error:
            raise MessageIllegal(f"the message cannot be stored in {message.topic}: {error}") from error

    def _check_timers(self) -> None:
        if self._timers() >= MAX_TIMERS:
            raise SystemBusy(f"{MAX_TIMERS} messages and recalls wait for their delivery time; try again later")
