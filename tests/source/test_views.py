"""Views show lag, offsets, queues, groups and brokers as tables, over a real pair, and refuse wrong options."""

import re
from pathlib import Path
from typing import Any

import pytest

from rocketsim_cli.doctor import of_spark, source_options
from rocketsim_client import Admin, Consumer, PullConsumer
from rocketsim_client.errors import BrokerNotExist
from rocketsim_source.options.option_values import OptionError
from rocketsim_source.options.view_options import VIEWS, refuse_view, view_of, view_options
from rocketsim_source.views.columns import COLUMNS, check_view_schema, view_schema
from rocketsim_source.views.rows import rows_of
from testbed.polling import PROCESS_PATIENCE_S
from testbed.processes import Processes
from tests.source.bench import Bench
from tests.support.remoting_peer import GROUP, TOPIC, replaying
from tests.support.tls import CA

spark = pytest.mark.spark
cluster = pytest.mark.cluster


def view(pair: Bench, name: str, schema: str = "", **options: object) -> Any:
    reader = pair.spark.read.format("rocketsim").options(nameServer=pair.name_server.address, view=name, **options)
    return (reader.schema(schema) if schema else reader).load()


def commit(pair: Bench, group: str, topic: str, offsets: dict[int, int]) -> None:
    with PullConsumer(pair.name_server.address, group) as consumer:
        for queue in consumer.message_queues(topic):
            consumer.commit(queue, offsets[queue.queue_id])


@spark
@cluster
def test_lag_and_offsets_are_what_consumer_progress_says(pair: Bench) -> None:
    topic, group = pair.topic(), pair.name("group")
    pair.send(topic, range(5), queue_id=1)
    ends = {queue.queue_id: end for queue, end in pair.end(topic).items()}
    commit(pair, group, topic, ends | {1: ends[1] - 3})
    (lag,) = view(pair, "lag", group=group).where(f"topic = '{topic}'").collect()
    assert (lag.group, lag.lag, lag.largestQueueLag, lag.queues) == (group, 3, 3, len(ends))
    assert lag.lastConsumedTimestamp is not None
    rows = view(pair, "offsets", topic=topic, group=group).orderBy("queueId").collect()
    assert [(row.queueId, row.nextOffset, row.endOffset, row.lag) for row in rows] == [
        (queue, end - 3 * (queue == 1), end, 3 * (queue == 1)) for queue, end in sorted(ends.items())
    ]
    assert {(row.group, row.topic, row.brokerName, row.servedByBrokerId) for row in rows} == {
        (group, topic, "broker-a", 0)
    }
    with Admin(pair.name_server.address) as admin:
        told = {one.queue.queue_id: one.diff for one in admin.consumer_progress(group, topic)}
    assert told == {row.queueId: row.lag for row in rows}


@spark
@cluster
def test_queues_have_the_bounds_of_all_topics_or_of_those_that_are_named(pair: Bench) -> None:
    first, second = pair.topic(7), pair.topic()
    rows = view(pair, "queues", subscribe=f"{first},{second}").collect()
    ends = {queue: end for topic in (first, second) for queue, end in pair.end(topic).items()}
    assert {(row.topic, row.brokerName, row.queueId): row.maxOffset for row in rows} == {
        (queue.topic, queue.broker_name, queue.queue_id): end for queue, end in ends.items()
    }
    assert sum(row.messages for row in rows if row.topic == first) == 7
    assert all((row.lastStoreTimestamp is None) == (row.maxOffset == 0) for row in rows)
    assert {first, second} <= {row.topic for row in view(pair, "queues").select("topic").distinct().collect()}


@spark
@cluster
def test_the_doctor_reads_a_row(pair: Bench) -> None:
    good = of_spark(source_options({"name_server": pair.name_server.address}))
    assert (good.ok, good.found) == (True, "2 brokers")
    assert not of_spark({"nameServer": "127.0.0.1:1"}).ok
    assert pair.spark.range(3).count() == 3  # the doctor does not stop a session that existed before


