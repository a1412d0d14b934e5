"""The driver's side of a stream without Spark: what latestOffset, partitions and commit decide, over a cluster in
memory.
"""

import json
import os
import time
from typing import Any

import pytest

from rocketsim_client.errors import CommitFailed, NameServerUnavailable, NotSupported
from rocketsim_client.model import LogEpoch, MessageQueue, OffsetRange
from rocketsim_source import stream_query
from rocketsim_source.options.data_loss import DataLossError
from rocketsim_source.options.option_values import OptionError
from rocketsim_source.options.source_options import source_options
from rocketsim_source.planning.offsets import StreamOffset
from rocketsim_source.planning.partition import QueueRangesPartition
from rocketsim_source.planning.queue_watch import NothingAnswers
from rocketsim_source.planning.splits import Parallelism
from rocketsim_source.schema import source_schema
from rocketsim_source.source_cluster import ClientCluster, OffsetAnswers, Offsets
from rocketsim_source.stream_query import StreamQuery
from rocketsim_source.stream_reader import RocketSimStreamReader
from testbed.polling import wait_until
from tests.source.memory_cluster import MemoryCluster

Q0, Q1, Q2 = (MessageQueue("T", "broker-a", number) for number in range(3))


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_query, "TRUNCATION_GRACE_S", 0.1)
    monkeypatch.setattr(stream_query, "BOUNDED_WAIT_S", 0.1)


def driver(cluster: MemoryCluster, **given: str) -> StreamQuery:
    given = {"idlePollMs": "0", "queueDiscoveryIntervalMs": "0", "startingOffsets": "earliest", "topic": "T"} | given
    if not given["topic"]:
        del given["topic"]
    return StreamQuery(source_options({"nameServer": "h:1"} | given, streaming=True), cluster)


def reported(query: StreamQuery) -> dict[str, Any]:
    report = query.report()
    assert report is not None
    return report


def cluster_with(count: int = 10, *broker_ids: int) -> MemoryCluster:
    cluster = MemoryCluster(*broker_ids)
    for queue in (Q0, Q1):
        cluster.put(queue, count)
    return cluster


def next_end(found: StreamQuery, start: StreamOffset, **limits: Any) -> StreamOffset:
    return found.latest_offset(start, unlimited=limits.get("unlimited", False))


def planned(found: StreamQuery, start: StreamOffset, end: StreamOffset) -> dict[MessageQueue, tuple[int, int]]:
    ranges = {}
    for partition in found.partitions(start, end):
        assert isinstance(partition, QueueRangesPartition)
        ranges |= {r.queue: (r.from_offset, r.until_offset) for r in partition.ranges}
    return ranges


def test_a_stream_that_starts_behind_its_end_is_refused_before_its_first_batch() -> None:
    """If it were not refused, the stream would read nothing for ever, without an error."""
    with pytest.raises(OptionError, match="T@broker-a:0 would be read from 5 to 3: it starts after its end"):
        driver(cluster_with(), startingOffsets='{"T":5}', endingOffsets='{"T":3}').initial_offset()


def test_the_first_batch_says_where_it_starts_and_reads_on_from_there_whatever_the_start_is_meanwhile() -> None:
    cluster = cluster_with()
    found = driver(cluster)
    start = found.initial_offset()
    end = next_end(found, start)
    assert (end.offsets, end.batch_start, end.anchor) == ({Q0: 10, Q1: 10}, {Q0: 0, Q1: 0}, False)
    assert planned(found, start, end) == {Q0: (0, 10), Q1: (0, 10)}
    assert next_end(found, end) is end
    # Retention moves the start `earliest`, and commits move the start `committed`.
    again = driver(cluster, startingOffsets="latest")
    assert planned(again, again.initial_offset(), StreamOffset.of(end.json())) == {Q0: (0, 10), Q1: (0, 10)}
    cluster.put(Q0, 5)
    assert next_end(again, end) == StreamOffset({Q0: 15, Q1: 10})
    assert next_end(again, end).batch_start is None


def test_a_first_batch_that_is_run_again_is_committed_though_the_query_would_start_at_its_end() -> None:
    cluster = cluster_with()
    end = next_end(driver(cluster), StreamOffset({Q0: 0, Q1: 0}))
    again = driver(cluster, startingOffsets="latest", group="g", commitInitialOffset="false", commitAsync="false")
    end = StreamOffset(end.offsets, batch_start={Q0: 0, Q1: 0})
    assert again.initial_offset() == end
    assert next_end(again, end) is end
    assert cluster.offsets["g"] == {Q0: 10, Q1: 10}
    again.close()


def test_a_first_batch_with_nothing_to_read_is_an_anchor() -> None:
    cluster = cluster_with()
    found = driver(cluster, startingOffsets="latest")
    start = found.initial_offset()
    anchor = next_end(found, start)
    assert anchor == StreamOffset({Q0: 10, Q1: 10}, anchor=True)
    assert planned(found, start, anchor) == {}
    cluster.put(Q0, 5)
    end = next_end(found, anchor)
    assert (end, end.batch_start) == (StreamOffset({Q0: 15, Q1: 10}), None)
    assert planned(found, anchor, end) == {Q0: (10, 15)}


