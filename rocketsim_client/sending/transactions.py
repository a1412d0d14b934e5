"""A producer's transactions: half messages, their commit or rollback, and the answers when brokers ask about open
ones."""

import logging
import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from contextlib import closing
from types import TracebackType
from typing import cast

from rocketsim_client.cluster import Cluster
from rocketsim_client.errors import (
    CallTimeout,
    ClientClosed,
    InvalidParameter,
    MessageIllegal,
    NotFound,
    RocketSimError,
    SendFailed,
    Unreachable,
)
from rocketsim_client.message_view import MessageView
from rocketsim_client.model import MASTER_ID, CommitStatus, Message, MessageQueue, SendResult
from rocketsim_client.retry import BACKGROUND, SETTLEMENTS, is_worth_asking_again
from rocketsim_client.routing.members import Member
from rocketsim_client.sending.accumulator import Kind
from rocketsim_client.sending.attempts import SendAttempts
from rocketsim_client.sending.options import ProducerOptions
from rocketsim_client.sending.pending import Pending
from rocketsim_client.sending.publish_info import PublishTable
from rocketsim_client.sending.sender import Lot, Sender
from rocketsim_client.transport.sends import Acknowledged, Outgoing, SendCall
from rocketsim_client.transport.transactions import EndAnswer, OpenTransaction
from rocketsim_client.transport.under_way import UnderWay

logger = logging.getLogger(__name__)

CHECK_S = 30.0  # a call waits this long for a broker's questions; the next call may go to another master

Checker = Callable[[MessageView], bool | None]  # True commits, False rolls back, None means not known yet


class Transaction:
    """One message that readers see when it is committed.  The end of a `with` block commits the transaction, and an
    exception in the block rolls it back."""

    def __init__(
        self,
        transactions: "Transactions",
        accept: Callable[[Message, MessageQueue | None, str | None], tuple[Kind, Pending]],
        timeout_s: float,
    ) -> None:
        self._transactions = transactions
        self._accept = accept
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        self._prepared: SendResult | None = None
        self._is_used = self._has_ended = False
        self._status: CommitStatus | None = None

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._prepared is None or self._has_ended or self._pid != os.getpid():
            return
        if kind is None:
            self.commit()
            return
        try:
            self.rollback()
        except NotFound as failure:
            logger.warning("transaction %s was not open any more: %s", self.transaction_id, failure)
        except RocketSimError as failure:
            logger.warning("transaction %s stays open until a broker asks about it: %s", self.transaction_id, failure)

    @property
    def transaction_id(self) -> str:
        """The id of the transaction's message.  Empty before `send`."""
        return self._prepared.msg_id if self._prepared is not None else ""

    @property
    def status(self) -> CommitStatus | None:
        """The status of the last `commit` or `rollback`, also of the one at the end of the block.  The status says
        which brokers have stored the commit or rollback.  The status is None until a commit or rollback is answered."""
        return self._status

    def send(
        self, message: Message, *, queue: MessageQueue | None = None, message_group: str | None = None
    ) -> SendResult:
        """Stores the message as a half message, which no reader sees.  The result's offset is that of the half
        message.  A transaction has one message.  Errors are those of `Producer.send`, but nothing is spooled."""
        if self._is_used:
            raise InvalidParameter("a transaction has one message; begin another one")
        if message.delay_level or message.deliver_at is not None:
            name = "delay_level" if message.delay_level else "deliver_at"
            raise MessageIllegal(
                f"topic {message.topic!r}: the message of a transaction cannot be delayed; leave out {name}"
            )
        kind, entry = self._accept(message, queue, message_group)
        self._is_used = True
        self._prepared = self._transactions.prepare(self, entry, kind, self._timeout_s)
        return self._prepared

    def commit(self) -> CommitStatus:
        """Commits the message: readers see it when the call returns.  The status says which brokers have stored the
        commit.  `COMMIT_OK` means that the commit is stored as safely as the broker's role asks for.
        `SLAVE_NOT_AVAILABLE` means that a SYNC_MASTER had no slave.  If the master is lost before a slave has the
        commit, a broker asks the producer about the transaction again, or the message is lost with the master.  A
        second commit is answered like the first.

        Raises SendFailed if it is not known whether the message is committed.  After a SendFailed the broker asks the
        producer's checker.  Raises NotFound if the transaction is not open any more, because the broker has given it
        up, its topic was deleted, or it was rolled back.  Raises ClientClosed if the producer was closed before the
        commit.  After a ClientClosed the broker asks another producer.
        """
        return self._end(commit=True)

    def rollback(self) -> CommitStatus:
        """Rolls the message back, so that no reader will see it.  Status and errors are those of `commit`."""
        return self._end(commit=False)

    def _end(self, *, commit: bool) -> CommitStatus:
        if self._prepared is None:
            raise InvalidParameter("the transaction has no message: nothing was sent in it")
        self._has_ended = True
        self._status = self._transactions.end(
            self._prepared.message_queue, self.transaction_id, commit=commit, timeout_s=self._timeout_s
        )
        return self._status


