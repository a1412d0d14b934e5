"""A spool keeps messages on this machine's disk until a broker takes them.

The messages of a spool are in lanes, and a lane is a set of messages that keep their order.  All messages of one
message group are a lane, which is named by the hash of the group.  All messages for which callers have chosen the same
queue are a lane.  All messages of a topic that may go to any queue are a lane, too, although they need no order.

The sender puts a message into the spool when no broker has taken it, or when older messages of its lane are still in
the spool, so that no message overtakes another.  Replay (`replay.py`) takes the oldest records of each lane, and sends
them to brokers.  Replay deletes records that a broker has stored, and moves records that a broker has refused for good
to the dead records.

Senders and replay reach the database through one thread, which commits the jobs of all callers together.  If a file of
the spool is deleted or moved, the spool takes no more records.  If the database is damaged, or if only the lock file is
gone, replay ends, too.
"""

import contextlib
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from isal import isal_zlib

from rocketsim_client import forks
from rocketsim_client.errors import ClientClosed, SpoolFailed, SpoolUnusable
from rocketsim_client.model import MessageQueue, SpoolStatus
from rocketsim_client.sending.selection import group_hash
from rocketsim_client.sending.spool_file import LOCK, Row, SpoolFile, is_damage

T = TypeVar("T")

logger = logging.getLogger(__name__)

ROW_BYTES = 200  # the bytes that the database adds to a record, for the other columns and the index
ANY_QUEUE = ""


class Lane(NamedTuple):
    """The name of a lane: a set of messages of one topic that keep their order."""

    topic: str
    name: str  # ANY_QUEUE, `queue:BROKER NAME:QUEUE ID` or `group:HASH`

    @classmethod
    def of_queue(cls, queue: MessageQueue) -> "Lane":
        return cls(queue.topic, f"queue:{queue.broker_name}:{queue.queue_id}")

    @classmethod
    def of_group(cls, topic: str, message_group: str | bytes | int) -> "Lane":
        """Returns the lane of a message group, which is given by its name or its hash."""
        hashed = message_group if isinstance(message_group, int) else group_hash(message_group)
        return cls(topic, f"group:{hashed:08x}")

    @property
    def is_queue(self) -> bool:
        return self.name.startswith("queue:")

    def queue(self, queues: Sequence[MessageQueue]) -> MessageQueue | None:
        """Returns the queue that the lane's records have to go to, or None if the records may go to any queue.
        `queues` are the present queues of the topic."""
        kind, _, rest = self.name.partition(":")
        if kind == "queue":
            broker_name, _, queue_id = rest.rpartition(":")
            return MessageQueue(self.topic, broker_name, int(queue_id))
        return queues[int(rest, 16) % len(queues)] if kind == "group" else None


@dataclass(slots=True)
class _Backlog:
    count: int = 0
    blocked: bool = True  # no broker takes the lane's messages, as far as is known


class _Job(NamedTuple):
    work: Callable[[SpoolFile], Any]
    done: "Future[Any]"
    undo: Callable[
        [], None
    ]  # called if the job fails, even if its caller has stopped waiting, for example after Ctrl-C


