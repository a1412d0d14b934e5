"""Reads committed offsets without a broker."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_service.store.json_file import loads
from broker_service.store.offset_journal import read_journal
from broker_service.store.offset_merge import merged_offsets


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    group: str
    topic: str
    queue_id: int
    offset: int


def committed_offsets(directory: Path) -> list[CommittedOffset]:
    """Merges `config/consumerOffset.json` with the journal of later commits; sorted by group, topic and queue.

    Raises ValueError if a file is damaged.
    """
    try:
        offset_table = _read_json(directory / "config" / "consumerOffset.json").get("offsetTable", {})
        generations = _read_json(directory / "rocketsim" / "offset_generations.json").get("generations", {})
        table = merged_offsets(offset_table, generations, {}, read_journal(directory / "rocketsim" / "offsets.journal"))
    except (TypeError, AttributeError) as error:
        raise ValueError(f"the files have no table of offsets: {error}") from error
    return [
        CommittedOffset(group, topic, queue_id, entry.offset)
        for (group, topic), queues in sorted(table.items())
        for queue_id, entry in sorted(queues.items())
        if entry.offset >= 0
    ]


def _read_json(path: Path) -> dict[str, Any]:
    content = loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content
