"""A master takes writes once certain conditions hold, and never again after it was replaced."""

from typing import Any

import pytest

from broker_service.broker.core.mastership import Mastership, Standing
from broker_service.broker.core.peers import LogEnd, Member, Peers
from broker_service.errors import ServiceNotAvailable, StaleEpoch
from broker_service.modes import BrokerRole

SLAVE_WAIT_S = 10.0


def master(
    *,
    clean: bool = True,
    asks_others: bool = True,
    epoch: int = 100,
    role: BrokerRole = BrokerRole.ASYNC_MASTER,
    slaves: int = 0,
    wait_s: float = SLAVE_WAIT_S,
    known: dict[int, str] | None = None,
) -> Mastership:
    return Mastership(
        role,
        epoch,
        asks_others=asks_others,
        known_slaves=known,
        clean_start=clean,
        slave_count=slaves,
        slave_wait_s=wait_s,
        now=1.0,
    )


def test_without_name_servers_and_slaves_nobody_needs_to_be_asked() -> None:
    assert master(asks_others=False, clean=False).waits_for(0, {}, now=0.0) is None


def test_with_name_servers_one_has_to_answer_first() -> None:
    starting = master()
    assert starting.waits_for(0, {}, now=1e6) == "no name server and no slave has answered yet"
    starting.answered(now=5.0)
    assert starting.waits_for(0, {}, now=5.0) is None


def test_a_slave_is_as_good_an_answer() -> None:
    starting = master()
    starting.slave_joined(1, now=0.0)
    assert starting.waits_for(0, {}, now=0.0) is None


def test_after_a_clean_stop_an_equal_slave_is_not_waited_for() -> None:
    starting = master(clean=True)
    starting.answered(now=0.0)
    assert starting.waits_for(500, {1: LogEnd(100, 500)}, now=0.0) is None


def test_after_an_unclean_stop_a_live_slave_is_waited_for_but_not_for_ever() -> None:
    starting = master(clean=False)
    starting.answered(now=3.0)
    assert "slave 1" in str(starting.waits_for(500, {1: LogEnd(100, 400)}, now=3.0))
    assert "slave 1" in str(starting.waits_for(500, {1: LogEnd(100, 400)}, now=3.0 + SLAVE_WAIT_S - 0.1))
    assert starting.waits_for(500, {1: LogEnd(100, 400)}, now=3.0 + SLAVE_WAIT_S) is None


def test_a_slave_that_has_shown_its_log_is_not_waited_for() -> None:
    starting = master(clean=False)
    starting.answered(now=0.0)
    starting.slave_joined(1, now=0.0)
    assert starting.waits_for(500, {1: LogEnd(100, 500)}, now=0.0) is None
    assert "slave 2" in str(starting.waits_for(500, {1: LogEnd(100, 500), 2: LogEnd(100, 0)}, now=0.0))


def sync_master(**changes: Any) -> Mastership:
    return master(**({"role": BrokerRole.SYNC_MASTER, "clean": False} | changes))


def test_after_an_unclean_stop_a_synchronous_master_waits_for_a_slave_that_nobody_knows_yet() -> None:
    starting = sync_master()
    starting.answered(now=3.0)
    assert "0 of 1 slaves" in str(starting.waits_for(500, {}, now=3.0))
    assert "0 of 1 slaves" in str(starting.waits_for(500, {}, now=3.0 + SLAVE_WAIT_S - 0.1))
    starting.slave_joined(1, now=4.0)
    assert starting.waits_for(500, {}, now=4.0) is None
    assert starting.misses({}) is None


def test_when_no_slave_comes_in_time_it_goes_on_alone_and_says_so() -> None:
    starting = sync_master()
    starting.answered(now=3.0)
    assert starting.waits_for(500, {}, now=3.0 + SLAVE_WAIT_S) is None
    assert "within slaveWaitTimeMs=10000 0 of 1 slaves have shown their logs" in str(starting.misses({}))


def test_of_several_configured_slaves_all_are_waited_for() -> None:
    starting = sync_master(slaves=2)
    starting.slave_joined(1, now=3.0)
    assert "1 of 2 slaves" in str(starting.waits_for(500, {}, now=3.0))
    assert "1 of 2 slaves" in str(starting.misses({}))
    starting.slave_joined(2, now=3.0)
    assert starting.waits_for(500, {}, now=3.0) is None