def test_only_the_very_first_call_anchors() -> None:
    cluster = MemoryCluster()
    cluster.put(Q0, 0)
    found = driver(cluster)
    anchor = next_end(found, found.initial_offset())
    assert next_end(found, anchor) is anchor  # without progress, the same offset causes no batch
    assert next_end(found, StreamOffset(anchor.offsets)) == StreamOffset(anchor.offsets)


def test_a_restart_that_was_not_asked_for_its_start_does_not_anchor() -> None:
    found = driver(cluster_with())
    assert next_end(found, StreamOffset({Q0: 10, Q1: 10})) == StreamOffset({Q0: 10, Q1: 10})


def test_once_takes_everything_at_once_and_without_an_anchor() -> None:
    found = driver(cluster_with(100), maxOffsetsPerTrigger="10", minOffsetsPerTrigger="5")
    end = next_end(found, found.initial_offset(), unlimited=True)
    assert (end, end.batch_start) == (StreamOffset({Q0: 100, Q1: 100}), {Q0: 0, Q1: 0})
    nothing = driver(cluster_with(0))
    assert next_end(nothing, nothing.initial_offset(), unlimited=True) == StreamOffset({Q0: 0, Q1: 0})


def test_a_start_is_not_kept_if_it_need_not_be() -> None:
    found = driver(cluster_with(), initialOffsetAnchor="false")
    assert next_end(found, found.initial_offset()).batch_start is None


def test_an_anchored_end_replayed_with_another_start_reads_nothing() -> None:
    """Spark asks for a batch whose end is before its start when it replays batch 0 and `latest` has moved."""
    found = driver(cluster_with())
    assert found.partitions(StreamOffset({Q0: 7, Q1: 7}), StreamOffset({Q0: 3, Q1: 3}, anchor=True)) == []


def test_a_start_behind_its_end_is_refused_instead_of_planned_as_nothing() -> None:
    found = driver(cluster_with())
    with pytest.raises(DataLossError, match="initialOffsetAnchor=true"):
        found.partitions(StreamOffset({Q0: 7}), StreamOffset({Q0: 3}))
    allowed = driver(cluster_with(), failOnDataLoss="false")
    assert planned(allowed, StreamOffset({Q0: 7}), StreamOffset({Q0: 3})) == {}
    reread = driver(cluster_with(), dataLossAction="truncated=earliest")
    assert planned(reread, StreamOffset({Q0: 7}), StreamOffset({Q0: 3})) == {Q0: (0, 3)}


def test_a_first_batch_that_is_run_again_reads_no_queue_as_new_whose_start_nobody_says() -> None:
    """Without an anchor, a repeated batch asks for the start again, perhaps while a broker is missing in the route."""
    end = StreamOffset({Q0: 10, Q1: 10})
    for policy, loss in (({}, DataLossError), ({"dataLossAction": "deleted=skip"}, None)):
        cluster = cluster_with()
        cluster.drop(Q1)
        found = driver(cluster, initialOffsetAnchor="false", **policy)
        start = found.initial_offset()
        assert start.offsets == {Q0: 0}
        if loss:
            with pytest.raises(loss, match=f"{Q1} is gone"):
                found.partitions(start, end)
        else:
            assert planned(found, start, end) == {Q0: (0, 10)}
        cluster.put(Q1, 10)  # the queue's broker was only away
        with pytest.raises(NothingAnswers, match=f"no broker said where {Q1} starts"):
            found.partitions(start, end)


def test_limited_batches_go_on_until_available_now_has_its_target() -> None:
    cluster = cluster_with(25)
    found = driver(cluster, maxOffsetsPerTrigger="20")
    found.available_now = True
    at, ends = found.initial_offset(), []
    while True:
        cluster.put(Q0, 100)  # producers continue to send
        end = next_end(found, at)
        if end == at:
            break
        ends.append(sum(end.offsets.values()))
        at = end
    assert ends == [20, 40, 60, 80, 100, 120, 140, 150]  # the target is from the first call: 125 + 25
    assert at == StreamOffset({Q0: 125, Q1: 25})


def test_available_now_does_not_leave_out_a_broker_that_is_silent() -> None:
    cluster = cluster_with()
    found = driver(cluster)
    found.available_now = True
    start = next_end(found, found.initial_offset())
    cluster.brokers[0].up = False
    with pytest.raises(NothingAnswers):
        next_end(found, start)


def test_a_new_queue_is_first_named_and_then_read() -> None:
    cluster = cluster_with()
    found = driver(cluster)
    at = next_end(found, next_end(found, found.initial_offset()))
    cluster.put(Q2, 5)
    named = next_end(found, at)
    assert named == StreamOffset({Q0: 10, Q1: 10, Q2: 0})
    assert planned(found, at, named) == {}
    assert planned(found, named, next_end(found, named)) == {Q2: (0, 5)}


@pytest.mark.parametrize(("where", "offset"), [("earliest", 0), ("latest", 5), ("committed,earliest", 3)])
def test_where_new_queues_start(where: str, offset: int) -> None:
    cluster = cluster_with()
    found = driver(cluster, newQueueOffsets=where, group="g", commitOffsets="none")
    at = next_end(found, next_end(found, found.initial_offset()))
    cluster.put(Q2, 5)
    cluster.offsets["g"][Q2] = 3
    assert next_end(found, at).offsets[Q2] == offset


