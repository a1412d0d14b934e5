"""The source's interface to the brokers, in memory.  This cluster answers correctly by default, and otherwise on
request.

Tests of the code for Spark's driver and executors use this cluster.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from rocketsim_proto.records import record

from rocketsim_client.errors import (
    BrokerNotExist,
    BrokerRefused,
    BrokerUnavailable,
    InvalidParameter,
    RocketSimError,
    TopicNotExist,
)
from rocketsim_client.model import (
    NO_EPOCH,
    CommitResult,
    GetMessageStatus,
    LogEpoch,
    MessageQueue,
    OffsetRange,
    PullFrame,
    QueueBounds,
    Segment,
)
from rocketsim_source.source_cluster import OffsetAnswers, Offsets, QueueStates, ReadIn


def message(
    queue: MessageQueue, offset: int, body: bytes | None = None, *, sys_flag: int = 0, **properties: str
) -> bytes:
    one = record.Record(queue.topic, body if body is not None else f"{queue}#{offset}".encode())
    one.sys_flag = sys_flag
    one.queue_id, one.queue_offset = queue.queue_id, offset
    one.born_timestamp, one.store_timestamp = 1000 + offset, 2000 + offset
    one.properties = {"UNIQ_KEY": f"{queue.queue_id:08X}{offset:024X}"} | properties
    return record.encode(one)


class MemoryBroker:
    """One broker: its records of each queue, and the broker that it suggests to readers."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.up = True
        self.first: dict[MessageQueue, int] = defaultdict(int)
        self.end: dict[MessageQueue, int] = {}
        self.epoch = NO_EPOCH
        self.ends_in: dict[LogEpoch, Offsets] = {}  # the ends of its queues in earlier epochs
        self.suggests: list[int] = []  # the suggestions in the next frames, before `suggest` applies
        self.suggest = 0
        self.frames_until_it_breaks: int | None = None
        self.spoil: list[PullFrame] = []  # frames that are sent in place of the next ones
        self.packed: dict[tuple[MessageQueue, int], bytes] = {}  # bodies that are marked as compressed, rightly or not
        self.flipped: set[tuple[MessageQueue, int]] = set()  # records whose body does not match their checksum
        self.refuse: list[RocketSimError] = []  # the errors of the next pulls
        self.pulls: list[list[OffsetRange]] = []

    def frames(self, ranges: Sequence[OffsetRange], rows: int, tag: str | None) -> Iterator[PullFrame]:
        self.pulls.append(list(ranges))
        if self.refuse:
            raise self.refuse.pop(0)
        self.check((queue for queue, _, _ in ranges), pulled=True)
        for index, (queue, start, until) in enumerate(ranges):
            at = start
            while at < until:
                if not self.up or self.frames_until_it_breaks == 0:
                    self.frames_until_it_breaks = None
                    raise BrokerUnavailable("broken by the test")
                if self.frames_until_it_breaks is not None:
                    self.frames_until_it_breaks -= 1
                if self.spoil:
                    yield self.spoil.pop(0)
                    return
                frame = self._frame(index, queue, at, min(until, at + rows), tag)
                yield frame
                at = frame.segments[0].next_offset
                if frame.segments[0].status not in (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE):
                    break

    def _message(self, queue: MessageQueue, offset: int) -> bytes:
        if packed := self.packed.get((queue, offset)):
            # A broker's filter by the tag's hash lets a third of the messages pass.  Half of these have another tag.
            tag = "A" if offset % 6 == 0 else "B"
            return message(queue, offset, packed, sys_flag=record.SYS_FLAG_COMPRESSED, TAGS=tag)
        data = bytearray(message(queue, offset))
        if (queue, offset) in self.flipped:
            at = data.index(f"{queue}#{offset}".encode())
            data[at] ^= 1
        return bytes(data)

    def check(self, queues: Iterable[MessageQueue], *, pulled: bool = False) -> None:
        """Refuses the whole call if one topic or queue does not exist, as a real broker does."""
        for queue in queues:
            if queue in self.end:
                continue
            others = [other.queue_id for other in self.end if other.topic == queue.topic]
            if not others:
                raise TopicNotExist(f"topic {queue.topic!r} does not exist here")
            reason = f"queue {queue.queue_id} of topic {queue.topic}, which has {max(others) + 1} queues"
            raise BrokerRefused(reason, code=1) if pulled else InvalidParameter(reason)

    def _frame(self, index: int, queue: MessageQueue, at: int, until: int, tag: str | None) -> PullFrame:
        suggested = self.suggests.pop(0) if self.suggests else self.suggest
        first, end = self.first[queue], self.end[queue]
        status = None
        if at < first:
            status = GetMessageStatus.OFFSET_TOO_SMALL
        elif at >= end:
            status = GetMessageStatus.OFFSET_OVERFLOW_ONE if at == end else GetMessageStatus.OFFSET_OVERFLOW_BADLY
        if status is not None:
            return PullFrame(b"", b"", [Segment(index, 0, at, first, end, status)], suggested, self.broker_id)
        until = min(until, end)
        found = [self._message(queue, offset) for offset in range(at, until) if tag is None or offset % 3 == 0]
        sizes = np.array([len(data) for data in found], "<u4").tobytes()
        status = GetMessageStatus.FOUND if found else GetMessageStatus.NO_MATCHED_MESSAGE
        segment = Segment(index, len(found), until, first, end, status)
        return PullFrame(b"".join(found), sizes, [segment], suggested, self.broker_id)


