"""Streams over a real pair, and the facts about Spark's Python data sources on which the design depends."""

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.records import kernels

from rocketsim_client import Admin
from testbed.polling import wait_until
from tests.source.bench import TIMEOUT_S, Bench, batches, failure_of, source_progress, wait_idle
from tests.source.test_offsets import OLD_CHECKPOINT

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def test_an_idle_query_reaches_lag_zero_and_runs_no_empty_batches(pair: Bench, checkpoint: str) -> None:
    """Spark calls commit(end) one batch late, which would leave a lag on an idle topic, so the source takes processed
    offsets from latestOffset(start).  Spark compares offsets as text, so keys in an unstable order would cause one
    empty batch after another.
    """
    topic, group = pair.topic(20), pair.name("group")
    query = pair.start(pair.stream(topic, group=group, startingOffsets="earliest"), checkpoint)
    pair.wait_committed(group, topic)
    assert pair.bodies(checkpoint) == sorted(map(str, range(20)))
    planned = batches(checkpoint)
    assert planned == 1
    pair.send(topic, ["more"])
    pair.wait_committed(group, topic)
    wait_until(lambda: batches(checkpoint) == planned + 1, "one more batch")
    with Admin(pair.name_server.address) as admin:
        (client,) = [one for one in admin.consumer_connection(group) if one.messages == 1]
    assert client.client_id.startswith(f"Spark {socket.gethostname()[:64]}@") and client.way == "commit"
    query.stop()


def test_progress_shows_lag_group_and_route(pair: Bench, checkpoint: str) -> None:
    topic, group = pair.topic(40), pair.name("group")
    query = pair.start(
        pair.stream(topic, group=group, startingOffsets="earliest", maxOffsetsPerTrigger=10),
        checkpoint,
        processingTime="1 second",
    )
    wait_until(lambda: query.lastProgress and query.lastProgress.numInputRows, "a batch with rows", TIMEOUT_S)
    latest = source_progress(query)["latestOffset"]
    assert latest["v"] == 1
    assert latest["topic"] == topic
    assert latest["q"] == {topic: {"broker-a": dict.fromkeys("0123", 10)}}
    assert latest["lag"]["total"] > 0
    assert latest["maxOffsetsBehindLatest"] == latest["lag"]["max"]
    assert latest["group"]["name"] == group
    assert latest["route"] == {"broker-a": 0}
    wait_until(lambda: source_progress(query)["latestOffset"]["lag"]["total"] == 0, "the last batch", TIMEOUT_S)
    # Tasks of earlier batches have used this transport.  The broker may offer another one (see test_stream_query).
    assert source_progress(query)["latestOffset"]["transport"] == {"broker-a": "stream"}
    assert source_progress(query)["latestOffset"]["recordKernels"] == kernels.in_use()
    query.stop()


@pytest.mark.parametrize(("commit", "last_is_committed"), [("auto", True), ("onTrigger", True), ("onCommit", False)])
def test_available_now_commits_its_last_batch(
    pair: Bench, checkpoint: str, commit: str, last_is_committed: bool
) -> None:
    """Spark never calls commit(end) for the last batch, as `onCommit` alone shows."""
    topic, group = pair.topic(8), pair.name("group")
    stream = pair.stream(
        topic, group=group, startingOffsets="earliest", commitOffsets=commit, commitInitialOffset=False
    )
    pair.run(stream, checkpoint)
    assert len(pair.rows(checkpoint)) == 8
    if last_is_committed:
        pair.wait_committed(group, topic)  # Spark does not wait for the process that commits
    else:
        assert pair.committed(group, topic) != pair.end(topic)


def test_available_now_reads_what_is_there_in_limited_batches_and_ends(pair: Bench, checkpoint: str) -> None:
    topic = pair.topic(40)
    stream = pair.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=15)

    def and_one_more(frame: Any, batch_id: int) -> None:
        if batch_id == 1:
            pair.send(topic, ["late"])

    query = pair.start(stream, checkpoint, and_one_more, availableNow=True)
    assert query.awaitTermination(TIMEOUT_S)
    assert pair.bodies(checkpoint) == sorted(map(str, range(40)))
    assert batches(checkpoint) == 3
    pair.run(stream, checkpoint)
    assert pair.bodies(checkpoint) == sorted([*map(str, range(40)), "late"])


