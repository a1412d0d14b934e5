"""The columns of each view.  The schema says which columns may be null."""

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rocketsim_source.options.option_values import OptionError, nearest

_QUEUE: dict[str, DataType] = {"topic": StringType(), "brokerName": StringType(), "queueId": IntegerType()}

COLUMNS: dict[str, dict[str, DataType]] = {
    "lag": {
        "group": StringType(),
        "topic": StringType(),
        "lag": LongType(),
        "largestQueueLag": LongType(),
        "queues": IntegerType(),
        "lastConsumedTimestamp": TimestampType(),
    },
    "offsets": {
        "group": StringType(),
        **_QUEUE,
        "nextOffset": LongType(),
        "endOffset": LongType(),
        "lag": LongType(),
        "lastConsumedTimestamp": TimestampType(),
        "generation": LongType(),
        "servedByBrokerId": IntegerType(),
    },
    "queues": {
        **_QUEUE,
        "minOffset": LongType(),
        "maxOffset": LongType(),
        "messages": LongType(),
        "lastStoreTimestamp": TimestampType(),
    },
    "groups": {
        "group": StringType(),
        "brokerName": StringType(),
        "consumeEnable": BooleanType(),
        "consumeMessageOrderly": BooleanType(),
        "retryMaxTimes": IntegerType(),
        "topics": ArrayType(StringType(), containsNull=False),
        "lag": LongType(),
    },
    "brokers": {
        "clusterName": StringType(),
        "brokerName": StringType(),
        "brokerId": IntegerType(),
        "address": StringType(),
        "role": StringType(),
        "isMaster": BooleanType(),
        "isWritable": BooleanType(),
        "epoch": LongType(),
        "logEndOffset": LongType(),
        "confirmOffset": LongType(),
        "slavesInSync": IntegerType(),
        "largestSlaveLagBytes": LongType(),
        "diskUsedRatio": DoubleType(),
        "state": StringType(),
    },
}
NULLABLE = frozenset(
    {"lastConsumedTimestamp", "lastStoreTimestamp", "slavesInSync", "largestSlaveLagBytes", "diskUsedRatio"}
)


def view_schema(view: str) -> StructType:
    return StructType([StructField(name, kind, name in NULLABLE) for name, kind in COLUMNS[view].items()])


def check_view_schema(view: str, schema: StructType) -> list[str]:
    """Returns the names of the columns that a user's schema picks.  Raises OptionError if a column's type is wrong."""
    columns = {field.name.lower(): field for field in view_schema(view).fields}
    picked = []
    for field in schema.fields:
        known = columns.get(field.name.lower())
        if known is None:
            names = list(COLUMNS[view])
            hint = nearest(field.name, names)
            raise OptionError(f"view={view} has no column {field.name!r}{hint} (columns: {', '.join(names)})")
        if field.dataType != known.dataType:
            given, kind = field.dataType.simpleString(), known.dataType.simpleString()
            raise OptionError(f"column {known.name} of view={view} is {kind}, not {given}")
        if known.nullable and not field.nullable:
            raise OptionError(f"column {known.name} of view={view} may be null, so it cannot be NOT NULL")
        picked.append(known.name)
    if len(set(picked)) != len(picked):
        raise OptionError(f"the schema names a column twice: {', '.join(schema.fieldNames())}")
    return picked
