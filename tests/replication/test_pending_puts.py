"""Table D4's two waits of a put, tested without a clock."""

import gc

import pytest

from broker_service.put_result import PutStatus
from broker_service.replication.acknowledgement import AckLevels, commit_waits, metadata_wait, put_waits
from broker_service.replication.pending_puts import SLACK, PendingPut, PendingPuts, Wait
from broker_service.replication.tracker import Tracker
from broker_service.runtime.deadlines import wait_s

OK, DISK, SLAVE, NONE = PutStatus


def flush(deadline=5.0):
    return Wait(None, deadline)


def replica(deadline=3.0):
    return Wait(None, deadline)


def test_a_put_ends_when_both_sides_are_decided_whatever_comes_first():
    for first, second in (("on_flushed", "on_confirmed"), ("on_confirmed", "on_flushed")):
        puts = PendingPuts()
        put = puts.add(100, flush(), replica())
        assert getattr(puts, first)(100) == [] and put.status is None
        assert getattr(puts, second)(100) == [put] and put.status is OK
        assert len(puts) == 0


def test_one_ack_ends_every_put_it_covers_oldest_first():
    puts = PendingPuts()
    waiting = [puts.add(end, replica=replica()) for end in (300, 100, 200, 400)]
    assert [put.end_offset for put in puts.on_confirmed(350)] == [100, 200, 300]
    assert len(puts) == 1 and waiting[3].status is None


def test_one_stuck_put_delays_no_other():
    puts = PendingPuts()
    stuck = puts.add(100, flush(5), replica(3))
    later = puts.add(200, flush(9))
    assert puts.on_flushed(200) == [later]
    assert stuck.status is None
    assert puts.expire(3) == [stuck] and stuck.status is SLAVE


@pytest.mark.parametrize(
    "flushed, confirmed, status",
    [(False, False, SLAVE), (True, False, SLAVE), (False, True, DISK), (True, True, OK)],
    ids=["both late: the replica's status wins", "slave late", "disk late", "both in time"],
)
def test_status_of_a_put_when_deadlines_pass(flushed, confirmed, status):
    puts = PendingPuts()
    put = puts.add(100, flush(), replica())
    if flushed:
        puts.on_flushed(100)
    if confirmed:
        puts.on_confirmed(100)
    puts.expire(2.9)
    assert (put.status is None) == (not (flushed and confirmed))
    puts.expire(5)
    assert put.status is status


def test_a_late_ack_changes_no_status():
    puts = PendingPuts()
    put = puts.add(100, replica=replica())
    puts.expire(3)
    assert puts.on_confirmed(100) == [] and put.status is SLAVE


def test_the_next_deadline_is_the_first_undecided_one():
    puts = PendingPuts()
    assert puts.next_deadline() is None
    puts.add(100, flush(5), replica(3))
    assert puts.next_deadline() == 3
    puts.on_confirmed(100)
    assert puts.next_deadline() == 5
    puts.on_flushed(100)
    assert puts.next_deadline() is None


def test_puts_that_are_over_are_not_kept_for_ever():
    puts = PendingPuts()
    for end in range(10 * SLACK):
        puts.add(end, replica=replica(deadline=end))
        puts.expire(end)
    assert len(puts) == 0
    assert sum(isinstance(one, PendingPut) for one in gc.get_objects()) <= 2 * SLACK


LEVELS = {
    (master, disk): AckLevels(sync_master=master, sync_flush=disk) for master in (False, True) for disk in (False, True)
}


def waits(levels, *, ack=None, flushed=0, end=1000, timeout=60.0):
    tracker = Tracker(fall_behind_max=500)
    if ack is not None:
        tracker.ack(tracker.join(1, "host:1", 0, end), ack, end)
    return put_waits(levels, tracker, flushed, end, 0.0, timeout)