def test_without_anybody_to_ask_the_wait_begins_with_the_start() -> None:
    starting = sync_master(asks_others=False)
    assert "0 of 1 slaves" in str(starting.waits_for(500, {}, now=1.0))
    assert starting.waits_for(500, {}, now=1.0 + SLAVE_WAIT_S) is None


@pytest.mark.parametrize(
    "starting",
    [
        pytest.param(sync_master(clean=True), id="it stopped cleanly"),
        pytest.param(sync_master(wait_s=0.0), id="slaveWaitTimeMs=0"),
        pytest.param(sync_master(role=BrokerRole.ASYNC_MASTER, slaves=1), id="its OK was the master's alone"),
    ],
)
def test_a_slave_that_nobody_knows_is_not_waited_for_when(starting: Mastership) -> None:
    starting.answered(now=3.0)
    assert starting.waits_for(500, {}, now=3.0) is None


@pytest.mark.parametrize("clean", [True, False])
def test_while_a_live_slave_is_ahead_no_time_is_long_enough(clean: bool) -> None:
    starting = master(clean=clean)
    starting.answered(now=0.0)
    assert "slave 1 is at 501, ahead of 500" in str(starting.waits_for(500, {1: LogEnd(100, 501)}, now=1e9))
    assert starting.waits_for(500, {}, now=1e9) is None  # it went away


@pytest.mark.parametrize("clean", [True, False])
def test_what_a_slave_has_beyond_this_log_of_an_older_epoch_is_not_waited_for_without_bound(clean: bool) -> None:
    """After a forced promotion nothing of that older epoch is ever fetched, so the master does not wait for the slave
    forever.
    """
    starting, slaves = master(clean=clean, epoch=101), {1: LogEnd(100, 501)}
    starting.answered(now=3.0)
    assert (starting.waits_for(0, slaves, now=3.0) is None) is clean
    assert starting.waits_for(0, slaves, now=3.0 + SLAVE_WAIT_S) is None
    assert "slave 1 is at 501" in str(starting.waits_for(0, {1: LogEnd(101, 501)}, now=3.0 + SLAVE_WAIT_S))


def test_an_unclean_start_and_a_new_log_begin_an_epoch() -> None:
    assert master(clean=False).begins_epoch
    assert master(epoch=0).begins_epoch
    assert not master(clean=True, epoch=100).begins_epoch


def test_after_an_unclean_stop_the_first_answer_is_not_enough_but_the_others_have_only_so_long() -> None:
    starting = Mastership(
        BrokerRole.ASYNC_MASTER,
        1,
        asks_others=True,
        others=["ns1:9876", "ns2:9876", "slave:10911"],
        known_slaves={1: "slave:10911"},
        clean_start=False,
        slave_count=1,
        slave_wait_s=SLAVE_WAIT_S,
        now=0.0,
    )
    assert "no name server" in str(starting.waits_for(0, {}, now=1e6))
    starting.address_answered("ns1:9876")
    starting.answered(now=5.0)
    assert "ns2:9876 has not answered" in str(starting.waits_for(0, {}, now=5.0))
    starting.address_answered("ns2:9876")
    assert "slave:10911 has not answered" in str(starting.waits_for(0, {}, now=5.0 + SLAVE_WAIT_S - 0.1))
    assert starting.waits_for(0, {}, now=5.0 + SLAVE_WAIT_S) is None
    assert "no answer from slave:10911" in str(starting.misses({}))
    starting.slave_joined(1, 6.0, "slave:20911")  # it has moved
    assert starting.waits_for(0, {}, now=6.0) is None
    assert starting.misses({}) is None


