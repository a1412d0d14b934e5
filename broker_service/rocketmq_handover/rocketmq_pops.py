"""RocketMQ's checkpoints and acks of pops: the deliveries that a real RocketMQ had under way.  Pure.

Its pop commits the group's offset, and appends a checkpoint to a queue of the topic `rmq_sys_REVIVE_LOG_<cluster>`, as
a message with a delivery time: a second before the deadline.  So it waits in the timer topic first.  An ack is a
message with the deadline itself as its time.  Bodies are JSON:

    tag ck    t topic, c group, q queue id, so first offset, n messages, d offset of each from so (none: consecutive),
              bm bit map of the acknowledged ones, pt pop time, it invisible time (ms), sp the attempt does not count
    tag ack   t, c, q, so, pt as the checkpoint has them; ao the offset     bAck: aol, a list of offsets

RocketMQ 5.0 has the long names in acks.  A changed invisible time is a checkpoint of one message and an ack of the old
one.  `CID_RMQ_SYS_REVIVE_GROUP` has, in each queue, the offset of the last checkpoint that is done.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rocketsim_proto.records.record import PROPERTY_TAGS, Record

from broker_service.state.transitions import Deadline, DeliveryId, Place, Take, Transition

REVIVE_TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"

_CHECKPOINT, _ACK, _BATCH_ACK = "ck", "ack", "bAck"
_SHORT_NAMES = "t", "c", "q", "so", "pt"
_LONG_NAMES = "topic", "consumerGroup", "queueId", "startOffset", "popTime"
_MESSAGES_A_TRANSITION = 1000


class Held(NamedTuple):
    """A delivery of RocketMQ's that nobody has acknowledged."""

    popped_ms: int
    deadline_ms: int
    counted: bool


class _Key(NamedTuple):
    place: Place
    start: int
    popped_ms: int


class Checkpoints:
    """Keeps what was popped, and what of it was acknowledged.  A record may be added more than once, in any order."""

    def __init__(self) -> None:
        self._taken: dict[_Key, tuple[dict[int, None], bool, int]] = {}
        self._acknowledged: dict[_Key, set[int]] = {}

    def add(self, message: Record) -> None:
        """ValueError for a record that is none of the three, or damaged."""
        tag = message.properties.get(PROPERTY_TAGS, "")
        if tag not in (_CHECKPOINT, _ACK, _BATCH_ACK):
            raise ValueError(f"tag {tag[:20]!r}")
        try:
            content = json.loads(message.body)
            key = _key(content)
            done = self._acknowledged.setdefault(key, set())
            if tag == _BATCH_ACK:
                done.update(map(int, content["aol" if "aol" in content else "ackOffsetList"]))
            elif tag == _ACK:
                done.add(int(content["ao" if "ao" in content else "ackOffset"]))
            else:
                count, bits = int(content["n"]), int(content.get("bm", 0))
                offsets = [key.start + int(more) for more in content.get("d") or range(count)]
                done.update(offset for number, offset in enumerate(offsets) if bits >> number & 1)
                deadline_ms = key.popped_ms + int(content["it"])
                self._taken[key] = dict.fromkeys(offsets), not content.get("sp", False), deadline_ms
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    def unacknowledged(self) -> dict[Place, dict[int, Held]]:
        """By queue offset.  Of several deliveries of a message the one with the last deadline counts."""
        found: dict[Place, dict[int, Held]] = {}
        for key, (offsets, counted, deadline_ms) in self._taken.items():
            done = self._acknowledged.get(key, ())
            for offset in offsets:
                if offset in done:
                    continue
                of_place = found.setdefault(key.place, {})
                held = Held(key.popped_ms, deadline_ms, counted)
                of_place[offset] = max(held, of_place.get(offset, held), key=lambda one: one.deadline_ms)
        return found


def takes(
    place: Place, held: Mapping[int, Held], next_offset: int, attempts: Mapping[int, int], pop: int
) -> Iterator[Transition]:
    """The transitions after which these deliveries are under way, and all others before `next_offset` settled.

    `attempts`: 1 for offsets that it does not have.  The first transitions stand for themselves: if the later ones are
    lost, the group goes on behind what the first ones have.
    """
    runs: list[list[int]] = []
    for offset in sorted(held):
        if runs and held[runs[-1][-1]] == held[offset] and len(runs[-1]) < _MESSAGES_A_TRANSITION:
            runs[-1].append(offset)
        else:
            runs.append([offset])
    for number, offsets in enumerate(runs):
        popped_ms, deadline_ms, counted = held[offsets[0]]
        yield Take(
            place=place,
            pop=pop,
            start=offsets[0],
            next=next_offset if number + 1 == len(runs) else offsets[-1] + 1,
            offsets=tuple(offsets),
            attempts=tuple(attempts.get(offset, 1) for offset in offsets),
            popped_ms=popped_ms,
            deadline_ms=deadline_ms,
        )
        if not counted:
            deliveries = tuple(DeliveryId(pop, offset) for offset in offsets)
            yield Deadline(place=place, deliveries=deliveries, deadline_ms=deadline_ms, counted=False)


def _key(content: Mapping[str, Any]) -> _Key:
    names = _SHORT_NAMES if "t" in content else _LONG_NAMES
    topic, group, queue_id, start, popped_ms = [content[name] for name in names]
    if not (isinstance(topic, str) and isinstance(group, str)):
        raise ValueError("it names no group and topic")
    return _Key(Place(group, topic, int(queue_id)), int(start), int(popped_ms))
