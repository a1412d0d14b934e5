"""`python -m tests.virtual_cluster SEED [STEPS]`: the run of that seed again, and the fewest decisions that show it.

`python -m tests.virtual_cluster FIRST-LAST [STEPS]` runs many seeds.
"""

import sys
import time

from tests.virtual_cluster.promises import PromiseBroken
from tests.virtual_cluster.world import World, plan

STEPS = 200


def main(arguments: list[str]) -> int:
    first, _, last = arguments[0].partition("-")
    steps = int(arguments[1]) if len(arguments) > 1 else STEPS
    if not last:
        return replay(int(first), steps)
    began, points, deaths, broken = time.perf_counter(), 0, 0, []
    for seed in range(int(first), int(last)):
        world = World(seed)
        try:
            world.run(plan(seed, steps))
        except PromiseBroken as error:
            broken.append(seed)
            print(str(error).splitlines()[0][:300])
        points += len(world.crash_points)
        deaths += sum(world.deaths.values())
    took = time.perf_counter() - began
    print(f"{points} crash points in {took:.1f} s; {len(broken)} seeds broke a promise: {broken}")
    return 1 if broken else 0


def replay(seed: int, steps: int) -> int:
    world = World(seed)
    try:
        world.run(plan(seed, steps))
    except PromiseBroken as error:
        print(error)
        return 1
    finally:
        print(
            world.fingerprint,
            world.deaths,
            world.clients.outcomes,
            f"{world.promises.ok} ok, {world.promises.lost} lost by decision",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
