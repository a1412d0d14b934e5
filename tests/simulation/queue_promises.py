"""The promises about queues: one record for each offset, order, retention, delayed messages.

Answers are compared with each other and with the log's bytes, record by record.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from rocketsim_proto.records import record
from rocketsim_proto.records.record import PROPERTY_REAL_TOPIC, Record
from rocketsim_proto.reserved import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from broker_service.replication.epochs import Epoch
    from tests.simulation.broker import Broker
    from tests.simulation.promises import Message
    from tests.simulation.world import World

DELAYS_MS = {1: 1000, 2: 3000}  # delay level -> delay, equal to the brokers' configuration


class _Told(NamedTuple):
    """When a client was told of the message, the number of the call that sent the message, and the message's place in
    that call.
    """

    at: float
    message: Message
    number: int
    place: int


class _Deletion(NamedTuple):
    """A deletion of log files.  After the deletion, the log begins at `first`, with a record whose store time is
    `last_ms`.  `epochs` are the epochs of the log.
    """

    first: int
    epochs: tuple[Epoch, ...]
    now_ms: int
    last_ms: int
    was_full: bool

    def has_had(self, message: Message) -> bool:
        epochs = [epoch for epoch in self.epochs if epoch.start_offset <= message.begin < self.first]
        return bool(epochs) and (epochs[-1].epoch, epochs[-1].id) == (message.epoch, message.epoch_id)

    def age_ms(self, message: Message) -> int:
        return self.now_ms - min(record.decode(message.data).store_timestamp, self.last_ms)


class QueuePromises:
    """What brokers promise about queues.  `broken` makes the exception that names a broken promise."""

    def __init__(self, world: World, broken: type[AssertionError]) -> None:
        self._world = world
        self._broken = broken
        self._told: defaultdict[tuple[str, int], dict[int, _Told]] = defaultdict(dict)
        self._first: dict[int, int] = {}
        self._was_full: set[int] = set()
        self._deletions: list[_Deletion] = []
        self.delivered: set[bytes] = set()

    # --- order ----------------------------------------------------------------------------------------------------

    def known(self, one: Record) -> Message | None:
        """Returns the message of which clients were told that it has this record's queue offset."""
        told = self._told[one.topic, one.queue_id].get(one.queue_offset)
        return told.message if told else None

    def told(self, message: Message, one: Record) -> None:
        """Checks the queue offset of a record when a producer or consumer is told of the record.

        No other record may have the same queue offset.  The offset must be higher than those of all records of which
        any client had been told when this record was sent, and of the records that the same call sent before this one.
        """
        queue = one.topic, one.queue_id
        known = self.known(one)
        if known is not None and not known.excused and known.data != message.data:
            raise self._broken(
                f"{message.what}: offset {one.queue_offset} of {queue} was {known.data[-40:]!r} at {known.begin}, and "
                f"is {message.data[-40:]!r} at {message.begin}"
            )
        number, place = _sent_as(one.body)
        sent_at = self._world.clients.sent_at[number]
        for offset, other in self._told[queue].items():
            if other.message.excused or offset == one.queue_offset:
                continue
            is_behind = other.at < sent_at or (other.number == number and other.place < place)
            is_before = other.number == number and other.place > place
            if (is_behind and offset > one.queue_offset) or (is_before and offset < one.queue_offset):
                raise self._broken(
                    f"{message.what} has offset {one.queue_offset} of {queue}, and {other.message.what}, which was "
                    f"{'there when it was sent' if is_behind else 'sent after it'}, has {offset}"
                )
        self._told[queue][one.queue_offset] = _Told(self._world.loop.now, message, number, place)

    def answer_is_in_order(self, broker: Broker, wanted: int, records: Sequence[Record | None]) -> None:
        """Checks that the records of a pull are consecutive, and that none comes before the requested offset.  A
        damaged record is None in `records`.
        """
        offsets = [-1 if one is None else one.queue_offset for one in records]
        if not offsets:
            return
        first = max(offsets[0], wanted)
        if any(offset not in (-1, at) for at, offset in enumerate(offsets, start=first)) and -1 != offsets[0]:
            raise self._broken(f"{broker.name} gives the offsets {offsets} in answer to a pull from {wanted}")

    def offsets_are_dense(self, broker: Broker, records: Iterable[Record]) -> None:
        queues = defaultdict(list)
        for one in records:
            if one.topic not in self._world.deleted_topics:
                queues[one.topic, one.queue_id].append(one.queue_offset)
        for queue, offsets in queues.items():
            if any(other != offset + 1 for offset, other in pairwise(offsets)):
                raise self._broken(f"{broker}: queue {queue} has a gap or a repetition in its offsets {offsets}")

    def store_times_never_fall(self, broker: Broker, records: Sequence[Record]) -> None:
        for before, one in pairwise(records):
            if one.store_timestamp < before.store_timestamp:
                raise self._broken(
                    f"{broker}: store times fall by {before.store_timestamp - one.store_timestamp} ms at log offset "
                    f"{one.commit_log_offset}"
                )

    # --- retention ------------------------------------------------------------------------------------------------

    def nothing_young_goes(self, broker: Broker, first: int, messages: Iterable[Message]) -> None:
        """Checks a log that now begins at `first`: only a full disk lets a broker delete records before their retention
        time.

        A slave that starts over begins its log where its master's log begins, so any broker may lack the records that
        one broker may delete.
        """
        was_full = broker.is_full or broker.broker_id in self._was_full
        self._was_full.discard(broker.broker_id)
        if broker.is_full:
            self._was_full.add(broker.broker_id)
        if first == self._first.get(broker.broker_id, 0):
            return
        self._first[broker.broker_id] = first
        # Retention goes by the time of a file's last write, which may be wrong if the clock was put back.
        last_ms = self._store_time_at(broker, first)
        epochs = broker.live.epochs.epochs.epochs
        now_ms = min(broker.clock.now_ms(), broker.live.broker.day_ms())
        deletion = _Deletion(first, epochs, now_ms, last_ms, was_full)
        self._deletions.append(deletion)
        for message in messages:
            if message.begin >= first or message.excused or broker.broker_id not in message.holders:
                continue
            if not self._might_be_deleted(deletion, message) and not any(
                other.has_had(message) and self._might_be_deleted(other, message) for other in self._deletions
            ):
                minutes = deletion.age_ms(message) / 60_000
                raise self._broken(f"{broker} has deleted {message.what}, which is {minutes:.0f} minutes old")

    def _might_be_deleted(self, deletion: _Deletion, message: Message) -> bool:
        return deletion.was_full or deletion.age_ms(message) >= self._world.retention_h * 3_600_000

    def _store_time_at(self, broker: Broker, offset: int) -> int:
        """Returns the store time of the record that begins at that offset, or the broker's time if no record begins
        there.
        """
        size = int.from_bytes(broker.log(offset, offset + 4, as_written=True), "big")
        try:
            return record.decode(broker.log(offset, offset + size, as_written=True)).store_timestamp
        except (record.RecordError, struct.error):
            return broker.clock.now_ms()

    # --- delayed messages -----------------------------------------------------------------------------------------

    def delayed_come_once_and_in_time(self, broker: Broker, records: Sequence[Record]) -> None:
        waiting = {one.body: one for one in records if one.topic == SCHEDULE_TOPIC}
        delivered: set[bytes] = set()
        for one in records:
            sent = self._world.clients.delayed.get(one.body)
            if sent is None or one.topic == SCHEDULE_TOPIC:
                continue
            topic, queue_id, level = sent
            if one.body in delivered:
                raise self._broken(f"{broker}: the delayed message {one.body[:20]!r} is delivered twice")
            delivered.add(one.body)
            if (one.topic, one.queue_id) != (topic, queue_id):
                raise self._broken(f"{broker}: {one.body[:20]!r} is in {one.topic}:{one.queue_id}, sent to {sent}")
            stored = waiting.get(one.body)
            if stored is None:
                continue
            early_ms = stored.store_timestamp + DELAYS_MS[level] - one.store_timestamp
            if early_ms > 0:
                raise self._broken(f"{broker}: {one.body[:20]!r} is delivered {early_ms} ms before its time")
        self.delivered |= delivered

    def overdue(self, broker: Broker, records: Sequence[Record]) -> list[bytes]:
        """Returns the delayed messages in the log that are due by the broker's time and not delivered.  Messages of one
        level are delivered in order.
        """
        delivered = {one.body for one in records if one.topic != SCHEDULE_TOPIC}
        now_ms = broker.live.broker.now_ms()
        overdue, waiting = [], set()
        for one in records:
            if one.topic != SCHEDULE_TOPIC or one.body in delivered or one.queue_id in waiting:
                continue
            if one.properties.get(PROPERTY_REAL_TOPIC) in self._world.deleted_topics:
                continue  # the broker drops a delayed message whose topic is deleted when it is due
            if one.store_timestamp + DELAYS_MS[one.queue_id + 1] <= now_ms:
                overdue.append(one.body[:20])
            else:
                waiting.add(one.queue_id)
        return overdue


def _sent_as(body: bytes) -> tuple[int, int]:
    """Returns the number of the call that sent the message, and the message's place in the call."""
    number, _, place = body.partition(b" ")[0].partition(b".")
    return int(number), int(place)
