"""RecentSends: remembers the messages stored in the last minute.  Pure: times are arguments, in seconds.

A client that got no answer, or the answer that no slave has the message, sends it again with the same id.  The broker
then repeats its answer, and does not store the message again.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

REMEMBERED_S = 60.0
MOST = 100_000


class SendId(NamedTuple):
    """The parts of a message that stay the same when it is sent again.

    The id alone is not enough, because it can be guessed.  A client could send another message with the id of
    somebody's next message, which would then be answered and not stored.
    """

    message_id: str
    body_crc: int


@dataclass(frozen=True, slots=True)
class Stored:
    queue_offset: int
    end_offset: int  # the log's end after the frame of the message


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
