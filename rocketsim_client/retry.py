"""Which failed sends are worth another attempt, and how long there is for it.  Pure: `now` is an argument."""

from dataclasses import dataclass

from rocketsim_client.errors import RocketSimError, Unreachable

# RocketMQ 4.9: TOPIC_NOT_EXIST, SERVICE_NOT_AVAILABLE, SYSTEM_ERROR, NO_PERMISSION, NO_BUYER_ID, NOT_IN_CURRENT_UNIT.
# SYSTEM_BUSY is 5.x's addition: the broker has not stored anything, and another one may be idle.
RETRY_RESPONSE_CODES = frozenset({1, 2, 14, 16, 17, 204, 205})


def is_worth_retrying(error: RocketSimError) -> bool:
    return isinstance(error, Unreachable) or error.code in RETRY_RESPONSE_CODES


@dataclass(slots=True)
class Budget:
    """One total timeout over all attempts, checked before each: 1 + `retries` of them."""

    deadline: float
    retries: int
    attempts: int = 0

    def remaining_s(self, now: float) -> float:
        return self.deadline - now

    def may_try(self, now: float) -> bool:
        return self.attempts <= self.retries and now < self.deadline

    def started(self) -> None:
        self.attempts += 1
