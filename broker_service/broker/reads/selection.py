"""Selection: the filter of a pull or a pop, which is a set of tags or an SQL92 condition over properties.

Selecting by a condition costs more CPU than by tags.  A broker therefore refuses conditions with many parts, and the
more parts a condition has, the fewer messages are evaluated in one scan.  Conditions are parsed on another thread than
the event loop's, and kept while they are in use.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from broker_service.broker.reads.subscription import FilterNotSupported, tags_of
from broker_service.errors import StoreCorrupt, SubscriptionParseFailed
from broker_service.store.message_store import MessageStore

SQL92 = "SQL92"
MOST_CHARACTERS = 16 << 10  # limit for the text of a condition
MOST_PARTS = 200  # limit for the operations and properties in a condition
ENTRIES = 8_000  # limit for the messages that one scan may exclude, in all queues together
KEPT = 256  # limit for the parsed conditions that are kept

_EVALUATED_FIRST = 64  # number of messages that are evaluated first in a queue
_EVALUATED_AT_MOST = 1024  # limit for the messages that are evaluated in one step
_PARTS_OF_ENTRIES = 200_000  # limit for the product of a condition's parts and the messages that one scan evaluates
# Limit for the product of a condition's text searches and the bytes that one scan reads.  A scan at this limit takes
# some 80 ms.
SEARCHED_BYTES = 8 << 20
_LEAST_COUNTED = 128  # evaluating fewer messages than this costs as much as evaluating this number


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects messages by `tags`, by `condition` (an expression of `sql_filter`), or all messages if both are None.

    One scan may exclude `entries` messages, and may read `most_bytes` of records.  For each queue, a scan is charged
    for at least `least_counted` excluded messages.
    """

    tags: frozenset[str] | None = None
    condition: Any = None
    entries: int
    least_counted: int = 0
    most_bytes: int = SEARCHED_BYTES

    @staticmethod
    def evaluated_together(excluded: int) -> int:
        """Returns how many messages to evaluate in the next step.  The result grows with `excluded`, the number of
        messages so far that did not match.
        """
        return min(max(_EVALUATED_FIRST, 3 * excluded), _EVALUATED_AT_MOST)


class Selected(NamedTuple):
    """The records that a condition has selected, each with its queue offset.  The next scan begins at the offset
    `next`.
    """

    messages: list[tuple[bytes, int]]
    next: int
    read_bytes: int


class Selections:
    """Makes a selection from the text of a subscription.  The last `KEPT` conditions are kept by their text, also the
    invalid ones.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Selection | str] = OrderedDict()

    @staticmethod
    def by_tags(sub_expression: str, expression_type: str) -> Selection:
        """Returns the selection that an expression of tags describes.  Raises as `of` does."""
        return Selection(tags=tags_of(sub_expression, expression_type), entries=ENTRIES)

    async def of(self, sub_expression: str, expression_type: str, *, sql_enabled: bool) -> Selection:
        """Returns the selection that the expression of a subscription describes.

        Raises SubscriptionParseFailed if the expression is invalid or too large, and FilterNotSupported if it is SQL92
        but `sql_enabled` is False.
        """
        if expression_type != SQL92:
            return self.by_tags(sub_expression, expression_type)
        if not sql_enabled:
            raise FilterNotSupported(
                "this broker does not filter by SQL92: its enablePropertyFilter is false (RocketMQ's default)"
            )
        found = self._kept.get(sub_expression)
        if found is None:
            found = await asyncio.to_thread(selection_of, sub_expression)
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
    """Reads records of a queue in [at, until), at most `max_bytes` of them.  Returns at most `most` of the records that
    match the condition.
    """
    from rocketsim_proto.records import columnar, sql_filter

    read = store.queues.read_ranges([(topic, queue_id, at, until)], max_bytes, entries=until - at)
    if not read.sizes:
        return Selected([], read.answers[0].next_offset, 0)  # the records in this range have expired
    data = b"".join(read.records)
    with store.log.decoding(data):
        records = columnar.Records.walk(data, sizes=read.sizes)
        records.check(crc=False)
        rows = np.flatnonzero(sql_filter.matches(condition, records))
    following = read.answers[0].next_offset if len(rows) <= most else int(records.queue_offset[rows[most]])
    taken = records[rows[:most]]
    places = zip(taken.starts.tolist(), taken.sizes.tolist(), taken.queue_offset.tolist(), strict=True)
    return Selected([(data[start : start + size], offset) for start, size, offset in places], following, len(data))


def select_first(
    store: MessageStore,
    topic: str,
    queue_id: int,
    start: int,
    end: int,
    most: int,
    max_bytes: int,
    selection: Selection,
) -> Selected:
    """Reads records of a queue from `start` on, until some match the selection's condition or one scan's limits are
    reached.

    Returns the matching messages: at most `most` and `max_bytes`, but at least one if any matches.
    """
    at, read_bytes, end = start, 0, min(end, start + selection.entries)
    found: list[tuple[bytes, int]] = []
    while at < end and read_bytes < selection.most_bytes and not found:
        until = min(end, at + selection.evaluated_together(at - start))
        room = selection.most_bytes - read_bytes
        found, following, size = select(store, topic, queue_id, at, until, most, room, selection.condition)
        if following <= at:
            raise StoreCorrupt(
                f"queue {queue_id} of topic {topic} cannot be read at {at}: run `rocketsim store verify`"
            )
        at, read_bytes = following, read_bytes + size
    total = 0
    for number, (data, offset) in enumerate(found):
        total += len(data)
        if number and total > max_bytes:
            return Selected(found[:number], offset, read_bytes)
    return Selected(found, at, read_bytes)


def selection_of(text: str) -> Selection | str:
    """Parses an SQL92 condition and returns its selection, or the reason why it is refused.

    This function must not run on the event loop, because its first call imports large modules, which takes a second.
    """
    import pyarrow as pa
    from rocketsim_proto.records import sql_filter

    if not text:
        return "the SQL92 filter is empty"
    try:
        condition = sql_filter.parse(text)
    except sql_filter.SqlFilterInvalid as error:
        return str(error)
    parts = sql_filter.count_parts(condition)
    if parts > MOST_PARTS:
        return f"the SQL92 filter has {parts} operations and properties; at most {MOST_PARTS} are allowed"
    sql_filter.selected(condition, lambda name: pa.nulls(1, pa.string()), 1)
    entries = min(ENTRIES, _PARTS_OF_ENTRIES // max(parts, 1))
    most_bytes = SEARCHED_BYTES // max(sql_filter.count_searches(condition), 1)
    return Selection(condition=condition, entries=entries, least_counted=_LEAST_COUNTED, most_bytes=most_bytes)
