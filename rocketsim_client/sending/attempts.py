"""Sends one batch again and again until a broker acknowledges it.  The module blocks its caller, and uses no threads or
futures.

All attempts share one timeout.  After a failed attempt the route is asked for again, and a batch that may move goes to
a broker that has not failed yet.  A batch that may not move, or for which all brokers have failed, waits for a back-off
before the next attempt.  If the error shows that the route was old, the batch goes to the queues of the new route
instead.
"""

import logging
import random
import re
import time
from collections.abc import Callable

import numpy as np

from rocketsim_client.cluster import Cluster
from rocketsim_client.errors import (
    BrokerNotExist,
    CallTimeout,
    InvalidParameter,
    MessageIllegal,
    QueueNotExist,
    RocketSimError,
    SendFailed,
    Unreachable,
)
from rocketsim_client.model import MASTER_ID, BatchPart, MessageQueue, SendStatus
from rocketsim_client.retry import SENDS, Budget, is_worth_sending_again
from rocketsim_client.sending.batch import OutgoingBatch
from rocketsim_client.sending.options import ProducerOptions
from rocketsim_client.sending.publish_info import PublishTable
from rocketsim_client.sending.send_counts import SendCounts
from rocketsim_client.transport.sends import SendCall, SendCalls

logger = logging.getLogger(__name__)

# Older brokers have no code for a missing queue, which is recognised by this error text.
OLDER_BROKERS_WORDS = re.compile(r"queue -?\d+ of topic .*, which has \d+ write queues")
OLD_ROUTE_PAUSE_S = 0.2  # the pause before another attempt, if the name server still gives the old route


