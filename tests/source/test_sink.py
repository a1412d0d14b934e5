"""The sink with a real pair: every row is acknowledged, and a repeated batch has the promised result."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

from testbed.polling import wait_until
from tests.source.bench import TIMEOUT_S, Bench, failure_of

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def write(pair: Bench, frame: Any, topic: str | None = None, **options: object) -> None:
    frame.write.format("rocketsim").mode("append").options(**pair.options(topic, **options)).save()


def test_a_batch_of_all_columns_arrives(pair: Bench) -> None:
    topic = pair.topic()
    frame = pair.spark.range(50).select(
        f.concat(f.lit("row "), "id").alias("body"),
        f.lit("red").alias("tags"),
        f.col("id").cast("string").alias("keys"),
        f.create_map(f.lit("number"), f.col("id").cast("string")).alias("properties"),
        f.concat(f.lit("group "), (f.col("id") % 3).cast("string")).alias("messageGroup"),
    )
    write(pair, frame, topic)
    rows = [row for row in pair.batch(topic).collect() if row.tags == "red"]
    assert sorted(bytes(row.body).decode() for row in rows) == sorted(f"row {n}" for n in range(50))
    assert {row["keys"] for row in rows} == {row.properties["number"] for row in rows} == set(map(str, range(50)))
    of_group = {(row.messageGroup, row.queueId) for row in rows}
    assert len(of_group) == 3  # a group has one queue
    assert len({row.msgId for row in rows}) == 50


def test_rows_go_to_the_topic_and_queue_in_their_columns(pair: Bench) -> None:
    a, b = pair.topic(), pair.topic()
    frame = pair.spark.createDataFrame(
        [(b"1", a, 2), (b"2", b, 1), (b"3", a, 2)], "value binary, topic string, partition int"
    )
    write(pair, frame)
    found = pair.batch(subscribe=f"{a},{b}").where("body != 'first'").collect()
    assert sorted((bytes(row.body), row.topic, row.queueId) for row in found) == [
        (b"1", a, 2),
        (b"2", b, 1),
        (b"3", a, 2),
    ]


def test_rows_that_were_read_can_be_written(pair: Bench) -> None:
    source, target = pair.topic(12, tags="A"), pair.topic()
    write(pair, pair.batch(source), target)
    copied = {bytes(r.body): (r.tags, r["keys"]) for r in pair.batch(target).where("tags = 'A'").collect()}
    assert copied == {str(n).encode(): ("A", f"key-{n}") for n in range(12)}


def test_rows_read_in_kafkas_columns_go_back_to_their_queue(pair: Bench) -> None:
    source, target = pair.topic(12, queue_id=2), pair.topic()
    write(pair, pair.batch(source, schemaProfile="kafka"), target)
    found = pair.batch(target).where("body != 'first'").collect()
    assert {(row.brokerName, row.queueId) for row in found} == {("broker-a", 2)}
    assert {row["keys"] for row in found} == {f"key-{number}" for number in range(12)}


def test_rows_of_one_key_go_to_one_queue_in_order_with_partitioner_key(pair: Bench) -> None:
    """As in Kafka's sink.  Without the option a key is only text to search by, and its rows go to all queues."""
    keyed, spread = pair.topic(), pair.topic()
    frame = pair.spark.range(90).selectExpr("CAST(id AS STRING) AS value", "CONCAT('key ', id % 5) AS key")
    frame = frame.coalesce(1)
    write(pair, frame, keyed, partitioner="key")
    write(pair, frame, spread)

    def bodies_by_queue(topic: str) -> dict[tuple[str, int], list[int]]:
        rows = pair.batch(topic).where("body != 'first'").orderBy("queueOffset").collect()
        found: dict[tuple[str, int], list[int]] = {}
        for row in rows:
            found.setdefault((row["keys"], row.queueId), []).append(int(row.body))
        return found

    of_keys = bodies_by_queue(keyed)
    assert sorted(key for key, _ in of_keys) == [f"key {number}" for number in range(5)]
    assert {key: bodies for (key, _), bodies in of_keys.items()} == {
        f"key {number}": list(range(number, 90, 5)) for number in range(5)
    }
    assert len(bodies_by_queue(spread)) > 5


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("id AS text", {}, "the sink needs a column body"),
        ("'x' AS body, id AS number", {}, "column number means nothing to the sink"),
        ("CAST(NULL AS string) AS body", {}, "the body is null"),
        ("'' AS body", {}, "is empty"),
        ("'x' AS body, 99 AS queueId", {}, "has no writable queue 99"),
        ("'x' AS body", {"sinkMode": "transactional"}, "not supported yet"),
        ("'x' AS body", {"sinkMode": "idempotent"}, "needs to know what makes a row the same row"),
        (
            "'x' AS body, CAST(NULL AS int) AS a",
            {"sinkMode": "idempotent", "idColumns": "a"},
            "1 rows have null in every",
        ),
        ("'x' AS body", {"topic": "bad topic"}, "only letters, digits"),
        ("repeat('x', 5000000) AS body", {}, "limit, maxMessageSize, is 4194304"),
    ],
)
def test_a_row_that_cannot_be_sent_fails_the_query_with_the_reason(
    pair: Bench, columns: str, options: dict[str, str], says: str
) -> None:
    topic = options.get("topic") or pair.topic()
    with pytest.raises(Exception) as failure:
        write(
            pair,
            pair.spark.range(1).selectExpr(*columns.split(", ") if "repeat" not in columns else [columns]),
            topic,
            **{k: v for k, v in options.items() if k != "topic"},
        )
    assert says in str(failure.value)


