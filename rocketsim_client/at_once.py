"""Makes the same call to several servers at once, so that a server that does not answer does not delay the others."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rocketsim_client.errors import RocketSimError

T = TypeVar("T")

MOST_AT_ONCE = 16


def at_once(places: Iterable[str], call: Callable[[str], T]) -> tuple[dict[str, T], dict[str, RocketSimError]]:
    """Calls all places, waits until all calls have ended, and returns the answers and the refusals, each by place and
    in the order of `places`.  An exception that is not a RocketSimError is raised."""
    asked = list(dict.fromkeys(places))
    answers: dict[str, T] = {}
    refusals: dict[str, RocketSimError] = {}
    with ThreadPoolExecutor(max(1, min(len(asked), MOST_AT_ONCE)), thread_name_prefix="at-once") as pool:
        calls = [(place, pool.submit(call, place)) for place in asked]
        for place, one in calls:
            try:
                answers[place] = one.result()
            except RocketSimError as error:
                refusals[place] = error
    return answers, refusals
