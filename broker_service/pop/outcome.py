"""Outcome: whether a delivery that was not acknowledged in time is renewed, retried, or a dead letter.  Pure.

The group says how often, and after which back-off (`broker/metadata/groups.py`).  `state/moves.py` has what a copy is.
"""

from enum import Enum, auto

from broker_service.state.state import UnderWay

RENEWED_FOR_MS = 60_000  # the invisible time of deliveries that the broker renews
MAX_RENEWED_MS = 3 * 3600 * 1000  # from the pop on


class Outcome(Enum):
    RENEW = auto()
    RETRY = auto()
    DEAD_LETTER = auto()


def may_be_lost(delivery: UnderWay, took_over_after_ms: int) -> bool:
    """True if the client may have no answer to its pop: a master before this one delivered it, and may have died then.

    `took_over_after_ms`: when the last delivery of that master was popped.  What was renewed had been received.
    """
    return delivery.popped_ms <= took_over_after_ms and delivery.deadline_ms <= delivery.popped_ms + RENEWED_FOR_MS


def outcome_of(
    delivery: UnderWay, now_ms: int, max_attempts: int, *, is_connected: bool, took_over_after_ms: int = 0
) -> Outcome:
    """What becomes of a delivery whose deadline has come."""
    if delivery.renewed_until_ms and may_be_lost(delivery, took_over_after_ms):
        return Outcome.RETRY
    if is_connected and now_ms < delivery.renewed_until_ms:
        return Outcome.RENEW
    if delivery.counted and delivery.attempt >= max_attempts:
        return Outcome.DEAD_LETTER
    return Outcome.RETRY
