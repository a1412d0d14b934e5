"""Messages with a delivery time and transactions on real brokers that die and are replaced."""

from unittest.mock import patch

import pytest

from broker_service.delayed.timer_delivery import TimerDelivery
from broker_service.state import timers
from broker_service.state.state import State
from broker_service.state.state_log import StateLog
from broker_service.state.timers import Timers
from broker_service.state.transaction_changes import Ended, Resolution, Resolved
from broker_service.store.queue_reader import QueueReader
from broker_service.transactions.transactions import Transactions
from tests.simulation import plays
from tests.simulation.promises import PromiseBroken

SYNC_MASTER_SYNC_FLUSH = 8, 24


def test_late_messages_come_once_and_none_early_or_uncommitted():
    counts = plays.totals("late-messages", SYNC_MASTER_SYNC_FLUSH)
    assert min(counts["stored"], counts["transactions ended"], counts["deaths"]) > 20


A_READ_FAILS_WHILE_THE_SLAVE_IS_BEHIND = 168


def test_late_messages_come_once_while_disks_fail():
    counts = plays.totals("late-messages-on-bad-disks", (40,))
    assert min(counts["stored"], counts["transactions ended"], counts["deaths"]) > 10


def test_late_messages_come_once_in_other_modes_if_the_master_has_them():
    counts = plays.totals("late-messages", (1, 2, 3))
    assert min(counts["stored"], counts["transactions ended"], counts["deaths"]) > 20


def test_late_messages_come_once_while_disks_are_full():
    counts = plays.totals("late-messages-on-full-disks", (4,))
    assert counts["stored"] and counts["transactions ended"] and counts["full disk"]


def test_late_messages_come_once_where_masters_die_between_a_copy_and_its_record(monkeypatch):
    """A new master finds the copies that the old master has made.  With a planted bug, the new master forgets these
    copies and makes them again.
    """
    assert plays.totals("late-messages-half-copied", (2,))["stored"] > 10

    async def forget_copies(self):
        self.timers.copying = None

    monkeypatch.setattr(TimerDelivery, "complete_batch", forget_copies)
    with pytest.raises(PromiseBroken, match="delivered twice"):
        plays.totals("late-messages-half-copied", (2,))


def test_a_state_that_is_read_again_without_what_readers_do_not_see_breaks_a_promise(monkeypatch):
    end = QueueReader.end
    whole = StateLog.reload

    def reload(self):
        with monkeypatch.context() as patch:
            patch.setattr(QueueReader, "end", lambda queues, *queue: min(end(queues, *queue), queues.bounds(*queue)[1]))
            whole(self)

    monkeypatch.setattr(StateLog, "reload", reload)
    with pytest.raises(PromiseBroken):
        plays.totals("late-messages-on-bad-disks", (A_READ_FAILS_WHILE_THE_SLAVE_IS_BEHIND,))


def deliver_early(plant):
    plant(timers, "due_ms", lambda second: second * 1000)


def forget_timers_at_a_start(plant):
    whole = StateLog.reload

    def reload(self):
        whole(self)
        self.state.timers = Timers()

    plant(StateLog, "reload", reload)


def commit_what_is_rolled_back(plant):
    whole = Transactions.end
    plant(Transactions, "end", lambda self, transaction, _, wait_s: whole(self, transaction, Resolution.COMMIT, wait_s))


def forget_commits_at_a_start(plant):
    whole, apply = StateLog.reload, State.apply

    def reload(self):
        with patch.object(
            State, "apply", lambda state, one: None if isinstance(one, Ended | Resolved) else apply(state, one)
        ):
            whole(self)

    plant(StateLog, "reload", reload)


@pytest.mark.parametrize(
    "bug",
    (deliver_early, forget_timers_at_a_start, commit_what_is_rolled_back, forget_commits_at_a_start),
    ids=lambda bug: bug.__name__,
)
def test_a_planted_bug_breaks_a_promise(bug, monkeypatch):
    bug(monkeypatch.setattr)
    with pytest.raises(PromiseBroken):
        plays.totals("late-messages", SYNC_MASTER_SYNC_FLUSH)