def test_only_appending_is_possible(pair: Bench) -> None:
    frame = pair.spark.range(1).selectExpr("'x' AS body")
    with pytest.raises(Exception, match="only be added"):
        frame.write.format("rocketsim").mode("overwrite").options(**pair.options(pair.topic())).save()


def forget_last_commit(checkpoint: str) -> None:
    """Changes the checkpoint as if Spark had crashed between a batch's writes and its commit, so that Spark repeats the
    batch.
    """
    last = newest(checkpoint, "commits")
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("options", "shuffle", "left"),
    [
        pytest.param({}, False, 120, id="atLeastOnce"),
        pytest.param({"sinkMode": "idempotent", "sinkName": "copy"}, False, 60, id="sinkName"),
        pytest.param({"sinkMode": "idempotent", "idColumns": "keys"}, True, 60, id="idColumns"),
    ],
)
def test_a_repeated_batch_leaves_the_promised_duplicates(
    pair: Bench, checkpoint: str, options: dict[str, str], shuffle: bool, left: int
) -> None:
    """After a repeated batch, the topic has the batch's rows twice.  In mode `idempotent` both rows have the same
    message id, so dropDuplicates('msgId') keeps each row once.  Ids from places stay the same although other options
    would cut the batch differently, and ids from columns stay the same after any shuffle.
    """
    source, target = pair.topic(60), pair.topic()

    def run(parts: int) -> None:
        stream = pair.stream(source, startingOffsets="earliest", minPartitions=parts).select("body", "keys")
        stream = stream.where("body != 'first'")
        query = (
            (stream.repartition(parts) if shuffle else stream)
            .writeStream.format("rocketsim")
            .options(**pair.options(target, **options))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_S)

    run(3)
    forget_last_commit(checkpoint)
    run(7)
    written = pair.batch(target).where("body != 'first'")
    count = Counter(bytes(row.body).decode() for row in written.collect())
    assert count == dict.fromkeys(map(str, range(60)), 2)
    once = written.dropDuplicates(["msgId"]).collect()
    assert len(once) == left
    assert {bytes(row.body).decode() for row in once} == set(map(str, range(60)))


