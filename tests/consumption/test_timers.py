"""The state of timers equals a plain model; the tests also check its bytes, and the records of messages with a delivery
time.
"""

import tracemalloc
from array import array
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record

from broker_service.errors import InvalidParameter, MessageIllegal, StoreTooNew
from broker_service.state import snapshot, timer_record, transitions
from broker_service.state.state import State
from broker_service.state.timers import Timers
from broker_service.state.transitions import Copied, Copying, Timer, Waiting

START_S = 1_795_200_000
SECONDS = st.integers(1, 4)


class Settling(NamedTuple):
    """Settles the timers with these numbers, counted from the first timer.  Some of these timers are already settled,
    or belong to another second.
    """

    second: int
    numbers: list[int]


changes = st.lists(
    st.builds(Timer, SECONDS, st.just(0), st.sampled_from(["", "", "", "t+a", "t+b"]))
    | st.builds(Settling, SECONDS, st.lists(st.integers(0, 12), max_size=5))
    | st.builds(Copying, st.integers(0, 5000)),
    max_size=40,
)


def placed(given_changes: list[Timer | Settling | Copying]) -> list[Timer | Copied | Copying]:
    """Gives the timers log offsets in rising order."""
    found: list[Timer | Copied | Copying] = []
    for number, change in enumerate(given_changes):
        match change:
            case Timer(second, _, key):
                found.append(Timer(second, 100 * number, key))
            case Settling(second, numbers):
                offsets = [one.log_offset for one in found if isinstance(one, Timer)]
                found.append(Copied(second, tuple(offsets[one] for one in numbers if one < len(offsets))))
            case Copying():
                found.append(change)
    return found


def model(given_changes: list[Timer | Copied | Copying]) -> dict[int, list[int]]:
    waiting: dict[int, list[int]] = {}
    for change in given_changes:
        if isinstance(change, Timer):
            waiting.setdefault(change.second, []).append(change.log_offset)
        elif isinstance(change, Copied):
            left = [one for one in waiting.pop(change.second, []) if one not in change.log_offsets]
            if left:
                waiting[change.second] = left
    return waiting


def contents(timers: Timers) -> dict[int, list[int]]:
    return {second: timers.first(second, 1000) for second in timers.due(10**9)}


@given(changes)
def test_what_waits_is_what_came_without_what_is_settled(some: list[Timer | Settling | Copying]) -> None:
    applied, timers = placed(some), Timers()
    for number, change in enumerate(applied, 1):
        timers.apply(change)
        assert timers.next_second() == min(model(applied[:number]), default=None)
    expected = model(applied)
    offsets = sorted(one for second in expected.values() for one in second)
    assert contents(timers) == dict(sorted(expected.items()))
    assert (timers.count, timers.oldest()) == (len(offsets), min(offsets, default=None))
    assert list(contents(timers)) == sorted(expected)
    for second in range(5):
        assert [one for one in range(0, 4000, 50) if timers.waits(second, one)] == expected.get(second, [])
        assert (
            timers.first(second, 2, without={0, 300})
            == [one for one in expected.get(second, []) if one not in (0, 300)][:2]
        )
    before = {second: [one for one in some if one < 1000] for second, some in expected.items()}
    assert dict(timers.before(1000)) == {second: some for second, some in before.items() if some}


@given(changes)
def test_a_snapshot_makes_the_same_timers_again(some: list[Timer | Settling | Copying]) -> None:
    state, again = State(), State()
    for change in placed(some):
        state.apply(change)
    data = snapshot.encode(77, (5, 6), [], (), state.timers.rebuilding())
    for transition in snapshot.decode(data).transitions:
        again.apply(transition)
    assert contents(again.timers) == contents(state.timers)
    assert list(again.timers.rebuilding()) == list(state.timers.rebuilding())
    for name in ("count", "copying", "unread", "weight"):
        assert getattr(again.timers, name) == getattr(state.timers, name), name


offsets = st.integers(0, 2**62)
some_transitions = st.builds(Copied, st.integers(0, 2**40), st.lists(offsets).map(tuple)) | st.builds(Copying, offsets)


