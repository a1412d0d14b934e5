"""Deadlines of callers: how long a call may wait, so that its answer arrives before the caller's deadline."""

from typing import Any

import grpc

# The time that a call without a deadline gets, which is longer than any wait of this server.
NO_DEADLINE_S = 60.0
# The time that is left for sending the answer is ANSWER_SHARE of the caller's time, but ANSWER_MAX_S at most.  A busy
# machine may need more than half a second to send an answer.
ANSWER_MAX_S = 1.0
ANSWER_SHARE = 0.2


def time_left_s(context: grpc.aio.ServicerContext[Any, Any]) -> float:
    left_s = context.time_remaining()
    return NO_DEADLINE_S if left_s is None else min(max(0.0, left_s), NO_DEADLINE_S)


def answer_s(left_s: float) -> float:
    return min(ANSWER_MAX_S, left_s * ANSWER_SHARE)


def wait_s(left_s: float) -> float:
    return left_s - answer_s(left_s)


def longest_wait_s(context: grpc.aio.ServicerContext[Any, Any]) -> float:
    """Returns how long the call may wait from now on."""
    return wait_s(time_left_s(context))
