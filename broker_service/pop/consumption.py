"""Consumption: pop, ack, changed deadlines and dead letters on a master; on a slave, the state for a promotion.

A change of the state is appended by the `StateWriter`.  Whatever has to know more of the changes that are pending than
pops, acks and changed deadlines do, has them appended before.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial

from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record

from broker_service.broker.core import master_loop
from broker_service.broker.core.broker import Broker
from broker_service.broker.core.master_loop import LONGEST_SLEEP_S, MasterLoop
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.broker.reads.access import ReadAccess
from broker_service.delayed.timer_delivery import TimerDelivery
from broker_service.errors import (
    InvalidParameter,
    MessageIllegal,
    ReadFailed,
    RocketSimError,
    ServiceNotAvailable,
    StoreCorrupt,
    StoreTooNew,
    SystemBusy,
)
from broker_service.model import PutStatus
from broker_service.names import MAX_RETRY_TOPIC_LENGTH, is_internal_group
from broker_service.pop import outcome, receipt_handle
from broker_service.pop.looks import Found, Looks
from broker_service.pop.model import (
    MAX_MESSAGES,
    Changed,
    ChangeInvisible,
    Counts,
    Delivery,
    HandleStatus,
    Pop,
    Popped,
    PopStatus,
    Settled,
)
from broker_service.pop.outcome import Outcome
from broker_service.pop.polls import Polls
from broker_service.pop.receipt_handle import ReceiptHandle
from broker_service.pop.selection import Selection, Selections
from broker_service.rocketmq_handover import order_info, take_over
from broker_service.runtime import cold_reads
from broker_service.state import moves
from broker_service.state.moves import original_topic, retry_topic
from broker_service.state.state import Due, State
from broker_service.state.state_log import StateLog
from broker_service.state.transitions import (
    Deadline,
    DeliveryId,
    Drop,
    Place,
    Reset,
    Return,
    Settle,
    Take,
    TakeInOrder,
)
from broker_service.state.writer import StateWriter
from broker_service.transactions.transactions import Transactions

logger = logging.getLogger(__name__)

MAX_UNDER_WAY = 500_000  # deliveries: some 300 bytes each
MAX_INVISIBLE_MS = 12 * 3600 * 1000
MAX_CLIENT_ID = 255  # bytes; also of an attempt id
RETRY_FIRST = 0.2  # the share of pops that read the retry topic first, as in RocketMQ

_DELIVERIES_A_TRANSITION = 10_000
_RESETS_OF_ONE_RECORD = 30  # with the longest names they are less than _BODY
_EXPIRED_AT_A_TIME = 64
_TAKEN_OVER_AT_ONCE = 10  # transitions, of up to 1,000 deliveries each
_DEFERRED_MS = 10_000  # for a message that cannot be moved now
_RECONNECT_S = 30.0  # after a start: deliveries are renewed while clients look for the new master


_Taking = Take | TakeInOrder | Deadline


class Consumption:
    """`is_connected` tells by id whether a client is connected; meanwhile its `auto_renew` deliveries are renewed."""

    def __init__(self, broker: Broker, access: ReadAccess, chance: random.Random) -> None:
        self.is_connected: Callable[[str], bool] = lambda client_id: False
        self._broker = broker
        self._access = access
        self._chance = chance
        self.log = StateLog(broker.store, broker.config.store_path_root_dir / "rocketsim" / "consumption.snapshot")
        self.writer = StateWriter(broker, self.log)
        self.taken_over = asyncio.Event()  # what RocketMQ had under way, if it had this store
        self.timer_delivery = TimerDelivery(broker, self.writer, self.taken_over)
        self._polls = Polls(broker.config.max_long_polls)
        self._selections = Selections()
        self._looks = Looks(broker, self.log, chance, self._next)
        self.counts = Counts()
        self._loop = MasterLoop(broker, self._work, "messages that were not acknowledged in time")
        self._wakes_at_ms = 0
        self._grace_until = 0.0
        self._is_new_master = False
        self._took_over_after_ms = 0
        self.transactions = Transactions(broker, self.writer)
        self._drops_due = True  # a topic may have been deleted that the state still has
        self._drops_at = 0.0
        self.writer.changed += (self._notify_of_released, self._wake_for_deadline)
        broker.visibility.arrived.append(self._polls.arrived)
        broker.topics.changed.append(self._topic_changed)
        broker.group_dropped.append(self._drop_group)
        broker.offsets_reset.append(self._reset)

    @property
    def state(self) -> State:
        return self.log.state

    @property
    def polls_held(self) -> int:
        return self._polls.held

    # --- the log ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The state as the log has it.  Where that cannot be read, the broker starts: what needs it raises that again,
        and what does not goes on."""
        try:
            self.writer.reload()
        except (ReadFailed, StoreCorrupt, StoreTooNew) as error:
            logger.error("pops, acks, transactions and messages with a delivery time wait: %s", error)

    def saving(self) -> Callable[[], None] | None:
        """The writing of a snapshot, to be run on any thread; None if nothing has happened since the last one."""
        return self.log.saving()

    @property
    def is_snapshot_due(self) -> bool:
        return self.log.is_snapshot_due

    def needed_from(self) -> int | None:
        """Where the log begins that the state has not taken in; None: it has all.  What waits there is not known."""
        return self.log.unapplied_from

    def _notify_of_released(self) -> None:
        """One poll for each queue of which a message group is free: it notifies the next one, if there is more."""
        for place in self.state.take_released():
            queue = self.state.queues.get(place)
            if queue is None:
                continue
            waits = queue.locks is not None and queue.locks.ready
            if waits or self._broker.store.queue_end(place.topic, place.queue_id) > queue.next:
                self._polls.notify(place.group, original_topic(place))

    # --- pop --------------------------------------------------------------------------------------------------------

    async def pop(self, pop: Pop) -> Popped:
        enabled = self._broker.config.enable_property_filter
        selection = await self._selections.of(pop.sub_expression, pop.expression_type, sql_enabled=enabled)
        if len(pop.client_id.encode()) > MAX_CLIENT_ID:
            raise InvalidParameter(f"client id {pop.client_id[:40]!r}… is longer than {MAX_CLIENT_ID} bytes")
        if len(pop.attempt_id.encode()) > MAX_CLIENT_ID:
            raise InvalidParameter(f"attempt id {pop.attempt_id[:40]!r}… is longer than {MAX_CLIENT_ID} bytes")
        self._broker.check_writable()
        await self._access.make_group(pop.group)
        until = self._broker.clock() + pop.poll_s
        status = PopStatus.NO_MESSAGE
        while True:
            try:
                if self.writer.pending and self._needs_pending_applied(pop.group):
                    self.writer.flush()
                found = await cold_reads.read(self._broker.store, lambda: self._look(pop, selection))
                # Nothing is awaited between the look and what follows of it.
                if any(one.messages for one in found):
                    return await self._deliver(pop, found)
                if found:
                    if not any(one.groups for one in found):
                        status = PopStatus.NO_MATCH
                    await asyncio.shield(self._take(pop, found)[1])
                    await asyncio.sleep(0)  # in order it is appended already
            except BaseException:
                self._polls.notify(pop.group, pop.topic)  # another poll takes what this one was notified of
                raise
            if found:
                goes_on = self._broker.clock() < until  # there may be more than one look passes over
            else:
                goes_on = await self._polls.wait(pop.group, pop.topic, until - self._broker.clock(), pop.client_id)
            if not goes_on:
                return Popped(status=status, popped_ms=self._broker.now_ms())

    def end_polls(self, group: str, topic: str, client_id: str) -> None:
        """The client's pops that are held are answered now."""
        self._polls.end(group, topic, client_id)

    def _look(self, pop: Pop, selection: Selection) -> list[Found]:
        """The messages for this pop now, and those that its filter excludes.  Raises if the pop is refused."""
        broker = self._broker
        self.writer.check_writable()
        if not self.taken_over.is_set() and take_over.is_needed(broker):
            raise ServiceNotAvailable("what RocketMQ has delivered of this store is being read; pop again in a moment")
        group = self._group(pop)
        topic = broker.topics.readable(pop.topic, broker.config.broker_permission)
        broker.acknowledgements.check_room()
        if self.state.under_way_count >= MAX_UNDER_WAY:
            raise SystemBusy(f"{MAX_UNDER_WAY} messages are delivered and not acknowledged; pop again in a moment")
        places = self._places(group, topic)
        is_ordered = group.consume_message_orderly
        if is_ordered and pop.attempt_id and (again := self._looks.again(places, pop.attempt_id)):
            return again
        if self.state.under_way_of.get(group.name, 0) >= (most := broker.config.max_under_way_per_group):
            raise SystemBusy(
                f"group {group.name} has {most} messages (maxUnderWayPerGroup) that it has not acknowledged; "
                "acknowledge some, or pop again in a moment"
            )
        return self._looks.find(places, pop.max_messages, selection, is_ordered=is_ordered)

    def _needs_pending_applied(self, name: str) -> bool:
        """Whether a pop of this group has to know more of the pending transitions than what they take: the locks of a
        group that consumes in order, what is given back to it, or what is left of a limit."""
        group, more = self._broker.groups.get(name), MAX_MESSAGES * self.writer.pending
        return (
            group is None
            or group.consume_message_orderly
            or self.state.under_way_count + more >= MAX_UNDER_WAY
            or self.state.under_way_of.get(name, 0) + more >= self._broker.config.max_under_way_per_group
        )

    def _group(self, pop: Pop) -> SubscriptionGroup:
        group = self._access.group(pop.group)
        longest = MAX_RETRY_TOPIC_LENGTH
        if len(retry_topic(pop.group, pop.topic)) > longest:
            raise InvalidParameter(
                f"group {pop.group} and topic {pop.topic}: the name of their retry topic, "
                f"{retry_topic(pop.group, pop.topic)}, is longer than {longest} characters; shorten one of them"
            )
        return group

    def _places(self, group: SubscriptionGroup, topic: TopicConfig) -> list[tuple[Place, bool]]:
        """The order in which a pop reads the queues: from a random one on; the retry topic is last or first."""
        count = topic.read_queue_nums
        first = self._chance.randrange(count) if count else 0
        places = [(Place(group.name, topic.name, (first + number) % count), False) for number in range(count)]
        retry = [(Place(group.name, name, 0), True) for name in self.retry_topics(group.name, topic.name)]
        return [*retry, *places] if self._chance.random() < RETRY_FIRST else [*places, *retry]

    def retry_topics(self, group: str, topic: str) -> list[str]:
        """The broker's own, and the one with RocketMQ's retries, unless it has these of another group."""
        names = [retry_topic(group, topic)]
        old = moves.retry_topic_v1(group, topic)
        if old in self._broker.topics.entries:
            place = Place(group, old, 0)
            is_own = place in self.state.queues or self._broker.offsets.get(*place).offset >= 0
            if is_own or old.removeprefix(moves.RETRY_PREFIX) not in self._broker.groups.entries:
                names.append(old)
        return names

    def _next(self, place: Place, first: int) -> int:
        """The group's next offset: after what it has taken, else its commit as a pull consumer, else the first one."""
        if (taken := self.writer.next_of(place)) is not None:
            return taken
        committed = self._broker.offsets.get(*place).offset
        return committed if committed >= 0 else first

    def _take(self, pop: Pop, found: list[Found]) -> tuple[list[_Taking], asyncio.Future[int]]:
        """Submits the transitions that deliver these messages, which count as taken from now on."""
        taking = [self._taking(pop, one) for one in found]
        appended = self.writer.submit(*taking)
        if any(one.groups is not None for one in found):
            self.writer.flush()  # the next look finds their locks in the state
        return taking, appended

    def _taking(self, pop: Pop, found: Found) -> _Taking:
        now_ms = self._broker.now_ms()
        invisible_ms = outcome.RENEWED_FOR_MS if pop.auto_renew else min(max(pop.invisible_ms, 0), MAX_INVISIBLE_MS)
        deadline_ms = now_ms + invisible_ms
        if found.again:
            before = [one.deadline_ms for it in found.again if (one := self.state.get(found.place, it)) is not None]
            # Later than before in any case, by which `give_back` for the earlier attempt knows that it comes too late.
            deadline_ms = max(deadline_ms, *(one + 1 for one in before))
            return Deadline(place=found.place, deliveries=found.again, deadline_ms=deadline_ms, renewed=True)
        renewed_until_ms = now_ms + outcome.MAX_RENEWED_MS if pop.auto_renew else 0
        if found.groups is not None:
            return TakeInOrder(
                place=found.place,
                pop=found.pop,
                start=found.start,
                next=found.next,
                groups=found.groups,
                client_id=pop.client_id,
                attempt_id=pop.attempt_id,
                popped_ms=now_ms,
                deadline_ms=deadline_ms,
                renewed_until_ms=renewed_until_ms,
            )
        return Take(
            place=found.place,
            pop=found.pop,
            start=found.start,
            next=found.next,
            offsets=tuple(message.queue_offset for message in found.messages),
            attempts=tuple(message.attempt for message in found.messages),
            client_id=pop.client_id,
            popped_ms=now_ms,
            deadline_ms=deadline_ms,
            renewed_until_ms=renewed_until_ms,
        )

    async def _deliver(self, pop: Pop, found: list[Found]) -> Popped:
        popped_ms = self._broker.now_ms()
        takes, appended = self._take(pop, found)
        self._polls.notify(pop.group, pop.topic)  # there may be more
        try:
            stored = await self.writer.stored(appended, pop.timeout_s)
        except asyncio.CancelledError:
            for one, take in zip(found, takes, strict=True):
                mine = [it for it in one.deliveries if not self._was_handed_out_again(one.place, it, take.deadline_ms)]
                self._end(one.place, mine, 0, counted=False)
            raise
        deliveries = [
            Delivery(
                record=message.record,
                topic=pop.topic,
                queue_id=one.place.queue_id,
                queue_offset=message.queue_offset,
                attempt=message.attempt,
                receipt_handle=receipt_handle.encode(ReceiptHandle(one.is_retry, one.place.queue_id, delivery)),
                deadline_ms=take.deadline_ms,
            )
            for one, take in zip(found, takes, strict=True)
            for message, delivery in zip(one.messages, one.deliveries, strict=True)
        ]
        self.counts.pops += 1
        self.counts.delivered += len(deliveries)
        return Popped(status=PopStatus.FOUND, deliveries=tuple(deliveries), popped_ms=popped_ms, stored=stored)

    # --- ack, change ------------------------------------------------------------------------------------------------

    async def ack(self, group: str, topic: str, handles: Sequence[str], timeout_s: float = 3.0) -> list[Settled]:
        """One result for each handle.  A second ack of the same delivery is OK, too."""
        self.writer.check_takes_changes()
        answers, done = [], []
        for handle in handles:
            named = receipt_handle.decode(handle)
            due = self._under_way(group, topic, named)
            is_ok = due is not None or (named is not None and self.state.was_settled(named.delivery))
            answers.append(HandleStatus.OK if is_ok else HandleStatus.INVALID_RECEIPT_HANDLE)
            if due is not None:
                done.append(Settle(due.place, (DeliveryId(due.delivery.pop, due.queue_offset),)))
        if HandleStatus.OK not in answers:
            return [Settled(answer) for answer in answers]
        stored = await self.writer.stored(self.writer.submit(*done), timeout_s)
        self.counts.acknowledged += len(done)
        return [Settled(one, stored if one is HandleStatus.OK else PutStatus.PUT_OK) for one in answers]

    async def change_invisible(self, change: ChangeInvisible) -> Changed:
        self.writer.check_takes_changes()
        due = self._under_way(change.group, change.topic, receipt_handle.decode(change.receipt_handle))
        if due is None:
            return Changed(HandleStatus.INVALID_RECEIPT_HANDLE, change.receipt_handle)
        invisible_ms = change.invisible_ms
        if invisible_ms is None or (invisible_ms == 0 and due.delivery.renewed_until_ms):
            invisible_ms = self._backoff_ms(due)
        deadline_ms = self._broker.now_ms() + min(max(invisible_ms, 0), MAX_INVISIBLE_MS)
        delivery = DeliveryId(due.delivery.pop, due.queue_offset)
        changed = Deadline(
            place=due.place, deliveries=(delivery,), deadline_ms=deadline_ms, counted=change.counted, renewed=False
        )
        stored = await self.writer.stored(self.writer.submit(changed), change.timeout_s)
        return Changed(HandleStatus.OK, change.receipt_handle, deadline_ms, stored)

    async def forward_to_dlq(self, group: str, topic: str, handle: str, timeout_s: float = 3.0) -> Settled:
        """Moves the message to `%DLQ%<group>` now.  A second call for the same delivery is OK and moves nothing."""
        self.writer.check_takes_changes()
        named = receipt_handle.decode(handle)
        due = self._under_way(group, topic, named)
        message = None
        if due is not None:
            message = await self._message(due)
            if message is not None:
                await self.writer.make_topic(moves.copy_topic(due.place, is_dead_letter=True))
            self.writer.flush()
            self.writer.check_takes_changes()
            due = self._under_way(group, topic, named)
        if due is not None and message is not None:
            end = self._move(_dead_letter(message, due))
            return Settled(HandleStatus.OK, await self._broker.acknowledgements.wait(end, timeout_s))
        if named is None or not self.state.is_dead_letter(named.delivery):
            return Settled(HandleStatus.INVALID_RECEIPT_HANDLE)
        end = self._broker.store.end_offset
        return Settled(HandleStatus.OK, await self._broker.acknowledgements.wait(end, timeout_s))

    def give_back(
        self, group: str, topic: str, handles: Sequence[str], begun: int = 0, deadlines_ms: Sequence[int] = ()
    ) -> None:
        """Deliveries of a call that ended early are delivered again.

        Those that never reached the client come at once and count no attempt.  The first `begun` count: the sending of
        them had begun.  The last of these waits for its back-off, because it may be what the client could not receive;
        the others come at once, without it.  Invalid handles are ignored.  `deadlines_ms`: those that the call was to
        tell; what the client's next attempt has been given meanwhile, with later ones, stays with that.
        """
        for number, handle in enumerate(handles):
            if (due := self._under_way(group, topic, receipt_handle.decode(handle))) is not None:
                delivery = DeliveryId(due.delivery.pop, due.queue_offset)
                if deadlines_ms and self._was_handed_out_again(due.place, delivery, deadlines_ms[number]):
                    continue
                wait_ms = self._backoff_ms(due) if number == begun - 1 else 0
                self._end(due.place, [delivery], wait_ms, counted=number < begun)

    def client_gone(self, client_id: str) -> None:
        """The client's renewed deliveries are delivered to others at once; its other ones keep their deadlines."""
        self.writer.flush()  # it may have popped just now
        self._end_renewed((client_id,), lambda _, place: True)

    def rights_changed(self, may: Callable[[str, str, str], bool]) -> None:
        """`may`: whether a client may consume, by its id, group and topic.  What is renewed for others is delivered to
        the rest of the group at once: their acknowledgements are refused, and they may be connected for ever."""
        self.writer.flush()  # a client may have popped just now
        clients = self.state.renewing_clients()
        self._end_renewed(clients, lambda client_id, place: not may(client_id, place.group, original_topic(place)))

    def _end_renewed(self, client_ids: Iterable[str], ends: Callable[[str, Place], bool]) -> None:
        """The renewed deliveries of these clients are due now, in the places where `ends` says so."""
        by_place: dict[Place, list[DeliveryId]] = {}
        for client_id in client_ids:
            for place, delivery in self.state.renewed_for(client_id):
                if ends(client_id, place):
                    by_place.setdefault(place, []).append(delivery)
        for place, deliveries in by_place.items():
            self._end(place, deliveries, 0, counted=True)

    def _was_handed_out_again(self, place: Place, delivery: DeliveryId, deadline_ms: int) -> bool:
        """Whether a delivery in order has got another deadline than that since."""
        found = self.state.get(place, delivery)
        in_order = self.state.is_ordered(place, delivery.queue_offset)
        return found is not None and in_order and found.deadline_ms != deadline_ms

    def _end(self, place: Place, deliveries: Sequence[DeliveryId], wait_ms: int, *, counted: bool) -> None:
        """They are no longer renewed, and are due after `wait_ms`."""
        deadline_ms = self._broker.now_ms() + wait_ms
        for first in range(0, len(deliveries), _DELIVERIES_A_TRANSITION):
            some = tuple(deliveries[first : first + _DELIVERIES_A_TRANSITION])
            self.writer.submit(
                Deadline(place=place, deliveries=some, deadline_ms=deadline_ms, counted=counted, renewed=False)
            )

    def _under_way(self, group: str, topic: str, named: ReceiptHandle | None) -> Due | None:
        """The delivery that a handle names, while it may be acknowledged."""
        if named is None:
            return None
        topics = (retry_topic(group, topic), moves.retry_topic_v1(group, topic)) if named.is_retry else (topic,)
        for name in topics:
            place = Place(group, name, named.queue_id)
            if (delivery := self.state.get(place, named.delivery)) is not None:
                due, now_ms = Due(place, named.delivery.queue_offset, delivery), self._broker.now_ms()
                return due if now_ms < delivery.deadline_ms or self._outcome(due, now_ms) is Outcome.RENEW else None
        return None

    # --- deadlines --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled; to be started when the broker takes writes."""
        self._grace_until = self._broker.clock() + _RECONNECT_S
        self._is_new_master = True
        self.taken_over.clear()
        await self._loop.run()

    async def _work(self) -> float | None:
        self.writer.check_writable()
        if not self.taken_over.is_set():
            await self._take_over()
        if self._is_new_master:
            self._took_over_after_ms = self.state.last_renewed_pop_ms()
            self._is_new_master = False
        if self._drops_due and self._broker.clock() >= self._drops_at:
            self._try(self._drop_deleted)
        sleep_s = await self._expire()
        self._wakes_at_ms = self._broker.now_ms() + int(1000 * min(sleep_s or LONGEST_SLEEP_S, LONGEST_SLEEP_S))
        return sleep_s

    def _wake_for_deadline(self) -> None:
        """For a deadline that comes before the one that is waited for."""
        deadline_ms = self.state.next_deadline_ms()
        if deadline_ms is not None and deadline_ms < self._wakes_at_ms:
            self._loop.wake()

    async def _take_over(self) -> None:
        """What RocketMQ's pops had under way, if it had this store, is under way here."""
        if take_over.is_needed(self._broker):
            await self.timer_delivery.say_copies()
            changes = await take_over.transitions(self._broker, self.state, self._chance)
            for first in range(0, len(changes), _TAKEN_OVER_AT_ONCE):
                self.writer.append(*changes[first : first + _TAKEN_OVER_AT_ONCE])
                await asyncio.sleep(0)
        self.taken_over.set()

    async def _expire(self) -> float | None:
        """Handles all deliveries whose deadline has come; returns the seconds until the next one, if there is one."""
        while True:
            self.writer.flush()
            self.writer.check_writable()
            now_ms = self._broker.now_ms()
            expired = self.state.due(now_ms, _EXPIRED_AT_A_TIME)
            if not expired:
                break
            fates = [(due, self._outcome(due, now_ms)) for due in expired]
            renewed: dict[Place, list[DeliveryId]] = {}
            returned: dict[Place, list[DeliveryId]] = {}
            others = []
            for due, fate in fates:
                delivery = DeliveryId(due.delivery.pop, due.queue_offset)
                if fate is Outcome.RENEW:
                    renewed.setdefault(due.place, []).append(delivery)
                elif fate is Outcome.RETRY and self.state.is_ordered(due.place, due.queue_offset):
                    returned.setdefault(due.place, []).append(delivery)
                else:
                    others.append((due, fate))
            for place, deliveries in renewed.items():
                later = now_ms + outcome.RENEWED_FOR_MS
                self.writer.append(Deadline(place=place, deliveries=tuple(deliveries), deadline_ms=later, renewed=True))
            self.writer.append(*(Return(place, tuple(deliveries)) for place, deliveries in returned.items()))
            self.counts.retried += sum(map(len, returned.values()))
            for due, fate in others:
                await self._expire_one(due, fate)
            await asyncio.sleep(0)
        deadline_ms = self.state.next_deadline_ms()
        return None if deadline_ms is None else (deadline_ms - now_ms) / 1000

    def _backoff_ms(self, due: Due) -> int:
        return self._group_of(due).backoff_ms(due.delivery.attempt)

    def _group_of(self, due: Due) -> SubscriptionGroup:
        return self._broker.groups.get(due.place.group) or SubscriptionGroup(due.place.group)

    def _outcome(self, due: Due, now_ms: int) -> Outcome:
        group = self._group_of(due)
        client_id = due.delivery.client_id
        is_connected = self._broker.clock() < self._grace_until or self.is_connected(client_id)
        return outcome.outcome_of(
            due.delivery,
            now_ms,
            group.max_attempts,
            is_connected=is_connected,
            took_over_after_ms=self._took_over_after_ms,
        )

    async def _expire_one(self, due: Due, fate: Outcome) -> None:
        delivery = DeliveryId(due.delivery.pop, due.queue_offset)
        try:
            message = await self._message(due)
            copy = _copy(message, due, fate) if message is not None else None
            if copy is not None:
                await self.writer.make_topic(copy.topic)
            self.writer.flush()
            if self.state.get(due.place, delivery) != due.delivery:
                return  # settled or changed while the disk was read
            self.writer.check_writable()
            if copy is None:
                logger.warning("message %d of %s has expired before group %s acknowledged it", *_name(due))
                self.writer.append(Settle(due.place, (delivery,)))
            else:
                self._move(copy)
        except (MessageIllegal, ReadFailed, StoreCorrupt, _NotReadable) as error:
            logger.error("message %d of %s cannot be delivered again to group %s: %s", *_name(due), error)
            later = self._broker.now_ms() + _DEFERRED_MS
            self.writer.append(
                Deadline(place=due.place, deliveries=(delivery,), deadline_ms=later, counted=due.delivery.counted)
            )

    async def _message(self, due: Due) -> Record | None:
        """The message that was delivered; None if it has expired."""
        return await cold_reads.read(self._broker.store, partial(self._read, due))

    def _read(self, due: Due) -> Record | None:
        store, (place, queue_offset, _) = self._broker.store, due
        first, end = store.queue_bounds(place.topic, place.queue_id)
        if queue_offset < first:
            return None
        if queue_offset >= end:
            raise _NotReadable(f"its queue ends at {end} for now")
        found = store.read_ranges([(place.topic, place.queue_id, queue_offset, queue_offset + 1)], max_bytes=1)
        data = b"".join(found.records)
        with store.decoding(data):
            return record.decode(data) if data else None

    def _move(self, copy: Record) -> int:
        """Appends a copy, which settles its delivery; returns the log's end after it."""
        end = self.writer.append_record(copy)
        if copy.topic.startswith(moves.DLQ_PREFIX):
            self.counts.dead_letters += 1
            if (move := moves.move_of(copy)) is not None:
                # The copy has settled it, but an operator may delete the dead letters, and then nothing would say so.
                self.writer.submit(Settle(move.place, (move.delivery,)))
        elif copy.topic.startswith(moves.RETRY_PREFIX):
            self.counts.retried += 1
        return end

    # --- what operators change --------------------------------------------------------------------------------------

    def _topic_changed(self, name: str) -> None:
        if not self._broker.is_slave and name not in self._broker.topics.entries:
            self._try(lambda: self._drop_topic(name))

    def _reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> bool:
        """Moves the group's pops to these offsets; False if it has popped none of these queues.  If the log refuses it,
        nothing has moved, or the error names the queues that have."""
        self.writer.flush()  # a place may be new
        places = [Place(group, topic, queue_id) for queue_id in offsets]
        self.writer.catch_up()
        resets = [Reset(place, offsets[place.queue_id]) for place in places if place in self.state.queues]
        for first in range(0, len(resets), _RESETS_OF_ONE_RECORD):
            try:
                self.writer.append(*resets[first : first + _RESETS_OF_ONE_RECORD])
            except (RocketSimError, OSError) as error:
                if not first:
                    raise
                raise ServiceNotAvailable(
                    f"{error}; this reset of group {group} is half done: of topic {topic} queues "
                    f"{_ranges(one.place.queue_id for one in resets[:first])} have moved, and no others; reset again"
                ) from error
        return bool(resets)

    def _drop_deleted(self) -> None:
        """Drops topics whose deletion a crash or a full disk kept from the state."""
        topics = self._broker.topics
        named = {name for place in self.state.queues for name in (place.topic, original_topic(place))}
        named |= {transaction.topic for transaction in self.state.transactions.open}
        for topic in named:
            if topic in topics.tombstones and topic not in topics.entries:
                self._drop_topic(topic)
        self._drops_due = False

    def _drop_topic(self, name: str) -> None:
        """With the retry topics of its groups: a new topic of that name does not get their messages.

        They go first: the topic's places, until they are dropped, say which they are.
        """
        self.writer.flush()  # a place may be new
        self.transactions.drop_topic(name)
        places = [place for place in self.state.queues if name in (place.topic, original_topic(place))]
        self._delete_retries({retry for place in places for retry in self.retry_topics(place.group, name)})
        left = sorted({place.topic for place in places if place in self.state.queues})
        self.writer.append(*(Drop(topic=topic) for topic in left))

    def _drop_group(self, name: str) -> None:
        """With its retry topics: a new group of that name gets nothing of this one.

        They go first, as with a topic.  Raises if the disk or the log refuses: it can be done again.
        """
        self.writer.flush()  # a place may be new
        self.writer.check_writable()
        self._delete_retries(self._retry_topics_of(name))
        if any(place.group == name for place in self.state.queues):
            self.writer.append(Drop(group=name))

    def _retry_topics_of(self, group: str) -> set[str]:
        """All of a group: those of the broker's own form, RocketMQ's of topics that it has read, and the one of
        RocketMQ's push consumers, unless another group reads it."""
        read = self._broker.offsets.topics_by_group()
        of_group = {place.topic for place in self.state.queues if place.group == group} | read.get(group, set())
        own = retry_topic(group, "")
        names = {topic for topic in self._broker.topics.entries if topic.startswith(own)}
        for topic in of_group:
            names.update(self.retry_topics(group, original_topic(Place(group, topic, 0))))
        plain = f"{moves.RETRY_PREFIX}{group}"
        is_anothers = any(place.topic == plain and place.group != group for place in self.state.queues)
        return names if is_anothers else names | {plain}

    def _delete_retries(self, names: Set[str]) -> None:
        broker = self._broker
        names &= broker.topics.entries.keys()
        if names:
            ends = {name: broker.store.queue_ends(name) for name in names}
            broker.topics.delete_all(ends, broker.now_ms())
            broker.store.forget_before(ends)
            broker.offsets.delete_topics(names)

    def _try(self, change: Callable[[], None]) -> None:
        """A failure does not undo a topic's deletion; `_drop_deleted` tries again."""
        try:
            change()
        except (RocketSimError, OSError) as error:
            logger.warning("deliveries of a deleted topic are kept, dropping them is tried again: %s", error)
            self._drops_due, self._drops_at = True, self._broker.clock() + master_loop.AFTER_TROUBLE_S

    # --- stopping ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends all polls; later ones are not held."""
        self._polls.close()

    def note_transactions(self) -> None:
        """At a clean stop: where RocketMQ goes on with transactions, if it opens this store."""
        try:
            self.writer.catch_up()
            self.log.check_transactions()
        except (ReadFailed, StoreCorrupt, StoreTooNew) as error:
            logger.error("where a real RocketMQ would go on with transactions is not noted: %s", error)
        else:
            self.transactions.note_offsets()

    def note_offsets(self) -> None:
        """At a clean stop: where RocketMQ goes on if it opens this store.

        A group goes on at its first message that is not settled.  Of queues that it has taken nothing of yet, that is
        the first message: without an offset RocketMQ's consumers may begin at the end.
        """
        broker = self._broker
        if broker.is_slave:
            return
        kept = broker.offsets.kept
        goes_on: dict[tuple[str, str], dict[int, int]] = {}
        for group, topic in {*kept, *((group, retry_topic(group, topic)) for group, topic in kept)}:
            config = broker.topics.get(topic) if not is_internal_group(group) else None
            goes_on[group, topic] = dict(kept.get((group, topic), {}))
            for queue_id in range(config.read_queue_nums if config is not None else 0):
                first, _ = broker.store.queue_bounds(topic, queue_id)
                goes_on[group, topic].setdefault(queue_id, self._next(Place(group, topic, queue_id), first))
        broker.offsets.note(goes_on, broker.now_ms())

    def write_order_info(self) -> None:
        """At a clean stop: what a RocketMQ that opens this store has under way in groups that consume in order."""
        broker = self._broker
        if not broker.is_slave:
            path = broker.config.store_path_root_dir / "config" / "consumerOrderInfo.json"
            order_info.write(broker.store.disk, path, self.state.queues, broker.now_ms())

    def __str__(self) -> str:
        return f"{self.state.under_way_count} under way in {len(self.state.queues)} queues, {self._polls.held} polls"


class _NotReadable(RocketSimError):
    """A message that exists, but cannot be read now."""


def _copy(message: Record, due: Due, fate: Outcome) -> Record:
    """For the retry topic or the dead letters; for these also if a retry would not fit."""
    if fate is Outcome.RETRY:
        copy = moves.retry_copy(message, due)
        if moves.fits(copy.properties):
            return copy
        logger.warning(
            "message %d of %s is a dead letter of group %s: its properties leave no room for those of a retry",
            *_name(due),
        )
    return _dead_letter(message, due)


def _dead_letter(message: Record, due: Due) -> Record:
    copy = moves.dead_letter(message, due)
    if left_out := sorted(message.properties.keys() - copy.properties.keys()):
        logger.warning(
            "the dead letter of message %d of %s for group %s is without properties that do not fit: %.200s",
            *_name(due),
            ", ".join(left_out),
        )
    return copy


def _ranges(numbers: Iterable[int]) -> str:
    """As in `0-4, 7`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def _name(due: Due) -> tuple[int, str, str]:
    return due.queue_offset, due.place.topic, due.place.group
