"""RecentSends: remembers the messages that were stored in the last minute.  The caller passes the time, in seconds.

A client that got no answer, or an answer that no slave has the message, sends the message again with the same id.  When
a message comes again, the broker repeats its answer, and does not store the message a second time.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

REMEMBERED_S = 60.0
MOST = 100_000


class SendId(NamedTuple):
    """The parts of a message that stay the same when the message is sent again.

    The message id alone is not enough, because other clients can guess it.  If the broker compared only ids, an
    attacker could send a message with the id that another client's next message will have.  The broker would then take
    the other client's message for a repeated send, and would not store it.
    """

    message_id: str
    body_crc: int


@dataclass(frozen=True, slots=True)
class Stored:
    queue_offset: int
    end_offset: int  # the log offset at which the message's frame ends


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
