"""Asks brokers for messages.  One thread at a time asks brokers, and all other threads wait for the messages that
come."""

import itertools
import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rocketsim_client.cluster import Cluster
from rocketsim_client.consuming.inbox import Inbox
from rocketsim_client.consuming.options import ConsumerOptions
from rocketsim_client.consuming.renewal import Renewal
from rocketsim_client.consuming.settler import may_succeed_later
from rocketsim_client.errors import CallTimeout, NoPermission, RocketSimError, Unreachable
from rocketsim_client.expression import SqlExpression, TagExpression
from rocketsim_client.received_message import ReceivedMessage
from rocketsim_client.retry import POLLS
from rocketsim_client.routing.members import Member
from rocketsim_client.transport.consumption import PopAnswer, PopCall
from rocketsim_client.transport.under_way import UnderWay

logger = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 15.0  # a broker holds a long poll for this time
LAST_ANSWER_S = 1.0  # a consumer that is being closed waits this long for the answer to its last pop


@dataclass(slots=True)
class Source:
    """A topic on one broker name, which the consumer asks for messages.  `attempt_id` is the id under which an
    unanswered pop is repeated, and is empty if the last pop was answered."""

    topic: str
    broker_name: str
    expression: TagExpression | SqlExpression
    attempt_id: str = ""
    failures: int = 0
    error: RocketSimError | None = None
    retry_at: float = 0.0