@pytest.mark.parametrize(
    "mode, slave_ack, expected",
    [
        ((False, False), 900, (OK, OK)),
        ((False, True), None, (None, OK)),
        ((True, False), 900, (OK, None)),
        ((True, False), None, (OK, NONE)),
        ((True, False), 500, (OK, NONE)),
        ((True, False), 501, (OK, None)),
        ((True, False), 1000, (OK, OK)),
        ((True, True), 900, (None, None)),
        ((True, True), None, (None, NONE)),
    ],
)
def test_what_each_mode_waits_for(mode, slave_ack, expected):
    flush_wait, replica_wait = waits(LEVELS[mode], ack=slave_ack)
    assert (flush_wait.status, replica_wait.status) == expected


def test_flushed_already_is_not_waited_for():
    assert waits(LEVELS[False, True], flushed=1000)[0].status is OK


def test_the_waits_end_with_the_time_that_the_put_may_wait():
    levels = LEVELS[True, True]
    assert [wait.deadline for wait in waits(levels, ack=900, timeout=60)] == [5.0, 3.0]
    assert [wait.deadline for wait in waits(levels, ack=900, timeout=1)] == [1.0, 1.0]


@pytest.mark.parametrize(("left_s", "expected"), [(60.0, 59.0), (3.0, 2.4), (0.1, 0.08), (0.0, 0.0)])
def test_a_wait_ends_before_the_callers_deadline_does(left_s, expected):
    assert wait_s(left_s) == pytest.approx(expected)


# --- commits ----------------------------------------------------------------------------------------------------------


def commit(levels, *, log=1000, named=None, sequence=7, timeout=60.0):
    """Returns the waits (replica, metadata) of a commit with number 7 in a log that ends at 1000; the slave has `log`
    and `named` of these.
    """
    tracker = Tracker(fall_behind_max=500)
    if log is not None:
        slave = tracker.join(1, "host:1", 0, 1000)
        tracker.ack(slave, log, 1000)
        if named is not None:
            tracker.ack_metadata(slave, named)
    return commit_waits(levels, tracker, sequence, 1000, 0.0, timeout)


@pytest.mark.parametrize(
    "log, named, expected",
    [
        (1000, 7, (OK, OK)),
        (1000, 6, (OK, None)),
        (900, 7, (None, OK)),
        (500, 7, (NONE, OK)),
        (1000, None, (OK, NONE)),
        (None, None, (NONE, NONE)),
    ],
    ids=["all there", "on its way", "log on its way", "log far behind", "a slave that names no changes", "no slave"],
)
def test_what_a_commit_waits_for(log, named, expected):
    for disk in (False, True):
        replica, metadata = commit(LEVELS[True, disk], log=log, named=named)
        assert (replica.status, metadata.status) == expected
        replica, metadata = commit(LEVELS[False, disk], log=log, named=named)
        assert (replica.status, metadata.status) == (OK, OK)


def test_a_commits_wait_ends_with_the_time_that_it_may_wait():
    assert commit(LEVELS[True, True], named=1, timeout=1)[1].deadline == 1.0
    assert commit(LEVELS[True, True], named=1, timeout=60)[1].deadline == 3.0


@pytest.mark.parametrize(("named", "expected"), [(7, OK), (6, None), (None, NONE)])
def test_what_a_change_of_users_waits_for_in_any_mode(named, expected):
    """A change of users waits only for a slave's tables, however far behind the slave's log is."""
    tracker = Tracker(fall_behind_max=500)
    slave = tracker.join(1, "host:1", 0, 1000)
    tracker.ack(slave, 0, 1000)
    if named is not None:
        tracker.ack_metadata(slave, named)
    for levels in LEVELS.values():
        wait = metadata_wait(levels, tracker, 7, 0.0, 60.0)
        assert (wait.status, wait.deadline) == (expected, 3.0 if expected is None else 0.0)


def test_changes_end_commits_and_log_offsets_do_not():
    puts = PendingPuts()
    first = puts.add(1000, metadata=Wait(None, 3.0), sequence=7)
    second = puts.add(1000, metadata=Wait(None, 3.0), sequence=8)
    assert puts.on_confirmed(1 << 40) == puts.on_flushed(1 << 40) == []
    assert puts.on_metadata(7) == [first] and first.status is OK
    assert puts.expire(3.0) == [second] and second.status is SLAVE
    assert len(puts) == 0
