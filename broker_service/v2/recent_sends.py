"""RecentSends: the messages stored in the last minute, by message id.  Pure: times are arguments, in seconds.

A client sends a message again under its id when it got no answer, or when no slave has it.  The message is then
answered again and not stored again.
"""

from collections import OrderedDict
from dataclasses import dataclass

REMEMBERED_S = 60.0
MOST = 100_000


@dataclass(frozen=True, slots=True)
class Stored:
    queue_offset: int
    end_offset: int  # of the log, behind the frame that it came with


class RecentSends:
    def __init__(self) -> None:
        self._stored: OrderedDict[tuple[str, str], tuple[float, Stored]] = OrderedDict()

    def get(self, topic: str, message_id: str, now: float) -> Stored | None:
        at, stored = self._stored.get((topic, message_id), (0.0, None))
        return stored if stored is not None and now - at <= REMEMBERED_S else None

    def put(self, topic: str, message_id: str, stored: Stored, now: float) -> None:
        self._stored[topic, message_id] = now, stored
        while self._stored:
            at, _ = next(iter(self._stored.values()))
            if len(self._stored) <= MOST and now - at <= REMEMBERED_S:
                break
            self._stored.popitem(last=False)

    def clear(self) -> None:
        self._stored.clear()

    def __len__(self) -> int:
        return len(self._stored)
