"""Tests which offsets are committed where and when, without a broker or a clock, and tests the thread that commits."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketsim_client.errors import CommitFailed
from rocketsim_client.model import CommitResult, MessageQueue
from rocketsim_source.commits.committer import Committer, now_ms
from rocketsim_source.commits.ledger import CommitLedger, Conflict
from rocketsim_source.options.source_options import source_options
from testbed.polling import wait_until
from tests.source.memory_cluster import MemoryCluster

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


def ledger(**given_fields: int) -> CommitLedger:
    return CommitLedger(**({"reconcile_interval_ms": 30_000} | given_fields))


def test_only_news_are_sent_and_only_once() -> None:
    found = ledger()
    assert found.want({Q0: 5, Q1: 7})
    assert found.to_send(0) == {Q0: 5, Q1: 7}
    found.done({Q0: 5, Q1: 7}, CommitResult({"broker-a": 0}, {Q0: 5, Q1: 7}, {}), 0)
    assert not found.want({Q0: 5, Q1: 7})
    assert found.due_in_ms(1) == 30_000 - 1  # the time until the next reconciliation
    found.want({Q0: 6, Q1: 7})
    assert found.to_send(1) == {Q0: 6}


def test_an_offset_below_what_stands_is_never_sent() -> None:
    found = ledger()
    found.want({Q0: 5})
    found.saw({Q0: 9}, [Q0])
    assert found.to_send(0) == {}


def test_a_start_is_committed_only_where_the_group_has_nothing() -> None:
    found = ledger()
    found.want_start({Q0: 5, Q1: 5})
    assert found.to_send(0) == {}  # no broker has said yet which offsets the group has
    found.saw_starts({Q1: 2}, [Q0, Q1])
    assert found.to_send(0) == {Q0: 5}
    found.done({Q0: 5}, CommitResult({"broker-a": 0}, {Q0: 5}, {}), 0)
    assert found.to_send(1) == {}


def test_a_start_that_no_master_has_been_asked_about_is_asked_about_again() -> None:
    found = ledger()
    found.want_start({Q0: 5})
    found.done({}, CommitResult(), 0)
    assert found.due_in_ms(0) == 1000


def test_what_was_refused_for_one_queue_is_a_failure_of_that_queue_alone() -> None:
    found = ledger()
    found.want({Q0: 5, Q1: 7})
    found.done({Q0: 5, Q1: 7}, CommitResult({"broker-a": 0}, {Q1: 7}, {}), 0)
    assert found.failures == 1
    assert found.to_send(1000) == {Q0: 5}


def test_everything_is_sent_again_when_the_interval_is_over() -> None:
    found = ledger()
    found.want({Q0: 5})
    found.done(found.to_send(0), CommitResult({"broker-a": 0}, {Q0: 5}, {}), 0)
    assert found.to_send(29_999) == {}
    assert found.due_in_ms(30_000) == 0
    assert found.to_send(30_000) == {Q0: 5}


def test_a_group_that_somebody_else_has_moved_ahead_is_looked_at_once_an_interval() -> None:
    found = ledger()
    found.want({Q0: 5})
    found.done(found.to_send(0), CommitResult({"broker-a": 0}, {Q0: 5}, {}), 0)
    found.saw({Q0: 9}, [Q0])
    assert found.to_send(30_000) == {}
    found.done({}, CommitResult(), 30_000)
    assert found.due_in_ms(30_000) == 30_000


def test_rounds_that_fail_while_a_reconciliation_is_due_come_after_a_pause() -> None:
    found = ledger()
    found.want({Q0: 5})
    found.done(found.to_send(0), CommitResult({"broker-a": 0}, {Q0: 5}, {}), 0)
    found.failed(30_000)
    assert found.due_in_ms(30_000) == 1000
    found.done(found.to_send(31_000), CommitResult(), 31_000)
    assert found.due_in_ms(31_000) == 1000


def test_what_a_slave_took_is_sent_again_soon_until_the_master_has_it() -> None:
    found = ledger()
    found.want({Q0: 5})
    found.done(found.to_send(0), CommitResult({"broker-a": 1}, {Q0: 5}, {}), 0)
    assert found.target == "slave"
    assert found.due_in_ms(0) == 1000
    assert found.to_send(1000) == {Q0: 5}
    found.done({Q0: 5}, CommitResult({"broker-a": 0}, {Q0: 5}, {}), 1000)
    assert found.target == "master"
    assert found.due_in_ms(1001) is not None
    assert found.to_send(1001) == {}


def test_a_master_that_came_back_with_old_offsets_is_healed() -> None:
    found = ledger()
    found.want({Q0: 5})
    found.done({Q0: 5}, CommitResult({"broker-a": 1}, {Q0: 5}, {}), 0)
    found.saw({Q0: 2}, [Q0])
    assert found.conflicts({Q0: 2}) == []
    assert found.to_send(10) == {Q0: 5}


def test_a_failure_is_counted_and_tried_again() -> None:
    found = ledger()
    found.want({Q0: 5})
    for count in (1, 2):
        found.done({Q0: 5}, CommitResult(), count * 1000)
        assert found.failures == count
        assert found.due_in_ms(count * 1000) == 1000
    found.done({Q0: 5}, CommitResult({"broker-a": 0}, {Q0: 5}, {}), 3000)
    assert found.failures == 0


def test_commits_are_throttled() -> None:
    found = ledger(min_interval_ms=5000)
    found.want({Q0: 5})
    assert found.due_in_ms(0) == 0
    found.done({Q0: 5}, CommitResult({"broker-a": 0}, {Q0: 5}, {}), 0)
    found.want({Q0: 6})
    assert found.due_in_ms(1000) == 4000


def test_a_broker_further_than_this_query_is_a_conflict() -> None:
    found = ledger()
    found.want({Q0: 5, Q1: 5})
    found.done({Q0: 5, Q1: 5}, CommitResult({"broker-a": 0}, {Q0: 5, Q1: 5}, {}), 0)
    found.want({Q0: 8, Q1: 8})
    assert found.conflicts({Q0: 9, Q1: 8}) == [Conflict(Q0, 5, 9)]


@given(st.lists(st.dictionaries(st.sampled_from([Q0, Q1]), st.integers(0, 50), min_size=1), max_size=20), st.randoms())
def test_a_group_never_goes_back_and_ends_at_the_furthest(
    rounds: list[dict[MessageQueue, int]], chance: object
) -> None:
    found, stands = ledger(), {}
    for now, offsets in enumerate(rounds):
        found.want(offsets)
        send = found.to_send(now)
        assert all(offset >= stands.get(queue, 0) for queue, offset in send.items())
        stands |= send
        found.done(send, CommitResult({"broker-a": 0}, send, {}), now)
    for queue in stands:
        assert stands[queue] == max(offsets.get(queue, 0) for offsets in rounds)


# --- the thread -------------------------------------------------------------------------------------------------------


def committer(cluster: MemoryCluster, clock: Callable[[], int] = now_ms, **given_options: str) -> Committer:
    options = source_options({"nameServer": "h:1", "topic": "T", "group": "g"} | given_options, streaming=True)
    return Committer(cluster, options, clock)


def test_the_newest_offset_wins_in_the_background() -> None:
    cluster = MemoryCluster()
    found = committer(cluster)
    for offset in range(100):
        found.processed({Q0: offset})
    wait_until(lambda: cluster.offsets["g"] == {Q0: 99}, "the last offset")
    assert len(cluster.commits) <= 100
    found.close(1)


def test_a_flush_does_not_wait_for_the_throttle() -> None:
    cluster = MemoryCluster()
    found = committer(cluster, clock=lambda: 1000, commitMinIntervalMs="1h", commitReconcileIntervalMs="2h")
    found.processed({Q0: 1})
    wait_until(lambda: found.status()["behindCheckpoint"] == 0, "the first")
    found.processed({Q0: 2})
    assert cluster.offsets["g"] == {Q0: 1}
    assert found.flush(60)
    assert cluster.offsets["g"] == {Q0: 2}
    found.close(1)


def test_an_operators_reset_under_a_running_query(caplog: pytest.LogCaptureFixture) -> None:
    """After a reset to an earlier offset, the next commit moves the group forward again.  After a reset to a later
    offset, the group stays there, and the query reports that somebody else commits (docs/spark.md).
    """
    cluster = MemoryCluster()
    found = committer(cluster, commitAsync="false")
    found.processed({Q0: 10})
    cluster.offsets["g"][Q0] = 3
    found.processed({Q0: 11})
    assert cluster.offsets["g"] == {Q0: 11}
    assert "somebody else commits" not in caplog.text
    cluster.offsets["g"][Q0] = 50
    found.processed({Q0: 12})
    assert cluster.offsets["g"] == {Q0: 50}
    assert "somebody else commits group g too" in caplog.text
    found.close(1)


def test_a_slave_takes_over_and_the_master_gets_it_when_it_is_back() -> None:
    cluster = MemoryCluster(0, 1)
    found = committer(cluster)
    cluster.brokers[0].up = False
    found.processed({Q0: 5})
    wait_until(lambda: found.status()["target"] == "slave", "the slave to take it")
    commits = len(cluster.commits)
    cluster.brokers[0].up = True
    wait_until(lambda: found.status()["target"] == "master", "the master to have it")
    assert len(cluster.commits) > commits
    found.close(1)


def test_an_unexpected_error_is_a_failed_commit_and_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MemoryCluster()
    found = committer(cluster, commitRetries="0")
    commit, failures = cluster.commit, []

    def broken(*args: Any) -> CommitResult:
        failures.append(args)
        if len(failures) < 3:
            raise ZeroDivisionError("a bug")
        return commit(*args)

    monkeypatch.setattr(cluster, "commit", broken)
    monkeypatch.setattr("rocketsim_source.commits.ledger.RETRY_MS", 1)
    found.processed({Q0: 7})
    wait_until(lambda: cluster.offsets["g"] == {Q0: 7}, "the commit after two errors")
    assert found.status()["failures"] == 0
    found.check()
    found.close(1)


def test_the_policy_decides_about_unexpected_errors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MemoryCluster()
    found = committer(cluster, commitRetries="0", commitFailurePolicy="fail", commitAsync="false")

    def broken(*args: Any) -> CommitResult:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(cluster, "commit", broken)
    with pytest.raises(CommitFailed, match="a bug"):
        found.processed({Q0: 7})
    found.close(0)


# --- the end of a query -----------------------------------------------------------------------------------------------


def test_closing_waits_for_a_commit_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """When AvailableNow ends, Spark sends the last offset and SIGTERM at once."""
    cluster = MemoryCluster()
    found = committer(cluster)
    commit, entered, waited_for = cluster.commit, threading.Event(), threading.Event()

    def slow(*args: Any) -> CommitResult:
        entered.set()
        waited_for.wait(60)
        return commit(*args)

    monkeypatch.setattr(cluster, "commit", slow)
    found.processed({Q0: 7})
    assert entered.wait(60)
    closing, wait = threading.current_thread(), threading.Condition.wait

    def waiting(changed: threading.Condition, timeout: float | None = None) -> bool:
        if threading.current_thread() is closing:
            waited_for.set()
        return wait(changed, timeout)

    monkeypatch.setattr(threading.Condition, "wait", waiting)
    found.close(10)
    assert waited_for.is_set()
    assert cluster.offsets["g"] == {Q0: 7}


def test_closing_in_a_signals_handler_makes_the_interrupted_commit_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With commitAsync=false the main thread commits.  SIGTERM interrupts this commit, and the main thread never
    continues it.
    """
    cluster = MemoryCluster()
    found = committer(cluster, commitAsync="false")
    commit, at_the_end = cluster.commit, []

    def interrupted(*args: Any) -> CommitResult:
        monkeypatch.setattr(cluster, "commit", commit)
        found.close(10)
        at_the_end.append(dict(cluster.offsets["g"]))
        return commit(*args)

    monkeypatch.setattr(cluster, "commit", interrupted)
    found.processed({Q0: 7})
    assert at_the_end == [{Q0: 7}]


