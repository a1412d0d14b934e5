"""Settles messages: acknowledges them, gives them back, or moves their deadlines."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from rocketsim_client.cluster import Cluster
from rocketsim_client.consuming.inbox import Inbox
from rocketsim_client.consuming.options import ConsumerOptions
from rocketsim_client.errors import (
    BrokerRefused,
    InvalidReceiptHandle,
    NoRoute,
    RocketSimError,
    ServiceNotAvailable,
    TopicNotExist,
    Unreachable,
)
from rocketsim_client.model import CommitStatus, worst
from rocketsim_client.received_message import ReceivedMessage
from rocketsim_client.retry import SETTLEMENTS, is_worth_asking_again
from rocketsim_client.routing.members import Member
from rocketsim_client.transport.consumption import MAX_HANDLES, Change, Settled

UNSUPPORTED = 3  # RocketMQ's code REQUEST_CODE_NOT_SUPPORTED, from a broker that is too old for these calls


@dataclass(frozen=True, slots=True)
class Settlement:
    """One way to settle messages: an ack, a nack, or a new deadline.

    `what` names the settlement in errors.  `call` settles messages of one topic at one broker's address, with a timeout
    in seconds.  `done` is called with the receipt handle of each settled message.  `gives_back` is True for a call that
    ends deliveries, because a repeated call may find that the deliveries have already ended.  `renews` is True for a
    renewal.  No caller waits for a renewal, and a renewal ignores messages that were settled in the meantime.
    """

    what: str
    call: Callable[[Sequence[ReceivedMessage], str, float], Settled]
    done: Callable[[str], None]
    gives_back: bool = False
    renews: bool = False


@dataclass(slots=True)
class Batch:
    """The messages of one call, which all have the same topic and broker.  There are at most as many as a broker
    accepts in one call.  `error` is the error of the last attempt."""

    messages: list[ReceivedMessage]
    error: RocketSimError | None = None
    may_be_done: bool = False

    def failed(self, error: RocketSimError) -> None:
        self.error = error
        self.may_be_done = self.may_be_done or isinstance(error, Unreachable | ServiceNotAvailable)


class Settler:
    """Settles messages for the caller's threads and for renewal.  Status and errors of all calls are those of
    `Consumer.ack`.  Thread-safe."""

    def __init__(self, cluster: Cluster, options: ConsumerOptions, inbox: Inbox, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._options = options
        self._inbox = inbox
        self._clock = clock
        # Broker name -> lock: one call at a time moves deadlines at a broker, so that an older call cannot overtake a
        # newer one.
        self._deadlines: dict[str, threading.Lock] = {}

    def ack(self, messages: Sequence[ReceivedMessage], timeout_s: float | None) -> CommitStatus:
        def call(some: Sequence[ReceivedMessage], address: str, left_s: float) -> Settled:
            topic, broker_name = some[0].topic, some[0].broker_name
            handles = [message.receipt_handle for message in some]
            calls = self._cluster.transport.consumption
            return calls.ack(address, self._options.group, topic, broker_name, handles, left_s)

        return self._settle(Settlement("acknowledged", call, self._inbox.in_flight.settle), messages, timeout_s)

    def nack(self, messages: Sequence[ReceivedMessage], delay_s: float | None, timeout_s: float | None) -> CommitStatus:
        with self.moving(messages):
            # In an ordered group the messages behind the given ones are given back as well, to be delivered after them.
            # The given messages and those behind them stay in flight until the broker has answered, because the caller
            # may still acknowledge some of them.
            in_flight = self._inbox.in_flight
            with self._inbox.changed:
                behind = {one.receipt_handle: in_flight.behind(one.receipt_handle) for one in messages}
            waiting = [other for others in behind.values() for other in others]
            later = {other.receipt_handle for other in waiting}

            def call(some: Sequence[ReceivedMessage], address: str, left_s: float) -> Settled:
                changes = [
                    Change(message.receipt_handle, 0.0, counted=False)
                    if message.receipt_handle in later
                    else Change(message.receipt_handle, delay_s)
                    for message in some
                ]
                return self._change(some, changes, address, left_s)

            # `done` settles a message, and the messages that were behind it before the call.  Messages that have come
            # during the call stay in flight, because they may be new deliveries of the same messages.
            def done(handle: str) -> None:
                for other in behind.get(handle, ()):
                    in_flight.settle(other.receipt_handle)
                in_flight.settle(handle)

            settlement = Settlement("given back", call, done, gives_back=True)
            return self._settle(settlement, [*waiting, *messages], timeout_s)

    def give_back(
        self, handed_out: Sequence[ReceivedMessage], waiting: Sequence[ReceivedMessage], timeout_s: float
    ) -> CommitStatus:
        """Gives all messages back, so that they are delivered again at once.  Deliveries of messages that no caller has
        taken do not count as attempts."""
        uncounted = {message.receipt_handle for message in waiting}

        def call(some: Sequence[ReceivedMessage], address: str, left_s: float) -> Settled:
            changes = [
                Change(message.receipt_handle, 0.0, counted=message.receipt_handle not in uncounted) for message in some
            ]
            return self._change(some, changes, address, left_s)

        settlement = Settlement("given back", call, self._inbox.in_flight.settle, gives_back=True)
        return self._settle(settlement, [*handed_out, *waiting], timeout_s)

    def extend(self, messages: Sequence[ReceivedMessage], invisible_s: float, timeout_s: float | None) -> CommitStatus:
        with self.moving(messages):
            return self.move(messages, invisible_s, timeout_s)

    @contextmanager
    def moving(self, messages: Sequence[ReceivedMessage]) -> Iterator[None]:
        """Holds the locks of the messages' brokers, so that one call at a time moves deadlines at a broker."""
        with ExitStack() as held:
            for name in sorted({message.broker_name for message in messages}):
                held.enter_context(self._deadlines.setdefault(name, threading.Lock()))
            yield

    def move(
        self, messages: Sequence[ReceivedMessage], invisible_s: float, timeout_s: float | None, *, renews: bool = False
    ) -> CommitStatus:
        def call(some: Sequence[ReceivedMessage], address: str, left_s: float) -> Settled:
            changes = [Change(message.receipt_handle, invisible_s) for message in some]
            return self._change(some, changes, address, left_s)

        now = self._clock()

        def moved(handle: str) -> None:
            self._inbox.in_flight.moved(handle, now, invisible_s)

        return self._settle(Settlement("extended", call, moved, renews=renews), messages, timeout_s)

    def _change(
        self, messages: Sequence[ReceivedMessage], changes: Sequence[Change], address: str, left_s: float
    ) -> Settled:
        topic, broker_name = messages[0].topic, messages[0].broker_name
        return self._cluster.transport.consumption.change_invisible(
            address, self._options.group, topic, broker_name, changes, left_s
        )

    def _settle(
        self, settlement: Settlement, messages: Iterable[ReceivedMessage], timeout_s: float | None
    ) -> CommitStatus:
        """Makes one call for each topic and broker.  Failed calls are repeated while time is left and another attempt
        may help.  In each round a call gets an equal share of the remaining time, so that a broker that does not answer
        leaves time for the others.  Errors are raised after all calls have ended."""
        until = self._clock() + (self._options.timeout_s if timeout_s is None else timeout_s)
        left, over, failures = [Batch(some) for some in _chunks(messages)], list[ReceivedMessage](), 0
        given_up: list[RocketSimError] = []
        statuses: list[CommitStatus] = []
        while left:
            again: list[Batch] = []
            for number, batch in enumerate(left):
                share_s = max((until - self._clock()) / (len(left) - number), 0.1)
                try:
                    answer = self._try_to_settle(settlement, batch, share_s)
                except RocketSimError as error:
                    if not may_succeed_later(error):
                        given_up.append(error)
                        if _is_deleted(error):  # nobody has to acknowledge the messages of a deleted topic
                            self._inbox.settle(message.receipt_handle for message in batch.messages)
                        continue
                    batch.failed(error)
                    again.append(batch)
                else:
                    over += self._note_settled(settlement, batch, answer.valid)
                    # The broker's status does not cover messages that an earlier call with a lost answer has
                    # acknowledged or given back.
                    statuses.append(answer.status if all(answer.valid) else CommitStatus.UNSAID)
            left, failures = again, failures + 1
            pause_s = SETTLEMENTS.pause_s(failures)
            if left and (self._clock() + pause_s >= until or (settlement.renews and self._inbox.closed.is_set())):
                given_up += [batch.error for batch in left if batch.error is not None]
                break
            if left:
                time.sleep(pause_s)
        if given_up:
            raise next((error for error in given_up if not _is_deleted(error)), given_up[0])
        if over:
            names = ", ".join(f"{message.msg_id} of {message.topic}" for message in over[:5])
            more = f" and {len(over) - 5} more" if len(over) > 5 else ""
            raise InvalidReceiptHandle(
                f"group {self._options.group}: not {settlement.what}, because their deliveries are over: {names}{more}"
                "; messages that were not acknowledged are delivered again"
            )
        return worst(statuses)

    def _try_to_settle(self, settlement: Settlement, batch: Batch, left_s: float) -> Settled:
        """Makes one attempt for a batch."""
        messages, until = batch.messages, self._clock() + left_s
        topic, broker_name = messages[0].topic, messages[0].broker_name

        def ask(member: Member) -> Settled:
            return settlement.call(messages, member.address, max(until - self._clock(), 0.1))

        answer = self._cluster.ask(topic, broker_name, ask, only_this=True)
        if answer.again:
            raise ServiceNotAvailable(
                f"{len(messages)} messages of {topic} are {settlement.what} on broker {broker_name}, but its disk or "
                f"slave did not confirm that in time ({answer.status.name}): repeat the call"
            )
        return answer

    def _note_settled(self, settlement: Settlement, batch: Batch, valid: Sequence[bool]) -> list[ReceivedMessage]:
        """Takes settled messages out of the inbox.  Returns the messages whose deliveries had already ended."""
        over: list[ReceivedMessage] = []
        with self._inbox.changed:
            for message, is_valid in zip(batch.messages, valid, strict=True):
                handle = message.receipt_handle
                if is_valid or (batch.may_be_done and settlement.gives_back):
                    settlement.done(handle)
                    continue
                # A renewal ignores a message that was acknowledged or given back in the meantime.
                if not settlement.renews or handle in self._inbox.in_flight:
                    over.append(message)
                self._inbox.in_flight.settle(handle)
            self._inbox.changed.notify_all()
        return over


def may_succeed_later(error: RocketSimError) -> bool:
    """Returns True if the same call may succeed in a moment."""
    if type(error) is BrokerRefused and error.code == UNSUPPORTED:
        return False
    return is_worth_asking_again(error)


def _is_deleted(error: RocketSimError) -> bool:
    """Returns True if a master has said that the topic does not exist."""
    return isinstance(error, TopicNotExist) and not isinstance(error, NoRoute)


def _chunks(messages: Iterable[ReceivedMessage]) -> Iterator[list[ReceivedMessage]]:
    """Yields the messages of each call.  All messages of a call have the same topic and broker, and there are at most
    as many as a broker accepts in one call."""
    by_source: dict[tuple[str, str], list[ReceivedMessage]] = {}
    for message in messages:
        by_source.setdefault((message.topic, message.broker_name), []).append(message)
    for some in by_source.values():
        for first in range(0, len(some), MAX_HANDLES):
            yield some[first : first + MAX_HANDLES]
