"""Where accepted messages wait, and the few threads that send them: the accumulator's shell.

A thread is started when there is something to send and all others are at it.  Closing sends everything first.
"""

# Arrow would import this with the first batch, which fails at the end of a process: where a forgotten producer is
# closed.
import concurrent.futures.thread  # noqa: F401
import threading
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import cast

import numpy as np

from rocketsim_client.errors import (
    CallTimeout,
    ClientClosed,
    MessageIllegal,
    QueueNotExist,
    RocketSimError,
    SendFailed,
)
from rocketsim_client.model import BatchPart, Message, MessageQueue, SendResult
from rocketsim_client.sending import selection
from rocketsim_client.sending.accumulator import Accumulator, Batch, Kind, Lane
from rocketsim_client.sending.batch import OutgoingBatch
from rocketsim_client.sending.columns import cut_by_key
from rocketsim_client.sending.delivery import Delivery
from rocketsim_client.sending.pending import Pending, succeed_all

MAX_SENDERS = 32
NEW_ROUTES = 2  # how often a send by key is routed anew when the topic's queues change under it
MAY_MOVE = frozenset({Kind.SYNC, Kind.ASYNC, Kind.ONEWAY, Kind.ALONE})

Encode = Callable[[Sequence[Message], Sequence[MessageQueue], Sequence[str | None] | None, bool], OutgoingBatch]


