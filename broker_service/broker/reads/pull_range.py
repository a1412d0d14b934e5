"""RangePath: reads ranges of many queues as a stream of large frames, each with a suggested broker.  Spark uses it."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, repeat
from typing import NamedTuple

import numpy as np
from rocketsim_proto.model import NO_EPOCH, GetMessageStatus, LogEpoch
from rocketsim_proto.reserved import MASTER_ID

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.traffic import Traffic
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.reads.range_calls import RangeCalls
from broker_service.broker.reads.read_checks import ReadChecks
from broker_service.broker.reads.subscription import tags_codes_of
from broker_service.errors import InvalidParameter, ServiceNotAvailable
from broker_service.runtime import cold_reads
from broker_service.runtime.histogram import Histogram

DEFAULT_FRAME_BYTES = 1 << 20
# The limit for a frame of which a part was just read from the disk.  Other clients' calls wait while the event loop
# makes a frame, which takes much longer if its bytes are not in the processor's cache.
FROM_DISK_FRAME_BYTES = 1 << 20


class Range(NamedTuple):
    topic: str
    queue_id: int
    from_offset: int
    until_offset: int
    read_in: LogEpoch = NO_EPOCH  # the epoch in which the log ended when `until_offset` was determined


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a frame: `count` records, which all belong to the range with the number `range_index`."""

    range_index: int
    count: int
    next_offset: int
    min_offset: int
    max_offset: int
    status: GetMessageStatus


@dataclass(frozen=True, slots=True)
class Frame:
    records: list[memoryview]  # slices of the log, which must be copied and released before the next call of the store
    sizes: bytes
    segments: list[Segment]
    suggested_broker_id: int
    runs: Sequence[tuple[int, int]] = ()  # the log offsets at which each slice begins and ends; empty: it is a copy


# After one of these statuses, an incomplete range continues in the next frame.
_GOES_ON = (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE, GetMessageStatus.MESSAGE_WAS_REMOVING)


