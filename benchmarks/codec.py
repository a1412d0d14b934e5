"""Measures the CPU time of each step of the record codec, once with the compiled module and once with plain Python.

    python -m benchmarks.codec [--rounds 7] [--sizes 100,1024] [--counts 1,4,32,512,4096]

Both codecs run alternately in one process.  Each step is measured by the CPU time of this process, and the best round
counts, so that other work on the machine has little influence.  The output is a table of microseconds per row.  A step
whose name begins with "…" needs the columns of a walk through the records, and its figure includes this walk.
"""

import argparse
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rocketsim_proto.records import kernels, record
from rocketsim_proto.records.columnar import Records, encode

from broker_service.broker.frame import FrameLimits, check_frame
from broker_service.store.batch import Batch
from broker_service.store.dispatch import queue_extents
from broker_service.store.index_keys import index_keys
from broker_service.store.log_scanner import walk

LIMITS = FrameLimits(max_message_size=4 << 20, log_file_size=1 << 30, store_host_size=8)
HOST = bytes(8)
_LONG_ENOUGH_S = 0.02  # CPU seconds that a step must take in a round, because shorter times are imprecise


def steps(size: int, count: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields each step's name and function, for a frame of `count` messages whose bodies have `size` bytes."""
    bodies = [np.random.default_rng(number).bytes(size) for number in range(count)]
    properties = [
        record.encode_properties({"TAGS": f"Tag{number % 4}", "KEYS": f"key-{number:08}", "UNIQ_KEY": f"{number:032X}"})
        for number in range(count)
    ]

    def made() -> bytes:
        return bytes(encode("topic", 1, bodies, properties, born_timestamp=1, born_host=HOST)[0])

    data = made()
    crc32 = zlib.crc32(data)

    def appended() -> Batch:
        batch = check_frame("topic", data, count, crc32, LIMITS).batch
        batch.stamp(0, {1: 0}, 1, HOST)
        batch.queue_extents([])
        return batch

    def put() -> Batch:
        batch = appended()
        index_keys(batch.columns)
        return batch

    written = bytearray(put().view_bytes())

    def walked() -> Records:
        return Records.walk(written)

    offsets, numbers = walked().starts, np.arange(count)
    yield "encode", made
    yield "check", lambda: check_frame("topic", data, count, crc32, LIMITS)
    yield "a put before its index", appended
    yield "all of a put", put
    yield "scan", lambda: walk(written, 0, len(written))
    yield "walk", walked
    yield "… and stamp", lambda: walked().stamp(numbers, offsets, 1, HOST)
    yield "… and queue entries", lambda: queue_extents(walked(), [])
    yield "… and index hashes", lambda: index_keys(walked())
    yield "… and heads", lambda: walked().queue_offset
    yield "… and bodies", lambda: walked().bodies()
    yield "… and one property", lambda: walked().property("KEYS")
    yield "… and property map", lambda: walked().properties()


def seconds_of(step: Callable[[], Any], times: int) -> float:
    begun = time.process_time()
    for _ in range(times):
        step()
    return time.process_time() - begun


def times_of(step: Callable[[], Any]) -> int:
    """Returns how often a step must be repeated in a round, so that its CPU time can be measured."""
    times = 1
    while seconds_of(step, times) < _LONG_ENOUGH_S:
        times *= 2
    return times


def measure(size: int, count: int, rounds: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yields the name of each step, and its microseconds per row with each codec."""
    ways = {"compiled": kernels.compiled, "python": None}
    if ways["compiled"] is None:
        del ways["compiled"]
    before = kernels.compiled
    try:
        made = {}
        for way, kernels.compiled in ways.items():
            made[way] = {name: (step, times_of(step)) for name, step in steps(size, count)}
        for name in next(iter(made.values())):
            best = dict.fromkeys(ways, float("inf"))
            for _ in range(rounds):
                for way, kernels.compiled in ways.items():
                    step, times = made[way][name]
                    best[way] = min(best[way], seconds_of(step, times) / times / count * 1e6)
            yield name, best
    finally:
        kernels.compiled = before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", default="100,1024")
    parser.add_argument("--counts", default="1,4,32,512,4096")
    words = parser.parse_args()
    print("| body | records | step | µs a row by way |\n|---|---|---|---|")
    for size in map(int, words.sizes.split(",")):
        for count in map(int, words.counts.split(",")):
            for name, best in measure(size, count, words.rounds):
                figures = ", ".join(f"{way} {took:.3f}" for way, took in best.items())
                print(f"| {size} B | {count} | {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
