"""The producer: blocking, asynchronous, one-way and batch sends over one accumulator and a few sender threads.

A blocking send that finds its lane idle is made by the caller's own thread; everything else waits, at most for the
linger, for a
sender thread, together with what others send to the same broker meanwhile.
"""

import atexit
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

import pyarrow as pa
from rocketsim_proto.columnar import UniqIds

from rocketsim_client import batch as batches
from rocketsim_client import forks, selection, validation
from rocketsim_client.accumulator import Accumulator, Batch, Kind, LaneKey
from rocketsim_client.batch import OutgoingBatch
from rocketsim_client.cluster import Cluster
from rocketsim_client.columns import ColumnPlan, plan_columns
from rocketsim_client.delivery import Delivery, DeliveryOptions
from rocketsim_client.errors import (
    CallTimeout,
    ClientClosed,
    InvalidParameter,
    MessageIllegal,
    RocketSimError,
    SendFailed,
)
from rocketsim_client.model import BatchPart, Message, MessageQueue, ProducerStats, SendResult, SendResults

MAX_SENDERS = 32  # started when there is something to send and all others are at it


class _Entry:
    """One accepted message (or one batch of columns), and who waits for it: nobody, if it is one-way."""

    __slots__ = ("future", "message", "queue", "sharding_key")

    def __init__(
        self,
        message: Message | OutgoingBatch,
        queue: MessageQueue,
        future: "Future[Any] | None",
        sharding_key: str | None,
    ) -> None:
        self.message = message
        self.queue = queue
        self.future = future
        self.sharding_key = sharding_key


