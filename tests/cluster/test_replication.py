"""A slave's log equals its master's byte for byte, wherever the slave starts."""

import random

import pytest

from testbed.polling import wait_until
from testbed.processes import ServerProcess

pytestmark = pytest.mark.cluster


def log_bytes(broker: ServerProcess, end: int) -> bytes:
    """Returns the log's files up to `end`, back to back."""
    files = sorted((broker.store / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files)[:end]


def queue_entries(broker: ServerProcess) -> dict[str, bytes]:
    """Returns consume queues by their path, without the zeros of preallocated files."""
    root = broker.store / "consumequeue"
    queues: dict[str, bytes] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = str(path.parent.relative_to(root))
        queues[name] = queues.get(name, b"") + path.read_bytes().rstrip(b"\0")
    return queues


def fill(broker, topics: int, frames: int, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(frames):
        bodies = [chance.randbytes(chance.randrange(1, 4000)) for _ in range(chance.randrange(1, 40))]
        broker.put(f"T{number % topics}", *bodies, queue_id=number % 4, TAGS="TagA", KEYS=f"k{number}")


def assert_identical(master: ServerProcess, slave: ServerProcess, alone) -> None:
    end = alone(master).ha_status().commit_log_max_offset
    wait_until(lambda: alone(slave).ha_status().commit_log_max_offset == end, f"the slave is at {end}")
    assert log_bytes(slave, end) == log_bytes(master, end)
    assert queue_entries(slave) == queue_entries(master)


def test_a_new_slave_gets_the_whole_log_byte_for_byte(processes, namesrv, alone):
    keys = {"mappedFileSizeCommitLog": 256 << 10}
    master = processes.start_broker("broker-a", 0, namesrv, **keys)
    for topic in ("T0", "T1"):
        alone(master).update_topic(topic)
    fill(alone(master), topics=2, frames=60, seed=1)
    assert len(list((master.store / "commitlog").iterdir())) > 5, "more than the last file, which is all RocketMQ sends"
    slave = processes.start_broker("broker-a", 1, namesrv, **keys)
    alone(master).wait_for_slaves()
    assert_identical(master, slave, alone)
    assert alone(slave).messages("T0") == alone(master).messages("T0")


def test_slaves_that_were_killed_and_missed_a_while_go_on_at_their_end(processes, namesrv, alone):
    keys = {"mappedFileSizeCommitLog": 256 << 10}
    master = processes.start_broker("broker-a", 0, namesrv, **keys)
    for topic in ("T0", "T1"):
        alone(master).update_topic(topic)
    slaves = [processes.start_broker("broker-a", broker_id, namesrv, **keys) for broker_id in (1, 2)]
    alone(master).wait_for_slaves(2)
    for round_number, victim in enumerate([slaves[0], slaves[1], slaves[0]]):
        fill(alone(master), topics=2, frames=10, seed=round_number)
        victim.kill()
        fill(alone(master), topics=2, frames=10, seed=100 + round_number)
        victim.start()
    alone(master).wait_for_slaves(2)
    for slave in slaves:
        assert_identical(master, slave, alone)


def test_a_master_killed_again_and_again_keeps_its_log_and_its_slave(processes, namesrv, alone):
    master, slave = processes.start_pair("broker-a", namesrv, brokerRole="SYNC_MASTER")
    for topic in ("T0", "T1"):
        alone(master).update_topic(topic)
    before: dict = {}
    for round_number in range(3):
        alone(master).wait_for_slaves()
        fill(alone(master), topics=2, frames=10, seed=round_number)
        master.kill()
        master.start()
        now = alone(master).messages("T0")
        assert before.items() <= now.items(), "an offset has one value, for ever"
        before = now
    alone(master).wait_for_slaves()
    assert_identical(master, slave, alone)


def test_topics_and_groups_follow_to_the_slave(processes, namesrv, alone):
    master, slave = processes.start_pair("broker-a", namesrv)
    alone(master).wait_for_slaves()
    alone(master).update_topic("T", queues=3)
    wait_until(lambda: set(alone(slave).bounds("T")) == {0, 1, 2}, "the slave knows the topic")