def test_while_only_a_slave_answers_offsets_never_go_back() -> None:
    cluster = cluster_with(10, 0, 1)
    found = driver(cluster)
    at = next_end(found, next_end(found, found.initial_offset()))
    cluster.brokers[0].up = False
    cluster.brokers[1].end = {Q0: 4, Q1: 12}
    assert next_end(found, at) == StreamOffset({Q0: 10, Q1: 12})


@pytest.mark.parametrize(
    ("policy", "expected"),
    [({"failOnDataLoss": "false"}, 4), ({"dataLossAction": "skip"}, 4), ({"dataLossAction": "truncated=earliest"}, 4)],
)
def test_a_master_that_restarted_empty_is_a_loss(policy: dict[str, str], expected: int) -> None:
    cluster = cluster_with()
    cluster.brokers[0].end[Q0] = 4
    at = StreamOffset({Q0: 10, Q1: 10})
    with pytest.raises(DataLossError, match="was read up to 10, but now ends at 4"):
        next_end(driver(cluster), at)
    assert next_end(driver(cluster, **policy), at).offsets[Q0] == expected


def test_an_end_that_steps_back_for_a_moment_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with()
    cluster.brokers[0].end[Q0] = 4
    monkeypatch.setattr(time, "sleep", lambda seconds: cluster.brokers[0].end.update({Q0: 10}))
    assert next_end(driver(cluster), StreamOffset({Q0: 10, Q1: 10})) == StreamOffset({Q0: 10, Q1: 10})


FIRST, SECOND, PROMOTED = LogEpoch(1, 11), LogEpoch(2, 22), LogEpoch(10**12, 33)


def read_all(cluster: MemoryCluster, epoch: LogEpoch = FIRST) -> StreamOffset:
    """Lets a query read everything, and returns its offset as the checkpoint would."""
    cluster.brokers[0].epoch = epoch
    found = driver(cluster)
    end = next_end(found, next_end(found, found.initial_offset()))
    return StreamOffset.of(json.loads(json.dumps(end.json())))


def with_a_promoted_slave_that_lacked_records() -> tuple[MemoryCluster, StreamOffset]:
    """Returns a cluster with a promoted slave, and the offset of a query that has read Q0 up to 10.  The slave had only
    6 of these records when it was promoted, and has received 50 other records since.
    """
    cluster = cluster_with()
    at = read_all(cluster)
    master = cluster.brokers[0]
    master.epoch, master.ends_in = PROMOTED, {FIRST: {Q0: 6, Q1: 10}}
    cluster.put(Q0, 50)
    return cluster, at


def test_the_epoch_in_which_a_queue_was_read_is_in_the_checkpoint() -> None:
    at = read_all(cluster_with())
    assert at.read_in == {Q0: FIRST, Q1: FIRST}
    assert at.json()["epochs"] == {"T": {"broker-a": "1#b"}}


@pytest.mark.parametrize(
    ("policy", "goes_on_at"),
    [({"failOnDataLoss": "false"}, 6), ({"dataLossAction": "truncated=skip"}, 6), ({"dataLossAction": "earliest"}, 0)],
)
def test_what_a_promoted_slave_did_not_have_is_a_loss_also_when_its_queue_is_longer_by_now(
    policy: dict[str, str], goes_on_at: int
) -> None:
    cluster, at = with_a_promoted_slave_that_lacked_records()
    with pytest.raises(DataLossError, match=r"T@broker-a:0 was read up to 10, .* up to 6 only .*truncated=skip"):
        next_end(driver(cluster), at)
    allowed = driver(cluster, **policy)
    after = next_end(allowed, at)
    assert after == StreamOffset({Q0: goes_on_at, Q1: 10})
    assert after.read_in == {Q0: PROMOTED, Q1: PROMOTED}
    assert planned(allowed, at, after) == {}, "a range cannot go back"
    last = next_end(allowed, after)
    assert planned(allowed, after, last) == {Q0: (goes_on_at, 60)}
    assert next_end(driver(cluster), last) == last, "said once"


