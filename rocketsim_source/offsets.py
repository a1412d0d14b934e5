"""A stream's offset as Spark keeps it in the checkpoint.  Pure.

    {"anchor":1,"q":{"TopicA":{"broker-a":{"0":123}}},"v":1}

Spark compares offsets as JSON text, so keys are always sorted and values whole numbers.  `anchor` marks the one empty
first batch that writes a new query's start into the checkpoint: Spark asks a replayed first batch for its initial
offset again, and by then `latest` may be somewhere else, so that the records between would be lost in silence.
"""

from dataclasses import dataclass
from typing import Any

from rocketsim_source.queue import Offsets, Queue

VERSION = 1


class OffsetError(ValueError):
    """An offset in the checkpoint is not one of this source's."""


@dataclass(frozen=True)
class StreamOffset:
    offsets: Offsets
    anchor: bool = False

    def json(self) -> dict[str, Any]:
        written: dict[str, Any] = {"anchor": 1} if self.anchor else {}
        return written | {"q": as_json(self.offsets), "v": VERSION}

    @classmethod
    def of(cls, written: Any) -> "StreamOffset":
        if not isinstance(written, dict) or written.get("v") != VERSION or not isinstance(written.get("q"), dict):
            raise OffsetError(f"not an offset of this source (version {VERSION}) in the checkpoint: {written!r}")
        if not set(written) <= {"anchor", "q", "v"}:
            raise OffsetError(f"an offset in the checkpoint has unknown parts: {written!r}")
        return cls(from_json(written["q"]), anchor=written.get("anchor") == 1)


def as_json(offsets: Offsets) -> dict[str, dict[str, dict[str, int]]]:
    """topic -> broker name -> queue id -> offset, every level in the order of its keys' text."""
    written: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, broker_name, queue_id), offset in sorted(
        offsets.items(), key=lambda item: (*item[0][:2], str(item[0][2]))
    ):
        written.setdefault(topic, {}).setdefault(broker_name, {})[str(queue_id)] = int(offset)
    return written


def from_json(written: dict[str, Any]) -> Offsets:
    offsets: Offsets = {}
    try:
        for topic, brokers in written.items():
            for broker_name, queues in brokers.items():
                for queue_id, offset in queues.items():
                    if type(offset) is not int or offset < 0 or not queue_id.isascii() or not queue_id.isdigit():
                        raise OffsetError(
                            f"{topic}@{broker_name}:{queue_id} = {offset!r} is no queue offset (checkpoint edited?)"
                        )
                    offsets[Queue(topic, broker_name, int(queue_id))] = offset
    except AttributeError:
        raise OffsetError(f"not topic -> broker name -> queue id -> offset: {written!r}") from None
    return offsets
