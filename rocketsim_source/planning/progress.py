"""What a query's progress shows as this source's `latestOffset`: offsets, lag and the group.  Pure.

Spark shows any JSON there, and gives a Python source no other way to put its lag into the progress.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from rocketsim_client.model import MessageQueue, QueueBounds
from rocketsim_source.planning.offsets import VERSION, as_json
from rocketsim_source.source_cluster import Offsets

SAMPLES = 256


class LagClock:
    """How long the oldest unread record of a queue has been waiting, from when its offset was first seen: a lower
    bound.
    """

    def __init__(self) -> None:
        self._seen: dict[MessageQueue, deque[tuple[int, int]]] = {}  # (end, when it was first seen in ms)

    def observe(self, queue: MessageQueue, end: int, now_ms: int) -> None:
        samples = self._seen.setdefault(queue, deque(maxlen=SAMPLES))
        if not samples or samples[-1][0] < end:
            samples.append((end, now_ms))

    def waiting_ms(self, queue: MessageQueue, position: int, now_ms: int) -> int:
        for end, seen_ms in self._seen.get(queue, ()):
            if end > position:
                return now_ms - seen_ms
        return 0


def report(
    bounds: Mapping[MessageQueue, QueueBounds],
    position: Offsets,
    waiting_ms: int,
    group: dict[str, Any] | None,
    unreachable: Mapping[str, Exception],
    *,
    range_streams: bool = True,
) -> dict[str, Any]:
    """`position` is the end of the newest batch: the lag is what no batch has been planned for yet.  `range_streams`:
    tasks read over plain sockets where the broker offers it.
    """
    latest = {queue: found.max_offset for queue, found in bounds.items()}
    lags = {queue: max(0, end - position.get(queue, end)) for queue, end in latest.items()}
    count = len(lags) or 1
    most = max(sorted(lags), key=lambda queue: lags[queue], default=None)
    lag = {
        "avg": sum(lags.values()) / count,
        "max": max(lags.values(), default=0),
        "maxQueue": str(most) if most is not None and lags[most] else None,
        "min": min(lags.values(), default=0),
        "seconds": waiting_ms / 1000,
        "total": sum(lags.values()),
    }
    written: dict[str, Any] = {
        "avgOffsetsBehindLatest": lag["avg"],
        "lag": lag,
        "maxOffsetsBehindLatest": lag["max"],
        "minOffsetsBehindLatest": lag["min"],
        "q": as_json(latest),
        "route": {queue.broker_name: found.broker_id for queue, found in sorted(bounds.items())},
        "topic": ",".join(sorted({queue.topic for queue in position} | {queue.topic for queue in latest})),
        "transport": {
            queue.broker_name: "stream" if range_streams and found.offers_streams else "grpc"
            for queue, found in sorted(bounds.items())
        },
        "v": VERSION,
    }
    if group is not None:
        written["group"] = group
    if unreachable:
        written["unreachable"] = sorted(unreachable)
    return written