def test_a_slave_that_an_operator_has_removed_is_not_waited_for() -> None:
    starting = Mastership(
        BrokerRole.SYNC_MASTER,
        1,
        asks_others=False,
        others=["a:1", "b:1"],
        known_slaves={1: "a:1", 2: "b:1"},
        clean_start=False,
        slave_count=2,
        slave_wait_s=SLAVE_WAIT_S,
        now=0.0,
    )
    starting.slave_joined(1, 1.0, "a:1")
    assert "1 of 2 slaves" in str(starting.waits_for(0, {}, now=1.0))
    starting.forget_slave(2)
    assert starting.waits_for(0, {}, now=1.0) is None
    starting.forget_slave(2)
    starting.forget_slave(1)
    assert starting.waits_for(0, {}, now=1.0) is None


def test_after_a_clean_stop_too_everybody_who_may_know_of_a_newer_master_is_asked_for_a_while() -> None:
    """A name server that has just started knows nothing, and the slave may be the master by now."""
    starting = Mastership(
        BrokerRole.ASYNC_MASTER,
        1,
        asks_others=True,
        others=["ns1:9876", "ns2:9876", "slave:10911"],
        known_slaves={1: "slave:10911"},
        clean_start=True,
        slave_count=1,
        slave_wait_s=SLAVE_WAIT_S,
        now=0.0,
    )
    starting.address_answered("ns1:9876")
    starting.answered(now=5.0)
    assert "ns2:9876 has not answered" in str(starting.waits_for(0, {}, now=5.0))
    starting.address_answered("ns2:9876")
    assert "slave:10911 has not answered" in str(starting.waits_for(0, {}, now=5.0 + SLAVE_WAIT_S - 0.1))
    assert starting.waits_for(0, {}, now=5.0 + SLAVE_WAIT_S) is None
    misses = str(starting.misses({}))
    assert misses.startswith("within slaveWaitTimeMs=10000 no answer from slave:10911: if another broker was promoted")
    assert "the messages that this one acknowledges from now on" in misses and "shown their logs" not in misses
    starting.address_answered("slave:10911")
    assert starting.waits_for(0, {1: LogEnd(1, 0)}, now=6.0) is None, "nothing of it can be missing here"
    assert starting.misses({1: LogEnd(1, 0)}) is None


def test_a_waiting_master_says_what_it_waits_for() -> None:
    with pytest.raises(ServiceNotAvailable, match="for Godot"):
        master().check_writable(waits_for="it waits for Godot")


def test_a_master_takes_writes_of_its_own_epoch_only() -> None:
    writing = master()
    writing.opened(200)
    writing.check_writable()
    writing.check_writable(client_epoch=200)
    for other in (100, 300):
        with pytest.raises(StaleEpoch, match=str(other)):
            writing.check_writable(client_epoch=other)


def test_a_newer_epoch_fences_a_master_for_good_before_and_after_it_takes_writes() -> None:
    for standing in (Standing.WAITING, Standing.WRITABLE):
        old = master()
        if standing is Standing.WRITABLE:
            old.opened(100)
        assert not old.newer_epoch(100, "a peer")
        assert old.newer_epoch(101, "slave-1")
        assert not old.newer_epoch(201, "slave-1")  # said once
        with pytest.raises(StaleEpoch, match="epoch 101 of slave-1"):
            old.check_writable()
        assert str(old) == "ASYNC_MASTER fenced by epoch 101 of slave-1 epoch=100"


def test_a_slave_takes_no_writes_until_it_is_promoted() -> None:
    slave = master(role=BrokerRole.SLAVE)
    with pytest.raises(ServiceNotAvailable, match="slave"):
        slave.check_writable()
    assert not slave.newer_epoch(300, "its master")
    slave.promoted(BrokerRole.ASYNC_MASTER, 101, {}, now=0.0)
    slave.check_writable(client_epoch=101)


# --- who else is there ------------------------------------------------------------------------------------------------


def test_peers_are_what_the_last_answer_of_each_name_server_says() -> None:
    peers = Peers()
    peers.answered("ns1", [Member(0, "me", 1, 9), Member(1, "s", 1, 7)], 1, own_address="me")
    peers.answered("ns2", [Member(1, "s", 1, 8), Member(2, "t", 1, 3)], 2, own_address="me")
    assert peers.slaves() == {1: LogEnd(1, 8), 2: LogEnd(1, 3)}
    assert peers.master() is None
    assert peers.newest_epoch == 2
    peers.answered("ns1", [], 1, own_address="me")
    assert peers.slaves() == {1: LogEnd(1, 8), 2: LogEnd(1, 3)}
    peers.answered("ns2", [], 1, own_address="me")
    assert peers.slaves() == {}
    assert peers.newest_epoch == 2