@spark
@cluster
def test_groups_and_brokers(pair: Bench) -> None:
    topic, group = pair.topic(), pair.name("group")
    with Consumer(pair.name_server.address, group, topic) as consumer:
        (message,) = consumer.receive(1, timeout_s=PROCESS_PATIENCE_S)
        (found,) = view(pair, "groups", group=group).collect()
        assert (found.brokerName, found.lag, found.consumeEnable) == ("broker-a", 1, True)
        assert topic in found.topics
        consumer.ack(message)
    rows = {row.brokerId: row for row in view(pair, "brokers").collect()}
    assert {broker_id: row.address for broker_id, row in rows.items()} == {
        0: pair.master.address,
        1: pair.slave.address,
    }
    assert (rows[0].isMaster, rows[0].isWritable, rows[0].slavesInSync) == (True, True, 1)
    assert (rows[1].isMaster, rows[1].role, rows[1].slavesInSync) == (False, "SLAVE", None)
    assert 0 < rows[0].diskUsedRatio <= 1


@spark
@cluster
def test_a_view_is_sql_and_takes_a_projection(pair: Bench) -> None:
    name = pair.name("view")
    options = f"nameServer '{pair.name_server.address}', view 'brokers'"
    pair.spark.sql(f"CREATE TEMPORARY VIEW {name} USING rocketsim OPTIONS ({options})")
    assert pair.spark.sql(f"SELECT count(*) AS n FROM {name} WHERE isMaster").first().n == 1
    frame = view(pair, "brokers", schema="epoch bigint, brokerid int")
    assert frame.columns == ["epoch", "brokerid"]
    assert sorted(row.brokerid for row in frame.collect()) == [0, 1]


@spark
@cluster
def test_a_view_is_neither_a_stream_nor_written_to(pair: Bench) -> None:
    options = {"nameServer": pair.name_server.address, "view": "lag"}
    with pytest.raises(Exception, match="view=lag cannot be read as a stream"):
        pair.spark.readStream.format("rocketsim").options(**options).load().writeStream.format(
            "noop"
        ).start().awaitTermination()
    rows = pair.spark.createDataFrame([("x",)], "body string")
    with pytest.raises(Exception, match="view=lag cannot be written to"):
        rows.write.format("rocketsim").mode("append").options(**options).option("topic", "T").save()


@spark
@cluster
def test_a_broker_that_does_not_answer_is_an_error(pair: Bench) -> None:
    pair.slave.freeze()
    try:
        with pytest.raises(Exception, match=pair.slave.address):
            # The brokers that answer have this limit, too.
            view(pair, "brokers", pullTimeoutMs=10_000).collect()
    finally:
        pair.slave.thaw()
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1\b"):
        pair.spark.read.format("rocketsim").options(nameServer="127.0.0.1:1", view="lag").load().collect()


@cluster
def test_a_name_server_that_knows_no_broker_is_an_error(tmp_path: Any) -> None:
    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv()
        for name in VIEWS:
            with pytest.raises(BrokerNotExist, match="knows no broker"):
                rows_of(view_options({"nameServer": name_server.address, "view": name}))


# --- Apache RocketMQ --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.9.8", "5.5.0"])
def test_each_view_shows_a_cluster_of_rocketmq(version: str) -> None:
    def rows(name: str, **options: str) -> list[dict[str, Any]]:
        return rows_of(view_options({"nameServer": peer.address, "view": name, **options}))

    with replaying(version) as peer:
        (lag,) = rows("lag", group=GROUP)
        assert (lag["group"], lag["topic"], lag["lag"]) == (GROUP, TOPIC, 0)
        offsets = {row["queueId"]: row["nextOffset"] for row in rows("offsets", group=GROUP)}
        assert offsets == {0: 40, 1: 0}
        assert [row["maxOffset"] for row in rows("queues", topic=TOPIC)] == [40, 0]
        (group,) = rows("groups", group=GROUP)
        assert (group["brokerName"], group["topics"], group["consumeEnable"]) == ("interop", [TOPIC], True)
        (broker,) = rows("brokers")
        assert (broker["address"], broker["isMaster"], broker["epoch"]) == (peer.address, True, 0)
        assert broker["logEndOffset"] > 0 and broker["slavesInSync"] is None
        assert set(broker) == set(COLUMNS["brokers"])