@given(st.lists(some_transitions))
def test_transitions_survive_their_bytes(some: list[Copied | Copying]) -> None:
    body = transitions.encode([*some])
    assert transitions.decode(body) == some
    for end in range(1, len(body) - 1):
        try:
            assert len(transitions.decode(body[:end])) <= len(some)
        except ValueError:
            continue


def test_a_kind_of_a_newer_version_is_told() -> None:
    with pytest.raises(StoreTooNew, match="kind 99"):
        transitions.decode(bytes((transitions.VERSION, 99)))


def test_a_second_is_due_when_it_is_over_and_no_later_one_with_it() -> None:
    timers = Timers()
    for offset, second in enumerate((7, 5, 5)):
        timers.apply(Timer(second, offset))
    assert timers.due(5999) == []
    assert [timers.due(6000), timers.due(7999)] == [[5], [5]]
    assert timers.due(8000) == [5, 7]


def test_a_recall_weighs_more_than_a_message_until_its_second_is_settled() -> None:
    timers = Timers()
    timers.apply(Timer(5, 100, ""))
    for log_offset in (200, 300):
        timers.apply(Timer(5, log_offset, "t+a"))
    assert (timers.count, timers.weight) == (3, 13)
    again = Timers()
    for transition in timers.rebuilding():
        again.apply(transition)
    assert again.weight == 13
    timers.apply(Copied(5, (100, 200, 300)))
    assert timers.weight == 0


def test_a_recall_is_known_until_its_second_is_settled() -> None:
    timers = Timers()
    for transition in (Timer(5, 0), Timer(5, 10, "t+a"), Timer(6, 20)):
        timers.apply(transition)
    timers.apply(Copied(5, (10,)))
    assert timers.is_recalled(5, "t+a")  # the message itself could not be read yet
    assert not timers.is_recalled(6, "t+a") and not timers.is_recalled(5, "t+b")
    timers.apply(Copied(5, (0,)))
    assert not timers.is_recalled(5, "t+a")


def test_what_was_being_copied_is_remembered_from_its_first_beginning() -> None:
    timers = Timers()
    for transition in (Timer(5, 0), Copying(100), Copying(200)):
        timers.apply(transition)
    assert timers.copying == 100
    timers.apply(Copied(0))
    assert (timers.copying, timers.count) == (None, 1)


def test_what_is_settled_in_front_of_others_of_its_second_is_forgotten() -> None:
    timers = Timers()
    for offset in range(20_000):
        timers.apply(Timer(5, offset))
        timers.apply(Copied(5, (offset - 1,)))
    assert timers.first(5, 10) == [19_999]
    (waiting,) = timers.rebuilding()
    assert isinstance(waiting, Waiting)
    assert array("q", waiting.log_offsets).tolist() == [19_999]


def test_a_timer_takes_some_tens_of_bytes() -> None:
    tracemalloc.start()
    try:
        timers = Timers()
        for number in range(50_000):
            timers.apply(Timer(START_S + number * 7919 % 4320, number * 400))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 40 * timers.count


# --- records ----------------------------------------------------------------------------------------------------------

NOW = 1_795_200_000_123
SENT = Record("t", b"body", queue_id=3, flag=5, born_timestamp=9, properties={"UNIQ_KEY": "id", "TAGS": "a"})


