"""The same call to several servers at once: one that does not answer costs the others no time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rocketsim_client.errors import RocketSimError

T = TypeVar("T")

MOST_AT_ONCE = 16


def at_once(places: Iterable[str], call: Callable[[str], T]) -> tuple[dict[str, T], dict[str, RocketSimError]]:
    """What each of these places answers and what each that refuses says, by place, in their order.  Returns when all
    have; other exceptions are raised."""
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
