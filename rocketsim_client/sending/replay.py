"""Replay: sends the records of a spool to brokers, in threads of its own.

The records of a lane (for example of one message group) are sent in their order, the oldest first.  A record is deleted
when a broker has stored it as safely as the producer asks for (`spool_until`).

One thread decides which broker gets which records.  Each broker that has to get records gets a thread of its own, which
sends some of them and ends, so that a broker that does not answer delays no other broker.  After a failure the broker's
thread pauses before it ends.  During the pause the broker gets no records, but other brokers can get the records that
were meant for it.

A broker may have stored records less safely than the producer asks for, for example a SYNC_MASTER without its slave.
Records that a broker stored less safely than asked for stay in the spool, and are sent again until the broker's status
is good enough.  A broker whose last status was not good enough gets one record at a time, so that an outage of its
slave makes a few copies of one record, and not copies of all records that wait.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from itertools import groupby

from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.slices import binary_slices

from rocketsim_client.errors import BrokerNotExist, MessageIllegal, QueueNotExist, RocketSimError, SpoolUnusable
from rocketsim_client.model import MessageQueue, SendStatus
from rocketsim_client.retry import BACKGROUND, COPIES
from rocketsim_client.sending.attempts import SendAttempts
from rocketsim_client.sending.batch import OutgoingBatch
from rocketsim_client.sending.publish_info import PublishTable
from rocketsim_client.sending.spool import Lane, Spool
from rocketsim_client.sending.spool_file import Row

logger = logging.getLogger(__name__)

FRAME_BYTES = 2 << 20  # larger than a producer's batch, because a spool has to be emptied faster than it is filled

Queues = Mapping[Lane, MessageQueue | None]


class _NotEnough(RocketSimError):
    """A broker has stored the records less safely than the producer asks for, so they stay in the spool."""


class Replay:
    """Sends spooled records from the start of the producer until `close`.

    Each frame is sent once.  If the send fails, its records stay in the spool, and a later frame has them again.
    """

    def __init__(
        self,
        spool: Spool,
        attempts: SendAttempts,
        publish_table: PublishTable,
        *,
        timeout_s: float,
        clock: Callable[[], float],
        enough: Collection[SendStatus] = (SendStatus.SEND_OK,),
    ) -> None:
        self._spool = spool
        self._attempts = attempts
        self._publish_table = publish_table
        self._timeout_s = timeout_s
        self._clock = clock
        self._enough = frozenset(enough)
        self._rounds = 0
        self._lock = threading.Lock()  # protects the next four fields, which the threads share
        self._last_status: dict[str, SendStatus] = {}  # broker name -> the last status, if it was not SEND_OK
        self._at_work: dict[str, threading.Thread] = {}  # broker name -> its thread
        self._under_way: set[Lane] = set()
        self._failures: dict[str, tuple[int, str]] = {}  # broker name or topic -> (number of failures, the last error)
        self._thread = threading.Thread(target=self._run, name="rocketsim-replay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits for the frames that are under way.  The next producer that opens the spool replays the remaining
        records."""
        self._spool.end_replay()
        self._thread.join()
        with self._lock:
            at_work = list(self._at_work.values())
        for thread in at_work:
            thread.join()

    # --- which broker gets what -----------------------------------------------------------------------------------

    def _run(self) -> None:
        known, pause_s = -1, None
        try:
            while (news := self._spool.wait_for_news(known, pause_s)) is not None:
                known = news
                pause_s = self._round()
        except BaseException as error:
            logger.exception("spool %s: replay has ended", self._spool.directory)
            self._spool.end_replay(f"spool {self._spool.directory}: replay has ended: {error!r}")

    def _round(self) -> float | None:
        """Starts a thread for each idle broker that has to get records.  Returns after how many seconds the method has
        to be called again if the spool does not change before, or None if only a change of the spool can give it more
        to do."""
        wanted: dict[str, list[Queues]] = {}
        pauses: dict[str, float] = {}
        with self._lock:
            free = [lane for lane in self._spool.lanes() if lane not in self._under_way]
            at_work = set(self._at_work)
        for lanes in self._by_topic(free):
            topic = lanes[0].topic
            try:
                for name, queues in by_broker(lanes, self._publish_table.queues(topic)).items():
                    chosen = name or self._chosen(topic, at_work)
                    wanted.setdefault(chosen, []).append(queues)
            except Exception as error:
                if not isinstance(error, RocketSimError):
                    logger.exception("spool %s: replay has failed", self._spool.directory)
                pauses[topic] = self._note_failure(f"topic {topic}", error, stored=False)
            else:
                self._note_success(f"topic {topic}")
        self._forget_failures({*wanted, *at_work, *(f"topic {topic}" for topic in pauses)})
        for name, parts in wanted.items():
            if name not in at_work and not self._begin(name, parts):
                pauses[name] = BACKGROUND.longest_s
        return min(pauses.values(), default=None)

    def _by_topic(self, lanes: list[Lane]) -> list[list[Lane]]:
        """Groups the lanes by topic.  Each call begins with another lane, so that a lane that never becomes empty does
        not hold up the other lanes."""
        first = self._rounds % max(len(lanes), 1)
        self._rounds += 1
        by_topic: dict[str, list[Lane]] = {}
        for lane in [*lanes[first:], *lanes[:first]]:
            by_topic.setdefault(lane.topic, []).append(lane)
        return list(by_topic.values())

    def _chosen(self, topic: str, at_work: Set[str]) -> str:
        """Returns the broker for messages that may go to any queue, if possible a broker to which nothing else is being
        sent."""
        name = self._publish_table.choose(topic).broker_name
        others = (queue.broker_name for queue in self._publish_table.queues(topic) if queue.broker_name not in at_work)
        return name if name not in at_work else next(others, name)

    # --- a broker's thread ----------------------------------------------------------------------------------------

    def _begin(self, name: str, parts: Sequence[Queues]) -> bool:
        """Starts the broker's thread.  Returns False if the system has no thread for it now, or if this process is
        ending."""
        lanes = {lane for queues in parts for lane in queues}
        thread = threading.Thread(
            target=self._work, args=(name, parts, lanes), name=f"rocketsim-replay-{name}", daemon=True
        )
        with self._lock:
            self._at_work[name] = thread
            self._under_way |= lanes
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("spool %s: could not start a thread for broker %s: %s", self._spool.directory, name, error)
            with self._lock:
                del self._at_work[name]
                self._under_way -= lanes
            return False
        return True

    def _work(self, name: str, parts: Sequence[Queues], lanes: Set[Lane]) -> None:
        """Sends the oldest records of the lanes in `parts`, each of which has lanes of one topic.  After a failure the
        broker gets nothing for a while, but other brokers can get the records that were meant for it."""
        stored, failure = self._send_parts(name, parts)
        if failure is None and stored:
            pause_s = 0.0
            self._note_success(name)
            if not self._spool.has_records:
                logger.info("spool %s: brokers have stored all of its messages", self._spool.directory)
        else:
            pause_s = self._note_failure(name, failure, stored=stored)
        with self._lock:
            self._under_way -= lanes
        if pause_s:
            self._spool.wake_replay()
            self._spool.pause(pause_s)
        with self._lock:
            del self._at_work[name]
        self._spool.wake_replay()

    def _send_parts(self, name: str, parts: Sequence[Queues]) -> tuple[bool, Exception | None]:
        """Returns two values: whether a record has left the spool, and the last failure.  If the records for one
        element of `parts` cannot be sent, the next element is tried.  Only _NotEnough ends the call, because the broker
        would not store other records more safely."""
        stored = False
        failure: Exception | None = None
        for queues in parts:
            try:
                for rows in self._frames(name, self._spool.oldest(list(queues), FRAME_BYTES)):
                    if self._spool.replay_has_ended:
                        return stored, failure
                    self._send(rows, queues, name)
                    stored = True
            except _NotEnough as error:
                return stored, error
            except RocketSimError as error:
                failure = error
            except Exception as error:
                logger.exception("spool %s: replay has failed", self._spool.directory)
                failure = error
        return stored, failure

    def _frames(self, name: str, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """Cuts the rows into frames.  While the broker's last status is not good enough, each frame has only one
        record."""
        while rows and self._status_of(name) not in self._enough:
            yield rows[:1]
            rows = rows[1:]
        yield from frames(rows)

    def _status_of(self, name: str) -> SendStatus:
        with self._lock:
            return self._last_status.get(name, SendStatus.SEND_OK)

    def _note_failure(self, name: str, failure: Exception | None, *, stored: bool) -> float:
        """Notes a failure of a broker or topic, and returns how long to wait before another attempt."""
        with self._lock:
            count, before = self._failures.get(name, (0, ""))
            if not before and failure is not None:
                logger.warning("spool %s: messages wait for brokers: %s", self._spool.directory, failure)
            count = 1 if stored else count + 1
            self._failures[name] = count, "" if failure is None else str(failure)
            self._report_failure()
        if isinstance(failure, _NotEnough):
            return COPIES.pause_s(count)
        return BACKGROUND.pause_s(count)

    def _note_success(self, name: str) -> None:
        with self._lock:
            if self._failures.pop(name, None) is not None or not self._spool.has_records:
                self._report_failure()

    def _forget_failures(self, but: Set[str]) -> None:
        """Forgets the failures of brokers and topics for which no records wait any more.  `but` names the brokers and
        topics whose failures are kept."""
        with self._lock:
            for name in self._failures.keys() - but:
                del self._failures[name]
            self._report_failure()

    def _report_failure(self) -> None:
        """Passes the last failure to the spool.  The caller holds the lock."""
        if not self._spool.has_records:
            self._failures.clear()
        self._spool.failed(next((text for _, text in reversed(self._failures.values()) if text), ""))

    def _send(self, rows: Sequence[Row], queues: Queues, name: str) -> None:
        """Sends the rows, and returns when they have left the spool.  Raises _NotEnough if the broker has stored the
        rows less safely than needed, so that they stay in the spool.  A message that a broker refuses as illegal is
        moved to the dead records, and the other messages of its frame are sent without it."""
        batch = batch_of(rows, queues)
        if not batch.broker_name:
            of_broker = [queue for queue in self._publish_table.queues(batch.topic) if queue.broker_name == name]
            if not of_broker:
                raise BrokerNotExist(f"broker {name!r} has no queue of topic {batch.topic!r} any more")
            batch.move(of_broker)
        try:
            status = self._attempts.send(batch, self._clock() + self._timeout_s, retries=0).send_status
        except MessageIllegal as error:
            if len(rows) > 1:
                self._send(rows[: len(rows) // 2], queues, name)
                self._send(rows[len(rows) // 2 :], queues, name)
                return
            if isinstance(error, QueueNotExist) and not self._is_gone(rows[0]):
                raise  # the next round sends the message to another queue, by the new route
            reason = str(error)
            self._settle(lambda: self._spool.bury(rows, reason))
        else:
            if _waits(rows[0]):
                self._note_status(name, status)
            if status not in self._enough:
                self._spool.taken(rows)
                raise _NotEnough(
                    f"broker {name!r} has stored messages of topic {batch.topic!r} with {status.name}: the messages "
                    "stay in the spool, and are sent again until the broker answers SEND_OK, or a status of spool_until"
                )
            self._settle(lambda: self._spool.delivered(rows, is_safe=status == SendStatus.SEND_OK))

    def _note_status(self, name: str, status: SendStatus) -> None:
        with self._lock:
            before = self._last_status.pop(name, SendStatus.SEND_OK)
            if status != SendStatus.SEND_OK:
                self._last_status[name] = status
        if status not in (SendStatus.SEND_OK, before):
            logger.warning(
                "spool %s: broker %s stores messages with %s, %s",
                *(self._spool.directory, name, status.name),
                "which is enough by spool_until" if status in self._enough else "so that they stay in the spool, too",
            )

    def _is_gone(self, row: Row) -> bool:
        """Returns True if the caller named a queue that, by the current route, its broker no longer has."""
        lane, queues = Lane(row.topic, row.lane), self._publish_table.queues(row.topic)
        queue = lane.queue(queues)
        if not lane.is_queue or queue is None or queue in queues:
            return False
        return queue.broker_name in {other.broker_name for other in queues}

    def _settle(self, act: Callable[[], None]) -> None:
        """Calls `act` until it succeeds.  `act` takes sent records out of the spool, because a record that stays there
        would be sent again."""
        failures = 0
        while True:
            try:
                act()
                return
            except SpoolUnusable as error:
                failures += 1
                logger.error(
                    "spool %s: records that were sent stay until they can be deleted: %s", self._spool.directory, error
                )
                if not self._spool.pause(BACKGROUND.pause_s(failures)):
                    raise


def by_broker(lanes: Sequence[Lane], queues: Sequence[MessageQueue]) -> dict[str, dict[Lane, MessageQueue | None]]:
    """Groups the lanes of one topic by the broker that has to get their records, and returns each lane with its queue.
    The name "" means any broker."""
    found: dict[str, dict[Lane, MessageQueue | None]] = {}
    for lane in lanes:
        queue = lane.queue(queues)
        found.setdefault(queue.broker_name if queue else "", {})[lane] = queue
    return found


def frames(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Cuts the rows into frames, in their order.  A delayed message is in a frame of its own, and all messages of a
    frame have the same WAIT flag."""
    for kind, some in groupby(rows, _frame_kind):
        if kind == "alone":
            yield from ([row] for row in some)
        else:
            yield list(some)


_SENT_ALONE = tuple(f"\x02{name}\x01".encode() for name in (record.PROPERTY_DELAY, record.PROPERTY_DELIVER_MS))


def _frame_kind(row: Row) -> str:
    properties = _properties(row)
    if any(name in properties for name in _SENT_ALONE):
        return "alone"
    return "waiting" if _waits(row) else "without waiting"


def _waits(row: Row) -> bool:
    """Returns True if a broker answers this message only when disk and slave have it.  A SEND_OK for a message with
    WAIT=false says nothing about disk and slave."""
    return b"\x02WAIT\x01false\x02" not in _properties(row)


def _properties(row: Row) -> bytes:
    return b"\x02" + row.record[record.locate(row.record).properties_start :]


def batch_of(rows: Sequence[Row], queues: Queues) -> OutgoingBatch:
    """Makes a batch of spooled records, which keep their ids and birth times.  `queues` has the queue of each lane.  If
    the records may go to any queue, the batch has no broker yet."""
    records = Records.walk(b"".join(row.record for row in rows), len(rows))
    records.check()
    chosen = [queues[Lane(row.topic, row.lane)] for row in rows]
    first = chosen[0]
    return OutgoingBatch(
        rows[0].topic,
        first.broker_name if first else "",
        [queue.queue_id if queue else 0 for queue in chosen],
        records.bodies(),
        binary_slices(records.data, records.properties_start, records.properties_size),
        [row.msg_id for row in rows],
        records.born_timestamp,
        flags=records.flag,
        sys_flags=records.sys_flag,
        may_move=first is None,
    )
