"""Reads RocketMQ's checkpoints and acks, which show the deliveries that a RocketMQ had under way.

A pop in RocketMQ commits the group's offset, and writes a checkpoint for the topic `rmq_sys_REVIVE_LOG_<cluster>`.  The
checkpoint is a message whose delivery time is one second before the deadline of the pop, so the message first waits in
the timer topic.  An ack is a message for the same topic, with the deadline of the pop as its delivery time.  The bodies
are JSON with these fields:

    tag ck    t topic, c group, q queue id, so first offset, n messages, d offset of each from so (none: consecutive),
              bm bit map of the acknowledged ones, pt pop time, it invisible time (ms), sp the attempt does not count
    tag ack   t, c, q, so, pt as the checkpoint has them; ao the offset     bAck: aol, a list of offsets

In acks, RocketMQ 5.0 writes the long names of the fields, such as `topic` instead of `t`.  If a client changes an
invisible time, RocketMQ writes a new checkpoint for that message, and an ack for the old delivery.  The group
`CID_RMQ_SYS_REVIVE_GROUP` commits, for each queue, the offset of the last checkpoint that RocketMQ has finished.
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
    """A delivery by RocketMQ that nobody has acknowledged."""

    popped_ms: int
    deadline_ms: int
    counted: bool


class _Key(NamedTuple):
    place: Place
    start: int
    popped_ms: int


class Checkpoints:
    """Collects RocketMQ's checkpoints and acks.  Records may be added in any order, and more than once."""

    def __init__(self) -> None:
        self._taken: dict[_Key, tuple[dict[int, None], bool, int]] = {}
        self._acknowledged: dict[_Key, set[int]] = {}

    def add(self, message: Record) -> None:
        """Adds a checkpoint or an ack to the collection.  Raises ValueError for a damaged record, and for a record that
        is neither a checkpoint nor an ack.
        """
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
        """Returns the deliveries that were not acknowledged, by place and queue offset.

        If a message was delivered several times, the delivery with the last deadline counts.
        """
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
    """Makes transitions after which these deliveries are under way, and all other messages before `next_offset` are
    settled.

    `attempts` has the attempt number by offset, and an offset without a number is at its first attempt.  If a crash
    cuts off the last transitions, the state is still valid, and the group continues after the last message of the
    transitions that were stored.
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
        raise ValueError("the record names no group and topic")
    return _Key(Place(group, topic, int(queue_id)), int(start), int(popped_ms))
