"""Ranged reads of a task: the choice of the broker, the handling of answers, and every record once and in order."""

import itertools
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest

from rocketsim_client.errors import (
    BadAnswer,
    BrokerNotExist,
    BrokerRefused,
    BrokerUnavailable,
    ClientClosed,
    ExpressionInvalid,
    NoRoute,
    RocketSimError,
    ServiceNotAvailable,
    StoreDamaged,
    SystemBusy,
    TopicNotExist,
)
from rocketsim_client.model import GetMessageStatus, MessageQueue, OffsetRange, PullFrame, Segment
from rocketsim_source.options.data_loss import DataLossError
from rocketsim_source.options.source_options import source_options
from rocketsim_source.reading.early_ends import SlaveBehind
from rocketsim_source.reading.range_fetch import RangeFetch
from tests.source.memory_cluster import MemoryCluster, message

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


class FakeTime:
    """A clock that moves only in `sleep`, which then calls `on_sleep`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.on_sleep = lambda: None

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()


def fetch(
    cluster: MemoryCluster,
    ranges: list[OffsetRange],
    hints: MutableMapping[MessageQueue, int] | None = None,
    time: FakeTime | None = None,
    **given: str,
) -> list[tuple[MessageQueue, int, int]]:
    """Returns (queue, offset, id of the broker that served it) of every record, in the order of arrival."""
    options = source_options({"nameServer": "h:1", "topic": "T"} | given, streaming=True)
    time = time or FakeTime()
    reader = RangeFetch(cluster, ranges, {} if hints is None else hints, options, clock=time.clock, sleep=time.sleep)
    found = []
    for fetched in reader.frames():
        offsets = iter(fetched.records.queue_offset.tolist())
        found += [
            (extent.queue, next(offsets), fetched.broker_id) for extent in fetched.extents for _ in range(extent.size)
        ]
    return found


def offsets_of(found: list[tuple[MessageQueue, int, int]], queue: MessageQueue = Q0) -> list[int]:
    return [offset for of_queue, offset, _ in found if of_queue == queue]


def servers_of(found: list[tuple[MessageQueue, int, int]]) -> list[int]:
    """Returns the ids of the brokers that served, one for each run of records from the same broker."""
    served = [broker_id for _, _, broker_id in found]
    return [broker_id for index, broker_id in enumerate(served) if index == 0 or served[index - 1] != broker_id]


def pair(count: int = 50) -> MemoryCluster:
    cluster = MemoryCluster(0, 1)
    for queue in (Q0, Q1):
        cluster.put(queue, count)
    return cluster


def test_ranges_come_in_order_and_exactly() -> None:
    found = fetch(pair(), [OffsetRange(Q0, 5, 32), OffsetRange(Q1, 0, 3)])
    assert found == [(Q0, n, 0) for n in range(5, 32)] + [(Q1, n, 0) for n in range(3)]


def test_the_suggested_broker_is_followed_after_the_frame_and_remembered() -> None:
    cluster, hints = pair(), {}
    cluster.brokers[0].suggest = 1
    cluster.brokers[1].suggest = 1
    found = fetch(cluster, [OffsetRange(Q0, 0, 30)], hints)
    assert offsets_of(found) == list(range(30))
    assert servers_of(found) == [0, 1]
    assert hints == {Q0: 1}
    assert servers_of(fetch(cluster, [OffsetRange(Q0, 30, 40)], hints)) == [1]


def test_the_order_of_records_does_not_depend_on_the_broker_that_serves_them() -> None:
    cluster = pair()
    cluster.brokers[0].suggests = [1, 0, 1]
    cluster.brokers[1].suggests = [0, 1, 0]
    ranges = [OffsetRange(Q0, 0, 40), OffsetRange(Q1, 0, 40)]
    moved = fetch(cluster, ranges, {Q1: 1})
    assert [one[:2] for one in moved] == [one[:2] for one in fetch(pair(), ranges)]
    assert len(servers_of(moved)) > 2


def frame_of(*pieces: tuple[int, MessageQueue, range, int, GetMessageStatus], broker_id: int = 0) -> PullFrame:
    """Returns a frame with records of several ranges, as brokers put small ranges together.  Each of `pieces` is the
    number of a range, its queue, the offsets, the queue's end, and a status.
    """
    records = [message(queue, offset) for _, queue, offsets, _, _ in pieces for offset in offsets]
    segments = [
        Segment(number, len(offsets), offsets.stop, 0, end, status) for number, queue, offsets, end, status in pieces
    ]
    return PullFrame(b"".join(records), b"", segments, broker_id, broker_id)


def test_the_order_does_not_change_when_a_slave_lacks_the_end_of_one_range_and_has_the_next() -> None:
    """With another order, a repeated task would number its rows differently, so the ids that the sink makes from places
    would change.
    """
    cluster = pair()
    found, behind = GetMessageStatus.FOUND, GetMessageStatus.OFFSET_OVERFLOW_ONE
    slaves = frame_of(
        (0, Q0, range(12), 12, found),
        (0, Q0, range(12, 12), 12, behind),
        (1, Q1, range(5), 50, found),
        broker_id=1,
    )
    cluster.brokers[1].spoil, cluster.brokers[1].suggest = [slaves], 1
    ranges = [OffsetRange(Q0, 0, 20), OffsetRange(Q1, 0, 20)]
    moved = fetch(cluster, ranges, {Q0: 1, Q1: 1})
    assert [one[:2] for one in moved] == [(Q0, n) for n in range(20)] + [(Q1, n) for n in range(20)]
    assert servers_of(moved) == [1, 0, 1]


@pytest.mark.parametrize(
    ("read_from", "served"), [("suggested", [0, 1]), ("master", [0]), ("masterOnly", [0]), ("slave", [1])]
)
def test_read_from(read_from: str, served: list[int]) -> None:
    cluster = pair()
    cluster.brokers[0].suggest = cluster.brokers[1].suggest = 1
    assert servers_of(fetch(cluster, [OffsetRange(Q0, 0, 30)], readFrom=read_from)) == served


def test_reading_from_a_slave_ignores_suggestions() -> None:
    """The suggestions may come from another query of the same worker, which was sent to the master."""
    assert servers_of(fetch(pair(), [OffsetRange(Q0, 0, 30)], {Q0: 0}, readFrom="slave")) == [1]


def test_a_suggestion_is_followed_in_the_task_only_where_it_is_kept_there() -> None:
    cluster = pair()
    cluster.brokers[0].suggest = 1
    hints: dict[MessageQueue, int] = {}
    assert servers_of(fetch(cluster, [OffsetRange(Q0, 0, 30)], hints, suggestScope="worker")) == [0]
    assert hints == {Q0: 1}  # for the next task
    cluster.brokers[1].suggest = 0
    assert servers_of(fetch(cluster, [OffsetRange(Q0, 0, 30)], {Q0: 1}, suggestScope="driver")) == [1]
    assert servers_of(fetch(cluster, [OffsetRange(Q0, 0, 30)], {Q0: 1}, suggestScope="task")) == [1, 0, 1]


def test_a_suggestion_of_a_broker_that_is_away_is_not_followed() -> None:
    cluster = pair()
    cluster.brokers[0].up = False
    found = fetch(cluster, [OffsetRange(Q0, 0, 50)])
    assert servers_of(found) == [1]
    assert len(cluster.brokers[1].pulls) == 1  # one call for all frames


def test_a_master_that_dies_in_the_middle_is_replaced_by_its_slave_without_a_gap() -> None:
    cluster = pair()
    cluster.brokers[0].frames_until_it_breaks = 2
    time = FakeTime()
    time.on_sleep = lambda: setattr(cluster.brokers[0], "up", False)
    found = fetch(cluster, [OffsetRange(Q0, 0, 50)], time=time)
    assert offsets_of(found) == list(range(50))
    assert servers_of(found) == [0, 1]


@pytest.mark.parametrize(("backoff", "waited_s"), [("100", 0.7), ("200", 1.4)])
def test_a_task_fails_after_its_retries_if_no_broker_answers(backoff: str, waited_s: float) -> None:
    cluster, time = pair(), FakeTime()
    for broker in cluster.brokers.values():
        broker.up = False
    with pytest.raises(BrokerUnavailable):
        fetch(cluster, [OffsetRange(Q0, 0, 50)], time=time, pullRetries="3", pullRetryBackoffMs=backoff)
    assert time.now == pytest.approx(waited_s)


def test_master_only_asks_no_slave() -> None:
    cluster = pair()
    cluster.brokers[0].up = False
    with pytest.raises(BrokerUnavailable):
        fetch(cluster, [OffsetRange(Q0, 0, 50)], readFrom="masterOnly", pullRetries="1")
    assert not cluster.brokers[1].pulls


def test_the_end_that_a_slave_lacks_is_read_from_the_master() -> None:
    cluster = pair()
    cluster.brokers[1].end[Q0] = 12
    found = fetch(cluster, [OffsetRange(Q0, 0, 50)], {Q0: 1})
    assert offsets_of(found) == list(range(50))
    assert servers_of(found)[-1] == 0


def test_a_task_waits_for_a_slave_that_is_behind_while_no_master_answers() -> None:
    cluster, time = pair(), FakeTime()
    cluster.brokers[0].up = False
    cluster.brokers[1].end[Q0] = 12

    def master_is_back() -> None:
        cluster.brokers[0].up = time.now > 5

    time.on_sleep = master_is_back
    found = fetch(cluster, [OffsetRange(Q0, 0, 50)], time=time)
    assert offsets_of(found) == list(range(50))
    assert servers_of(found) == [1, 0]


@pytest.mark.parametrize("policy", [{}, {"failOnDataLoss": "false"}])
def test_a_slave_that_is_behind_is_no_data_loss(policy: dict[str, str]) -> None:
    cluster, time = pair(), FakeTime()
    cluster.brokers[0].up = False
    cluster.brokers[1].end[Q0] = 12
    with pytest.raises(SlaveBehind, match="slaveBehindWaitMs"):
        fetch(cluster, [OffsetRange(Q0, 0, 50)], time=time, slaveBehindWaitMs="2m", **policy)
    assert time.now >= 120


def test_records_that_a_slave_has_trimmed_are_read_from_the_master() -> None:
    cluster = pair()
    cluster.brokers[1].first[Q0] = 20
    found = fetch(cluster, [OffsetRange(Q0, 0, 50)], {Q0: 1})
    assert offsets_of(found) == list(range(50))


def test_trimmed_records_fail_the_task_with_advice() -> None:
    cluster = pair()
    cluster.brokers[0].first[Q0] = 20
    with pytest.raises(DataLossError, match="lost its records 10 to 19"):
        fetch(cluster, [OffsetRange(Q0, 10, 50)])
    found = fetch(cluster, [OffsetRange(Q0, 10, 50)], failOnDataLoss="false")
    assert offsets_of(found) == list(range(20, 50))
    assert fetch(cluster, [OffsetRange(Q0, 10, 15)], dataLossAction="trimmed=skip") == []


def test_a_queue_that_ends_too_early_fails_the_task_after_the_grace_period() -> None:
    cluster, time = pair(), FakeTime()
    with pytest.raises(DataLossError, match="ends at 50, but was planned to be read"):
        fetch(cluster, [OffsetRange(Q0, 40, 60)], time=time)
    assert time.now >= 3
    assert offsets_of(fetch(cluster, [OffsetRange(Q0, 40, 60)], failOnDataLoss="false")) == list(range(40, 50))


def test_an_end_that_comes_back_within_the_grace_period_is_no_loss() -> None:
    cluster, time = pair(), FakeTime()
    time.on_sleep = lambda: cluster.put(Q0, 10) if cluster.brokers[0].end[Q0] == 50 else None
    assert offsets_of(fetch(cluster, [OffsetRange(Q0, 40, 60)], time=time)) == list(range(40, 60))


def test_a_deleted_topic_is_a_loss_too() -> None:
    cluster = pair()
    for broker in cluster.brokers.values():
        del broker.end[Q0]
    with pytest.raises(DataLossError, match="is gone while it was read"):
        fetch(cluster, [OffsetRange(Q0, 0, 50)])
    assert fetch(cluster, [OffsetRange(Q0, 0, 50)], dataLossAction="deleted=skip") == []


def test_a_deleted_queue_is_left_out_and_the_other_queues_of_the_call_are_read() -> None:
    """The broker refuses a whole call if one of its queues is deleted."""
    cluster = pair()
    other = MessageQueue("U", "broker-a", 0)
    cluster.put(other, 10)
    cluster.drop(Q1)
    ranges = [OffsetRange(Q0, 0, 50), OffsetRange(Q1, 0, 50), OffsetRange(other, 0, 10)]
    with pytest.raises(DataLossError, match=f"{Q1} is gone while it was read"):
        fetch(cluster, ranges)
    found = fetch(cluster, ranges, dataLossAction="deleted=skip")
    assert offsets_of(found) == list(range(50))
    assert offsets_of(found, other) == list(range(10))


def test_only_the_deleted_one_of_several_topics_is_left_out() -> None:
    cluster = pair()
    other = MessageQueue("U", "broker-a", 0)
    cluster.put(other, 10)
    cluster.drop(other)
    found = fetch(cluster, [OffsetRange(Q0, 0, 50), OffsetRange(other, 0, 10)], dataLossAction="deleted=skip")
    assert offsets_of(found) == list(range(50))


def test_a_topic_that_a_slave_does_not_know_while_its_master_is_away_does_not_count_as_deleted() -> None:
    cluster, time = pair(), FakeTime()
    cluster.brokers[0].up = False
    cluster.drop(Q0, 1)
    cluster.drop(Q1, 1)
    with pytest.raises(TopicNotExist):
        fetch(cluster, [OffsetRange(Q0, 0, 50)], time=time, failOnDataLoss="false")
    assert time.now > 0
    time.on_sleep = lambda: setattr(cluster.brokers[0], "up", True)
    assert offsets_of(fetch(cluster, [OffsetRange(Q0, 0, 50)], time=time, failOnDataLoss="false")) == list(range(50))


@pytest.mark.parametrize(
    "error",
    [
        NoRoute("x"),
        BrokerNotExist("x"),
        SystemBusy("x"),
        ServiceNotAvailable("x"),
        BrokerRefused("x"),
        StoreDamaged("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_temporary_error_is_tried_again(error: RocketSimError) -> None:
    cluster, time = pair(), FakeTime()
    cluster.brokers[0].refuse = [error] * 3
    found = fetch(cluster, [OffsetRange(Q0, 0, 50)], time=time, failOnDataLoss="false")
    assert offsets_of(found) == list(range(50))
    assert time.now == pytest.approx(0.7)
    cluster.brokers[0].refuse = [error] * 9
    with pytest.raises(type(error)):
        fetch(cluster, [OffsetRange(Q0, 0, 50)], failOnDataLoss="false")


@pytest.mark.parametrize("error", [ExpressionInvalid("x"), ClientClosed("x")], ids=lambda error: type(error).__name__)
def test_a_permanent_error_ends_the_task_at_once(error: RocketSimError) -> None:
    cluster, time = pair(), FakeTime()
    cluster.brokers[0].refuse = [error]
    with pytest.raises(type(error)):
        fetch(cluster, [OffsetRange(Q0, 0, 50)], time=time)
    assert time.now == 0


def test_filtered_gaps_are_no_loss() -> None:
    found = fetch(pair(), [OffsetRange(Q0, 1, 50)], subExpression="A")
    assert offsets_of(found) == [n for n in range(1, 50) if n % 3 == 0]


def frame(*records: bytes, next_offset: int, count: int | None = None, sizes: bytes | None = None) -> PullFrame:
    import numpy as np

    real = np.array([len(data) for data in records], "<u4").tobytes()
    segment = Segment(0, len(records) if count is None else count, next_offset, 0, 50, GetMessageStatus.FOUND)
    return PullFrame(b"".join(records), real if sizes is None else sizes, [segment], 0, 0)


good = [message(Q0, n) for n in range(3)]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(
            PullFrame(b"garbage" * 20, b"", [Segment(0, 1, 1, 0, 50, GetMessageStatus.FOUND)], 0, 0),
            id="garbage",
        ),
        pytest.param(frame(*good, next_offset=3, count=2), id="another count"),
        pytest.param(frame(*good, next_offset=3, sizes=b"\x01\0\0\0" * 3), id="wrong sizes"),
        pytest.param(frame(good[0][:-1], next_offset=1), id="cut short"),
        pytest.param(frame(good[0], good[2], next_offset=3), id="a record left out"),
        pytest.param(frame(good[1], good[0], next_offset=2), id="out of order"),
        pytest.param(frame(message(Q1, 0), next_offset=1), id="another queue's record"),
        pytest.param(frame(*good, next_offset=2), id="more than it says"),
    ],
)
def test_an_inconsistent_frame_is_asked_for_again_and_not_passed_on(
    bad: PullFrame,
) -> None:
    cluster = pair()
    cluster.brokers[0].spoil = [bad]
    assert offsets_of(fetch(cluster, [OffsetRange(Q0, 0, 50)])) == list(range(50))
    for broker in cluster.brokers.values():  # both brokers send only inconsistent frames
        broker.spoil = [bad] * 10
    with pytest.raises(BadAnswer, match=str(Q0)):
        fetch(cluster, [OffsetRange(Q0, 0, 50)], pullRetries="2")


@pytest.mark.parametrize("good_frames", [0, 2])
def test_an_answer_that_the_client_refuses_is_asked_of_another_broker(
    good_frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client refuses, for example, a frame whose offsets go back, or a frame with a range that nobody asked for."""
    cluster = pair()
    master = cluster.brokers[0]
    frames = master.frames

    def bad(*args: Any) -> Iterator[PullFrame]:
        yield from itertools.islice(frames(*args), good_frames)
        raise BadAnswer("a broker went back")

    monkeypatch.setattr(master, "frames", bad)
    found = fetch(cluster, [OffsetRange(Q0, 0, 50)], pullRetries="1")
    assert [(offset, broker_id) for _, offset, broker_id in found] == [
        (n, int(n >= 10 * good_frames)) for n in range(50)
    ]


def test_only_the_queue_with_inconsistent_records_is_asked_of_another_broker() -> None:
    """The inconsistent queue is the second one of the call, so the first one has been read by then."""
    cluster = pair()
    bad = frame(message(Q1, 0), next_offset=1)
    frames = cluster.brokers[0].frames

    def spoiled(*args: Any) -> Iterator[PullFrame]:
        for good_one in frames(*args):
            cluster.brokers[0].spoil = [bad] if good_one.segments[0].next_offset == 50 else []
            yield good_one

    cluster.brokers[0].frames = spoiled  # type: ignore[method-assign]
    found = fetch(cluster, [OffsetRange(Q0, 0, 50), OffsetRange(Q1, 0, 50)], pullRetries="1")
    assert [(queue, offset) for queue, offset, _ in found] == [(q, n) for q in (Q0, Q1) for n in range(50)]
    assert {broker_id for queue, _, broker_id in found if queue == Q1} == {1}
