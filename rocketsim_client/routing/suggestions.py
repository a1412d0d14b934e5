"""Which broker to pull a queue from next: the brokers' suggestions, kept per queue, and what to do when one does not
help.  Pure."""

from dataclasses import dataclass, field

from rocketsim_client.model import MASTER_ID, MessageQueue
from rocketsim_client.retry import PULLS


@dataclass(slots=True)
class Suggestions:
    """RocketMQ's pullFromWhichNodeTable: default 0, updated by every answer, not cleared when a broker cannot be
    reached.

    Beyond RocketMQ: an answer PULL_RETRY_IMMEDIATELY that leaves the offset where it was (a slave behind a client that
    was already further) sends the next pull to the master, after a pause that doubles while it goes on like that.
    """

    _broker_ids: dict[MessageQueue, int] = field(default_factory=dict)
    _stuck: dict[MessageQueue, int] = field(default_factory=dict)

    def broker_id(self, queue: MessageQueue) -> int:
        return MASTER_ID if queue in self._stuck else self._broker_ids.get(queue, MASTER_ID)

    def answered(self, queue: MessageQueue, suggested: int, *, progress: bool) -> None:
        self._broker_ids[queue] = suggested
        if progress:
            self._stuck.pop(queue, None)
        else:
            self._stuck[queue] = self._stuck.get(queue, 0) + 1

    def pause_s(self, queue: MessageQueue) -> float:
        """How long to wait before the next pull of this queue."""
        return PULLS.pause_s(self._stuck.get(queue, 0))
