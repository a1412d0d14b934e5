"""The answers to senders and readers agree with both brokers' stores at the end, in all four modes, after the master
was killed (SIGKILL), its slave was promoted, and the former master has followed it.

The mode alone decides what may be missing: an ASYNC_MASTER's acknowledgement says nothing about the slave, so only
messages that the slave lacked at its promotion may be lost.
"""

import os
import random
import time

import pytest

from testbed.polling import wait_until
from tests.cluster.old_stores import promote
from tests.cluster.reader import Reader
from tests.cluster.send_storm import SendStorm, check

pytestmark = pytest.mark.cluster

SEED = int(os.environ.get("ROCKETSIM_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
MODES = [(role, flush) for role in ("ASYNC_MASTER", "SYNC_MASTER") for flush in ("ASYNC_FLUSH", "SYNC_FLUSH")]
# The reader must keep up with the senders, although its commits wait for the slave.
LARGE_PULLS = {
    "maxTransferCountOnMessageInMemory": 2_000,
    "maxTransferBytesOnMessageInMemory": 2 << 20,
    "maxTransferCountOnMessageInDisk": 2_000,
    "maxTransferBytesOnMessageInDisk": 2 << 20,
}


def history(
    pair_with_topic, namesrv, alone, role: str, flush: str, *, rounds: int, rate: float, acknowledged: int
) -> None:
    print(f"seed {SEED} (ROCKETSIM_SEED)")
    chance = random.Random(SEED)
    keys = {"mappedFileSizeCommitLog": 4 << 20, "slaveWaitTimeMs": 5_000, "flushDiskType": flush} | LARGE_PULLS
    master, slave = pair_with_topic(brokerRole=role, **keys)
    excused: set[bytes] = set()
    ends_of_slaves: list[dict[int, int]] = []
    with SendStorm(namesrv.address, "T", rate, SEED) as sending, Reader(namesrv.address, "readers") as reader:
        told = sending.history
        for number in range(rounds):
            # A master without a slave in sync shows its whole log to consumers in any mode, so the test waits for the
            # slave.
            wait_until(
                lambda master=master: any(one.in_sync for one in alone(master).ha_status().slaves), "a slave in sync"
            )
            goal = max(acknowledged * (number + 1) // (rounds + 1), len(told.ok) + 200)
            wait_until(lambda goal=goal: len(told.ok) >= goal, f"{goal} acknowledged; {told}", 600.0)
            # The kill has to hit any operation that is under way, so it comes at a random time.
            time.sleep(chance.random() * 0.3)
            master.kill()
            bounds = alone(slave).bounds("T")  # before the promoted slave takes writes of its own
            ends_of_slaves.append({queue: end for queue, (_, end) in bounds.items()})
            promote(namesrv, slave, role)
            if role == "ASYNC_MASTER":
                excused |= behind(told, reader, bounds)
            master, slave = slave, master
            (slave.store / "rocketsim" / "role.json").unlink(missing_ok=True)  # of its own promotion
            slave.start(brokerId=1, brokerRole="SLAVE")
        wait_until(lambda: len(told.ok) - len(excused) >= acknowledged, f"{acknowledged} acknowledged; {told}", 600.0)
        sending.stop()
        alone(master).wait_for_slaves()
        ends = {queue: end for queue, (_, end) in alone(master).bounds("T").items()}
        for broker in (alone(master), alone(slave)):
            wait_until(
                lambda broker=broker: {queue: broker.committed("readers", "T", queue) for queue in ends} == ends,
                f"{broker.process.name} has the reader at the end, {ends}",
                300.0,
            )
    print(f"{role} {flush}, {rounds} promotions: {told}; {len(excused)} excused, {len(reader.taken_back)} went back")
    assert reader.faults == []
    for broker in (alone(master), alone(slave)):
        found = {place: one.body for place, one in broker.messages("T").items()}
        check(told, found, excused)
        unread = {place for place, body in reader.seen.items() if found.get(place) != body and body not in excused}
        assert not unread, (
            f"seed {SEED}: {len(unread)} messages were read and are no longer there: {sorted(unread)[:5]}"
        )
    if role == "SYNC_MASTER":
        assert reader.taken_back == []
        assert found == reader.seen
        return
    # A promotion may lower a queue's end, but not below the slave's end, and may take back a commit.  Nothing else
    # does.
    for queue, end in reader.ended_earlier:
        assert any(ends[queue] <= end for ends in ends_of_slaves), f"seed {SEED}: {queue} went back to {end}"
    assert len(reader.taken_back) <= 2 * rounds * len(ends), f"seed {SEED}: {reader.taken_back}"


def behind(told, reader, bounds) -> set[bytes]:
    """Returns the bodies that were acknowledged or read at or beyond the ends of the slave's queues at its
    promotion.
    """
    with told.lock:
        known = [*told.ok.items(), *((body, place) for place, body in list(reader.seen.items()))]
    return {body for body, (queue, offset) in known if offset >= bounds[queue][1]}


@pytest.mark.parametrize(("role", "flush"), MODES)
def test_what_was_acknowledged_read_or_committed_stays_so_through_a_promotion(
    pair_with_topic, namesrv, alone, role, flush
):
    history(pair_with_topic, namesrv, alone, role, flush, rounds=1, rate=500, acknowledged=1_000)


@pytest.mark.long
@pytest.mark.parametrize(("role", "flush"), MODES)
def test_what_was_acknowledged_stays_so_through_six_promotions_and_a_hundred_thousand_messages(
    pair_with_topic, namesrv, alone, role, flush
):
    history(pair_with_topic, namesrv, alone, role, flush, rounds=6, rate=1_200, acknowledged=100_000)
