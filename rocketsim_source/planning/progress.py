"""Makes the `latestOffset` that a query's progress shows for this source: offsets, lag and the group.  Pure.

Spark accepts any JSON as `latestOffset`, and a Python source has no other way to report its lag in the progress.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from rocketsim_proto.lag import lag as lag_of
from rocketsim_proto.records import kernels

from rocketsim_client.model import MessageQueue, QueueBounds
from rocketsim_source.planning.offsets import VERSION, as_json
from rocketsim_source.source_cluster import Offsets

SAMPLES = 256


class LagClock:
    """Measures how long the oldest unread record of a queue has waited.

    The waiting time starts when the driver first sees that the queue has grown beyond the record, so the record may
    have waited longer.
    """

    def __init__(self) -> None:
        # Queue -> pairs of an end and the time in ms when this end was first seen.
        self._seen: dict[MessageQueue, deque[tuple[int, int]]] = {}

    def observe(self, queue: MessageQueue, end: int, now_ms: int) -> None:
        samples = self._seen.setdefault(queue, deque(maxlen=SAMPLES))
        if not samples or samples[-1][0] < end:
            samples.append((end, now_ms))

    def waiting_ms(self, queue: MessageQueue, position: int, now_ms: int) -> int:
        for end, seen_ms in self._seen.get(queue, ()):
            if end > position:
                return now_ms - seen_ms
        return 0


class TransportsUsed:
    """Tells which transports (`stream`, `grpc` or both) tasks have used to pull from each broker name, or None before
    the first pull.  The transports follow from the brokers' counters of pulls, from which the pulls before this query
    are subtracted.
    """

    def __init__(self) -> None:
        # (broker name, topic) -> (pulls over streams, pulls over gRPC)
        self._counted: dict[tuple[str, str], tuple[int, int]] = {}
        self._used: dict[str, str | None] = {}

    def observe(self, bounds: Mapping[MessageQueue, QueueBounds]) -> dict[str, str | None]:
        more: dict[str, tuple[int, int]] = {}
        for queue, found in bounds.items():
            key = queue.broker_name, queue.topic
            streams, grpc = found.ranges_pulled
            before = self._counted.get(key, found.ranges_pulled)
            if streams < before[0] or grpc < before[1]:
                before = 0, 0  # the counter went back: the broker restarted, or another member of its name answers
            self._counted[key] = found.ranges_pulled
            so_far = more.get(queue.broker_name, (0, 0))
            more[queue.broker_name] = so_far[0] + streams - before[0], so_far[1] + grpc - before[1]
        for broker_name, (streams, grpc) in sorted(more.items()):
            used = " and ".join(name for name, count in (("stream", streams), ("grpc", grpc)) if count)
            self._used[broker_name] = used or self._used.get(broker_name)
        return {broker_name: self._used[broker_name] for broker_name in sorted(more)}


def report(
    bounds: Mapping[MessageQueue, QueueBounds],
    position: Offsets,
    waiting_ms: int,
    group: dict[str, Any] | None,
    unreachable: Mapping[str, Exception],
    transport: Mapping[str, str | None],
) -> dict[str, Any]:
    """Returns the `latestOffset` of a query's progress.

    `position` is the end of the newest batch.  The lag counts the records from `position` on, which no batch has yet.
    """
    latest = {queue: found.max_offset for queue, found in bounds.items()}
    lags = {
        queue: lag_of(position.get(queue, found.max_offset), found.min_offset, found.max_offset)
        for queue, found in bounds.items()
    }
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
        "recordKernels": kernels.in_use(),
        "route": {queue.broker_name: found.broker_id for queue, found in sorted(bounds.items())},
        "topic": ",".join(sorted({queue.topic for queue in position} | {queue.topic for queue in latest})),
        "transport": dict(transport),
        "v": VERSION,
    }
    if group is not None:
        written["group"] = group
    if unreachable:
        written["unreachable"] = sorted(unreachable)
    return written
