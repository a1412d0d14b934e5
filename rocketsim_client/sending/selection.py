"""Chooses a queue: the next one in turn, that of a message group, or one whose broker is not to be avoided.  Pure:
chance and time are arguments."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from rocketsim_client.model import MessageQueue
from rocketsim_client.sending.latency_fault import LatencyFaultTolerance


@dataclass(slots=True)
class RoundRobin:
    """The position in the queues of one topic.  `start` is random, so that many producers do not begin at the same
    queue."""

    start: int = 0

    def next(self, queues: Sequence[MessageQueue], avoid: frozenset[str] = frozenset()) -> MessageQueue:
        """Returns the next queue whose broker is not in `avoid`.  If all brokers are in `avoid`, returns the next queue
        in turn."""
        self.start += 1
        queue = queues[self.start % len(queues)]
        if not avoid:
            return queue
        for _ in queues:
            if queue.broker_name not in avoid:
                break
            self.start += 1
            queue = queues[self.start % len(queues)]
        return queue

    def next_available(self, queues: Sequence[MessageQueue], faults: LatencyFaultTolerance, now: float) -> MessageQueue:
        """Chooses as RocketMQ 4.9 does with fault avoidance.  The next queue of an available broker is chosen.  If all
        brokers are avoided, a queue of one of the better brokers is chosen.  If this better broker has no queue of the
        topic, the next queue in turn is chosen."""
        for _ in range(len(queues)):
            self.start += 1
            queue = queues[self.start % len(queues)]
            if faults.is_available(queue.broker_name, now):
                return queue
        best = faults.pick_one_at_least(now)
        of_best = [queue for queue in queues if queue.broker_name == best]
        if of_best:
            self.start += 1
            return of_best[self.start % len(of_best)]
        if best is not None:
            faults.remove(best)
        self.start += 1
        return queues[self.start % len(queues)]


def by_group(queues: Sequence[MessageQueue], message_group: str | bytes) -> MessageQueue:
    """Returns the queue of a message group.  As long as the topic's queues stay the same, every process chooses the
    same queue for a message group."""
    return queues[group_hash(message_group) % len(queues)]


def group_hash(message_group: str | bytes) -> int:
    """Returns the CRC-32 of the name, because Python's hash() differs from process to process."""
    return zlib.crc32(message_group.encode() if isinstance(message_group, str) else message_group)
