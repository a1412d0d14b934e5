"""Transactions on a master: stores half messages, commits them or rolls them back, and asks producers how transactions
end.

A producer begins a transaction by sending a message.  The broker stores the message in RocketMQ's half topic, where no
consumer sees it.  The stored message is called a *half message*, and its transaction is *open*.  A commit appends a
copy of the half message to the message's own topic.  A commit and a rollback both append an *op record*, which marks
the transaction as ended.

If a producer neither commits nor rolls back, the broker asks it for the outcome at regular intervals.  After
`transactionCheckMax` questions the broker gives the transaction up, and copies its message to
TRANS_CHECK_MAX_TIME_TOPIC, where operators find it.

A crash may come between a copy and its op record.  Before a new master ends any transaction, `find_copies` therefore
searches for copies without op records, and the missing op records are appended.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record
from rocketsim_proto.reserved import DISCARDED_TOPIC, HALF_TOPIC, OP_TOPIC

from broker_service.broker.core import master_loop
from broker_service.broker.core.broker import Broker
from broker_service.broker.core.master_loop import MasterLoop
from broker_service.broker.put import Placed, PutPath, Send
from broker_service.errors import (
    MessageIllegal,
    NotFound,
    ReadFailed,
    RocketSimError,
    ServiceNotAvailable,
    StoreCorrupt,
    SystemBusy,
)
from broker_service.put_result import Appended, PutStatus, QueueAppend
from broker_service.runtime import cold_reads
from broker_service.state import half_messages
from broker_service.state.half_messages import TRANSACTION_GROUP
from broker_service.state.needed_log import NeededLog
from broker_service.state.open_transactions import OpenTransactions
from broker_service.state.transaction_changes import Checked, Prepared, Resolution, Resolved, TransactionId
from broker_service.state.writer import StateWriter
from broker_service.transactions.copies import find_copies

logger = logging.getLogger(__name__)

# Limit for open transactions.  Each open transaction takes some 600 bytes of memory.  One topic may use at most half of
# what the other topics leave free.
MAX_OPEN = 200_000

_AT_A_TIME = 256


class UnknownTransaction(RocketSimError):
    """The transaction is not known here, or it has already ended with another outcome."""


class TransactionIdTaken(MessageIllegal):
    """The message's id belongs to the transaction of another message, or to a transaction that has ended."""

    v2_code = "ILLEGAL_MESSAGE_ID"


@dataclass(frozen=True, slots=True)
class Check:
    """A question that asks a producer how the transaction of this half message ends.

    `client_id` is the producer that has sent the message, or "" if the producer is not known.  `queue_id` is the queue
    in the message's own topic.  `times` counts the questions about this transaction.
    """

    transaction: TransactionId
    client_id: str
    half: Record
    queue_id: int
    times: int


class Producers(Protocol):
    """The connected producers of one protocol or of all protocols."""

    async def ask(self, check: Check) -> bool:
        """Sends the question to one connected producer, and can take a while.  Returns False if no producer could be
        asked.
        """


