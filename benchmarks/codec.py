"""P21 measures the CPU time of the record codec, once with the compiled module and once with plain Python: checks and
encodes of frames of several sizes, and the scan of a log at recovery.

    python -m benchmarks.codec [--rounds 7] [--sizes 100,1024] [--counts 1,4,32,512,4096]

prints a table with every step of the codec, in microseconds per row.  In this table the best round counts, so that
other work on the machine has little influence.  A step whose name begins with "…" needs the columns of a walk through
the records, and its figure includes this walk.

Both codecs run alternately in one process.  Each step is measured by the CPU time of its thread.
"""

import argparse
import os
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rocketsim_proto.records import kernels, record
from rocketsim_proto.records.columnar import Records, encode

from benchmarks import targets
from benchmarks.bench import Bench, must_be
from benchmarks.figures import Missing, Series
from benchmarks.targets import Target
from broker_service.broker.frame import FrameLimits, check_frame
from broker_service.store.batch import Batch
from broker_service.store.commit_log import CommitLog
from broker_service.store.dispatch import queue_extents
from broker_service.store.files import Files
from broker_service.store.index_keys import index_keys
from broker_service.store.log_scanner import LogScan
from broker_service.store.open_files import OpenFiles

Step = tuple[str, Callable[[], Any]]

LIMITS = FrameLimits(max_message_size=4 << 20, log_file_size=1 << 30, store_host_size=8)
HOST = bytes(8)
COMPILED, PYTHON = "compiled", "python"
PUTS = (1, 4, 32, 1000)  # records of a frame, as puts of different clients have them
FRAME = 4096  # records of a frame that is so large that the fixed cost of a call does not count
MIXED = (20, 2000)  # the smallest and the largest body of the log with bodies of mixed sizes
_LONG_ENOUGH_S = 0.02  # CPU seconds that a step must take in a round, because shorter times are imprecise


def run(bench: Bench) -> None:
    absent = missing()
    if absent is not None:
        bench.note(f"missing: {absent.why}")
    for size in bench.plan.sizes:
        wanted = {"check": targets.CODEC_CHECK[size], "encode": targets.CODEC_ENCODE[size]}
        for count in (*bench.plan.pick(PUTS, PUTS, (32,)), FRAME):
            bench.doing(f"{size} B, {count:,} records")
            found = measure(partial(steps_named, wanted, size, count), count, bench.plan.rounds)
            for name, target in wanted.items():
                words = f"{name}, {size} B, {count:,} at once"
                report(bench, words, found[name], absent, target if count == FRAME else None)
    low, high = MIXED
    count = bench.plan.pick(50_000, 20_000, 1000)
    mixed, equal = np.random.default_rng(0).integers(low, high + 1, count), (low + high) // 2
    scan(bench, absent, f"bodies of {low} to {high:,} B", [int(size) for size in mixed])
    scan(bench, absent, f"bodies of {equal:,} B", [equal] * count)


def scan(bench: Bench, absent: Missing | None, what: str, sizes: Sequence[int]) -> None:
    """Measures the scan, as at recovery, of a log whose bodies have these sizes.  The log is in the page cache."""
    bench.doing(f"scanning a log, {what}")
    with log_of(bench.folder / f"log-{min(sizes)}-{max(sizes)}", sizes) as log:
        must_be(f"records that a scan finds, {what}", scanned(log), len(sizes))
        found = measure(lambda: [("scan", partial(scanned, log))], len(sizes), bench.plan.rounds)
    report(bench, f"scan of a log, {what}", found["scan"], absent)


def report(
    bench: Bench, what: str, found: Mapping[str, Sequence[float]], absent: Missing | None, target: Target | None = None
) -> None:
    """Adds a line that compares the compiled codec with the codec in Python.

    If the compiled codec is `absent`, the line has the figure of the codec in Python, and the compiled codec is missing
    in it.  The line then says why.
    """
    python = Series.of(found[PYTHON])
    if absent is None:
        bench.report(f"{what}, compiled", "µs a row", Series.of(found[COMPILED]), "in Python", python, target)
    else:
        bench.report(f"{what}, in Python", "µs a row", python, "compiled", absent)


def missing() -> Missing | None:
    """Returns the reason why the compiled codec cannot be measured, or None if it can."""
    if kernels.compiled is not None:
        return None
    if os.environ.get("ROCKETSIM_KERNELS") == "python":
        return Missing("compiled codec: ROCKETSIM_KERNELS=python forces the codec in Python; unset it to measure both")
    return Missing("compiled codec: it is not installed; `rocketsim doctor` says how to install it")


# --- the steps ------------------------------------------------------------------------------------------------------