class HalfMessages:
    """Implements `SendCalls`, and stores each message as a half message of this client."""

    def __init__(self, cluster: Cluster, client_id: str) -> None:
        self._cluster = cluster
        self._client_id = client_id

    def send(self, address: str, outgoing: Outgoing, call: SendCall, timeout_s: float) -> Acknowledged:
        return self._cluster.transport.transactions.prepare(address, outgoing, call, self._client_id, timeout_s)


class Transactions:
    """The transactions of one producer.  With a checker, one thread for each broker of a topic answers the broker's
    questions, from the topic's first transaction on.  Thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        attempts: SendAttempts,
        publish_table: PublishTable,
        options: ProducerOptions,
        *,
        checker: Checker | None,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._publish_table = publish_table
        self._checker = checker
        self._clock = clock
        self._client_id = f"{socket.gethostname()[:64]}@{os.getpid()}@{uuid.uuid4().hex[:12]}"
        self._sender = Sender(
            attempts.over(HalfMessages(cluster, self._client_id)), publish_table, options, cluster.first_address
        )
        self._lock = threading.Lock()
        # Transaction id -> transaction that this process may still end.  The dict is weak, so that it does not keep a
        # transaction that the program has dropped.
        self._here: weakref.WeakValueDictionary[str, Transaction] = weakref.WeakValueDictionary()
        self._topics: dict[str, None] = {}
        self._threads: dict[str, threading.Thread] = {}  # broker name -> the thread that answers its questions
        self._under_way = UnderWay()
        self._closed = threading.Event()

    def prepare(self, transaction: Transaction, entry: Pending, kind: Kind, timeout_s: float) -> SendResult:
        (msg_id,) = self._sender.new_ids(1, time.time_ns() // 1_000_000).to_pylist()
        topic = cast(MessageQueue, entry.queue).topic
        with self._lock:
            self._here[msg_id] = transaction  # the id has to be known before a broker can ask about it
        try:
            lot = Lot(entries=[entry], kind=kind, deadline=self._clock() + timeout_s, msg_ids=[msg_id])
            self._sender.send_messages(lot)
            prepared = cast(SendResult, entry.result())
        except BaseException as error:
            self._forget(msg_id)
            if isinstance(error, SendFailed) and error.maybe_stored:
                self._answer_for_own(topic, [])
            raise
        self._answer_for_own(topic, [prepared.message_queue.broker_name])
        return prepared

    def _answer_for_own(self, topic: str, broker_names: list[str]) -> None:
        """Answers the questions of all brokers of the topic, because each broker that was tried may have stored the
        message, even if its answer was lost."""
        if self._checker is None:
            return
        try:
            broker_names = [*broker_names, *(queue.broker_name for queue in self._publish_table.queues(topic))]
        except RocketSimError as error:
            logger.warning(
                "brokers' questions about topic %s may stay unanswered until its next transaction: %s", topic, error
            )
        self.answer_for([topic], sorted(set(broker_names)))

    def end(self, queue: MessageQueue, transaction_id: str, *, commit: bool, timeout_s: float) -> CommitStatus:
        word, until, failures = "committed" if commit else "rolled back", self._clock() + timeout_s, 0

        def end(member: Member) -> EndAnswer:
            left_s = max(until - self._clock(), 0.1)
            return self._cluster.transport.transactions.end(
                member.address, queue.topic, queue.broker_name, transaction_id, commit=commit, timeout_s=left_s
            )

        try:
            while True:
                try:
                    answer = self._cluster.ask(queue.topic, queue.broker_name, end, only_this=True)
                    if not answer.again:
                        return answer.status
                    why = f"its disk or slave did not take it in time ({answer.status.name})"
                    failure: RocketSimError | None = None
                except RocketSimError as error:
                    if isinstance(error, ClientClosed):
                        raise ClientClosed(
                            f"transaction {transaction_id} of topic {queue.topic!r} is not {word}: its producer has "
                            "been closed; the broker asks another producer that answers for the topic"
                        ) from error
                    if not is_worth_asking_again(error):
                        raise
                    failure, why = error, str(error)
                failures += 1
                pause_s = SETTLEMENTS.pause_s(failures)
                if self._clock() + pause_s >= until:
                    raise SendFailed(
                        f"transaction {transaction_id} of topic {queue.topic!r}: it is not known whether it is {word}: "
                        f"{why}; the broker asks a producer about it",
                        attempts=failures,
                        maybe_stored=True,
                        code=failure.code if failure is not None else None,
                    ) from failure
                time.sleep(pause_s)
        finally:
            self._forget(transaction_id)

    def _forget(self, transaction_id: str) -> None:
        with self._lock:
            self._here.pop(transaction_id, None)

    # --- questions ------------------------------------------------------------------------------------------------

    def answer_for(self, topics: list[str], broker_names: list[str] | None = None) -> None:
        """Begins to answer brokers' questions about transactions of these topics, also about transactions of other
        producers."""
        if self._checker is None:
            return
        if broker_names is None:
            broker_names = sorted({queue.broker_name for topic in topics for queue in self._cluster.queues(topic)})
        with self._lock:
            new_topics = [topic for topic in topics if topic not in self._topics]
            self._topics.update(dict.fromkeys(topics))
            for name in broker_names:
                if name not in self._threads and not self._closed.is_set():
                    self._threads[name] = threading.Thread(
                        target=self._answer, args=(name,), name=f"rocketsim-check-{name}", daemon=True
                    )
                    self._threads[name].start()
        if new_topics:
            self._cancel()  # ends the call that waits for questions, so that the next call also names the new topics

    def _answer(self, broker_name: str) -> None:
        failures = 0
        while not self._closed.is_set():
            topics = list(self._topics)
            try:
                self._answer_one_call(broker_name, topics)
                failures = 0
            except RocketSimError as error:
                if self._closed.is_set():
                    return
                failures += 1
                if failures == 2 or not isinstance(error, Unreachable):
                    logger.warning(
                        "cannot receive the questions of broker %s about transactions, trying again: %s",
                        broker_name,
                        error,
                    )
                for topic in topics[:1]:
                    self._cluster.refresh_after_failure(topic)
                self._closed.wait(BACKGROUND.pause_s(failures))

    def _answer_one_call(self, broker_name: str, topics: list[str]) -> None:
        member = self._cluster.next_member(topics[0], broker_name, MASTER_ID, only_this=True)
        if member is None:
            raise CallTimeout(f"broker {broker_name!r} has no master now")
        asked = self._cluster.transport.transactions.check(
            member.address, self._client_id, broker_name, topics, CHECK_S, self._under_way
        )
        with closing(asked):
            for transaction in asked:
                self._answer_question(broker_name, transaction)

    def _answer_question(self, broker_name: str, asked: OpenTransaction) -> None:
        assert self._checker is not None
        with self._lock:
            if asked.transaction_id in self._here:
                return  # this process will still end the transaction
        try:
            commit = self._checker(asked.message)
        except Exception:
            logger.exception("the checker failed for transaction %s of %s", asked.transaction_id, asked.topic)
            return
        if commit is None:
            return
        try:
            queue = MessageQueue(asked.topic, broker_name, asked.message.queue_id)
            self.end(queue, asked.transaction_id, commit=commit, timeout_s=self._cluster.timeout_s)
        except NotFound:
            pass  # somebody else has ended the transaction
        except RocketSimError as error:
            logger.warning("transaction %s was not ended, the broker will ask again: %s", asked.transaction_id, error)

    def _cancel(self) -> None:
        self._under_way.cancel()

    def close(self, timeout_s: float = 5.0) -> None:
        with self._lock:
            self._closed.set()
            threads = list(self._threads.values())
        until = time.monotonic() + timeout_s
        for thread in threads:
            while thread.is_alive() and thread is not threading.current_thread() and time.monotonic() < until:
                self._cancel()
                thread.join(0.05)
