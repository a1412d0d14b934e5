"""The state of transactions equals a plain model, also after it is read again from the transactions' records."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record
from rocketsim_proto.reserved import DISCARDED_TOPIC, HALF_TOPIC, OP_TOPIC

from broker_service.errors import StoreTooNew
from broker_service.state import half_messages, snapshot, transitions
from broker_service.state.open_transactions import MAX_RECENT, OpenTransactions
from broker_service.state.state import State
from broker_service.state.transaction_changes import (
    Checked,
    Ended,
    Prepared,
    Resolution,
    Resolved,
    TransactionChange,
    TransactionId,
)
from tests.support.held_memory import held_bytes

COMMIT, ROLLBACK, DISCARDED, UNKNOWN = (
    Resolution.COMMIT,
    Resolution.ROLLBACK,
    Resolution.DISCARDED,
    Resolution.UNKNOWN,
)
A = TransactionId("t", "a")


def prepared(transaction: TransactionId, queue_offset: int, due_ms: int = 0, **fields: Any) -> Prepared:
    return Prepared(
        transaction=transaction, queue_offset=queue_offset, log_offset=1000 + queue_offset, due_ms=due_ms, **fields
    )


@dataclass
class Model:
    """All half messages in their order, and how each of them ended."""

    halves: list[Prepared] = field(default_factory=list)
    # queue offset -> how the half message ended, or None while it is open
    ends: dict[int, Resolution | None] = field(default_factory=dict)
    logged: set[int] = field(default_factory=set)
    resolutions: dict[TransactionId, Resolution] = field(default_factory=dict)
    # queue offset -> when the producer is asked next, and how often it was asked
    dues: dict[int, tuple[int, int]] = field(default_factory=dict)

    def open(self) -> dict[TransactionId, int]:
        return {one.transaction: one.queue_offset for one in self.halves if self.ends[one.queue_offset] is None}

    def unlogged(self) -> set[int]:
        return {offset for offset, end in self.ends.items() if end is not None} - self.logged

    def apply(self, change: TransactionChange) -> None:
        match change:
            case Prepared():
                if (before := self.open().get(change.transaction)) is not None:
                    self.ends[before] = UNKNOWN
                self.resolutions.pop(change.transaction, None)
                self.halves.append(change)
                self.ends[change.queue_offset] = None
                self.logged.discard(change.queue_offset)
                self.dues[change.queue_offset] = change.due_ms, change.checks
            case Checked(due_ms, checks):
                for offset, times in checks:
                    if offset in self.open().values():
                        self.dues[offset] = due_ms, times
            case Ended(offsets, resolution):
                for offset in offsets:
                    self.logged.add(offset)
                    for transaction, there in self.open().items():
                        if there == offset:
                            self._resolve(transaction, offset, resolution)
            case Resolved(transaction, resolution):
                if (offset := self.open().get(transaction)) is not None:
                    self.ends[offset] = resolution
                if resolution is not UNKNOWN:
                    self.resolutions[transaction] = resolution

    def _resolve(self, transaction: TransactionId, offset: int, resolution: Resolution) -> None:
        self.ends[offset] = resolution
        if resolution is not UNKNOWN:
            self.resolutions[transaction] = resolution


transactions = st.builds(TransactionId, st.sampled_from("tu"), st.sampled_from(["a", "b", "ä" * 200]))
offsets = st.integers(0, 12)
times = st.integers(0, 20)
resolutions = st.sampled_from(Resolution)


@st.composite
def histories(draw: st.DrawFn) -> list[TransactionChange]:
    """Draws changes.  New half messages have rising offsets.  All other changes name half messages by any offsets, even
    by offsets that no half message has.
    """
    history: list[TransactionChange] = []
    for _ in range(draw(st.integers(0, 40))):
        kind = draw(st.integers(0, 5))
        if kind < 3:
            count = sum(isinstance(one, Prepared) for one in history)
            client = draw(st.sampled_from(["", "client"]))
            history.append(prepared(draw(transactions), count, draw(times), client_id=client, checks=draw(times)))
        elif kind == 3:
            checks = draw(st.lists(st.tuples(offsets, st.integers(0, 20)), max_size=3))
            history.append(Checked(draw(times), tuple(checks)))
        elif kind == 4:
            history.append(Ended(tuple(draw(st.lists(offsets, max_size=3))), draw(resolutions)))
        else:
            history.append(Resolved(draw(transactions), draw(resolutions)))
    return history


def facts(state: OpenTransactions) -> tuple[object, ...]:
    return (
        {transaction: one.queue_offset for transaction, one in state.open.items()},
        {one.queue_offset: (one.due_ms, one.checks) for one in state.open.values()},
        set(state.unlogged),
        {name: resolution for name in every_transaction() if (resolution := state.resolution_of(name)) is not None},
    )


def every_transaction() -> list[TransactionId]:
    return [TransactionId(topic, name) for topic in "tu" for name in ("a", "b", "ä" * 200)]


@given(histories(), times)
def test_the_state_is_the_models(history: list[TransactionChange], now_ms: int) -> None:
    state, model = OpenTransactions(), Model()
    for change in history:
        state.apply(change)
        model.apply(change)
        is_open = set(model.open().values())
        dues = {offset: due for offset, due in model.dues.items() if offset in is_open}
        assert facts(state) == (model.open(), dues, model.unlogged(), model.resolutions)
        due = state.due(now_ms, 100)
        assert [one.due_ms for one in due] == sorted(due_ms for due_ms, _ in dues.values() if due_ms <= now_ms)
        assert {one.queue_offset for one in due} == {offset for offset, (at, _) in dues.items() if at <= now_ms}
        assert state.next_due_ms() == min((at for at, _ in dues.values()), default=None)
        first = state.first()
        assert (first.queue_offset if first else None) == min(is_open, default=None)


@given(histories())
def test_a_snapshot_makes_it_again(history: list[TransactionChange]) -> None:
    state = State()
    for change in history:
        state.apply(change)
    again = State()
    for change in snapshot.decode(snapshot.encode(0, (0, 0), (), (), state.transactions.rebuilding())).transitions:
        again.apply(change)
    assert facts(again.transactions) == facts(state.transactions)
    assert again.transactions.open == state.transactions.open


def test_a_snapshot_is_of_the_moment_that_it_was_asked_for() -> None:
    state = OpenTransactions()
    state.apply(prepared(A, 0))
    rebuilding = state.rebuilding()
    state.apply(Ended((0,), COMMIT))
    assert list(rebuilding) == [prepared(A, 0)]


def test_what_is_remembered_of_ended_transactions_is_bounded() -> None:
    state = OpenTransactions()
    for number in range(MAX_RECENT + 1):
        state.apply(Resolved(TransactionId("t", str(number)), COMMIT))
    assert state.resolution_of(TransactionId("t", "0")) is None
    assert state.resolution_of(TransactionId("t", "1")) is COMMIT


def test_asking_again_and_again_leaves_no_garbage() -> None:
    state = OpenTransactions()
    state.apply(prepared(A, 0))
    for number in range(5000):
        state.apply(Checked(number, ((0, 1),)))
    assert held_bytes(state) < 200_000, "1000 times"
    assert [one.due_ms for one in state.due(10_000, 10)] == [4999]


@given(histories())
def test_changes_have_bytes(history: list[TransactionChange]) -> None:
    written = [one for one in history if not isinstance(one, Ended)]
    assert transitions.decode(transitions.encode(written)) == written
    data = transitions.encode(written[:1])
    for end in range(2, len(data)):
        with pytest.raises((ValueError, StoreTooNew)):
            transitions.decode(data[:end])


# --- records --------------------------------------------------------------------------------------------------------


def half(**fields: Any) -> Record:
    message = Record("t", b"body", queue_id=3, born_timestamp=5, sys_flag=1, properties={"UNIQ_KEY": "a", "TAGS": "x"})
    asked: dict[str, Any] = {"client_id": "me", "first_check_ms": 7000, "immunity_s": 0} | fields
    made = half_messages.half_message(message, **asked)
    made.queue_offset, made.commit_log_offset, made.store_timestamp = 12, 4711, 1000
    return made


def test_a_half_message_is_rocketmqs() -> None:
    made = half()
    assert (made.topic, made.queue_id, made.sys_flag, made.body) == (HALF_TOPIC, 0, 1, b"body")
    assert made.properties == {
        "UNIQ_KEY": "a",
        "TAGS": "x",
        "REAL_TOPIC": "t",
        "REAL_QID": "3",
        "TRAN_MSG": "true",
        "__transactionId__": "a",
        "__CHECK": "7000 me",
    }
    assert half_messages.change_in(made) == Prepared(
        transaction=A, queue_offset=12, log_offset=4711, client_id="me", due_ms=7000
    )
    assert half(immunity_s=30).properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "30"
    assert half(client_id="c" * 256).properties["__CHECK"] == "7000 "


@pytest.mark.parametrize(("asked", "due_ms"), [(None, 7000), ("30", 31_000), ("-1", 7000), ("x", 7000), ("²", 7000)])
def test_a_half_message_that_rocketmq_has_written_is_due_as_it_would_be_there(asked: str | None, due_ms: int) -> None:
    made = half()
    del made.properties["__CHECK"]
    if asked is not None:
        made.properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = asked
    made.properties["TRANSACTION_CHECK_TIMES"] = "3"
    told = half_messages.change_in(made)
    assert isinstance(told, Prepared)
    assert (told.due_ms, told.checks, told.client_id) == (due_ms, 3, "")


def test_a_committed_copy_names_its_half_message() -> None:
    copy = half_messages.committed_copy(half(), 2)
    assert (copy.topic, copy.queue_id, copy.sys_flag, copy.prepared_transaction_offset) == ("t", 2, 9, 4711)
    assert (copy.body, copy.born_timestamp) == (b"body", 5)
    assert copy.properties == {"UNIQ_KEY": "a", "TAGS": "x", "TRAN_MSG": "true", "__transactionId__": "a"}


def test_op_records_are_rocketmqs() -> None:
    (op,) = half_messages.op_records([5, 12], ROLLBACK, 99)
    assert (op.topic, op.queue_id, op.body, op.born_timestamp) == (OP_TOPIC, 0, b"5,12,", 99)
    assert op.properties[record.PROPERTY_TAGS] == "d"
    assert half_messages.change_in(op) == Ended((5, 12), ROLLBACK)
    many = half_messages.op_records(list(range(10_000)), COMMIT, 0)
    assert max(len(one.body) for one in many) <= 4096
    said = [half_messages.change_in(one) for one in many]
    assert [offset for one in said if isinstance(one, Ended) for offset in one.queue_offsets] == list(range(10_000))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"7", Ended((7,), UNKNOWN)),  # as 4.x
        (b"7,8,", Ended((7, 8), UNKNOWN)),
        (b"", None),
        (b"x,,-1,\xff", None),
    ],
)
def test_what_rocketmqs_op_records_say(body: bytes, told: Ended | None) -> None:
    assert half_messages.change_in(Record(OP_TOPIC, body, properties={"TAGS": "d"})) == told


def test_records_of_others_say_nothing() -> None:
    assert half_messages.change_in(Record(OP_TOPIC, b"7,", properties={"TAGS": "x"})) is None
    assert half_messages.change_in(Record(HALF_TOPIC, b"", properties={"UNIQ_KEY": "a"})) is None
    assert half_messages.change_in(Record(DISCARDED_TOPIC, b"")) is None


def test_a_discarded_copy_ends_the_transaction() -> None:
    copy = half_messages.discarded_copy(half())
    assert (copy.topic, copy.queue_id, copy.body) == (DISCARDED_TOPIC, 0, b"body")
    assert half_messages.change_in(copy) == Resolved(A, DISCARDED)


def test_a_half_message_that_is_appended_again_takes_the_others_place() -> None:
    state = OpenTransactions()
    state.apply(half_messages.change_in(half()) or Ended((), UNKNOWN))
    again = half_messages.renewed_half(half(), 4, 9000, "me")
    again.queue_offset, again.commit_log_offset = 13, 5000
    state.apply(half_messages.change_in(again) or Ended((), UNKNOWN))
    assert state.open[A] == Prepared(
        transaction=A, queue_offset=13, log_offset=5000, client_id="me", checks=4, due_ms=9000
    )
    assert set(state.unlogged) == {12}
    (copy,) = (half_messages.committed_copy(again, 0),)
    assert copy.properties.get("__CHECK") is None
