"""Tests batch reads over a real pair: columns, projection, bounds, and the errors that say what to do."""

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.processes import Processes
from tests.source.bench import Bench
from tests.support.tls import CA, DATA, SERVER_TLS

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture(scope="module")
def topic(pair: Bench) -> str:
    return pair.topic(40, tags="A")


def bodies(frame: Any) -> list[str]:
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


def test_all_columns_are_there(pair: Bench, topic: str) -> None:
    frame = pair.batch(topic, includeHosts=True)
    assert (
        frame.columns
        == (
            "topic brokerName queueId queueOffset msgId keys tags body flag bornTimestamp storeTimestamp "
            "reconsumeTimes messageGroup properties bornHost storeHost servedByBrokerId"
        ).split()
    )
    rows = frame.collect()
    assert len(rows) == 40
    for row in rows:
        assert (row.topic, row.brokerName, row.tags, row.servedByBrokerId) == (topic, "broker-a", "A", 0)
        assert row["keys"] == f"key-{bytes(row.body).decode()}"
        assert row.properties["UNIQ_KEY"] == row.msgId
        assert row.storeHost == pair.master.address
    assert len({(row.queueId, row.queueOffset) for row in rows}) == 40


def test_a_schema_is_a_projection(pair: Bench, topic: str) -> None:
    frame = pair.batch(topic, schema="queueOffset bigint, body string")
    assert frame.columns == ["queueOffset", "body"]
    assert sorted(row.body for row in frame.collect()) == sorted(map(str, range(40)))
    assert pair.batch(topic, columns="msgId").columns == ["msgId"]
    with pytest.raises(Exception, match="did you mean body"):
        pair.batch(topic, schema="bdy binary").collect()


def test_kafkas_columns_need_only_another_format(pair: Bench, topic: str) -> None:
    frame = pair.batch(topic, schemaProfile="kafka")
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert [field.name for field in frame.schema if field.nullable] == ["key"]
    found = frame.selectExpr("CAST(key AS STRING) k", "CAST(value AS STRING) v").collect()
    assert {row.k for row in found} == {f"key-{row.v}" for row in found}


def test_sql_finds_the_format_without_a_register_call(pair: Bench, topic: str) -> None:
    name = pair.name("view")
    options = f"nameServer '{pair.name_server.address}', topic '{topic}'"
    pair.spark.sql(f"CREATE TEMPORARY VIEW {name} USING rocketsim OPTIONS ({options})")
    assert pair.spark.sql(f"SELECT count(DISTINCT msgId) AS n FROM {name} WHERE tags = 'A'").first().n == 40


def test_bounds_by_offset_time_and_group(pair: Bench, topic: str) -> None:
    ends = json.dumps({topic: {"broker-a": {"0": 3, "*": 0}}})
    assert pair.batch(topic, endingOffsets=ends).count() == 3
    starts = json.dumps({topic: {"broker-a": {"0": -1, "*": "latest"}}})
    assert pair.batch(topic, startingOffsets=starts).count() == 0
    stored = sorted(row.storeTimestamp for row in pair.batch(topic, schema="storeTimestamp timestamp").collect())
    middle = stored[len(stored) // 2]
    ms = round(middle.timestamp() * 1000)
    after = pair.batch(topic, startingTimestamp=ms, startingOffsetsByTimestampStrategy="latest").count()
    before = pair.batch(topic, endingTimestamp=ms).count()
    assert after == sum(one >= middle for one in stored)
    assert before + after == 40 or middle == stored[0]
    group = pair.name("group")
    pair.cluster.commit(group, {queue: 1 for queue in pair.end(topic)})
    assert pair.batch(topic, startingOffsets="committed", group=group).count() == 36


def test_static_brokers_need_no_name_server(pair: Bench, topic: str) -> None:
    options = pair.options(topic) | {"brokers": f"broker-a=0@{pair.master.address},1@{pair.slave.address}"}
    del options["nameServer"]
    assert pair.spark.read.format("rocketsim").options(**options).load().count() == 40


def test_small_ranges_share_a_task_and_large_ones_can_be_split(pair: Bench, topic: str) -> None:
    assert pair.batch(topic).rdd.getNumPartitions() == 1
    split = pair.batch(topic, minPartitions=6)
    assert split.rdd.getNumPartitions() >= 6
    assert len(set(bodies(split))) == 40
    assert pair.batch(topic, maxRecordsPerPartition=5).rdd.getNumPartitions() == 8


def test_read_from_the_slave(pair: Bench, topic: str) -> None:
    pair.wait_for_slave(topic)
    for read_from, broker_id in (("slave", 1), ("master", 0), ("masterOnly", 0)):
        rows = pair.batch(topic, schema="servedByBrokerId int", readFrom=read_from).collect()
        assert {row.servedByBrokerId for row in rows} == {broker_id}


def test_source_and_sink_speak_tls(spark: Any, tmp_path: Path) -> None:
    """Spark's workers are other processes, and read the certificate files themselves."""
    server = SERVER_TLS | {"tlsClientAuth": "listenPort"}
    client = {"tls": "true", "tlsCa": CA, "tlsCert": DATA / "client.pem", "tlsKey": DATA / "client.key"}
    with Processes(tmp_path) as processes:
        broker = processes.start_broker("broker-a", 0, **server, autoCreateTopicEnable=True)
        where = {"brokers": f"broker-a=0@{broker.address}", "topic": "T"}
        rows = spark.createDataFrame([(str(number),) for number in range(10)], "body string")
        patient = {"sendTimeoutMs": "60s", "retryTimesWhenSendFailed": "20"}
        rows.write.format("rocketsim").mode("append").options(**where, **client, **patient).save()
        found = spark.read.format("rocketsim").options(**where, **client, pullTimeoutMs="60s").load()
        assert bodies(found) == sorted(map(str, range(10)))
        plan = found._jdf.queryExecution().toString()
        assert "PRIVATE KEY" not in plan and (DATA / "client.key").read_text().splitlines()[1] not in plan
        with pytest.raises(Exception, match="the server speaks TLS, and this client plaintext"):
            spark.read.format("rocketsim").options(**where).load().collect()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffsets": "{"}, "is not JSON"),
        ({"startingOffsets": "committed", "group": "nobody"}, "has no committed offset"),
        ({"startingOffsets": '{"nowhere":{"broker-a":{"0":1}}}'}, "not among the queues that are read"),
        ({"startingOffsets": "100000"}, "but it ends at"),
        ({"endingOffsets": "100000"}, "but it ends at"),
        ({"startingTimestamp": "2100-01-01"}, "no message at or after"),
        ({"topic": "no-such-topic"}, "topic no-such-topic does not exist"),
        ({"nameServer": "127.0.0.1:1"}, "no name server answered"),
        ({"filterType": "SQL92", "subExpression": "price >"}, "ends where more is expected"),
        ({"maxOffsetsPerTrigger": "5"}, "for streams only"),
        ({"assign": '{"nope":{"broker-a":[9]}}'}, "exclude each other"),
    ],
)
def test_an_error_says_what_to_do(pair: Bench, topic: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(Exception) as failure:
        pair.spark.read.format("rocketsim").options(**(pair.options(topic) | options)).load().collect()
    assert says in str(failure.value)
