"""PullPath: RocketMQ's pull of one queue, with long polling, and the ranged pull of many.

The checks are in the order of RocketMQ's; what the answer says is decided by the store (tables D2b, D3) and by
`suggestion.py` (table D1).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from broker_service.broker.broker import Broker
from broker_service.broker.commits import Commits
from broker_service.broker.groups import SubscriptionGroup
from broker_service.broker.subscription import tags_codes_of
from broker_service.broker.suggestion import MASTER_ID, PullCode, Reader
from broker_service.broker.topics import PERM_READ
from broker_service.errors import InvalidParameter, NoPermission, ServiceNotAvailable
from broker_service.model import GetMessageStatus

logger = logging.getLogger(__name__)

DEFAULT_MAX_MSG_NUMS = 32
DEFAULT_FRAME_BYTES = 1 << 20
UNLIMITED_BYTES = (1 << 31) - 1
# Looks that find little or nothing are bounded, so that one frame does not keep the loop to itself.
MAX_LOOKS_A_FRAME = 256


class QueueIdOutOfRange(InvalidParameter):
    """4.9.8 answers SYSTEM_ERROR."""

    code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int = DEFAULT_MAX_MSG_NUMS
    max_msg_bytes: int = 0
    sub_expression: str = "*"
    expression_type: str = "TAG"
    suspend_s: float = 0.0  # how long the consumer is willing to wait for a message
    commit_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    code: PullCode
    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    count: int = 0
    records: bytes = b""
    sizes: bytes = b""


@dataclass(frozen=True, slots=True)
class Range:
    topic: str
    queue_id: int
    from_offset: int
    until_offset: int


@dataclass(frozen=True, slots=True)
class Segment:
    """`count` records of the frame are of the range `range_index`."""

    range_index: int
    count: int
    next_offset: int
    min_offset: int
    max_offset: int
    status: GetMessageStatus


@dataclass(frozen=True, slots=True)
class Frame:
    records: bytes
    sizes: bytes
    segments: list[Segment]
    suggested_broker_id: int


# With these a range that is not complete may go on in the next frame.
_GOES_ON = (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE, GetMessageStatus.MESSAGE_WAS_REMOVING)


class PullPath:
    def __init__(self, broker: Broker, commits: Commits) -> None:
        self._broker = broker
        self._commits = commits
        self.messages = 0  # since the start, for brokerStatus and metrics
        self.bytes = 0

    # --- one queue --------------------------------------------------------------------------------------------------

    async def pull(self, pull: Pull) -> Pulled:
        group = self._readable(pull.group, pull.topic, pull.queue_id)
        tags = tags_codes_of(pull.sub_expression, pull.expression_type)
        if self._refuses_as_slave():
            return self._refused(pull)
        deadline = self._broker.clock() + self._hold_s(pull.suspend_s)
        pulled = self._look(pull, pull.queue_offset, group, tags)
        if pull.commit_offset is not None and not self._broker.is_slave:
            self._commits.commit_on_pull(pull.group, pull.topic, pull.queue_id, pull.commit_offset)
        if pulled.code is PullCode.PULL_NOT_FOUND:
            pulled = await self._held(pull, pulled, deadline, group, tags)
        self.messages += pulled.count
        self.bytes += len(pulled.records)
        return pulled

    async def _held(
        self, pull: Pull, pulled: Pulled, deadline: float, group: SubscriptionGroup, tags: frozenset[int] | None
    ) -> Pulled:
        """The pull again when something has arrived for it, or what is known when its time is over."""
        offset = pull.queue_offset
        while await self._broker.long_polling.wait(pull.topic, pull.queue_id, offset, deadline - self._broker.clock()):
            group = self._readable(pull.group, pull.topic, pull.queue_id)  # it may have been deleted
            pulled = self._look(pull, offset, group, tags)
            if pulled.status is GetMessageStatus.NO_MATCHED_MESSAGE and pulled.next_begin_offset == pulled.max_offset:
                offset = pulled.next_begin_offset  # Only what is filtered out has arrived: it is not looked at again.
            elif pulled.code is not PullCode.PULL_NOT_FOUND:
                break
        return pulled

    def _look(self, pull: Pull, offset: int, group: SubscriptionGroup, tags: frozenset[int] | None) -> Pulled:
        reader = self._reader(group)
        found = self._broker.store.get_message(
            pull.topic,
            pull.queue_id,
            offset,
            pull.max_msg_nums if pull.max_msg_nums > 0 else DEFAULT_MAX_MSG_NUMS,
            pull.max_msg_bytes if pull.max_msg_bytes > 0 else UNLIMITED_BYTES,
            tags,
            correct_offset=reader.corrects_offsets,
        )
        code, suggestion = reader.answer(found.status, offset, from_slave=found.suggest_pull_from_slave)
        return Pulled(
            code=code,
            status=found.status,
            next_begin_offset=found.next_begin_offset,
            min_offset=found.min_offset,
            max_offset=found.max_offset,
            suggested_broker_id=suggestion,
            count=found.count,
            records=found.records,
            sizes=found.sizes,
        )

    def _hold_s(self, suspend_s: float) -> float:
        config = self._broker.config
        return suspend_s if config.long_polling_enable else min(suspend_s, config.short_polling_time_mills / 1000)

    def _refused(self, pull: Pull) -> Pulled:
        min_offset, max_offset = self._broker.store.queue_bounds(pull.topic, pull.queue_id)
        return Pulled(
            code=PullCode.PULL_RETRY_IMMEDIATELY,
            status=GetMessageStatus.NO_MATCHED_MESSAGE,
            next_begin_offset=pull.queue_offset,
            min_offset=min_offset,
            max_offset=max_offset,
            suggested_broker_id=MASTER_ID,
        )

    # --- ranges -----------------------------------------------------------------------------------------------------

    async def pull_range(
        self, group_name: str, ranges: Sequence[Range], sub_expression: str, expression_type: str, max_frame_bytes: int
    ) -> AsyncIterator[Frame]:
        """Frames of about `max_frame_bytes`, small ranges packed together, until every range has ended."""
        group = self._check_ranges(group_name, ranges)
        tags = tags_codes_of(sub_expression, expression_type)
        if self._refuses_as_slave():
            yield self._refused_ranges(ranges)
            return
        frame_bytes = min(max_frame_bytes or DEFAULT_FRAME_BYTES, self._broker.config.pull_range_max_frame_bytes)
        index, offset = 0, ranges[0].from_offset if ranges else 0
        while index < len(ranges):
            frame, index, offset = self._frame(ranges, index, offset, tags, frame_bytes, group)
            self.messages += sum(segment.count for segment in frame.segments)
            self.bytes += len(frame.records)
            yield frame
            # Other calls get their turn even if this client's window never fills up.
            await asyncio.sleep(0)
            if self._broker.stopping:
                raise ServiceNotAvailable("this broker is stopping; read from another one")

    def _frame(
        self,
        ranges: Sequence[Range],
        index: int,
        offset: int,
        tags: frozenset[int] | None,
        frame_bytes: int,
        group: SubscriptionGroup,
    ) -> tuple[Frame, int, int]:
        """The next frame, and where the one after it begins."""
        records: list[bytes] = []
        sizes: list[bytes] = []
        segments: list[Segment] = []
        from_slave = False
        room = frame_bytes
        looks = 0
        while index < len(ranges) and room > 0 and looks < MAX_LOOKS_A_FRAME:
            wanted = ranges[index]
            looks += 1
            found = self._broker.store.read_range(
                wanted.topic, wanted.queue_id, offset, wanted.until_offset, room, tags
            )
            segments.append(
                Segment(index, found.count, found.next_offset, found.min_offset, found.max_offset, found.status)
            )
            from_slave |= found.suggest_pull_from_slave
            if found.count:
                records.append(found.records)
                sizes.append(found.sizes)
                room -= len(found.records)
            complete = found.next_offset >= wanted.until_offset
            if complete or found.status not in _GOES_ON or found.next_offset <= offset:
                index += 1
                offset = ranges[index].from_offset if index < len(ranges) else 0
            else:
                offset = found.next_offset
                if offset < min(wanted.until_offset, found.max_offset):
                    break  # the frame is full, or enough was looked at
        suggestion = self._reader(group).suggested_broker_id(from_slave=from_slave)
        return Frame(_joined(records), _joined(sizes), segments, suggestion), index, offset

    def _check_ranges(self, group_name: str, ranges: Sequence[Range]) -> SubscriptionGroup:
        # A reader without a group keeps its offsets itself.
        group = self._group(group_name) if group_name else self._nobodys_group()
        for wanted in dict.fromkeys((item.topic, item.queue_id) for item in ranges):
            self._check_queue(*wanted)
        for item in ranges:
            if not 0 <= item.from_offset <= item.until_offset:
                raise InvalidParameter(
                    f"[{item.from_offset}, {item.until_offset}) of queue {item.queue_id} of {item.topic} is no range"
                )
        return group

    def _refused_ranges(self, ranges: Sequence[Range]) -> Frame:
        segments = []
        for index, item in enumerate(ranges):
            bounds = self._broker.store.queue_bounds(item.topic, item.queue_id)
            segments.append(Segment(index, 0, item.from_offset, *bounds, GetMessageStatus.NO_MATCHED_MESSAGE))
        return Frame(b"", b"", segments, MASTER_ID)

    # --- both -------------------------------------------------------------------------------------------------------

    def _readable(self, group_name: str, topic_name: str, queue_id: int) -> SubscriptionGroup:
        """RocketMQ's checks, in its order: broker readable, group, consumeEnable, topic, readable, queue id."""
        group = self._group(group_name)
        self._check_queue(topic_name, queue_id)
        return group

    def _group(self, name: str) -> SubscriptionGroup:
        self._check_broker_readable()
        return self._commits.group(name)

    def _nobodys_group(self) -> SubscriptionGroup:
        self._check_broker_readable()
        return SubscriptionGroup()

    def _check_broker_readable(self) -> None:
        config = self._broker.config
        if not config.broker_permission & PERM_READ:
            raise NoPermission(
                f"broker {config.broker_name} cannot be read: brokerPermission is {config.broker_permission}"
            )

    def _check_queue(self, topic_name: str, queue_id: int) -> None:
        topic = self._broker.topics.readable(topic_name, self._broker.config.broker_permission)
        if not 0 <= queue_id < topic.read_queue_nums:
            raise QueueIdOutOfRange(
                f"queue {queue_id} of topic {topic_name}, which has {topic.read_queue_nums} read queues"
            )

    def _reader(self, group: SubscriptionGroup) -> Reader:
        config = self._broker.config
        return Reader(
            role=self._broker.mastership.role,
            slave_read_enable=config.slave_read_enable,
            offset_check_in_slave=config.offset_check_in_slave,
            group_broker_id=group.broker_id,
            group_when_slowly=group.which_broker_when_consume_slowly,
        )

    def _refuses_as_slave(self) -> bool:
        config = self._broker.config
        return self._broker.is_slave and config.strict_slave_read and not config.slave_read_enable


def _joined(pieces: list[bytes]) -> bytes:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
