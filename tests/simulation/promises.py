"""Records each promise of a broker when the broker makes it, and checks it until the end of the run.

An answer makes a promise: a send that is OK, a message that is given to a consumer, a commit that is accepted.  The
checks read the disks, and do not ask the code under test.  After an OK, the message must be here:

| mode of the master              | places of the message                           |
|---------------------------------|-------------------------------------------------|
| ASYNC_MASTER with ASYNC_FLUSH   | page cache of the master                        |
| ASYNC_MASTER with SYNC_FLUSH    | disk of the master                              |
| SYNC_MASTER with ASYNC_FLUSH    | page caches of the master and of a slave        |
| SYNC_MASTER with SYNC_FLUSH     | disks of the master and of a slave              |

A broker that must have a message is called a *holder* of this message.  A holder may lose the message by a power loss,
if it was not on the disk, by damage of the disk, by retention, or when a broker without the message becomes master.  A
broker without the message may become master only if an operator decided so, or if no holder could be reached.  An
allowed loss of the message is called *excused*.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record
from rocketsim_proto.reserved import SCHEDULE_TOPIC

from broker_service.replication.epochs import Epoch
from tests.simulation.broker import LOG_FILE
from tests.simulation.offset_promises import OffsetPromises
from tests.simulation.queue_promises import QueuePromises
from tests.simulation.read_promises import ReadPromises
from tests.simulation.visible_ends import VisibleEnds
from tests.support import stores

if TYPE_CHECKING:
    from pathlib import Path

    from broker_service.node.node import BrokerNode
    from broker_service.store.message_store import MessageStore
    from tests.simulation.broker import Broker
    from tests.simulation.disk import Damage
    from tests.simulation.world import World

ANSWERED_WITHIN_S = 10.0
# The longest time in which an old master may answer after a forced promotion.  A living master is told of the
# promotion, but its last answers may wait 1 s for a slave.
TOLD_WITHIN_S = 2.0
NOWHERE = 1 << 62
UNANSWERED = 1 << 16  # the most bytes of log of which no client has been told yet


Queues = dict[tuple[str, int], list[tuple[int, int, int]]]  # (queue offset, log offset, tags code) of each entry


class PromiseBroken(AssertionError):
    """A promise that a run has broken.  The message names the promise, and the command that repeats the run."""


@dataclass(eq=False)
class Message:
    """A message at its place in the log, of which a producer or consumer was told."""

    what: str
    epoch: int
    epoch_id: int
    begin: int
    end: int
    data: bytes
    by_ok: bool
    holders: set[int] = field(default_factory=set)
    excused: str = ""


class Opening(NamedTuple):
    """The moment at which a broker began to take writes.  `needed` names the brokers whose records the new master must
    have, with the reason for each.
    """

    history: tuple[Epoch, ...]  # the epochs in the master's log, of which the last one has just begun
    was_promoted: bool
    needed: dict[int, str]

    @property
    def epoch(self) -> Epoch:
        return self.history[-1]


class Promises:
    def __init__(self, world: World) -> None:
        self._world = world
        self.messages: list[Message] = []
        self.queues = QueuePromises(world, PromiseBroken)
        self.offsets = OffsetPromises(world, self, PromiseBroken)
        self.visible_ends = VisibleEnds(world)
        self.reads = ReadPromises(world, self, PromiseBroken)
        self._offsets: dict[int, dict[tuple[str, str, int], Any]] = {}
        # (number, id) of an epoch -> its start, and the first broker that was seen with it
        self._epochs: dict[tuple[int, int], tuple[int, int]] = {}
        self._promised_epoch: dict[int, int] = {}
        self._before_power_loss: dict[int, tuple[float, bytes]] = {}
        self._openings: dict[tuple[int, Epoch], Opening] = {}
        self.ok = self.read = self.lost = self.damaged_reads = 0
        # Ranges of log offsets that a disk has ever damaged, with the damaged bytes.
        self.tainted: list[tuple[int, int, bytes]] = []
        self._held_before_damage: list[tuple[Broker, Message]] = []
        self.refused_bodies: set[bytes] = set()
        self.broken: PromiseBroken | None = None

    # --- promises, as they are made -------------------------------------------------------------------------------

    def answered(self, broker: Broker, path: str, request: Any, response: Any) -> None:
        """Checks an answer that a broker sends."""
        try:
            self._look_for_masters()
            match path.rpartition("/")[2]:
                case "Send" if response.status == pb.SendResponse.PUT_OK:
                    self._send_ok(broker, request, response)
                case "Pull":
                    given = self._given(broker, response.records)
                    self.queues.answer_is_in_order(broker, request.queue_offset, given)
                    self.reads.pulled(broker, request, response, given)
                case "PullRange":
                    frame = pb.PullFrame.FromString(response)
                    self.reads.frame(broker, request, frame, self._given(broker, frame.records))
                case "QueueBounds":
                    self.reads.bounds(broker, request, response)
                case "SearchOffsets":
                    self.reads.searched(broker, request, response)
                case "CommitOffsets":
                    self.offsets.answered_commit(broker, request, response)
                case "ResetOffsetByTime":
                    self.offsets.answered_reset(broker, request, response)
                case "QueryOffsets":
                    self.offsets.answered_query(broker, request, response)
        except PromiseBroken as broken:
            self.broken = self.broken or broken

    def _send_ok(self, broker: Broker, request: Any, response: Any) -> None:
        self.ok += 1
        self._may_write(broker)
        for run in response.runs:
            begin = run.commit_log_offset
            for _ in range(run.count):
                end = begin + int.from_bytes(broker.log(begin, begin + 4, as_written=True), "big")
                data = broker.log(begin, end, as_written=True)
                message = Message(f"the message at {begin}", *_epoch_of(broker, begin), begin, end, data, by_ok=True)
                self._check_placed(broker, message)
                self._oblige(message)
                if not message.excused:
                    self.queues.told(message, record.decode(data))
                begin = end

    def _check_placed(self, broker: Broker, message: Message) -> None:
        levels = self._world.levels
        if not self._was_given(broker, message, durable=levels.sync_flush):
            raise PromiseBroken(
                f"{message.what} is OK, but not on {broker.name}'s {_where(levels.sync_flush)}, which is its master"
            )
        others = [other for other in self._world.brokers if other is not broker]
        if levels.sync_master and not any(
            self._was_given(other, message, durable=levels.sync_flush) or self._had(other, message) for other in others
        ):
            raise PromiseBroken(f"{message.what} is OK, but in no slave's {_where(levels.sync_flush)}")

    def _given(self, broker: Broker, records: bytes) -> list[Record | None]:
        """Returns the records that a consumer is given, with None for a damaged record."""
        given: list[Record | None] = []
        at = 0
        while at < len(records):
            size = int.from_bytes(records[at : at + 4], "big")
            data = records[at : at + size]
            at += size
            one = self._read_by_consumer(broker, data)
            given.append(one)
            if one is None:
                continue
            self.read += 1
            if one.body in self.refused_bodies and one.body:
                raise PromiseBroken(f"{broker.name} gives {one.body[:20]!r}, which was refused when it was sent")
            begin = one.commit_log_offset
            if begin + size > (visible_end := self.visible_ends.of(broker)):
                raise PromiseBroken(
                    f"{broker.name} gives log bytes [{begin}, {begin + size}), and slaves have acknowledged up to "
                    f"{visible_end}"
                )
            known = self.queues.known(one)
            if known is not None and not known.excused and known.data == data:
                continue
            message = Message(
                f"the message that {broker.name} gave at {begin}",
                *_epoch_of(broker, begin),
                begin,
                begin + size,
                data,
                by_ok=False,
            )
            if self._is_of_the_past(message) or self._is_left_behind(message):
                continue  # a broker that does not know the new master yet may serve records that will be cut
            self._oblige(message)
            self.queues.told(message, one)
        return given

    def _read_by_consumer(self, broker: Broker, data: bytes) -> record.Record | None:
        """Returns the record as a consumer reads it, or None if the record is damaged.

        A checksum shows damage of the body only, because RocketMQ's format has no other.  A consumer cannot detect
        damage of topic and properties, but this method does.
        """
        try:
            one = record.decode(data)
        except record.RecordError as error:
            begin = int.from_bytes(data[28:36], "big")  # the log offset in the record
            if broker.log(begin, begin + len(data), as_written=True) == broker.log(begin, begin + len(data)):
                raise PromiseBroken(f"{broker.name} gives a record that nothing has damaged: {error}") from error
            self.damaged_reads += 1
            return None
        if one.body and one.body not in self._world.clients.bodies:
            raise PromiseBroken(f"{broker.name} gives {one.body[:40]!r} at {one.commit_log_offset}: nobody sent that")
        if self.is_tainted(one.commit_log_offset, one.commit_log_offset + len(data)):
            return None
        return one

    def is_tainted(self, begin: int, end: int) -> bool:
        """Returns True if the disk of any broker has ever damaged a byte in this range of the log.  A slave of the
        damaged broker may have copied the damage, if no checksum covers the damaged bytes.
        """
        return any(first < end and begin < last for first, last, _ in self.tainted)

    def may_have_read_damage(self, broker: Broker) -> bool:
        """Returns True if the broker may have read damage outside of a body, on its own disk or from a broker that it
        followed.

        RocketMQ's format has a checksum of the body only, so damage outside of a body may have become part of the
        broker's queues.
        """
        return bool(broker.disk.damages) or any(
            broker.log(first, last) == became for first, last, became in self.tainted
        )

    def damaged(self, broker: Broker, damage: Damage) -> None:
        """Notes that the broker does not have these bytes until the file is restored."""
        first, last = broker.in_log(damage)
        if first == last:
            return
        self.tainted.append((first, last, damage.became))
        for message in self.messages:
            if broker.broker_id in message.holders and message.begin < last and first < message.end:
                message.holders.discard(broker.broker_id)
                self._held_before_damage.append((broker, message))
        if broker.is_up and not broker.serves:
            self.starts(broker)

    def starts(self, broker: Broker) -> None:
        """Notes what a start may cut from the log because of damage.

        A damaged record above the flushed offset on the disk looks like the last record before a crash, and a start
        cuts the log there.  After a power loss, the disk may have an older flushed offset.
        """
        flushed = broker.disk.flushed_offset(broker.root)
        damaged = [broker.in_log(damage) for damage in broker.disk.still_damaged()]
        cut_at = min((first for first, last in damaged if flushed is not None and last > flushed), default=None)
        for message in self.messages:
            if broker.broker_id in message.holders and cut_at is not None and message.end > cut_at:
                message.holders.discard(broker.broker_id)
                self._held_before_damage.append((broker, message))

    def begins_anew(self, broker: Broker) -> None:
        for message in self.messages:
            message.holders.discard(broker.broker_id)
        self._promised_epoch.pop(broker.broker_id, None)
        self._offsets.pop(broker.broker_id, None)
        self.offsets.begins_anew(broker)

    def removed(self, broker: Broker, path: Path) -> None:
        """Notes that a file was removed.  If a later log file exists, retention has removed the file, because a cut
        removes the newest file first.
        """
        if path.parent != broker.root / "commitlog" or not broker.serves:
            return
        later = [int(other.name) for other in broker.disk.files_below(path.parent) if other > path]
        try:
            if later:
                self._begins_at(broker, min(later))
        except PromiseBroken as broken:
            self.broken = self.broken or broken

    def _begins_at(self, broker: Broker, first: int) -> None:
        """Notes that the broker has lost everything before `first`, and need not have it again even if the broker
        becomes a slave and copies those records once more.
        """
        self.queues.nothing_young_goes(broker, first, self.messages)
        for message in self.messages:
            if message.begin < first:
                message.holders.discard(broker.broker_id)

    def repaired(self, broker: Broker) -> None:
        for holder, message in self._held_before_damage:
            if holder is broker and self._has(broker, message):
                message.holders.add(broker.broker_id)
        self._held_before_damage = [pair for pair in self._held_before_damage if pair[0] is not broker]

    def _was_given(self, broker: Broker, message: Message, *, durable: bool = False) -> bool:
        """Returns True if the broker had the record, whatever its disk has done to the record since."""
        return self._has(broker, message, durable=durable) or (
            broker.log(message.begin, message.end, durable=durable, as_written=True) == message.data
        )

    def _oblige(self, message: Message) -> None:
        """Makes every broker that has the message a holder, which must keep the message."""
        # NB: a broker without power is no holder, because nobody knows what its recovery will keep.
        sure = [broker for broker in self._world.brokers if broker.serves or broker.was_killed]
        message.holders = {broker.broker_id for broker in sure if self._has(broker, message)}
        if self._is_of_the_past(message):
            newest, by = self._newest_promotion
            if message.by_ok and self._world.levels.sync_master and not self._world.promoted[newest, by]:
                raise PromiseBroken(
                    f"{message.what} of epoch {message.epoch} is OK, although broker-{by}, which does not have it, was "
                    f"promoted with epoch {newest}, and nobody forced that promotion"
                )
            message.excused = "of a master that was replaced already"
        self.messages.append(message)

    @property
    def _newest_promotion(self) -> tuple[Epoch, int]:
        """Returns the promotion with the newest epoch, or the last of them if several promotions have that epoch.

        A forced promotion does not ask brokers that are away, and one of these may have been promoted with a newer
        epoch.  So the last promotion need not be the one with the newest epoch.
        """
        return max(reversed(self._world.promoted), key=lambda promotion: promotion[0].epoch)

    def _is_of_the_past(self, message: Message) -> bool:
        """Returns True if an operator has ended the message's epoch, and the master of the new epoch does not have the
        message.
        """
        if not self._world.promoted:
            return False
        newest, by = self._newest_promotion
        is_other = (message.epoch, message.epoch_id) != (newest.epoch, newest.id)
        return message.epoch <= newest.epoch and is_other and not self._has(self._world.brokers[by], message)

    def _is_left_behind(self, message: Message) -> bool:
        """Returns True if the newest master's history continues without the message, and the first master without the
        message was allowed to begin without it.  A slave that was away may still serve the message until it hears of
        the new master.
        """
        if not self._openings:
            return False
        newest = max(self._openings.values(), key=lambda opening: opening.epoch.epoch)
        # NB: the history lacks epochs that had no bytes left when the next epoch began.
        own, number = (message.epoch, message.epoch_id), message.epoch
        later = [epoch for epoch in newest.history if epoch.epoch >= number and (epoch.epoch, epoch.id) != own]
        if not later or later[0].start_offset >= message.end:
            return False
        openings = [opening for opening in self._openings.values() if opening.epoch in later]
        first = min(openings, key=lambda opening: opening.epoch.epoch)
        having = {broker.broker_id for broker in self._world.brokers if self._has(broker, message)}
        return not _why_not(first, message, having)

    # --- what ends a promise --------------------------------------------------------------------------------------

    def power_goes(self, broker: Broker) -> None:
        """Notes that the broker may lose what it has not synced."""
        end = max((message.end for message in self.messages), default=0) + UNANSWERED
        self._before_power_loss[broker.broker_id] = self._world.loop.now, broker.log(0, end)
        for message in self.messages:
            if broker.broker_id in message.holders and not self._has(broker, message, durable=True):
                message.holders.discard(broker.broker_id)
        self._offsets.pop(broker.broker_id, None)
        self.offsets.power_goes(broker)

    # --- checking -------------------------------------------------------------------------------------------------

    def check(self, *, full: bool) -> None:
        if self.broken is not None:
            raise self.broken
        up = self._world.serving()
        self._look_for_masters()
        self.offsets.watch()
        for broker in up:
            if broker.wrong_start:
                raise PromiseBroken(f"{broker.name} should have refused to start: it {broker.wrong_start}")
            self._offsets_only_rise(broker)
            self._epochs_only_rise(broker)
            self._follows_no_master_of_the_past(broker)
            self._begins_at(broker, self._first(broker))
        self._holders_hold(self.messages if full else self.messages[-8:])
        if full:
            for broker in up:
                self._queues_are_a_replay(broker)
                if not self.tainted:
                    records = self.records(broker)
                    self.queues.offsets_are_dense(broker, records)
                    self.queues.store_times_never_fall(broker, records)
                    self.queues.delayed_come_once_and_in_time(broker, records)
                    self.offsets.check_all(broker, records)
            for one, other in combinations(up, 2):
                self._equal_as_far_as_the_epochs_say(one, other)

    def _has(self, broker: Broker, message: Message, *, durable: bool = False) -> bool:
        if message.begin < self._first(broker):
            return True  # the message has expired at this broker
        return broker.log(message.begin, message.end, durable=durable) == message.data

    def _had(self, broker: Broker, message: Message) -> bool:
        """Returns True if the broker had the message until it lost its power.  The broker may have acknowledged the
        message just before, so that the master still answers OK.
        """
        lost_at, log = self._before_power_loss.get(broker.broker_id, (0.0, b""))
        in_time = not self._world.levels.sync_flush and self._world.loop.now - lost_at < ANSWERED_WITHIN_S
        return in_time and log[message.begin : message.end] == message.data

    def _first(self, broker: Broker) -> int:
        """Returns where the log begins.

        A slave starts over if its log ended before its master's log begins.  A slave that starts over has no file or no
        record for a moment, or until its next start if its disk fails.  A log without records counts as beginning where
        the master's log begins, because everything earlier has expired.
        """
        starts = [
            [int(path.name) for path in one.disk.files_below(one.root / "commitlog")]
            for one in (broker, *self._world.brokers)
        ]
        first = min(starts[0], default=0)
        if starts[0] and any(broker.log(first, first + 4, as_written=True)):
            return first
        return max(first, *(min(others, default=0) for others in starts[1:]))

    def _holders_hold(self, messages: Iterable[Message]) -> None:
        logs: dict[int, tuple[int, bytes]] = {}
        for broker in self._world.brokers:
            first = self._first(broker)
            end = max((message.end for message in self.messages), default=0)
            logs[broker.broker_id] = first, broker.log(first, max(first, end))
        for message in messages:
            if message.excused:
                continue
            for holder in message.holders:
                first, log = logs[holder]
                if message.begin >= first and log[message.begin - first : message.end - first] != message.data:
                    raise PromiseBroken(
                        f"{message.what} [{message.begin}, {message.end}) of epoch {message.epoch} is gone from "
                        f"broker-{holder} ({'it was OK' if message.by_ok else 'a consumer has it'})"
                    )

    def _look_for_masters(self) -> None:
        self._world.note_promotions()
        for broker in self._world.serving():
            if broker.is_writable:
                self.visible_ends.term_begins(broker, broker.live.epochs.epochs.epochs[-1])
                self._becomes_master(broker)

    def _becomes_master(self, broker: Broker) -> None:
        """Notes that a broker begins to take writes.  Marks a message as excused if this broker's log lacks it and its
        loss is allowed.
        """
        epoch = broker.live.epochs.epochs.epochs[-1]
        if (broker.broker_id, epoch) in self._openings:
            return
        history, was_promoted = broker.live.epochs.epochs.epochs, (epoch, broker.broker_id) in self._world.promoted
        opening = Opening(tuple(history), was_promoted, self._needed_by(broker, epoch))
        self._openings[broker.broker_id, epoch] = opening
        self._knows_its_successor(broker, epoch)
        self.offsets.becomes_master(broker, epoch.start_offset)
        for message in self.messages:
            of = (message.epoch, message.epoch_id)
            if message.excused or message.epoch > epoch.epoch or of == (epoch.epoch, epoch.id):
                continue
            if self._was_given(broker, message):
                continue
            if reason := _why_not(opening, message, message.holders):
                raise PromiseBroken(
                    f"{broker.name} becomes master with epoch {epoch} without {message.what} "
                    f"[{message.begin}, {message.end}) of epoch {message.epoch}: {reason}"
                )
            message.excused = f"{broker.name} became master without it"
            self.lost += 1

    def _knows_its_successor(self, broker: Broker, epoch: Epoch) -> None:
        """Checks that a replaced master's epochs stay below its successor's, and that the replaced master takes no
        writes if it could have learned of the successor.
        """
        if (epoch, broker.broker_id) in self._world.promoted:
            return
        for promotion, promoted in self._world.promoted:
            if promoted != broker.broker_id and broker.role_epoch() < promotion.epoch <= epoch.epoch:
                raise PromiseBroken(
                    f"{broker.name} outranks with epoch {epoch} its successor broker-{promoted}, promoted "
                    f"with {promotion}"
                )
        for other in self._world.serving():
            if other.live.epochs.epochs.last > epoch.epoch and self._world.could_hear_of(broker, other):
                raise PromiseBroken(
                    f"{broker.name} becomes master with epoch {epoch}, and {other} was there with a newer epoch"
                )

    def _may_write(self, broker: Broker) -> None:
        """Checks a broker that answers a send: it must not have been replaced by a broker of which it could have heard,
        at its start or later.
        """
        last = max((number for number, _, _ in epochs_on_disk(broker)), default=0)
        for (promotion, promoted), at in self._world.promoted_at.items():
            if broker.started_at < at and self._world.loop.now - at < TOLD_WITHIN_S:
                continue
            other = self._world.brokers[promoted]
            if promotion.epoch > last and other.serves and self._world.could_hear_of(broker, other):
                raise PromiseBroken(
                    f"{broker.name} takes a message in epoch {last}, and {other} was there with a newer epoch"
                )

    def _needed_by(self, broker: Broker, epoch: Epoch) -> dict[int, str]:
        """Returns broker id -> reason, for the brokers whose records the new master must have."""
        world, needed = self._world, {broker.broker_id: "it had it"}
        others = [other for other in world.brokers if other is not broker]
        is_forced = world.promoted.get((epoch, broker.broker_id))
        for other in others:
            if is_forced is None and world.could_meet(broker, other):
                needed[other.broker_id] = f"{other.name} has it, and was there all the time"
            elif is_forced is False and not other.leads and world.levels.sync_master:
                needed[other.broker_id] = f"{other.name} has it, and nobody forced the promotion"
            elif is_forced is False and not other.leads and world.could_ask(broker, other):
                needed[other.broker_id] = f"{other.name} has it, and could be asked"
        return needed

    def _equal_as_far_as_the_epochs_say(self, one: Broker, other: Broker) -> None:
        ours, theirs = one.live.store, other.live.store
        until = min(ours.end_offset, theirs.end_offset, _fork(epochs_on_disk(one), epochs_on_disk(other)))
        begin = max(ours.min_offset, theirs.min_offset)
        if begin < until and self._untainted(one, begin, until) != self._untainted(other, begin, until):
            raise PromiseBroken(f"the logs of {one} and {other} differ below {until}")

    def check_what_is_left(self, broker: Broker, node: BrokerNode, *, powerless: bool) -> None:
        """Checks a copy of the broker's disk, which `node` has opened."""
        store, epochs = node.store, node.epochs.epochs
        if epochs.last < self._promised_epoch.get(broker.broker_id, 0):
            raise PromiseBroken(f"the broker is back in the earlier epoch {epochs.last}")
        log = stores.log_bytes(store)
        for message in self.messages:
            if message.excused or broker.broker_id not in message.holders or message.begin < store.min_offset:
                continue
            if powerless and not self._has(broker, message, durable=True):
                continue
            first = message.begin - store.min_offset
            if log[first : first + len(message.data)] != message.data:
                raise PromiseBroken(f"{message.what} is gone, and the broker's log ends at {store.end_offset}")
        if powerless or epochs.last > self._promised_epoch.get(broker.broker_id, 0):
            return
        for key, entry in self._offsets.get(broker.broker_id, {}).items():
            if node.offsets.get(*key) < entry:
                raise PromiseBroken(f"offset {key} has fallen to {node.offsets.get(*key)}, and was {entry} before")

    def _untainted(self, broker: Broker, begin: int, end: int) -> bytes:
        data = bytearray(broker.log(begin, end))
        for first, last, _ in self.tainted:
            first, last = max(first - begin, 0), min(last - begin, len(data))
            if first < last:
                data[first:last] = bytes(last - first)
        return bytes(data)

    def records(self, broker: Broker) -> list[Record]:
        """Returns the records of the broker's log as they were written, or none if damage that was copied from another
        broker makes them unreadable.
        """
        begin, end = broker.live.store.min_offset, broker.live.store.end_offset
        try:
            return stores.replay(broker.log(begin, end, as_written=True), begin, LOG_FILE)
        except (AssertionError, ValueError) as error:
            if self.tainted:
                return []
            raise PromiseBroken(f"{broker}: the log cannot be replayed: {error}") from error

    def _queues_are_a_replay(self, broker: Broker) -> None:
        """Checks that the queues equal a replay of the log, and that every record matches its checksum.

        The check leaves out records that the broker's own disk has damaged.  No broker may copy damage that a checksum
        shows.
        """
        if broker.disk.still_damaged() or broker.disk.bad_sectors:
            return
        store = broker.live.store
        try:
            with broker.disk.undisturbed():
                expected, actual = stores.expected_queues(store), stores.actual_queues(store)
        except (AssertionError, ValueError) as error:
            raise PromiseBroken(f"{broker}: the log cannot be replayed: {error}") from error
        if not self.may_have_read_damage(broker):
            if broker.disk.unread:
                actual = {key: entries for key, found in actual.items() if (entries := _without_expired(store, found))}
            self.compare_queues(broker, expected, actual)

    def are_trimmed(self, broker: Broker) -> bool:
        """Returns True if expired records are gone from the broker's queues.

        Expired records leave the queues at once, or in the next round of retention if a queue could not be read.  A
        search in a damaged queue may end at a wrong entry, so damaged queues are not checked.
        """
        store = broker.live.store
        if any("consumequeue" in damage.path.parts for damage in broker.disk.damages):
            return True
        with broker.disk.undisturbed():
            found = stores.actual_queues(store).values() if broker.disk.unread else []
            return all(_without_expired(store, entries[:1]) for entries in found)

    def index_has_every_key(self, broker: Broker, store: MessageStore, records: Iterable[Record]) -> None:
        """Checks that a search for any key finds every record with that key."""
        expected = defaultdict(set)
        for one in records:
            for key in {one.properties.get("UNIQ_KEY"), *one.properties.get("KEYS", "").split(" ")} - {None, ""}:
                expected[one.topic, key].add(one.commit_log_offset)
        for (topic, key), offsets in expected.items():
            found, before = [], None
            while not found or before is not None:
                offsets_found, before = store.key_search(topic, key, 1000, 0, 1 << 50, before).run()
                found.append(offsets_found)
            if missing := offsets.difference(*found):
                raise PromiseBroken(f"{broker}: key {key!r} of {topic} is not found at {sorted(missing)}")

    def compare_queues(self, broker: Broker, expected: Queues, actual: Queues) -> None:
        deleted = self._world.deleted_topics
        for key, entries in actual.items():
            if key[0] in deleted and expected.get(key, [])[-len(entries) :] != entries:
                raise PromiseBroken(
                    f"{broker}: queue {key} of a deleted topic has {entries}, which are not the last entries by the "
                    f"log: {expected.get(key, [])}"
                )
        expected = {key: _comparable(key[0], value) for key, value in expected.items() if key[0] not in deleted}
        actual = {key: _comparable(key[0], value) for key, value in actual.items() if key[0] not in deleted}
        if expected != actual:
            raise PromiseBroken(f"{broker}: the queues do not match the log: they have {actual} instead of {expected}")

    def _epochs_only_rise(self, broker: Broker) -> None:
        epochs = broker.live.epochs.epochs
        before = self._promised_epoch.get(broker.broker_id, 0)
        if epochs.last < before and not self._was_undone(broker, before):
            raise PromiseBroken(f"{broker.name} went back from epoch {before} to {epochs.last}")
        self._promised_epoch[broker.broker_id] = epochs.last
        for epoch in epochs.epochs:
            start, first = self._epochs.setdefault((epoch.epoch, epoch.id), (epoch.start_offset, broker.broker_id))
            if start != epoch.start_offset:
                raise PromiseBroken(f"epoch {epoch} of {broker.name} began elsewhere, at {start}, on broker-{first}")

    def _was_undone(self, broker: Broker, epoch: int) -> bool:
        """Returns True if the broker has taken this epoch back before any byte was written in it, because its promotion
        failed or was interrupted.
        """
        starts = [
            (start, began_on)
            for (number, _), (start, began_on) in self._epochs.items()
            if number == epoch and began_on == broker.broker_id
        ]
        is_empty = bool(starts) and all(start >= broker.live.store.end_offset for start, _ in starts)
        return broker.broker_id in self._world.clients.asked_to_promote and not broker.leads and is_empty

    def _follows_no_master_of_the_past(self, broker: Broker) -> None:
        if not broker.live.replication.slave.is_following():
            return
        for master in self._world.serving():
            if master.address == broker.live.following.last_followed and master.started_at < broker.started_at:
                ours, theirs = broker.live.epochs.epochs.last, master.live.epochs.epochs.last
                if ours > theirs:
                    raise PromiseBroken(f"{broker} follows {master}, which is of an older epoch")

    def _offsets_only_rise(self, broker: Broker) -> None:
        if broker.live.epochs.epochs.last > self._promised_epoch.get(broker.broker_id, 0):
            # The broker may have cut its log to follow a newer master, and lost the offsets beyond the cut.
            self._offsets.pop(broker.broker_id, None)
        before = self._offsets.get(broker.broker_id, {})
        now = _offsets(broker)
        for key, entry in before.items():
            if now.get(key) is None or now[key] < entry:
                raise PromiseBroken(f"{broker.name}: offset {key} went back from {entry} to {now.get(key)}")
        self._offsets[broker.broker_id] = now