def test_of_two_masters_the_one_of_the_newer_epoch_counts() -> None:
    peers = Peers()
    peers.answered("ns1", [Member(0, "old", 100, 9)], 100, own_address="me")
    peers.answered("ns2", [Member(0, "new", 101, 5)], 101, own_address="me")
    master_now = peers.master()
    assert master_now is not None
    assert master_now.address == "new"


# --- consumers' offsets -----------------------------------------------------------------------------------------------


def test_a_slave_that_may_have_taken_commits_is_waited_for_after_a_clean_stop_too() -> None:
    starting = master(clean=True)
    assert starting.offsets_wait_for({}, now=0.0) == "no name server and no slave has answered yet"
    starting.answered(now=5.0)
    assert "slave 2" in str(starting.offsets_wait_for({2: 0}, now=5.0))
    starting.slave_joined(2, now=5.5)
    assert "slave 2" in str(starting.offsets_wait_for({2: 0}, now=6.0)), "its log says nothing of offsets"
    starting.offsets_handed_back(2)
    assert starting.offsets_wait_for({2: 0}, now=6.0) is None
    assert starting.offsets_wait_for({2: 0, 3: 0}, now=6.0) is None, "a slave that came later has nothing of before"


def test_a_slave_that_this_master_knows_is_waited_for_until_it_was_asked_in_vain() -> None:
    """A name server that has just started does not list the slave, so the master asks it directly."""
    starting = master(clean=True, known={2: "s:2"})
    starting.answered(now=5.0)
    assert "slave 2" in str(starting.offsets_wait_for({}, now=5.0))
    starting.address_silent("s:2")
    assert starting.offsets_wait_for({}, now=5.0) is None

    there = master(clean=True, known={2: "s:2"})
    there.answered(now=5.0)
    there.address_silent("s:2")
    there.address_answered("s:2")
    assert "slave 2" in str(there.offsets_wait_for({}, now=5.0))
    there.offsets_handed_back(2)
    assert there.offsets_wait_for({}, now=5.0) is None


def test_a_slave_that_does_not_come_is_not_waited_for_for_ever() -> None:
    starting = master()
    starting.answered(now=5.0)
    assert "slave 1" in str(starting.offsets_wait_for({1: 0}, now=5.0 + SLAVE_WAIT_S - 0.1))
    assert starting.offsets_wait_for({1: 0}, now=5.0 + SLAVE_WAIT_S) is None


def test_offsets_of_a_slave_that_nobody_knows_yet_are_waited_for_as_its_log_is() -> None:
    starting = master(clean=False, role=BrokerRole.SYNC_MASTER)
    starting.answered(now=0.0)
    assert starting.offsets_wait_for({}, now=1.0) == "0 of 1 slaves have handed back committed offsets"
    starting.offsets_handed_back(1)
    assert starting.offsets_wait_for({}, now=1.0) is None


def test_a_promoted_slave_waits_for_the_offsets_of_the_slaves_that_it_knows_then_and_not_at_its_start() -> None:
    slave = master(role=BrokerRole.SLAVE, known={3: "removed:1"})
    slave.promoted(BrokerRole.ASYNC_MASTER, 101, {2: "b:1", 4: "dead:1"}, now=50.0)
    slave.address_silent("dead:1")
    assert slave.offsets_wait_for({}, now=50.0) == "slave 2 may have committed offsets that are not here"
    slave.offsets_handed_back(2)
    assert slave.offsets_wait_for({}, now=50.0) is None


def test_a_slave_answers_always_and_a_promoted_one_asks_the_others_first() -> None:
    slave = master(role=BrokerRole.SLAVE)
    assert slave.offsets_wait_for({2: 0}, now=0.0) is None
    slave.promoted(BrokerRole.SYNC_MASTER, 101, {}, now=50.0)
    assert "slave 2" in str(slave.offsets_wait_for({2: 0}, now=50.0))
    slave.offsets_handed_back(2)
    assert slave.offsets_wait_for({2: 0}, now=50.0) is None
