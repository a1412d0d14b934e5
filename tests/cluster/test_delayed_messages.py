"""The master delivers each delayed message once, also if it is killed before or between deliveries."""

import time

import pytest

from rocketsim_client.errors import RocketSimError
from testbed.polling import wait_until

pytestmark = pytest.mark.cluster

LEVELS = "1s 2s 3s 1d"


def test_delayed_messages_arrive_once_each_over_a_restart(processes, namesrv, alone):
    master = processes.start_broker("broker-a", 0, namesrv, messageDelayLevel=LEVELS)
    alone(master).update_topic("T")
    sent = []
    for level in (1, 2, 3):
        for number in range(5):
            sent.append(b"level %d number %d" % (level, number))
            alone(master).put("T", sent[-1], queue_id=number % 4, DELAY=str(level))
    # level 4 is a day, so this message must not be delivered in this test
    alone(master).put("T", b"tomorrow", DELAY="4")
    wait_until(lambda: len(alone(master).bodies("T")) >= 5, "the first level is delivered")
    master.kill()
    master.start()
    wait_until(lambda: len(alone(master).bodies("T")) >= len(sent), "everything is delivered")
    assert sorted(alone(master).bodies("T")) == sorted(sent), "nothing twice"
    master.kill()
    master.start()
    alone(master).update_topic("T")  # waits until the master takes writes
    alone(master).put("T", b"last", queue_id=0)
    assert sorted(alone(master).bodies("T")) == sorted([*sent, b"last"]), "and nothing again"


def test_the_slave_has_deliveries_too_but_makes_none(pair_with_topic, alone):
    # The second level is long enough for the master to be killed before it delivers.
    master, slave = pair_with_topic(messageDelayLevel="1s 10s")
    alone(master).put("T", b"early", DELAY="1")
    wait_until(lambda: alone(slave).bodies("T") == [b"early"], "the first delivery reaches the slave")
    due_s = time.monotonic() + 10
    alone(master).put("T", b"late", DELAY="2")
    alone(master).wait_for_slaves()
    master.kill()
    wait_until(lambda: time.monotonic() > due_s + 1, "the second message is due")
    assert alone(slave).bodies("T") == [b"early"]
    master.start()
    wait_until(lambda: alone(slave).bodies("T") == [b"early", b"late"], "the master goes on when it is back")


def test_delayed_messages_are_refused_in_a_batch(processes, namesrv, alone):
    master = processes.start_broker("broker-a", 0, namesrv, messageDelayLevel=LEVELS)
    alone(master).update_topic("T")
    with pytest.raises(RocketSimError):
        alone(master).put("T", b"1", b"2", DELAY="1")
