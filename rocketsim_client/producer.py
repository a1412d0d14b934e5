"""The producer, whose blocking, asynchronous, one-way and batch sends share one outbox.

Messages for the same broker and topic that are sent in the same way form a lane.  If no other message of the lane is
waiting or being sent, a blocking send sends its message in the caller's own thread.  All other messages wait for a
sender thread, which sends messages of the same lane together in batches.
"""

import atexit
import os
import random
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar, cast

import pyarrow as pa

from rocketsim_client import forks
from rocketsim_client.addresses import Brokers
from rocketsim_client.cluster import Cluster
from rocketsim_client.connection import Where
from rocketsim_client.errors import (
    CallTimeout,
    ClientClosed,
    InvalidParameter,
    SendFailed,
)
from rocketsim_client.model import (
    BatchPart,
    Message,
    MessageQueue,
    ProducerStats,
    SendResult,
    SendResults,
    SendStatus,
    SpoolStatus,
)
from rocketsim_client.sending.accumulator import Kind
from rocketsim_client.sending.admission import Admission, one_of, own_queue
from rocketsim_client.sending.attempts import SendAttempts
from rocketsim_client.sending.columns import column_plan, plan_columns, results_of
from rocketsim_client.sending.options import ProducerOptions, SpoolOptions
from rocketsim_client.sending.outbox import Outbox
from rocketsim_client.sending.pending import Pending
from rocketsim_client.sending.publish_info import PublishTable
from rocketsim_client.sending.send_counts import SendCounts
from rocketsim_client.sending.sender import MessageSender, Sender
from rocketsim_client.sending.transactions import Checker, Transaction, Transactions
from rocketsim_client.tls import File
from rocketsim_client.validation import seconds

if TYPE_CHECKING:
    from rocketsim_client.sending.spool import Spool
    from rocketsim_client.sending.spooling import Spooling
    from rocketsim_client.sending.spooling_sender import AcceptingTable

T = TypeVar("T")


