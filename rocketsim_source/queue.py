"""A message queue as the Spark side names it.  Pure."""

from typing import NamedTuple


class Queue(NamedTuple):
    """One queue of one broker name.  Ordered and hashable; a tuple, so that it is small in a pickled partition."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


# Offsets are always the next one to read.
Offsets = dict[Queue, int]