@pytest.mark.parametrize(
    ("deliver_ms", "expected"),
    [(10_000, 9_000), (10_001, 10_000), (10_999, 10_000), (11_000, 10_000), (1_000, 0), (1_001, 1_000)],
)
def test_the_second_is_the_last_one_before_the_delivery_time(deliver_ms: int, expected: int) -> None:
    """As in RocketMQ, a message is due at the end of the first second that ends at its delivery time or later, and so
    never before its time.
    """
    assert timer_record.out_ms(deliver_ms) == expected
    assert 0 <= (expected // 1000 + 1) * 1000 - deliver_ms < 1000


def test_a_message_waits_as_rocketmq_has_it_and_is_delivered_as_it_was_sent() -> None:
    waiting = timer_record.waiting_record(SENT, NOW + 5000, NOW)
    assert (waiting.topic, waiting.queue_id, waiting.body, waiting.flag) == ("rmq_sys_wheel_timer", 0, b"body", 5)
    assert waiting.properties == {
        "UNIQ_KEY": "id",
        "TAGS": "a",
        "TIMER_OUT_MS": "1795200005000",
        "REAL_TOPIC": "t",
        "REAL_QID": "3",
    }
    waiting.commit_log_offset = 4711
    delivered = timer_record.delivered_record(waiting)
    assert (delivered.topic, delivered.queue_id, delivered.body, delivered.flag) == ("t", 3, b"body", 5)
    assert delivered.born_timestamp == 9
    assert delivered.properties == SENT.properties | {
        "TIMER_OUT_MS": "1795200005000",
        "__TIMER_SOURCE": "1795200005 4711",
    }


def test_each_copy_names_its_source() -> None:
    waiting = timer_record.waiting_record(SENT, NOW + 5000, NOW)
    waiting.commit_log_offset = 4711
    moved = timer_record.moved_record(waiting)
    assert (moved.topic, moved.properties["REAL_TOPIC"]) == ("rmq_sys_wheel_timer", "t")
    moved.commit_log_offset = 9000
    log = b"".join(map(record.encode, (SENT, moved, timer_record.delivered_record(moved), SENT)))
    copies = ("rmq_sys_wheel_timer", (1_795_200_005, 4711)), ("t", (1_795_200_005, 9000))
    assert list(timer_record.sources(log)) == [("t", None), *copies, ("t", None)]
    damaged = Record("t", b"", properties={"__TIMER_SOURCE": "5"})
    assert list(timer_record.sources(record.encode(damaged))) == [("t", None)]


def test_three_days_are_the_most() -> None:
    timer_record.waiting_record(SENT, NOW + timer_record.MAX_TIMER_DELAY_MS, NOW)
    with pytest.raises(MessageIllegal, match="259200 s"):
        timer_record.waiting_record(SENT, NOW + timer_record.MAX_TIMER_DELAY_MS + 1, NOW)


def test_properties_without_room_for_those_of_the_copy_are_refused_when_sent() -> None:
    for size in range(32_500, 32_760):
        large = Record("t", b"", properties={"A": "x" * size})
        try:
            waiting = timer_record.waiting_record(large, NOW + 5000, NOW)
        except MessageIllegal:
            break
        waiting.commit_log_offset = 2**62
        record.encode(timer_record.delivered_record(waiting))
        record.encode(timer_record.moved_record(waiting))
    else:
        pytest.fail("all were taken")


def test_a_recall_is_rocketmqs_delete_record() -> None:
    recall = timer_record.recall_record("t", "id", NOW + 5000, NOW)
    assert recall.topic == "rmq_sys_wheel_timer"
    assert recall.properties == {
        "TAGS": "_RECALL_TAG_",
        "TIMER_DEL_UNIQKEY": "t+id",
        "UNIQ_KEY": "id",
        "TIMER_DELIVER_MS": "1795200005123",
        "TIMER_OUT_MS": "1795200005000",
        "REAL_TOPIC": "t",
        "REAL_QID": "0",
    }
    waiting = timer_record.waiting_record(SENT, NOW + 5000, NOW)
    assert timer_record.key_of(waiting) == recall.properties["TIMER_DEL_UNIQKEY"]
    assert timer_record.second_of(waiting) == timer_record.second_of(recall)


@pytest.mark.parametrize("late_ms", [0, -1, timer_record.MAX_TIMER_DELAY_MS])
def test_a_recall_after_the_delivery_time_is_refused(late_ms: int) -> None:
    with pytest.raises(InvalidParameter, match="timestamp invalid"):
        timer_record.recall_record("t", "id", NOW + late_ms, NOW)


@pytest.mark.parametrize("value", ["", "soon", "\uff11", "-1", "9" * 20])
def test_a_record_that_says_no_time_waits_for_none(value: str) -> None:
    with pytest.raises(ValueError, match="names no time"):
        timer_record.second_of(Record("t", b"", properties={"TIMER_OUT_MS": value}))


@pytest.mark.parametrize("lost", ["REAL_TOPIC", "REAL_QID"])
def test_a_record_that_does_not_say_where_it_belongs_cannot_be_delivered(lost: str) -> None:
    waiting = timer_record.waiting_record(SENT, NOW + 5000, NOW)
    del waiting.properties[lost]
    with pytest.raises(ValueError, match="belongs"):
        timer_record.delivered_record(waiting)
