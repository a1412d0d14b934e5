"""RangeCalls counts over which transport clients pull ranges: over plain sockets or over gRPC.

A client chooses the transport, and a client in a Spark worker does not report to the job's driver.  So the driver asks
the broker for these counts.
"""

from collections.abc import Iterable
from typing import NamedTuple

MOST = 10_000  # most pairs of a group and a topic that are remembered


class Calls(NamedTuple):
    over_streams: int = 0
    over_grpc: int = 0


class RangeCalls:
    """Counts calls since this process started, by group and topic.  Beyond MOST the least recent is forgotten."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], Calls] = {}

    def note(self, group: str, topics: Iterable[str], *, is_stream: bool) -> None:
        for topic in topics:
            before = self._counts.pop((group, topic), Calls())
            self._counts[group, topic] = Calls(before.over_streams + is_stream, before.over_grpc + (not is_stream))
        while len(self._counts) > MOST:
            del self._counts[next(iter(self._counts))]

    def of(self, group: str, topic: str) -> Calls:
        return self._counts.get((group, topic), Calls())
