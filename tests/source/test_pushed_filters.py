"""Spark's filters narrow the ranges that a batch reads, and the batch has the same rows as without narrowing."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from rocketsim_client.model import MessageQueue, OffsetRange
from rocketsim_source.batch_reader import FilteringReader, ranges
from rocketsim_source.data_source import RocketSimDataSource
from rocketsim_source.options.option_values import OptionError
from rocketsim_source.options.source_options import SourceOptions, source_options
from rocketsim_source.partition_numbers import partition_number
from rocketsim_source.planning.pushed_filters import PushedFilters
from rocketsim_source.schema import source_schema
from tests.source.bench import Bench
from tests.source.memory_cluster import MemoryCluster

A0, A1, B0 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1), MessageQueue("U", "broker-b", 0)
WHOLE = [OffsetRange(A0, 10, 100), OffsetRange(A1, 0, 50), OffsetRange(B0, 0, 7)]
EVERY = {A0, A1, B0}
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def options(**given: str) -> SourceOptions:
    return source_options({"nameServer": "h:1", "topic": "T"} | given, streaming=False)


def at_ms(ms: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (EqualTo(("topic",), "T"), {A0, A1}),
        (EqualNullSafe(("topic",), "T"), {A0, A1}),
        (EqualTo(("TOPIC",), "U"), {B0}),
        (StringStartsWith(("topic",), "U"), {B0}),
        (StringEndsWith(("brokerName",), "-a"), {A0, A1}),
        (StringContains(("brokerName",), "er-b"), {B0}),
        (Not(EqualTo(("brokerName",), "broker-a")), {B0}),
        (In(("queueId",), (1, 5)), {A1}),
        (Not(In(("queueId",), (1, 5))), {A0, B0}),
        (GreaterThan(("queueId",), 0), {A1}),
        (GreaterThanOrEqual(("queueId",), 1), {A1}),
        (LessThan(("queueId",), 1), {A0, B0}),
        (LessThanOrEqual(("queueId",), 0), {A0, B0}),
        (EqualTo(("partition",), partition_number(B0)), {B0}),
        # The source does not understand the following filters, so Spark alone evaluates them.
        (EqualTo(("body",), b"x"), EVERY),
        (EqualTo(("properties", "topic"), "U"), EVERY),
        (EqualTo(("queueId",), "1"), EVERY),
        (IsNotNull(("topic",)), EVERY),
        (Not(IsNotNull(("topic",))), EVERY),
        (Not(Not(EqualTo(("topic",), "T"))), EVERY),
    ],
)
def test_queues_that_no_record_of_which_can_pass_are_not_read(given: Filter, kept: set[MessageQueue]) -> None:
    assert {one.queue for one in PushedFilters.of([given]).narrowed(WHOLE)} == kept


@pytest.mark.parametrize(
    ("given", "offsets"),
    [
        ([GreaterThan(("queueOffset",), 20)], (21, 100)),
        ([GreaterThanOrEqual(("queueOffset",), 20)], (20, 100)),
        ([LessThan(("queueOffset",), 20)], (10, 20)),
        ([LessThanOrEqual(("queueOffset",), 20)], (10, 21)),
        ([EqualTo(("queueOffset",), 20)], (20, 21)),
        ([In(("offset",), (30, None, 20))], (20, 31)),
        ([GreaterThan(("queueOffset",), 20), LessThan(("queueOffset",), 30)], (21, 30)),
        ([GreaterThan(("queueOffset",), -5)], (10, 100)),
        ([Not(EqualTo(("queueOffset",), 20))], (10, 100)),
    ],
)
def test_offsets_cut_the_ranges(given: list[Filter], offsets: tuple[int, int]) -> None:
    assert PushedFilters.of(given).narrowed([OffsetRange(A0, 10, 100)]) == [OffsetRange(A0, *offsets)]


def test_nothing_is_left_of_a_range_that_no_offset_or_time_fits() -> None:
    assert PushedFilters.of([EqualTo(("queueOffset",), 100)]).narrowed([OffsetRange(A0, 10, 100)]) == []
    before_1970 = LessThan(("storeTimestamp",), at_ms(-1))
    assert PushedFilters.of([before_1970]).narrowed(WHOLE) == []
    assert PushedFilters.of([EqualTo(("tags",), "A"), EqualTo(("tags",), "B")]).narrowed(WHOLE) == []


@pytest.mark.parametrize(
    ("given", "offsets"),
    [
        (GreaterThanOrEqual(("storeTimestamp",), at_ms(2040)), (40, 100)),
        (GreaterThanOrEqual(("storeTimestamp",), at_ms(2039.001)), (40, 100)),
        (GreaterThan(("storeTimestamp",), at_ms(2040)), (41, 100)),
        (GreaterThan(("storeTimestamp",), at_ms(2039.999)), (40, 100)),
        (LessThan(("storeTimestamp",), at_ms(2040)), (0, 40)),
        (LessThan(("storeTimestamp",), at_ms(2040.001)), (0, 41)),
        (LessThanOrEqual(("storeTimestamp",), at_ms(2040)), (0, 41)),
        (EqualTo(("storeTimestamp",), at_ms(2040).astimezone(timezone(timedelta(hours=5)))), (40, 41)),
        (In(("storeTimestamp",), (at_ms(2050), at_ms(2040))), (40, 51)),
        (GreaterThan(("timestamp",), at_ms(2040)), (0, 100)),  # Kafka's column `timestamp` has the birth time
        (GreaterThan(("storeTimestamp",), datetime(1970, 1, 1)), (0, 100)),  # a time without a zone
    ],
)
def test_store_times_are_looked_up(given: Filter, offsets: tuple[int, int]) -> None:
    cluster = MemoryCluster()
    cluster.put(A0, 100)  # record n is stored at 2000 + n ms
    planned, _ = ranges(options(), cluster, PushedFilters.of([given]))
    assert planned == [OffsetRange(A0, *offsets)]


def test_an_hour_of_a_week_reads_that_hour() -> None:
    cluster, hour = MemoryCluster(), 1000
    cluster.put(A0, 7 * 24 * hour)
    cluster.put(A1, 7 * 24 * hour)
    begin = 2000 + 100 * hour
    hour_of_week = [
        GreaterThanOrEqual(("storeTimestamp",), at_ms(begin)),
        LessThan(("storeTimestamp",), at_ms(begin + hour)),
    ]
    planned, _ = ranges(options(), cluster, PushedFilters.of(hour_of_week))
    assert sum(one.until_offset - one.from_offset for one in planned) == 2 * hour


def test_the_options_own_limits_hold_beside_the_filters() -> None:
    cluster = MemoryCluster()
    cluster.put(A0, 100)
    late = PushedFilters.of([GreaterThan(("storeTimestamp",), at_ms(2000)), LessThan(("queueOffset",), 90)])
    ends = json.dumps({"T": {"broker-a": {"0": 60}}})
    assert ranges(options(startingOffsets="30", endingOffsets=ends), cluster, late)[0] == [OffsetRange(A0, 30, 60)]


def test_store_times_of_rocketmqs_brokers_are_not_trusted() -> None:
    cluster = MemoryCluster()
    cluster.put(A0, 100)
    cluster.protocol = "remoting"
    late = PushedFilters.of([GreaterThan(("storeTimestamp",), at_ms(2040)), LessThan(("queueOffset",), 90)])
    assert ranges(options(), cluster, late)[0] == [OffsetRange(A0, 0, 90)]


@pytest.mark.parametrize(
    ("own", "given", "asked"),
    [
        ("*", [EqualTo(("tags",), "A")], "A"),
        ("*", [In(("tags",), ("B", None, "A"))], "A || B"),
        ("*", [In(("tags",), ("A", "B")), EqualTo(("tags",), "A")], "A"),
        ("A || C", [EqualTo(("tags",), "A")], "A || C"),
        ("*", [Not(EqualTo(("tags",), "A"))], "*"),
        ("*", [EqualTo(("tags",), "two words")], "*"),
        ("*", [EqualTo(("tags",), "*")], "*"),
        ("*", [EqualTo(("tags",), "A||B")], "*"),
        ("*", [], "*"),
    ],
)
def test_brokers_are_asked_for_the_tags(own: str, given: list[Filter], asked: str) -> None:
    reader = FilteringReader(source_schema(options()), options(subExpression=own))
    assert reader.pushFilters(given) == given
    assert reader.options.sub_expression == asked


def test_tags_are_asked_for_as_tags_whatever_the_filter_type_of_an_empty_filter() -> None:
    reader = FilteringReader(source_schema(options()), options(filterType="SQL92"))
    reader.pushFilters([In(("tags",), ("A", "B"))])
    assert reader.options.expression.asked == "A || B"
    conditional = FilteringReader(source_schema(options()), options(filterType="SQL92", subExpression="price > 20"))
    conditional.pushFilters([EqualTo(("tags",), "A")])
    assert (conditional.options.filter_type, conditional.options.sub_expression) == ("SQL92", "price > 20")


def test_only_the_reader_of_a_batch_with_the_option_gets_filters() -> None:
    given = {"nameServer": "h:1", "topic": "T"}
    schema = source_schema(options())
    asked = RocketSimDataSource(given | {"filterPushdown": "true"})
    assert isinstance(asked.reader(schema), FilteringReader)
    # Spark refuses a reader with `pushFilters` while its own setting is off.
    assert type(RocketSimDataSource(given).reader(schema)).pushFilters is DataSourceReader.pushFilters
    with pytest.raises(OptionError, match="option filterPushdown is for batches only"):
        asked.streamReader(schema)


@pytest.mark.spark
@pytest.mark.cluster
def test_spark_reads_less_and_finds_the_same_rows(pair: Bench) -> None:
    topic = pair.topic(40, tags="A")
    conf = pair.spark.conf
    before = {name: conf.get(name) for name in (PUSHDOWN, "spark.sql.adaptive.enabled")}
    stored = sorted(row.storeTimestamp for row in pair.batch(topic, schema="storeTimestamp timestamp").collect())
    middle = f"TIMESTAMP '{stored[20].astimezone(UTC).isoformat()}'"
    conditions = {
        "queueId = 1": 10,
        "queueId IN (1, 3) AND queueOffset >= 4 AND queueOffset < 7": 6,
        "tags = 'A'": 40,
        "tags = 'B'": 0,
        "topic LIKE 'no such%'": 0,
        f"storeTimestamp >= {middle}": sum(one >= stored[20] for one in stored),
        f"storeTimestamp < {middle} AND upper(tags) = 'A'": sum(one < stored[20] for one in stored),
    }
    try:
        conf.set(PUSHDOWN, "true")
        # Without adaptive execution, Spark runs the first plan, so this plan has the metrics.
        conf.set("spark.sql.adaptive.enabled", "false")
        for condition, expected in conditions.items():
            rows = [
                sorted((row.queueId, row.queueOffset) for row in pair.batch(topic).where(condition).collect()),
            ]
            narrowed = pair.batch(topic, filterPushdown=True).where(condition)
            rows.append(sorted((row.queueId, row.queueOffset) for row in narrowed.collect()))
            assert rows[0] == rows[1] and len(rows[0]) == expected, condition
            assert records_read(narrowed) == expected, condition
    finally:
        for name, value in before.items():
            conf.set(name, value)


def records_read(frame: Any) -> int:
    """Returns how many rows the source has produced in the last run of the frame's plan."""
    scan = frame._jdf.queryExecution().executedPlan().collectLeaves().head()
    return int(scan.metrics().apply("numOutputRows").value())
