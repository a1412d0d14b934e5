"""Groups whose deliveries the broker keeps, on real brokers that die and are replaced."""

import asyncio
from dataclasses import replace
from unittest.mock import patch

import pytest

from broker_service.errors import RocketSimError
from broker_service.pop import outcome
from broker_service.pop.popping import Popping
from broker_service.pop.settling import Settling
from broker_service.put_result import PutStatus
from broker_service.state import state_log
from broker_service.state.state import State
from broker_service.state.state_log import StateLog
from broker_service.state.transitions import DeliveryId, Settle
from broker_service.state.writer import StateWriter
from tests.simulation import plays
from tests.simulation.promises import PromiseBroken
from tests.simulation.world import World

SYNC_MASTER_SYNC_FLUSH = 8, 24
SYNC_MASTER_ASYNC_FLUSH, ASYNC_MASTER_SYNC_FLUSH, ASYNC_MASTER_ASYNC_FLUSH = 1, 2, 3


def test_what_is_settled_never_comes_again_and_what_is_not_comes_again_to_one_consumer_and_in_order():
    counts = plays.totals("deliveries", SYNC_MASTER_SYNC_FLUSH)
    assert min(counts["stored"], counts["dead letters"], counts["deaths"]) > 20
    assert counts["acknowledged"] > counts["stored"]


def test_settled_messages_stay_settled_in_other_modes_if_the_master_has_them():
    counts = plays.totals("deliveries", (SYNC_MASTER_ASYNC_FLUSH, ASYNC_MASTER_SYNC_FLUSH, ASYNC_MASTER_ASYNC_FLUSH))
    assert min(counts["stored"], counts["acknowledged"], counts["deaths"]) > 20
    assert counts["dead letters"] > 10


def test_settled_messages_stay_settled_while_disks_fail():
    counts = plays.totals("deliveries-on-bad-disks", (28, 40))
    assert min(counts["stored"], counts["acknowledged"], counts["deaths"]) > 20


def test_settled_messages_stay_settled_while_disks_are_full():
    counts = plays.totals("deliveries-on-full-disks", (20,))
    assert min(counts["stored"], counts["acknowledged"]) > 20
    assert counts["full disk"]


def confirm_acks_early(plant):
    """A broker confirms acks before its disk and its slave have them."""

    async def stored(self, appended, _):
        await asyncio.shield(appended)
        return PutStatus.PUT_OK

    plant(StateWriter, "stored", stored)


def confirm_refused_acks(plant):
    whole = StateWriter.stored

    async def stored(self, *args):
        try:
            return await whole(self, *args)
        except RocketSimError:
            return PutStatus.PUT_OK

    plant(StateWriter, "stored", stored)


def drop_what_is_to_be_a_dead_letter(plant):
    async def forward_to_dlq(self, group, topic, handle, timeout_s=3.0):
        (settled,) = await self.ack(group, topic, [handle], timeout_s)
        return settled

    plant(Settling, "forward_to_dlq", forward_to_dlq)


def forget_moves_at_a_start(plant):
    whole = StateLog.reload

    def reload(self):
        with patch.object(state_log, "move_of", lambda _: None):
            whole(self)

    plant(StateLog, "reload", reload)


def forget_acks_at_a_start(plant):
    whole, apply = StateLog.reload, State.apply

    def reload(self):
        with patch.object(State, "apply", lambda state, one: None if isinstance(one, Settle) else apply(state, one)):
            whole(self)

    plant(StateLog, "reload", reload)


def take_what_is_under_way_for_acknowledged_at_a_start(plant):
    whole = StateLog.reload

    def reload(self):
        whole(self)
        for place, queue in self.state.queues.items():
            deliveries = tuple(DeliveryId(one.pop, offset) for offset, one in queue.under_way.items())
            self.state.apply(Settle(place, deliveries))

    plant(StateLog, "reload", reload)


def expire_early(plant):
    whole = State.due
    plant(State, "due", lambda self, now_ms, limit: whole(self, now_ms + 1000, limit))


def pop_out_of_order(plant):
    whole = Popping.group_of
    plant(Popping, "group_of", lambda self, pop: replace(whole(self, pop), consume_message_orderly=False))


def forget_locks_at_a_start(plant):
    whole = StateLog.reload

    def reload(self):
        whole(self)
        for queue in self.state.queues.values():
            queue.locks = None

    plant(StateLog, "reload", reload)


def deliver_dead_letters(plant):
    whole = outcome.outcome_of
    plant(outcome, "outcome_of", lambda due, now_ms, most, **more: whole(due, now_ms, most + 1, **more))


@pytest.mark.parametrize(
    ("bug", "play", "seed"),
    (
        (confirm_acks_early, "deliveries", 80),
        (confirm_refused_acks, "deliveries-on-full-disks", 4),
        (drop_what_is_to_be_a_dead_letter, "deliveries", 8),
        (forget_moves_at_a_start, "deliveries", 8),
        (forget_acks_at_a_start, "deliveries", ASYNC_MASTER_SYNC_FLUSH),
        (take_what_is_under_way_for_acknowledged_at_a_start, "deliveries", ASYNC_MASTER_ASYNC_FLUSH),
        (expire_early, "deliveries", 16),
        (pop_out_of_order, "deliveries", 8),
        (forget_locks_at_a_start, "deliveries", 8),
        (deliver_dead_letters, "deliveries", 8),
    ),
    ids=lambda given: getattr(given, "__name__", given),
)
def test_a_planted_bug_breaks_a_promise(bug, play, seed, monkeypatch):
    bug(monkeypatch.setattr)
    with pytest.raises(PromiseBroken):
        plays.played(play, World(seed))
