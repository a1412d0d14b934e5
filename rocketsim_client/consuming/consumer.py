"""The consumer of a group: receives messages, and acknowledges each.  The broker keeps which messages are under way.

One thread at a time asks brokers; all others wait for what it brings.  A thread of the consumer moves the deadlines of
messages that are worked on.
"""

import itertools
import logging
import math
import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from rocketsim_client import forks, validation
from rocketsim_client.addresses import Brokers
from rocketsim_client.cluster import Cluster
from rocketsim_client.connection import Where
from rocketsim_client.consuming.in_flight import InFlight
from rocketsim_client.errors import (
    BrokerRefused,
    CallTimeout,
    ClientClosed,
    InvalidParameter,
    InvalidReceiptHandle,
    NoPermission,
    NoRoute,
    RocketSimError,
    ServiceNotAvailable,
    TopicNotExist,
    Unreachable,
)
from rocketsim_client.expression import SqlExpression, TagExpression, expression_of
from rocketsim_client.model import CommitStatus, worst
from rocketsim_client.received_message import ReceivedMessage
from rocketsim_client.retry import POLLS, SETTLEMENTS, is_worth_asking_again
from rocketsim_client.routing.members import Member
from rocketsim_client.tls import File
from rocketsim_client.transport.consumption import (
    MAX_HANDLES,
    Change,
    ConsumptionCalls,
    PopAnswer,
    PopCall,
    Settled,
)
from rocketsim_client.transport.under_way import UnderWay

T = TypeVar("T")

logger = logging.getLogger(__name__)

BATCH = 32  # RocketMQ's, of one call
POLL_S = 15.0  # how long a broker holds a call
MAX_INVISIBLE_S = 12 * 3600.0  # brokers take no more
RENEW_FOR_S = 3 * 3600.0
RENEWALS = 6  # how often in an invisible time what is due is looked for
MAX_IN_FLIGHT_BYTES = 64 << 20  # as RocketMQ 5's push consumers keep
LAST_ANSWER_S = 1.0  # how long a consumer that is closed waits for the answer to its last pop
UNSUPPORTED = 3  # a broker that is too old for these calls


@dataclass(slots=True)
class _Source:
    """A topic on a broker name.  `attempt_id`: of a pop that was not answered; "" otherwise."""

    topic: str
    broker_name: str
    expression: TagExpression | SqlExpression
    attempt_id: str = ""
    failures: int = 0
    error: RocketSimError | None = None
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Settling:
    """`what` is done to messages, by a `call` for those of one topic and broker within some seconds; `done` notes it of
    a receipt handle.  `gives_back`: it ends deliveries, so a repeated call may find that done.  `renews`: nobody waits
    for it, and what somebody has settled meanwhile needs it no more."""

    what: str
    call: Callable[[Sequence[ReceivedMessage], str, float], Settled]
    done: Callable[[str], None]
    gives_back: bool = False
    renews: bool = False


@dataclass(slots=True)
class _Part:
    """What one call may have: messages of one topic and broker, and not too many.  `error`: of the last attempt."""

    messages: list[ReceivedMessage]
    error: RocketSimError | None = None
    may_be_done: bool = False

    def failed(self, error: RocketSimError) -> None:
        self.error = error
        self.may_be_done = self.may_be_done or isinstance(error, Unreachable | ServiceNotAvailable)


