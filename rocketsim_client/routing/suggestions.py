"""Keeps the brokers' suggestions from which broker to pull a queue next, and replaces suggestions that do not help.
Pure."""

from dataclasses import dataclass, field

from rocketsim_client.model import MASTER_ID, MessageQueue
from rocketsim_client.retry import PULLS


@dataclass(slots=True)
class Suggestions:
    """The suggested broker of each queue, like RocketMQ's pullFromWhichNodeTable.  The default is broker id 0.  Every
    answer updates the suggestion, and a failure to reach a broker does not.

    In addition to RocketMQ: after an answer PULL_RETRY_IMMEDIATELY with the same offset, the next pull goes to the
    master.  An answer like that comes from a slave that is behind the offset that this client has read.  Before that
    pull comes a pause, which doubles each time until an answer moves the offset.
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