class Outbox:
    """Thread-safe.  `encode` makes a batch of messages, queues, sharding keys and whether it may move to another
    broker."""

    def __init__(
        self,
        new_accumulator: Callable[[], Accumulator[Pending]],
        delivery: Delivery,
        encode: Encode,
        *,
        retries: int,
        async_retries: int,
        timeout_s: float,
        buffer_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self._new_accumulator = new_accumulator
        self._delivery = delivery
        self._encode = encode
        self._retries = {kind: async_retries for kind in Kind} | {
            Kind.SYNC: retries,
            Kind.ORDERED: retries,
            Kind.ONEWAY: 0,
        }
        self._timeout_s = timeout_s
        self._buffer_bytes = buffer_bytes
        self._clock = clock
        self._closed = False
        self.start_anew()

    def start_anew(self) -> None:
        """Empty, with locks that nobody holds and no threads: at the beginning, and in a forked child."""
        self._accumulator = self._new_accumulator()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # a sender may have something to do
        self._done = threading.Condition(self._lock)  # something was acknowledged: there may be room, or nothing left
        self._senders: list[threading.Thread] = []
        self._idle = 0

    def __str__(self) -> str:
        return str(self._accumulator)

    # --- accepting ------------------------------------------------------------------------------------------------

    def accept(self, entry: Pending, topic: str, kind: Kind, wait_store_msg_ok: bool, size: int) -> None:
        """Returns when there is room for the entry, which is at once unless senders are slower than callers."""
        queue = cast(MessageQueue, entry.queue)
        with self._lock:
            if self._closed:
                raise ClientClosed("this producer has been closed")
            accumulator = self._accumulator
            if accumulator.size_bytes + size > self._buffer_bytes:
                self._wait_for_room(topic, size)
            lane = accumulator.lane(queue.broker_name, topic, kind, wait_store_msg_ok)
            if accumulator.add(lane, entry, size, self._clock()):
                self._wake_a_sender()

    def accept_or_send(
        self, entry: Pending, topic: str, kind: Kind, wait_store_msg_ok: bool, size: int, timeout_s: float
    ) -> None:
        """As `accept`, for a caller that waits for the result anyway: it sends the entry itself when its lane is
        idle."""
        queue = cast(MessageQueue, entry.queue)
        with self._lock:
            if self._closed:
                raise ClientClosed("this producer has been closed")
            lane = self._accumulator.lane(queue.broker_name, topic, kind, wait_store_msg_ok)
            batch = self._accumulator.start_alone(lane, entry, size)
        if batch is None:
            self.accept(entry, topic, kind, wait_store_msg_ok, size)
        else:
            self._run(batch, self._clock() + timeout_s)

    def _wait_for_room(self, topic: str, size: int) -> None:
        accumulator = self._accumulator

        def room() -> bool:
            return self._closed or not accumulator.size_bytes or accumulator.size_bytes + size <= self._buffer_bytes

        if not self._done.wait_for(room, self._timeout_s):
            raise SendFailed(
                f"topic {topic!r}: {accumulator.size_bytes} bytes wait for brokers, "
                f"no room within {self._timeout_s:.3g} s",
                attempts=0,
                maybe_stored=False,
                code=2,
            )
        if self._closed:
            raise ClientClosed("this producer has been closed")

    def _wake_a_sender(self) -> None:
        if self._idle:
            self._work.notify()
        elif len(self._senders) < MAX_SENDERS:
            name = f"rocketsim-send-{len(self._senders)}"
            sender = threading.Thread(target=self._send_batches, name=name, daemon=True)
            sender.start()
            self._senders.append(sender)

    # --- ending ---------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None) -> None:
        with self._lock:
            self._accumulator.closing = True
            self._work.notify_all()
            done = self._done.wait_for(self._accumulator.is_empty, timeout_s)
            self._accumulator.closing = self._closed
        if not done:
            raise CallTimeout(f"not everything was sent within {timeout_s} s: {self}")

    def close(self) -> None:
        with self._lock:
            self._closed = self._accumulator.closing = True
            self._work.notify_all()
            self._done.notify_all()
            self._done.wait_for(self._accumulator.is_empty)
            self._work.notify_all()
        for sender in self._senders:
            if sender is not threading.current_thread():
                sender.join()

    # --- sending --------------------------------------------------------------------------------------------------

    def _send_batches(self) -> None:
        while True:
            with self._lock:
                while (batch := self._accumulator.take(now := self._clock())) is None:
                    if self._closed and self._accumulator.is_empty():
                        return
                    self._idle += 1
                    self._work.wait(self._accumulator.due_in(now))
                    self._idle -= 1
            self._run(batch, self._clock() + self._timeout_s)

    def _run(self, batch: Batch[Pending], deadline: float) -> None:
        """Whatever goes wrong is told to those who wait for the entries, and ends no sender: what is accepted later
        would wait for ever."""
        try:
            self._settle(batch.entries, batch.lane, deadline)
        except Exception as error:
            _fail(batch.entries, error)
        except BaseException as error:  # Ctrl-C in a caller that sends for itself
            _fail(batch.entries, error)
            raise
        finally:
            with self._lock:
                self._accumulator.done(batch)
                self._done.notify_all()
                if self._idle:
                    self._work.notify()

    def _settle(
        self, entries: Sequence[Pending], lane: Lane[Pending], deadline: float, routes: int = NEW_ROUTES
    ) -> None:
        """Deliver the entries and tell everybody.  One message that a broker finds illegal does not take the others
        with it; keys whose queues are gone find others, by up to `routes` new routes."""
        kind = lane.key.kind
        if isinstance(entries[0].message, OutgoingBatch):
            for entry in entries:  # ordered column batches may have met in one lane
                self._settle_columns(entry, kind, deadline)
            return
        by_key = routes and any(entry.by_key for entry in entries)
        apart = MessageIllegal if len(entries) > 1 else QueueNotExist if by_key else None
        try:
            outgoing = self._outgoing(entries, kind in MAY_MOVE and not entries[0].pinned)
            part = self.deliver(outgoing, deadline, self._retries[kind], apart=apart)
        except RocketSimError as error:
            if apart is None or not isinstance(error, apart):
                _fail(entries, error)
                return
            if by_key and isinstance(error, QueueNotExist):
                groups, routes = self._by_new_route(entries), routes - 1
            else:
                groups = [entries[: len(entries) // 2], entries[len(entries) // 2 :]]
            for group in groups:
                self._settle(group, lane, deadline, routes)
        else:
            succeed_all(entries, _results(part, entries))

    def _settle_columns(self, entry: Pending, kind: Kind, deadline: float) -> None:
        try:
            entry.succeed(self._deliver_columns(cast(OutgoingBatch, entry.message), kind, deadline, NEW_ROUTES))
        except RocketSimError as error:
            _fail([entry], error)

    def _deliver_columns(self, outgoing: OutgoingBatch, kind: Kind, deadline: float, routes: int) -> BatchPart:
        apart = QueueNotExist if routes and outgoing.key_hashes is not None else None
        try:
            return self.deliver(outgoing, deadline, self._retries[kind], apart=apart)
        except QueueNotExist:
            if apart is None:
                raise
        pieces = cut_by_key(outgoing, self._delivery.queues(outgoing.topic))
        return BatchPart.joined(
            [(self._deliver_columns(piece, kind, deadline, routes - 1), rows.tolist()) for piece, rows in pieces]
        )

    def _by_new_route(self, entries: Sequence[Pending]) -> list[Sequence[Pending]]:
        """The entries by the brokers that their queues are of now, each broker's in the order of the entries."""
        groups: dict[str, list[Pending]] = {}
        for entry in entries:
            queue = cast(MessageQueue, entry.queue)
            if entry.by_key:
                queue = entry.queue = selection.by_key(
                    self._delivery.queues(queue.topic), cast(str, entry.sharding_key)
                )
            groups.setdefault(queue.broker_name, []).append(entry)
        return list(groups.values())

    def _outgoing(self, entries: Sequence[Pending], may_move: bool) -> OutgoingBatch:
        messages = [cast(Message, entry.message) for entry in entries]
        queues = [cast(MessageQueue, entry.queue) for entry in entries]
        return self._encode(messages, queues, [entry.sharding_key for entry in entries], may_move)

    def deliver(
        self,
        outgoing: OutgoingBatch,
        deadline: float,
        retries: int,
        *,
        apart: type[RocketSimError] | None = None,
    ) -> BatchPart:
        """`apart`: the error after which the batch is taken apart, and its pieces are counted instead of it."""
        self._delivery.count(sent=len(outgoing))
        try:
            part = self._delivery.deliver(outgoing, deadline, retries)
        except BaseException as error:
            if apart is not None and isinstance(error, apart):
                self._delivery.count(sent=-len(outgoing))
            else:
                self._delivery.count(failed=len(outgoing))
            raise
        self._delivery.count(acknowledged=len(outgoing))
        return part


def _results(part: BatchPart, entries: Sequence[Pending]) -> "map[SendResult]":
    """One result a message, in order; the queue objects are the callers' own unless the batch has moved."""
    queues = [cast(MessageQueue, entry.queue) for entry in entries]
    if queues[0].broker_name != part.broker_name or [queue.queue_id for queue in queues] != _plain(part.queue_ids):
        queues = [MessageQueue(part.topic, part.broker_name, int(queue_id)) for queue_id in part.queue_ids]
    return map(
        SendResult,
        repeat(part.send_status),
        part.msg_ids,
        queues,
        _plain(part.queue_offsets),
        repeat(part.store_host),
        _plain(part.commit_log_offsets),
    )


def _plain(values: Sequence[int]) -> Sequence[int]:
    return values.tolist() if isinstance(values, np.ndarray) else values


def _fail(entries: Sequence[Pending], error: BaseException) -> None:
    for entry in entries:
        if entry.done():
            continue
        entry.fail(error.again() if isinstance(error, RocketSimError) and len(entries) > 1 else error)