class Consumer:
    """Receives messages of topics for a group: each goes to one consumer of the group, and again to one unless it is
    acknowledged.  Thread-safe; `close` (or leaving a `with` block) gives back what is not acknowledged.

        with Consumer(name_server, "billing", "TopicTest") as consumer:
            for message in consumer:
                consumer.ack(message)

    `name_server`: `host:port;host:port`, or a Connection, which says where the cluster is and how its servers are
    called; empty with `brokers` (broker name -> broker id -> `host:port`).  `topics`: a topic, several, or topic ->
    filter: tags, as in "TagA || TagB", or an `SqlExpression`, which brokers evaluate (their `enablePropertyFilter`).
    Durations are in seconds:

    `invisible_s` (60): how long a message is this consumer's; after half of it the consumer asks for more, for
    `renew_for_s` (three hours; 0: never) from its receipt on
    `timeout_s` (3): of an ack and the like over all attempts; how much longer than it waits each call of a receive may
    take
    `poll_interval_s` (30): how old a route may be

    `access_key` and `secret_key`: the user and password that calls are signed with, for servers with access control.

    `max_in_flight` (1000), `max_in_flight_bytes` (64 MiB): messages that are received and not settled, and the bytes of
    their records, as stored; with so many of either, a receive waits.  What a broker answers at a time, less than 4 MiB
    and one message more, may exceed the bytes: a message that is larger than them is received, too.  Whether a group
    consumes in order, how often a message is delivered before it becomes a dead letter, and the back-off are settings
    of the group (`Admin.update_sub_group`).  `tls`, `tls_ca`, `tls_cert`, `tls_key`: as of Cluster.
    """

    def __init__(
        self,
        name_server: Where,
        group: str,
        topics: str | Iterable[str] | Mapping[str, str | SqlExpression | None],
        *,
        max_in_flight: int = 1000,
        max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES,
        invisible_s: float = 60.0,
        renew_for_s: float = RENEW_FOR_S,
        timeout_s: float = 3.0,
        poll_interval_s: float = 30.0,
        brokers: Brokers | None = None,
        access_key: str = "",
        secret_key: str = "",
        tls: bool = False,
        tls_ca: File = None,
        tls_cert: File = None,
        tls_key: File = None,
        cluster: Cluster | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        validation.check_group(group)
        self._expressions = _expressions_of(topics)
        if max_in_flight < 1:
            raise InvalidParameter(f"max_in_flight {max_in_flight}: at least 1")
        if max_in_flight_bytes < 1:
            raise InvalidParameter(f"max_in_flight_bytes {max_in_flight_bytes}: at least 1")
        _check_invisible(invisible_s)
        self.group = group
        self._max_in_flight = max_in_flight
        self._max_in_flight_bytes = max_in_flight_bytes
        self._invisible_s = invisible_s
        self._renew_for_s = renew_for_s
        self._timeout_s = timeout_s
        self._owns_cluster = cluster is None
        self._cluster = cluster or Cluster(
            name_server,
            brokers=brokers,
            timeout_s=timeout_s,
            poll_interval_s=poll_interval_s,
            access_key=access_key,
            secret_key=secret_key,
            tls=tls,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
        self._clock = clock
        self._turn = itertools.count()
        self._start()
        forks.watch(self)

    def _start(self) -> None:
        self._client_id = f"{socket.gethostname()[:64]}@{os.getpid()}@{uuid.uuid4().hex[:12]}"
        self._in_flight = InFlight(self._max_in_flight, self._max_in_flight_bytes, self._invisible_s, self._renew_for_s)
        self._changed = threading.Condition()  # guards what is in flight, and who asks brokers
        self._is_asking = False
        self._asks: threading.Thread | None = None  # the last thread that did
        self._asked: tuple[str, PopCall] | None = None  # the broker's address, and the last pop there
        # By broker name: one call at a time moves deadlines there, so that none comes too late.
        self._deadlines: dict[str, threading.Lock] = {}
        self._closed = threading.Event()
        self._sooner = threading.Event()  # set for a renewal before the one that is waited for
        self._under_way = UnderWay()
        self._sources: dict[tuple[str, str], _Source] = {}
        self._renewing: threading.Thread | None = None

    def forget_parent(self) -> None:
        """What the parent has received is the parent's."""
        was_closed = self._closed.is_set()
        self._start()
        if was_closed:
            self._closed.set()

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        held = f"{len(self._in_flight)} messages in flight, {self._in_flight.size_bytes} bytes"
        return f"consumer {self._client_id} of group {self.group}: {held}"

    @property
    def cluster(self) -> Cluster:
        """The cluster that this consumer receives from."""
        return self._cluster

    @property
    def in_flight(self) -> int:
        """How many messages are received and not settled, those included that wait here to be handed out."""
        return len(self._in_flight)

    @property
    def in_flight_bytes(self) -> int:
        """The bytes of their records, as stored."""
        return self._in_flight.size_bytes

    @property
    def _brokers(self) -> ConsumptionCalls:
        return self._cluster.transport.consumption

    # --- receiving ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        """Waits for a message; the iteration ends when the consumer is closed.  Several threads may iterate."""
        try:
            (message,) = self._receive(1, BATCH, None)
        except ClientClosed:
            raise StopIteration from None
        return message

    def poll(self, timeout_s: float | None = None) -> ReceivedMessage | None:
        """The next message, as by iterating: up to 32 are received in advance.  None if none came in `timeout_s` (None:
        waits without end).  Errors are those of `receive`."""
        found = self._receive(1, BATCH, timeout_s)
        return found[0] if found else None

    def receive(self, max_messages: int = BATCH, timeout_s: float | None = None) -> list[ReceivedMessage]:
        """Waits for a first message, for `timeout_s` (None: without end), and returns it with those that are there,
        32 at most; an empty list if none came.  A broker that does not answer is asked again; raises if none has
        answered when the time is over."""
        if max_messages < 1:
            raise InvalidParameter(f"receive of {max_messages} messages: at least 1")
        return self._receive(max_messages, min(max_messages, BATCH), timeout_s)

    def _receive(self, at_most: int, batch: int, timeout_s: float | None) -> list[ReceivedMessage]:
        until = float("inf") if timeout_s is None else self._clock() + timeout_s
        has_asked = was_told = False
        while True:
            with self._changed:
                self._check_open()
                now = self._clock()
                if self._in_flight.room <= 0:
                    self._in_flight.expire(now)
                if found := self._in_flight.hand_out(at_most, now):
                    return found
                left_s = until - now
                if left_s <= 0 and has_asked:
                    break
                room = min(batch, self._in_flight.room)
                if room <= 0 or self._is_asking:
                    if left_s <= 0:
                        if room <= 0:
                            return []
                        break  # what the other thread has heard is the answer
                    if room <= 0 and not was_told:
                        logger.warning(
                            "%s: max_in_flight or max_in_flight_bytes is reached; the next receive waits for acks", self
                        )
                        was_told = True
                    self._changed.wait(min(left_s, 1.0))
                    continue
                self._is_asking, self._asks = True, threading.current_thread()
                waits_for_ack = self._in_flight.has_waiting
            try:
                self._ask(room, max(0.0, left_s), has_to_return_soon=waits_for_ack)
            finally:
                with self._changed:
                    self._is_asking = False
                    self._changed.notify_all()
            has_asked = True
        failed = [source.error for source in self._sources.values() if source.error is not None]
        if failed and len(failed) == len(self._sources):
            raise failed[-1].again()
        return []

    def _ask(self, room: int, left_s: float, *, has_to_return_soon: bool) -> None:
        """One round of the topics and brokers.  With several, each is looked at first; one of them in turns then holds
        the call, for less the fewer there are: a message waits at most so long."""
        sources = self._turned(self._current_sources())
        open_ones = [source for source in sources if source.retry_at <= self._clock()]
        if not open_ones:
            pause = min(source.retry_at for source in sources) - self._clock()
            self._closed.wait(max(0.0, min(pause, left_s)))
            return
        is_only = len(sources) == 1
        longest_s = POLL_S if is_only and not has_to_return_soon else min(1.0, 0.1 * len(sources))
        looks = [] if is_only else [(source, 0.0) for source in open_ones]
        for source, poll_s in looks:
            if self._closed.is_set() or self._pop(source, room, poll_s):
                return
        waits_for = next((source for source in open_ones if source.error is None or is_only), None)
        if waits_for is not None and not self._closed.is_set():
            self._pop(waits_for, room, min(left_s, longest_s))

    def _current_sources(self) -> list[_Source]:
        """By the routes of now.  NoRoute: a topic that no name server has ever named."""
        self._sources = {
            (topic, name): self._sources.get((topic, name)) or _Source(topic, name, expression)
            for topic, expression in self._expressions.items()
            for name in sorted({queue.broker_name for queue in self._cluster.queues(topic)})
        }
        if not self._sources:
            raise NoPermission(f"no queue of {', '.join(self._expressions)} can be read")
        return list(self._sources.values())

    def _turned(self, sources: list[_Source]) -> list[_Source]:
        first = next(self._turn) % len(sources)
        return sources[first:] + sources[:first]

    def _pop(self, source: _Source, room: int, poll_s: float) -> bool:
        """True if messages came.  Raises what asking again cannot cure."""
        source.attempt_id = source.attempt_id or uuid.uuid4().hex
        is_sql = isinstance(source.expression, SqlExpression)
        call = PopCall(
            group=self.group,
            topic=source.topic,
            broker_name=source.broker_name,
            client_id=self._client_id,
            max_messages=room,
            invisible_s=self._invisible_s,
            expression=source.expression.text,
            expression_type="SQL92" if is_sql else "TAG",
            poll_s=poll_s,
            attempt_id=source.attempt_id,
        )

        def pop(member: Member) -> PopAnswer:
            self._asked = member.address, call
            return self._brokers.pop(member.address, call, poll_s + self._timeout_s, self._under_way)

        try:
            answer = self._ask_master(source.topic, source.broker_name, pop)
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
        with self._changed:
            now = self._clock()
            for message, left_s in zip(answer.messages, answer.left_s, strict=True):
                self._in_flight.add(message, left_s, now, in_order=answer.in_order)
            if answer.messages:
                self._start_renewing()
        return bool(answer.messages)

    def _failed(self, source: _Source, error: RocketSimError) -> None:
        if source.error is None:
            logger.warning("%s on broker %s is asked again later: %s", source.topic, source.broker_name, error)
        source.failures, source.error = source.failures + 1, error
        holds_up_others = isinstance(error, CallTimeout) and len(self._sources) > 1
        source.retry_at = self._clock() + (10.0 if holds_up_others else POLLS.pause_s(source.failures))

    # --- settling -------------------------------------------------------------------------------------------------

    def ack(
        self, messages: ReceivedMessage | Iterable[ReceivedMessage], *, timeout_s: float | None = None
    ) -> CommitStatus:
        """The messages are done.  The status says who has that; of several brokers it is the one that promises least.
        `COMMIT_OK`: final in the broker's mode.  `SLAVE_NOT_AVAILABLE`: a SYNC_MASTER had no slave; if it is lost
        before a slave has followed, they are delivered again.

        InvalidReceiptHandle: some deliveries were over, and these messages are delivered again; the others are
        acknowledged.  TopicNotExist: their topic was deleted, and they are not delivered again.  Any other error: it
        is unknown which are; the consumer keeps them, so acknowledge them again.  That is also the error when a disk
        or slave that is there does not take the ack in time, again and again until `timeout_s` is over."""

        def call(some: Sequence[ReceivedMessage], address: str, left_s: float) -> Settled:
            topic, broker_name = some[0].topic, some[0].broker_name
            handles = [message.receipt_handle for message in some]
            return self._brokers.ack(address, self.group, topic, broker_name, handles, left_s)

        self._check_open()
        return self._settle(_Settling("acknowledged", call, self._in_flight.settle), _listed(messages), timeout_s)

    def nack(
        self,
        messages: ReceivedMessage | Iterable[ReceivedMessage],
        delay_s: float | None = None,
        *,
        timeout_s: float | None = None,
    ) -> CommitStatus:
        """The messages have failed: each is delivered again after `delay_s`, or (None) after the group's back-off, and
        is a dead letter after the last delivery that the group allows.  Status and errors are those of `ack`."""
        if delay_s is not None and not 0 <= delay_s <= MAX_INVISIBLE_S:
            raise InvalidParameter(f"delay_s {delay_s}: 0 to {MAX_INVISIBLE_S:g} s")
        given = _listed(messages)
        self._check_open()
        with self._moving(given):
            # They are delivered again behind the ones that have failed.  Until it is known that these are given back,
            # they are kept: the caller may settle the ones that have failed otherwise.
            with self._changed:
                behind = [other for message in given for other in self._in_flight.behind(message.receipt_handle)]
            later = {other.receipt_handle for other in behind}

            def call(some: Sequence[ReceivedMessage], address: str, left_s: float) -> Settled:
                changes = [
                    Change(message.receipt_handle, 0.0, counted=False)
                    if message.receipt_handle in later
                    else Change(message.receipt_handle, delay_s)
                    for message in some
                ]
                return self._change(some, changes, address, left_s)

            settling = _Settling("given back", call, self._in_flight.settle_with_those_behind, gives_back=True)
            return self._settle(settling, [*behind, *given], timeout_s)

    def extend(
        self,
        messages: ReceivedMessage | Iterable[ReceivedMessage],
        invisible_s: float,
        *,
        timeout_s: float | None = None,
    ) -> CommitStatus:
        """The messages are this consumer's for `invisible_s` from now on, and longer while it renews them
        (`renew_for_s`): it asks for more after half of that.  Status and errors are those of `ack`."""
        _check_invisible(invisible_s)
        given = _listed(messages)
        self._check_open()
        with self._moving(given):
            status = self._move(given, invisible_s, timeout_s)
        self._sooner.set()
        return status

    @contextmanager
    def _moving(self, messages: Sequence[ReceivedMessage]) -> Iterator[None]:
        with ExitStack() as held:
            for name in sorted({message.broker_name for message in messages}):
                held.enter_context(self._deadlines.setdefault(name, threading.Lock()))
            yield

    def _move(
        self, messages: Sequence[ReceivedMessage], invisible_s: float, timeout_s: float | None, *, renews: bool = False
    ) -> CommitStatus:
        def call(some: Sequence[ReceivedMessage], address: str, left_s: float) -> Settled:
            changes = [Change(message.receipt_handle, invisible_s) for message in some]
            return self._change(some, changes, address, left_s)

        now = self._clock()

        def moved(handle: str) -> None:
            self._in_flight.moved(handle, now, invisible_s)

        return self._settle(_Settling("extended", call, moved, renews=renews), messages, timeout_s)

    def _change(
        self, messages: Sequence[ReceivedMessage], changes: Sequence[Change], address: str, left_s: float
    ) -> Settled:
        topic, broker_name = messages[0].topic, messages[0].broker_name
        return self._brokers.change_invisible(address, self.group, topic, broker_name, changes, left_s)

    def _settle(
        self, settling: "_Settling", messages: Iterable[ReceivedMessage], timeout_s: float | None
    ) -> CommitStatus:
        """Makes the calls, one for each topic and broker; what has failed is tried again while that may help and there
        is time.  In each round a call gets its share of what is left, so that brokers which do not answer leave some to
        the others.  An error is raised after the last call."""
        until = self._clock() + (self._timeout_s if timeout_s is None else timeout_s)
        left, over, failures = [_Part(some) for some in _chunks(messages)], list[ReceivedMessage](), 0
        given_up: list[RocketSimError] = []
        statuses: list[CommitStatus] = []
        while left:
            again: list[_Part] = []
            for number, part in enumerate(left):
                share_s = max((until - self._clock()) / (len(left) - number), 0.1)
                try:
                    answer = self._try_to_settle(settling, part, share_s)
                except RocketSimError as error:
                    if not may_succeed_later(error):
                        given_up.append(error)
                        self._note_deleted(part, error)
                        continue
                    part.failed(error)
                    again.append(part)
                else:
                    over += self._note_settled(settling, part, answer.valid)
                    # What an earlier attempt has done, whose answer was lost, is not looked at again by the broker.
                    statuses.append(answer.status if all(answer.valid) else CommitStatus.UNSAID)
            left, failures = again, failures + 1
            pause_s = SETTLEMENTS.pause_s(failures)
            if left and (self._clock() + pause_s >= until or (settling.renews and self._closed.is_set())):
                given_up += [part.error for part in left if part.error is not None]
                break
            if left:
                time.sleep(pause_s)
        if given_up:
            raise next((error for error in given_up if not _is_deleted(error)), given_up[0])
        if over:
            names = ", ".join(f"{message.msg_id} of {message.topic}" for message in over[:5])
            more = f" and {len(over) - 5} more" if len(over) > 5 else ""
            raise InvalidReceiptHandle(
                f"group {self.group}: not {settling.what}: {names}{more}: these deliveries are over; messages that "
                "were not acknowledged are delivered again"
            )
        return worst(statuses)

    def _try_to_settle(self, settling: "_Settling", part: "_Part", left_s: float) -> Settled:
        """One attempt."""
        messages, until = part.messages, self._clock() + left_s
        topic, broker_name = messages[0].topic, messages[0].broker_name

        def ask(member: Member) -> Settled:
            return settling.call(messages, member.address, max(until - self._clock(), 0.1))

        answer = self._ask_master(topic, broker_name, ask)
        if answer.again:
            raise ServiceNotAvailable(
                f"{len(messages)} messages of {topic} are {settling.what} on broker {broker_name}, but its disk or "
                f"slave did not take that in time ({answer.status.name}): do it again"
            )
        return answer

    def _note_settled(self, settling: "_Settling", part: "_Part", valid: Sequence[bool]) -> list[ReceivedMessage]:
        """Those whose deliveries were over before."""
        over: list[ReceivedMessage] = []
        with self._changed:
            for message, is_valid in zip(part.messages, valid, strict=True):
                handle = message.receipt_handle
                if is_valid or (part.may_be_done and settling.gives_back):
                    settling.done(handle)
                    continue
                if not settling.renews or handle in self._in_flight:  # else it was settled meanwhile
                    over.append(message)
                self._in_flight.settle(handle)
            self._changed.notify_all()
        return over

    def _note_deleted(self, part: "_Part", error: RocketSimError) -> None:
        """The messages of a topic that was deleted are nobody's any more."""
        if _is_deleted(error):
            with self._changed:
                for message in part.messages:
                    self._in_flight.settle(message.receipt_handle)
                self._changed.notify_all()

    def _ask_master(self, topic: str, broker_name: str, call: Callable[[Member], T]) -> T:
        return self._cluster.ask(topic, broker_name, call, only_this=True)

    # --- renewal --------------------------------------------------------------------------------------------------

    def _start_renewing(self) -> None:
        """By whom `_changed` is held."""
        if self._renewing is None and self._renew_for_s > 0:
            self._renewing = threading.Thread(
                target=_renew_while_alive,
                args=(weakref.ref(self), self._closed, self._sooner, self._invisible_s / RENEWALS),
                name=f"rocketsim-renew-{self.group}",
                daemon=True,
            )
            self._renewing.start()

    def _renew(self) -> float:
        """Returns in how many seconds the next one is due; a negative number: it is.  Brokers that do not answer leave
        the others time to be asked before their messages are due."""
        until = self._clock() + min(self._timeout_s, self._invisible_s / RENEWALS)
        with self._changed:
            left = _by_broker_name(self._in_flight.to_renew(self._clock()))
        has_failed = False
        while left:
            name, due = left.popitem()
            share_s = max(0.0, until - self._clock()) / (len(left) + 1)
            with self._moving(due):
                with self._changed:  # some may be settled
                    due = _by_broker_name(self._in_flight.to_renew(self._clock())).get(name, [])
                try:
                    self._move(due, self._invisible_s, share_s, renews=True)
                except ClientClosed:
                    pass
                except RocketSimError as error:
                    logger.warning("%s: not renewed: %s", self, error)
                    has_failed = True
        with self._changed:
            now = self._clock()
            return math.inf if has_failed else self._in_flight.next_renewal(now) - now  # not at once again

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float = 5.0) -> None:
        """Ends receives, and gives back what is not settled: it is delivered to others at once.  Takes `timeout_s` at
        most; what could not be given back then is delivered again after its invisible time."""
        until = self._clock() + timeout_s
        with self._changed:
            if self._closed.is_set():
                return
            self._closed.set()
            self._sooner.set()
            self._changed.notify_all()
        self._end_asking(until)
        if self._renewing is not None and self._renewing is not threading.current_thread():
            self._renewing.join(max(0.0, until - self._clock()) / 2)  # the rest is for what is given back
        with self._changed:
            handed_out, waiting = self._in_flight.take_all()
        uncounted = {message.receipt_handle for message in waiting}

        def give_back(one: Sequence[ReceivedMessage], address: str, left_s: float) -> Settled:
            changes = [
                Change(message.receipt_handle, 0.0, counted=message.receipt_handle not in uncounted) for message in one
            ]
            return self._change(one, changes, address, left_s)

        settling = _Settling("given back", give_back, self._in_flight.settle, gives_back=True)
        try:
            self._settle(settling, [*handed_out, *waiting], max(0.0, until - self._clock()))
        except (InvalidReceiptHandle, TopicNotExist):
            pass  # over already
        except RocketSimError as error:
            logger.warning("%s: messages come again after their invisible time only: %s", self, error)
        if self._owns_cluster:
            self._cluster.close()

    def _end_asking(self, until: float) -> None:
        """The thread that asks brokers has what they answer.  A broker that does not end its poll at once is not waited
        for: the call is cancelled, and messages that were on their way come after their invisible time.  Nor is this
        thread waited for, if a signal's handler closes the consumer."""
        cancels_at = min(self._clock() + LAST_ANSWER_S, until)
        is_this_thread = self._asks is threading.current_thread()
        while True:
            with self._changed:
                if not self._is_asking or self._clock() >= until:
                    return
            left_s = 0.0 if is_this_thread else cancels_at - self._clock()
            if self._asked is not None and left_s > 0:
                try:
                    self._brokers.end_polls(*self._asked, left_s)
                except RocketSimError:
                    cancels_at = self._clock()
            else:
                self._under_way.cancel()
            if is_this_thread:
                return
            with self._changed:
                if self._is_asking:
                    self._changed.wait(0.05)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ClientClosed(f"the consumer of group {self.group} has been closed")


def _renew_while_alive(
    consumer: "weakref.ref[Consumer]", closed: threading.Event, sooner: threading.Event, every_s: float
) -> None:
    """Ends with the consumer, also if nobody closes it."""
    pause_s = every_s
    while True:
        sooner.wait(pause_s)
        sooner.clear()
        alive = consumer()
        if closed.is_set() or alive is None:
            return
        pause_s = min(max(alive._renew(), 0.001), every_s)
        del alive


def _expressions_of(
    topics: str | Iterable[str] | Mapping[str, str | SqlExpression | None],
) -> dict[str, TagExpression | SqlExpression]:
    if isinstance(topics, str):
        topics = [topics]
    given = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics)
    if not given:
        raise InvalidParameter("no topic to consume")
    for topic in given:
        validation.check_topic(topic)
    return {topic: expression_of(filtered) for topic, filtered in given.items()}