class SendAttempts:
    """Sends batches with retries.  Without `sends` the calls of the cluster's transport are used.  Thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        publish_table: PublishTable,
        options: ProducerOptions,
        counts: SendCounts,
        *,
        clock: Callable[[], float],
        chance: random.Random,
        sends: SendCalls | None = None,
    ) -> None:
        self._cluster = cluster
        self._publish_table = publish_table
        self._options = options
        self.counts = counts
        self._clock = clock
        self._chance = chance
        self._sends = sends

    def over(self, sends: SendCalls) -> "SendAttempts":
        """Returns a SendAttempts with the same counters, which sends through `sends` instead of the transport's own
        calls."""
        return SendAttempts(
            self._cluster,
            self._publish_table,
            self._options,
            self.counts,
            clock=self._clock,
            chance=self._chance,
            sends=sends,
        )

    def send(self, batch: OutgoingBatch, deadline: float, retries: int) -> BatchPart:
        """Returns when a broker has acknowledged the whole batch.  Raises an error when time or retries are used up, or
        when another attempt cannot help.  Raises QueueNotExist if the batch may not move and its queue is gone.  After
        a lost answer a message may be stored twice, always under the same message id."""
        budget = Budget(deadline, retries)
        tried: list[str] = []
        failure: RocketSimError | None = None
        less_safe: BatchPart | None = None
        maybe_stored = False
        while True:
            began = self._clock()
            budget.started()
            tried.append(batch.broker_name)
            if budget.attempts > 1:
                self.counts.add(sent_again=len(batch))
                logger.warning(
                    "topic %r: attempt %d to send %d messages, at broker %s; the attempt before, at broker %s: %s",
                    batch.topic,
                    budget.attempts,
                    len(batch),
                    batch.broker_name,
                    tried[-2],
                    failure or "a status that is not SEND_OK",
                )
            try:
                part = self._attempt(batch, budget.remaining_s(began))
            except RocketSimError as error:
                failure = error
                maybe_stored = maybe_stored or isinstance(error, Unreachable)
                self._publish_table.note_send(batch.broker_name, began, failed=True)
                of_old_route = self._is_of_old_route(error)
                # Half of the remaining time is left for another attempt, even if the name server is slow.
                wait_s = budget.remaining_s(self._clock()) / 2
                self._cluster.refresh_within(wait_s, batch.topic, is_old=of_old_route)
                self._publish_table.forget(batch.topic)
                if of_old_route:
                    if budget.may_try(self._clock()) and self._route_anew(batch, budget):
                        continue
                    if not batch.may_move:
                        raise self._queue_not_exist(batch, error) from error
                    break
                if not is_worth_sending_again(error):
                    raise
            else:
                self._publish_table.note_send(batch.broker_name, began, failed=False)
                again = self._options.retry_another_broker_when_not_store_ok and batch.may_move
                if part.send_status == SendStatus.SEND_OK or not again:
                    return part
                less_safe = less_safe or part
            if not budget.may_try(self._clock()) or not self._prepare_again(batch, tried, budget):
                break
        if less_safe:
            return less_safe
        assert failure is not None
        attempts = f"{budget.attempts} attempt{'s' if budget.attempts > 1 else ''} ({', '.join(tried)})"
        raise SendFailed(
            f"topic {batch.topic!r}: not acknowledged after {attempts}: {failure}",
            attempts=budget.attempts,
            maybe_stored=maybe_stored,
            code=failure.code,
        ) from failure

    def _attempt(self, batch: OutgoingBatch, timeout_s: float) -> BatchPart:
        cluster = self._cluster
        route = self._publish_table.info(batch.topic).route
        address = route.addresses(batch.broker_name).get(MASTER_ID)
        if 0 <= self._options.attempt_timeout_s < timeout_s:
            timeout_s = self._options.attempt_timeout_s
        if timeout_s <= 0:
            raise CallTimeout(f"topic {batch.topic!r}: the send timeout passed before the message could leave")
        if address is None:
            raise _NoMaster(
                f"broker {batch.broker_name!r} has no master in the route of topic {batch.topic!r}", code=14
            )
        call = SendCall(
            batch.broker_name,
            self._options.group,
            route.epoch(batch.broker_name),
            self._options.default_topic_queue_nums,
        )
        try:
            sends = self._sends or cluster.transport.sends
            answer = sends.send(address, batch.outgoing(), call, timeout_s)
        except Unreachable as error:
            cluster.failed(address, error)
            raise
        cluster.answered(address)
        return BatchPart(
            answer.status,
            batch.topic,
            batch.broker_name,
            batch.msg_ids,
            batch.queue_ids,
            answer.queue_offsets,
            answer.store_host,
            answer.commit_log_offsets,
        )

    @staticmethod
    def _is_of_old_route(error: RocketSimError) -> bool:
        """Returns True if the broker refused the batch because the client's route was old: the topic has fewer
        queues now, or the address belongs to another broker."""
        return isinstance(error, InvalidParameter) or (
            isinstance(error, MessageIllegal) and OLDER_BROKERS_WORDS.search(str(error)) is not None
        )

    def _has_queues(self, batch: OutgoingBatch) -> bool:
        """Returns True if the route still has all queues of the batch."""
        return bool(np.max(batch.queue_ids) < self._queue_count(batch))

    def _queue_count(self, batch: OutgoingBatch) -> int:
        return sum(queue.broker_name == batch.broker_name for queue in self._queues_or_none(batch.topic))

    def _queues_or_none(self, topic: str) -> list[MessageQueue]:
        try:
            return self._publish_table.queues(topic)
        except RocketSimError:
            return []

    def _queue_not_exist(self, batch: OutgoingBatch, error: RocketSimError) -> QueueNotExist:
        return QueueNotExist(
            f"topic {batch.topic!r} has {self._queue_count(batch)} queues to write to at broker {batch.broker_name!r}, "
            f"which refuses a send to queue {int(np.max(batch.queue_ids))}: {error}",
            address=error.address,
        )

    def _route_anew(self, batch: OutgoingBatch, budget: Budget) -> bool:
        """Moves the batch to queues of the new route, at the same broker if possible.  If the known route is still
        the old one, waits for a newer one.  Returns False if no time is left, or if the batch may not move."""
        queues = self._queues_or_none(batch.topic)
        if not queues or self._has_queues(batch):
            return self._wait(OLD_ROUTE_PAUSE_S, budget)
        if not batch.may_move:
            return False
        names = {queue.broker_name for queue in queues}
        name = batch.broker_name if batch.broker_name in names else queues[0].broker_name
        batch.move([queue for queue in queues if queue.broker_name == name])
        return True

    def _wait(self, pause_s: float, budget: Budget) -> bool:
        pause = min(pause_s, budget.remaining_s(self._clock()))
        if pause > 0:
            time.sleep(pause)
        return budget.may_try(self._clock())

    def _prepare_again(self, batch: OutgoingBatch, tried: list[str], budget: Budget) -> bool:
        """Moves the batch to a broker that has not failed yet, or waits before the next attempt."""
        if batch.may_move:
            try:
                queues = self._publish_table.queues(batch.topic)
            except RocketSimError as error:
                if not is_worth_sending_again(error):
                    return False
                queues = []  # the route may be known again at the next attempt
            fresh = [queue for queue in queues if queue.broker_name not in tried]
            other = fresh or [queue for queue in queues if queue.broker_name != batch.broker_name]
            if other:
                name = other[self._chance.randrange(len(other))].broker_name
                batch.move([queue for queue in other if queue.broker_name == name])
                if fresh:
                    return True
        return self._wait(SENDS.pause_s(budget.attempts), budget)


class _NoMaster(BrokerNotExist):
    """The route has no master for the broker name.  A send that fails with this error is repeated, like after
    SERVICE_NOT_AVAILABLE."""