@pytest.mark.parametrize("first", [8, 12])
def test_what_is_trimmed_of_a_promoted_slaves_records_is_said_with_the_cut_and_once(
    first: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The query has read the queue up to 10.  The promoted slave had only 6 of these records, and its retention has
    deleted its own records below `first`.
    """
    cluster, at = with_a_promoted_slave_that_lacked_records()
    cluster.brokers[0].first[Q0] = first
    with pytest.raises(DataLossError, match=f"lost its records 6 to {first - 1} "):
        next_end(driver(cluster, dataLossAction="truncated=skip"), at)
    caplog.clear()
    after = next_end(driver(cluster, failOnDataLoss="false"), at)
    assert after == StreamOffset({Q0: first, Q1: 10})
    losses = [record.getMessage() for record in caplog.records if "data loss allowed" in record.getMessage()]
    assert len(losses) == 2
    assert "up to 6 only" in losses[0] and f"lost its records 6 to {first - 1} " in losses[1]
    last = next_end(driver(cluster), after)
    assert last == StreamOffset({Q0: 60, Q1: 10}), "said once"


def test_a_restart_that_lost_nothing_alarms_nobody() -> None:
    cluster = cluster_with()
    at = read_all(cluster)
    master = cluster.brokers[0]
    master.epoch, master.ends_in = SECOND, {FIRST: {Q0: 10, Q1: 10}}
    assert next_end(driver(cluster), at) is at, "an idle query's offset stays the same text"
    cluster.put(Q0, 5)
    after = next_end(driver(cluster), at)
    assert after == StreamOffset({Q0: 15, Q1: 10})
    assert after.read_in == {Q0: SECOND, Q1: SECOND}


def test_the_epoch_is_kept_until_a_broker_can_say_where_it_ended() -> None:
    cluster = cluster_with()
    at = read_all(cluster, PROMOTED)
    master = cluster.brokers[0]
    master.epoch = FIRST  # the broker lags behind, or does not know that it was replaced
    cluster.put(Q0, 5)
    after = next_end(driver(cluster), at)
    assert after.read_in == {Q0: FIRST, Q1: PROMOTED}, "what is read now is of that broker's time"
    master.epoch, master.ends_in = PROMOTED, {FIRST: {Q0: 8, Q1: 8}}
    with pytest.raises(DataLossError, match="T@broker-a:0 was read up to 15"):
        next_end(driver(cluster), after)


def test_a_checkpoint_of_before_the_epochs_goes_on() -> None:
    cluster = cluster_with()
    master = cluster.brokers[0]
    master.epoch, master.ends_in = PROMOTED, {FIRST: {Q0: 6, Q1: 6}}
    after = next_end(driver(cluster), StreamOffset({Q0: 9, Q1: 10}))
    assert after == StreamOffset({Q0: 10, Q1: 10})
    assert after.read_in == {Q0: PROMOTED, Q1: PROMOTED}


def test_records_trimmed_before_they_were_read_are_a_loss() -> None:
    cluster = cluster_with()
    cluster.brokers[0].first[Q0] = 6
    at = StreamOffset({Q0: 2, Q1: 10})
    with pytest.raises(DataLossError, match="lost its records 2 to 5"):
        next_end(driver(cluster), at)
    assert next_end(driver(cluster, failOnDataLoss="false"), at) == StreamOffset({Q0: 10, Q1: 10})


def test_a_deleted_queue_is_a_loss_and_can_be_forgotten() -> None:
    cluster = cluster_with()
    cluster.drop(Q1)
    at = StreamOffset({Q0: 10, Q1: 10})
    with pytest.raises(DataLossError, match="its master has no such topic or queue"):
        next_end(driver(cluster), at)
    assert next_end(driver(cluster, dataLossAction="deleted=skip"), at) == StreamOffset({Q0: 10})


@pytest.mark.parametrize("restarted", [False, True])
def test_a_queue_that_was_closed_and_is_read_to_its_end_goes_without_an_alarm_and_keeps_its_place(
    restarted: bool,
) -> None:
    cluster = cluster_with()
    found = driver(cluster, group="g", commitAsync="false")
    at = next_end(found, StreamOffset({Q0: 0, Q1: 0}))
    found.batch_committed(at)
    cluster.unwritable = {Q1}
    assert next_end(found, at) is at
    cluster.take_away(Q1)
    if restarted:
        found = driver(cluster, group="g", commitAsync="false")
    assert next_end(found, at) is at
    cluster.put(Q0, 5)
    at = next_end(found, at)
    assert at == StreamOffset({Q0: 15, Q1: 10}) and planned(found, StreamOffset({Q0: 10, Q1: 10}), at) == {Q0: (10, 15)}
    cluster.unwritable = set()
    cluster.put(Q1, 12)  # the topic has the queue again, with its old records and two more
    end = next_end(found, at)
    assert planned(found, at, end) == {Q1: (10, 12)}, "and none is read twice"


def test_a_queue_that_was_closed_before_it_was_read_to_its_end_is_a_loss() -> None:
    cluster = cluster_with()
    cluster.take_away(Q1)
    at = StreamOffset({Q0: 10, Q1: 9})
    with pytest.raises(DataLossError, match="it was read up to 9, and ends at 10"):
        next_end(driver(cluster), at)
    assert next_end(driver(cluster, dataLossAction="deleted=skip"), at) == StreamOffset({Q0: 10})


def test_of_an_older_broker_a_queue_that_was_last_seen_closed_and_read_to_its_end_is_left_out() -> None:
    cluster = cluster_with()
    cluster.says_closed = False
    cluster.unwritable = {Q1}
    found = driver(cluster)
    at = next_end(found, StreamOffset({Q0: 0, Q1: 0}))
    next_end(found, at)
    cluster.take_away(Q1)
    assert next_end(found, at) == StreamOffset({Q0: 10})
    with pytest.raises(DataLossError, match="is gone"):
        next_end(driver(cluster), at)  # a new process has not seen that the queue was closed

    opened = cluster_with()
    opened.says_closed = False
    opened.unwritable = {Q1}
    found = driver(opened)
    at = next_end(found, StreamOffset({Q0: 0, Q1: 0}))
    opened.unwritable = set()
    next_end(found, at)
    opened.take_away(Q1)
    with pytest.raises(DataLossError, match="is gone"):
        next_end(found, at)  # the queue was writable again, so it may have got more records


RESTARTED = StreamOffset({Q0: 3, Q1: 4})


def test_an_empty_route_is_no_deletion_whatever_the_options_allow() -> None:
    """The only broker is down, and the name server has forgotten it.  A driver that starts takes the queues and their
    offsets from its checkpoint, and continues without a gap or a repetition.
    """
    cluster = cluster_with()
    cluster.brokers[0].up = False
    cluster.unrouted = {"T"}
    found = driver(cluster, failOnDataLoss="false")
    assert next_end(found, RESTARTED) == RESTARTED
    assert reported(found)["unreachable"] == ["broker-a"]
    cluster.brokers[0].up = True
    cluster.unrouted = set()
    end = next_end(found, RESTARTED)
    assert planned(found, RESTARTED, end) == {Q0: (3, 10), Q1: (4, 10)}


def test_an_empty_route_beside_a_broker_that_is_up_changes_nothing() -> None:
    cluster = cluster_with()
    cluster.unrouted = {"T"}
    found = driver(cluster, failOnDataLoss="false")
    assert planned(found, RESTARTED, next_end(found, RESTARTED)) == {Q0: (3, 10), Q1: (4, 10)}


def test_what_only_a_slave_does_not_have_is_no_deletion() -> None:
    cluster = cluster_with(10, 0, 1)
    cluster.brokers[0].up = False
    cluster.drop(Q1, 1)
    assert next_end(driver(cluster, failOnDataLoss="false"), RESTARTED) == StreamOffset({Q0: 10, Q1: 4})


def test_queues_that_were_found_once_outlive_a_name_server_that_forgets_them() -> None:
    cluster = cluster_with()
    found = driver(cluster)
    at = next_end(found, next_end(found, found.initial_offset()))
    cluster.brokers[0].up = False
    cluster.unrouted = {"T"}
    assert next_end(found, at) == at
    cluster.brokers[0].up, cluster.unrouted = True, set()
    cluster.put(Q0, 1)
    assert planned(found, at, next_end(found, at)) == {Q0: (10, 11)}


def test_an_empty_route_with_nobody_there_ends_after_the_time_for_it() -> None:
    cluster = cluster_with()
    cluster.brokers[0].up = False
    cluster.unrouted = {"T"}
    with pytest.raises(NothingAnswers, match="brokerDownTimeoutMs"):
        next_end(driver(cluster, brokerDownTimeoutMs="0"), RESTARTED)


def test_available_now_does_not_end_as_if_it_had_read_what_has_no_route() -> None:
    cluster = cluster_with()
    cluster.brokers[0].up = False
    cluster.unrouted = {"T"}
    found = driver(cluster, failOnDataLoss="false")
    found.available_now = True
    with pytest.raises(NothingAnswers, match=r"T@broker-a:0"):
        next_end(found, RESTARTED)


def test_a_lowered_queue_count_affects_that_queue_alone() -> None:
    cluster = cluster_with()
    other = MessageQueue("U", "broker-a", 0)
    cluster.put(other, 10)
    at = StreamOffset({Q0: 3, Q1: 4, other: 5})
    cluster.drop(Q1)
    with pytest.raises(DataLossError, match=f"{Q1} is gone"):
        next_end(driver(cluster, subscribe="T,U", topic=""), at)
    found = driver(cluster, subscribe="T,U", topic="", dataLossAction="deleted=skip")
    end = next_end(found, at)
    assert planned(found, at, end) == {Q0: (3, 10), other: (5, 10)}


def test_ends_of_a_silent_queue_are_waited_for() -> None:
    cluster = cluster_with()
    found = driver(cluster, endingOffsets='{"T":{"broker-a":{"0":5,"1":6}}}')
    cluster.brokers[0].up = False
    assert next_end(found, RESTARTED) == RESTARTED
    cluster.brokers[0].up = True
    assert next_end(found, RESTARTED) == StreamOffset({Q0: 5, Q1: 6})


def test_an_ending_time_that_cannot_be_looked_up_now_is_waited_for() -> None:
    cluster = cluster_with()
    found = driver(cluster, endingTimestamp="2005")
    cluster.searches_fail = True
    assert next_end(found, RESTARTED) == RESTARTED
    bounded = driver(cluster, endingTimestamp="2005")
    bounded.available_now = True
    with pytest.raises(NothingAnswers):
        next_end(bounded, RESTARTED)
    cluster.searches_fail = False
    assert next_end(found, RESTARTED) == StreamOffset({Q0: 5, Q1: 5})


def test_an_end_for_a_broker_that_is_not_there_is_an_error_at_the_start_and_later_a_broker_that_is_away() -> None:
    ends = {"endingOffsets": '{"T":{"broker-b":5}}'}
    with pytest.raises(OptionError, match="endingOffsets names T → broker-b"):
        driver(cluster_with(), **ends).initial_offset()
    cluster = cluster_with()
    found = driver(cluster, **ends)
    at = next_end(found, RESTARTED)
    assert at == StreamOffset({Q0: 10, Q1: 10})
    back = MessageQueue("T", "broker-b", 0)
    cluster.put(back, 8)
    at = next_end(found, at)
    assert next_end(found, at).offsets[back] == 5


def test_available_now_does_not_end_without_having_looked_for_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with()
    found = driver(cluster)

    def down(topic: str, *, fresh: bool = False) -> None:
        raise NameServerUnavailable("down")

    monkeypatch.setattr(cluster, "queues", down)
    assert planned(found, RESTARTED, next_end(found, RESTARTED)) == {Q0: (3, 10), Q1: (4, 10)}
    found.available_now = True
    with pytest.raises(NameServerUnavailable):
        next_end(found, RESTARTED)


def test_a_query_that_runs_goes_on_though_the_topics_cannot_be_listed_any_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One of several addresses in nameServer may be a proxy, which answers while the name server is away."""
    cluster = cluster_with()
    found = driver(cluster, topic="", subscribePattern="T")

    def refuse() -> list[str]:
        raise NotSupported("no list of topics here")

    monkeypatch.setattr(cluster, "topics", refuse)
    assert planned(found, RESTARTED, next_end(found, RESTARTED)) == {Q0: (3, 10), Q1: (4, 10)}
    assert "subscribePattern=T needs the list of all topics" in caplog.text
    found.available_now = True
    with pytest.raises(OptionError, match="write subscribe with the names of the topics"):
        next_end(found, RESTARTED)


def test_a_new_queue_whose_committed_offset_nobody_says_is_named_later(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with()
    found = driver(cluster, newQueueOffsets="committed,earliest", group="g", commitOffsets="none")
    at = next_end(found, next_end(found, found.initial_offset()))
    cluster.put(Q2, 5)
    cluster.offsets["g"][Q2] = 3
    committed = cluster.committed
    monkeypatch.setattr(
        cluster, "committed", lambda group, queues, **_: OffsetAnswers({}, dict.fromkeys(queues, OSError("no")))
    )
    assert next_end(found, at) == at
    monkeypatch.setattr(cluster, "committed", committed)
    assert next_end(found, at).offsets[Q2] == 3


# --- a changed subscription -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        ({"topic": "U"}, set()),
        ({"subscribe": "U"}, set()),
        ({"subscribePattern": "[U-Z]"}, set()),
        ({"assign": '{"U":{"broker-a":[0]},"T":{"broker-a":[1]}}'}, {Q1}),
    ],
)
def test_what_the_options_do_not_name_any_more_is_not_read_any_more(
    named: dict[str, str], kept: set[MessageQueue]
) -> None:
    cluster = cluster_with()
    other = MessageQueue("U", "broker-a", 0)
    cluster.put(other, 10)
    at = StreamOffset({Q0: 3, Q1: 4, other: 5})
    with pytest.raises(DataLossError, match=rf"{Q0} is not named by the options any more.*unsubscribed=skip"):
        next_end(driver(cluster, **({"topic": ""} | named)), at)
    found = driver(cluster, **({"topic": "", "dataLossAction": "unsubscribed=skip"} | named))
    end = next_end(found, at)
    assert end.offsets == dict.fromkeys({other, *kept}, 10)
    assert set(planned(found, at, end)) == {other, *kept}


