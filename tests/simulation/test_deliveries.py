"""Groups whose deliveries the broker keeps, on real brokers that die and are replaced."""

import asyncio
from dataclasses import replace

import pytest

from broker_service.consumption import retries
from broker_service.consumption.consumption import Consumption
from broker_service.consumption.state import State
from broker_service.consumption.state_log import StateLog
from broker_service.model import PutStatus
from tests.simulation import plays
from tests.simulation.promises import PromiseBroken

SYNC_MASTER_SYNC_FLUSH = 8, 24, 184
OTHER_MODES = 1, 2, 3


def test_what_is_settled_never_comes_again_and_what_is_not_comes_again_to_one_consumer_and_in_order():
    counts = plays.totals("deliveries", SYNC_MASTER_SYNC_FLUSH)
    assert min(counts["stored"], counts["dead letters"], counts["deaths"]) > 20
    assert counts["acknowledged"] > counts["stored"]


def test_so_it_is_in_other_modes_of_what_the_master_has():
    counts = plays.totals("deliveries", OTHER_MODES)
    assert min(counts["stored"], counts["acknowledged"], counts["dead letters"], counts["deaths"]) > 20


def test_so_it_is_while_disks_fail():
    counts = plays.totals("deliveries-on-bad-disks", (28, 40))
    assert min(counts["stored"], counts["acknowledged"], counts["deaths"]) > 20


def test_so_it_is_while_disks_are_full():
    counts = plays.totals("deliveries-on-full-disks", (4,))
    assert min(counts["stored"], counts["acknowledged"]) > 20
    assert counts["full disk"]


def confirm_acks_early(plant):
    """Before disk and slave have them."""

    async def stored(self, appended, _):
        await asyncio.shield(appended)
        return PutStatus.PUT_OK

    plant(Consumption, "_stored", stored)


def expire_early(plant):
    whole = State.due
    plant(State, "due", lambda self, now_ms, limit: whole(self, now_ms + 1000, limit))


def pop_out_of_order(plant):
    whole = Consumption._group
    plant(Consumption, "_group", lambda self, pop: replace(whole(self, pop), consume_message_orderly=False))


def forget_locks_at_a_start(plant):
    whole = StateLog.reload

    def reload(self):
        whole(self)
        for queue in self.state.queues.values():
            queue.locks = None

    plant(StateLog, "reload", reload)


def deliver_dead_letters(plant):
    whole = retries.fate
    plant(retries, "fate", lambda due, now_ms, most, **more: whole(due, now_ms, most + 1, **more))


@pytest.mark.parametrize(
    "bug",
    (
        confirm_acks_early,
        expire_early,
        pop_out_of_order,
        forget_locks_at_a_start,
        deliver_dead_letters,
    ),
    ids=lambda bug: bug.__name__,
)
def test_a_planted_bug_breaks_a_promise(bug, monkeypatch):
    bug(monkeypatch.setattr)
    with pytest.raises(PromiseBroken):
        plays.totals("deliveries", SYNC_MASTER_SYNC_FLUSH)
