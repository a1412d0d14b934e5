"""Queues start and end at the offsets that the options name."""

import pytest

from rocketsim_client.model import MessageQueue, QueueBounds
from rocketsim_source.options.data_loss import DataLossError
from rocketsim_source.options.option_values import OptionError
from rocketsim_source.options.source_options import SourceOptions, source_options
from rocketsim_source.planning.starts import (
    KnownOffsets,
    end_offsets,
    end_within,
    refuse_starts_behind_ends,
    refuse_times_behind_ends,
    start_offsets,
    wanted_ends,
    wanted_starts,
)
from rocketsim_source.source_cluster import Offsets

Q0, Q1 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)
BOUNDS = {Q0: QueueBounds(10, 20), Q1: QueueBounds(0, 5)}


def options(**given: str) -> SourceOptions:
    return source_options({"nameServer": "h:1", "topic": "T", "group": "g"} | given, streaming=True)


def starts(
    found: SourceOptions, *, streaming: bool = True, committed: Offsets | None = None, by_time: Offsets | None = None
) -> Offsets:
    wanted = wanted_starts(found, BOUNDS, streaming=streaming)
    return start_offsets(wanted, KnownOffsets(BOUNDS, committed or {}, by_time or {}), found)


@pytest.mark.parametrize(
    ("given_options", "expected"),
    [
        ({}, {Q0: 20, Q1: 5}),
        ({"startingOffsets": "earliest"}, {Q0: 10, Q1: 0}),
        ({"startingOffsets": "latest"}, {Q0: 20, Q1: 5}),
        ({"startingOffsets": '{"T":{"a":{"0":12}}}'}, {Q0: 12, Q1: 5}),
        ({"startingOffsets": '{"T":{"a":{"0":12,"*":-2}}}'}, {Q0: 12, Q1: 0}),
        ({"startingOffsets": "committed,earliest"}, {Q0: 15, Q1: 0}),
        ({"startingOffsets": "committed,latest"}, {Q0: 15, Q1: 5}),
    ],
)
def test_starting_offsets(given_options: dict[str, str], expected: Offsets) -> None:
    assert starts(options(**given_options), committed={Q0: 15}) == expected


def test_a_batch_starts_at_the_beginning_by_default() -> None:
    assert starts(options(), streaming=False) == {Q0: 10, Q1: 0}


def test_a_timestamp_goes_before_offsets_and_one_for_all_before_the_rest() -> None:
    by_time = {Q0: 13, Q1: 3}
    both = options(startingOffsetsByTimestamp='{"T":{"a":{"0":99}}}', startingOffsets="earliest")
    assert starts(both, by_time=by_time) == {Q0: 13, Q1: 0}
    all_three = options(
        startingTimestamp="50", startingOffsetsByTimestamp='{"T":{"a":{"0":99}}}', startingOffsets="earliest"
    )
    assert wanted_starts(all_three, BOUNDS, streaming=True).timestamps == {Q0: 50, Q1: 50}
    assert starts(all_three, by_time=by_time) == by_time


@pytest.mark.parametrize(("strategy", "expected"), [("latest", 20), ("earliest", 10)])
def test_a_timestamp_in_the_future_follows_the_strategy(strategy: str, expected: int) -> None:
    found = options(startingTimestamp="99", startingOffsetsByTimestampStrategy=strategy)
    assert starts(found, by_time={Q0: 20, Q1: 2}) == {Q0: expected, Q1: 2}


def test_a_timestamp_in_the_future_fails_by_default() -> None:
    with pytest.raises(OptionError, match=r"no message at or after timestamp 1970-01-01T00:00:00\.099Z"):
        starts(options(startingTimestamp="99"), by_time={Q0: 20, Q1: 2})


def test_committed_without_a_fallback_says_how_to_give_one() -> None:
    with pytest.raises(OptionError, match="'committed,earliest' or 'committed,latest'"):
        starts(options(startingOffsets="committed"), committed={Q0: 15})


@pytest.mark.parametrize(("offset", "kind"), [(9, "trimmed"), (21, "truncated")])
def test_a_start_outside_of_the_queue_is_a_data_loss(offset: int, kind: str) -> None:
    written = f'{{"T":{{"a":{{"0":{offset},"1":0}}}}}}'
    with pytest.raises(DataLossError, match=f"dataLossAction={kind}=skip") as loss:
        starts(options(startingOffsets=written))
    assert loss.value.kind == kind
    assert starts(options(startingOffsets=written, failOnDataLoss="false"))[Q0] == {9: 10, 21: 20}[offset]
    assert starts(options(startingOffsets=written, dataLossAction="earliest"))[Q0] == 10


