"""Keeps what brokers suggest: the broker from which a queue is to be pulled next.  Suggestions that do not help are
replaced.  Pure."""

from dataclasses import dataclass, field

from rocketsim_client.model import MASTER_ID, MessageQueue
from rocketsim_client.retry import PULLS


@dataclass(slots=True)
class Suggestions:
    """The suggested broker of each queue, like RocketMQ's pullFromWhichNodeTable.  A queue without a suggestion is read
    from broker id 0, the master.  Every answer updates the suggestion.  A failure to reach a broker leaves the
    suggestion as it is.

    Unlike in RocketMQ, an answer PULL_RETRY_IMMEDIATELY with the same offset sends the next pull to the master, because
    the slave that answered is behind the offset that this client has read.  The pause before a pull from the master
    becomes twice as long each time, until an answer moves the offset.
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
        """Returns how long to wait before the next pull of this queue."""
        return PULLS.pause_s(self._stuck.get(queue, 0))
