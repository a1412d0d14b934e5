"""Chooses the queue of a message: by its message group, or in turns."""

import hashlib

_MULTIPLIER = 2862933555777941757
_MASK = (1 << 64) - 1


class RoundRobin:
    """Chooses the queues of a topic in turns."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def queue_of(self, topic: str, queue_nums: int) -> int:
        turn = self._next.get(topic, -1) + 1
        self._next[topic] = turn
        return turn % queue_nums


def queue_of_group(message_group: str, queue_nums: int) -> int:
    """Returns the queue of a message group.  The queue is the same for clients of all languages.

    If a queue is added, only few message groups change their queue, and all of these move to the new queue.  The
    algorithm is the jump consistent hash of Lamping and Veach.  RocketMQ's proxy uses the same algorithm, but with
    another hash of the group's name.
    """
    state = int.from_bytes(hashlib.blake2b(message_group.encode(), digest_size=8).digest(), "big")
    bucket, candidate = 0, 0
    while candidate < queue_nums:
        bucket = candidate
        state = (state * _MULTIPLIER + 1) & _MASK
        candidate = int((bucket + 1) * ((1 << 31) / ((state >> 33) + 1)))
    return bucket
