"""Selection: which messages a pop wants, by tags or by an SQL92 condition over their properties.

Conditions cost more than tags: a broker refuses those with many parts, and looks at fewer messages at a time the more
parts there are.  Texts are parsed off the event loop, once for as long as they are in use.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from broker_service.broker.reads.subscription import FilterNotSupported, tags_of
from broker_service.errors import SubscriptionParseFailed
from broker_service.store.message_store import MessageStore

SQL92 = "SQL92"
MOST_CHARACTERS = 16 << 10  # of a condition's text
MOST_PARTS = 200  # operations and properties of a condition
ENTRIES = 8_000  # of all queues that one look excludes
KEPT = 256  # parsed conditions

_EVALUATED_FIRST = 64  # messages, together
_EVALUATED_AT_MOST = 1024
_PARTS_OF_ENTRIES = 200_000  # parts of the condition times messages, which one look evaluates
_SEARCHED_BYTES = 8 << 20  # searches for a text times bytes of records, which one look evaluates: some 80 ms
_LEAST_COUNTED = 128  # messages as which an evaluation of fewer counts: it costs as much


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """`tags` or `condition` (an expression of `sql_filter`); without either, all messages.

    `entries`: of how many messages one look may exclude, and `least_counted`: as how many those of a queue count at
    least.  `most_bytes`: of records that one look may read.
    """

    tags: frozenset[str] | None = None
    condition: Any = None
    entries: int
    least_counted: int = 0
    most_bytes: int = _SEARCHED_BYTES

    @staticmethod
    def evaluated_together(looked_at: int) -> int:
        """Returns how many messages to evaluate next, after `looked_at` of which none was selected: more each time."""
        return min(max(_EVALUATED_FIRST, 3 * looked_at), _EVALUATED_AT_MOST)


class Selected(NamedTuple):
    """Records that a condition selects, each with its queue offset; the next look begins at `next`."""

    messages: list[tuple[bytes, int]]
    next: int
    read_bytes: int


class Selections:
    """`KEPT` conditions, and the refusals of texts that are none, are remembered by their text."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Selection | str] = OrderedDict()

    async def of(self, sub_expression: str, expression_type: str, *, sql_enabled: bool) -> Selection:
        """SubscriptionParseFailed for an expression that is none, or too large; FilterNotSupported for one of SQL92
        while it is not enabled.
        """
        if expression_type != SQL92:
            return Selection(tags=tags_of(sub_expression, expression_type), entries=ENTRIES)
        if not sql_enabled:
            raise FilterNotSupported(
                "this broker does not filter by SQL92: its enablePropertyFilter is false (RocketMQ's default)"
            )
        found = self._kept.get(sub_expression)
        if found is None:
            found = await asyncio.to_thread(_parsed, sub_expression)
            if len(sub_expression) <= MOST_CHARACTERS:
                self._kept[sub_expression] = found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(sub_expression)
        if isinstance(found, str):
            raise SubscriptionParseFailed(found)
        return found


def select(
    store: MessageStore, topic: str, queue_id: int, at: int, until: int, most: int, max_bytes: int, condition: Any
) -> Selected:
    """At most `most` of the queue's records in [at, until) that the condition selects, of those in `max_bytes`."""
    from rocketsim_proto.records import columnar, sql_filter

    read = store.queues.read_ranges([(topic, queue_id, at, until)], max_bytes, entries=until - at)
    if not read.sizes:
        return Selected([], read.answers[0].next_offset, 0)  # they have expired
    data = b"".join(read.records)
    with store.log.decoding(data):
        records = columnar.Records.walk(data, sizes=read.sizes)
        records.check(crc=False)
        rows = np.flatnonzero(sql_filter.matches(condition, records))
    following = read.answers[0].next_offset if len(rows) <= most else int(records.queue_offset[rows[most]])
    taken = records[rows[:most]]
    places = zip(taken.starts.tolist(), taken.sizes.tolist(), taken.queue_offset.tolist(), strict=True)
    return Selected([(data[start : start + size], offset) for start, size, offset in places], following, len(data))


def _parsed(text: str) -> Selection | str:
    """A selection, or why there is none; on any thread: the modules are large, the first use takes a second."""
    import pyarrow as pa
    from rocketsim_proto.records import sql_filter

    if not text:
        return "an SQL92 filter without text"
    try:
        condition = sql_filter.parse(text)
    except sql_filter.SqlFilterInvalid as error:
        return str(error)
    parts = sql_filter.count_parts(condition)
    if parts > MOST_PARTS:
        return f"an SQL92 filter with {parts} operations and properties; at most {MOST_PARTS} are allowed"
    sql_filter.selected(condition, lambda name: pa.nulls(1, pa.string()), 1)
    entries = min(ENTRIES, _PARTS_OF_ENTRIES // max(parts, 1))
    most_bytes = _SEARCHED_BYTES // max(sql_filter.count_searches(condition), 1)
    return Selection(condition=condition, entries=entries, least_counted=_LEAST_COUNTED, most_bytes=most_bytes)