class Producer:
    """Sends messages.  Thread-safe; `close` (or leaving a `with` block) sends what was accepted first.

    Options have RocketMQ's names.  Our own: `linger_ms` (how long an asynchronous message waits for company),
    `batch_bytes`,
    `max_in_flight` (batches a lane has under way), `buffer_bytes` (accepted and not acknowledged; beyond it a send
    waits).
    """

    def __init__(
        self,
        name_server: str | Sequence[str] = "",
        group: str = "DEFAULT_PRODUCER",
        *,
        send_msg_timeout_ms: int = 3000,
        send_msg_max_timeout_per_request_ms: int = -1,
        retry_times_when_send_failed: int = 2,
        retry_times_when_send_async_failed: int = 2,
        retry_another_broker_when_not_store_ok: bool = False,
        send_latency_fault_enable: bool = False,
        compress_msg_body_over_howmuch: int = 4096,
        compress_type: str = "ZLIB",
        max_message_size: int = 4 << 20,
        default_topic_queue_nums: int = 4,
        linger_ms: float = 2,
        batch_bytes: int = 512 << 10,
        max_in_flight: int = 8,
        buffer_bytes: int = 64 << 20,
        poll_name_server_interval_ms: int = 30_000,
        cluster: Cluster | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        validation.check_group(group)
        if compress_type not in batches.COMPRESSION:
            raise InvalidParameter(f"compress_type {compress_type!r}: one of {', '.join(batches.COMPRESSION)}")
        self.group = group
        self._owns_cluster = cluster is None
        self._cluster = cluster or Cluster(name_server, poll_interval_s=poll_name_server_interval_ms / 1000)
        self._timeout_s = send_msg_timeout_ms / 1000
        self._retries = retry_times_when_send_failed
        self._async_retries = retry_times_when_send_async_failed
        self._compress_over = compress_msg_body_over_howmuch
        self._compress_type = compress_type
        self._max_message_size = max_message_size
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._clock = clock
        self._ids = UniqIds()
        options = DeliveryOptions(
            group=group,
            max_timeout_per_request_s=send_msg_max_timeout_per_request_ms / 1000,
            default_topic_queue_nums=default_topic_queue_nums,
            retry_another_broker_when_not_store_ok=retry_another_broker_when_not_store_ok,
            send_latency_fault_enable=send_latency_fault_enable,
        )
        self._delivery = Delivery(self._cluster, options, clock=clock, chance=chance or random.Random())
        self._new_accumulator: Callable[[], Accumulator[_Entry]] = lambda: Accumulator(
            linger_s=linger_ms / 1000, batch_bytes=batch_bytes, max_in_flight=max_in_flight
        )
        self._good_topics: set[str] = set()
        self._closed = False
        self._start()
        # Whoever forgets close() still loses nothing at the end of the process.
        self._at_exit = _close_if_alive(weakref.ref(self))
        atexit.register(self._at_exit)
        forks.watch(self)

    def _start(self) -> None:
        self._accumulator = self._new_accumulator()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # a sender may have something to do
        self._done = threading.Condition(self._lock)  # something was acknowledged: there may be room, or nothing left
        self._senders: list[threading.Thread] = []
        self._idle = 0

    def forget_parent(self) -> None:
        """The parent's threads, and the messages it accepted, are the parent's."""
        self._start()

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return f"producer {self.group}: {self._accumulator}"

    @property
    def stats(self) -> ProducerStats:
        return self._delivery.stats

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    def publish_queues(self, topic: str) -> list[MessageQueue]:
        """The queues the topic can be sent to now."""
        return list(self._delivery.queues(topic))

    # --- one message ----------------------------------------------------------------------------------------------

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Returns when a broker has acknowledged the message; look at `send_status`.  Messages with the same `key`
        (sharding key) go
        to the same queue, in the order of their sends; with `queue`, to that one."""
        timeout = self._timeout_s if timeout_s is None else timeout_s
        lane, entry, size = self._entry(message, queue, key, Kind.SYNC)
        future: Future[SendResult] = Future()
        entry.future = future
        with self._lock:
            self._refuse_if_closed()
            alone = self._accumulator.start_alone(lane, entry, size)
            if alone is None:
                self._accept(lane, entry, size, timeout)
        if alone:
            self._run(alone, self._clock() + timeout)
        try:
            return future.result(timeout)
        except TimeoutError:
            raise SendFailed(
                f"topic {message.topic!r}: not acknowledged within {timeout:.3g} s", attempts=1, maybe_stored=True
            ) from None

    def send_async(
        self, message: Message, *, queue: MessageQueue | None = None, key: str | None = None
    ) -> "Future[SendResult]":
        """Accepts the message and returns at once; waits only when `buffer_bytes` are accepted and not acknowledged
        yet.  The timeout
        begins when the message's batch leaves."""
        lane, entry, size = self._entry(message, queue, key, Kind.ASYNC)
        future: Future[SendResult] = Future()
        entry.future = future
        with self._lock:
            self._refuse_if_closed()
            self._accept(lane, entry, size, self._timeout_s)
        return future

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None, key: str | None = None) -> None:
        """One attempt, and nobody hears what became of it (`stats` counts it)."""
        lane, entry, size = self._entry(message, queue, key, Kind.ONEWAY)
        with self._lock:
            self._refuse_if_closed()
            self._accept(lane, entry, size, self._timeout_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when everything accepted so far, and since, is acknowledged or has failed."""
        with self._lock:
            self._accumulator.closing = True
            self._work.notify_all()
            done = self._done.wait_for(self._accumulator.is_empty, timeout_s)
            self._accumulator.closing = self._closed
        if not done:
            raise CallTimeout(f"{self} after {timeout_s} s")

    # --- batches --------------------------------------------------------------------------------------------------

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResults:
        """Messages of one topic into one queue, with consecutive offsets, in as few frames as `max_message_size`
        allows.  All frames
        are acknowledged, or it raises; SendFailed says how many were."""
        pieces = self._split(messages)
        if queue is None:
            target, may_move = self._delivery.choose(messages[0].topic), True
        else:
            target, may_move = self._own_queue(queue, messages[0].topic), False
        deadline = self._clock() + (self._timeout_s if timeout_s is None else timeout_s)
        parts: list[BatchPart] = []
        for piece in pieces:
            queues = [target] * len(piece)
            outgoing = self._of_messages(piece, queues, None, may_move and len(pieces) == 1)
            outgoing.one_queue = True
            try:
                parts.append(self._deliver(outgoing, deadline, self._retries))
            except RocketSimError as error:
                if not parts:
                    raise
                stored = sum(len(part.msg_ids) for part in parts)
                raise SendFailed(
                    f"{stored} of {len(messages)} messages were acknowledged, then: {error}",
                    attempts=1,
                    maybe_stored=True,
                ) from error
        return SendResults(parts)

    def send_columns(
        self,
        topic: str,
        bodies: pa.Array,
        *,
        tags: pa.Array | None = None,
        keys: pa.Array | None = None,
        properties: pa.Array | None = None,
        sharding_keys: pa.Array | None = None,
        msg_ids: pa.Array | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendResults:
        """Arrow columns (binary bodies; string tags, keys, sharding keys; a map of properties), a row a message,
        without a Python object
        for any of them.  Returns when all are acknowledged.  Results are in the order of the frames, which is that of
        the rows unless
        there are sharding keys.  Rows with one sharding key keep their order.  `msg_ids`: the rows' ids (UNIQ_KEY), for
        a caller that may send the same rows again."""
        return self.wait_for(
            self.send_columns_async(
                topic,
                bodies,
                tags=tags,
                keys=keys,
                properties=properties,
                sharding_keys=sharding_keys,
                msg_ids=msg_ids,
                queue=queue,
            ),
            timeout_s,
        )

    def send_columns_async(
        self,
        topic: str,
        bodies: pa.Array,
        *,
        tags: pa.Array | None = None,
        keys: pa.Array | None = None,
        properties: pa.Array | None = None,
        sharding_keys: pa.Array | None = None,
        msg_ids: pa.Array | None = None,
        queue: MessageQueue | None = None,
    ) -> "list[Future[BatchPart]]":
        """As `send_columns`, but returns when all is accepted; a future for each frame, several under way."""
        self._check_topic(topic)
        if not len(bodies):
            return []
        plan = ColumnPlan(
            topic=topic,
            batch_bytes=self._batch_bytes * 2,
            max_message_size=self._max_message_size,
            compress_over=self._compress_over,
            compress_type=self._compress_type,
            queues=[self._own_queue(queue, topic)] if queue else self._delivery.queues(topic),
            first=0 if queue else self._delivery.choose(topic).queue_id,
            may_move=queue is None and sharding_keys is None,
        )
        now_ms = time.time_ns() // 1_000_000
        if msg_ids is None:
            msg_ids = self._ids.next(len(bodies), now_ms)
        futures = []
        for outgoing, size in plan_columns(plan, bodies, tags, keys, properties, sharding_keys, msg_ids, now_ms):
            future: Future[BatchPart] = Future()
            kind = Kind.COLUMNS if sharding_keys is None else Kind.ORDERED
            lane = LaneKey(outgoing.broker_name, topic, kind)
            target = MessageQueue(topic, outgoing.broker_name, -1)
            with self._lock:
                self._refuse_if_closed()
                self._accept(lane, _Entry(outgoing, target, future, None), size, self._timeout_s)
            futures.append(future)
        return futures

    def wait_for(self, futures: "Sequence[Future[BatchPart]]", timeout_s: float | None = None) -> SendResults:
        """The results of `send_columns_async`; raises the first failure once all frames are done."""
        parts, failure = [], None
        for future in futures:
            try:
                parts.append(future.result(timeout_s))
            except RocketSimError as error:
                failure = failure or error
        if failure:
            stored = sum(len(part.msg_ids) for part in parts)
            raise SendFailed(
                f"{stored} messages were acknowledged, others not: {failure}",
                attempts=1,
                maybe_stored=True,
                code=failure.code,
            ) from failure
        return SendResults(parts)

    def close(self) -> None:
        """Sends what was accepted, waits for the answers, then stops.  A second call changes nothing."""
        with self._lock:
            self._closed = self._accumulator.closing = True
            self._work.notify_all()
            while not self._accumulator.is_empty():
                self._done.wait()
            self._work.notify_all()
        for sender in self._senders:
            if sender is not threading.current_thread():
                sender.join()
        atexit.unregister(self._at_exit)
        if self._owns_cluster:
            self._cluster.close()

    # --- accepting ------------------------------------------------------------------------------------------------

    def _entry(
        self, message: Message, queue: MessageQueue | None, key: str | None, kind: Kind
    ) -> tuple[LaneKey, _Entry, int]:
        topic = message.topic
        if topic not in self._good_topics:
            self._check_topic(topic)
        size = validation.check(message, self._max_message_size)
        if queue is not None:
            target, kind = self._own_queue(queue, topic), Kind.ORDERED
        elif key is not None:
            if validation.has_separator(key):
                raise MessageIllegal(f"sharding key {key!r} contains \\x01 or \\x02, which separate properties")
            target, kind = selection.by_key(self._delivery.queues(topic), key), Kind.ORDERED
        else:
            target = self._delivery.choose(topic)
        if message.delay_level:
            if message.delay_level < 0:
                raise MessageIllegal(f"delay level {message.delay_level}: 1 or more, or 0 for no delay")
            kind = Kind.ALONE
        lane = LaneKey(target.broker_name, topic, kind, message.wait_store_msg_ok)
        return lane, _Entry(message, target, None, key), size

    def _check_topic(self, topic: str) -> None:
        validation.check_topic_for_sending(topic)
        self._good_topics.add(topic)

    @staticmethod
    def _own_queue(queue: MessageQueue, topic: str) -> MessageQueue:
        if queue.topic != topic:
            raise InvalidParameter(f"queue {queue} is not one of topic {topic!r}")
        return queue

    def _accept(self, lane: LaneKey, entry: _Entry, size: int, timeout_s: float) -> None:
        """With the lock.  Waits while the buffer is full, which slows the caller down to what the brokers take."""
        accumulator = self._accumulator
        if accumulator.size_bytes and accumulator.size_bytes + size > self._buffer_bytes:
            room = self._done.wait_for(
                lambda: (
                    self._closed or accumulator.size_bytes + size <= self._buffer_bytes or not accumulator.size_bytes
                ),
                timeout_s,
            )
            self._refuse_if_closed()
            if not room:
                raise SendFailed(
                    f"topic {lane.topic!r}: {accumulator.size_bytes} bytes wait for brokers, "
                    f"no room within {timeout_s:.3g} s",
                    attempts=0,
                    maybe_stored=False,
                    code=2,
                )
        if accumulator.add(lane, entry, size, self._clock()):
            if self._idle:
                self._work.notify()
            elif len(self._senders) < MAX_SENDERS:
                sender = threading.Thread(
                    target=self._send_batches, name=f"rocketsim-send-{len(self._senders)}", daemon=True
                )
                self._senders.append(sender)
                sender.start()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ClientClosed(f"producer {self.group} has been closed")

    def _split(self, messages: Sequence[Message]) -> list[Sequence[Message]]:
        if not messages:
            raise MessageIllegal("an empty batch")
        first = messages[0]
        self._check_topic(first.topic)
        pieces: list[Sequence[Message]] = []
        start = total = 0
        for index, message in enumerate(messages):
            if message.topic != first.topic or message.wait_store_msg_ok != first.wait_store_msg_ok:
                raise MessageIllegal(
                    f"a batch has one topic and one WAIT flag: {message!r} in a batch of {first.topic!r}"
                )
            if message.delay_level:
                raise MessageIllegal("delayed messages are not possible in a batch")
            size = validation.check(message, self._max_message_size)
            if total and total + size > self._max_message_size:
                pieces.append(messages[start:index])
                start, total = index, 0
            total += size
        pieces.append(messages[start:])
        return pieces

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

    def _run(self, batch: Batch[_Entry], deadline: float) -> None:
        try:
            of_kind = {Kind.SYNC: self._retries, Kind.ORDERED: self._retries, Kind.ONEWAY: 0}
            retries = of_kind.get(batch.lane.key.kind, self._async_retries)
            self._settle(batch.entries, batch.lane.key.kind, deadline, retries)
        finally:
            with self._lock:
                self._accumulator.done(batch)
                self._done.notify_all()
                if self._idle:
                    self._work.notify()

    def _settle(self, entries: Sequence[_Entry], kind: Kind, deadline: float, retries: int) -> None:
        """Deliver the entries and tell everybody.  One message that a broker finds illegal does not take the others
        with it."""
        columns = isinstance(entries[0].message, OutgoingBatch)
        if columns and len(entries) > 1:
            for entry in entries:
                self._settle([entry], kind, deadline, retries)
            return
        may_move = kind in (Kind.SYNC, Kind.ASYNC, Kind.ONEWAY, Kind.ALONE)
        outgoing = entries[0].message
        if not isinstance(outgoing, OutgoingBatch):
            outgoing = self._of_messages(
                [entry.message for entry in entries],  # type: ignore[misc]
                [entry.queue for entry in entries],
                [entry.sharding_key for entry in entries],
                may_move,
            )
        try:
            part = self._deliver(outgoing, deadline, retries, quiet=not columns and len(entries) > 1)
        except MessageIllegal as error:
            if len(entries) == 1:
                self._fail(entries, error)
                return
            middle = len(entries) // 2
            self._settle(entries[:middle], kind, deadline, retries)
            self._settle(entries[middle:], kind, deadline, retries)
        except RocketSimError as error:
            self._fail(entries, error)
        except Exception as error:
            # A bug of ours must not leave callers waiting for ever: they get it, and so does this thread's log.
            self._fail(entries, error)
            raise
        else:
            if columns:
                _set_result(entries[0], part)
                return
            for index, entry in enumerate(entries):
                if entry.future is not None:
                    _set_result(entry, part.result(index))

    def _deliver(self, outgoing: OutgoingBatch, deadline: float, retries: int, *, quiet: bool = False) -> BatchPart:
        """`quiet`: MESSAGE_ILLEGAL is not counted, the batch will be taken apart."""
        self._delivery.count(sent=len(outgoing))
        try:
            part = self._delivery.deliver(outgoing, deadline, retries)
        except BaseException as error:
            if quiet and isinstance(error, MessageIllegal):
                self._delivery.count(sent=-len(outgoing))
            else:
                self._delivery.count(failed=len(outgoing))
            raise
        self._delivery.count(acknowledged=len(outgoing))
        return part

    def _of_messages(
        self,
        messages: Sequence[Message],
        queues: Sequence[MessageQueue],
        sharding_keys: Sequence[str | None] | None,
        may_move: bool,
    ) -> OutgoingBatch:
        now_ms = time.time_ns() // 1_000_000
        count = len(messages)
        msg_ids = [self._ids.one(now_ms)] if count == 1 else self._ids.next(count, now_ms).to_pylist()
        return batches.of_messages(
            messages,
            queues,
            msg_ids,
            now_ms,
            may_move=may_move,
            compress_over=self._compress_over,
            compression=self._compress_type,
            sharding_keys=sharding_keys,
        )

    @staticmethod
    def _fail(entries: Sequence[_Entry], error: Exception) -> None:
        for entry in entries:
            if entry.future is not None:
                try:
                    entry.future.set_exception(error.again() if isinstance(error, RocketSimError) else error)
                except InvalidStateError:
                    pass  # Cancelled by its owner, who does not want to know.


def _set_result(entry: _Entry, result: Any) -> None:
    assert entry.future is not None
    try:
        entry.future.set_result(result)
    except InvalidStateError:
        pass  # Cancelled by its owner, who does not want to know.


def _close_if_alive(reference: "weakref.ref[Producer]") -> Callable[[], None]:
    def close() -> None:
        if (producer := reference()) is not None:
            producer.close()

    return close
