"""An offset that was answered OK never goes back, although one broker after the other is killed during commits and
queries.

ROCKETSIM_OFFSET_STORM_S=600 ROCKETSIM_SEED=7 ./run test --long tests/cluster/test_offset_storm.py
"""

import os
import random
import time

import pytest

from rocketsim_client import MessageQueue
from testbed.polling import wait_until
from tests.cluster.offset_storm import OffsetHistory, OffsetStorm

pytestmark = pytest.mark.cluster

SEED = int(os.environ.get("ROCKETSIM_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
STORM_S = float(os.environ.get("ROCKETSIM_OFFSET_STORM_S", "60"))
GROUPS = 3
MESSAGES = 50_000


def storm(processes, namesrv, alone, seed: int, kills: int, storm_s: float) -> OffsetHistory:
    """Kills brokers at least `kills` times, for at least `storm_s` seconds.  The first kill hits the master while its
    slave hangs.
    """
    chance = random.Random(seed)
    keys = {"slaveWaitTimeMs": 5_000, "haHousekeepingInterval": 3_000, "haSendHeartbeatInterval": 500}
    master, slave = processes.start_pair("broker-a", namesrv, brokerRole="SYNC_MASTER", **keys)
    alone(master).update_topic("T", queues=2)
    for queue_id in range(2):
        for _ in range(MESSAGES // 5_000):
            alone(master).put("T", *[b""] * 5_000, queue_id=queue_id, timeout_s=60.0)
    alone(master).wait_for_slaves()
    alone(slave).wait_for_topic("T")
    queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(2)]
    with OffsetStorm(namesrv.address, queues, GROUPS, MESSAGES) as storming:
        history = storming.history
        until = time.monotonic() + storm_s
        killed = 0
        while killed < kills or time.monotonic() < until:
            ok, reads = history.ok, history.reads
            wait_until(
                lambda ok=ok, reads=reads: history.ok > ok + 50 and history.reads > reads + 50,
                f"commits are OK again (seed {seed}); {history}",
                60.0,
            )
            assert history.faults == [], f"seed {seed}"
            victim = chance.choice([master, master, slave]) if killed else master
            hangs = victim is master and (not killed or chance.random() < 0.5)
            killed += 1
            if hangs:  # the slave has not read the last bytes that were sent to it
                slave.freeze()
                answers = history.answers
                wait_until(
                    lambda answers=answers: history.answers > answers + GROUPS, f"answers go on; {history}", 60.0
                )
            victim.kill()
            if hangs:
                slave.thaw()
            reads = history.reads
            wait_until(lambda reads=reads: history.reads > reads + 20, f"the other one answers; {history}", 60.0)
            victim.start()
            if chance.random() < 0.3:  # kills the broker again at once, before it has caught up
                victim.kill()
                victim.start()
        history = storming.stop()
    print(f"seed {seed}: {history}")
    assert history.faults == [], f"seed {seed}"
    for broker in (alone(master), alone(slave)):
        for (group, queue), floor in history.floor.items():
            assert broker.committed(group, "T", queue.queue_id) >= floor, f"{broker.process.name}, seed {seed}"
    return history


def test_an_offset_answered_ok_is_never_read_lower_whoever_dies(processes, namesrv, alone):
    history = storm(processes, namesrv, alone, SEED, kills=2, storm_s=0.0)
    assert history.reads_of_slaves > 0


@pytest.mark.long
@pytest.mark.parametrize("number", range(20))
def test_an_offset_answered_ok_is_never_read_lower_in_twenty_storms(processes, namesrv, alone, number):
    storm(processes, namesrv, alone, SEED + number, kills=4, storm_s=STORM_S)