def encoded(sizes: Sequence[int]) -> Callable[[], memoryview]:
    """Returns a function that encodes one message for each of these sizes of bodies.  Its result is what a producer
    writes to a socket.
    """
    bodies = [np.random.default_rng(number).bytes(size) for number, size in enumerate(sizes)]
    properties = [
        record.encode_properties({"TAGS": f"Tag{number % 4}", "KEYS": f"key-{number:08}", "UNIQ_KEY": f"{number:032X}"})
        for number in range(len(sizes))
    ]
    return lambda: encode("topic", 1, bodies, properties, born_timestamp=1, born_host=HOST)[0]


def steps(size: int, count: int) -> Iterator[Step]:
    """Yields each step's name and function, for a frame of `count` messages whose bodies have `size` bytes."""
    made = encoded([size] * count)
    data = bytes(made())
    received = memoryview(bytearray(data))  # writable as a frame from a socket is, so that a check does not copy it
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
    yield "check", lambda: check_frame("topic", received, count, crc32, LIMITS)
    yield "a put before its index", appended
    yield "all of a put", put
    yield "scan", lambda: Batch.of_log(memoryview(written), 0)
    yield "walk", walked
    yield "… and stamp", lambda: walked().stamp(numbers, offsets, 1, HOST)
    yield "… and queue entries", lambda: queue_extents(walked(), [])
    yield "… and index hashes", lambda: index_keys(walked())
    yield "… and heads", lambda: walked().queue_offset
    yield "… and bodies", lambda: walked().bodies()
    yield "… and one property", lambda: walked().property("KEYS")
    yield "… and property map", lambda: walked().properties()


def steps_named(names: Collection[str], size: int, count: int) -> list[Step]:
    return [(name, step) for name, step in steps(size, count) if name in names]


@contextmanager
def log_of(folder: Path, sizes: Sequence[int]) -> Iterator[CommitLog]:
    """Makes a log whose bodies have these sizes.  Its only file ends right behind the records, because a scan of a
    larger file would also read the room for more records.
    """
    data = bytearray(encoded(sizes)())
    records = Records.walk(data)
    records.stamp(np.arange(len(sizes)), records.starts, 1, HOST)
    files = Files()
    opened = OpenFiles(files)
    log = CommitLog(files, opened, folder, len(data) + record.BLANK_SIZE)
    log.load()
    try:
        log.write([(0, data)])
        yield log
    finally:
        log.close()
        opened.close()


def scanned(log: CommitLog) -> int:
    """Scans the whole log as a recovery does after a broker was killed, and returns how many records it has."""
    return sum(len(records) for _, records in LogScan(log, 0, check_from=0, strict_from=log.file_end))


# --- the measurement ------------------------------------------------------------------------------------------------


def seconds_of(step: Callable[[], Any], times: int) -> float:
    begun = time.thread_time()
    for _ in range(times):
        step()
    return time.thread_time() - begun


def times_of(step: Callable[[], Any]) -> int:
    """Returns how often a step must be repeated in a round, so that its CPU time can be measured."""
    times = 1
    while seconds_of(step, times) < _LONG_ENOUGH_S:
        times *= 2
    return times


def measure(make: Callable[[], Iterable[Step]], rows: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Returns {step: {codec: microseconds per row in each round}}, where each step handles `rows` rows.

    `make` makes the steps, once with each codec.
    """
    ways = {COMPILED: kernels.compiled, PYTHON: None}
    if ways[COMPILED] is None:
        del ways[COMPILED]
    before = kernels.compiled
    try:
        made = {}
        for way, kernels.compiled in ways.items():
            made[way] = {name: (step, times_of(step)) for name, step in make()}
        found: dict[str, dict[str, list[float]]] = {name: {way: [] for way in ways} for name in made[PYTHON]}
        for name, took in found.items():
            for _ in range(rounds):
                for way, kernels.compiled in ways.items():
                    step, times = made[way][name]
                    took[way].append(seconds_of(step, times) / times / rows * 1e6)
        return found
    finally:
        kernels.compiled = before


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the CPU time of each step of the record codec.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", default="100,1024")
    parser.add_argument("--counts", default="1,4,32,512,4096")
    words = parser.parse_args()
    print("| body | records | step | µs a row by way |\n|---|---|---|---|")
    for size in map(int, words.sizes.split(",")):
        for count in map(int, words.counts.split(",")):
            for name, found in measure(partial(steps, size, count), count, words.rounds).items():
                figures = ", ".join(f"{way} {min(took):.3f}" for way, took in found.items())
                print(f"| {size} B | {count} | {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
