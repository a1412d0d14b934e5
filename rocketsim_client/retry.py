"""Decides which calls are repeated after an error, and after which pause.  Pure: the caller passes the time.  The
client, the Spark sink, and the tasks and driver of the Spark source all use this table.  Users find the same table in
docs/spark.md and docs/client.md.

- `another`: another member of the broker name is asked at once.
- `read`: the same call is repeated a moment later.  A task repeats a failed pull up to pullRetries times.  While the
  driver repeats a call for bounds, a search or committed offsets, the queues of that call wait.  A failed commit is
  repeated up to commitRetries times, and then again in the next round.
- `send`: the message is sent again.  A message that may go to any queue is sent to another broker name, and all other
  messages are sent to the same broker name again.  A send is repeated after the same codes as in RocketMQ 4.9
  (TOPIC_NOT_EXIST, SERVICE_NOT_AVAILABLE, SYSTEM_ERROR, NO_PERMISSION, NO_BUYER_ID, NOT_IN_CURRENT_UNIT).  This client
  also sends again after 5.x's SYSTEM_BUSY, because a busy broker has stored nothing.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from rocketsim_client.errors import (
    AccessDenied,
    BadAnswer,
    BrokerNotExist,
    BrokerRefused,
    GroupNotExist,
    InvalidParameter,
    NameServerUnavailable,
    NoPermission,
    NoRoute,
    NotSupported,
    RocketSimError,
    ServiceNotAvailable,
    StoreDamaged,
    SystemBusy,
    TlsFailed,
    TopicNotExist,
    Unreachable,
)
from rocketsim_client.model import MASTER_ID


class Another(StrEnum):
    YES = "yes"
    # Another member is asked only after a slave's answer, because a slave may not know a new topic or group yet.
    OF_A_SLAVE = "if a slave says it"
    # After a wrong answer, a task of the Spark source asks another broker, but a pull of single messages raises the
    # error.
    BY_A_TASK = "by a task"
    NO = "no"


@dataclass(frozen=True, slots=True)
class RetryRule:
    another: Another
    read: bool
    send: bool


# Subclasses come before their bases, because the first class that matches counts.
RETRY_RULES: dict[type[RocketSimError], RetryRule] = {
    NameServerUnavailable: RetryRule(Another.NO, read=True, send=True),
    Unreachable: RetryRule(Another.YES, read=True, send=True),
    NoRoute: RetryRule(Another.NO, read=True, send=True),
    BrokerNotExist: RetryRule(Another.NO, read=True, send=True),
    ServiceNotAvailable: RetryRule(Another.YES, read=True, send=True),
    SystemBusy: RetryRule(Another.YES, read=True, send=True),
    StoreDamaged: RetryRule(Another.YES, read=True, send=True),
    BrokerRefused: RetryRule(Another.YES, read=True, send=True),
    BadAnswer: RetryRule(Another.BY_A_TASK, read=True, send=True),
    TopicNotExist: RetryRule(Another.OF_A_SLAVE, read=False, send=True),
    InvalidParameter: RetryRule(Another.OF_A_SLAVE, read=False, send=False),
    GroupNotExist: RetryRule(Another.OF_A_SLAVE, read=False, send=False),
    AccessDenied: RetryRule(Another.NO, read=False, send=False),
    NotSupported: RetryRule(Another.NO, read=False, send=False),
    NoPermission: RetryRule(Another.NO, read=False, send=True),
    TlsFailed: RetryRule(Another.NO, read=False, send=True),
}
NO_RETRY = RetryRule(Another.NO, read=False, send=False)
# A send that was refused with a plain BrokerRefused is repeated only after these codes.
SENT_AGAIN = frozenset({1, 204, 205})


def retry_rule_of(error: BaseException) -> RetryRule:
    return next((rule for kind, rule in RETRY_RULES.items() if isinstance(error, kind)), NO_RETRY)


def another_may_do_better(error: RocketSimError, broker_id: int) -> bool:
    """Returns True if another member of the broker name should be asked after the member with `broker_id` has
    failed."""
    match retry_rule_of(error).another:
        case Another.YES:
            return True
        case Another.OF_A_SLAVE:
            return broker_id != MASTER_ID
    return False


def is_worth_asking_again(error: BaseException) -> bool:
    """Returns True if a reader should repeat the same question in a moment."""
    return retry_rule_of(error).read


def is_worth_sending_again(error: BaseException) -> bool:
    """Returns True if another attempt of a send may be acknowledged."""
    if type(error) is BrokerRefused:
        return error.code in SENT_AGAIN
    return retry_rule_of(error).send


def tells_more(error: RocketSimError, than: RocketSimError | None) -> bool:
    """Returns True if `error` says more to the caller than the earlier error `than`, when several members have failed.

    A server's answer says more than a timeout.  A slave's answer that something does not exist says even less, because
    the master may have it.
    """
    return than is None or _rank(error) >= _rank(than)


def _rank(error: RocketSimError) -> int:
    if retry_rule_of(error).another is Another.OF_A_SLAVE:
        return 0
    return 1 if isinstance(error, Unreachable) else 2


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts: each is twice the one before, up to `longest_s`."""

    first_s: float
    longest_s: float = math.inf

    def pause_s(self, failures: int) -> float:
        """Returns the pause after `failures` failures in a row, which is 0 without a failure."""
        return min(self.first_s * 2.0 ** min(failures - 1, 64), self.longest_s) if failures else 0.0


SENDS = Backoff(0.05)  # between attempts of a batch at the same broker, until the timeout of the send
SETTLEMENTS = Backoff(0.05, 1.0)  # between attempts of acks and similar calls, and of ends of transactions
POLLS = Backoff(0.1, 1.0)  # between a consumer's pops from a broker that fails
PULLS = Backoff(0.02, 1.0)  # between pulls of a queue whose broker answers "retry immediately" without a new offset
COPIES = Backoff(1.0, 30.0)  # between sends of a spooled message that a broker has stored, but not safely enough
BACKGROUND = Backoff(0.1, 5.0)  # between calls for which no caller waits: replay, questions about transactions


@dataclass(slots=True)
class Budget:
    """One timeout for all attempts, of which at most 1 + `retries` are made.  The timeout and the number of attempts
    are checked before each attempt."""

    deadline: float
    retries: int
    attempts: int = 0

    def remaining_s(self, now: float) -> float:
        return self.deadline - now

    def may_try(self, now: float) -> bool:
        return self.attempts <= self.retries and now < self.deadline

    def started(self) -> None:
        self.attempts += 1
