"""The simulation is worth what it catches: each bug that is planted here breaks a promise within a few seeds."""

import random

import pytest
from rocketsim_proto import replication_pb2 as pb

from broker_service.broker import leadership
from broker_service.replication.follower import Follower
from broker_service.store import recovery
from broker_service.store.commit_log import CommitLog
from tests.virtual_cluster.promises import PromiseBroken
from tests.virtual_cluster.world import World, plan

SEEDS = 20  # from the first one on, which is near one that shows the bug
SYNC_MASTER_WITH_TWO_SLAVES = 161
STEPS = 150


def ack_early(plant):
    """The slave acknowledges what it has received, not what it has stored and synced."""
    plant(Follower, "ack", lambda self, _: pb.Ack(ack_offset=self._expected_offset, epoch=self._epochs.epochs.last))


def skip_the_sync(plant):
    """A flush says that it is done without having synced."""
    plant(CommitLog, "sync", lambda *_, **__: None)


def believe_the_page_cache(plant):
    """A start takes what it finds above the flushed offset for flushed, as it is."""
    plant(recovery, "_written_again", lambda log, scan, begin: iter(scan))


@pytest.mark.parametrize(
    "bug, first, broken_promises",
    [
        (ack_early, 396, "but in no slave's"),
        (skip_the_sync, 0, "is OK, but not on .* disk|is OK, but in no slave's disk|below the flushed offset"),
        (
            believe_the_page_cache,
            7,
            "the log cannot be replayed|is OK, but not on .* disk|in no slave's disk|is gone from",
        ),
    ],
)
def test_a_planted_bug_is_caught(monkeypatch, bug, first, broken_promises):
    bug(monkeypatch.setattr)
    with pytest.raises(PromiseBroken, match=broken_promises) as caught:
        for seed in range(first, first + SEEDS):
            World(seed).run(plan(seed, STEPS))
    assert f"seed {seed}, " in str(caught.value)


def promote_the_slave_that_lags(world):
    """The first slave has what was acknowledged, the second was away; the master dies, and the second is promoted."""
    master, slave, lagging = world.brokers
    world.loop.run_until(lambda: all(broker.live.replication_slave.is_following() for broker in (slave, lagging)), 20.0)
    lagging.kill()
    world.loop.run_for(1.0)
    for number in range(5):
        world.clients.send(master, random.Random(number))
    world.loop.run_for(2.0)
    master.kill()
    lagging.start()
    world.loop.run_for(30.0)
    world.clients.promote(lagging, force=False)
    world.loop.run_for(20.0)
    assert world.promises.ok == 5


def test_a_promotion_that_leaves_a_slaves_messages_behind_is_refused_or_caught(monkeypatch):
    world = World(SYNC_MASTER_WITH_TWO_SLAVES)
    world.play(promote_the_slave_that_lags)
    assert not any(broker.is_writable for broker in world.brokers)
    monkeypatch.setattr(leadership, "objections", lambda *_: [])
    with pytest.raises(PromiseBroken, match=r"becomes master .* without .*, and nobody forced the promotion"):
        World(SYNC_MASTER_WITH_TWO_SLAVES).play(promote_the_slave_that_lags)
