"""The state of consumption equals a plain model that keeps every offset, and its transitions have the right bytes."""

import heapq
import random
import sys
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_service.errors import StoreTooNew
from broker_service.state import snapshot, transitions
from broker_service.state.state import MAX_RECENT, State
from broker_service.state.transitions import (
    Deadline,
    DeliveryId,
    Drop,
    Move,
    Ordered,
    Place,
    Remember,
    Reset,
    Return,
    Settle,
    Step,
    Take,
    TakeInOrder,
    Transition,
)
from tests.support.held_memory import held_bytes

PLACE = Place("g", "t", 0)
PLACES = [PLACE, Place("g", "t", 1), Place("g", "u", 0), Place("h", "t", 0)]


def held_without_recent(state: State) -> int:
    """Returns the bytes that a state holds, without the settled deliveries that it remembers."""
    return held_bytes(state) - held_bytes(OrderedDict(state.recent()))


def take(place: Place, pop: int, start: int, *offsets: int, **fields: int) -> Take:
    fields = {"next": max(offsets, default=start) + 1, "deadline_ms": 1000} | fields
    return Take(place=place, pop=pop, start=start, offsets=offsets, attempts=(1,) * len(offsets), **fields)


def in_order(place: Place, pop: int, start: int, attempt_id: str = "", **groups: list[Ordered]) -> TakeInOrder:
    """Makes the state change for a pop that takes these messages, given by message group.  "_" stands for messages
    without a message group.
    """
    chosen = tuple((name.strip("_"), tuple(messages)) for name, messages in groups.items())
    following = max([start - 1, *(one.queue_offset for messages in groups.values() for one in messages)]) + 1
    return TakeInOrder(
        place=place, pop=pop, start=start, next=following, groups=chosen, deadline_ms=1000, attempt_id=attempt_id
    )


def delivered(*offsets: int, attempt: int = 1) -> list[Ordered]:
    return [Ordered(offset, attempt, Step.DELIVERED) for offset in offsets]


def waits(*offsets: int) -> list[Ordered]:
    return [Ordered(offset, 0, Step.WAITS) for offset in offsets]


@dataclass
class Queue:
    """Every offset from `start` to `next` is settled, has a delivery, or is in a message group."""

    start: int
    next: int
    # offset -> pop, deadline, renewed until, counted
    deliveries: dict[int, tuple[int, int, int, bool]] = field(default_factory=dict)
    # message group -> its messages, beginning with those of the batch under way
    groups: dict[str, list[Ordered]] = field(default_factory=dict)
    attempt_ids: dict[str, str] = field(default_factory=dict)

    @property
    def committed(self) -> int:
        return next((offset for offset in range(self.start, self.next) if self.has(offset)), self.next)

    def has(self, offset: int) -> bool:
        return offset in self.deliveries or self.group_of(offset) is not None

    def group_of(self, offset: int) -> str | None:
        return next((name for name, group in self.groups.items() if offset in [one[0] for one in group]), None)

    def take_in_order(self, take: TakeInOrder) -> None:
        for name, messages in take.groups:
            group = self.groups.setdefault(name, [])
            self.attempt_ids.setdefault(name, "")
            was_free = all(one.step is Step.WAITS for one in group)
            for message in messages:
                offset, attempt, step = message
                waiting = [one for one in group if one.step is Step.WAITS]
                may_take = was_free and step is not Step.WAITS
                if offset >= self.next and not self.has(offset):
                    if step is not Step.GONE and may_take and not waiting:
                        group.append(message)
                    elif step is not Step.GONE:
                        counted = attempt - 1 if step is Step.DELIVERED else attempt
                        group.append(Ordered(offset, max(0, counted), Step.WAITS))
                elif may_take and waiting and waiting[0].queue_offset == offset:
                    at = group.index(waiting[0])
                    group[at : at + 1] = [] if step is Step.GONE else [message]
            batch = [one for one in group if one.step is not Step.WAITS]
            for one in batch if was_free else []:
                if one.step is Step.DELIVERED:
                    self.attempt_ids[name] = take.attempt_id
                    self.deliveries[one.queue_offset] = take.pop, take.deadline_ms, take.renewed_until_ms, True
            self.clean(name)
        self.next = max(self.next, take.next)

    def end(self, offset: int, step: Step) -> None:
        """Ends the delivery of the message at this offset.  If the message has a message group, `step` says what has
        become of it.
        """
        *_, counted = self.deliveries.pop(offset)
        if (name := self.group_of(offset)) is not None:
            group = self.groups[name]
            at = [one.queue_offset for one in group].index(offset)
            uncounted = step is Step.RETURNED and not counted
            group[at] = Ordered(offset, group[at].attempt - uncounted, step)
            self.clean(name)

    def clean(self, name: str) -> None:
        group = self.groups[name]
        while group and group[0].step is Step.ACKED:
            del group[0]
        if all(one.step is not Step.DELIVERED for one in group):
            group[:] = [one._replace(step=Step.WAITS) for one in group]
            self.attempt_ids[name] = ""
        if not group:
            del self.groups[name], self.attempt_ids[name]


