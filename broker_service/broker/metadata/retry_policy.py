"""Reads a consumer group's retry policy, which says how long a message waits before each new delivery.

The policy is RocketMQ's `groupRetryPolicy`, a JSON object of one of these forms:

    {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000, …]}}
    {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7200000, "multiplier": 2}}

All times are milliseconds.  A missing field has RocketMQ's default value.  After the first failed attempt a message
waits for the first of the customized times, as with RocketMQ 5's clients, which get these times from the broker.
RocketMQ's own brokers begin with the third of the times.
"""

from collections.abc import Mapping
from typing import Any

from rocketsim_proto.limits import MAX_INVISIBLE_MS

CUSTOMIZED, EXPONENTIAL = "CUSTOMIZED", "EXPONENTIAL"
MOST_TIMES = 64

_SECONDS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
DEFAULT = tuple(1000 * seconds for seconds in _SECONDS)


def retry_times_ms(policy: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the waiting times after the first, the second and each later failed attempt.  If more attempts fail than
    there are times, the last time is used again.

    `policy` is the JSON object, and an empty one means DEFAULT.  Raises ValueError for an invalid policy.
    """
    kind = policy.get("type") or CUSTOMIZED
    if kind == CUSTOMIZED:
        times = _part(policy, "customizedRetryPolicy").get("next")
        if times is None:
            return DEFAULT
        if not isinstance(times, list) or not 1 <= len(times) <= MOST_TIMES:
            raise ValueError(f"customizedRetryPolicy.next={times!r} must have 1 to {MOST_TIMES} times in ms")
        return tuple(_whole("customizedRetryPolicy.next", time, 0, MAX_INVISIBLE_MS) for time in times)
    if kind == EXPONENTIAL:
        part = _part(policy, "exponentialRetryPolicy")
        initial = _whole("exponentialRetryPolicy.initial", part.get("initial", 5000), 1, MAX_INVISIBLE_MS)
        longest = _whole("exponentialRetryPolicy.max", part.get("max", 7_200_000), 1, MAX_INVISIBLE_MS)
        multiplier = _whole("exponentialRetryPolicy.multiplier", part.get("multiplier", 2), 1, 1000)
        found = [min(initial, longest)]
        while found[-1] < longest and multiplier > 1:
            found.append(min(found[-1] * multiplier, longest))
        return tuple(found)
    raise ValueError(f"type={kind!r} must be {CUSTOMIZED} or {EXPONENTIAL}")


def _part(policy: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = policy.get(name)
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise ValueError(f"{name}={part!r} must be an object")
    return part


def _whole(name: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name}={value!r} must be a number from {low} to {high}")
    return value