class Producer:
    """Sends messages.  `close` (or leaving a `with` block) first sends the messages that were accepted.  Thread-safe.

    `name_server` is `host:port;host:port`, or a Connection, which says where the cluster is and how its servers are
    called.  Without a name server, `brokers` says where the brokers are: broker name -> broker id -> `host:port`.

    Durations are in seconds:

    `timeout_s` (3) is the limit of a send over all attempts.  For an asynchronous message the timeout begins when the
    message's batch is sent.  `attempt_timeout_s` is the limit of one attempt, which by default may take the rest of
    `timeout_s`.  An asynchronous message waits for `linger_s` (0.002), so that other messages can share its batch.  A
    route is used for `poll_interval_s` (30).

    `batch_bytes` is the size of a batch.  Arrow columns travel in frames of eight times `batch_bytes`, 4 MiB at most.
    `max_in_flight` limits how many batches may be under way for each broker, topic and kind of send.  `buffer_bytes`
    limits the bytes of the messages that are accepted and not acknowledged.  A send waits while `buffer_bytes` is
    reached.

    `spool` is a directory in which the producer keeps messages that no broker takes.  Only one producer may use the
    directory.  A message with the status SPOOLED is on this machine's disk.  The spool uses at most `spool_bytes` of
    the disk.  A spooled message is sent later by this producer, or after its end by the next producer with the same
    directory.  The constructor raises SpoolUnusable if the spool cannot be opened.  A spooled message leaves the spool
    when a broker has stored it with a status in `spool_until`.  A message that a broker stores with any other status
    stays in the spool, and is sent again under the same id.

    `access_key` and `secret_key` are the user and password that calls are signed with, for servers with access control.

    `tls`, `tls_ca`, `tls_cert` and `tls_key` are as for Cluster.

    If a transaction is neither committed nor rolled back, the broker asks a producer of the topic, and the producer
    calls `checker` with the transaction's message.  The checker returns True to commit the transaction, False to roll
    it back, or None if that is not known yet.  The checker is called in a thread of the producer, also for transactions
    of other producers of the topic.

    Options that are not described here have RocketMQ's names and meanings.  `send_msg_timeout_ms`,
    `send_msg_max_timeout_per_request_ms`, `linger_ms` and `poll_name_server_interval_ms` are older names of the
    durations, in milliseconds.
    """

    def __init__(
        self,
        name_server: Where = "",
        group: str = "DEFAULT_PRODUCER",
        *,
        timeout_s: float | None = None,
        attempt_timeout_s: float | None = None,
        retry_times_when_send_failed: int = 2,
        retry_times_when_send_async_failed: int = 2,
        retry_another_broker_when_not_store_ok: bool = False,
        send_latency_fault_enable: bool = False,
        compress_msg_body_over_howmuch: int = 4096,
        compress_type: str = "ZLIB",
        max_message_size: int = 4 << 20,
        default_topic_queue_nums: int = 4,
        linger_s: float | None = None,
        batch_bytes: int = 512 << 10,
        max_in_flight: int = 8,
        buffer_bytes: int = 64 << 20,
        poll_interval_s: float | None = None,
        brokers: Brokers | None = None,
        tls: bool = False,
        tls_ca: File = None,
        tls_cert: File = None,
        tls_key: File = None,
        spool: str | os.PathLike[str] | None = None,
        spool_bytes: int = 1 << 30,
        spool_until: Collection[SendStatus] = (SendStatus.SEND_OK,),
        access_key: str = "",
        secret_key: str = "",
        checker: Checker | None = None,
        cluster: Cluster | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
        send_msg_timeout_ms: int = 3000,
        send_msg_max_timeout_per_request_ms: int = -1,
        linger_ms: float = 2,
        poll_name_server_interval_ms: int = 30_000,
    ) -> None:
        options = ProducerOptions(
            group=group,
            timeout_s=seconds(timeout_s, send_msg_timeout_ms),
            attempt_timeout_s=seconds(attempt_timeout_s, send_msg_max_timeout_per_request_ms),
            retries=retry_times_when_send_failed,
            async_retries=retry_times_when_send_async_failed,
            retry_another_broker_when_not_store_ok=retry_another_broker_when_not_store_ok,
            send_latency_fault_enable=send_latency_fault_enable,
            compress_over=compress_msg_body_over_howmuch,
            compression=compress_type,
            max_message_size=max_message_size,
            default_topic_queue_nums=default_topic_queue_nums,
            linger_s=seconds(linger_s, linger_ms),
            batch_bytes=batch_bytes,
            max_in_flight=max_in_flight,
            buffer_bytes=buffer_bytes,
        )
        spool_options = None if spool is None else SpoolOptions.of(spool, spool_bytes, spool_until)
        self._owns_cluster = cluster is None
        self._cluster = cluster or Cluster(
            name_server,
            brokers=brokers,
            poll_interval_s=seconds(poll_interval_s, poll_name_server_interval_ms),
            access_key=access_key,
            secret_key=secret_key,
            tls=tls,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
        self.group = group
        self._options = options
        self._checker = checker
        self._clock = clock
        self._is_closed = False
        self._start(spool_options, chance or random.Random())
        # At the end of the process, a producer that was not closed still sends the messages that it has accepted.  The
        # reference to the outbox is weak, so that a forgotten producer can be freed.  Sender threads keep an outbox
        # alive that still has messages to send.
        self._at_exit = _close_if_alive(weakref.ref(self._outbox))
        atexit.register(self._at_exit)
        forks.watch(self)

    def _start(self, spool: SpoolOptions | None, chance: random.Random) -> None:
        """Puts the parts together: admission -> outbox -> sender -> attempts, with or without a spool."""
        cluster, options, clock = self._cluster, self._options, self._clock
        self._counts = SendCounts()
        self._publish_table = PublishTable(cluster, options, clock=clock, chance=chance)
        self._attempts = SendAttempts(cluster, self._publish_table, options, self._counts, clock=clock, chance=chance)
        self._admission = Admission(options.max_message_size)
        self._queue_choice: PublishTable | AcceptingTable = self._publish_table
        sender = Sender(self._attempts, self._publish_table, options, cluster.first_address)
        self._sender: MessageSender = sender
        self._spooling: Spooling | None = None
        if spool is not None:
            self._spooling = self._open_spool(spool, sender)
            self._queue_choice, self._sender = self._spooling.choice, self._spooling.sender
        self._outbox = Outbox(options, self._sender, clock, waits_for_room=spool is not None)
        self._transactions = self._own_transactions()

    def _open_spool(self, spool: SpoolOptions, sender: Sender) -> "Spooling":
        """Imports modules that only a producer with a spool needs, for example SQLite."""
        from rocketsim_client.sending.spooling import Spooling

        peer = self._cluster.first_address
        return Spooling(spool, self._options, sender, self._attempts, self._publish_table, peer, self._clock)

    def _own_transactions(self) -> Transactions:
        return Transactions(
            self._cluster, self._attempts, self._publish_table, self._options, checker=self._checker, clock=self._clock
        )

    def forget_parent(self) -> None:
        """Starts without the parent's threads, and without the messages that the parent has accepted, because the
        parent sends them."""
        self._outbox.start_anew()
        self._counts.start_anew()
        self._transactions = self._own_transactions()

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return f"producer {self.group}: {self._outbox}"

    @property
    def stats(self) -> ProducerStats:
        """Live counters of what happened to the messages."""
        return self._counts.stats

    @property
    def cluster(self) -> Cluster:
        """The cluster that this producer sends to, for routes and bounds."""
        return self._cluster

    def publish_queues(self, topic: str) -> list[MessageQueue]:
        """Returns the queues that messages of the topic can go to now."""
        return list(self._publish_table.queues(topic))

    # --- one message ----------------------------------------------------------------------------------------------

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        message_group: str | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
        deliver_at: datetime | float | None = None,
    ) -> SendResult:
        """Sends a message, and returns when a broker has acknowledged it.  The result's `send_status` says how safely
        the message is stored.  Messages of one `message_group` (RocketMQ 4's sharding key) go to the same queue, in the
        order of their sends, as long as the same brokers take writes.  With `queue` the message goes to that queue.
        `key` is an older name of `message_group`.  The message itself may also have its message group and delivery
        time.

        With `deliver_at` the message reaches its topic at the given time of the broker's clock, or up to a second
        later.  `deliver_at` is a datetime (without a time zone: this machine's local time), or seconds since 1970, at
        most three days ahead.  A `deliver_at` in the past means no delay.  The result of a delayed message has the
        message's offset in the internal topic where it waits.  Delayed messages of one `message_group` are delivered in
        the order of their times.  Messages for the same second are delivered in the order of their sends.

        Raises SendFailed if no broker has acknowledged the message within the timeout and the retries.  A producer with
        a spool does not raise SendFailed, but raises SpoolFailed if the message could not be spooled either.  Raises
        MessageIllegal if the message cannot be sent as it is.
        """
        timeout = self._options.timeout_s if timeout_s is None else timeout_s
        deadline = self._clock() + timeout
        entry = self._accept(message, queue, one_of(message_group, key), Kind.SYNC, timeout, deliver_at)
        try:
            return cast(SendResult, entry.result(max(deadline - self._clock(), 0)))
        except TimeoutError:
            if self._spooling is not None:  # the sender's thread spools the message if no broker acknowledges it
                return cast(SendResult, entry.result())
            raise SendFailed(
                f"topic {message.topic!r}: not acknowledged within {timeout:.3g} s", attempts=1, maybe_stored=True
            ) from None

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        message_group: str | None = None,
        key: str | None = None,
        deliver_at: datetime | float | None = None,
    ) -> "Future[SendResult]":
        """Accepts the message and returns at once.  The call waits only while the messages that are accepted and not
        acknowledged have `buffer_bytes`.  The timeout begins when the message's batch is sent.  A callback of the
        future runs in a sender thread, so it must not wait for another send.  `deliver_at` is as for `send`."""
        return self._accept(message, queue, one_of(message_group, key), Kind.ASYNC, deliver_at=deliver_at)

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        message_group: str | None = None,
        key: str | None = None,
    ) -> None:
        """Sends the message in one attempt, whose outcome is only counted in `stats`."""
        self._accept(message, queue, one_of(message_group, key), Kind.ONEWAY)

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when all accepted messages are acknowledged or have failed, including those that are accepted during
        the call."""
        self._outbox.flush(timeout_s)

    # --- batches --------------------------------------------------------------------------------------------------

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResults:
        """Sends messages of one topic into one queue, with consecutive offsets, in as few frames as `max_message_size`
        allows.  If not all messages are acknowledged, raises SendFailed, whose text says how many were."""
        frames = self._admission.frames(messages)
        topic = messages[0].topic
        target = self._queue_choice.choose(topic) if queue is None else own_queue(queue, topic)
        deadline = self._clock() + (self._options.timeout_s if timeout_s is None else timeout_s)
        return self._sender.send_frames(frames, target, deadline, may_move=queue is None)

    def send_columns(
        self,
        topic: str,
        bodies: pa.Array,
        *,
        tags: pa.Array | None = None,
        keys: pa.Array | None = None,
        properties: pa.Array | None = None,
        message_groups: pa.Array | None = None,
        msg_ids: pa.Array | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
        sharding_keys: pa.Array | None = None,
    ) -> SendResults:
        """Sends Arrow columns, one message for each row, without making Python objects for the rows.  Bodies are
        binary; tags, keys and message groups are strings; properties are a map.  Returns when all rows are
        acknowledged.  If no row has a message group, the results are in the order of the rows, otherwise in the order
        of the frames that were sent.  Rows of one message group keep their order.  A null counts as no message group.
        `msg_ids` are the rows' ids (UNIQ_KEY), for a caller that may send the same rows again.  `sharding_keys` is an
        older name of `message_groups`."""
        return self.wait_for(
            self.send_columns_async(
                topic,
                bodies,
                tags=tags,
                keys=keys,
                properties=properties,
                message_groups=message_groups,
                msg_ids=msg_ids,
                queue=queue,
                sharding_keys=sharding_keys,
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
        message_groups: pa.Array | None = None,
        msg_ids: pa.Array | None = None,
        queue: MessageQueue | None = None,
        sharding_keys: pa.Array | None = None,
    ) -> "list[Future[BatchPart]]":
        """Accepts Arrow columns like `send_columns`, and returns when all rows are accepted, with a future for each
        frame."""
        self._admission.check_topic(topic)
        if not len(bodies):
            return []
        if queue is None:
            queues, first = self._queue_choice.queues(topic), self._queue_choice.choose(topic).queue_id
        else:
            queues, first = [own_queue(queue, topic)], 0
        plan = column_plan(topic, queues, self._options, first=first, may_move=queue is None)
        now_ms = time.time_ns() // 1_000_000
        if msg_ids is None:
            msg_ids = self._sender.new_ids(len(bodies), now_ms)
        futures: list[Future[BatchPart]] = []
        groups = one_of(message_groups, sharding_keys)
        for outgoing, size in plan_columns(plan, bodies, tags, keys, properties, groups, msg_ids, now_ms):
            entry = Pending(outgoing, MessageQueue(topic, outgoing.broker_name, -1))
            self._outbox.accept(entry, topic, Kind.COLUMNS if outgoing.may_move else Kind.ORDERED, True, size)
            futures.append(entry)
        return futures

    def wait_for(self, futures: "Sequence[Future[BatchPart]]", timeout_s: float | None = None) -> SendResults:
        """Waits for the futures of `send_columns_async`, and returns the results.  Raises the first failure when all
        frames are done."""
        return results_of(futures, timeout_s)

    def close(self) -> None:
        """Sends the accepted messages, waits for the answers, then stops.  A second call does nothing.  Spooled
        messages stay for the next producer that uses the directory."""
        self._is_closed = True
        self._transactions.close()
        self._outbox.close()
        atexit.unregister(self._at_exit)
        if self._spooling is not None:
            self._spooling.close()
        if self._owns_cluster:
            self._cluster.close()

    # --- transactions ---------------------------------------------------------------------------------------------

    def transaction(self, *, timeout_s: float | None = None) -> Transaction:
        """Begins one of RocketMQ's transactions: one message that readers see only when it is committed.  The message
        is never spooled.  The end of a `with` block commits the message, unless the block ends with an exception.

            with producer.transaction() as transaction:
                transaction.send(Message("Orders", b"paid"))
                database.commit()

        `timeout_s` limits the send, and then separately the commit or rollback.  If neither a commit nor a rollback
        reaches the broker, for example because this process has died, the broker asks the `checker` of one of the
        topic's producers how to end the transaction.
        """
        self._check_open()
        return Transaction(self._transactions, self._half, self._options.timeout_s if timeout_s is None else timeout_s)

    def check_transactions(self, *topics: str) -> None:
        """Lets brokers ask this producer's `checker` about transactions of these topics, for example those of a process
        that has died.  Topics of the producer's own transactions need not be named."""
        if self._checker is None:
            raise InvalidParameter("this producer has no checker to answer for transactions; pass Producer(checker=…)")
        for topic in topics:
            self._admission.check_topic(topic)
        self._check_open()
        self._transactions.answer_for(list(topics))

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("this producer has been closed")

    def _half(self, message: Message, queue: MessageQueue | None, message_group: str | None) -> tuple[Kind, Pending]:
        kind, entry, _ = self._admission.message(message, queue, message_group, Kind.SYNC, self._publish_table)
        return kind, entry

    # --- the spool ------------------------------------------------------------------------------------------------

    def spool_status(self) -> SpoolStatus:
        """Returns the state of the spool, for example how many messages wait in it.  Raises InvalidParameter if the
        producer has no spool."""
        return self._own_spool().status()

    def drain_spool(self, timeout_s: float | None = None) -> None:
        """Returns when no message waits in the spool any more.  Raises CallTimeout if messages still wait after
        `timeout_s`.  Raises ClientClosed at once after `close`.  Raises SpoolUnusable at once if the spool has failed
        or belongs to the parent process."""
        spool = self._own_spool()
        if not spool.wait_until_empty(timeout_s):
            raise CallTimeout(f"messages still wait in the spool after {timeout_s} s: {spool.status()}")

    def _own_spool(self) -> "Spool":
        if self._spooling is None:
            raise InvalidParameter("this producer has no spool; pass Producer(spool=DIR)")
        return self._spooling.spool

    # --- admission ------------------------------------------------------------------------------------------------

    def _accept(
        self,
        message: Message,
        queue: MessageQueue | None,
        message_group: str | None,
        kind: Kind,
        waits_s: float | None = None,
        deliver_at: datetime | float | None = None,
    ) -> Pending:
        """Checks a message, chooses its queue, and passes it to the outbox."""
        kind, entry, size = self._admission.message(message, queue, message_group, kind, self._queue_choice, deliver_at)
        self._outbox.accept(entry, message.topic, kind, message.wait_store_msg_ok, size, waits_s=waits_s)
        return entry


def _close_if_alive(reference: "weakref.ref[Outbox]") -> Callable[[], None]:
    def close() -> None:
        if (outbox := reference()) is not None:
            outbox.close()

    return close