class MemoryCluster:
    """The pair `broker-a` with as many members as wanted.  A frame has `rows` records."""

    protocol = "grpc"

    def __init__(self, *broker_ids: int, rows: int = 10) -> None:
        self.brokers = {broker_id: MemoryBroker(broker_id) for broker_id in broker_ids or (0,)}
        self.rows = rows
        self.packed = False  # if true, small ranges share a frame, as at real brokers
        self.offsets: dict[str, Offsets] = defaultdict(dict)
        self.bounds_calls = 0
        # Called by the next waits for records.  Without an entry, a wait returns at once.
        self.waits: list[Callable[[], bool]] = []
        self.ranges_pulled = (0, 0)
        self.commits: list[tuple[str, Offsets]] = []
        self.commit_fails = 0
        self.suspected: list[int] = []
        self.dropped: set[MessageQueue] = set()
        self.unwritable: set[MessageQueue] = set()  # queues that the topic has only for reading
        self.is_closed = False
        self.closed: Offsets = {}  # the ends of queues that were taken from their topic by `take_away`
        self.says_closed = True  # if false, refuses the end of a removed queue, as older brokers do
        self.unrouted: set[str] = set()  # topics of which the name server knows no broker
        self.searches_fail = False
        self.times: dict[MessageQueue, list[int]] = {}

    def put(self, queue: MessageQueue, count: int, *broker_ids: int) -> None:
        """Adds `count` messages, at all brokers or at those of `broker_ids`."""
        for broker_id in broker_ids or self.brokers:
            ends = self.brokers[broker_id].end
            ends[queue] = ends.get(queue, 0) + count

    def _usable(self) -> MemoryBroker | None:
        return next((broker for _, broker in sorted(self.brokers.items()) if broker.up), None)

    # --- the seam -----------------------------------------------------------------------------------------------------

    def drop(self, queue: MessageQueue, *broker_ids: int) -> None:
        """Removes the queue, as if its topic were deleted or had fewer queues now."""
        for broker_id in broker_ids or self.brokers:
            del self.brokers[broker_id].end[queue]
        if not any(queue in broker.end for broker in self.brokers.values()):
            self.dropped.add(queue)

    def take_away(self, queue: MessageQueue) -> None:
        """Gives the queue's topic fewer queues, for writers and readers."""
        self.closed[queue] = max(broker.end[queue] for broker in self.brokers.values())
        self.drop(queue)

    def topics(self) -> list[str]:
        return sorted({queue.topic for broker in self.brokers.values() for queue in broker.end})

    def queues(self, topic: str, *, fresh: bool = False) -> list[MessageQueue] | None:
        found = {q for broker in self.brokers.values() if broker.up for q in broker.end if q.topic == topic}
        return None if topic in self.unrouted else sorted(found) or None

    def bounds(self, queues: Iterable[MessageQueue], read_in: ReadIn | None = None, group: str = "") -> QueueStates:
        self.bounds_calls += 1
        broker = self._usable()
        states = QueueStates()
        for queue in queues:
            if broker is None:
                states.unreachable[queue] = BrokerUnavailable("down")
            elif queue in broker.end:
                end = broker.end[queue]
                known = {epoch: ends[queue] for epoch, ends in broker.ends_in.items() if queue in ends}
                asked = {epoch: known[epoch] for epoch in (read_in or {}).values() if epoch in known}
                states.bounds[queue] = QueueBounds(
                    broker.first[queue],
                    end,
                    size_bytes=100 * end,
                    broker_id=broker.broker_id,
                    is_master=broker.broker_id == 0,
                    log_epoch=broker.epoch,
                    ends_in=asked,
                    writable=queue not in self.unwritable,
                    ranges_pulled=self.ranges_pulled,
                )
            elif broker.broker_id == 0:
                states.gone.add(queue)
                if self.says_closed and queue in self.closed:
                    states.closed[queue] = self.closed[queue]
            else:
                states.unreachable[queue] = BrokerNotExist("no master, and its slave may not know yet")
        return states

    def search(self, timestamps: Mapping[MessageQueue, int]) -> OffsetAnswers:
        """Returns the offsets at these times.  Offset n was stored at the time 2000 + n."""
        if self.searches_fail or self._usable() is None:
            return OffsetAnswers({}, dict.fromkeys(timestamps, BrokerUnavailable("no")))
        broker, found = self.brokers[0], OffsetAnswers()
        for topic in {queue.topic for queue in timestamps}:
            asked = {queue: ms for queue, ms in timestamps.items() if queue.topic == topic}
            try:
                broker.check(asked)
            except RocketSimError as refusal:
                found.unreachable |= dict.fromkeys(asked, refusal)
                continue
            found.offsets |= {q: min(max(ms - 2000, broker.first[q]), broker.end[q]) for q, ms in asked.items()}
        return found

    def committed(self, group: str, queues: Collection[MessageQueue]) -> OffsetAnswers:
        broker = self._usable()
        found = {} if broker is None else {q: self.offsets[group][q] for q in queues if q in self.offsets[group]}
        if broker is not None and broker.broker_id == 0:
            return OffsetAnswers(found)
        return OffsetAnswers(found, {queue: BrokerUnavailable("no") for queue in queues if queue not in found})

    def commit(self, group: str, offsets: Offsets, target: str, timeout_s: float) -> CommitResult:
        self.commits.append((target, dict(offsets)))
        broker = self._usable()
        names = {queue.broker_name for queue in offsets}
        if broker is None or self.commit_fails or (target == "masterOnly" and broker.broker_id):
            self.commit_fails = max(0, self.commit_fails - 1)
            return CommitResult({}, {}, {name: BrokerUnavailable("no") for name in names})
        stands = self.offsets[group]
        taken = {queue: offset for queue, offset in offsets.items() if queue not in self.dropped}
        for queue, offset in taken.items():
            stands[queue] = max(offset, stands.get(queue, -1))
        refused: dict[str, RocketSimError] = {}
        try:
            broker.check(offsets.keys() - taken.keys())
        except RocketSimError as refusal:
            refused = dict.fromkeys(names, refusal)
        took = names if taken else set[str]()
        return CommitResult(dict.fromkeys(took, broker.broker_id), {queue: stands[queue] for queue in taken}, refused)

    def pull(
        self,
        ranges: Sequence[OffsetRange],
        *,
        broker_id: int,
        only_this: bool,
        group: str,
        expression: str,
        frame_bytes: int,
        read_in: ReadIn | None = None,
    ) -> Iterator[PullFrame]:
        """Pulls as the client does: from the given broker, or else from another one.  If a stream breaks, another
        broker continues it at the same offset.
        """
        order = [broker_id, *(other for other in sorted(self.brokers) if other != broker_id)]
        order = [other for other in order if other in self.brokers and (not only_this or other == broker_id)]
        broker = next((self.brokers[other] for other in order if self.brokers[other].up), None)
        if broker is None:
            raise BrokerUnavailable("nobody is up")
        frames = broker.frames(ranges, self.rows, None if expression == "*" else expression)
        yield from packed(frames) if self.packed else frames

    def members(self, queue: MessageQueue) -> dict[int, bool]:
        return {broker_id: broker.up for broker_id, broker in self.brokers.items()}

    def wait_for_records(self, ends: Offsets, hold_s: float) -> bool:
        self.waited_beyond = dict(ends)
        return self.waits.pop(0)() if self.waits else False

    def suspect(self, queue: MessageQueue, broker_id: int) -> None:
        self.suspected.append(broker_id)

    def probe(self, queue: MessageQueue, offset: int, group: str) -> int:
        return self.brokers[0].suggest

    def close(self) -> None:
        self.is_closed = True


def packed(frames: Iterator[PullFrame]) -> Iterator[PullFrame]:
    """Yields the same records in fewer frames: eight frames become one."""
    while together := list(itertools.islice(frames, 8)):
        last = together[-1]
        yield PullFrame(
            b"".join(bytes(frame.records) for frame in together),
            b"".join(frame.sizes for frame in together),
            [segment for frame in together for segment in frame.segments],
            last.suggest_which_broker_id,
            last.broker_id,
        )
