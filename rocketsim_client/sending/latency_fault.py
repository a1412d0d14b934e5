"""Fault avoidance: which brokers a producer avoids after slow or failed sends.  Pure: the caller passes the time.

Fault avoidance follows RocketMQ 4.9's MQFaultStrategy (table D8) and is used only with `send_latency_fault_enable`.
After each send its broker is avoided for a time that grows with the duration of the send: not at all below 550 ms, for
30 seconds from 550 ms on, and for up to ten minutes from 15 s on.  A failed send counts as one that took 30 s.  If all
brokers are avoided, the brokers of the better half are used in turn.
"""

from dataclasses import dataclass, field

LATENCY_MAX_MS = (50, 100, 550, 1000, 2000, 3000, 15000)
NOT_AVAILABLE_MS = (0, 0, 30000, 60000, 120000, 180000, 600000)
ISOLATION_LATENCY_MS = 30000


def not_available_ms(latency_ms: float) -> int:
    """Returns how long a broker is avoided after a send that took `latency_ms`."""
    for threshold, duration in zip(reversed(LATENCY_MAX_MS), reversed(NOT_AVAILABLE_MS), strict=True):
        if latency_ms >= threshold:
            return duration
    return 0


@dataclass(slots=True)
class _FaultItem:
    latency_ms: float
    available_from: float  # seconds, on the caller's clock


@dataclass(slots=True)
class LatencyFaultTolerance:
    _items: dict[str, _FaultItem] = field(default_factory=dict)
    _turn: int = 0

    def update(self, broker_name: str, latency_ms: float, now: float, *, isolation: bool = False) -> None:
        """Notes a finished send.  `isolation` means that the send has failed.  A failed send counts as slow even if it
        was quick."""
        duration = not_available_ms(ISOLATION_LATENCY_MS if isolation else latency_ms)
        self._items[broker_name] = _FaultItem(latency_ms, now + duration / 1000)

    def is_available(self, broker_name: str, now: float) -> bool:
        item = self._items.get(broker_name)
        return item is None or now >= item.available_from

    def pick_one_at_least(self, now: float) -> str | None:
        """If all brokers are avoided, chooses the brokers of the better half in turn.  An available broker is better
        than an avoided one.  Of two brokers that are both available, or both avoided, the faster one is better.  Of two
        equally fast brokers, the one that is available sooner is better.  Returns None if no send has ended yet."""
        if not self._items:
            return None
        ranked = sorted(
            self._items,
            key=lambda name: (
                now < self._items[name].available_from,
                self._items[name].latency_ms,
                self._items[name].available_from,
            ),
        )
        self._turn += 1
        return ranked[self._turn % max(1, len(ranked) // 2)]

    def remove(self, broker_name: str) -> None:
        self._items.pop(broker_name, None)