def _check_invisible(invisible_s: float) -> None:
    if not 0.001 <= invisible_s <= MAX_INVISIBLE_S:
        raise InvalidParameter(f"invisible_s {invisible_s}: 0.001 to {MAX_INVISIBLE_S:g} s")


def may_succeed_later(error: RocketSimError) -> bool:
    """Whether the same call may succeed in a moment."""
    if type(error) is BrokerRefused and error.code == UNSUPPORTED:
        return False
    return is_worth_asking_again(error)


def _is_deleted(error: RocketSimError) -> bool:
    """Whether a master says that the topic is gone."""
    return isinstance(error, TopicNotExist) and not isinstance(error, NoRoute)


def _by_broker_name(messages: Iterable[ReceivedMessage]) -> dict[str, list[ReceivedMessage]]:
    found: dict[str, list[ReceivedMessage]] = {}
    for message in messages:
        found.setdefault(message.broker_name, []).append(message)
    return found


def _listed(messages: ReceivedMessage | Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
    return [messages] if isinstance(messages, ReceivedMessage) else list(messages)


def _chunks(messages: Iterable[ReceivedMessage]) -> Iterator[list[ReceivedMessage]]:
    """What one call may have: of one topic and broker, and not too many."""
    by_source: dict[tuple[str, str], list[ReceivedMessage]] = {}
    for message in messages:
        by_source.setdefault((message.topic, message.broker_name), []).append(message)
    for some in by_source.values():
        for first in range(0, len(some), MAX_HANDLES):
            yield some[first : first + MAX_HANDLES]