def test_once_reads_everything_in_one_batch(pair: Bench, checkpoint: str) -> None:
    topic = pair.topic(40)
    stream = pair.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=15)
    pair.run(stream, checkpoint, once=True)
    assert len(pair.rows(checkpoint)) == 40
    assert batches(checkpoint) == 1


@pytest.mark.parametrize("trigger", [{"processingTime": "0 seconds"}, {"availableNow": True}], ids=["always", "now"])
@pytest.mark.parametrize("failing", [0, 1], ids=["anchor fails", "first batch fails"])
def test_a_start_at_latest_loses_nothing_when_the_first_batch_fails(
    pair: Bench, checkpoint: str, trigger: dict[str, Any], failing: int
) -> None:
    """When Spark replays batch 0, it asks for the initial offset again, and `latest` has moved by then.  The anchor
    batch, which has no records, has written the first initial offset into the checkpoint.
    """
    topic = pair.topic(4)
    stream = pair.stream(topic)

    def fail(frame: Any, batch_id: int) -> None:
        if batch_id == 0:
            pair.send(topic, ["a", "b"])
        if batch_id == failing:
            raise ValueError("the test's failure")

    assert "the test's failure" in failure_of(pair.start(stream, checkpoint, fail))
    pair.send(topic, ["c"])
    query = pair.start(stream, checkpoint, **trigger)
    wait_until(lambda: pair.bodies(checkpoint) == ["a", "b", "c"], "all that came after the start", TIMEOUT_S)
    query.stop()


@pytest.mark.parametrize("keeps_start", [True, False])
def test_a_first_batch_that_failed_starts_where_it_did_or_is_at_least_an_error(
    pair: Bench, checkpoint: str, keeps_start: bool
) -> None:
    topic, group = pair.topic(), pair.name("group")
    pair.send(topic, ["a", "b"], queue_id=0)
    pair.cluster.commit(group, dict.fromkeys(pair.end(topic), 0))
    stream = pair.stream(
        topic, group=group, startingOffsets="committed", initialOffsetAnchor=keeps_start, commitOffsets="none"
    )

    def fail(frame: Any, batch_id: int) -> None:
        raise ValueError("the test's failure")

    assert "the test's failure" in failure_of(pair.start(stream, checkpoint, fail))
    pair.send(topic, ["c"], queue_id=0)
    pair.cluster.commit(group, pair.end(topic))  # moves the group's start beyond the end of the unfinished batch
    if keeps_start:
        pair.run(stream, checkpoint)
        assert pair.bodies(checkpoint) == ["a", "b", "c", "first"]
        assert batches(checkpoint) == 2
        return
    said = failure_of(pair.start(stream, checkpoint))
    assert "initialOffsetAnchor=true" in said
    assert "failOnDataLoss" in said


def test_stopping_flushes_a_throttled_commit(pair: Bench, checkpoint: str) -> None:
    """query.stop() never calls the reader's stop(): its process gets SIGTERM."""
    topic, group = pair.topic(8), pair.name("group")
    stream = pair.stream(topic, group=group, startingOffsets="earliest", commitMinIntervalMs="1h", idlePollMs=0)
    query = pair.start(stream, checkpoint)
    wait_until(lambda: len(pair.rows(checkpoint)) == 8, "the rows", TIMEOUT_S)
    wait_idle(query)  # by then, the source knows that its batch is done
    # A thread commits the start at once, while the end of the batch would be committed an hour later.
    wait_until(lambda: set(pair.committed(group, topic).values()) == {0}, "the start to be committed", TIMEOUT_S)
    query.stop()
    pair.wait_committed(group, topic)


def test_a_new_group_is_visible_with_its_lag_at_once(pair: Bench, checkpoint: str) -> None:
    topic, group = pair.topic(8), pair.name("group")
    query = pair.start(pair.stream(topic, group=group), checkpoint)
    pair.wait_committed(group, topic)
    query.stop()
    # A group that has an offset keeps it, wherever a query of a new checkpoint starts.
    pair.send(topic, map(str, range(4)))
    before = pair.committed(group, topic)
    query = pair.start(pair.stream(topic, group=group), checkpoint + "-2")
    wait_until(lambda: query.lastProgress, "a progress", TIMEOUT_S)
    assert pair.committed(group, topic) == before
    query.stop()