class Spool:
    """Opens the directory for this process alone, until `close`.  Raises SpoolUnusable with the reason if the directory
    cannot be opened, and leaves the directory unlocked.  In a forked child the spool has no records and takes none,
    because it belongs to the parent.  Thread-safe."""

    def __init__(
        self, directory: Path, max_bytes: int, *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self.directory = directory
        self.is_parents = False
        self._max_bytes = max_bytes
        self._now_ms = now_ms
        self._replayed = 0
        self._less_safe = 0
        self._news = 0
        self._failure = ""  # the last failure of replay, or empty
        self._refusal = ""  # why the spool takes no more records, or empty
        self._is_broken = False  # True: the spool takes no records, and replay cannot read any
        self._replay_ended = False
        self._why_ended = ""  # why replay has ended, or empty if this producer has been closed
        self._closed = False
        self._jobs: list[_Job] = []
        self._make_locks()
        self._thread = threading.Thread(target=self._commit_jobs, name="rocketsim-spool", daemon=True)
        self._file = SpoolFile(directory)
        try:
            self._count()
            self._thread.start()
        except BaseException as error:
            self._file.close()
            if isinstance(error, sqlite3.Error):
                raise SpoolUnusable(f"spool {directory}: {error}") from error
            raise
        forks.watch(self)

    def _count(self) -> None:
        """Counts the records that an earlier producer has left."""
        with self._file.transaction():
            waiting = self._file.waiting()
            self._dead, dead_bytes = self._file.dead_size()
        count = sum(one.records for one in waiting)
        self._lanes = {Lane(one.topic, one.lane): _Backlog(one.records) for one in waiting}
        self._bytes = sum(one.size_bytes for one in waiting) + dead_bytes + ROW_BYTES * (count + self._dead)
        if count or self._dead:
            logger.info("spool %s: %d messages wait for brokers, %d are dead", self.directory, count, self._dead)

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # notified when a job has come, or when no more will come
        self._changed = threading.Condition(
            self._lock
        )  # notified when a lane was added or removed, or when replay has ended

    def forget_parent(self) -> None:
        self._make_locks()
        self.is_parents = True
        self._lanes = {}
        self._jobs = []

    # --- called by senders ----------------------------------------------------------------------------------------

    @property
    def has_records(self) -> bool:
        return bool(self._lanes)

    def holds(self, lane: Lane) -> bool:
        """Returns True if later messages of the lane have to go into the spool, too.  Messages that may go to any queue
        need no order.  For their lane the answer is False as soon as a broker has taken a message of the lane, or if
        the spool takes no more records."""
        backlog = self._lanes.get(lane)
        if backlog is None or lane.name != ANY_QUEUE:
            return backlog is not None
        return backlog.blocked and not self._refusal

    def put(self, lanes: Sequence[Lane], msg_ids: Sequence[str], records: Sequence[bytes]) -> None:
        """Writes records, each with its lane and message id, and returns when all are on the disk.

        Raises SpoolFailed if no record was kept, because the spool is full, the disk takes no more, or the spool's
        files are gone.  If the files were removed during this call, the error has `maybe_stored`, because this process
        still sends the records to brokers if it can.  Raises ClientClosed if the spool is closed.
        """
        now_ms = self._now_ms()
        rows = [
            (lane.topic, lane.name, msg_id, now_ms, isal_zlib.crc32(one), one)
            for lane, msg_id, one in zip(lanes, msg_ids, records, strict=True)
        ]
        size = sum(map(len, records)) + ROW_BYTES * len(rows)
        counts = Counter(lanes)
        self._look_at_files()
        with self._lock:
            if self.is_parents:
                raise SpoolFailed(
                    f"spool {self.directory} belongs to the parent process; make a new producer in this process"
                )
            if self._refusal:
                raise SpoolFailed(self._refusal)
            if self._bytes + size > self._max_bytes:
                raise SpoolFailed(self._full(size))
            done = self._enqueue(lambda file: file.insert(rows), lambda: self._take_back(size, counts))
            self._bytes += size
            self._add(counts)
        try:
            done.result()
        except Exception as error:
            raise SpoolFailed(f"spool {self.directory}: {error}") from error
        self._look_at_files()
        if self._refusal:
            raise SpoolFailed(self._refusal, maybe_stored=True)

    def _take_back(self, size: int, counts: Counter[Lane]) -> None:
        with self._lock:
            self._bytes -= size
            self._remove(counts)

    def _full(self, size: int) -> str:
        count = sum(backlog.count for backlog in self._lanes.values())
        return (
            f"spool {self.directory} is full: {self._bytes} bytes and {size} more, {self._max_bytes} at most "
            f"(spool_bytes). {count} messages wait for brokers: {self._failure or 'replay is under way'}. "
            f"{self._dead} are dead: `rocketsim spool {self.directory}`"
        )

    # --- called by replay -----------------------------------------------------------------------------------------

    def lanes(self) -> list[Lane]:
        with self._lock:
            return list(self._lanes)

    def wait_for_news(self, known: int, pause_s: float | None) -> int | None:
        """Waits until the spool's change counter differs from `known`, or for `pause_s`, and returns the counter.  The
        counter changes with each new lane and each `wake_replay`.  Returns None if replay has ended."""
        with self._lock:
            self._changed.wait_for(lambda: self._news != known or self._replay_ended, pause_s)
            return None if self._replay_ended else self._news

    def wake_replay(self) -> None:
        """Wakes the thread in `wait_for_news`."""
        with self._lock:
            self._news += 1
            self._changed.notify_all()

    def pause(self, pause_s: float) -> bool:
        """Waits before another attempt.  Returns False if replay has ended."""
        with self._lock:
            return not self._changed.wait_for(lambda: self._replay_ended, pause_s)

    def end_replay(self, why: str = "") -> None:
        """Ends replay.  `why` is a lasting failure, or empty if the producer is being closed."""
        with self._lock:
            self._end_replay(why)

    def _end_replay(self, why: str) -> None:
        if not self._replay_ended:
            self._replay_ended, self._why_ended = True, why
            self._changed.notify_all()

    @property
    def replay_has_ended(self) -> bool:
        return self._replay_ended

    def oldest(self, lanes: Sequence[Lane], max_bytes: int) -> list[Row]:
        """Returns the oldest records of some lanes of one topic, one lane after the other.  Damaged records are not
        returned, but moved to the dead records."""
        topic, names = lanes[0].topic, [lane.name for lane in lanes]
        rows = self._do(lambda file: file.oldest(topic, names, max_bytes))
        damaged = [row for row in rows if row.is_damaged]
        if damaged:
            self.bury(damaged, "damaged on this disk")
        return [row for row in rows if not row.is_damaged]

    def taken(self, rows: Sequence[Row]) -> None:
        """Notes that a broker takes messages of these rows' lanes again, so that new messages need not be spooled."""
        with self._lock:
            for lane in {Lane(row.topic, row.lane) for row in rows}:
                if lane in self._lanes:
                    self._lanes[lane].blocked = False

    def delivered(self, rows: Sequence[Row], *, is_safe: bool = True) -> None:
        """Deletes rows that a broker has stored.  If this process dies before the rows are deleted, they are sent
        again."""
        self._do(lambda file: file.delete(rows))
        self.taken(rows)
        with self._lock:
            self._bytes -= sum(len(row.record) + ROW_BYTES for row in rows)
            self._replayed += len(rows)
            self._less_safe += 0 if is_safe else len(rows)
            self._remove(Counter(Lane(row.topic, row.lane) for row in rows))

    def bury(self, rows: Sequence[Row], reason: str) -> None:
        """Moves rows to the dead records, with the reason."""
        now_ms = self._now_ms()
        self._do(lambda file: file.bury(rows, reason, now_ms))
        with self._lock:
            self._dead += len(rows)
            self._remove(Counter(Lane(row.topic, row.lane) for row in rows))
        for row in rows:
            logger.error("spool %s: message %s of topic %r is dead: %s", self.directory, row.msg_id, row.topic, reason)

    def failed(self, failure: str) -> None:
        """Notes why the last attempt to empty the spool has failed.  `failure` is empty if the last attempt has not
        failed."""
        self._failure = failure

    # --- called by the application --------------------------------------------------------------------------------

    def status(self) -> SpoolStatus:
        self._look_at_files()
        oldest_ms = self._do(lambda file: file.oldest_ms())
        with self._lock:
            return SpoolStatus(
                records=sum(backlog.count for backlog in self._lanes.values()),
                size_bytes=self._bytes,
                oldest_timestamp=oldest_ms,
                dead=self._dead,
                replayed=self._replayed,
                last_error=self._refusal or self._failure,
                less_safe=self._less_safe,
            )

    def wait_until_empty(self, timeout_s: float | None) -> bool:
        """Returns True once no message waits for a broker, or False after `timeout_s`.  Raises ClientClosed at once
        after `close`.  Raises SpoolUnusable at once if the spool has failed or belongs to the parent process."""
        with self._lock:
            self._refuse_in_a_child()
            self._changed.wait_for(lambda: not self._lanes or self._replay_ended, timeout_s)
            if not self._lanes:
                return True
            if not self._replay_ended:
                return False
            count = sum(backlog.count for backlog in self._lanes.values())
            if self._why_ended:
                raise SpoolUnusable(f"{self._why_ended}; {count} messages wait in it")
            raise ClientClosed(
                f"this producer has been closed; {count} messages wait in {self.directory} for the next producer"
            )

    def close(self) -> None:
        """Leaves the records on the disk for the next producer that opens the directory.  `end_replay` must be called
        first."""
        self._look_at_files()
        with self._lock:
            if self._closed or self.is_parents:
                return
            self._closed = True
            self._work.notify()
        self._thread.join()
        if self._refusal and not self._is_broken and self._lanes:
            count = sum(backlog.count for backlog in self._lanes.values())
            logger.error(
                "spool %s: %d messages were not sent, and the spool's files with them were deleted, moved or replaced",
                self.directory,
                count,
            )
        if not self._lanes:
            # `give_back` fails, for example, if the disk is full or the database is damaged.
            with contextlib.suppress(sqlite3.Error):
                self._file.give_back()
        self._file.close()

    # --- the thread -----------------------------------------------------------------------------------------------

    def _do(self, work: Callable[[SpoolFile], T]) -> T:
        with self._lock:
            self._refuse_in_a_child()
            done = self._enqueue(work)
        try:
            result: T = done.result()
        except sqlite3.Error as error:
            raise SpoolUnusable(f"spool {self.directory}: {error}") from error
        return result

    def _refuse_in_a_child(self) -> None:
        if self.is_parents:
            raise SpoolUnusable(f"spool {self.directory} belongs to the parent process")

    def _enqueue(self, work: Callable[[SpoolFile], Any], undo: Callable[[], None] = lambda: None) -> "Future[Any]":
        if self._closed:
            raise ClientClosed("this producer has been closed")
        if self._is_broken:
            raise SpoolUnusable(self._refusal)
        job = _Job(work, Future(), undo)
        self._jobs.append(job)
        self._work.notify()
        return job.done

    def _commit_jobs(self) -> None:
        while True:
            with self._lock:
                self._work.wait_for(lambda: self._jobs or self._closed)
                jobs, self._jobs = self._jobs, []
            if not jobs:
                return
            self._commit(jobs)

    def _commit(self, jobs: Sequence[_Job]) -> None:
        """Does all waiting jobs in one transaction.  If a job fails, each job is repeated in a transaction of its
        own."""
        try:
            with self._file.transaction():
                results = [job.work(self._file) for job in jobs]
        except Exception as error:
            if is_damage(error):
                self._refuse_from_now_on(f"{error}: it is damaged, and takes nothing more", is_broken=True)
            if len(jobs) == 1:
                jobs[0].undo()
                jobs[0].done.set_exception(error)
                return
            for job in jobs:
                self._commit([job])
            return
        for job, result in zip(jobs, results, strict=True):
            job.done.set_result(result)

    # --- lost files -----------------------------------------------------------------------------------------------

    def _look_at_files(self) -> None:
        """Refuses further records if a file of the spool is no longer at its path, because SQLite would go on writing
        to a removed file, which no other process can open.  Replay still sends the records in the files that are no
        longer at their paths.  If only the lock file is gone, replay ends, because another process may have opened the
        same database."""
        if not self.is_parents and not self._refusal and (name := self._file.displaced()):
            self._refuse_from_now_on(
                f"{name} was deleted, moved or replaced while it was open: nothing more is spooled; make another "
                "producer when the directory is as it should be",
                is_broken=name == LOCK,
            )

    def _refuse_from_now_on(self, why: str, *, is_broken: bool) -> None:
        with self._lock:
            if self._closed or self._is_broken or (self._refusal and not is_broken):
                return
            self._refusal, self._is_broken = f"spool {self.directory}: {why}", is_broken
            logger.error("%s", self._refusal)
            if is_broken:
                self._end_replay(self._refusal)

    # --- lanes ----------------------------------------------------------------------------------------------------

    def _add(self, counts: Counter[Lane]) -> None:
        self._news += not self._lanes.keys() >= counts.keys()
        for lane, count in counts.items():
            backlog = self._lanes.setdefault(lane, _Backlog())
            backlog.count += count
            backlog.blocked = True
        self._changed.notify_all()

    def _remove(self, counts: Counter[Lane]) -> None:
        for lane, count in counts.items():
            backlog = self._lanes[lane]
            backlog.count -= count
            assert backlog.count >= 0, lane
            if not backlog.count:
                del self._lanes[lane]
        self._changed.notify_all()
