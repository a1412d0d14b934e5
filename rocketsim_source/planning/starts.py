"""Decides at which offset each queue of a query starts and ends.  Pure: `RequestedPositions` has what the options say,
and `KnownOffsets` has the brokers' answers.

The precedence is that of Kafka's source: startingTimestamp, then startingOffsetsByTimestamp, then startingOffsets.  If
an option does not name a queue, the next option decides, and finally `latest` (streams) or `earliest` (batches).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rocketsim_client.model import MessageQueue, QueueBounds
from rocketsim_source.options.data_loss import EARLIEST as REREAD
from rocketsim_source.options.data_loss import TRIMMED, TRUNCATED, DataLossPolicy
from rocketsim_source.options.option_values import OptionError
from rocketsim_source.options.positions import COMMITTED, EARLIEST, LATEST, PerQueue, Position, iso
from rocketsim_source.options.source_options import SourceOptions
from rocketsim_source.source_cluster import Offsets


@dataclass(frozen=True)
class RequestedPositions:
    """The positions that the options request for each queue: a timestamp, or else a chain of candidates."""

    positions: dict[MessageQueue, Position]
    timestamps: dict[MessageQueue, int] = field(default_factory=dict)

    def needs_committed(self) -> list[MessageQueue]:
        return [queue for queue, chain in self.positions.items() if COMMITTED in chain and queue not in self.timestamps]


@dataclass(frozen=True)
class KnownOffsets:
    """The offsets that the brokers reported.

    `committed` has only the queues for which the group has a committed offset.  `found` has, for each requested
    timestamp, the offset of the first record that was stored then or later, or the end of the queue if all its records
    are older.
    """

    bounds: Mapping[MessageQueue, QueueBounds]
    committed: Offsets = field(default_factory=dict)
    found: Offsets = field(default_factory=dict)


def wanted_starts(options: SourceOptions, queues: Iterable[MessageQueue], *, streaming: bool) -> RequestedPositions:
    queues = list(queues)
    by_time = {
        "startingTimestamp": options.starting_timestamp,
        "startingOffsetsByTimestamp": options.starting_offsets_by_timestamp,
    }
    refuse_strangers(queues, {**by_time, "startingOffsets": options.starting_offsets})
    default: Position = (LATEST,) if streaming else (EARLIEST,)
    given: PerQueue[Position] = options.starting_offsets or PerQueue()
    return RequestedPositions(
        {queue: given.at(queue) or default for queue in queues}, timestamps(queues, by_time.values())
    )


def refuse_strangers(queues: list[MessageQueue], options: Mapping[str, PerQueue[Any] | None]) -> None:
    for name, given in options.items():
        if given is not None:
            given.refuse_strangers(queues, name)


def timestamps(queues: list[MessageQueue], options: Iterable[PerQueue[int] | None]) -> dict[MessageQueue, int]:
    """Returns the timestamp of each queue that an option names.  If several options name a queue, the first of these
    options decides.
    """
    times: dict[MessageQueue, int] = {}
    for given in options:
        if given is not None:
            times |= {q: ms for q in queues if q not in times and (ms := given.at(q)) is not None}
    return times


def start_offsets(wanted: RequestedPositions, known: KnownOffsets, options: SourceOptions) -> Offsets:
    """Returns the first offset to read of each queue.

    If an offset is outside the queue's bounds, the data loss policy decides.
    """
    starts: Offsets = {}
    for queue, chain in wanted.positions.items():
        bounds = known.bounds[queue]
        if queue in wanted.timestamps:
            starts[queue] = start_by_time(queue, wanted.timestamps[queue], known, options)
            continue
        offset = first_candidate(queue, chain, bounds, known.committed, options.group)
        starts[queue] = within(queue, offset, bounds, options.data_loss)
    return starts


def start_by_time(queue: MessageQueue, timestamp: int, known: KnownOffsets, options: SourceOptions) -> int:
    bounds, offset = known.bounds[queue], known.found[queue]
    if offset < bounds.max_offset:
        return max(offset, bounds.min_offset)
    strategy = options.starting_offsets_by_timestamp_strategy
    if strategy == "error":
        raise OptionError(
            f"{queue} has no message at or after timestamp {iso(timestamp)}; "
            "startingOffsetsByTimestampStrategy=latest or =earliest would start there instead"
        )
    return bounds.max_offset if strategy == LATEST else bounds.min_offset


def first_candidate(
    queue: MessageQueue, chain: Position, bounds: QueueBounds, committed: Offsets, group: str | None
) -> int:
    for candidate in chain:
        if candidate == EARLIEST:
            return bounds.min_offset
        if candidate == LATEST:
            return bounds.max_offset
        if isinstance(candidate, int):
            return candidate
        if queue in committed:
            return committed[queue]
    raise OptionError(
        f"group {group} has no committed offset for {queue}; 'committed,earliest' or 'committed,latest' says where to "
        "start then"
    )


def within(
    queue: MessageQueue, offset: int, bounds: QueueBounds, policy: DataLossPolicy, what: str = "should start at"
) -> int:
    """Returns `offset` if the queue has it.  If the queue does not have `offset`, and the policy allows the loss,
    returns the offset at which the query continues.  `what` begins the explanation in the error.
    """
    if offset < bounds.min_offset:
        policy.allow(TRIMMED, queue, f"{what} {offset}, but its smallest offset is {bounds.min_offset}")
        return bounds.min_offset
    if offset > bounds.max_offset:
        action = policy.allow(TRUNCATED, queue, f"{what} {offset}, but it ends at {bounds.max_offset}")
        return bounds.min_offset if action == REREAD else bounds.max_offset
    return offset


def end_within(queue: MessageQueue, end: int, bounds: QueueBounds, policy: DataLossPolicy) -> int:
    """Returns `end`, or the queue's own end if that is smaller and the options allow the difference."""
    if end > bounds.max_offset and policy.action(TRUNCATED) == REREAD:
        return bounds.max_offset
    return within(queue, end, bounds, policy, "should be read up to (endingOffsets)")