class Poller:
    """Asks brokers for messages, and puts the messages into the inbox.  Thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        options: ConsumerOptions,
        inbox: Inbox,
        renewal: Renewal,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._inbox = inbox
        self._renewal = renewal
        self._clock = clock
        self._turn = itertools.count()
        self._sources: dict[tuple[str, str], Source] = {}
        self._is_asking = False  # guarded by the inbox's condition
        self._asks: threading.Thread | None = None  # the last thread that asked brokers
        self._asked: tuple[str, PopCall] | None = None  # the last pop, and the address of its broker
        self._under_way = UnderWay()

    def receive(self, at_most: int, batch: int, timeout_s: float | None) -> list[ReceivedMessage]:
        """Returns messages of the inbox.  While the inbox has no message, asks brokers for `batch` messages at a time.
        Returns an empty list if no message came in time.  Raises the last error if every source (topic and broker name)
        has failed."""
        found = self._wait_until(lambda now: self._inbox.in_flight.hand_out(at_most, now), batch, timeout_s)
        if not found and (error := self.failure()) is not None:
            raise error
        return found or []

    def take(self, at_most: int) -> list[ReceivedMessage]:
        """Returns messages that the inbox has now.  Asks no broker and waits for nothing."""
        with self._inbox.changed:
            self._inbox.check_open()
            return self._inbox.in_flight.hand_out(at_most, self._clock())

    def wait(self, batch: int, timeout_s: float) -> None:
        """Asks brokers as `receive` does, until `take` would return a message or the time is over.  Takes no
        message."""
        self._wait_until(self._inbox.in_flight.has_ready, batch, timeout_s)

    def failure(self) -> RocketSimError | None:
        """Returns the last error if every source has failed.  Returns None while the inbox is full, because then no
        source is asked."""
        failed = [source.error for source in self._sources.values() if source.error is not None]
        if failed and len(failed) == len(self._sources) and self._inbox.in_flight.room > 0:
            return failed[-1].again()
        return None

    def _wait_until(self, look: Callable[[float], T], batch: int, timeout_s: float | None) -> T | None:
        """Asks brokers, and calls `look` after each answer, until `look` finds something in the inbox.  Returns None if
        `look` found nothing in time."""
        until = float("inf") if timeout_s is None else self._clock() + timeout_s
        has_asked = was_told = False
        while True:
            with self._inbox.changed:
                self._inbox.check_open()
                now = self._clock()
                if self._inbox.in_flight.room <= 0:
                    self._inbox.in_flight.expire(now)
                if found := look(now):
                    return found
                left_s = until - now
                if left_s <= 0 and has_asked:
                    return None
                room = min(batch, self._inbox.in_flight.room)
                if room <= 0 or self._is_asking:
                    if left_s <= 0:
                        return None  # brokers' answers to another thread count for this call, too
                    if room <= 0 and not was_told:
                        logger.warning(
                            "%s: max_in_flight or max_in_flight_bytes is reached; the next receive waits for acks",
                            self._inbox,
                        )
                        was_told = True
                    self._inbox.changed.wait(min(left_s, 1.0))
                    continue
                self._is_asking, self._asks = True, threading.current_thread()
                waits_for_ack = self._inbox.in_flight.has_waiting
            try:
                self.ask(room, max(0.0, left_s), has_to_return_soon=waits_for_ack)
            finally:
                with self._inbox.changed:
                    self._is_asking = False
                    self._inbox.changed.notify_all()
            has_asked = True

    def ask(self, room: int, left_s: float, *, has_to_return_soon: bool) -> None:
        """Asks each topic and broker (source) once.  A single source is long-polled.  If there are several sources,
        each is first asked without a long poll.  If no source has a message, one source is long-polled for 0.1 s per
        source, 1 s at most, and the sources take turns.  Messages at the other sources have to wait during a long
        poll."""
        sources = self._turned(self.current_sources())
        open_ones = [source for source in sources if source.retry_at <= self._clock()]
        if not open_ones:
            pause = min(source.retry_at for source in sources) - self._clock()
            self._inbox.closed.wait(max(0.0, min(pause, left_s)))
            return
        is_only = len(sources) == 1
        longest_s = POLL_S if is_only and not has_to_return_soon else min(1.0, 0.1 * len(sources))
        for source in open_ones if not is_only else []:
            if self._inbox.closed.is_set() or self._pop(source, room, 0.0):
                return
        waits_for = next((source for source in open_ones if source.error is None or is_only), None)
        if waits_for is not None and not self._inbox.closed.is_set():
            self._pop(waits_for, room, min(left_s, longest_s))

    def current_sources(self) -> list[Source]:
        """Returns the sources by the current routes.  Raises NoRoute if no route of a topic was ever known."""
        self._sources = {
            (topic, name): self._sources.get((topic, name)) or Source(topic, name, expression)
            for topic, expression in self._options.expressions.items()
            for name in sorted({queue.broker_name for queue in self._cluster.queues(topic)})
        }
        if not self._sources:
            raise NoPermission(f"no queue of {', '.join(self._options.expressions)} can be read")
        return list(self._sources.values())

    def _turned(self, sources: list[Source]) -> list[Source]:
        first = next(self._turn) % len(sources)
        return sources[first:] + sources[:first]

    def _pop(self, source: Source, room: int, poll_s: float) -> bool:
        """Returns True if messages came.  Raises an error only if the next call would fail in the same way."""
        source.attempt_id = source.attempt_id or uuid.uuid4().hex
        is_sql = isinstance(source.expression, SqlExpression)
        call = PopCall(
            group=self._options.group,
            topic=source.topic,
            broker_name=source.broker_name,
            client_id=self._inbox.client_id,
            max_messages=room,
            invisible_s=self._options.invisible_s,
            expression=source.expression.text,
            expression_type="SQL92" if is_sql else "TAG",
            poll_s=poll_s,
            attempt_id=source.attempt_id,
        )

        def pop(member: Member) -> PopAnswer:
            self._asked = member.address, call
            return self._cluster.transport.consumption.pop(
                member.address, call, poll_s + self._options.timeout_s, self._under_way
            )

        try:
            answer = self._cluster.ask(source.topic, source.broker_name, pop, only_this=True)
        except RocketSimError as error:
            if not isinstance(error, Unreachable):
                source.attempt_id = ""
            if not may_succeed_later(error):
                raise
            self._failed(source, error)
            return False
        source.attempt_id = ""
        if source.error is not None:
            logger.info("%s on broker %s answers again", source.topic, source.broker_name)
            source.failures, source.error = 0, None
        with self._inbox.changed:
            now = self._clock()
            for message, left_s in zip(answer.messages, answer.left_s, strict=True):
                self._inbox.in_flight.add(message, left_s, now, in_order=answer.in_order)
            if answer.messages:
                self._renewal.start()
        return bool(answer.messages)

    def _failed(self, source: Source, error: RocketSimError) -> None:
        if source.error is None:
            logger.warning("%s on broker %s is asked again later: %s", source.topic, source.broker_name, error)
        source.failures, source.error = source.failures + 1, error
        holds_up_others = isinstance(error, CallTimeout) and len(self._sources) > 1
        source.retry_at = self._clock() + (10.0 if holds_up_others else POLLS.pause_s(source.failures))

    def end(self, until: float) -> None:
        """Ends the call of the thread that asks brokers, and waits until that thread has put the messages of its last
        answer into the inbox.

        First the broker is asked to answer its long poll at once, because an open long poll would take the messages
        that the close gives back.  If the broker does not answer within a second, the call is cancelled, and messages
        that were on their way are delivered again after their invisible time.  If a signal handler calls `end` in the
        very thread that asks brokers, `end` does not wait, but cancels the thread's call as soon as the broker has
        ended the long poll.
        """
        cancels_at = min(self._clock() + LAST_ANSWER_S, until)
        is_this_thread = self._asks is threading.current_thread()
        while True:
            with self._inbox.changed:
                if not self._is_asking or self._clock() >= until:
                    return
            left_s = cancels_at - self._clock()
            if self._asked is not None and left_s > 0:
                try:
                    self._cluster.transport.consumption.end_polls(*self._asked, left_s)
                except RocketSimError:
                    cancels_at = self._clock()
            else:
                self._under_way.cancel()
            if is_this_thread:
                self._under_way.cancel()
                return
            with self._inbox.changed:
                if self._is_asking:
                    self._inbox.changed.wait(0.05)
