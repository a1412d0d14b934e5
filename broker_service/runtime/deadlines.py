"""A caller's deadline: how much of it a call may spend waiting, so that it ends with an answer before it."""

from typing import Any

import grpc

# For a caller that set no deadline: longer than any wait of ours.
NO_DEADLINE_S = 60.0
# The part of the caller's time that is left for the way back.  A busy machine may need more than half a second for it.
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
    """How long the call may wait from now on."""
    return wait_s(time_left_s(context))