def refuse_starts_behind_ends(
    starts: Offsets,
    ends: Offsets,
    starts_wanted: RequestedPositions,
    ends_wanted: RequestedPositions,
    from_group: Iterable[MessageQueue] = (),
) -> None:
    """Raises OptionError for a queue that starts after its end, because the query would read nothing from it and report
    no error.

    A group's committed offset may be after the end, because the group has then read all records up to the end.  Queues
    that start and end by timestamps are left to `refuse_times_behind_ends`.
    """
    by_time = starts_wanted.timestamps.keys() & ends_wanted.timestamps.keys()
    for queue in sorted(starts.keys() & ends.keys() - by_time - set(from_group)):
        if starts[queue] > ends[queue]:
            raise OptionError(
                f"{queue} would be read from {starts[queue]} to {ends[queue]}: it starts after its end. "
                "startingOffsets (the default is latest for a stream, earliest for a batch) and endingOffsets, or "
                "timestamps, say where a queue starts and ends"
            )


def refuse_times_behind_ends(starts: RequestedPositions, ends: RequestedPositions) -> None:
    """Raises OptionError for a queue whose starting timestamp is after its ending timestamp."""
    for queue in sorted(starts.timestamps.keys() & ends.timestamps.keys()):
        begin, end = starts.timestamps[queue], ends.timestamps[queue]
        if begin > end:
            raise OptionError(
                f"{queue} would be read from {iso(begin)} to {iso(end)}: its starting timestamp is after its ending "
                "timestamp"
            )


def wanted_ends(
    options: SourceOptions, queues: Iterable[MessageQueue], *, strangers: bool = True
) -> RequestedPositions:
    """Returns the positions at which the queues end according to the options.

    The result has no entry for a queue without an end.  With `strangers` true, an error is raised if the options name
    queues that are not in `queues`.
    """
    queues = list(queues)
    by_time = {
        "endingTimestamp": options.ending_timestamp,
        "endingOffsetsByTimestamp": options.ending_offsets_by_timestamp,
    }
    if strangers:
        refuse_strangers(queues, {**by_time, "endingOffsets": options.ending_offsets})
    times = timestamps(queues, by_time.values())
    given: PerQueue[Position] = options.ending_offsets or PerQueue()
    return RequestedPositions(
        {q: chain for q in queues if q not in times and (chain := given.at(q)) is not None}, times
    )


def end_offsets(wanted: RequestedPositions, known: KnownOffsets) -> Offsets:
    """Returns the offset at which each queue ends.  A queue without an end is not in the result.

    A timestamp that no record has reached yet gives no end, because the next record may still be older.  A timestamp
    that was not looked up yet gives no end.  In a stream, `latest` gives no end, either.
    """
    ends = {queue: chain[0] for queue, chain in wanted.positions.items() if isinstance(chain[0], int)}
    ends |= {
        queue: found
        for queue in wanted.timestamps
        if (found := known.found.get(queue)) is not None and found < known.bounds[queue].max_offset
    }
    return ends
