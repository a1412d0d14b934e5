"""What to commit to the group, and when.  Pure: the clock is an argument, and no broker is asked.

The Spark checkpoint is the truth about what was processed.  The group's offsets follow it, so that lag tools see the
query and a new checkpoint can start from them; therefore a failed commit is reported, and ends the query only if
the options say so.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from rocketsim_client.model import MASTER_ID, CommitResult, MessageQueue
from rocketsim_source.source_cluster import Offsets

RETRY_MS = 1000  # after a failure, and while a slave holds what belongs to its master


class Conflict(NamedTuple):
    """Somebody else committed further than this query did."""

    queue: MessageQueue
    ours: int
    theirs: int


class GroupConflict(RuntimeError):
    """Another consumer commits the same group and groupConflictPolicy=fail."""


@dataclass
class CommitLedger:
    """The offsets a group should have, and what its brokers are known to have.  Next to read, and forward only."""

    reconcile_interval_ms: int
    min_interval_ms: int = 0
    wanted: Offsets = field(default_factory=dict)
    starts: Offsets = field(default_factory=dict)  # to be committed where the group has nothing yet
    vacant: set[MessageQueue] = field(default_factory=set)  # of those, where it has nothing
    broker_offsets: Offsets = field(default_factory=dict)  # what a broker last said
    ours: Offsets = field(default_factory=dict)  # what this query last committed
    on_slave: set[str] = field(default_factory=set)  # broker names whose last commit a slave took
    failures: int = 0  # in a row
    dirty: bool = False
    last_round_ms: int | None = None
    last_reconcile_ms: int | None = None

    def want(self, offsets: Offsets) -> bool:
        """Records before `offsets` are processed.  True if that is news."""
        news = {queue: offset for queue, offset in offsets.items() if self.wanted.get(queue) != offset}
        self.wanted.update(news)
        self.dirty = self.dirty or bool(news)
        return bool(news)

    def want_start(self, offsets: Offsets) -> None:
        """A new query starts here: makes the group known, where it has no offset of its own."""
        self.starts.update(offsets)
        self.dirty = True

    def forget(self, queues: set[MessageQueue]) -> None:
        """Queues that are gone."""
        for table in (self.wanted, self.starts, self.broker_offsets, self.ours):
            for queue in queues & set(table):
                del table[queue]
        self.vacant -= queues

    def queues(self) -> list[MessageQueue]:
        return sorted(self.wanted.keys() | self.starts.keys())

    def due_in_ms(self, now_ms: int) -> int | None:
        """How long until the next round; None: nothing to do until there is news."""
        if self.last_round_ms is None:
            return 0 if self.dirty else None
        waits = []
        if self.failures or self.on_slave or self.starts:
            waits.append(self.last_round_ms + max(RETRY_MS, self.min_interval_ms) - now_ms)
        elif self.dirty:
            waits.append(self.last_round_ms + self.min_interval_ms - now_ms)
        if self.wanted and self.last_reconcile_ms is not None:
            waits.append(self.last_reconcile_ms + self.reconcile_interval_ms - now_ms)
        return max(0, min(waits)) if waits else None

    def conflicts(self, fresh: Offsets) -> list[Conflict]:
        """Queues whose offset at the broker is ahead of this query's.  One that is behind was reset, and the next
        commit moves it forward again."""
        return [
            Conflict(queue, self.ours[queue], offset)
            for queue, offset in sorted(fresh.items())
            if queue in self.ours and offset > max(self.ours[queue], self.wanted.get(queue, 0))
        ]

    def saw(self, fresh: Offsets, asked: list[MessageQueue]) -> None:
        """What the brokers answered just now; a queue that is absent has no offset."""
        for queue in asked:
            if queue in fresh:
                self.broker_offsets[queue] = fresh[queue]
            else:
                self.broker_offsets.pop(queue, None)

    def saw_starts(self, fresh: Offsets, asked: list[MessageQueue]) -> None:
        """As `saw`, of the queues whose start waits: a group with an offset of its own keeps it."""
        for queue in asked:
            if queue in fresh:
                self.starts.pop(queue, None)
            else:
                self.vacant.add(queue)

    def to_send(self, now_ms: int) -> Offsets:
        """The offsets of this round; never one below what a broker has."""
        send = {queue: offset for queue, offset in self.starts.items() if queue in self.vacant}
        reconcile = self.last_reconcile_ms is None or now_ms - self.last_reconcile_ms >= self.reconcile_interval_ms
        for queue, offset in self.wanted.items():
            there = self.broker_offsets.get(queue, -1)
            if offset > there or (offset == there and (reconcile or queue.broker_name in self.on_slave)):
                send[queue] = offset
        return send

    def done(self, sent: Offsets, result: CommitResult, now_ms: int) -> None:
        """A round's outcome.  A queue that is not among the result's offsets was not taken."""
        reconciled = set(self.wanted) <= set(sent)
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
        """A round that failed before it committed anything."""
        self.failures += 1
        self.dirty = True
        self.last_round_ms = now_ms

    @property
    def target(self) -> str:
        return "slave" if self.on_slave else "master"
