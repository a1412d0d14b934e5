"""Settling: ends deliveries or moves their deadlines, for acks, invisible times, dead letters and unsent messages."""

from collections.abc import Callable, Iterable, Sequence

from rocketsim_proto.limits import MAX_INVISIBLE_MS

from broker_service.broker.core.broker import Broker
from broker_service.pop import receipt_handle
from broker_service.pop.deliveries import Changed, ChangeInvisible, Counts, HandleStatus, Settled
from broker_service.pop.expiry import Expiry
from broker_service.pop.mover import Mover, dead_letter_of
from broker_service.pop.outcome import Outcome
from broker_service.pop.receipt_handle import ReceiptHandle
from broker_service.put_result import PutStatus
from broker_service.state import moves
from broker_service.state.moves import original_topic, retry_topic
from broker_service.state.state import Due
from broker_service.state.transitions import Deadline, DeliveryId, Place, Settle
from broker_service.state.writer import StateWriter

_DELIVERIES_A_TRANSITION = 10_000


class Settling:
    def __init__(self, broker: Broker, writer: StateWriter, expiry: Expiry, mover: Mover, counts: Counts) -> None:
        self._broker = broker
        self._writer = writer
        self._expiry = expiry
        self._mover = mover
        self._counts = counts

    async def ack(self, group: str, topic: str, handles: Sequence[str], timeout_s: float = 3.0) -> list[Settled]:
        """Ends these deliveries, and returns one result for each handle.  A second ack of the same delivery is also
        OK.
        """
        self._writer.check_takes_changes()
        answers, done = [], []
        for handle in handles:
            named = receipt_handle.decode(handle)
            due = self._under_way(group, topic, named)
            is_ok = due is not None or (named is not None and self._writer.state.was_settled(named.delivery))
            answers.append(HandleStatus.OK if is_ok else HandleStatus.INVALID_RECEIPT_HANDLE)
            if due is not None:
                done.append(Settle(due.place, (DeliveryId(due.delivery.pop, due.queue_offset),)))
        if HandleStatus.OK not in answers:
            return [Settled(answer) for answer in answers]
        stored = await self._writer.stored(self._writer.submit(*done), timeout_s)
        self._counts.acknowledged += len(done)
        return [Settled(one, stored if one is HandleStatus.OK else PutStatus.PUT_OK) for one in answers]

    async def change_invisible(self, change: ChangeInvisible) -> Changed:
        self._writer.check_takes_changes()
        due = self._under_way(change.group, change.topic, receipt_handle.decode(change.receipt_handle))
        if due is None:
            return Changed(HandleStatus.INVALID_RECEIPT_HANDLE, change.receipt_handle)
        invisible_ms = change.invisible_ms
        if invisible_ms is None or (invisible_ms == 0 and due.delivery.renewed_until_ms):
            invisible_ms = self._expiry.backoff_ms(due)
        deadline_ms = self._broker.now_ms() + min(max(invisible_ms, 0), MAX_INVISIBLE_MS)
        delivery = DeliveryId(due.delivery.pop, due.queue_offset)
        changed = Deadline(
            place=due.place, deliveries=(delivery,), deadline_ms=deadline_ms, counted=change.counted, renewed=False
        )
        stored = await self._writer.stored(self._writer.submit(changed), change.timeout_s)
        return Changed(HandleStatus.OK, change.receipt_handle, deadline_ms, stored)

    async def forward_to_dlq(self, group: str, topic: str, handle: str, timeout_s: float = 3.0) -> Settled:
        """Moves the message to `%DLQ%<group>` now.  A second call for the same delivery is OK and moves nothing."""
        self._writer.check_takes_changes()
        named = receipt_handle.decode(handle)
        due = self._under_way(group, topic, named)
        message = None
        if due is not None:
            message = await self._mover.message(due)
            if message is not None:
                await self._writer.make_topic(moves.copy_topic(due.place, is_dead_letter=True))
            self._writer.flush()
            self._writer.check_takes_changes()
            due = self._under_way(group, topic, named)
        if due is not None and message is not None:
            end = self._mover.move(dead_letter_of(message, due))
            return Settled(HandleStatus.OK, await self._broker.acknowledgements.wait(end, timeout_s))
        if named is None or not self._writer.state.is_dead_letter(named.delivery):
            return Settled(HandleStatus.INVALID_RECEIPT_HANDLE)
        end = self._broker.store.end_offset
        return Settled(HandleStatus.OK, await self._broker.acknowledgements.wait(end, timeout_s))

    def give_back(
        self, group: str, topic: str, handles: Sequence[str], begun: int = 0, deadlines_ms: Sequence[int] = ()
    ) -> None:
        """Undoes the deliveries of a call that ended before it had sent all of them to the client.

        The first `begun` messages may have reached the client, so their deliveries count as attempts.  The last of the
        `begun` messages waits for its back-off, because the client may have been unable to receive it.  All other
        messages are delivered again at once.  Invalid handles are ignored.

        `deadlines_ms` are the deadlines that the call has told the client.  A delivery in order whose deadline has
        changed since is not undone, because the client's next attempt has taken it over.
        """
        for number, handle in enumerate(handles):
            if (due := self._under_way(group, topic, receipt_handle.decode(handle))) is not None:
                delivery = DeliveryId(due.delivery.pop, due.queue_offset)
                if deadlines_ms and self._was_handed_out_again(due.place, delivery, deadlines_ms[number]):
                    continue
                wait_ms = self._expiry.backoff_ms(due) if number == begun - 1 else 0
                self._end(due.place, [delivery], wait_ms, counted=number < begun)

    def take_back(self, place: Place, deliveries: Sequence[DeliveryId], deadline_ms: int) -> None:
        """Undoes the deliveries of a pop that was cancelled.  The messages are delivered again at once, and their
        attempt numbers do not rise.

        A delivery in order whose deadline has changed since is not undone, because the client's next attempt has taken
        it over.
        """
        mine = [one for one in deliveries if not self._was_handed_out_again(place, one, deadline_ms)]
        self._end(place, mine, 0, counted=False)

    def client_gone(self, client_id: str) -> None:
        """Ends the renewed deliveries of a client that has disconnected.  Deliveries that the broker does not renew for
        this client keep their deadlines.
        """
        self._writer.flush()  # appends pending pops, which may be pops of this client
        self._end_renewed((client_id,), lambda _, place: True)

    def rights_changed(self, may: Callable[[str, str, str], bool]) -> None:
        """Ends the renewed deliveries of clients that are no longer allowed to consume them.

        `may(client_id, group, topic)` returns True if the client may consume.  Without this method the broker would
        renew deliveries for clients whose acknowledgements it refuses.
        """
        self._writer.flush()  # appends pending pops, which may be pops of these clients
        clients = self._writer.state.renewing_clients()
        self._end_renewed(clients, lambda client_id, place: not may(client_id, place.group, original_topic(place)))

    def _end_renewed(self, client_ids: Iterable[str], ends: Callable[[str, Place], bool]) -> None:
        """Ends the renewed deliveries of these clients at once, in each place (a group's queue) for which `ends`
        returns True.
        """
        by_place: dict[Place, list[DeliveryId]] = {}
        for client_id in client_ids:
            for place, delivery in self._writer.state.renewed_for(client_id):
                if ends(client_id, place):
                    by_place.setdefault(place, []).append(delivery)
        for place, deliveries in by_place.items():
            self._end(place, deliveries, 0, counted=True)

    def _was_handed_out_again(self, place: Place, delivery: DeliveryId, deadline_ms: int) -> bool:
        """Returns True if this delivery is in order and its deadline is no longer `deadline_ms`."""
        found = self._writer.state.get(place, delivery)
        in_order = self._writer.state.is_ordered(place, delivery.queue_offset)
        return found is not None and in_order and found.deadline_ms != deadline_ms

    def _end(self, place: Place, deliveries: Sequence[DeliveryId], wait_ms: int, *, counted: bool) -> None:
        """Moves the deadline of these deliveries to `wait_ms` from now.  The broker no longer renews these
        deliveries.
        """
        deadline_ms = self._broker.now_ms() + wait_ms
        for first in range(0, len(deliveries), _DELIVERIES_A_TRANSITION):
            some = tuple(deliveries[first : first + _DELIVERIES_A_TRANSITION])
            self._writer.submit(
                Deadline(place=place, deliveries=some, deadline_ms=deadline_ms, counted=counted, renewed=False)
            )

    def _under_way(self, group: str, topic: str, named: ReceiptHandle | None) -> Due | None:
        """Returns the open delivery of a handle, or None if the client can no longer acknowledge it."""
        if named is None:
            return None
        topics = (retry_topic(group, topic), moves.retry_topic_v1(group, topic)) if named.is_retry else (topic,)
        for name in topics:
            place = Place(group, name, named.queue_id)
            if (delivery := self._writer.state.get(place, named.delivery)) is not None:
                due, now_ms = Due(place, named.delivery.queue_offset, delivery), self._broker.now_ms()
                return (
                    due if now_ms < delivery.deadline_ms or self._expiry.outcome(due, now_ms) is Outcome.RENEW else None
                )
        return None