def test_two_writes_of_one_batch_have_different_ids_and_repeat_them(pair: Bench, checkpoint: str) -> None:
    source, target = pair.topic(20), pair.topic()

    def write_twice(frame: Any, batch_id: int) -> None:
        for name in ("all", "tags"):
            write(pair, frame.select("body"), target, sinkMode="idempotent", sinkName=name)

    def run() -> None:
        stream = pair.stream(source, startingOffsets="earliest").where("body != 'first'")
        writer = stream.writeStream.foreachBatch(write_twice).option("checkpointLocation", checkpoint)
        assert writer.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)

    def count_and_ids() -> tuple[int, int]:
        written = pair.batch(target).where("body != 'first'")
        return written.count(), written.select("msgId").distinct().count()

    run()
    assert count_and_ids() == (40, 40)
    forget_last_commit(checkpoint)
    run()
    assert count_and_ids() == (80, 40)


def test_ids_of_columns_are_the_same_in_all_runs_of_a_job(pair: Bench) -> None:
    target = pair.topic()
    for parts in (1, 4):
        frame = pair.spark.range(30).repartition(parts)
        rows = frame.selectExpr("CAST(id AS STRING) AS body", "id AS order", "id % 2 = 0 AS even")
        write(pair, rows, target, sinkMode="idempotent", idColumns="order,even")
    once = pair.batch(target).where("body != 'first'").dropDuplicates(["msgId"]).collect()
    assert sorted(int(row.body) for row in once) == list(range(30))


def test_a_stream_survives_the_loss_of_its_master_and_loses_nothing(pair: Bench, checkpoint: str) -> None:
    source, target = pair.topic(20), pair.topic()
    pair.wait_for_slave(source)  # it serves the query's start while the master is away
    stream = pair.stream(source, startingOffsets="earliest", maxOffsetsPerTrigger=5).select("body")
    writer = stream.writeStream.format("rocketsim").options(
        **pair.options(target, sendTimeoutMs=180_000, retryTimesWhenSendFailed=100)
    )
    query = writer.option("checkpointLocation", checkpoint).start()
    pair.master.kill()
    pair.master.start()
    wait_until(pair.is_writable, "the master to take writes again", TIMEOUT_S)

    def all_there() -> bool:
        assert query.exception() is None
        return sum(pair.end(target).values()) >= 1 + 20

    wait_until(all_there, "the rows", TIMEOUT_S)
    pair.wait_caught_up(query, source)
    assert pair.batch(target).where("body != 'first'").select("body").distinct().count() == 20
    query.stop()


def test_async_progress_tracking_with_commits_on_commit(pair: Bench, checkpoint: str) -> None:
    """Spark runs batches before it has written the earlier ones to its log, so a crash repeats more of them.  The
    group's offsets never go beyond Spark's log.
    """
    source, target, group = pair.topic(30), pair.topic(), pair.name("group")
    stream = pair.stream(
        source, startingOffsets="earliest", group=group, commitOffsets="onCommit", maxOffsetsPerTrigger=7
    )
    query = (
        stream.select("body")
        .writeStream.format("rocketsim")
        .options(**pair.options(target, asyncProgressTrackingEnabled=True))
        .option("asyncProgressTrackingCheckpointIntervalMs", 50)
        .option("_asyncProgressTrackingOverrideSinkSupportCheck", True)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    pair.wait_caught_up(query, source)
    query.stop()
    written = pair.batch(target, schema="body string").where("body != 'first'").collect()
    assert sorted(row.body for row in written) == sorted(map(str, range(30)))
    logged = json.loads(newest(checkpoint, "offsets").read_text().splitlines()[-1])["q"][source]["broker-a"]
    committed = pair.committed(group, source)
    assert sum(committed.values()) > 0
    assert all(offset <= logged[str(queue.queue_id)] for queue, offset in committed.items())


def newest(checkpoint: str, what: str) -> Path:
    """Returns the newest file of a log in a checkpoint."""
    return max((p for p in Path(checkpoint, what).iterdir() if p.name.isdigit()), key=lambda path: int(path.name))


def test_a_sink_that_reaches_no_broker_fails_the_query(pair: Bench, checkpoint: str) -> None:
    stream = pair.stream(pair.topic(4), startingOffsets="earliest").select("body")
    writer = stream.writeStream.format("rocketsim").options(nameServer="127.0.0.1:1", topic="T", sendTimeoutMs="300")
    said = failure_of(writer.option("checkpointLocation", checkpoint).start())
    assert "no name server answered" in said
