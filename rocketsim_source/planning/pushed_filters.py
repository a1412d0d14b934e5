"""Leaves out of a batch the records that cannot pass the query's filters, which Spark offers to the reader.  Pure.

Spark evaluates all filters again, so a filter that is not understood here changes no result, but the batch reads more
records than it has to.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from rocketsim_client.errors import ExpressionInvalid
from rocketsim_client.expression import ALL, TagExpression
from rocketsim_client.model import MessageQueue, OffsetRange
from rocketsim_source.options.option_values import MAX_LONG
from rocketsim_source.partition_numbers import partition_number
from rocketsim_source.source_cluster import Offsets

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Columns, in lower case, whose value is the same for all records of a queue.
_OF_QUEUE: Mapping[str, Callable[[MessageQueue], Any]] = {
    "topic": lambda queue: queue.topic,
    "brokername": lambda queue: queue.broker_name,
    "queueid": lambda queue: queue.queue_id,
    "partition": partition_number,
}
_COMPARISONS: Mapping[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}
_OFFSET_COLUMNS = ("queueoffset", "offset")
# Kafka's column `timestamp` is not used, because it has the born timestamp, which may decrease with rising offsets.
_TIME_COLUMN = "storetimestamp"
_TAGS_COLUMN = "tags"


@dataclass(frozen=True)
class Interval:
    """The whole numbers from `low` on and below `high`."""

    low: int = 0
    high: int = MAX_LONG

    def within(self, other: "Interval") -> "Interval":
        return Interval(max(self.low, other.low), min(self.high, other.high))


@dataclass(frozen=True)
class PushedFilters:
    """The limits that the query's filters set for records.  `of_queues` has the filters of columns that have the same
    value in all records of a queue.  `store_times` are milliseconds since 1970.  `tags` is None if no filter names
    tags.
    """

    of_queues: tuple[tuple[str, Filter], ...] = ()
    offsets: Interval = Interval()
    store_times: Interval = Interval()
    tags: frozenset[str] | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> "PushedFilters":
        of_queues, offsets, times, tags = [], Interval(), Interval(), None
        for one in filters:
            column = _column(one)
            if column in _OF_QUEUE:
                of_queues.append((column, one))
            elif column in _OFFSET_COLUMNS:
                offsets = offsets.within(_interval(one, _whole) or Interval())
            elif column == _TIME_COLUMN:
                times = times.within(_in_milliseconds(_interval(one, _microseconds)))
            elif column == _TAGS_COLUMN and (named := _texts(one)) is not None:
                tags = named if tags is None else tags & named
        return cls(tuple(of_queues), offsets, times, tags)

    def narrowed(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Cuts the ranges by queue and offset.  Leaves out ranges that become empty."""
        if self.tags == frozenset() or self.store_times.low >= self.store_times.high:
            return []
        kept = (one for one in ranges if all(_verdict(f, _OF_QUEUE[column](one.queue)) for column, f in self.of_queues))
        return _cut(kept, lambda _: self.offsets)

    def searches(self, ranges: Iterable[OffsetRange]) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
        """Returns the store times at which the read of each queue begins, and those at which it ends.  The caller looks
        up the first offset at or after each store time, and passes these offsets to `between`.
        """
        queues = [one.queue for one in ranges]
        low, high = self.store_times.low, self.store_times.high
        return (
            {queue: low for queue in queues if low > 0},
            {queue: high for queue in queues if high < MAX_LONG},
        )

    def between(self, ranges: Iterable[OffsetRange], first: Offsets, last: Offsets) -> list[OffsetRange]:
        """Cuts the ranges to the offsets from `first` on and below `last`, which were found for the store times of
        `searches`.
        """
        return _cut(ranges, lambda queue: Interval(first.get(queue, 0), last.get(queue, MAX_LONG)))

    def expression(self, given: str) -> str:
        """Returns the tag expression with which the brokers filter.  If the options' expression `given` selects
        everything, and the query's filters name tags, the result selects these tags.  In all other cases the result is
        `given`.

        The result is also `given` if a tag cannot be written in an expression.
        """
        if self.tags is None or given.strip() not in ("", ALL):
            return given
        text = " || ".join(sorted(self.tags))
        try:
            return text if TagExpression.parse(text).tags == self.tags else given
        except ExpressionInvalid:
            return given


NO_FILTERS = PushedFilters()


def _column(one: Filter) -> str:
    """Returns the name of the column that the filter tests, in lower case, or an empty text if it does not test a
    single column."""
    if isinstance(one, Not):
        return _column(one.child)
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0].lower() if len(path) == 1 else ""


def _cut(ranges: Iterable[OffsetRange], allowed: Callable[[MessageQueue], Interval]) -> list[OffsetRange]:
    found = []
    for queue, begin, end in ranges:
        part = Interval(begin, end).within(allowed(queue))
        if part.low < part.high:
            found.append(OffsetRange(queue, part.low, part.high))
    return found


def _interval(one: Filter, number: Callable[[Any], int | None]) -> Interval | None:
    """Returns the values that pass the filter, or None if the filter is not understood."""
    if isinstance(one, In):
        numbers = [number(value) for value in one.value if value is not None]
        whole = [found for found in numbers if found is not None]
        return Interval(min(whole), max(whole) + 1) if whole and len(whole) == len(numbers) else None
    if not isinstance(one, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    found = number(one.value)
    if found is None:
        return None
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return Interval(found + isinstance(one, GreaterThan))
    if isinstance(one, LessThan | LessThanOrEqual):
        return Interval(high=found + isinstance(one, LessThanOrEqual))
    return Interval(found, found + 1)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _microseconds(value: Any) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(microseconds=1)


def _in_milliseconds(microseconds: Interval | None) -> Interval:
    """Returns the whole milliseconds in an interval of microseconds."""
    if microseconds is None:
        return Interval()
    high = microseconds.high
    return Interval(-(-microseconds.low // 1000), high if high == MAX_LONG else -(-high // 1000))


def _texts(one: Filter) -> frozenset[str] | None:
    """Returns the texts to which the filter limits a column, or None if it does not limit the column."""
    if isinstance(one, In):
        return frozenset(value for value in one.value if value is not None)
    if isinstance(one, EqualTo | EqualNullSafe) and one.value is not None:
        return frozenset({one.value})
    return None


def _verdict(one: Filter, value: Any) -> bool:
    """Returns False if the value does not pass the filter, and True if it passes or the filter is not understood."""
    if isinstance(one, Not):
        return _passes(one.child, value) is not True
    return _passes(one, value) is not False


def _passes(one: Filter, value: Any) -> bool | None:
    """Returns whether the value passes the filter, or None if the filter is not understood."""
    if isinstance(one, In):
        return value in one.value
    limit: Any = getattr(one, "value", None)
    if type(limit) is not type(value):
        return None
    passes = _COMPARISONS.get(type(one))
    return None if passes is None else bool(passes(value, limit))
