"""Expiry: renews, retries or gives up deliveries whose deadline has come, on a master that takes writes."""

import asyncio
import logging
from typing import Protocol

from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.errors import MessageIllegal, ReadFailed, StoreCorrupt
from broker_service.pop import outcome
from broker_service.pop.deliveries import Counts
from broker_service.pop.mover import Mover, NotReadable, copy_of, name_of
from broker_service.pop.outcome import Outcome
from broker_service.state.moves import original_topic
from broker_service.state.state import Due
from broker_service.state.transitions import Deadline, DeliveryId, Place, Return, Settle
from broker_service.state.writer import StateWriter

logger = logging.getLogger(__name__)

DEFERRED_MS = 10_000  # a message that cannot be copied now is tried again after this time
_AT_A_TIME = 64
_RECONNECT_S = 30.0  # for this time after a start all deliveries are renewed, while clients look for the new master


class ConnectedClients(Protocol):
    def is_connected(self, client_id: str) -> bool: ...


class Expiry:
    """Handles expired deliveries.  Expiry renews deliveries with `auto_renew` as long as their client is connected."""

    def __init__(
        self, broker: Broker, writer: StateWriter, mover: Mover, clients: ConnectedClients, counts: Counts
    ) -> None:
        self._broker = broker
        self._writer = writer
        self._mover = mover
        self._clients = clients
        self._counts = counts
        self.grace_until = 0.0  # until this time of the broker's clock all clients count as connected
        self.took_over_after_ms = 0  # time of the previous master's last pop whose deliveries are renewed

    def begin(self) -> None:
        """Starts the period in which every client counts as connected, because clients reconnect after a failover.  The
        broker calls this method when it becomes a master.
        """
        self.grace_until = self._broker.clock() + _RECONNECT_S

    async def expire(self) -> float | None:
        """Renews, retries or gives up all deliveries whose deadline has come.  Returns the seconds until the next
        deadline, or None if there is no deadline.
        """
        while True:
            self._writer.flush()
            self._writer.check_writable()
            now_ms = self._broker.now_ms()
            expired = self._writer.state.due(now_ms, _AT_A_TIME)
            if not expired:
                break
            renewed: dict[Place, list[DeliveryId]] = {}
            returned: dict[Place, list[DeliveryId]] = {}
            others = []
            for due in expired:
                ends = self.outcome(due, now_ms)
                delivery = DeliveryId(due.delivery.pop, due.queue_offset)
                if ends is Outcome.RENEW:
                    renewed.setdefault(due.place, []).append(delivery)
                elif ends is Outcome.RETRY and self._writer.state.is_ordered(due.place, due.queue_offset):
                    returned.setdefault(due.place, []).append(delivery)
                else:
                    others.append((due, ends))
            for place, deliveries in renewed.items():
                later_ms, some = now_ms + outcome.RENEWED_FOR_MS, tuple(deliveries)
                self._writer.append(Deadline(place=place, deliveries=some, deadline_ms=later_ms, renewed=True))
            self._writer.append(*(Return(place, tuple(deliveries)) for place, deliveries in returned.items()))
            for place, deliveries in returned.items():
                self._counts.retried.add((original_topic(place), place.group), len(deliveries), 0)
            for due, ends in others:
                await self._expire_one(due, ends)
            await asyncio.sleep(0)
        deadline_ms = self._writer.state.next_deadline_ms()
        return None if deadline_ms is None else (deadline_ms - now_ms) / 1000

    def backoff_ms(self, due: Due) -> int:
        """Returns how long the message waits until its next delivery, if this delivery fails."""
        return self._group_of(due).backoff_ms(due.delivery.attempt)

    def _group_of(self, due: Due) -> SubscriptionGroup:
        return self._broker.groups.get(due.place.group) or SubscriptionGroup(due.place.group)

    def outcome(self, due: Due, now_ms: int) -> Outcome:
        group = self._group_of(due)
        client_id = due.delivery.client_id
        is_connected = self._broker.clock() < self.grace_until or self._clients.is_connected(client_id)
        return outcome.outcome_of(
            due.delivery,
            now_ms,
            group.max_attempts,
            is_connected=is_connected,
            took_over_after_ms=self.took_over_after_ms,
        )

    async def _expire_one(self, due: Due, ends: Outcome) -> None:
        delivery = DeliveryId(due.delivery.pop, due.queue_offset)
        try:
            message = await self._mover.message(due)
            copy = copy_of(message, due, ends) if message is not None else None
            if copy is not None:
                await self._writer.make_topic(copy.topic)
            self._writer.flush()
            if self._writer.state.get(due.place, delivery) != due.delivery:
                return  # the delivery was acknowledged or changed while the disk was read
            self._writer.check_writable()
            if copy is None:
                logger.warning("message %d of topic %s has expired before group %s acknowledged it", *name_of(due))
                self._writer.append(Settle(due.place, (delivery,)))
            else:
                self._mover.move(copy)
        except (MessageIllegal, ReadFailed, StoreCorrupt, NotReadable) as error:
            logger.error("message %d of topic %s cannot be delivered again to group %s: %s", *name_of(due), error)
            later = self._broker.now_ms() + DEFERRED_MS
            self._writer.append(
                Deadline(place=due.place, deliveries=(delivery,), deadline_ms=later, counted=due.delivery.counted)
            )