class RangePath:
    def __init__(self, broker: Broker, checks: ReadChecks, traffic: Traffic) -> None:
        self._broker = broker
        self._checks = checks
        self._traffic = traffic
        self.calls = RangeCalls()
        self.seconds = Histogram(
            "rocketsim_range_frame_seconds", "How long it took to read one frame of messages of a pull of ranges."
        )

    def frame_bytes(self, max_frame_bytes: int) -> int:
        """Returns the size limit for a frame's records if the caller asks for `max_frame_bytes` (0: the default size).
        A frame with a single record may be larger.
        """
        return min(max_frame_bytes or DEFAULT_FRAME_BYTES, self._broker.config.pull_range_max_frame_bytes)

    async def pull_range(
        self, group_name: str, ranges: Sequence[Range], sub_expression: str, expression_type: str, max_frame_bytes: int
    ) -> AsyncGenerator[Frame, None]:
        """Yields frames of about `max_frame_bytes` until all ranges have ended.  Several small ranges are put into one
        frame.  A frame has at most FROM_DISK_FRAME_BYTES if a part of it must be read from the disk.
        """
        if group_name:
            await self._checks.make_group(group_name)
        group = self._check_ranges(group_name, ranges)
        tags = tags_codes_of(sub_expression, expression_type)
        if self._checks.is_refused_here():
            yield self._refused_ranges(ranges)
            return
        frame_bytes = self.frame_bytes(max_frame_bytes)
        epochs = {item.read_in for item in ranges}
        index, offset, entries = 0, ranges[0].from_offset if ranges else 0, 0
        while index < len(ranges):
            make = partial(self._frame, ranges, epochs, index, offset, tags, group, entries)
            began = self._broker.clock()
            frame, index, offset = await cold_reads.read(
                self._broker.store,
                partial(make, frame_bytes),
                after_cold=partial(make, min(frame_bytes, FROM_DISK_FRAME_BYTES)),
            )
            # An estimate: the next frame will have about as many messages as this one.
            entries = len(frame.sizes) // 4 + 16
            self.seconds.observe(self._broker.clock() - began)
            self._count(frame, ranges, group_name)
            yield frame
            # Lets other tasks run, even if this client's flow-control window never fills up.
            await asyncio.sleep(0)
            if self._broker.stopping:
                raise ServiceNotAvailable("this broker is stopping; read from another one")

    def _count(self, frame: Frame, ranges: Sequence[Range], group: str) -> None:
        counts = Counter[str]()
        for segment in frame.segments:
            counts[ranges[segment.range_index].topic] += segment.count
        if len(counts) == 1:
            sizes = {topic: sum(map(len, frame.records)) for topic in counts}
        else:
            # The offset in the frame at which each record ends.
            ends = np.concatenate(([0], np.cumsum(np.frombuffer(frame.sizes, "<u4"), dtype=np.int64)))
            sizes, at = Counter[str](), 0
            for segment in frame.segments:
                sizes[ranges[segment.range_index].topic] += int(ends[at + segment.count] - ends[at])
                at += segment.count
        for topic, count in counts.items():
            self._traffic.add((topic, group), count, sizes[topic])

    def _frame(
        self,
        ranges: Sequence[Range],
        epochs: set[LogEpoch],
        index: int,
        offset: int,
        tags: frozenset[int] | None,
        group: SubscriptionGroup,
        entries: int,
        frame_bytes: int,
    ) -> tuple[Frame, int, int]:
        """Returns the next frame, and the range and the offset at which the following frame begins."""
        # The ends of epochs may change between two frames, because a slave may be promoted or its log may be cut.
        ends = {epoch: end for epoch in epochs if (end := self._broker.end_of(epoch)) is not None}
        wanted = chain([ranges[index]._replace(from_offset=offset)], islice(ranges, index + 1, None))
        known = map(self._within, wanted, repeat(ends)) if ends else wanted
        spans = ((item.topic, item.queue_id, item.from_offset, item.until_offset) for item in known)
        found = self._broker.store.queues.read_ranges(spans, frame_bytes, tags, entries)
        segments = []
        for answer in found.answers:
            number = index + answer.span_index
            segment = Segment(
                number, answer.count, answer.next_offset, answer.min_offset, answer.max_offset, answer.status
            )
            asked_from = offset if number == index else ranges[number].from_offset
            truncated = self._truncated(ranges[number], ends, asked_from, segment) if ends else None
            if truncated is None or segment.status in _GOES_ON:
                segments.append(segment)
            if truncated is not None:
                segments.append(truncated)
        suggestion = self._checks.policy(group).suggested_broker_id(from_slave=found.suggest_pull_from_slave)
        last = segments[-1]
        index, offset = last.range_index, last.next_offset
        if last.status not in _GOES_ON or offset >= ranges[index].until_offset:
            index += 1
            offset = ranges[index].from_offset if index < len(ranges) else 0
        return Frame(found.records, found.sizes, segments, suggestion, found.runs), index, offset

    def _within(self, wanted: Range, ends: Mapping[LogEpoch, int]) -> Range:
        """Returns the part of a range that this log has.  The range may have been planned on another master, some of
        whose records were lost afterwards.
        """
        if wanted.read_in not in ends:
            return wanted
        end = self._broker.store.queues.end_at(wanted.topic, wanted.queue_id, ends[wanted.read_in])
        return wanted._replace(until_offset=max(wanted.from_offset, min(end, wanted.until_offset)))

    def _truncated(
        self, wanted: Range, ends: Mapping[LogEpoch, int], asked_from: int, segment: Segment
    ) -> Segment | None:
        """Returns the segment that ends a range early, because the records after it are lost; None if the range
        continues.

        If messages of the range were also deleted by age, this deletion is reported first.
        """
        end, at = self._within(wanted, ends).until_offset, max(asked_from, segment.next_offset)
        if at < end or end == wanted.until_offset or segment.status is GetMessageStatus.OFFSET_TOO_SMALL:
            return None
        return replace(segment, count=0, next_offset=at, status=GetMessageStatus.OFFSET_TRUNCATED)

    def _check_ranges(self, group_name: str, ranges: Sequence[Range]) -> SubscriptionGroup:
        group = self._checks.group(group_name) if group_name else self._checks.nobodys_group()
        for wanted in dict.fromkeys((item.topic, item.queue_id) for item in ranges):
            self._checks.check_queue(*wanted)
        for item in ranges:
            if not 0 <= item.from_offset <= item.until_offset:
                raise InvalidParameter(
                    f"[{item.from_offset}, {item.until_offset}) is no range of queue {item.queue_id} of {item.topic}"
                )
        return group

    def _refused_ranges(self, ranges: Sequence[Range]) -> Frame:
        segments = []
        for index, item in enumerate(ranges):
            bounds = self._broker.store.queues.bounds(item.topic, item.queue_id)
            segments.append(Segment(index, 0, item.from_offset, *bounds, GetMessageStatus.NO_MATCHED_MESSAGE))
        return Frame([], b"", segments, MASTER_ID)