def test_options_of_rocketmqs_clusters_reach_the_connection() -> None:
    given = {"protocol": "remoting", "addressMap": "10.0.*=host", "namespace": "MQ_INST_1"}
    found = view_options(BASE | given | {"accessKey": "a", "secretKey": "s", "securityToken": "token"})
    assert "token" not in repr(found)
    connection = found.connection
    assert (connection.protocol, connection.address_map, connection.namespace) == tuple(given.values())
    assert connection.security_token == "token"
    assert view_options(BASE | {"namespaceV2": "one"}).connection.namespace_v2 == "one"


# --- options ----------------------------------------------------------------------------------------------------------

BASE = {"nameServer": "h:1", "view": "lag"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"view": "lags"}, "option view = 'lags': must be one of messages, lag, offsets, queues, groups, brokers"),
        ({"nameServer": ""}, "host:port"),
        ({"startingOffsets": "earliest"}, "option startingOffsets is for reading messages, not for view=lag"),
        ({"brokers": "a=0@h:1"}, "option brokers is for reading messages"),
        ({"view": "queues", "group": "g"}, "view=queues is not about groups: leave out group=g"),
        ({"view": "brokers", "topic": "T"}, "view=brokers is not about topics: leave out T"),
        ({"view": "groups", "subscribe": "T,U"}, "view=groups is not about topics: leave out T, U"),
        ({"topic": "T", "subscribe": "U"}, "topic and subscribe exclude each other"),
        ({"accessKey": "u"}, "secretKey is missing"),
        ({"tlsCa": str(CA)}, "need tls=true"),
        ({"gruop": "g"}, "did you mean group"),
    ],
)
def test_a_refusal_of_a_view_says_what_is_wrong(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError) as refusal:
        view_of(BASE | given)
        view_options(BASE | given)
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"topic": "MQ_INST_1%t"}, "topic MQ_INST_1%t is written with its instance MQ_INST_1, .*: write t$"),
        ({"subscribe": "a,%RETRY%MQ_INST_1%g"}, "topic %RETRY%MQ_INST_1%g is .*: write %RETRY%g$"),
        ({"group": "MQ_INST_1%g"}, "group MQ_INST_1%g is written with its instance MQ_INST_1, .*: write g$"),
    ],
)
def test_a_name_that_is_written_with_its_instance_is_refused(named: dict[str, str], says: str) -> None:
    """The brokers' answers have the name without the instance, so the view would show no rows."""
    with pytest.raises(OptionError, match=says):
        view_options(BASE | {"namespace": "MQ_INST_1"} | named)
    assert view_options(BASE | {"namespace": "MQ_INST_2"} | named)


def test_a_view_without_a_name_server_says_what_it_needs() -> None:
    with pytest.raises(OptionError, match="view=lag needs nameServer=host:port"):
        view_options({"view": "lag"})


def test_messages_are_the_view_of_those_who_name_none() -> None:
    assert view_of({}) == view_of({"VIEW": "Messages"}) == "messages"
    refuse_view({"topic": "T"}, "written to")


def test_the_schema_of_a_user_picks_columns_with_their_types() -> None:
    assert check_view_schema("lag", parsed("LAG bigint, queues int")) == ["lag", "queues"]
    for schema, says in (
        ("lagg bigint", "view=lag has no column 'lagg'; did you mean lag?"),
        ("lag int", "column lag of view=lag is bigint, not int"),
        ("lag bigint, lag bigint", "names a column twice"),
    ):
        with pytest.raises(OptionError) as refusal:
            check_view_schema("lag", parsed(schema))
        assert says in str(refusal.value)
    assert set(COLUMNS) == set(VIEWS)


def test_the_document_has_the_columns_of_each_view() -> None:
    text = (Path(__file__).parents[2] / "docs/spark.md").read_text().partition("## Views")[2].partition("\n## ")[0]
    for name in VIEWS:
        (row,) = re.findall(rf"^\| `{name}` \|.*$", text, re.M)
        told = re.findall(r"`(\w+) ([\w<>]+)`( \(may be null\))?", row.rpartition(" | ")[2])
        assert [(column, kind, bool(null)) for column, kind, null in told] == [
            (field.name, field.dataType.simpleString(), field.nullable) for field in view_schema(name).fields
        ]


def parsed(schema: str) -> Any:
    """Returns a schema of simple columns, without a Spark session."""
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    kinds = {"bigint": LongType(), "int": IntegerType()}
    columns = [column.strip().split() for column in schema.split(",")]
    return StructType([StructField(name, kinds[kind]) for name, kind in columns])
