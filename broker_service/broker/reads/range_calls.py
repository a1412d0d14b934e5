"""Which way the pulls of ranges come: over plain sockets or over gRPC.  A caller's client decides, and of a Spark job
in a worker that its driver hears nothing of; the broker tells it.
"""

from collections.abc import Iterable
from typing import NamedTuple

MOST = 10_000  # groups and topics that are remembered


class Calls(NamedTuple):
    over_streams: int = 0
    over_grpc: int = 0


class RangeCalls:
    """Counts of this process, by group and topic; the one that has called least recently is forgotten first."""

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
