"""Popping: finds messages for a pop, marks them as taken in the state, and answers when this change is stored.

A pop takes its messages at the moment when it submits the change of the state.  Even before the change is written, the
next pop continues after the messages that this pop takes.
"""

import asyncio
import random

from rocketsim_proto.limits import MAX_INVISIBLE_MS

from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.reads.read_checks import ReadChecks
from broker_service.broker.reads.selection import Selection
from broker_service.errors import InvalidParameter, SystemBusy
from broker_service.names import MAX_RETRY_TOPIC_LENGTH
from broker_service.pop import outcome, receipt_handle
from broker_service.pop.deliveries import MAX_MESSAGES, Counts, Delivery, Pop, Popped, PopStatus
from broker_service.pop.finder import Finder, QueueBatch
from broker_service.pop.places import Places
from broker_service.pop.polls import Polls
from broker_service.pop.receipt_handle import ReceiptHandle
from broker_service.pop.settling import Settling
from broker_service.rocketmq_handover.take_over import TakeOver
from broker_service.runtime import cold_reads
from broker_service.state.moves import original_topic, retry_topic
from broker_service.state.transaction_changes import MAX_TEXT
from broker_service.state.transitions import Deadline, Take, TakeInOrder
from broker_service.state.writer import StateWriter

MAX_UNDER_WAY = 500_000  # limit for the open deliveries of all groups; each takes some 300 bytes

_Taking = Take | TakeInOrder | Deadline


