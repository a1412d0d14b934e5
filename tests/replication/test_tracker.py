import pytest

from broker_service.replication.tracker import AckRefused, Tracker


def tracker_with_slave(end=1000, fall_behind_max=500):
    tracker = Tracker(fall_behind_max)
    return tracker, tracker.join(1, "host:1", 0, end)


def test_the_furthest_ack_of_any_slave_confirms():
    tracker, one = tracker_with_slave()
    two = tracker.join(2, "host:2", 0, 1000)
    assert tracker.ack(one, 300, 1000)
    assert not tracker.ack(two, 200, 1000)
    assert tracker.ack(two, 400, 1000)
    assert (
        tracker.describe(1000)
        == "master end=1000 confirm=400 | slave-1 ack=300 behind=700B | slave-2 ack=400 behind=600B"
    )


@pytest.mark.parametrize("ack", [1001, -1, 1 << 62])
def test_an_ack_outside_of_the_log_is_refused_and_changes_nothing(ack):
    tracker, slave = tracker_with_slave()
    with pytest.raises(AckRefused, match="outside of this log"):
        tracker.ack(slave, ack, 1000)
    assert tracker.confirm_offset == 0 and slave.ack_offset is None


def test_a_slave_is_available_only_after_its_first_ack_and_while_it_keeps_up():
    tracker, slave = tracker_with_slave(fall_behind_max=500)
    assert not tracker.is_slave_available(1000)
    tracker.ack(slave, 500, 1000)
    assert not tracker.is_slave_available(1000)
    tracker.ack(slave, 501, 1000)
    assert tracker.is_slave_available(1000)
    tracker.leave(slave)
    assert not tracker.is_slave_available(1000)


def test_a_newer_connection_replaces_the_older_whose_acks_count_no_more():
    tracker, older = tracker_with_slave()
    newer = tracker.join(1, "host:1", 0, 1000)
    assert not tracker.ack(older, 900, 1000)
    assert tracker.confirm_offset == 0
    tracker.leave(older)
    assert tracker.is_current(newer)


def test_the_confirm_offset_never_falls():
    tracker, slave = tracker_with_slave()
    tracker.ack(slave, 900, 1000)
    tracker.leave(slave)
    again = tracker.join(1, "host:1", 100, 1000)
    tracker.ack(again, 200, 1000)
    assert tracker.confirm_offset == 900


def test_what_consumers_saw_stays_visible_when_a_slave_behind_comes_into_sync():
    tracker = Tracker(10_000)
    assert tracker.visible_offset(1000) is None
    slave = tracker.join(1, "host:1", 0, 1200)
    assert tracker.visible_offset(1200) is None
    tracker.ack(slave, 500, 1300)
    assert tracker.visible_offset(1300) == 1300
    tracker.ack(slave, 1250, 1400)
    assert tracker.visible_offset(1400) == 1300
    tracker.ack(slave, 1350, 1400)
    assert tracker.visible_offset(1400) == 1350
    tracker.leave(slave)
    assert tracker.visible_offset(1400) is None


def test_a_time_as_master_confirms_by_the_slaves_of_now_alone():
    tracker, slave = tracker_with_slave()
    tracker.ack(slave, 900, 1000)
    tracker.leave(slave)
    tracker.begin(600)
    assert tracker.confirm_offset == 0
    assert tracker.join(2, "host:2", 0, 600) and tracker.visible_offset(600) is None


def test_what_consumers_saw_before_a_slaves_first_ack_stays_visible():
    """The simulation has found puts between a slave's connection and its first acknowledgement that were visible, and
    then were not.
    """
    tracker = Tracker(10_000)
    slave = tracker.join(1, "host:1", 0, 1000)
    assert tracker.visible_offset(1000) is None
    tracker.ack(slave, 300, 2000)
    assert tracker.visible_offset(2000) == 2000


def test_changes_are_confirmed_by_the_furthest_slave_and_stay_so_when_it_goes():
    tracker, one = tracker_with_slave()
    assert not tracker.takes_metadata()
    assert tracker.ack_metadata(one, 3)
    two = tracker.join(2, "host:2", 0, 1000)
    assert not tracker.ack_metadata(two, 2)
    assert tracker.ack_metadata(two, 5)
    tracker.leave(two)
    assert tracker.confirmed_sequence == 5 and tracker.takes_metadata()
    assert not tracker.ack_metadata(two, 9), "its connection counts no more"
    tracker.leave(one)
    assert not tracker.takes_metadata()
    tracker.begin(1000)
    assert tracker.confirmed_sequence == 0
