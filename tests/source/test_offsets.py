"""Offsets as Spark stores them: one state has one JSON text."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketsim_client.model import LogEpoch, MessageQueue
from rocketsim_source.planning.offsets import OffsetError, StreamOffset
from rocketsim_source.planning.splits import Parallelism

names = st.text(min_size=1, max_size=6)
queues = st.builds(MessageQueue, names, names, st.integers(0, 2**31 - 1))
offsets = st.dictionaries(queues, st.integers(0, 2**63 - 1), max_size=12)


def test_the_offset_is_the_documented_json() -> None:
    offset = StreamOffset({MessageQueue("TopicA", "broker-a", 0): 123})
    assert json.dumps(offset.json()) == '{"q": {"TopicA": {"broker-a": {"0": 123}}}, "v": 1}'
    assert StreamOffset(offset.offsets, anchor=True).json()["anchor"] == 1


def test_a_split_of_a_newer_rule_is_refused_with_the_way_out() -> None:
    with pytest.raises(OffsetError, match="rule 3, and this version knows the rules up to 2: run it with the"):
        StreamOffset.of({"v": 1, "q": {}, "split": {"cores": 2, "rule": 3}})


@pytest.mark.parametrize("rest", [{"q": {}}, {"anything": ["else"]}])
def test_a_newer_format_is_refused_with_the_way_out(rest: dict[str, object]) -> None:
    with pytest.raises(
        OffsetError,
        match=r"format version 2, and this version of RocketSim knows only versions up to 1: .*version that wrote",
    ):
        StreamOffset.of({"v": 2} | rest)


# The checkpoint that commit 9157579 left: topic `old` had ten messages in each of four queues, and batch 3 was planned
# and not finished.
OLD_CHECKPOINT = Path(__file__).parents[1] / "data" / "upgrade" / "checkpoint"


@pytest.mark.parametrize("batch", range(4))
def test_an_offset_of_an_older_version_is_written_as_it_was_read(batch: int) -> None:
    """Spark compares offsets as text, so another text for the same offset would cause a batch without rows."""
    text = (OLD_CHECKPOINT / "offsets" / str(batch)).read_text().splitlines()[-1]
    read = StreamOffset.of(json.loads(text))
    assert json.dumps(read.json()) == text
    assert read.offsets == {MessageQueue("old", "broker-a", queue_id): 3 * batch for queue_id in range(4)}
    assert read.anchor == (batch == 0)


@given(offsets, st.booleans(), st.randoms(use_true_random=False))
def test_the_text_does_not_depend_on_the_order_of_the_queues(
    found: dict[MessageQueue, int], anchor: bool, chance: random.Random
) -> None:
    shuffled = list(found.items())
    chance.shuffle(shuffled)
    text = json.dumps(StreamOffset(dict(shuffled), anchor).json())
    assert text == json.dumps(StreamOffset(found, anchor).json(), sort_keys=True)


counts = st.none() | st.integers(1, 10**6)
splits = st.none() | st.builds(Parallelism, st.integers(1, 512), counts, counts, st.integers(0, 2**50))


epochs = st.builds(LogEpoch, st.integers(1, 2**63 - 1), st.integers(0, 2**62))


@given(offsets, st.booleans(), splits, st.none() | offsets, st.data())
def test_what_is_written_reads_back_equal(
    found: dict[MessageQueue, int],
    anchor: bool,
    split: Parallelism | None,
    batch_start: dict[MessageQueue, int] | None,
    data: st.DataObject,
) -> None:
    read_in = data.draw(st.dictionaries(st.sampled_from(sorted(found)), epochs)) if found else {}
    offset = StreamOffset(found, anchor, split, read_in, batch_start)
    read = StreamOffset.of(json.loads(json.dumps(offset.json())))
    assert (read, read.split, read.read_in, read.batch_start) == (offset, split, read_in, batch_start)
    assert json.dumps(offset.json()) == json.dumps(offset.json(), sort_keys=True)


def test_queues_of_one_broker_share_the_text_of_their_epoch() -> None:
    found = {
        MessageQueue("T", "a", 0): 1,
        MessageQueue("T", "a", 1): 2,
        MessageQueue("T", "b", 0): 3,
        MessageQueue("U", "a", 0): 4,
    }
    one, other = LogEpoch(1, 255), LogEpoch(2, 16)
    read_in = {MessageQueue("T", "a", 0): one, MessageQueue("T", "a", 1): one, MessageQueue("T", "b", 0): other}
    assert StreamOffset(found, read_in=read_in).json()["epochs"] == {"T": {"a": "1#ff", "b": "2#10"}}
    read_in[MessageQueue("T", "a", 1)] = other
    assert StreamOffset(found, read_in=read_in).json()["epochs"]["T"]["a"] == {"0": "1#ff", "1": "2#10"}


@pytest.mark.parametrize(
    "written",
    [
        None,
        5,
        {},
        {"v": 0, "q": {}},
        {"v": "1", "q": {}},
        {"v": True, "q": {}},
        {"v": 1},
        {"v": 1, "q": []},
        {"v": 1, "q": {}, "start": []},
        {"v": 1, "q": {}, "start": {"T": {"b": {"0": -1}}}},
        {"v": 1, "q": {"T": 5}},
        {"v": 1, "q": {"T": {"b": {"0": "7"}}}},
        {"v": 1, "q": {"T": {"b": {"0": -1}}}},
        {"v": 1, "q": {"T": {"b": {"0": 1.5}}}},
        {"v": 1, "q": {"T": {"b": {"0": True}}}},
        {"v": 1, "q": {"T": {"b": {"zero": 1}}}},
        {"v": 1, "q": {}, "extra": 1},
        {"v": 1, "q": {"T": {"b": {"0": 7}}}, "epochs": 5},
        {"v": 1, "q": {"T": {"b": {"0": 7}}}, "epochs": {"T": {"b": 5}}},
        {"v": 1, "q": {"T": {"b": {"0": 7}}}, "epochs": {"T": {"b": "1"}}},
        {"v": 1, "q": {"T": {"b": {"0": 7}}}, "epochs": {"T": {"b": {"0": "x#1"}}}},
        {"v": 1, "q": {}, "split": 5},
        {"v": 1, "q": {}, "split": {"rule": 1}},
        {"v": 1, "q": {}, "split": {"rule": 1, "cores": 0}},
        {"v": 1, "q": {}, "split": {"rule": 1, "cores": True}},
        {"v": 1, "q": {}, "split": {"rule": 1, "cores": 2, "colour": 3}},
        {"v": 1, "q": {}, "split": {"rule": 1, "cores": 2, "bytes": 3}},
        {"v": 1, "q": {}, "split": {"rule": 2, "cores": 2}},
    ],
)
def test_an_edited_checkpoint_is_refused(written: object) -> None:
    with pytest.raises(OffsetError):
        StreamOffset.of(written)
