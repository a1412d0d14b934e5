"""Brings what a spool has to brokers, in a thread of its own: the oldest records of each lane first, a lane's in their
order, each deleted once a broker has stored it."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.slices import binary_slices

from rocketsim_client.errors import MessageIllegal, QueueNotExist, RocketSimError, SpoolUnusable
from rocketsim_client.model import MessageQueue
from rocketsim_client.retry import backoff_s
from rocketsim_client.sending.attempts import SendAttempts
from rocketsim_client.sending.batch import OutgoingBatch
from rocketsim_client.sending.publish_info import PublishTable
from rocketsim_client.sending.spool import Lane, Spool
from rocketsim_client.sending.spool_file import Row

logger = logging.getLogger(__name__)

FRAME_BYTES = 2 << 20  # more than a batch of messages: a spool has to empty faster than it fills
FIRST_PAUSE_S = 0.1  # after a failure
LONGEST_PAUSE_S = 5.0

Queues = Mapping[Lane, MessageQueue | None]


class Replay:
    """Runs from the start of the producer to `close`.  One attempt for each frame: it is the same as a later one's."""

    def __init__(
        self,
        spool: Spool,
        attempts: SendAttempts,
        publish: PublishTable,
        *,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._spool = spool
        self._attempts = attempts
        self._publish = publish
        self._timeout_s = timeout_s
        self._clock = clock
        self._rounds = 0
        self._thread = threading.Thread(target=self._run, name="rocketsim-replay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits for the frame that is under way.  What is left is replayed by whoever opens the spool next."""
        self._spool.end_replay()
        self._thread.join()

    def _run(self) -> None:
        failures = 0
        while self._spool.wait_for_records():
            stored, failure = self._round()
            self._spool.failed("" if failure is None else str(failure))
            if failure is None and stored:
                failures = 0
                if not self._spool.has_records:
                    logger.info("spool %s: brokers have taken all of it", self._spool.directory)
                continue
            if not failures and failure is not None:
                logger.warning("spool %s: messages wait for brokers: %s", self._spool.directory, failure)
            failures = 1 if stored else failures + 1
            self._spool.pause(backoff_s(failures, FIRST_PAUSE_S, LONGEST_PAUSE_S))

    def _round(self) -> tuple[bool, Exception | None]:
        """One frame for each broker that has to get some.  Whether something has left the spool, and the last failure:
        that of one broker does not keep the others' messages."""
        stored = False
        failure: Exception | None = None
        for lanes in self._lanes_by_topic():
            try:
                targets = by_broker(lanes, self._publish.queues(lanes[0].topic))
            except RocketSimError as error:
                failure = error
                continue
            for queues in targets:
                try:
                    rows = self._spool.oldest(list(queues), FRAME_BYTES)
                    for some in frames(rows):
                        self._send(some, queues)
                        stored = True
                except RocketSimError as error:
                    failure = error
                except Exception as error:
                    logger.exception("spool %s: replay has failed", self._spool.directory)
                    failure = error
        return stored, failure

    def _lanes_by_topic(self) -> list[list[Lane]]:
        """Another lane comes first each time: one that fills as fast as it empties, or cannot be sent, keeps no
        others."""
        lanes = self._spool.lanes()
        first = self._rounds % max(len(lanes), 1)
        self._rounds += 1
        by_topic: dict[str, list[Lane]] = {}
        for lane in [*lanes[first:], *lanes[:first]]:
            by_topic.setdefault(lane.topic, []).append(lane)
        return list(by_topic.values())

    def _send(self, rows: Sequence[Row], queues: Queues) -> None:
        """Returns when the rows have left the spool.  A message that a broker finds illegal is dead, and takes no
        others with it."""
        batch = batch_of(rows, queues)
        if not batch.broker_name:
            name = self._publish.choose(batch.topic).broker_name
            batch.move([queue for queue in self._publish.queues(batch.topic) if queue.broker_name == name])
        try:
            self._attempts.send(batch, self._clock() + self._timeout_s, retries=0)
        except MessageIllegal as error:
            if len(rows) > 1:
                self._send(rows[: len(rows) // 2], queues)
                self._send(rows[len(rows) // 2 :], queues)
                return
            if isinstance(error, QueueNotExist) and not self._is_gone(rows[0]):
                raise  # it has another queue by the next route
            reason = str(error)
            self._settle(lambda: self._spool.bury(rows, reason))
        else:
            self._settle(lambda: self._spool.delivered(rows))

    def _is_gone(self, row: Row) -> bool:
        """Whether the caller has named a queue that its broker does not have, by the route."""
        lane, queues = Lane(row.topic, row.lane), self._publish.queues(row.topic)
        queue = lane.queue(queues)
        if not lane.is_queue or queue is None or queue in queues:
            return False
        return queue.broker_name in {other.broker_name for other in queues}

    def _settle(self, act: Callable[[], None]) -> None:
        """As often as it takes: to send the records again would only add copies."""
        failures = 0
        while True:
            try:
                act()
                return
            except SpoolUnusable as error:
                failures += 1
                logger.error("spool %s: a record that a broker has taken stays: %s", self._spool.directory, error)
                if not self._spool.pause(backoff_s(failures, FIRST_PAUSE_S, LONGEST_PAUSE_S)):
                    raise


def by_broker(lanes: Sequence[Lane], queues: Sequence[MessageQueue]) -> list[dict[Lane, MessageQueue | None]]:
    """The lanes of one topic, each with its queue, apart by the broker that has to get them."""
    found: dict[str, dict[Lane, MessageQueue | None]] = {}
    for lane in lanes:
        queue = lane.queue(queues)
        found.setdefault(queue.broker_name if queue else "", {})[lane] = queue
    return list(found.values())


def frames(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows that may be sent together, in their order: a delayed message goes alone, and those of a frame have one WAIT
    flag."""
    for company, some in groupby(rows, _company):
        if company == "alone":
            yield from ([row] for row in some)
        else:
            yield list(some)


def _company(row: Row) -> str:
    properties = b"\x02" + row.record[record.locate(row.record).properties_start :]
    if any(name in properties for name in (b"\x02DELAY\x01", b"\x02TIMER_DELIVER_MS\x01")):
        return "alone"
    return "without waiting" if b"\x02WAIT\x01false\x02" in properties else "waiting"


def batch_of(rows: Sequence[Row], queues: Queues) -> OutgoingBatch:
    """The records with their own ids and times of birth, for the queues of their lanes; those that may go anywhere, for
    no broker yet."""
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
