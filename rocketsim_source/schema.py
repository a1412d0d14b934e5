"""The columns that a query can have, and the columns that it selects.  This module uses only Spark's types.

A user's `.schema("body binary, queueOffset bigint")` selects columns, and only these are decoded from the records.
"""

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rocketsim_source.options.option_values import OptionError, nearest
from rocketsim_source.options.source_options import SourceOptions

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
PROPERTIES = MapType(StringType(), StringType())

ROCKETMQ: dict[str, DataType] = {
    "topic": StringType(),
    "brokerName": StringType(),
    "queueId": IntegerType(),
    "queueOffset": LongType(),
    "msgId": StringType(),
    "keys": StringType(),
    "tags": StringType(),
    "body": BinaryType(),
    "flag": IntegerType(),
    "bornTimestamp": TimestampType(),
    "storeTimestamp": TimestampType(),
    "reconsumeTimes": IntegerType(),
    "messageGroup": StringType(),
    "properties": PROPERTIES,
    "bornHost": StringType(),
    "storeHost": StringType(),
    "servedByBrokerId": IntegerType(),
}
KAFKA: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}
# Columns that are null for some messages.  The schema declares all other columns NOT NULL, so that Spark generates no
# null checks for them.  Null checks are a fifth of a row's cost in the JVM.
NULLABLE = frozenset({"keys", "tags", "messageGroup", "key"})
# Columns that also exist with a second type, which an option or `.schema()` selects.
OTHER_FORMS: dict[str, tuple[DataType, ...]] = {
    "body": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "key": (BinaryType(), StringType()),
    "properties": (PROPERTIES, StringType()),
}


def source_schema(options: SourceOptions) -> StructType:
    """Returns the columns of a query whose user gives no schema: those of the option `columns`, or all columns of the
    profile that the option `schemaProfile` names.
    """
    known = profile(options)
    if options.columns is not None:
        every = all_columns(options)
        picked = [known_name(name, every) for name in options.columns]
        known = {name: every[name] for name in picked}
    return StructType([StructField(name, kind, name in NULLABLE) for name, kind in known.items()])


def profile(options: SourceOptions) -> dict[str, DataType]:
    """Returns the profile's columns, as changed by the include and format options."""
    left_out = set()
    if not options.include_headers:
        left_out.add("headers")
    if not options.include_properties:
        left_out.add("properties")
    if not options.include_hosts:
        left_out |= {"bornHost", "storeHost"}
    return {name: kind for name, kind in all_columns(options).items() if name not in left_out}


def all_columns(options: SourceOptions) -> dict[str, DataType]:
    """Returns every column of the profile, also those that an include option adds.

    A user who names a column need not set its include option.
    """
    columns = dict(KAFKA if options.schema_profile == "kafka" else ROCKETMQ)
    if options.body_format == "string":
        columns["value" if options.schema_profile == "kafka" else "body"] = StringType()
    if options.properties_format == "json" and "properties" in columns:
        columns["properties"] = StringType()
    return columns


def known_name(name: str, columns: Mapping[str, DataType]) -> str:
    for known in columns:
        if known.lower() == name.lower():
            return known
    raise OptionError(f"there is no column {name!r}{nearest(name, list(columns))} (columns: {', '.join(columns)})")


def check_schema(schema: StructType, options: SourceOptions) -> None:
    """Checks a user's schema, which must name known columns with their types.

    The schema may declare a column NOT NULL only if every message has a value for the column, because Spark would
    otherwise read a null as an arbitrary value.
    """
    columns = all_columns(options)
    if not schema.fields:
        raise OptionError("the schema has no columns")
    for field in schema.fields:
        name = known_name(field.name, columns)
        allowed = OTHER_FORMS.get(name, (columns[name],))
        if field.dataType not in allowed:
            forms = [kind.simpleString() for kind in allowed]
            given = field.dataType.simpleString()
            if given in forms:
                raise OptionError(
                    f"column {name} is {given}, but its elements have to be nullable: leave containsNull=False and "
                    "valueContainsNull=False out of the schema"
                )
            raise OptionError(f"column {name} is {' or '.join(forms)}, not {given}")
        if name in NULLABLE and not field.nullable:
            raise OptionError(f"column {name} is null for messages that lack it, so it cannot be NOT NULL")
    lowered = [field.name.lower() for field in schema.fields]
    if len(set(lowered)) != len(lowered):
        raise OptionError(f"the schema names a column twice: {', '.join(schema.fieldNames())}")
