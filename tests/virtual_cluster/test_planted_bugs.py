"""The simulation is worth what it catches: each bug that is planted here breaks a promise within a few seeds."""

import pytest
from rocketsim_proto import replication_pb2 as pb

from broker_service.replication.follower import Follower
from broker_service.store.commit_log import CommitLog
from tests.virtual_cluster.promises import PromiseBroken
from tests.virtual_cluster.world import World, plan

SEEDS = range(20)
STEPS = 150


def ack_early(plant):
    """The slave acknowledges what it has received, not what it has stored and synced."""
    plant(Follower, "ack", lambda self, _: pb.Ack(ack_offset=self._expected_offset, epoch=self._epochs.epochs.last))


def skip_the_sync(plant):
    """A flush says that it is done without having synced."""
    plant(CommitLog, "sync", lambda *_, **__: None)


@pytest.mark.parametrize(
    "bug, broken_promises",
    [
        (ack_early, "but in no slave's"),
        (skip_the_sync, "is OK, but not on .* disk|is OK, but in no slave's disk|below the flushed offset"),
    ],
)
def test_a_planted_bug_is_caught(monkeypatch, bug, broken_promises):
    bug(monkeypatch.setattr)
    with pytest.raises(PromiseBroken, match=broken_promises) as caught:
        for seed in SEEDS:
            World(seed).run(plan(seed, STEPS))
    assert f"seed {seed}, " in str(caught.value)