def _why_not(opening: Opening, message: Message, having: set[int]) -> str:
    """Returns why a new master must have the message, if the brokers in `having` have it.  Returns an empty text if the
    new master need not have the message.
    """
    reasons = [reason for number, reason in opening.needed.items() if number in having]
    if opening.was_promoted and message.epoch == opening.epoch.epoch:  # two brokers were promoted independently
        reasons = [reason for reason in reasons if reason == "it had it"]
    return reasons[0] if reasons else ""


def _offsets(broker: Broker) -> dict[tuple[str, str, int], Any]:
    return {
        (group, topic, queue): entry
        for group, topic, queues in broker.live.offsets.everything()
        for queue, entry in queues.items()
    }


def epochs_on_disk(broker: Broker) -> list[tuple[int, str, int]]:
    """Returns (number, id, start) of each epoch on disk, in the format of docs/storage_format.md."""
    content = broker.disk.as_written(broker.root / "rocketsim" / "epochs.json", durable=False)
    entries = json.loads(content)["epochs"] if content else []
    return [(entry["epoch"], entry.get("id", ""), entry["startOffset"]) for entry in entries]


def _fork(one: list[tuple[int, str, int]], other: list[tuple[int, str, int]]) -> int:
    """Returns the log offset from which two histories may differ: the start of the first epoch that only one of them
    has.
    """
    common = 0
    while one[common : common + 1] and one[common : common + 1] == other[common : common + 1]:
        common += 1
    following = [start for _, _, start in (*one[common : common + 1], *other[common : common + 1])]
    return min(following, default=NOWHERE) if common else 0


def _epoch_of(broker: Broker, offset: int) -> tuple[int, int]:
    """Returns (number, id) of the epoch in which the byte at that offset was written."""
    epochs = [epoch for epoch in broker.live.epochs.epochs.epochs if epoch.start_offset <= offset]
    return (epochs[-1].epoch, epochs[-1].id) if epochs else (0, 0)


def _comparable(topic: str, entries: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Returns the entries without the tags code of delayed messages, because that code is their delivery time."""
    return [(number, offset, 0) for number, offset, _ in entries] if topic == SCHEDULE_TOPIC else entries


def _without_expired(store: MessageStore, entries: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    return [entry for entry in entries if entry[1] >= store.min_offset]


def _where(durable: bool) -> str:
    return "disk" if durable else "page cache"
