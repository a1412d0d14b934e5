"""CommitLedger: decides which offsets to commit to the group, and when.  Pure: the clock is an argument.

The Spark checkpoint says which records were processed, and the group's committed offsets only follow it.  Committed
offsets are for lag tools, and for the start of a query with a new checkpoint.  A failed commit loses no records, so it
is reported, and ends the query only if the options say so.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from rocketsim_client.model import MASTER_ID, CommitResult, MessageQueue
from rocketsim_source.source_cluster import Offsets

RETRY_MS = 1000  # the pause after a failure, and after a commit that a slave took because its master was down


class Conflict(NamedTuple):
    """Says that another consumer has committed a higher offset than this query."""

    queue: MessageQueue
    ours: int
    theirs: int


class GroupConflict(RuntimeError):
    """Raised if another consumer commits for the group and groupConflictPolicy=fail."""


@dataclass
class CommitLedger:
    """The offsets that a group should have, and those that its brokers are known to have.

    Every offset in the ledger is the offset of the next record to read.  This query never commits a smaller offset than
    a broker has.
    """

    reconcile_interval_ms: int
    min_interval_ms: int = 0
    wanted: Offsets = field(default_factory=dict)
    # The start offsets of a new query, which are committed for the queues in `vacant`.
    starts: Offsets = field(default_factory=dict)
    # The queues of `starts` for which the group has no committed offset.
    vacant: set[MessageQueue] = field(default_factory=set)
    broker_offsets: Offsets = field(default_factory=dict)  # the group's committed offsets, as the brokers last said
    ours: Offsets = field(default_factory=dict)  # the offsets that this query last committed
    on_slave: set[str] = field(default_factory=set)  # broker names whose last commit was taken by a slave
    failures: int = 0  # failed rounds in a row
    dirty: bool = False
    last_round_ms: int | None = None
    last_reconcile_ms: int | None = None

    def want(self, offsets: Offsets) -> bool:
        """Notes that the records before `offsets` are processed.  Returns True if one of these offsets is new."""
        news = {queue: offset for queue, offset in offsets.items() if self.wanted.get(queue) != offset}
        self.wanted.update(news)
        self.dirty = self.dirty or bool(news)
        return bool(news)

    def want_start(self, offsets: Offsets) -> None:
        """Notes that a new query starts at `offsets`.

        If the group has no committed offset for a queue, the queue's start offset is committed, so that the brokers
        know the group.
        """
        self.starts.update(offsets)
        self.dirty = True

    def forget(self, queues: set[MessageQueue]) -> None:
        """Drops all information about the given queues, which do not exist any more."""
        for table in (self.wanted, self.starts, self.broker_offsets, self.ours):
            for queue in queues & set(table):
                del table[queue]
        self.vacant -= queues

    def queues(self) -> list[MessageQueue]:
        return sorted(self.wanted.keys() | self.starts.keys())

    def due_in_ms(self, now_ms: int) -> int | None:
        """Returns the time until the next round, or None if nothing has to be committed until an offset changes."""
        if self.last_round_ms is None:
            return 0 if self.dirty else None
        waits = []
        after_a_pause = self.last_round_ms + max(RETRY_MS, self.min_interval_ms) - now_ms
        if self.failures or self.on_slave or self.starts:
            waits.append(after_a_pause)
        elif self.dirty:
            waits.append(self.last_round_ms + self.min_interval_ms - now_ms)
        if self.wanted and self.last_reconcile_ms is not None:
            # A round that could not reconcile leaves the time as it is, so the next one needs a pause, too.
            due = self.last_reconcile_ms + self.reconcile_interval_ms - now_ms
            waits.append(max(due, after_a_pause))
        return max(0, min(waits)) if waits else None

    def conflicts(self, fresh: Offsets) -> list[Conflict]:
        """Returns the queues whose offset at the broker is ahead of this query's.

        If the broker's offset is behind this query's, somebody has reset it, and the next commit moves it forward
        again.
        """
        return [
            Conflict(queue, self.ours[queue], offset)
            for queue, offset in sorted(fresh.items())
            if queue in self.ours and offset > max(self.ours[queue], self.wanted.get(queue, 0))
        ]

    def saw(self, fresh: Offsets, asked: list[MessageQueue]) -> None:
        """Notes what the brokers answered for the queues in `asked`.  If a queue of `asked` is not in `fresh`, the
        group has no offset for it.
        """
        for queue in asked:
            if queue in fresh:
                self.broker_offsets[queue] = fresh[queue]
            else:
                self.broker_offsets.pop(queue, None)

    def saw_starts(self, fresh: Offsets, asked: list[MessageQueue]) -> None:
        """Notes, like `saw`, what the brokers answered for queues in `starts`.

        If the group already has an offset for a queue, the start offset of this queue is not committed.
        """
        for queue in asked:
            if queue in fresh:
                self.starts.pop(queue, None)
            else:
                self.vacant.add(queue)

    def to_send(self, now_ms: int) -> Offsets:
        """Returns the offsets to commit in this round.  No returned offset is lower than the group's committed offset
        at the broker."""
        send = {queue: offset for queue, offset in self.starts.items() if queue in self.vacant}
        reconcile = self.last_reconcile_ms is None or now_ms - self.last_reconcile_ms >= self.reconcile_interval_ms
        for queue, offset in self.wanted.items():
            there = self.broker_offsets.get(queue, -1)
            if offset > there or (offset == there and (reconcile or queue.broker_name in self.on_slave)):
                send[queue] = offset
        return send

    def done(self, sent: Offsets, result: CommitResult, now_ms: int) -> None:
        """Notes the result of a round.

        Queues that are not in the result's offsets were refused by their brokers.
        """
        # A queue whose group is ahead of this query has nothing to reconcile.
        reconciled = all(
            queue in sent or offset < self.broker_offsets.get(queue, -1) for queue, offset in self.wanted.items()
        )
        for queue, offset in sent.items():
            if queue in result.offsets:
                self.broker_offsets[queue] = max(result.offsets[queue], offset)
                self.ours[queue] = offset
                self.starts.pop(queue, None)
                self.vacant.discard(queue)
        for broker_name, broker_id in result.broker_ids.items():
            (self.on_slave.add if broker_id != MASTER_ID else self.on_slave.discard)(broker_name)
        failed = sent.keys() - result.offsets.keys()
        self.failures = self.failures + 1 if failed else 0
        self.dirty = bool(failed)
        self.last_round_ms = now_ms
        if self.last_reconcile_ms is None or (reconciled and not failed):
            self.last_reconcile_ms = now_ms

    def failed(self, now_ms: int) -> None:
        """Notes that a round failed before it committed anything."""
        self.failures += 1
        self.dirty = True
        self.last_round_ms = now_ms

    @property
    def target(self) -> str:
        return "slave" if self.on_slave else "master"
