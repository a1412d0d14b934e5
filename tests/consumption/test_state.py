"""The state of consumption, held against a plain model that keeps every offset, and its transitions' bytes."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_service.consumption import snapshot, transitions
from broker_service.consumption.state import MAX_RECENT, State
from broker_service.consumption.transitions import (
    Deadline,
    DeliveryId,
    Drop,
    Move,
    Place,
    Remember,
    Reset,
    Settle,
    Take,
    Transition,
)
from broker_service.errors import StoreTooNew

PLACE = Place("g", "t", 0)
PLACES = [PLACE, Place("g", "t", 1), Place("g", "u", 0), Place("h", "t", 0)]


def take(place: Place, pop: int, start: int, *offsets: int, **fields: int) -> Take:
    fields = {"next": max(offsets, default=start) + 1, "deadline_ms": 1000} | fields
    return Take(place=place, pop=pop, start=start, offsets=offsets, attempts=(1,) * len(offsets), **fields)


@dataclass
class Queue:
    """Every offset from `start` to `next` is settled, or has a delivery."""

    start: int
    next: int
    deliveries: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # offset -> pop, deadline, renewed until

    @property
    def committed(self) -> int:
        return next((offset for offset in range(self.start, self.next) if offset in self.deliveries), self.next)


class Model:
    def __init__(self) -> None:
        self.queues: dict[Place, Queue] = {}

    def apply(self, transition: Transition | Move) -> None:
        queues = self.queues
        match transition:
            case Take(place=place):
                queue = queues.setdefault(place, Queue(transition.start, transition.start))
                for offset in transition.offsets:
                    if offset >= queue.next:
                        queue.deliveries[offset] = transition.pop, transition.deadline_ms, transition.renewed_until_ms
                queue.next = max(queue.next, transition.next)
            case Settle(place, deliveries):
                for pop, offset in deliveries:
                    self._remove(place, pop, offset)
            case Move(place, delivery):
                self._remove(place, *delivery)
            case Deadline(place=place):
                for pop, offset in transition.deliveries:
                    found = queues[place].deliveries.get(offset) if place in queues else None
                    if found and found[0] == pop:
                        until = found[2] if transition.renewed else 0
                        queues[place].deliveries[offset] = pop, transition.deadline_ms, until
            case Reset(place, offset):
                if place in queues:
                    queues[place] = Queue(offset, offset)
            case Drop(group, topic):
                for place in list(queues):
                    if group in ("", place.group) and topic in ("", place.topic):
                        del queues[place]

    def _remove(self, place: Place, pop: int, offset: int) -> None:
        if place in self.queues and self.queues[place].deliveries.get(offset, (None,))[0] == pop:
            del self.queues[place].deliveries[offset]

    def due(self, now_ms: int) -> list[tuple[int, Place, int]]:
        return sorted(
            (deadline, place, offset)
            for place, queue in self.queues.items()
            for offset, (_, deadline, _) in queue.deliveries.items()
            if deadline <= now_ms
        )


places = st.sampled_from(PLACES)
offsets = st.integers(0, 12)
pops = st.integers(1, 4)
times = st.integers(0, 50)
ids = st.lists(st.builds(DeliveryId, pops, offsets), max_size=3).map(tuple)


@st.composite
def takes(draw: st.DrawFn) -> Take:
    start = draw(offsets)
    chosen = tuple(sorted(draw(st.sets(st.integers(start, start + 4), max_size=4))))
    following = draw(st.integers(max(chosen, default=start - 1) + 1, start + 6))
    return Take(
        place=draw(places),
        pop=draw(pops),
        start=start,
        next=following,
        offsets=chosen,
        attempts=tuple(draw(st.integers(1, 20)) for _ in chosen),
        client_id=draw(st.sampled_from(["", "a", "ä"])),
        popped_ms=draw(times),
        deadline_ms=draw(times),
        renewed_until_ms=draw(st.sampled_from([0, 99])),
    )


all_transitions = st.one_of(
    takes(),
    st.builds(Settle, places, ids),
    st.builds(Deadline, place=places, deliveries=ids, deadline_ms=times, counted=st.booleans(), renewed=st.booleans()),
    st.builds(Reset, places, offsets),
    st.builds(Remember, ids, st.booleans()),
    st.builds(Drop, st.sampled_from(["", "g", "h"]), st.sampled_from(["", "t", "u"])),
)
moves = st.builds(Move, places, st.builds(DeliveryId, pops, offsets), st.booleans())


@given(st.lists(st.one_of(all_transitions, moves), max_size=40), times)
def test_the_state_is_the_models(history: list[Transition | Move], now_ms: int) -> None:
    state, model = State(), Model()
    told: dict[Place, int | None] = {}
    for transition in history:
        state.apply(transition)
        model.apply(transition)
        told.update(state.take_changed())
        due = state.due(now_ms, 1000)
        assert [(one.delivery.deadline_ms, one.place, one.queue_offset) for one in due] == model.due(now_ms)
    assert {place: (one.next, one.committed) for place, one in state.queues.items()} == {
        place: (one.next, one.committed) for place, one in model.queues.items()
    }
    assert state.under_way_count == sum(len(queue.deliveries) for queue in model.queues.values())
    assert {place: told[place] for place in state.queues} == {
        place: queue.committed for place, queue in model.queues.items()
    }
    assert all(told[place] is None for place in told.keys() - model.queues.keys())
    renewed = {
        (place, DeliveryId(pop, offset))
        for place, queue in model.queues.items()
        for offset, (pop, _, until) in queue.deliveries.items()
        if until
    }
    assert {one for client in ("", "a", "ä") for one in state.renewed_for(client)} == renewed


@given(st.lists(all_transitions, max_size=5))
def test_transitions_are_read_as_they_were_written(written: list[Transition]) -> None:
    assert transitions.decode(transitions.encode(written)) == written


@given(st.lists(all_transitions, min_size=1, max_size=3), st.data())
def test_bytes_that_end_early_are_refused_or_fewer_transitions(written: list[Transition], data: st.DataObject) -> None:
    body = transitions.encode(written)
    cut = body[: data.draw(st.integers(1, len(body) - 1))]
    try:
        found = transitions.decode(cut)
    except ValueError:
        return
    assert found == written[: len(found)]
    assert len(found) < len(written)


@pytest.mark.parametrize("body", [b"", b"\x02", b"\x01\x09"])
def test_what_a_newer_version_has_written_is_said(body: bytes) -> None:
    with pytest.raises(StoreTooNew):
        transitions.decode(body)


@given(st.lists(st.one_of(all_transitions, moves), max_size=40))
def test_a_snapshot_makes_the_state_again(history: list[Transition | Move]) -> None:
    state, again = State(), State()
    for transition in history:
        state.apply(transition)
    queues = [(place, queue.next, queue.under_way) for place, queue in state.queues.items()]
    found = snapshot.decode(snapshot.encode(77, (5, 6), queues, state.recent()))
    assert (found.log_offset, found.tail) == (77, (5, 6))
    for transition in found.transitions:
        again.apply(transition)
    assert {place: (one.next, one.committed, one.under_way) for place, one in again.queues.items()} == {
        place: (one.next, one.committed, one.under_way) for place, one in state.queues.items()
    }
    assert (again.under_way_count, again.recent()) == (state.under_way_count, state.recent())
    assert again.due(25, 1000) == state.due(25, 1000)
    assert [set(again.renewed_for(client)) for client in ("", "a", "ä")] == [
        set(state.renewed_for(client)) for client in ("", "a", "ä")
    ]


def test_a_damaged_snapshot_is_none() -> None:
    data = snapshot.encode(77, (5, 6), [(PLACE, 3, {})])
    for damaged in (b"", data[:-1], data[:20], data[:-1] + bytes((data[-1] ^ 1,)), bytes(len(data))):
        with pytest.raises(ValueError, match=r"bytes|CRC"):
            snapshot.decode(damaged)


def test_acks_out_of_order_commit_the_lowest_that_is_missing() -> None:
    state = State()
    state.apply(take(PLACE, 7, 10, 10, 11, 13))
    committed = []
    for offset in (11, 13, 10):
        state.apply(Settle(PLACE, (DeliveryId(7, offset),)))
        committed.append(state.queues[PLACE].committed)
    assert committed == [10, 10, 14]


def test_settled_deliveries_are_remembered_for_a_while_with_what_became_of_them() -> None:
    state = State()
    state.apply(take(PLACE, 7, 0, 0, 1, 2))
    state.apply(Settle(PLACE, (DeliveryId(7, 0),)))
    state.apply(Move(PLACE, DeliveryId(7, 1), is_dead_letter=True))
    state.apply(Move(PLACE, DeliveryId(7, 2), is_dead_letter=False))
    ids = [DeliveryId(7, offset) for offset in range(3)]
    assert [state.was_settled(one) for one in ids] == [True, False, False]
    assert [state.is_dead_letter(one) for one in ids] == [False, True, False]
    many = tuple(range(3, 3 + MAX_RECENT))
    state.apply(take(PLACE, 8, 3, *many))
    state.apply(Settle(PLACE, tuple(DeliveryId(8, offset) for offset in many)))
    assert not state.was_settled(DeliveryId(7, 0))


def test_deadlines_of_what_is_acknowledged_do_not_pile_up() -> None:
    """A consumer with an invisible time of hours acknowledges thousands of messages a second."""
    state, chance = State(), random.Random(1)
    for offset in range(20_000):
        state.apply(take(PLACE, offset, offset, offset, deadline_ms=chance.randrange(10**9)))
        state.apply(Settle(PLACE, (DeliveryId(offset, offset),)))
        assert list(state.take_changed()) == [(PLACE, offset + 1)]
    assert len(state._deadlines) < 2000
    assert len(state.queues[PLACE]._taken) <= 1


def test_what_is_acknowledged_behind_one_long_delivery_does_not_pile_up() -> None:
    state = State()
    state.apply(take(PLACE, 1, 0, 0))
    for offset in range(1, 5000):
        state.apply(take(PLACE, 2, offset, offset))
        state.apply(Settle(PLACE, (DeliveryId(2, offset),)))
        assert state.queues[PLACE].committed == 0
    assert len(state.queues[PLACE]._taken) < 2000
    state.apply(take(PLACE, 3, 5000, 5000))
    state.apply(Settle(PLACE, (DeliveryId(1, 0),)))
    assert state.queues[PLACE].committed == 5000
