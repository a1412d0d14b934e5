"""The simulation is worth what it catches: each bug that is planted here breaks a promise within a few seeds."""

import pytest
from rocketsim_proto import replication_pb2 as pb

from broker_service.broker.consumer_offsets import ConsumerOffsetTable
from broker_service.replication import catch_up
from broker_service.replication.catch_up import LogState
from broker_service.replication.epochs import EpochList
from broker_service.replication.follower import Follower
from broker_service.replication.handshake import epoch_list
from broker_service.store.commit_log import CommitLog
from tests.simulation.test_simulation import STEPS
from tests.simulation.world import InvariantBroken, World

SEEDS = range(60)


def ack_early(plant):
    """The slave acknowledges what it has received, not what it has stored and synced."""
    plant(Follower, "ack", lambda self, _: pb.Ack(ack_offset=self._expected_offset, epoch=self._epochs.epochs.last))


def skip_the_sync(plant):
    """A flush says that it is done without having synced."""
    plant(CommitLog, "sync", lambda *_, **__: None)


def merge_offsets_backwards(plant):
    """What the other broker has replaces what is here, as in RocketMQ."""

    def merge(self, changes):
        for group, topic, entries in changes:
            self._set(group, topic, dict(entries))
        return 0

    plant(ConsumerOffsetTable, "merge", merge)


def cut_without_zero_fill(plant):
    """Records behind the new end stay in the preallocated file, and come alive at the next recovery."""
    whole_cut = CommitLog.cut

    def cut(self, offset, **more):
        self.zero = lambda begin, end, **_: begin
        try:
            return whole_cut(self, offset, **more)
        finally:
            del self.zero

    plant(CommitLog, "cut", cut)


def accept_a_stale_epoch(plant):
    """Neither side minds that the slave knows of a newer epoch than its master."""
    honest_plan = catch_up.plan

    def plan(master, slave, *, takes_writes):
        known = tuple(epoch for epoch in slave.epochs.epochs if epoch.epoch <= master.epochs.last)
        forgetful = LogState(EpochList(known), slave.min_offset, slave.end_offset)
        return honest_plan(master, forgetful, takes_writes=takes_writes)

    plant(catch_up, "plan", plan)
    plant(Follower, "_checked_epochs", lambda self, reply: epoch_list(reply.epochs))


@pytest.mark.parametrize(
    "bug, broken_promises",
    [
        (ack_early, "but in no slave's"),
        (skip_the_sync, "is OK, but not on the master's disk|is OK, but in no slave's disk|below the flushed offset"),
        (merge_offsets_backwards, "went back from"),
        (cut_without_zero_fill, "differ below|is no prefix|is ahead of|do not come into step"),
        (accept_a_stale_epoch, "of an older epoch|went back from epoch"),
    ],
)
def test_a_planted_bug_is_caught(monkeypatch, bug, broken_promises):
    bug(monkeypatch.setattr)
    with pytest.raises(InvariantBroken, match=broken_promises) as caught:
        for seed in SEEDS:
            World(seed).run(STEPS)
    assert f"seed {seed}, " in str(caught.value)
