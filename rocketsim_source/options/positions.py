"""Parses the options that say where to start and to end.  A position option has one value for all queues (a word,
number or timestamp), or is JSON with such values by topic, broker name and queue id.  Pure.

    "earliest"    "committed,latest"    {"T":"earliest"}    {"T":{"broker-a":-1}}    {"T":{"b":{"0":23,"*":"latest"}}}

A position is a list of candidates, and the first candidate that exists is used.  As in Kafka, -2 means earliest and -1
means latest.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, Generic, TypeVar

from rocketsim_client.model import MessageQueue
from rocketsim_source.options.option_values import MAX_LONG, OptionError

EARLIEST = "earliest"
LATEST = "latest"
COMMITTED = "committed"
ANY = "*"

Position = tuple[str | int, ...]
Value = TypeVar("Value")
Key = tuple[str, str, str]  # topic, broker name, queue id; ANY stands for a name that the user did not give


@dataclass(frozen=True)
class PerQueue(Generic[Value]):
    """A value for each queue.  If several entries match a queue, the most specific one is used."""

    entries: Mapping[Key, Value] = field(default_factory=dict)

    def at(self, queue: MessageQueue) -> Value | None:
        for key in product((queue.topic, ANY), (queue.broker_name, ANY), (str(queue.queue_id), ANY)):
            if key in self.entries:
                return self.entries[key]
        return None

    def refuse_strangers(self, queues: Iterable[MessageQueue], option: str) -> None:
        """Raises OptionError for an entry that matches none of `queues`.

        Without this check, a query with a misspelt topic would start at another offset without an error.
        """
        known = {
            key
            for queue in queues
            for key in product((queue.topic, ANY), (queue.broker_name, ANY), (str(queue.queue_id), ANY))
        }
        for key in self.entries:
            if key not in known and key != (ANY, ANY, ANY):
                place = " → ".join(key).removesuffix(f" → {ANY}").removesuffix(f" → {ANY}")
                raise OptionError(
                    f"option {option} names {place}, which is not among the queues that are read{hint(key)}"
                )


def hint(key: Key) -> str:
    """Returns an explanation if the offsets have Kafka's form, {"T":{"0":23}}, with a partition number in place of a
    broker name."""
    topic, broker_name, queue_id = key
    if queue_id != ANY or not broker_name.isdigit():
        return ""
    of_one, of_all = (f'{{"{topic}":{{"{name}":{{"{broker_name}":…}}}}}}' for name in ("broker-a", ANY))
    return (
        f"; {broker_name} is where a broker's name has to be: unlike a partition of Kafka's a queue has a broker name "
        f"and an id: {of_one}, or {of_all} for the queues with that id at every broker"
    )


def per_queue(value: str, leaf: Callable[[Any], Value]) -> PerQueue[Value]:
    """Parses the JSON form, or a bare word or number for all queues."""
    written = strict_json(value) if value.lstrip().startswith("{") else value.strip()
    entries: dict[Key, Value] = {}
    read_level(written, (), leaf, entries)
    return PerQueue(entries)


def read_level(written: Any, path: tuple[str, ...], leaf: Callable[[Any], Value], entries: dict[Key, Value]) -> None:
    if not isinstance(written, dict):
        topic, broker_name, queue_id = (*path, ANY, ANY, ANY)[:3]
        entries[topic, broker_name, queue_id] = leaf(written)
        return
    if len(path) == 3:
        raise OptionError(f"is too deep at {' → '.join(path)}: topic, broker name, queue id, then a value")
    if not written:
        raise OptionError("has an empty object" + (f" at {' → '.join(path)}" if path else ""))
    for name, below in written.items():
        if len(path) == 2 and name != ANY:
            name = str(queue_id_of(name, path))
        read_level(below, (*path, name), leaf, entries)


def queue_id_of(name: str, path: tuple[str, ...]) -> int:
    if not (name.isascii() and name.isdigit()) or int(name) >= 2**31:
        raise OptionError(f"has {name!r} at {' → '.join(path)} where a queue id has to be")
    return int(name)


def position(written: Any) -> Position:
    """Parses `earliest`, `latest`, `committed`, a fallback chain of them (`committed,earliest`), or a number."""
    if isinstance(written, str) and written.lstrip("-").isdigit() and written.isascii():
        written = int(written)
    if isinstance(written, int) and not isinstance(written, bool):
        if written == -2:
            return (EARLIEST,)
        if written == -1:
            return (LATEST,)
        if not 0 <= written <= MAX_LONG:
            raise OptionError(f"has {written}: an offset is 0 or more, -1 (latest) or -2 (earliest)")
        return (written,)
    chain = tuple(word.strip().lower() for word in written.split(",")) if isinstance(written, str) else ()
    if chain not in {(EARLIEST,), (LATEST,), (COMMITTED,), (COMMITTED, EARLIEST), (COMMITTED, LATEST)}:
        raise OptionError(
            f"has {written!r}, and only earliest, latest, committed, 'committed,earliest', 'committed,latest' or an "
            "offset are possible"
        )
    return chain


def ending(written: Any) -> Position:
    found = position(written)
    if found[0] in (EARLIEST, COMMITTED):
        raise OptionError(f"has {written!r}, and only latest or an offset are possible")
    return found


def timestamp_ms(written: Any) -> int:
    """Parses milliseconds since 1970, or ISO text (UTC unless the text names another zone)."""
    is_number = True
    if isinstance(written, str) and not (written.strip().isascii() and written.strip().isdigit()):
        try:
            moment = datetime.fromisoformat(written.strip())
        except ValueError:
            raise OptionError(
                f"has {written!r}, and only milliseconds since 1970 or ISO text such as 2026-01-31T12:00:00Z are "
                "possible"
            ) from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        written, is_number = int(moment.timestamp() * 1000), False
    if isinstance(written, bool) or not isinstance(written, str | int) or not 0 <= int(written) <= MAX_LONG:
        raise OptionError(f"has {written!r}; a timestamp is 0 ms or more")
    if is_number:
        refuse_ambiguous(int(written))
    return int(written)


def iso(ms: int) -> str:
    """Returns milliseconds since 1970 as ISO text with its zone, which every timestamp option accepts."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    except OverflowError:  # after the year 9999
        return f"{ms} ms after 1970"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def refuse_ambiguous(ms: int) -> None:
    """Refuses a timestamp that looks like a date (20260131), a date and time, or seconds.  Without this check, such a
    number would mean a moment in 1970 or in a later century, and nobody would notice.
    """
    digits = str(ms)
    meant = None
    if form := {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}.get(len(digits)):
        try:
            moment = datetime.strptime(digits, form)
        except ValueError:
            return
        if 1970 <= moment.year < 2200:
            meant = moment
    elif len(digits) == 10:
        meant = datetime.fromtimestamp(ms, UTC)
    if meant is not None:
        raise OptionError(
            f"has {digits}: is that {meant:%Y-%m-%dT%H:%M:%SZ} or {digits} ms after 1970, {iso(ms)}? Write the "
            "time that you mean as ISO text"
        )