class Popping:
    """Answers pops.  `take_over` makes pops fail until the broker knows which messages a RocketMQ has delivered from
    this store.
    """

    def __init__(
        self,
        broker: Broker,
        access: ReadChecks,
        writer: StateWriter,
        places: Places,
        settling: Settling,
        take_over: TakeOver,
        counts: Counts,
        chance: random.Random,
    ) -> None:
        self._broker = broker
        self._access = access
        self._writer = writer
        self._places = places
        self._settling = settling
        self._take_over = take_over
        self._counts = counts
        self._finder = Finder(broker, writer, places, chance)
        self.polls = Polls(broker.config.max_long_polls)
        broker.visibility.arrived.append(self.polls.arrived)
        writer.changed.append(self._notify_of_released)

    async def pop(self, pop: Pop) -> Popped:
        selection = await self._access.selection(pop.sub_expression, pop.expression_type)
        if len(pop.client_id.encode()) > MAX_TEXT:
            raise InvalidParameter(f"client id {pop.client_id[:40]!r}… is longer than {MAX_TEXT} bytes")
        if len(pop.attempt_id.encode()) > MAX_TEXT:
            raise InvalidParameter(f"attempt id {pop.attempt_id[:40]!r}… is longer than {MAX_TEXT} bytes")
        self._broker.check_writable()
        await self._access.make_group(pop.group)
        until = self._broker.clock() + pop.poll_s
        status = PopStatus.NO_MESSAGE
        self._note(pop)
        while True:
            try:
                if self._writer.pending and self._needs_pending_applied(pop.group):
                    self._writer.flush()
                found = await cold_reads.read(self._broker.store, lambda: self.scan(pop, selection))
                # Nothing may be awaited between the scan and `_take`, or two pops could take the same messages.
                if any(one.messages for one in found):
                    return await self._deliver(pop, found)
                if found:
                    if not any(one.groups for one in found):
                        status = PopStatus.NO_MATCH
                    await asyncio.shield(self._take(pop, found)[1])
                    await asyncio.sleep(0)  # lets other tasks run, even if nothing before has paused
            except BaseException:
                self.polls.notify(pop.group, pop.topic)  # another waiting pop must take the message that woke this one
                raise
            if found:
                # Scan again: the filter may exclude more messages than one scan reads.
                goes_on = self._broker.clock() < until
            else:
                goes_on = await self.polls.wait(pop.group, pop.topic, until - self._broker.clock(), pop.client_id)
            self._note(pop)
            if not goes_on:
                return Popped(status=status, popped_ms=self._broker.now_ms())

    def _note(self, pop: Pop) -> None:
        if pop.client_id:
            self._broker.consumers.popped(pop.group, pop.client_id, self._broker.clock())

    def end_polls(self, group: str, topic: str, client_id: str) -> None:
        """Answers the client's pops that wait for a message."""
        self.polls.end(group, topic, client_id)

    def scan(self, pop: Pop, selection: Selection) -> list[QueueBatch]:
        """Finds messages for a pop, and the ranges that its filter excludes.  Raises if the pop must be refused."""
        broker = self._broker
        self._writer.check_writable()
        self._take_over.check_done()
        group = self.group_of(pop)
        topic = broker.topics.readable(pop.topic, broker.config.broker_permission)
        self._access.check_pop(group.name, topic.name)
        broker.acknowledgements.check_room()
        if self._writer.state.under_way_count >= MAX_UNDER_WAY:
            raise SystemBusy(f"{MAX_UNDER_WAY} messages are delivered and not acknowledged; pop again in a moment")
        places = self._places.of(group.name, topic)
        is_ordered = group.consume_message_orderly
        if is_ordered and pop.attempt_id and (again := self._finder.again(places, pop.attempt_id)):
            return again
        if self._writer.state.under_way_of.get(group.name, 0) >= (most := broker.config.max_under_way_per_group):
            raise SystemBusy(
                f"group {group.name} has {most} messages (maxUnderWayPerGroup) that it has not acknowledged; "
                "acknowledge some, or pop again in a moment"
            )
        return self._finder.find(places, pop.max_messages, selection, is_ordered=is_ordered)

    def _needs_pending_applied(self, name: str) -> bool:
        """Returns True if pending changes of the state must be applied before this group pops.

        A group that consumes in order needs the present locks of its message groups.  The pending changes of a new
        group may have given messages back.  Close to a limit, the exact number of deliveries is needed.
        """
        group, more = self._broker.groups.get(name), MAX_MESSAGES * self._writer.pending
        return (
            group is None
            or group.consume_message_orderly
            or self._writer.state.under_way_count + more >= MAX_UNDER_WAY
            or self._writer.state.under_way_of.get(name, 0) + more >= self._broker.config.max_under_way_per_group
        )

    def group_of(self, pop: Pop) -> SubscriptionGroup:
        group = self._access.group(pop.group)
        longest = MAX_RETRY_TOPIC_LENGTH
        if len(retry_topic(pop.group, pop.topic)) > longest:
            raise InvalidParameter(
                f"group {pop.group} and topic {pop.topic}: the name of their retry topic, "
                f"{retry_topic(pop.group, pop.topic)}, is longer than {longest} characters; shorten one of them"
            )
        return group

    def _take(self, pop: Pop, found: list[QueueBatch]) -> tuple[list[_Taking], asyncio.Future[int]]:
        """Submits the state changes that deliver these messages.  From the submission on, the messages count as
        taken.
        """
        taking = [self._taking(pop, one) for one in found]
        appended = self._writer.submit(*taking)
        if any(one.groups is not None for one in found):
            self._writer.flush()  # the next scan must find the locks of the message groups in the state
        return taking, appended

    def _taking(self, pop: Pop, found: QueueBatch) -> _Taking:
        now_ms = self._broker.now_ms()
        invisible_ms = outcome.RENEWED_FOR_MS if pop.auto_renew else min(max(pop.invisible_ms, 0), MAX_INVISIBLE_MS)
        deadline_ms = now_ms + invisible_ms
        if found.again:
            before = [
                one.deadline_ms for it in found.again if (one := self._writer.state.get(found.place, it)) is not None
            ]
            # The new deadline is always later than that of the earlier attempt.  `give_back` of the earlier attempt
            # therefore finds a changed deadline, and does nothing.
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

    async def _deliver(self, pop: Pop, found: list[QueueBatch]) -> Popped:
        popped_ms = self._broker.now_ms()
        takes, appended = self._take(pop, found)
        self.polls.notify(pop.group, pop.topic)  # there may be more messages for another waiting pop
        try:
            stored = await self._writer.stored(appended, pop.timeout_s)
        except asyncio.CancelledError:
            for one, take in zip(found, takes, strict=True):
                self._settling.take_back(one.place, one.deliveries, take.deadline_ms)
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
        self._counts.pops += 1
        self._counts.delivered += len(deliveries)
        size = sum([len(one.record) for one in deliveries])
        self._counts.given.add((pop.topic, pop.group), len(deliveries), size)
        return Popped(status=PopStatus.FOUND, deliveries=tuple(deliveries), popped_ms=popped_ms, stored=stored)

    def _notify_of_released(self) -> None:
        """Wakes one waiting pop for each queue in which a message group has become free.  The woken pop wakes the next
        one.
        """
        for place in self._writer.state.take_released():
            queue = self._writer.state.queues.get(place)
            if queue is None:
                continue
            waits = queue.locks is not None and queue.locks.ready
            if waits or self._broker.store.queues.end(place.topic, place.queue_id) > queue.next:
                self.polls.notify(place.group, original_topic(place))