def test_a_query_of_which_nobody_answers_waits_and_then_says_so() -> None:
    cluster = cluster_with()
    cluster.brokers[0].up = False
    at = StreamOffset({Q0: 3, Q1: 3})
    assert next_end(driver(cluster), at) == at
    with pytest.raises(NothingAnswers, match="brokerDownTimeoutMs"):
        next_end(driver(cluster, brokerDownTimeoutMs="0"), at)


def test_an_idle_query_asks_a_few_times_a_second_and_returns_in_time() -> None:
    cluster = cluster_with()
    found = driver(cluster, idlePollMs="300")
    at = StreamOffset({Q0: 10, Q1: 10})
    begun = time.monotonic()
    assert next_end(found, at) is at
    assert time.monotonic() - begun >= 0.3
    assert cluster.bounds_calls <= 12


def test_an_idle_query_goes_on_with_the_record_for_which_it_waits() -> None:
    cluster = cluster_with(10)

    def arrival() -> bool:
        cluster.put(Q1, 3)
        return True

    cluster.waits.append(arrival)
    found = driver(cluster, idlePollMs="60000")
    at = StreamOffset({Q0: 10, Q1: 10})
    assert next_end(found, at).offsets == {Q0: 10, Q1: 13}
    assert cluster.waited_beyond == {Q0: 10, Q1: 10}
    assert cluster.bounds_calls == 2