def positions(value: str) -> PerQueue[Position]:
    return per_queue(value, position)


def endings(value: str) -> PerQueue[Position]:
    return per_queue(value, ending)


def timestamps(value: str) -> PerQueue[int]:
    if not value.lstrip().startswith("{"):
        raise OptionError('must be JSON: {"topic":{"broker-a":{"0":1767225600000}}}')
    return per_queue(value, timestamp_ms)


def one_timestamp(value: str) -> PerQueue[int]:
    return PerQueue({(ANY, ANY, ANY): timestamp_ms(value)})


def assignment(value: str) -> frozenset[MessageQueue]:
    """Parses `{"T":{"broker-a":[0,1]}}` to a set of queues."""
    found = set()
    topics = strict_json(value)
    shape = OptionError('must be {"topic":{"broker-a":[0,1]}}: a queue has a broker name and an id')
    for topic, brokers in (topics if isinstance(topics, dict) else {}).items():
        if not isinstance(brokers, dict):
            raise shape
        for broker_name, queue_ids in brokers.items():
            if not isinstance(queue_ids, list) or not queue_ids:
                raise shape
            for queue_id in queue_ids:
                if isinstance(queue_id, bool) or not isinstance(queue_id, int) or not 0 <= queue_id < 2**31:
                    raise OptionError(f"has {queue_id!r} at {topic} → {broker_name} where a queue id has to be")
                found.add(MessageQueue(topic, broker_name, queue_id))
    if not found:
        raise shape
    return frozenset(found)


def strict_json(value: str) -> Any:
    """Parses JSON, and refuses NaN, a name that is given twice, fractions, and nesting that is too deep."""

    def refuse(what: str) -> Any:
        raise OptionError(f"has {what} where a whole number has to be")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise OptionError("names something twice")
        return found

    try:
        return json.loads(value, parse_constant=refuse, parse_float=refuse, object_pairs_hook=unique)
    except RecursionError:
        raise OptionError("is nested too deeply") from None
    except OptionError:
        raise
    except ValueError as error:
        raise OptionError(f"is not JSON: {error}") from None
