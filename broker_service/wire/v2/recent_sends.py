"""RecentSends: the messages stored in the last minute.  Pure: times are arguments, in seconds.

A client sends a message again under its id when it got no answer, or when no slave has it.  The message is then
answered again and not stored again.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

REMEMBERED_S = 60.0
MOST = 100_000


class SendId(NamedTuple):
    """What a message has again when it is sent again.  Ids alone can be guessed: who sends something else first, under
    the id of another client's next message, would have that one answered and not stored."""

    message_id: str
    body_crc: int


@dataclass(frozen=True, slots=True)
class Stored:
    queue_offset: int
    end_offset: int  # of the log, behind the frame that it came with


class RecentSends:
    def __init__(self) -> None:
        self._stored: OrderedDict[tuple[str, SendId], tuple[float, Stored]] = OrderedDict()

    def get(self, topic: str, sent: SendId, now: float) -> Stored | None:
        at, stored = self._stored.get((topic, sent), (0.0, None))
        return stored if stored is not None and now - at <= REMEMBERED_S else None

    def put(self, topic: str, sent: SendId, stored: Stored, now: float) -> None:
        self._stored[topic, sent] = now, stored
        while self._stored:
            at, _ = next(iter(self._stored.values()))
            if len(self._stored) <= MOST and now - at <= REMEMBERED_S:
                break
            self._stored.popitem(last=False)

    def clear(self) -> None:
        self._stored.clear()

    def __len__(self) -> int:
        return len(self._stored)
