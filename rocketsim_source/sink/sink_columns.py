"""Finds which of a DataFrame's columns are the columns of messages.

`body` (or `value`) is required.  `topic`, `tags`, `keys` (`key`), `properties` (`headers`), `messageGroup` and
`queueId` (`partition`) are used if the DataFrame has them.  Columns that only a broker can set (offsets, timestamps,
hosts) are ignored, so that a DataFrame which was read can be written.
"""

from dataclasses import dataclass

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rocketsim_source.options.option_values import OptionError, nearest
from rocketsim_source.options.sink_options import SinkOptions
from rocketsim_source.schema import HEADERS, KAFKA, ROCKETMQ

TEXT = (StringType(), BinaryType())
# Types from which ids can be made, because equal values have the same bytes, and so the same hash.  Floating point is
# left out, because 0.0 equals -0.0, and NaN has many forms.
HASHED: tuple[type[DataType], ...] = (
    StringType,
    BinaryType,
    ByteType,
    ShortType,
    IntegerType,
    LongType,
    BooleanType,
    DateType,
    TimestampType,
    TimestampNTZType,
    DecimalType,
)
NAMES: dict[str, str] = {
    "body": "body",
    "value": "body",
    "topic": "topic",
    "tags": "tags",
    "keys": "keys",
    "key": "keys",
    "properties": "properties",
    "headers": "properties",
    "messagegroup": "message_group",
    "queueid": "queue_id",
    "partition": "queue_id",
}


@dataclass(frozen=True)
class SinkColumns:
    """For each part of a message, the index of the DataFrame's column that has it, or None if there is no such
    column."""

    body: int
    topic: int | None = None
    tags: int | None = None
    keys: int | None = None
    properties: int | None = None
    message_group: int | None = None
    queue_id: int | None = None
    ids: tuple[int, ...] = ()  # indexes of idColumns
    group_by_key: bool = False  # a row without a message group gets its key as group (partitioner=key)

    @classmethod
    def of(cls, schema: StructType, options: SinkOptions) -> "SinkColumns":
        """Finds the columns.  Raises OptionError for a DataFrame that cannot be written, before any row is sent."""
        found: dict[str, int] = {}
        if not {"body", "value"} & {field.name.lower() for field in schema.fields}:
            there = ", ".join(schema.fieldNames()) or "none"
            raise OptionError(
                f"the sink needs a column body (or value), string or binary; the columns are {there}. For instance "
                "df.selectExpr('to_json(struct(*)) AS body')"
            )
        ids = tuple(id_column(name, schema) for name in options.id_columns)
        ignored = {name.lower() for name in (*ROCKETMQ, *KAFKA)}
        for index, field in enumerate(schema.fields):
            lower = field.name.lower()
            if lower == "delivertimestamp":
                raise OptionError("column deliverTimestamp is not supported yet; leave it out")
            part = NAMES.get(lower)
            if part is None:
                if options.strict and lower not in ignored and index not in ids:
                    hint = nearest(
                        field.name, ["body", "topic", "tags", "keys", "properties", "messageGroup", "queueId"]
                    )
                    raise OptionError(
                        f"column {field.name} means nothing to the sink{hint or '; drop it, or put it into body'} "
                        "(strictOptions=false leaves it out of the messages)"
                    )
                continue
            if part in found:
                raise OptionError(f"columns {schema.fields[found[part]].name} and {field.name} mean the same; give one")
            check_type(field.name, part, field.dataType)
            found[part] = index
        if options.topic is None and "topic" not in found:
            raise OptionError("the sink needs the option topic or a column topic")
        if options.partitioner == "key" and "keys" not in found:
            raise OptionError("partitioner=key needs a column keys (or key): its values say which queue a row goes to")
        return cls(**found, ids=ids, group_by_key=options.partitioner == "key")


def id_column(name: str, schema: StructType) -> int:
    """Returns the index of the column `name`, which is one of idColumns."""
    by_name = {field.name.lower(): index for index, field in reversed(list(enumerate(schema.fields)))}
    index = by_name.get(name.lower())
    if index is None:
        raise OptionError(f"idColumns names {name}, which is no column{nearest(name, schema.fieldNames())}")
    kind = schema.fields[index].dataType
    if not isinstance(kind, HASHED):
        raise OptionError(
            f"idColumns names {name}, which is {kind.simpleString()}: an id is made of text, bytes, whole numbers, "
            "booleans, days, times and decimals"
        )
    return index


def check_type(name: str, part: str, kind: DataType) -> None:
    allowed: tuple[DataType, ...] = {
        "properties": (MapType(StringType(), StringType()), HEADERS),
        "queue_id": (IntegerType(), LongType(), ShortType()),
    }.get(part, TEXT)
    same = [kind.simpleString() == one.simpleString() for one in allowed]
    if not any(same):
        raise OptionError(
            f"column {name} has to be {' or '.join(one.simpleString() for one in allowed)}, not {kind.simpleString()}"
        )
