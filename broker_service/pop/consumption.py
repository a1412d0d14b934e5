"""Consumption connects the parts of pop consumption, and holds the state that pops, transactions and timers share.

On a master, the state is changed by calls of the methods that are listed in `pop/__init__.py`.  A slave builds its
state from the replicated log, so that the slave can be promoted.
"""

import logging
import random
from collections.abc import Callable

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.master_loop import LONGEST_SLEEP_S, MasterLoop
from broker_service.broker.reads.read_checks import ReadChecks
from broker_service.delayed.timer_delivery import TimerDelivery
from broker_service.errors import ReadFailed, StoreCorrupt, StoreTooNew
from broker_service.pop.clean_stop import CleanStop
from broker_service.pop.deletions import Deletions
from broker_service.pop.deliveries import Counts
from broker_service.pop.expiry import ConnectedClients, Expiry
from broker_service.pop.mover import Mover
from broker_service.pop.places import Places
from broker_service.pop.popping import Popping
from broker_service.pop.settling import Settling
from broker_service.rocketmq_handover.take_over import TakeOver
from broker_service.state.state import State
from broker_service.state.state_log import StateLog
from broker_service.state.writer import StateWriter
from broker_service.transactions.transactions import Producers, Transactions

logger = logging.getLogger(__name__)


class Consumption:
    def __init__(
        self,
        broker: Broker,
        access: ReadChecks,
        clients: ConnectedClients,
        producers: Producers,
        chance: random.Random,
        counts: Counts,
    ) -> None:
        self._broker = broker
        self.log = StateLog(broker.store, broker.config.store_path_root_dir / "rocketsim" / "consumption.snapshot")
        self.writer = writer = StateWriter(broker, self.log)
        self.counts = counts
        self.take_over = TakeOver(broker, writer, chance)
        self.timer_delivery = TimerDelivery(broker, writer, self.take_over.done)
        self.transactions = Transactions(broker, writer, producers)
        self.places = Places(broker, writer, chance)
        mover = Mover(broker, writer, self.counts)
        self.expiry = Expiry(broker, writer, mover, clients, self.counts)
        settling = Settling(broker, writer, self.expiry, mover, self.counts)
        self.popping = Popping(broker, access, writer, self.places, settling, self.take_over, self.counts, chance)
        self.deletions = Deletions(broker, writer, self.places, self.transactions)
        self.clean_stop = CleanStop(broker, writer, self.places, self.transactions)
        self._loop = MasterLoop(broker, self._work, "messages that were not acknowledged in time")
        self._is_new_master = False
        self._wakes_at_ms = 0
        writer.changed.append(self._wake_for_deadline)
        self.pop, self.end_polls = self.popping.pop, self.popping.end_polls
        self.ack, self.forward_to_dlq = settling.ack, settling.forward_to_dlq
        self.change_invisible, self.give_back = settling.change_invisible, settling.give_back
        self.client_gone, self.rights_changed = settling.client_gone, settling.rights_changed

    @property
    def state(self) -> State:
        return self.log.state

    @property
    def polls_held(self) -> int:
        return self.popping.polls.held

    def start(self) -> None:
        """Reads the state from the log.

        If the state cannot be read, the broker starts without it.  Calls that need the state then raise the read error
        again, and all other calls work.
        """
        try:
            self.writer.reload()
        except (ReadFailed, StoreCorrupt, StoreTooNew) as error:
            logger.error(
                "pops, acks, transactions and messages with a delivery time wait, as the state cannot be read: %s",
                error,
            )

    def saving(self) -> Callable[[], None] | None:
        """Returns a function that writes a snapshot on any thread.  Returns None if the last snapshot is still up to
        date.
        """
        return self.log.saving()

    @property
    def is_snapshot_due(self) -> bool:
        return self.log.is_snapshot_due

    def needed_from(self) -> int | None:
        """Returns the log offset up to which the state has read the log; None if it has read the complete log.

        Retention must keep the log after this offset, because the state does not know which records after it are still
        needed.
        """
        return self.log.unapplied_from

    def begin(self) -> None:
        """Ends the time as a slave.  Must be called in the turn of the event loop in which the broker begins to take
        writes, because calls may come before the first turn of `run`.
        """
        self.expiry.begin()
        self.take_over.done.clear()
        self._is_new_master = True

    async def run(self) -> None:
        """Handles expired deliveries until the task is cancelled.  The broker starts this loop after `begin`."""
        await self._loop.run()

    async def _work(self) -> float | None:
        self.writer.check_writable()
        if not self.take_over.done.is_set():
            if self.take_over.is_needed():
                await self.timer_delivery.complete_batch()
            await self.take_over.run()
        if self._is_new_master:
            self.expiry.took_over_after_ms = self.state.last_renewed_pop_ms()
            self._is_new_master = False
        self.deletions.complete()
        sleep_s = await self.expiry.expire()
        self._wakes_at_ms = self._broker.now_ms() + int(1000 * min(sleep_s or LONGEST_SLEEP_S, LONGEST_SLEEP_S))
        return sleep_s

    def _wake_for_deadline(self) -> None:
        """Wakes the loop of `run` if the next deadline is earlier than the end of the loop's sleep."""
        deadline_ms = self.state.next_deadline_ms()
        if deadline_ms is not None and deadline_ms < self._wakes_at_ms:
            self._loop.wake()

    def close(self) -> None:
        """Answers all pops that wait for a message.  Later pops do not wait."""
        self.popping.polls.close()

    def __str__(self) -> str:
        return f"{self.state.under_way_count} under way in {len(self.state.queues)} queues, {self.polls_held} polls"
