"""Minutes of sends, reads and commits, while a random sequence of faults kills, stops and freezes processes.

ROCKETSIM_SOAK_S=3600 ROCKETSIM_SEED=7 ./run test --long tests/cluster/test_soak.py
"""

import os
import random
import time

import psutil
import pytest

from testbed.polling import wait_until
from tests.cluster.reader import Reader
from tests.cluster.send_storm import SendStorm, check

pytestmark = [pytest.mark.cluster, pytest.mark.long]

SEED = int(os.environ.get("ROCKETSIM_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
SOAK_S = float(os.environ.get("ROCKETSIM_SOAK_S", "180"))
GROUP = "soak"
MAX_RSS_BYTES = 800 << 20


def test_nothing_is_lost_changed_or_taken_back_whatever_dies(pair_with_topic, namesrv, alone):
    print(f"seed {SEED} (ROCKETSIM_SEED), {SOAK_S:.0f} s (ROCKETSIM_SOAK_S)")
    chance = random.Random(SEED)
    keys = {"haHousekeepingInterval": 3_000, "haSendHeartbeatInterval": 500, "mappedFileSizeCommitLog": 2 << 20}
    master, slave = pair_with_topic(brokerRole="SYNC_MASTER", **keys)

    def kill(server) -> None:
        server.kill()
        time.sleep(chance.random())
        server.start()

    def stop(server) -> None:
        assert server.stop() == 0
        server.start()

    def freeze(server) -> None:
        server.freeze()
        time.sleep(chance.random() * 5)
        server.thaw()

    events: list[str] = []
    with SendStorm(namesrv.address, "T", 500, SEED) as sending, Reader(namesrv.address, GROUP) as reader:
        until = time.monotonic() + SOAK_S
        while time.monotonic() < until:
            act, victim = chance.choice([kill, kill, stop, freeze]), chance.choice([master, master, slave, namesrv])
            if victim is namesrv and act is freeze:
                # A frozen name server holds up its clients, and only a second name server would help against that.
                continue
            events.append(f"{act.__name__} {victim.name}")
            act(victim)
            acknowledged = len(sending.history.ok)
            wait_until(
                lambda goal=acknowledged + 100: len(sending.history.ok) > goal,
                f"sends go on after {events[-3:]} (seed {SEED}); {sending.history}",
                60.0,
            )
            time.sleep(chance.random())
        history = sending.stop()
        alone(master).wait_for_slaves()
        end = {queue: bounds[1] for queue, bounds in alone(master).bounds("T").items()}
        wait_until(lambda: len(reader.seen) == sum(end.values()), "the reader is at the end", 60.0)
        for server in (master, slave):
            rss = psutil.Process(server.pid).memory_info().rss
            assert rss < MAX_RSS_BYTES, f"{server.name} holds {rss >> 20} MiB"
    print(f"{len(events)} events ({', '.join(sorted(set(events)))}): {history}")
    assert reader.faults == reader.taken_back == []
    for broker in (alone(master), alone(slave)):
        found = {place: one.body for place, one in broker.messages("T").items()}
        check(history, found)
        assert reader.seen == found, f"what was read is not what {broker.process.name} holds (seed {SEED})"
        wait_until(
            lambda broker=broker: {queue: broker.committed(GROUP, "T", queue) for queue in end} == end,
            f"everything is committed on {broker.process.name}",
        )
