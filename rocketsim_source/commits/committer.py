"""Commits the group's offsets in a thread.  Only the newest offsets are committed, so that a slow or dead broker never
delays a batch.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketsim_client.model import CommitResult, MessageQueue
from rocketsim_source.commits.ledger import CommitLedger, GroupConflict
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.planning.offsets import as_json
from rocketsim_source.source_cluster import Offsets, SourceCluster

logger = logging.getLogger(__name__)


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Committer:
    """Commits offsets in a thread, which starts when the first offset has to be committed.

    The committer's locks are reentrant, because a signal handler may run in the very thread that holds them.
    """

    def __init__(self, cluster: SourceCluster, options: SourceOptions, clock: Callable[[], int] = now_ms) -> None:
        assert options.group is not None
        self._cluster = cluster
        self._group = options.group
        self._options = options
        self._clock = clock
        self._ledger = CommitLedger(options.commit_reconcile_interval_ms, options.commit_min_interval_ms)
        self._changed = threading.Condition(threading.RLock())
        self._round = threading.RLock()  # held during a round, so that only one runs at a time
        self._rounds_of: int | None = None  # the id of the thread that runs the current round
        self._thread: threading.Thread | None = None
        self._closed = False
        self._flush_now = False
        self._fatal: Exception | None = None
        self._result = CommitResult()  # the result of the last commit
        self._warned: set[MessageQueue] = set()

    def start_at(self, offsets: Offsets) -> None:
        """Notes the offsets at which a new query starts.  A start offset is committed if its queue has no committed
        offset."""
        with self._changed:
            self._ledger.want_start(offsets)
        self._notify()

    def processed(self, offsets: Offsets) -> None:
        """Notes that all records before `offsets` are processed.

        Raises an error if a commit failed and the options say that this ends the query.
        """
        with self._changed:
            news = self._ledger.want(offsets)
        if news:
            self._notify()
        self.check()

    def forget(self, queues: set[MessageQueue]) -> None:
        """Drops all information about the given queues, which do not exist any more."""
        with self._changed:
            self._ledger.forget(queues)

    def check(self) -> None:
        """Raises the error that has ended the query's commits, if there is one."""
        if self._fatal is not None:
            raise self._fatal

    def flush(self, timeout_s: float) -> bool:
        """Commits the wanted offsets now, without the minimum interval, and waits for a commit that has begun.

        Returns False if the commits took longer than the timeout.
        """
        deadline = time.monotonic() + timeout_s
        if self._rounds_of == threading.get_ident():
            return self._attempt_elsewhere(timeout_s)
        with self._changed:
            self._flush_now = True
            self._start_thread()
            self._changed.notify_all()
            while self._is_pending() and time.monotonic() < deadline:
                self._changed.wait(max(0.0, deadline - time.monotonic()))
            return not self._is_pending()

    def _attempt_elsewhere(self, timeout_s: float) -> bool:
        """Repeats the current round in another thread, for a signal handler that has interrupted the thread of that
        round.

        The interrupted thread does not continue, and may hold locks of the client that it will never release.  The
        signal handler therefore waits, until the timeout, for another thread that makes the attempt.
        """
        outcome: list[Exception | None] = []

        def attempt() -> None:
            outcome.append(self._attempt())
            with self._changed:
                self._changed.notify_all()

        threading.Thread(target=attempt, name="rocketsim-last-commit", daemon=True).start()
        with self._changed:  # wait_for() releases this lock, even if the signal interrupted code that held it
            self._changed.wait_for(lambda: bool(outcome), timeout_s)
        return outcome == [None]

    def _is_pending(self) -> bool:
        return self._ledger.dirty or self._rounds_of is not None

    def close(self, timeout_s: float) -> None:
        if self._is_pending():
            self.flush(timeout_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def status(self) -> dict[str, Any]:
        """Returns the state of the commits for the query's progress."""
        with self._changed:
            ledger = self._ledger
            behind = sum(
                max(0, offset - ledger.broker_offsets.get(queue, 0)) for queue, offset in ledger.wanted.items()
            )
            return {
                "behindCheckpoint": behind,
                "committed": as_json(ledger.broker_offsets),
                "failures": ledger.failures,
                "name": self._group,
                "target": ledger.target,
            }

    def _notify(self) -> None:
        if not self._options.commit_async:
            self._run_round()
        with self._changed:
            self._start_thread()
            self._changed.notify_all()

    def _start_thread(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="rocketsim-committer", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed:
                    wait_ms = self._ledger.due_in_ms(self._clock())
                    if self._flush_now and self._ledger.dirty:
                        wait_ms = 0
                    if wait_ms == 0:
                        break
                    self._changed.wait(None if wait_ms is None else wait_ms / 1000)
                if self._closed:
                    return
                self._flush_now = False
            self._run_round()

    def _run_round(self) -> None:
        with self._round:
            self._rounds_of = threading.get_ident()
            try:
                self._attempts()
            finally:
                with self._changed:
                    self._rounds_of = None
                    self._changed.notify_all()

    def _attempts(self) -> None:
        from rocketsim_client.errors import CommitFailed, RocketSimError

        for _ in range(self._options.commit_retries + 1):
            failure = self._attempt()
            if failure is None:
                return
            unexpected = None if isinstance(failure, RocketSimError) else failure
            logger.warning("committing the offsets of group %s failed: %s", self._group, failure, exc_info=unexpected)
        most = self._options.commit_failures_max
        if 0 < most <= self._ledger.failures:
            self._fatal = CommitFailed(
                f"offsets of group {self._group} could not be committed: {failure} (commitFailurePolicy=warn lets the "
                "query go on)",
                self._result,
            )

    def _attempt(self) -> Exception | None:
        """Makes one attempt to commit, and returns its error, if any, so that the policy can decide what the error
        means.

        An error that `_attempt` raised would end the committing thread, and with it all commits of this query, without
        a message.
        """
        try:
            return self._commit()
        except Exception as error:
            with self._changed:
                self._ledger.failed(self._clock())
            return error

    def _commit(self) -> Exception | None:
        options = self._options
        timeout_s = options.commit_timeout_ms / 1000
        watches = options.group_conflict_policy != "ignore"
        with self._changed:
            starts = self._ledger.starts.keys() - self._ledger.vacant
            asked = self._ledger.queues() if watches else sorted(starts)
        if asked:
            found = self._cluster.committed(self._group, asked)
            if watches:
                self._look_for_conflicts(found.offsets)
            said = [queue for queue in asked if queue not in found.unreachable]
            with self._changed:
                if watches:
                    self._ledger.saw(found.offsets, said)
                self._ledger.saw_starts(found.offsets, [queue for queue in said if queue in starts])
        with self._changed:
            self._ledger.dirty = False  # offsets that are wanted from now on belong to the next round
            send = self._ledger.to_send(self._clock())
        self._result = result = self._cluster.commit(self._group, send, options.commit_target, timeout_s)
        with self._changed:
            newer = self._ledger.dirty
            self._ledger.done(send, result, self._clock())
            self._ledger.dirty = self._ledger.dirty or newer
        return next(iter(result.failures.values()), None)

    def _look_for_conflicts(self, fresh: Offsets) -> None:
        with self._changed:
            found = self._ledger.conflicts(fresh)
        if found and self._options.group_conflict_policy == "fail":
            self._fatal = GroupConflict(
                f"somebody else commits group {self._group}: {found[0].queue} is committed at {found[0].theirs}, "
                f"this query is at {found[0].ours}. Give each query a group of its own, or set "
                "groupConflictPolicy=ignore."
            )
        for conflict in found:
            if conflict.queue not in self._warned:
                self._warned.add(conflict.queue)
                logger.warning("somebody else commits group %s too: %s", self._group, conflict)