def test_closing_in_a_signals_handler_does_not_wait_for_what_the_interrupted_thread_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the interrupted thread holds a lock of the client's `Routes`, it cannot release the lock before the signal
    handler has returned.
    """
    cluster = MemoryCluster()
    found = committer(cluster, commitAsync="false")
    commit, asking, holders, waits_for_itself, closed = cluster.commit, threading.Lock(), [], [], []

    def interrupted(*args: Any) -> CommitResult:
        if threading.get_ident() in holders and asking.locked():
            waits_for_itself.append(args)
            raise RuntimeError("a deadlock")
        with asking:
            if not holders:
                holders.append(threading.get_ident())
                found.close(0.2)
                closed.append(dict(cluster.offsets["g"]))
            return commit(*args)

    monkeypatch.setattr(cluster, "commit", interrupted)
    found.processed({Q0: 7})
    assert closed == [{}]
    assert not waits_for_itself


def test_closing_in_a_signals_handler_commits_where_the_ledger_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MemoryCluster()
    found = committer(cluster, commitAsync="false")
    to_send, at_the_end = CommitLedger.to_send, []

    def interrupted(ledger: CommitLedger, now_ms: int) -> Any:
        monkeypatch.setattr(CommitLedger, "to_send", to_send)
        found.close(10)
        at_the_end.append(dict(cluster.offsets["g"]))
        return to_send(ledger, now_ms)

    monkeypatch.setattr(CommitLedger, "to_send", interrupted)
    found.processed({Q0: 7})
    assert at_the_end == [{Q0: 7}]


# --- the group at a start ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["warn", "fail", "ignore"])
def test_an_existing_group_is_never_moved_at_a_start(policy: str) -> None:
    cluster = MemoryCluster()
    cluster.offsets["g"] = {Q0: 4}
    found = committer(cluster, groupConflictPolicy=policy, commitAsync="false")
    found.start_at({Q0: 10, Q1: 10})
    assert cluster.offsets["g"] == {Q0: 4, Q1: 10}
    found.close(1)


@pytest.mark.parametrize("policy", ["warn", "ignore"])
def test_that_a_slave_has_no_offset_of_the_group_proves_nothing(policy: str) -> None:
    cluster = MemoryCluster(0, 1)
    cluster.brokers[0].up = False
    found = committer(cluster, groupConflictPolicy=policy, commitAsync="false")
    found.start_at({Q0: 10})
    assert cluster.offsets["g"] == {}
    cluster.offsets["g"] = {Q0: 4}
    cluster.brokers[0].up = True
    found.processed({Q1: 1})
    assert cluster.offsets["g"] == {Q0: 4, Q1: 1}
    found.close(1)