class Model:
    def __init__(self) -> None:
        self.queues: dict[Place, Queue] = {}

    def apply(self, transition: Transition | Move) -> None:
        queues = self.queues
        match transition:
            case Take(place=place):
                queue = queues.setdefault(place, Queue(transition.start, transition.start))
                times = transition.deadline_ms, transition.renewed_until_ms
                for offset in transition.offsets:
                    if offset >= queue.next:
                        queue.deliveries[offset] = transition.pop, *times, True
                queue.next = max(queue.next, transition.next)
            case TakeInOrder(place=place):
                queues.setdefault(place, Queue(transition.start, transition.start)).take_in_order(transition)
            case Return(place, deliveries):
                for pop, offset in deliveries:
                    if place in queues and queues[place].group_of(offset) is not None:
                        self._end(place, pop, offset, Step.RETURNED)
            case Settle(place, deliveries):
                for pop, offset in deliveries:
                    self._end(place, pop, offset, Step.ACKED)
            case Move(place, delivery):
                self._end(place, *delivery, Step.ACKED)
            case Deadline(place=place):
                for pop, offset in transition.deliveries:
                    found = queues[place].deliveries.get(offset) if place in queues else None
                    if found and found[0] == pop:
                        until = found[2] if transition.renewed else 0
                        name = queues[place].group_of(offset)
                        if name is not None and not transition.renewed:
                            queues[place].attempt_ids[name] = ""
                        queues[place].deliveries[offset] = pop, transition.deadline_ms, until, transition.counted
            case Reset(place, offset):
                if place in queues:
                    queues[place] = Queue(offset, offset)
            case Drop(group, topic):
                for place in list(queues):
                    if group in ("", place.group) and topic in ("", place.topic):
                        del queues[place]

    def _end(self, place: Place, pop: int, offset: int, step: Step) -> None:
        if place in self.queues and self.queues[place].deliveries.get(offset, (None,))[0] == pop:
            self.queues[place].end(offset, step)

    def due(self, now_ms: int) -> list[tuple[int, Place, int]]:
        return sorted(
            (deadline, place, offset)
            for place, queue in self.queues.items()
            for offset, (_, deadline, _, _) in queue.deliveries.items()
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


attempt_ids = st.sampled_from(["", "x", "y"])


@st.composite
def takes_in_order(draw: st.DrawFn) -> TakeInOrder:
    """Draws pops in order: some as brokers make them, and some that no broker makes, for example of messages that are
    taken already, or of a message before its turn.
    """
    start = draw(offsets)
    steps = st.sampled_from([Step.DELIVERED, Step.DELIVERED, Step.DELIVERED, Step.WAITS, *Step])
    groups = []
    for name in draw(st.sets(st.sampled_from(["", "A", "B"]), max_size=2)):
        chosen = sorted(draw(st.sets(st.integers(max(0, start - 4), start + 4), max_size=4)))
        groups.append((name, tuple(Ordered(one, draw(st.integers(1, 20)), draw(steps)) for one in chosen)))
    highest = max((one.queue_offset for _, messages in groups for one in messages), default=0)
    return TakeInOrder(
        place=draw(places),
        pop=draw(pops),
        start=start,
        next=draw(st.integers(max(highest + 1, start), start + 6)),
        groups=tuple(groups),
        client_id=draw(st.sampled_from(["", "a", "ä"])),
        attempt_id=draw(attempt_ids),
        popped_ms=draw(times),
        deadline_ms=draw(times),
        renewed_until_ms=draw(st.sampled_from([0, 99])),
    )


all_transitions = st.one_of(
    takes(),
    takes_in_order(),
    takes_in_order(),
    st.builds(Return, places, ids),
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
    of_groups = Counter(place.group for place, queue in model.queues.items() for _ in queue.deliveries)
    assert state.under_way_of == of_groups
    assert {place: told[place] for place in state.queues} == {
        place: queue.committed for place, queue in model.queues.items()
    }
    assert all(told[place] is None for place in told.keys() - model.queues.keys())
    renewed = {
        (place, DeliveryId(pop, offset))
        for place, queue in model.queues.items()
        for offset, (pop, _, until, _) in queue.deliveries.items()
        if until
    }
    assert {one for client in ("", "a", "ä") for one in state.renewed_for(client)} == renewed
    assert locks_of(state) == {
        place: {name: (queue.attempt_ids[name], group) for name, group in queue.groups.items()}
        for place, queue in model.queues.items()
        if queue.groups
    }
    assert state.ordered_count == sum(len(group) for queue in model.queues.values() for group in queue.groups.values())
    for place, queue in model.queues.items():
        free = {name for name, group in queue.groups.items() if all(one.step is Step.WAITS for one in group)}
        locks = state.queues[place].locks
        assert set(locks.ready if locks is not None else ()) == free
        for attempt_id in ("x", "y"):
            taken = {
                one.queue_offset
                for name, group in queue.groups.items()
                for one in group
                if queue.attempt_ids[name] == attempt_id and one.step is Step.DELIVERED
            }
            assert {one.queue_offset for one, _ in state.taken_by(place, attempt_id)} == taken


def locks_of(state: State) -> dict[Place, dict[str, tuple[str, list[Ordered]]]]:
    return {
        place: {name: (attempt_id, list(messages)) for name, attempt_id, messages in queue.locks.groups()}
        for place, queue in state.queues.items()
        if queue.locks is not None
    }


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
    queues = [
        (place, queue.next, queue.under_way, queue.locks.groups() if queue.locks is not None else ())
        for place, queue in state.queues.items()
    ]
    found = snapshot.decode(snapshot.encode(77, (5, 6), queues, state.recent()))
    assert (found.log_offset, found.tail) == (77, (5, 6))
    for transition in found.transitions:
        again.apply(transition)
    assert {place: (one.next, one.committed, one.under_way) for place, one in again.queues.items()} == {
        place: (one.next, one.committed, one.under_way) for place, one in state.queues.items()
    }
    assert (again.under_way_count, again.recent()) == (state.under_way_count, state.recent())
    assert again.due(25, 1000) == state.due(25, 1000)
    assert (locks_of(again), again.ordered_count) == (locks_of(state), state.ordered_count)
    for place in PLACES:
        for attempt_id in ("x", "y"):
            assert sorted(again.taken_by(place, attempt_id)) == sorted(state.taken_by(place, attempt_id))
    assert [set(again.renewed_for(client)) for client in ("", "a", "ä")] == [
        set(state.renewed_for(client)) for client in ("", "a", "ä")
    ]


def test_a_snapshot_has_any_number_of_deliveries_of_one_pop() -> None:
    """Deliveries that were taken over from RocketMQ can form one pop of any size, with one deadline for all
    messages.
    """
    count = 70_000
    state = State()
    for first in range(0, count, 1000):
        offsets = tuple(range(first, first + 1000))
        taken = Take(place=PLACE, pop=1, start=first, next=first + 1000, offsets=offsets, attempts=(1,) * 1000)
        state.apply(taken)
        state.apply(Deadline(place=PLACE, deliveries=tuple(DeliveryId(1, at) for at in offsets), deadline_ms=5))
        uncounted = tuple(DeliveryId(1, at) for at in offsets if at >= 1)
        state.apply(Deadline(place=PLACE, deliveries=uncounted, deadline_ms=5, counted=False))
    queue = state.queues[PLACE]
    again = State()
    for change in snapshot.decode(snapshot.encode(77, (5, 6), [(PLACE, queue.next, queue.under_way, ())])).transitions:
        again.apply(change)
    assert again.queues[PLACE].under_way == queue.under_way and len(queue.under_way) == count


def test_a_damaged_snapshot_is_none() -> None:
    data = snapshot.encode(77, (5, 6), [(PLACE, 3, {}, ())])
    for damaged in (b"", data[:-1], data[:20], data[:-1] + bytes((data[-1] ^ 1,)), bytes(len(data))):
        with pytest.raises(ValueError, match=r"bytes|CRC"):
            snapshot.decode(damaged)
    other_offset = data.replace((3).to_bytes(8, "big"), (4).to_bytes(8, "big"))
    assert other_offset != data
    with pytest.raises(ValueError, match="the CRC does not fit"):
        snapshot.decode(other_offset)


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


def test_deadlines_of_many_deliveries_in_one_transition_are_noted_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot can have thousands of deliveries of one pop, and the heap of deadlines must not be rebuilt for each of
    them.
    """
    made: list[int] = []
    monkeypatch.setattr(heapq, "heapify", lambda heap: made.append(len(heap)))
    state, count = State(), 5_000
    state.apply(take(PLACE, 1, 0, *range(count)))
    assert (state.under_way_count, len(state.due(2**62, 2 * count)), made) == (count, count, [])


def test_deadlines_of_what_is_acknowledged_do_not_pile_up() -> None:
    """A consumer with an invisible time of hours acknowledges thousands of messages a second."""
    state, chance = State(), random.Random(1)
    for offset in range(20_000):
        state.apply(take(PLACE, offset, offset, offset, deadline_ms=chance.randrange(10**9)))
        state.apply(Settle(PLACE, (DeliveryId(offset, offset),)))
        assert list(state.take_changed()) == [(PLACE, offset + 1)]
    assert held_without_recent(state) < 150_000, "1000 deadlines and offsets"


def test_what_is_acknowledged_behind_one_long_delivery_does_not_pile_up() -> None:
    state = State()
    state.apply(take(PLACE, 1, 0, 0))
    for offset in range(1, 5000):
        state.apply(take(PLACE, 2, offset, offset))
        state.apply(Settle(PLACE, (DeliveryId(2, offset),)))
        assert state.queues[PLACE].committed == 0
    assert held_bytes(state.queues[PLACE]) < 80_000, "1000 offsets"
    state.apply(take(PLACE, 3, 5000, 5000))
    state.apply(Settle(PLACE, (DeliveryId(1, 0),)))
    assert state.queues[PLACE].committed == 5000


# --- message groups ---------------------------------------------------------------------------------------------------


def group_of(state: State, name: str) -> list[tuple[int, int, Step]]:
    messages = locks_of(state).get(PLACE, {}).get(name, ("", []))[1]
    return [(one.queue_offset, one.attempt, one.step) for one in messages]


def test_what_comes_again_begins_at_the_first_message_without_an_ack_and_has_the_acknowledged_ones_behind_it() -> None:
    """As in the official suite's testFIFO_simple_receive_multi_nack, later messages are acknowledged and an earlier one
    is not.
    """
    state = State()
    state.apply(in_order(PLACE, 7, 0, a=[*delivered(0, 1, 2, 3), *waits(5)]))
    state.apply(Settle(PLACE, tuple(DeliveryId(7, offset) for offset in (2, 3, 0))))
    assert (state.take_released(), state.queues[PLACE].committed) == (set(), 1)
    state.apply(Return(PLACE, (DeliveryId(7, 1),)))
    assert (state.take_released(), state.queues[PLACE].committed) == ({PLACE}, 1)
    assert group_of(state, "a") == [(1, 1, 0), (2, 1, 0), (3, 1, 0), (5, 0, 0)]
    state.apply(in_order(PLACE, 8, 6, a=delivered(1, 2, 3, attempt=2)))
    assert [(one.pop, one.attempt) for one in state.queues[PLACE].under_way.values()] == [(8, 2)] * 3


def test_a_message_group_is_free_when_no_delivery_of_its_batch_is_under_way() -> None:
    state = State()
    state.apply(in_order(PLACE, 7, 0, a=[*delivered(0, 1), *waits(2)], b=[*delivered(3), *waits(4)]))
    state.apply(Return(PLACE, (DeliveryId(7, 0),)))
    state.apply(in_order(PLACE, 8, 5, a=delivered(0, attempt=2)))  # the second message of this group is still under way
    assert set(state.queues[PLACE].under_way) == {1, 3}
    state.apply(Move(PLACE, DeliveryId(7, 1), is_dead_letter=True))
    assert state.take_released() == {PLACE}
    state.apply(in_order(PLACE, 9, 5, a=delivered(2)))  # out of turn
    assert set(state.queues[PLACE].under_way) == {3}
    state.apply(in_order(PLACE, 9, 5, a=delivered(0, 1, 2, attempt=2)))
    assert set(state.queues[PLACE].under_way) == {0, 1, 2, 3}


def test_what_has_come_back_uncounted_counts_no_attempt() -> None:
    state = State()
    state.apply(in_order(PLACE, 7, 0, a=delivered(0, 1, attempt=3)))
    state.apply(Deadline(place=PLACE, deliveries=(DeliveryId(7, 0),), deadline_ms=0, counted=False))
    state.apply(Return(PLACE, (DeliveryId(7, 0), DeliveryId(7, 1))))
    assert group_of(state, "a") == [(0, 2, 0), (1, 3, 0)]


def test_what_waited_and_has_expired_is_forgotten() -> None:
    state = State()
    state.apply(in_order(PLACE, 7, 0, a=[*delivered(0), *waits(1, 2)]))
    state.apply(Settle(PLACE, (DeliveryId(7, 0),)))
    state.apply(in_order(PLACE, 8, 3, a=[Ordered(1, 0, Step.GONE), *delivered(2)]))
    assert (set(state.queues[PLACE].under_way), state.queues[PLACE].committed) == ({2}, 2)


def test_nothing_is_left_of_message_groups_that_are_settled() -> None:
    state = State()
    for offset in range(0, 6000, 2):
        name = f"group{offset}"
        state.apply(in_order(PLACE, offset, offset, "x", **{name: [*delivered(offset), *waits(offset + 1)]}))
        state.apply(Settle(PLACE, (DeliveryId(offset, offset),)))
        state.apply(in_order(PLACE, offset, offset + 2, "x", **{name: delivered(offset + 1)}))
        state.apply(Settle(PLACE, (DeliveryId(offset, offset + 1),)))
        state.take_released()
    queue = state.queues[PLACE]
    assert (queue.committed, queue.locks, state.ordered_count, state.under_way_count) == (6000, None, 0, 0)
    assert held_without_recent(state) < 150_000, "1000 deadlines and offsets"


def test_names_are_in_memory_once_and_what_is_settled_leaves_nothing() -> None:
    """A broker has many groups, and most queues of a group have no delivery under way, so these queues must need little
    memory.
    """
    state, places = State(), [Place("group", "topic", queue_id) for queue_id in range(3)]
    for place in places:
        for change in (
            take(place, 1, 0, *range(32)),
            Settle(place, tuple(DeliveryId(1, offset) for offset in range(32))),
        ):
            (told,) = transitions.decode(transitions.encode([change]))
            state.apply(told)
    assert len({id(place.group) for place in state.queues}) == len({id(place.topic) for place in state.queues}) == 1
    assert {sys.getsizeof(queue.under_way) for queue in state.queues.values()} == {sys.getsizeof({})}
