"""After the master of a SYNC_MASTER pair was killed during many concurrent sends, its slave alone has every
acknowledged message.
"""

import os
import random
import time

import pytest

from testbed.polling import wait_until
from tests.cluster.send_storm import SendStorm, check

pytestmark = pytest.mark.cluster

SEED = int(os.environ.get("ROCKETSIM_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)


def storm(pair_with_topic, namesrv, alone, *, kills: int, rate: float, acknowledged: int, flush: str) -> None:
    print(f"seed {SEED} (ROCKETSIM_SEED)")
    chance = random.Random(SEED)
    keys = {"slaveWaitTimeMs": 5_000, "mappedFileSizeCommitLog": 4 << 20}
    master, slave = pair_with_topic(brokerRole="SYNC_MASTER", flushDiskType=flush, **keys)
    before: dict = {}
    with SendStorm(namesrv.address, "T", rate, SEED) as sending:
        history = sending.history
        for round_number in range(kills):
            goal = acknowledged * (round_number + 1) // kills
            wait_until(lambda goal=goal: len(history.ok) >= goal, f"{goal} acknowledged; {history}", 300.0)
            # The kill has to hit any operation that is under way, so it comes at a random time.
            time.sleep(chance.random() * 0.3)
            master.kill()
            with history.lock:
                known = dict(history.ok)
            found = {place: one.body for place, one in alone(slave).messages("T").items()}
            lost = [body for body, place in known.items() if found.get(place) != body]
            assert not lost, f"seed {SEED}, kill {round_number + 1}: {len(lost)} acknowledged are not on the slave"
            assert before.items() <= found.items(), f"seed {SEED}: an offset has changed its message"
            before = found
            master.start()
        wait_until(lambda: len(history.ok) > goal, "sends are acknowledged again")
        sending.stop()
    print(f"{kills} kills: {history}")
    alone(master).wait_for_slaves()
    for broker in (master, slave):
        check(history, {place: one.body for place, one in alone(broker).messages("T").items()})
    assert len(history.ok) >= acknowledged


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_everything_acknowledged_before_a_sigkill_is_on_the_slave_alone(pair_with_topic, namesrv, alone, flush):
    storm(pair_with_topic, namesrv, alone, kills=2, rate=500, acknowledged=1_500, flush=flush)


@pytest.mark.long
def test_everything_acknowledged_before_twelve_kills_is_on_the_slave_alone(pair_with_topic, namesrv, alone):
    storm(pair_with_topic, namesrv, alone, kills=12, rate=1_200, acknowledged=100_000, flush="ASYNC_FLUSH")