class Transactions:
    def __init__(self, broker: Broker, writer: StateWriter, producers: Producers) -> None:
        self.producers = producers
        self._broker = broker
        self._writer = writer
        self._loop = MasterLoop(broker, self._work, "open transactions")
        self._needed = NeededLog(broker.store)
        self._unreadable: set[int] = set()  # queue offsets of half messages that cannot be read and are to be given up
        self.ready = asyncio.Event()  # set when `find_copies` has found all commits without an op record

    @property
    def state(self) -> OpenTransactions:
        return self._writer.state.transactions

    # --- half messages ----------------------------------------------------------------------------------------------

    async def begin(self, puts: PutPath, send: Send, *, client_id: str, immunity_s: int = 0) -> Placed:
        """Begins a transaction: appends the half message for `send`, which has one message.

        If this message began its transaction in an earlier call, the half message of the earlier call is returned, and
        no new one is appended.  The producer is asked for the outcome after `immunity_s` seconds, or after the broker's
        `transactionTimeOut` if `immunity_s` is 0.

        Raises MessageIllegal for a message that cannot begin a transaction, and TransactionIdTaken if its id belongs to
        another message.
        """
        message = send.message
        _check_may_begin(message)
        while True:
            if (stored := await self.stored_half(message)) is not None:
                at = [QueueAppend(0, stored.queue_offset, 1)], [(stored.log_offset, 1)]
                return Placed(Appended(*at, self._broker.store.end_offset, 0))
            await self._get_room(send.topic)
            frame = await puts.admit(send)
            # Nothing may be awaited between this check and the append.
            self._writer.check_transactions()
            if _transaction_of(message) not in self.state.open:
                return puts.place(send, frame, instead=self._half_of(message, client_id, immunity_s))

    async def _get_room(self, topic: str) -> None:
        self._writer.check_transactions()
        count, of_topic = len(self.state.open), self.state.open_of[topic]
        if count + of_topic >= MAX_OPEN:
            raise SystemBusy(
                f"{count} transactions are open, {of_topic} of topic {topic}; no further one can begin until "
                "producers commit or roll back, or transactions are given up"
            )
        for own in (HALF_TOPIC, OP_TOPIC):
            await self._writer.make_topic(own)

    async def stored_half(self, message: Record) -> Prepared | None:
        """Returns the stored half message if the transaction of this message is open, else None.

        Raises TransactionIdTaken if the open transaction with this id was begun with another message.  An equal id
        alone is not enough, because an id can be guessed or chosen twice, and a producer could commit another
        producer's message.
        """
        self._writer.check_transactions()
        prepared = self.state.open.get(_transaction_of(message))
        if prepared is not None and not half_messages.has_content_of(await self._half(prepared), message):
            raise TransactionIdTaken(
                f"transaction {_name(prepared)} is open with another message; send this message with an id of its own"
            )
        return prepared

    def _half_of(self, message: Record, client_id: str, immunity_s: int) -> Record:
        """Makes the half message to store, for a message whose transaction is not open."""
        transaction = _transaction_of(message)
        if (ended := self.state.resolution_of(transaction)) is not None:
            raise TransactionIdTaken(
                f"transaction {transaction.id[:80]} of topic {transaction.topic} has ended already, with {ended.name}; "
                "send this message with an id of its own"
            )
        broker = self._broker
        wait_ms = 1000 * immunity_s or broker.config.transaction_time_out
        return half_messages.half_message(
            message, client_id=client_id, first_check_ms=broker.now_ms() + wait_ms, immunity_s=immunity_s
        )

    # --- commit and rollback ----------------------------------------------------------------------------------------

    async def end(self, transaction: TransactionId, resolution: Resolution, timeout_s: float) -> PutStatus:
        """Commits a transaction or rolls it back.  `Resolution.UNKNOWN` changes nothing, and only checks that the
        transaction is known.

        A second call with the same resolution also succeeds.  Raises UnknownTransaction if the transaction is not
        known, or has ended with the other resolution.
        """
        until = self._broker.clock() + timeout_s
        self._writer.check_transactions()
        await self._until_ready(timeout_s)
        self._broker.acknowledgements.check_room()
        while True:
            self._writer.check_transactions()
            prepared = self.state.open.get(transaction)
            if resolution is Resolution.UNKNOWN or prepared is None:
                self._check_known(transaction, prepared, resolution)
                end = self._broker.store.end_offset
                break
            half = await self._half(prepared) if resolution is Resolution.COMMIT else None
            if half is not None:
                # A deletion of the topic may end the transaction during this wait.
                await self._until_open(transaction.topic, until)
            self._writer.check_transactions()
            now = self.state.open.get(transaction)
            if now is not None and now.queue_offset == prepared.queue_offset:
                self._write_ops()
                end = self._rolled_back(prepared) if half is None else self._committed(prepared, half)
                break
        return await self._broker.acknowledgements.wait(end, max(0.0, until - self._broker.clock()))

    async def _until_open(self, topic: str, until: float) -> None:
        """Waits until no change of the topic is being written.  After the return, and until the caller awaits something
        else, the topic either takes the copy or is deleted.
        """
        try:
            async with asyncio.timeout(max(0.0, until - self._broker.clock())):
                await self._broker.topics.until_settled(topic)
        except TimeoutError:
            raise ServiceNotAvailable(f"topic {topic} is still being changed; try again") from None

    def _check_known(self, transaction: TransactionId, prepared: Prepared | None, resolution: Resolution) -> None:
        ended = self.state.resolution_of(transaction)
        if prepared is not None or (ended is not None and resolution in (ended, Resolution.UNKNOWN)):
            return
        topic, name = transaction
        if ended is None:
            raise UnknownTransaction(
                f"cannot found transaction data: no transaction {name[:80]!r} of topic {topic} is open here; it was "
                "never begun, is of another topic or broker, or ended long ago"
            )
        raise UnknownTransaction(
            f"transaction {name[:80]!r} of topic {topic} has ended already, with {ended.name}; "
            f"{resolution.name} changes nothing"
        )

    def _committed(self, prepared: Prepared, half: Record) -> int:
        """Appends the copy and the op record of a commit.  Returns the log's end after both records."""
        # The topic may have fewer queues now than when the transaction began.
        topic = self._broker.topics.existing(prepared.transaction.topic)
        queue_id = topic.queue_of(half_messages.real_queue(half))
        copy = half_messages.committed_copy(half, queue_id)
        self._writer.append_record(copy)
        self.state.apply(Resolved(prepared.transaction, Resolution.COMMIT))
        self._write_ops()
        return self._broker.store.end_offset

    def _rolled_back(self, prepared: Prepared) -> int:
        return self._append_ops([prepared.queue_offset], Resolution.ROLLBACK)

    def _write_ops(self) -> None:
        """Appends all op records that are missing.  Raises if the log refuses an op record, because no further
        transaction may end without op records.

        The op records of commits come first, because `find_copies` looks for copies only after the last op record.  If
        a rollback's op record came first, a crash after it could hide copies whose op records are missing.
        """
        by_resolution: dict[Resolution, list[int]] = {}
        for queue_offset, resolved in self.state.unlogged.items():
            by_resolution.setdefault(resolved.resolution, []).append(queue_offset)
        for resolution in sorted(by_resolution, key=lambda one: one is not Resolution.COMMIT):
            self._append_ops(by_resolution[resolution], resolution)

    def _append_ops(self, queue_offsets: list[int], resolution: Resolution) -> int:
        end = 0
        for op in half_messages.op_records(queue_offsets, resolution, self._broker.now_ms()):
            end = self._writer.append_record(op)
        return end

    def drop_topic(self, name: str) -> None:
        """Ends the open transactions of a deleted topic, so that a new topic of that name does not get their
        messages.
        """
        if not self._broker.store.queues.end(HALF_TOPIC, 0):
            return
        self._writer.check_transactions()
        self._write_ops()
        dropped = [one.queue_offset for transaction, one in self.state.open.items() if transaction.topic == name]
        if dropped:
            self._append_ops(dropped, Resolution.DISCARDED)

    async def _until_ready(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self.ready.wait()
        except TimeoutError:
            raise ServiceNotAvailable(
                "this master does not know yet which transactions have ended; try again in a moment"
            ) from None

    # --- questions to producers -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Asks producers about open transactions until the task is cancelled.  The broker starts this loop when it
        begins to take writes.
        """
        try:
            await self._loop.run()
        finally:
            self.ready.clear()

    async def _work(self) -> float | None:
        if self._writer.read_again():
            self.ready.clear()
        if not self.ready.is_set():
            self._writer.check_transactions()
            await find_copies(self._broker.store, self.state)
            self.ready.set()
        return await self._ask_due()

    async def _ask_due(self) -> float | None:
        """Appends missing op records, and asks the producers of all transactions that are due for a question.

        Returns the seconds until the next question, or None if no transaction is open.
        """
        while True:
            self._writer.check_transactions()
            if self.state.unlogged:
                self._write_ops()
            now_ms = self._broker.now_ms()
            due = self.state.due(now_ms, _AT_A_TIME)
            if not due:
                break
            asked = [one for one in due if not self._is_over(one)]
            if asked:
                next_ms = now_ms + self._broker.config.transaction_check_interval
                self._writer.append(Checked(next_ms, tuple((one.queue_offset, one.checks + 1) for one in asked)))
            by_client: dict[str, list[Prepared]] = {}
            for one in asked:
                by_client.setdefault(one.client_id, []).append(one)
            await _await_all(*(self._ask_each(some) for some in by_client.values()))
            for one in due:
                if self._is_over(one):
                    await self._give_up(one)
            await asyncio.sleep(0)
        due_ms = self.state.next_due_ms()
        return None if due_ms is None else (due_ms - now_ms) / 1000

    def _is_over(self, prepared: Prepared) -> bool:
        """Returns True if the transaction's producer has been asked often enough."""
        return prepared.checks >= self._broker.config.transaction_check_max

    async def _ask_each(self, some: Sequence[Prepared]) -> None:
        for prepared in some:
            await self._ask(prepared)

    async def _ask(self, prepared: Prepared) -> None:
        try:
            half = await self._half(prepared)
        except NotFound:
            await self._give_up(prepared)
            return
        except (ReadFailed, StoreCorrupt) as error:
            logger.error("no producer is asked about transaction %s: %s", _name(prepared), error)
            return
        if self._is_open(prepared):
            check = Check(
                prepared.transaction, prepared.client_id, half, half_messages.real_queue(half), prepared.checks + 1
            )
            if not await self.producers.ask(check):
                logger.info("transaction %s: no connected producer can be asked for its outcome", _name(prepared))

    async def _give_up(self, prepared: Prepared) -> None:
        """Ends a transaction without an outcome, and copies its message to TRANS_CHECK_MAX_TIME_TOPIC.

        An expired or damaged message is lost.  If the disk cannot read the message now, the transaction is given up
        later.
        """
        half: Record | None = None
        try:
            half = await self._half(prepared)
        except ReadFailed as error:
            logger.error("transaction %s is given up once its message can be read: %s", _name(prepared), error)
            if self._is_open(prepared):
                self._unreadable.add(prepared.queue_offset)
                later_ms = self._broker.now_ms() + int(1000 * master_loop.AFTER_TROUBLE_S)
                self._writer.append(Checked(later_ms, ((prepared.queue_offset, prepared.checks),)))
            return
        except (NotFound, StoreCorrupt) as error:
            logger.error("transaction %s is given up, and its message is lost: %s", _name(prepared), error)
        self._unreadable.discard(prepared.queue_offset)
        await self._writer.make_topic(DISCARDED_TOPIC)
        self._writer.check_transactions()
        if not self._is_open(prepared):
            return
        self._write_ops()
        if half is None:
            self._append_ops([prepared.queue_offset], Resolution.DISCARDED)
            return
        logger.warning("transaction %s is given up after %d checks", _name(prepared), prepared.checks)
        self._writer.append_record(half_messages.discarded_copy(half))
        self._write_ops()

    def _is_open(self, prepared: Prepared) -> bool:
        now = self.state.open.get(prepared.transaction)
        return now is not None and now.queue_offset == prepared.queue_offset

    # --- retention ----------------------------------------------------------------------------------------------------

    async def move(self, log_offset: int) -> None:
        """Appends half messages before `log_offset` again at the log's end, because the log files before this offset
        expire.

        Does nothing until `find_copies` has found all commits.  `find_copies` recognizes a commit by the log offset of
        its half message, and this method changes the log offsets of half messages.
        """
        if not self.ready.is_set():
            return
        self._writer.check_transactions()
        for prepared in [one for one in self.state.open.values() if one.log_offset < log_offset]:
            try:
                half = await self._half(prepared)
            except (NotFound, ReadFailed, StoreCorrupt) as error:
                logger.error("the message of transaction %s cannot be appended again: %s", _name(prepared), error)
                continue
            self._writer.check_transactions()
            now = self.state.open.get(prepared.transaction)
            if now is not None and now.queue_offset == prepared.queue_offset:
                self._writer.append_record(half_messages.renewed_half(half, now.checks, now.due_ms, now.client_id))
        self._write_ops()

    def needed_from(self) -> int | None:
        """Returns the log offset from which the log is needed for open transactions; None if no transaction ever
        began.
        """
        return self._needed.begins_at(self._oldest()) if self._broker.store.queues.end(HALF_TOPIC, 0) else None

    def _oldest(self) -> int | None:
        first = self._broker.store.min_offset
        some = (one for one in self.state.open.values() if one.queue_offset not in self._unreadable)
        return min((one.log_offset for one in some if one.log_offset >= first), default=None)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def half_at(self, log_offset: int) -> Record:
        """Reads the half message at a log offset that a client has named.  Raises NotFound if there is no half message
        at this offset.
        """
        store = self._broker.store
        data = await cold_reads.read(store, partial(store.log.find_record, log_offset))
        found = None if data is None else record.decode(data, check_crc=False)
        if found is None or found.topic != HALF_TOPIC:
            raise NotFound(f"no half message is at log offset {log_offset}")
        return found

    async def _half(self, prepared: Prepared) -> Record:
        """Reads the half message of an open transaction.  Raises NotFound if the half message has expired."""
        store = self._broker.store
        data = await cold_reads.read(store, partial(store.log.record_at, prepared.log_offset))
        return record.decode(data, check_crc=False)

    # --- for RocketMQ -----------------------------------------------------------------------------------------------

    def note_offsets(self) -> None:
        """Commits, for the half topic and the op topic, the offset at which a RocketMQ would continue if it opened this
        store after a clean stop.
        """
        store = self._broker.store
        if self._broker.is_slave or not store.queues.end(HALF_TOPIC, 0):
            return
        first = self.state.first()
        half = store.queues.end(HALF_TOPIC, 0) if first is None else first.queue_offset
        op = store.queues.end_at(OP_TOPIC, 0, store.end_offset if first is None else first.log_offset)
        offsets = self._broker.offsets
        for topic, offset in ((HALF_TOPIC, half), (OP_TOPIC, op)):
            if offsets.get(TRANSACTION_GROUP, topic, 0).offset != offset:
                offsets.reset(TRANSACTION_GROUP, topic, {0: offset})


async def _await_all(*calls: Awaitable[None]) -> None:
    """Waits until all calls have ended, and then raises the first of their errors."""
    for failed in await asyncio.gather(*calls, return_exceptions=True):
        if failed is not None:
            raise failed


def _check_may_begin(message: Record) -> None:
    if not message.properties.get(record.PROPERTY_UNIQ_KEY):
        raise MessageIllegal(f"topic {message.topic}: a transactional message must have an id (UNIQ_KEY)")
    if not message.properties.keys().isdisjoint((record.PROPERTY_DELAY, record.PROPERTY_DELIVER_MS)):
        raise MessageIllegal(f"topic {message.topic}: a transactional message cannot have a delay or a delivery time")


def _transaction_of(message: Record) -> TransactionId:
    return TransactionId(message.topic, message.message_id)


def _name(prepared: Prepared) -> str:
    return f"{prepared.transaction.id[:80]} of topic {prepared.transaction.topic}"