def test_a_committed_offset_that_was_trimmed_is_a_data_loss() -> None:
    with pytest.raises(DataLossError, match="smallest offset is 10"):
        starts(options(startingOffsets="committed,latest"), committed={Q0: 3})


def ends(found: SourceOptions, by_time: Offsets | None = None) -> Offsets:
    return end_offsets(wanted_ends(found, BOUNDS), KnownOffsets(BOUNDS, {}, by_time or {}))


def test_ending_offsets() -> None:
    assert ends(options()) == {}
    assert ends(options(endingOffsets="latest")) == {}
    assert ends(options(endingOffsets='{"T":{"a":{"0":15}}}')) == {Q0: 15}
    assert ends(options(endingOffsets="17")) == {Q0: 17, Q1: 17}


def test_an_ending_timestamp_ends_only_where_a_record_has_passed_it() -> None:
    assert ends(options(endingTimestamp="50"), {Q0: 14, Q1: 5}) == {Q0: 14}


def test_offsets_in_kafkas_form_hear_of_the_broker_name() -> None:
    with pytest.raises(OptionError) as refusal:
        starts(options(startingOffsets='{"T":{"0":23,"1":-2}}'))
    assert "option startingOffsets names T → 0, which is not among the queues that are read" in str(refusal.value)
    assert '{"T":{"broker-a":{"0":…}}}, or {"T":{"*":{"0":…}}} for the queues' in str(refusal.value)
    assert starts(options(startingOffsets='{"T":{"*":{"0":12}}}')) == {Q0: 12, Q1: 5}


def test_an_end_outside_of_the_queue_is_called_an_end() -> None:
    policy = options().data_loss
    with pytest.raises(DataLossError, match=r"should be read up to \(endingOffsets\) 50, but it ends at 20"):
        end_within(Q0, 50, BOUNDS[Q0], policy)
    with pytest.raises(DataLossError, match=r"should be read up to \(endingOffsets\) 5, but its smallest offset is 10"):
        end_within(Q0, 5, BOUNDS[Q0], policy)


@pytest.mark.parametrize(("action", "end"), [("skip", 20), ("earliest", 20)])
def test_an_end_behind_the_queues_is_the_queues_where_the_options_allow_it(action: str, end: int) -> None:
    """With `earliest`, an end beyond the queue becomes the queue's end, and not its smallest offset, at which nothing
    would be read.
    """
    assert end_within(Q0, 50, BOUNDS[Q0], options(dataLossAction=action).data_loss) == end


def refuse(found: SourceOptions, by_time: Offsets, committed: Offsets) -> None:
    wanted, until = wanted_starts(found, BOUNDS, streaming=True), wanted_ends(found, BOUNDS)
    refuse_times_behind_ends(wanted, until)
    begin = start_offsets(wanted, KnownOffsets(BOUNDS, committed, by_time), found)
    refuse_starts_behind_ends(begin, end_offsets(until, KnownOffsets(BOUNDS, {}, by_time)), wanted, until, committed)


@pytest.mark.parametrize(
    "given_options",
    [
        {"startingOffsets": '{"T":{"a":{"0":15}}}', "endingOffsets": '{"T":{"a":{"0":12}}}'},
        {"endingOffsets": '{"T":{"a":{"0":12}}}'},  # a stream starts at `latest` by default
        {"startingOffsetsByTimestamp": '{"T":{"a":{"0":50}}}', "endingOffsets": '{"T":{"a":{"0":12}}}'},
        {"startingOffsetsByTimestamp": '{"T":{"a":{"0":50}}}', "endingOffsetsByTimestamp": '{"T":{"a":{"0":49}}}'},
    ],
)
def test_a_query_that_starts_behind_its_end_is_refused(given_options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"T@a:0 would be read from .* after its end"):
        refuse(options(**given_options), {Q0: 15}, {})


def test_a_group_that_has_come_further_than_the_end_has_nothing_to_read() -> None:
    found = options(startingOffsets="committed,latest", endingOffsets='{"T":{"a":{"0":12,"1":5}}}')
    refuse(found, {}, {Q0: 15})
    with pytest.raises(OptionError, match="T@a:0 would be read from 20 to 12"):
        refuse(found, {}, {Q1: 0})