def test_an_idle_query_plans_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    cluster = cluster_with(10)

    def nothing() -> bool:
        nonlocal now
        now += 0.2
        return False

    cluster.waits += [nothing] * 12
    found, at = driver(cluster, idlePollMs="200"), StreamOffset({Q0: 10, Q1: 10})
    for _ in range(5):
        assert next_end(found, at) is at
    assert cluster.bounds_calls == 1
    for _ in range(2):
        assert next_end(found, at) is at
    assert cluster.bounds_calls == 2  # once a second, the driver looks for losses and new queues
    cluster.put(Q0, 1)  # no wait ends, as if the queue's broker had just changed
    while (end := next_end(found, at)) is at:
        assert now < 103
    assert end.offsets == {Q0: 11, Q1: 10}


@pytest.mark.parametrize(("discovery", "plans"), [("1m", 12), ("2s", 30), ("0", 60)])
def test_an_idle_query_asks_its_brokers_every_five_seconds_or_when_it_looks_for_queues(
    monkeypatch: pytest.MonkeyPatch, discovery: str, plans: int
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(stream_query, "now_ms", lambda: round(now * 1000))
    cluster = cluster_with(10)

    def nothing() -> bool:
        nonlocal now
        now += 0.25
        return False

    cluster.waits += [nothing] * 240  # a minute
    found, at = driver(cluster, idlePollMs="250", queueDiscoveryIntervalMs=discovery), StreamOffset({Q0: 10, Q1: 10})
    while cluster.waits:
        assert next_end(found, at) is at
    assert cluster.bounds_calls == plans


def test_records_that_are_no_batch_yet_do_not_make_a_query_ask_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, pauses = 100.0, []
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        pauses.append(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    cluster = cluster_with(10)
    found = driver(cluster, idlePollMs="200", minOffsetsPerTrigger="1000")
    start = StreamOffset({Q0: 0, Q1: 0})
    at = next_end(found, start)  # the first batch ignores minOffsetsPerTrigger
    cluster.put(Q0, 1)
    cluster.waits += [lambda: True] * 100
    assert next_end(found, at) is at
    assert pauses == pytest.approx([0.01, 0.02, 0.04, 0.05, 0.05, 0.03])


def test_an_ending_timestamp_holds_once_a_record_has_passed_it() -> None:
    cluster = cluster_with(10)
    found = driver(cluster, endingTimestamp="2012")
    at = next_end(found, next_end(found, found.initial_offset()))
    assert at.offsets == {Q0: 10, Q1: 10}
    cluster.put(Q0, 10)
    assert next_end(found, at).offsets == {Q0: 12, Q1: 10}


# --- commits ----------------------------------------------------------------------------------------------------------


def wait_stands(cluster: MemoryCluster, offsets: Offsets) -> None:
    wait_until(lambda: cluster.offsets["g"] == offsets, f"the group to stand at {offsets}")


def test_what_latest_offset_is_given_is_processed_and_committed() -> None:
    cluster = cluster_with()
    found = driver(cluster, group="g")
    at = next_end(found, found.initial_offset())
    wait_stands(cluster, {Q0: 0, Q1: 0})  # the start is committed, so the group exists and has a lag
    next_end(found, at)
    wait_stands(cluster, {Q0: 10, Q1: 10})
    found.close()


@pytest.mark.parametrize(
    ("when", "after_trigger", "after_commit"),
    [("auto", True, True), ("onTrigger", True, False), ("onCommit", False, True), ("none", False, False)],
)
def test_commit_offsets(when: str, after_trigger: bool, after_commit: bool) -> None:
    at = StreamOffset({Q0: 10, Q1: 10})
    for is_commit, expected in ((False, after_trigger), (True, after_commit)):
        cluster = cluster_with()
        found = driver(cluster, group="g", commitOffsets=when, commitAsync="false")
        found.batch_committed(at) if is_commit else next_end(found, at)
        assert (cluster.offsets["g"] == at.offsets) is expected
        found.close()


def test_a_group_with_an_offset_of_its_own_keeps_it_at_the_start() -> None:
    cluster = cluster_with()
    cluster.offsets["g"] = {Q0: 4}
    found = driver(cluster, group="g", startingOffsets="latest", commitAsync="false")
    anchor = next_end(found, found.initial_offset())
    assert cluster.offsets["g"] == {Q0: 4, Q1: 10}
    next_end(found, anchor)
    assert cluster.offsets["g"] == {Q0: 4, Q1: 10}
    found.close()


def test_a_failed_commit_does_not_end_the_query_unless_asked_for() -> None:
    at = StreamOffset({Q0: 10, Q1: 10})
    cluster = cluster_with()
    cluster.commit_fails = 100
    found = driver(cluster, group="g", commitAsync="false", commitTimeoutMs="50")
    assert next_end(found, at) == at
    found.close()
    for policy, calls in (("fail", 1), ("failAfter:3", 2)):
        cluster.commit_fails = 100
        failing = driver(
            cluster, group="g", commitAsync="false", commitFailurePolicy=policy, commitRetries="0", commitTimeoutMs="50"
        )
        with pytest.raises(CommitFailed, match="could not be committed"):
            for offset in range(11, 11 + calls + 1):
                failing.batch_committed(StreamOffset({Q0: offset, Q1: 10}))
        failing.close()


def test_the_commit_of_a_queue_that_is_gone_does_not_hold_up_the_others() -> None:
    cluster = cluster_with()
    found = driver(cluster, group="g", commitAsync="false", dataLossAction="deleted=skip", commitRetries="0")
    at = StreamOffset({Q0: 9, Q1: 9})
    cluster.drop(Q1)
    end = next_end(found, at)
    assert cluster.offsets["g"] == {Q0: 9}
    assert reported(found)["group"]["failures"] == 1
    next_end(found, end)
    assert cluster.offsets["g"] == {Q0: 10}
    assert reported(found)["group"]["failures"] == 0
    found.close()


def test_progress_shows_over_what_tasks_pull_and_not_what_is_offered() -> None:
    """The transport comes from the brokers' counts of pulled ranges since this query began."""
    cluster = cluster_with(100)
    cluster.ranges_pulled = 7, 7
    found = driver(cluster, group="g", commitAsync="false")
    end = found.initial_offset()
    shown = []
    # The last pair is that of a restarted broker, whose counts begin again.
    for ranges_pulled in ((7, 7), (9, 7), (9, 7), (9, 8), (10, 9), (1, 0)):
        cluster.ranges_pulled = ranges_pulled
        next_end(found, end)
        shown.append(reported(found)["transport"]["broker-a"])
    assert shown == [None, "stream", "stream", "grpc", "stream and grpc", "stream"]
    found.close()


def test_progress_has_lag_group_and_route_from_the_cache() -> None:
    cluster = cluster_with(100)
    found = driver(cluster, group="g", maxOffsetsPerTrigger="20", commitAsync="false")
    next_end(found, found.initial_offset())
    calls = cluster.bounds_calls
    report = found.report()
    assert report is not None
    assert cluster.bounds_calls == calls
    assert report["lag"] == {
        "total": 180,
        "min": 90,
        "max": 90,
        "avg": 90.0,
        "maxQueue": str(Q0),
        "seconds": report["lag"]["seconds"],
    }
    assert report["q"] == {"T": {"broker-a": {"0": 100, "1": 100}}}
    assert report["avgOffsetsBehindLatest"] == 90.0
    assert report["group"]["committed"] == {"T": {"broker-a": {"0": 0, "1": 0}}}
    assert report["route"] == {"broker-a": 0}
    found.close()


def test_a_report_is_made_again_only_when_it_changes() -> None:
    cluster = cluster_with(10)
    found = driver(cluster, group="g", commitAsync="false", maxOffsetsPerTrigger="20")
    at = next_end(found, found.initial_offset())
    behind = reported(found)
    assert behind["group"]["behindCheckpoint"] == 0 and behind["lag"]["total"] == 0
    assert reported(found) is behind
    assert next_end(found, at) is at  # commits the offsets, and asks for the bounds again
    committed = reported(found)
    assert committed["group"]["committed"] == {"T": {"broker-a": {"0": 10, "1": 10}}}
    assert reported(found) is committed
    cluster.put(Q0, 50)
    next_end(found, at)
    late = reported(found)
    assert late["lag"]["total"] == 30
    assert reported(found) is not late  # because the waiting time grows
    found.close()


def test_an_idle_query_reads_the_offset_of_spark_once_and_returns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"idlePollMs": "0", "queueDiscoveryIntervalMs": "0", "nameServer": "h:1", "topic": "T"}
    options = source_options(given, streaming=True)
    reader = RocketSimStreamReader(source_schema(options), options)
    cluster = cluster_with(10)
    monkeypatch.setattr(ClientCluster, "open", lambda _: cluster)
    read: list[Any] = []
    of = StreamOffset.of
    monkeypatch.setattr(StreamOffset, "of", lambda written: read.append(written) or of(written))
    first = reader.latestOffset(StreamOffset({Q0: 0, Q1: 0}).json(), reader.getDefaultReadLimit())
    texts = [json.dumps(first)]
    for _ in range(5):
        texts.append(json.dumps(reader.latestOffset(json.loads(texts[-1]), reader.getDefaultReadLimit())))
    assert {*texts} == {json.dumps(first)}
    assert len(read) == 2
    cluster.put(Q0, 1)
    assert reader.latestOffset(first, reader.getDefaultReadLimit())["q"] == {"T": {"broker-a": {"0": 11, "1": 10}}}
    reader.stop()
    assert cluster.is_closed


def test_the_lag_is_counted_from_the_first_record_that_is_there() -> None:
    cluster = cluster_with(100)
    found = driver(cluster, maxOffsetsPerTrigger="20", failOnDataLoss="false")
    next_end(found, found.initial_offset())
    for broker in cluster.brokers.values():
        broker.first[Q0] = 95
    report = found.report()
    assert report is not None and report["lag"]["total"] == 180  # from the brokers' answers when the batch was planned
    found._states = found._watch.states([Q0, Q1])
    report = found.report()
    assert report is not None
    assert (report["lag"]["total"], report["lag"]["min"], report["lag"]["max"]) == (95, 5, 90)
    found.close()


# --- a batch that is run again ----------------------------------------------------------------------------------------


def cut(found: StreamQuery, start: StreamOffset, end: StreamOffset) -> list[list[OffsetRange]]:
    """Returns the ranges of each partition, as Spark passes them to tasks."""
    return [one.ranges for one in found.partitions(start, end)]  # type: ignore[attr-defined]


def test_a_batch_is_cut_as_it_was_planned_whatever_driver_runs_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with(1_000_000)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    first = driver(cluster, minPartitions="3", maxRecordsPerPartition="300000")
    start = StreamOffset({Q0: 0, Q1: 0})
    written = json.dumps(next_end(first, start).json())
    assert json.loads(written)["split"] == {"cores": 8, "maxRecords": 300_000, "minPartitions": 3, "rule": 2} | {
        "bytes": 200_000_000  # two queues of a million records of 100 bytes
    }
    end = StreamOffset.of(json.loads(written))
    planned_first = cut(first, start, end)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    again = driver(cluster, minPartitions="11")
    assert cut(again, start, end) == planned_first
    after = next_end(again, StreamOffset({Q0: 999_999, Q1: 999_999}))
    # the next batch is split by this driver's own settings
    assert after.split == Parallelism(2, min_partitions=11, batch_bytes=200)


def test_a_batch_planned_before_splits_were_written_is_cut_as_this_driver_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    found = driver(cluster_with(1_000_000))
    start, old = (
        StreamOffset({Q0: 0, Q1: 0}),
        StreamOffset.of({"q": next_end(found, StreamOffset({Q0: 0, Q1: 0})).json()["q"], "v": 1}),
    )
    assert old.split is None
    assert len(cut(found, start, old)) == 2


def test_an_idle_stream_returns_the_very_offset_it_was_asked_with() -> None:
    """Spark compares offsets as text, so another split would cause a batch without rows."""
    written = {"q": {"T": {"broker-a": {"0": 10, "1": 10}}}, "split": {"cores": 999, "rule": 1}, "v": 1}
    assert next_end(driver(cluster_with()), StreamOffset.of(written)).json() == written
