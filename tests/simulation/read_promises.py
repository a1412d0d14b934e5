"""The promises about ranged reads, queue bounds, searches by time, and records that no longer exist (C14).

Answers are compared with a replay of the broker's log at the moment of the answer, and with what consumers have read
before.  If records before an offset have changed, a broker must tell this to a consumer that continues at that offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto.records.record import Record

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.promises import Promises
    from tests.simulation.world import World

TRUNCATED = pb.PullResponse.OFFSET_TRUNCATED
# The statuses with which a range ends at the end of its queue.
ENDS = (
    pb.PullResponse.NO_MATCHED_LOGIC_QUEUE,
    pb.PullResponse.NO_MESSAGE_IN_QUEUE,
    pb.PullResponse.OFFSET_OVERFLOW_ONE,
    pb.PullResponse.OFFSET_OVERFLOW_BADLY,
)
# Queue offset -> the record that a consumer has read there, or that was there when the consumer planned a range.
Read = dict[int, Record]


class Place(NamedTuple):
    """The place where a consumer continues or a planned range ends, and the epoch that the consumer names."""

    topic: str
    queue_id: int
    offset: int
    epoch: int
    epoch_id: int


class ReadPromises:
    """What brokers promise about reads.  `broken` makes the exception that names a broken promise."""

    def __init__(self, world: World, promises: Promises, broken: type[AssertionError]) -> None:
        self._world = world
        self._promises = promises
        self._broken = broken
        self._read: dict[Place, Read] = {}
        self._planned: dict[Place, Read] = {}
        # id of a request -> the request, and the next offset of each of its ranges
        self._ranges: dict[int, tuple[Any, list[int]]] = {}
        self.judged = 0

    # --- pulls ----------------------------------------------------------------------------------------------------

    def pulled(self, broker: Broker, request: Any, response: Any, given: Sequence[Record | None]) -> None:
        begin = request.queue_offset
        here = place(request.topic, request.queue_id, begin, request.read_in)
        before = {} if begin == 0 else self._read.get(here)
        if before is None:
            return
        self._is_told(broker, here, before, response.status, response.next_begin_offset)
        if not _may_compare(broker, here):
            return
        after = before | {one.queue_offset: one for one in given if one is not None}
        following = response.next_begin_offset
        self._read[place(request.topic, request.queue_id, following, response.read_in)] = {
            offset: one for offset, one in after.items() if offset < following
        }

    def _is_told(self, broker: Broker, here: Place, before: Read, status: int, following: int) -> None:
        """Checks that the broker has the records that the consumer has read before the offset `here`, or tells the
        consumer that these records are gone.  Only a master that takes writes must know whether the records are gone.
        """
        records = self._queue(broker, here)
        if not before or not records or self._promises.tainted or not _may_compare(broker, here):
            return
        self.judged += 1
        same = [offset for offset, one in before.items() if records.get(offset) == one]
        others = [offset for offset in before if offset >= min(records) and offset not in same]
        if status == TRUNCATED:
            if following in same:
                raise self._broken(f"{broker.name} says that {here} is truncated at {following}, although it has that")
            if wrong := [offset for offset in others if offset < following]:
                raise self._broken(f"{broker.name} says that {here} is truncated at {following} and not at {wrong[0]}")
        elif others and broker.is_writable:
            raise self._broken(
                f"{broker.name} answers {here} with status {status} and {following}, and lacks the record that was "
                f"read at {others[0]}"
            )

    # --- ranges ---------------------------------------------------------------------------------------------------

    def frame(self, broker: Broker, request: Any, frame: Any, given: Sequence[Record | None]) -> None:
        """Checks that pieces of a range come in order and without a gap, and that the range ends
        where the queue ends.
        """
        _, at = self._ranges.setdefault(id(request), (request, [item.from_offset for item in request.ranges]))
        taken = 0
        for segment in frame.segments:
            wanted = request.ranges[segment.range_index]
            part = given[taken : taken + segment.count]
            taken += segment.count
            self._piece(broker, wanted, at[segment.range_index], segment, part)
            at[segment.range_index] = segment.next_offset
        if taken != len(given):
            raise self._broken(f"{broker.name} gives {len(given)} records in a frame whose segments count {taken}")

    def _piece(self, broker: Broker, wanted: Any, at: int, segment: Any, part: Sequence[Record | None]) -> None:
        here = place(wanted.topic, wanted.queue_id, wanted.until_offset, wanted.read_in)
        said = f"{broker.name}, asked for {here} from {at}, gives"
        expected = [(wanted.topic, wanted.queue_id, at + number) for number in range(segment.count)]
        found = [one and (one.topic, one.queue_id, one.queue_offset) for one in part]
        if any(one not in (None, other) for one, other in zip(found, expected, strict=True)):
            raise self._broken(f"{said} the wrong records {found}")
        end = at + segment.count
        if end > wanted.until_offset and segment.count:
            raise self._broken(f"{said} records beyond that range, up to {end}")
        if self._promises.tainted:
            return
        records = self._queue(broker, here)
        if segment.count and segment.next_offset != end:
            raise self._broken(f"{said} records up to {end}, and goes on at {segment.next_offset}")
        skipped = [offset for offset in records if at <= offset < segment.next_offset]
        if not segment.count and segment.status not in ENDS and skipped:
            raise self._broken(f"{said} no records, with status {segment.status}, and passes over {skipped}")
        if segment.status in ENDS:
            left = [offset for offset, one in records.items() if offset >= at and self._must_be_seen(broker, one)]
            if left:
                raise self._broken(f"{said} no records, with status {segment.status}, although it has {left}")
        self._ends_where_its_epoch_did(broker, here, segment, part)

    def _ends_where_its_epoch_did(
        self, broker: Broker, here: Place, segment: Any, part: Sequence[Record | None]
    ) -> None:
        """Checks that a range gives the records that were there when the range was planned."""
        planned = self._planned.get(here)
        if not planned or not _may_compare(broker, here):
            return
        self.judged += 1
        if broker.is_writable:
            for one in part:
                if one is not None and planned.get(one.queue_offset, one) != one:
                    raise self._broken(
                        f"{broker.name} gives another record at {one.queue_offset} than was there when {here} was "
                        f"planned: {one.body[:20]!r} for {planned[one.queue_offset].body[:20]!r}"
                    )
        if segment.status == TRUNCATED:
            at = segment.next_offset
            if at in planned and self._queue(broker, here).get(at) == planned[at]:
                raise self._broken(f"{broker.name} says that {here} is truncated at {at}, although it has that")

    # --- bounds, and the search by time ---------------------------------------------------------------------------

    def bounds(self, broker: Broker, request: Any, response: Any) -> None:
        epoch = response.log_epoch
        for entry in response.entries:
            here = place(request.topic, entry.queue_id, entry.max_offset, epoch)
            records = self._queue(broker, here)
            if not records or self._promises.tainted or broker.disk.unread:
                continue
            said = f"{broker.name} says [{entry.min_offset}, {entry.max_offset}) are the offsets of {here}"
            if entry.min_offset != min(records) and entry.min_offset < entry.max_offset:
                raise self._broken(f"{said}, and its first record has offset {min(records)}")
            if entry.max_offset > max(records) + 1:
                raise self._broken(f"{said}, and its last record has offset {max(records)}")
            behind = [one for offset, one in records.items() if offset >= entry.max_offset]
            if any(self._must_be_seen(broker, one) for one in behind):
                raise self._broken(f"{said}, although it has {behind[0].queue_offset}")
            past = [one for one in records.values() if one.queue_offset < entry.max_offset]
            visible_end = self._promises.visible_ends.of(broker)
            if past and past[-1].commit_log_offset >= visible_end:
                raise self._broken(f"{said}, and slaves have acknowledged the log only up to {visible_end}")
            self._planned[here] = {one.queue_offset: one for one in past}
            self.judged += 1

    def searched(self, broker: Broker, request: Any, response: Any) -> None:
        for entry, offset in zip(request.entries, response.offsets, strict=True):
            records = self._queue(broker, Place(request.topic, entry.queue_id, 0, 0, 0))
            times = [one.store_timestamp for one in records.values()]
            if not records or self._promises.tainted or broker.disk.unread or not _rise(times):
                continue
            self.judged += 1
            expected = next((one for one in records.values() if one.store_timestamp >= entry.timestamp), None)
            if expected is None or not self._must_be_seen(broker, expected):
                wrong = offset > (max(records) + 1 if expected is None else expected.queue_offset)
            else:
                wrong = offset != expected.queue_offset
            if wrong or offset < min(records):
                raise self._broken(
                    f"{broker.name} finds offset {offset} of {request.topic}:{entry.queue_id} for the time "
                    f"{entry.timestamp}, and its records have the times {times} and begin at {min(records)}"
                )

    def _must_be_seen(self, broker: Broker, one: Record) -> bool:
        begin = one.commit_log_offset
        size = int.from_bytes(broker.log(begin, begin + 4), "big")
        return broker.is_writable and begin + size <= self._promises.visible_ends.at_least(broker)

    def _queue(self, broker: Broker, here: Place) -> Read:
        """Returns the queue's records in the broker's log, with those that readers may not see yet."""
        if broker.disk.bad_sectors or broker.disk.still_damaged():
            return {}
        return {
            one.queue_offset: one
            for one in self._promises.records(broker)
            if (one.topic, one.queue_id) == (here.topic, here.queue_id)
        }


def place(topic: str, queue_id: int, offset: int, epoch: Any) -> Place:
    return Place(topic, queue_id, offset, epoch.epoch, epoch.epoch_id)


def _may_compare(broker: Broker, here: Place) -> bool:
    """Returns True if the broker has heard of the epoch that the consumer names.  A broker that has not heard of the
    consumer's epoch cannot know which records are newer.
    """
    return not here.epoch or any(
        (epoch.epoch, epoch.id) == (here.epoch, here.epoch_id) or epoch.epoch > here.epoch
        for epoch in broker.live.epochs.epochs.epochs
    )


def _rise(numbers: Sequence[int]) -> bool:
    return all(one <= other for one, other in pairwise(numbers))
