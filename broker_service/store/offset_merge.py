"""Merges the committed offsets of RocketMQ's `consumerOffset.json`, the file of generations, and the journal.  Pure."""

from collections.abc import Iterable, Mapping

from broker_service.store.offset_journal import NEVER, Line, LogPoint, OffsetEntry

Queues = dict[int, OffsetEntry]
OffsetTable = dict[tuple[str, str], Queues]  # (group, topic) -> queue id -> entry


def merged_offsets(
    offset_table: Mapping[str, Mapping[str, int]],
    generations: Mapping[str, Mapping[str, tuple[int, int]]],
    raised_at: Mapping[str, Mapping[str, tuple[int, int, int]]],
    journal: Iterable[Line],
) -> OffsetTable:
    """Returns the entry with the highest (generation, offset) for each queue, including deleted ones (offset -1).

    Raises ValueError, TypeError or AttributeError if the JSON has another shape.
    """
    table: OffsetTable = {}
    for key, offsets in offset_table.items():
        table[_place(key)] = {int(queue): OffsetEntry(0, int(offset)) for queue, offset in offsets.items()}
    for key, raised in generations.items():
        queues = table.setdefault(_place(key), {})
        for queue, (generation, offset) in raised.items():
            # `consumerOffset.json` is written before the file of generations, so its offset belongs to this generation
            # or, after a crash between the two writes, to a newer one that the journal has.
            written = queues.get(int(queue), NEVER).offset
            point = LogPoint(*map(int, raised_at.get(key, {}).get(queue, ())))
            queues[int(queue)] = OffsetEntry(int(generation), written if written >= 0 <= offset else int(offset), point)
    for line in journal:
        queues = table.setdefault((line.group, line.topic), {})
        for queue_id, entry in line.entries.items():
            if line.replaces or entry > queues.get(queue_id, NEVER):
                queues[queue_id] = entry
    return table


def _place(key: str) -> tuple[str, str]:
    topic, at, group = key.partition("@")
    if not at:
        raise ValueError(f"key {key!r} is not topic@group")
    return group, topic
