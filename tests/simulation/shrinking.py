"""Shrinking: the fewest decisions of a run that still break its promise (delta debugging)."""

import re
from collections.abc import Callable, Sequence

from tests.simulation.promises import PromiseBroken
from tests.simulation.world import Decision, World

MOST_RUNS = 300


def what_breaks(seed: int, decisions: Sequence[Decision]) -> str:
    """Returns the message of the promise that the run breaks, or an empty text if it breaks none."""
    try:
        World(seed).run(list(decisions))
    except PromiseBroken as broken:
        return str(broken)
    return ""


def shrunk(
    decisions: Sequence[Decision], message: str, run: Callable[[Sequence[Decision]], str]
) -> tuple[list[Decision], str]:
    """Returns decisions that break a promise of the same kind, and that promise's message.  None of the decisions can
    be left out alone.
    """
    kept, kind = list(decisions), kind_of(message)
    size, runs = len(kept) // 2, 0
    while size and runs < MOST_RUNS:
        at, before = 0, len(kept)
        while at < len(kept) and runs < MOST_RUNS:
            fewer = kept[:at] + kept[at + size :]
            runs += 1
            broken = run(fewer)
            if broken and kind_of(broken) == kind:
                kept, message = fewer, broken
            else:
                at += size
        size = size // 2 if size > 1 or len(kept) == before else size
    return kept, message


def kind_of(message: str) -> str:
    """Returns the kind of a broken promise: the message without its names and numbers, which differ from run to run."""
    said = message.partition("\n")[0].partition(": ")[2]
    return re.sub(r"[^a-z ]+[^ ]*", "#", said)[:80]
