"""RangeCalls counts the range pulls by their transport, which is plain sockets or gRPC.

Each client in a Spark worker chooses its transport itself, and does not report it to the job's driver.  The driver
therefore asks the broker how many range pulls used each transport.
"""

from collections.abc import Iterable
from typing import NamedTuple

MOST = 10_000  # limit for the remembered pairs of a group and a topic


class Calls(NamedTuple):
    over_streams: int = 0
    over_grpc: int = 0


class RangeCalls:
    """Counts range pulls since the start of this process, by group and topic.  If there are more than MOST pairs, the
    one that was used longest ago is forgotten.
    """

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
