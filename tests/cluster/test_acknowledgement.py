"""What an acknowledgement means in each of the four modes, and what happens to it when the slave stops answering."""

import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import count

import pytest

from rocketsim_client.model import SendStatus
from testbed.polling import wait_until
from tests.support import stalling_disk

pytestmark = pytest.mark.cluster

SLAVE_TIMEOUT_S = 2.0


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_an_ok_means_what_the_mode_says(pair_with_topic, alone, role, flush):
    master, slave = pair_with_topic(brokerRole=role, flushDiskType=flush)
    for number in range(20):
        assert alone(master).put("T", b"%d" % number).status == SendStatus.SEND_OK
        if role == "SYNC_MASTER":
            end = alone(master).ha_status().commit_log_max_offset
            assert alone(slave).ha_status().commit_log_max_offset == end, "acknowledged, but not on the slave"
            last = [b"%d" % number]  # the slave shows a message only after it has acknowledged it
            wait_until(lambda last=last: alone(slave).bodies("T")[-1:] == last, "the slave shows it")
        if flush == "SYNC_FLUSH":
            status = alone(master).ha_status()
            assert status.master_flush_offset == status.commit_log_max_offset, "acknowledged, but not flushed"
    wait_until(lambda: len(alone(slave).bodies("T")) == 20, "the slave has everything")


def test_an_asynchronous_master_does_not_wait_for_a_frozen_slave(pair_with_topic, alone):
    master, slave = pair_with_topic(brokerRole="ASYNC_MASTER")
    slave.freeze()
    # a put that waited for the slave in vain would not get SEND_OK
    assert alone(master).put("T", b"now").status == SendStatus.SEND_OK


def test_a_frozen_slave_is_named_within_its_bound_and_ok_returns_with_it(processes, namesrv, alone):
    keys = {
        "slaveTimeout": int(SLAVE_TIMEOUT_S * 1000),
        "haHousekeepingInterval": 5_000,
        "haSendHeartbeatInterval": 500,
    }
    master, slave = processes.start_pair("broker-a", namesrv, brokerRole="SYNC_MASTER", **keys)
    broker = alone(master)
    broker.update_topic("T")
    broker.wait_for_slaves()
    assert broker.put("T", b"before").status == SendStatus.SEND_OK

    slave.freeze()
    # The puts wait at the same time: one after the other, the last one would come after haHousekeepingInterval, when
    # the slave does not count any more.
    started = time.monotonic()
    with ThreadPoolExecutor(11) as threads:
        waiting = [threads.submit(broker.put, "T", b"w%d" % number) for number in range(10)]
        unhurried = threads.submit(broker.put, "T", b"does not wait", WAIT="false")
        first = next(as_completed([*waiting, unhurried]))
        assert first is unhurried, "a put that does not wait was held up by those that do"
        assert unhurried.result().status == SendStatus.SEND_OK
        assert {future.result().status for future in waiting} == {SendStatus.FLUSH_SLAVE_TIMEOUT}
    assert time.monotonic() - started > SLAVE_TIMEOUT_S * 0.8

    # A slave that is silent for haHousekeepingInterval does not count: nobody waits for it any more.
    numbers = count()
    wait_until(
        lambda: broker.put("T", b"n%d" % next(numbers)).status == SendStatus.SLAVE_NOT_AVAILABLE,
        "the slave is given up",
    )

    slave.thaw()
    wait_until(lambda: broker.put("T", b"n%d" % next(numbers)).status == SendStatus.SEND_OK, "OK is back")
    assert alone(slave).bodies("T") == broker.bodies("T"), "what was written meanwhile is there too"


@pytest.mark.parametrize(
    "sync_flush_timeout_ms", [500, 60_000], ids=["syncFlushTimeout", "before the caller's own deadline"]
)
def test_a_disk_that_stalls_is_named_within_its_bound_and_ok_returns_with_it(
    processes, namesrv, alone, sync_flush_timeout_ms
):
    master = processes.broker(
        "broker-a", 0, namesrv, flushDiskType="SYNC_FLUSH", syncFlushTimeout=sync_flush_timeout_ms
    )
    master.module = stalling_disk.__name__
    master.start()
    broker = alone(master)
    broker.update_topic("T")
    numbers = count()
    wait_until(lambda: broker.put("T", b"n%d" % next(numbers)).status == SendStatus.SEND_OK, "OK")
    before = next(numbers)

    gate = master.config_path.with_name(stalling_disk.GATE)
    gate.touch()
    # Side by side again.
    started = time.monotonic()
    with ThreadPoolExecutor(6) as threads:
        waiting = [threads.submit(broker.put, "T", b"w%d" % number) for number in range(5)]
        assert threads.submit(broker.put, "T", b"does not wait", WAIT="false").result().status == SendStatus.SEND_OK
        assert {future.result().status for future in waiting} == {SendStatus.FLUSH_DISK_TIMEOUT}
    assert time.monotonic() - started > 0.4
    assert len(broker.bodies("T")) == before + 6, "stored and readable meanwhile"

    gate.unlink()
    after = count()
    wait_until(lambda: broker.put("T", b"a%d" % next(after)).status == SendStatus.SEND_OK, "OK is back")
    assert len(broker.bodies("T")) == before + 6 + next(after)
    assert master.stop() == 0


def test_without_any_slave_a_synchronous_master_says_so_at_once(processes, namesrv, alone):
    master = processes.start_broker("broker-a", 0, namesrv, brokerRole="SYNC_MASTER")
    alone(master).update_topic("T")
    assert alone(master).put("T", b"alone").status == SendStatus.SLAVE_NOT_AVAILABLE
    assert alone(master).bodies("T") == [b"alone"], "stored all the same, and visible"