def test_a_query_starts_where_its_group_is_committed(pair: Bench, checkpoint: str) -> None:
    topic, group = pair.topic(8), pair.name("group")
    pair.run(pair.stream(topic, group=group, startingOffsets="committed,earliest"), checkpoint)
    assert len(pair.rows(checkpoint)) == 8
    pair.wait_committed(group, topic)  # Spark does not wait for the process that commits
    pair.send(topic, ["next"])
    pair.run(pair.stream(topic, group=group, startingOffsets="committed,earliest"), checkpoint + "-2")
    assert pair.bodies(checkpoint + "-2") == ["next"]


def test_a_checkpoint_of_an_older_version_goes_on_without_loss_or_repetition(pair: Bench, tmp_path: Path) -> None:
    """In the checkpoint, batch 3 was planned with offsets 6 to 9 and not finished.  The last record of each queue was
    never planned.
    """
    for queue_id in range(4):
        pair.send("old", [f"{queue_id}-{number}" for number in range(10)], queue_id=queue_id)
    wait_until(lambda: pair.is_known("old"), "the name server to know it", TIMEOUT_S)
    checkpoint = shutil.copytree(OLD_CHECKPOINT, tmp_path / "checkpoint")
    pair.run(pair.stream("old", startingOffsets="earliest"), str(checkpoint))
    rows = sorted((row.queueId, row.queueOffset) for row in pair.rows(str(checkpoint)))
    assert rows == [(queue_id, offset) for queue_id in range(4) for offset in range(6, 10)]
    newer = str(max(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*")) + 1)
    text = (checkpoint / "offsets" / "3").read_text()
    (checkpoint / "offsets" / newer).write_text(text.replace('"v": 1}', '"v": 2}'))
    shutil.copy(checkpoint / "commits" / "2", checkpoint / "commits" / newer)
    query = pair.start(pair.stream("old"), str(checkpoint))
    assert "format version 2, and this version of RocketSim knows only versions up to 1" in failure_of(query)


def test_somebody_else_committing_the_group_can_end_the_query(pair: Bench, checkpoint: str) -> None:
    topic, group = pair.topic(100), pair.name("group")
    stream = pair.stream(
        topic, group=group, startingOffsets="earliest", groupConflictPolicy="fail", maxOffsetsPerTrigger=4
    )
    query = pair.start(stream, checkpoint, processingTime="500 milliseconds")
    wait_until(lambda: max(pair.committed(group, topic).values()) > 0, "the query's own commit", TIMEOUT_S)
    pair.cluster.commit(group, pair.end(topic))
    assert "somebody else commits group" in failure_of(query)


def test_tag_filter_gaps_are_not_losses(pair: Bench, checkpoint: str) -> None:
    topic, group = pair.topic(), pair.name("group")
    pair.send(topic, range(20), tags="other")
    pair.send(topic, ["x", "y"], tags="wanted")
    pair.send(topic, range(20), tags="other")
    stream = pair.stream(topic, group=group, startingOffsets="earliest", subExpression="wanted || missing")
    pair.run(stream, checkpoint)
    assert pair.bodies(checkpoint) == ["x", "y"]
    pair.wait_committed(group, topic)  # Spark does not wait for the process that commits


def test_a_condition_over_properties_selects_rows(pair: Bench, checkpoint: str) -> None:
    topic, group = pair.topic(), pair.name("group")
    for price in (19, 20, 21):
        pair.send(topic, [f"eu {price}"], properties={"region": "eu", "price": str(price)})
    pair.send(topic, ["us 21"], properties={"region": "us", "price": "21"}, tags="TagA")
    pair.send(topic, ["nothing"])
    options = {"filterType": "SQL92", "startingOffsets": "earliest"}
    stream = pair.stream(topic, group=group, subExpression="region = 'eu' AND price BETWEEN 20 AND 30", **options)
    pair.run(stream, checkpoint)
    assert pair.bodies(checkpoint) == ["eu 20", "eu 21"]
    pair.wait_committed(group, topic)  # messages that the filter leaves out count as consumed, too
    rows = pair.batch(topic, subExpression="TAGS = 'TagA' OR region IS NULL", filterType="SQL92").collect()
    assert sorted(bytes(row.body) for row in rows) == [b"first", b"nothing", b"us 21"]


def test_tags_with_the_same_hash_are_told_apart(pair: Bench) -> None:
    topic = pair.topic()
    pair.send(topic, ["right"], tags="Aa")  # Java's hash of Aa and BB is the same
    pair.send(topic, ["wrong"], tags="BB")
    assert [bytes(row.body) for row in pair.batch(topic, subExpression="Aa").collect()] == [b"right"]


def test_a_stream_can_have_an_end(pair: Bench, checkpoint: str) -> None:
    topic = pair.topic(40)
    ends = json.dumps({topic: {"broker-a": 4}})
    pair.run(pair.stream(topic, startingOffsets="earliest", endingOffsets=ends), checkpoint)
    assert sorted((row.queueId, row.queueOffset) for row in pair.rows(checkpoint)) == [
        (queue, offset) for queue in range(4) for offset in range(4)
    ]


def test_several_topics_by_list_pattern_and_assignment(pair: Bench, checkpoint: str) -> None:
    prefix = pair.name("family")
    for letter in "ab":
        pair.send(f"{prefix}{letter}", range(4))
    wait_until(lambda: all(pair.is_known(f"{prefix}{letter}") for letter in "ab"), "both topics", TIMEOUT_S)
    pair.run(pair.stream(subscribe=f"{prefix}a, {prefix}b", startingOffsets="earliest"), checkpoint)
    assert {row.topic for row in pair.rows(checkpoint)} == {f"{prefix}a", f"{prefix}b"}
    pair.run(pair.stream(subscribePattern=f"{prefix}.", startingOffsets="earliest"), checkpoint + "-2")
    assert len(pair.rows(checkpoint + "-2")) == 8
    one = json.dumps({f"{prefix}a": {"broker-a": [1]}})
    rows = pair.batch(assign=one).collect()
    assert {(row.topic, row.queueId) for row in rows} == {(f"{prefix}a", 1)}


def test_a_queue_that_appears_later_is_read_from_its_beginning(pair: Bench, checkpoint: str) -> None:
    prefix = pair.name("grows")
    pair.send(f"{prefix}0", ["old"])
    stream = pair.stream(subscribePattern=f"{prefix}.", startingOffsets="earliest", queueDiscoveryIntervalMs=200)
    query = pair.start(stream, checkpoint)
    wait_until(lambda: pair.bodies(checkpoint) == ["old"], "the first topic", TIMEOUT_S)
    pair.send(f"{prefix}1", ["new"])
    wait_until(lambda: pair.bodies(checkpoint) == ["new", "old"], "the second topic", TIMEOUT_S)
    query.stop()


def test_few_records_wait_for_more(pair: Bench, checkpoint: str) -> None:
    topic = pair.topic(4)
    stream = pair.stream(topic, minOffsetsPerTrigger=10, maxTriggerDelay="1h")
    query = pair.start(stream, checkpoint)
    wait_until(lambda: query.lastProgress, "the anchor", TIMEOUT_S)
    pair.send(topic, ["first is not delayed"])
    wait_until(lambda: len(pair.rows(checkpoint)) == 1, "the first batch", TIMEOUT_S)
    planned = batches(checkpoint)
    for number in range(10):
        pair.send(topic, [number])
    wait_until(lambda: len(pair.rows(checkpoint)) == 11, "ten more", TIMEOUT_S)
    assert batches(checkpoint) == planned + 1
    query.stop()


def test_a_topic_deleted_under_a_query_is_an_error_that_says_so(pair: Bench, checkpoint: str) -> None:
    topic = pair.topic(8)
    query = pair.start(pair.stream(topic, startingOffsets="earliest"), checkpoint)
    wait_until(lambda: len(pair.rows(checkpoint)) == 8, "the rows", TIMEOUT_S)
    pair.delete_topic(topic)
    said = failure_of(query)
    assert "is gone" in said
    assert "dataLossAction=deleted=skip" in said


def test_wrong_options_end_the_query_with_their_own_words(pair: Bench, checkpoint: str) -> None:
    with pytest.raises(Exception, match="did you mean startingOffsets"):
        pair.stream(pair.topic(1), startngOffsets="latest")
    query = pair.start(pair.stream("no-such-topic"), checkpoint)
    assert "topic no-such-topic does not exist" in failure_of(query)


def test_offsets_in_the_checkpoint_have_sorted_keys(pair: Bench, checkpoint: str) -> None:
    topic = pair.topic(12)
    pair.run(pair.stream(topic, startingOffsets="earliest"), checkpoint)
    for number in range(batches(checkpoint)):
        text = Path(checkpoint, "offsets", str(number)).read_text().splitlines()[-1]
        assert text == json.dumps(json.loads(text), sort_keys=True)
