"""`python -m tests.simulation SEED [STEPS]` repeats the run of a seed, and finds the fewest decisions that break the
same promise.

`python -m tests.simulation FIRST-LAST [STEPS]` runs the seeds from FIRST to LAST - 1.

`python -m tests.simulation PLAY SEED` and `PLAY FIRST-LAST` run a play of `plays.py`, for example `deliveries` or
`late-messages-on-bad-disks`.  The command prints a summary of each mode, and the last steps before each broken promise.
"""

import sys
import time
from collections import Counter, defaultdict

from tests.simulation.plays import PLAYS, played
from tests.simulation.promises import PromiseBroken
from tests.simulation.shrinking import shrunk, what_breaks
from tests.simulation.world import World, plan

STEPS = 150


def main(arguments: list[str]) -> int:
    if not arguments:
        print(__doc__)
        return 2
    if arguments[0] in PLAYS:
        return play(arguments[0], arguments[1])
    first, _, last = arguments[0].partition("-")
    steps = int(arguments[1]) if len(arguments) > 1 else STEPS
    if not last:
        return replay(int(first), steps)
    began, counts, faults, broken = time.perf_counter(), Counter[str](), Counter[str](), []
    for seed in range(int(first), int(last)):
        world = World(seed)
        try:
            world.run(plan(seed, steps))
        except PromiseBroken as error:
            broken.append(seed)
            print(str(error).splitlines()[0][:300])
        counts["crash points"] += len(world.crash_points)
        counts["acknowledged"] += world.promises.ok
        counts["lost, as documented"] += world.promises.lost
        faults += world.faults
        for broker in world.brokers:
            faults += broker.disk.failed
    took = time.perf_counter() - began
    print(f"{said(counts)}; {said(faults)}")
    print(f"{took:.1f} s; {len(broken)} seeds broke a promise: {broken}")
    return 1 if broken else 0


def play(name: str, seeds: str) -> int:
    first, _, last = seeds.partition("-")
    began, broken = time.perf_counter(), []
    counts, of_mode = defaultdict[str, Counter[str]](Counter), Counter[str]()
    for seed in range(int(first), int(last or int(first) + 1)):
        world = World(seed)
        of_mode[world.mode] += 1
        try:
            counts[world.mode] += played(name, world)
        except PromiseBroken as error:
            broken.append(seed)
            print(error, flush=True)
    for mode, number in sorted(of_mode.items()):
        print(f"{mode}, {number} seeds: {said(counts[mode])}")
    print(f"{name}: {time.perf_counter() - began:.1f} s; {len(broken)} seeds broke a promise: {broken}")
    return 1 if broken else 0


def said(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))


def replay(seed: int, steps: int) -> int:
    decisions = plan(seed, steps)
    broken = what_breaks(seed, decisions)
    if not broken:
        print(f"seed {seed} keeps every promise")
        return 0
    print(broken)
    kept, broken = shrunk(decisions, broken, lambda fewer: what_breaks(seed, fewer))
    print(f"\nthe same with {len(kept)} of {len(decisions)} decisions: {' '.join(str(item.number) for item in kept)}")
    print(broken)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
