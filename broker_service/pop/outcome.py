"""Outcome: decides whether a delivery whose deadline has come is renewed, retried, or made a dead letter.

The group's configuration sets the number of attempts and the back-off (`broker/metadata/groups.py`).  `state/moves.py`
makes the copy for the retry topic or dead letter topic.
"""

from enum import Enum, auto

from broker_service.state.state import UnderWay

RENEWED_FOR_MS = 60_000  # the invisible time of deliveries that the broker renews
MAX_RENEWED_MS = 3 * 3600 * 1000  # a delivery is renewed for at most this time after its pop


class Outcome(Enum):
    RENEW = auto()
    RETRY = auto()
    DEAD_LETTER = auto()


def may_be_lost(delivery: UnderWay, took_over_after_ms: int) -> bool:
    """Returns True if the previous master may have died before the client got this delivery.

    `took_over_after_ms` is the time of the previous master's last pop.  A delivery that was renewed has certainly
    reached its client.
    """
    return delivery.popped_ms <= took_over_after_ms and delivery.deadline_ms <= delivery.popped_ms + RENEWED_FOR_MS


def outcome_of(
    delivery: UnderWay, now_ms: int, max_attempts: int, *, is_connected: bool, took_over_after_ms: int = 0
) -> Outcome:
    """Decides between renewal, retry and dead letter for a delivery whose deadline has come."""
    if delivery.renewed_until_ms and may_be_lost(delivery, took_over_after_ms):
        return Outcome.RETRY
    if is_connected and now_ms < delivery.renewed_until_ms:
        return Outcome.RENEW
    if delivery.counted and delivery.attempt >= max_attempts:
        return Outcome.DEAD_LETTER
    return Outcome.RETRY
