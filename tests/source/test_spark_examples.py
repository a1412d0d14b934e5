"""Runs the examples that use Spark, in one session and on one pair."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import rocketsim_testing
from examples import (
    spark_dedupe,
    spark_delta,
    spark_enrichment,
    spark_lag_alert,
    spark_parquet,
    spark_sink,
    spark_window,
    test_spark_job,
)
from rocketsim_client import PullConsumer
from testbed.polling import PROCESS_PATIENCE_S
from testbed.processes import ROOT
from tests.source.bench import Bench

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def run(query: Any) -> None:
    assert query.awaitTermination(PROCESS_PATIENCE_S), "the query has not ended"


def test_a_group_that_is_behind_is_told(pair: Bench) -> None:
    topic, group, address = pair.topic(5), pair.name("group"), pair.name_server.address
    with PullConsumer(address, group) as consumer:
        consumer.commit_all({queue: consumer.min_offset(queue) for queue in consumer.message_queues(topic)})
    line = f"group {group} is 5 messages behind in {topic}"
    assert line in spark_lag_alert.behind(pair.spark, address, 4)
    assert line not in spark_lag_alert.behind(pair.spark, address, 5)


def test_messages_of_each_tag_are_counted_by_the_minute(pair: Bench, checkpoint: str) -> None:
    topic = pair.topic(3, tags="a")
    pair.send(topic, range(2), tags="b")
    run(spark_window.start(pair.spark, pair.name_server.address, topic, checkpoint, "memory", availableNow=True))
    newest = pair.spark.table("counts").groupBy("window", "tags").max("count")
    rows = newest.groupBy("tags").sum("max(count)").collect()
    assert sorted(tuple(row) for row in rows) == [("a", 3), ("b", 2)]


def test_a_repeated_batch_replaces_its_files(pair: Bench, tmp_path: Path) -> None:
    topic, folder = pair.topic(3), str(tmp_path)
    run(spark_parquet.start(pair.spark, pair.name_server.address, topic, folder, availableNow=True))
    for commit in (tmp_path / "checkpoint/commits").iterdir():  # as if the job had died before the end of each batch
        commit.unlink()
    pair.send(topic, [3])
    run(spark_parquet.start(pair.spark, pair.name_server.address, topic, folder, availableNow=True))
    rows = pair.spark.read.parquet(f"{folder}/data").collect()
    assert sorted(row.body for row in rows) == ["0", "1", "2", "3"]


def test_a_repeated_batch_is_in_the_delta_table_once(pair: Bench, tmp_path: Path) -> None:
    topic, folder = pair.topic(3), str(tmp_path)
    run(spark_delta.start(pair.spark, pair.name_server.address, topic, folder, availableNow=True))
    for commit in (tmp_path / "checkpoint/commits").iterdir():  # as if the job had died before the end of each batch
        commit.unlink()
    pair.send(topic, [3])
    run(spark_delta.start(pair.spark, pair.name_server.address, topic, folder, availableNow=True))
    rows = DeltaTable(f"{folder}/table").to_pyarrow_table().column("body")
    assert sorted(rows.to_pylist()) == ["0", "1", "2", "3"]


def test_a_reading_gets_its_device_s_room_and_one_without_a_room_is_kept(
    pair: Bench, checkpoint: str, tmp_path: Path
) -> None:
    topic, devices, address = pair.name("topic"), tmp_path / "devices.csv", pair.name_server.address
    devices.write_text("device,room\nd1,kitchen\n")
    pair.send(topic, ['{"device": "d1", "celsius": 21.5}', '{"device": "d2", "celsius": 4}'])
    run(spark_enrichment.start(pair.spark, address, topic, str(devices), checkpoint, "memory", availableNow=True))
    rows = pair.spark.table("rooms").orderBy("device").select("device", "celsius", "room").collect()
    assert [tuple(row) for row in rows] == [("d1", 21.5, "kitchen"), ("d2", 4.0, None)]


def test_copies_are_dropped(pair: Bench, tmp_path: Path) -> None:
    topic, folder = pair.topic(1), str(tmp_path)
    pair.producer.send_columns(topic, pa.array([b"a", b"a", b"b"]), msg_ids=pa.array(["first", "first", "second"]))
    run(spark_dedupe.start(pair.spark, pair.name_server.address, topic, folder, availableNow=True))
    rows = pair.spark.read.parquet(f"{folder}/data").collect()
    assert sorted(row.body for row in rows) == ["0", "a", "b"]


def test_alarms_are_written_to_another_topic(pair: Bench, checkpoint: str) -> None:
    source, target = pair.topic(2), pair.topic()
    pair.send(source, ["fire"], tags="alarm")
    run(spark_sink.start(pair.spark, pair.name_server.address, source, target, checkpoint, availableNow=True))
    rows = pair.batch(target).where("tags = 'alarm'").collect()
    assert [(bytes(row.body), row["keys"]) for row in rows] == [(b"FIRE", "key-fire")]


def test_the_test_of_a_spark_job_passes(spark: Any) -> None:
    with rocketsim_testing.pair() as own:
        test_spark_job.test_the_job_goes_on_after_a_failover(spark, own, own.make_topic())


def test_the_cells_of_the_notebook_run_one_after_the_other(
    pair: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", pair.name_server.address)
    monkeypatch.setenv("TOPIC", pair.topic())
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # a cell changes this variable, and monkeypatch restores it
    names: dict[str, Any] = {}
    for cell in json.loads((ROOT / "examples/notebook.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    shown = capsys.readouterr().out
    assert "300 readings: SEND_OK" in shown
    assert names["table"].num_rows == 301  # the topic had one
    assert re.findall(r"\| +(\d)\| +([\d.]+)\|", shown) == [("0", "15.0"), ("1", "16.0"), ("2", "17.0")]
