"""P15 measures how long a put takes while another client reads a backlog that must come from the disk."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import cluster, targets
from benchmarks.bench import Bench, Unavailable, WrongResult, must_be
from benchmarks.cluster import OurCluster
from benchmarks.contest import Sample
from benchmarks.driver import Driver, python_driver

BODY = 1024
A_RECORD = BODY + 130
RATE = 500  # puts a second: so few that only their latency is measured
COLD = 0.5  # at least this share of the bytes read must come from the disk


def run(bench: Bench) -> None:
    size = bench.plan.pick(8 << 30, 2 << 30, 32 << 20)
    count = size // A_RECORD
    one = bench.enter(cluster.running(bench, "master"))
    one.fill("backlog", count, BODY)
    one.topic("puts")
    reader = bench.enter(
        python_driver("the reader", "benchmarks.load", bench.folder / "reader.log", one.name_server.address)
    )
    seconds = bench.plan.pick(4, 1, 1)

    def puts() -> Sample:
        answer = one.load.ask("paced", topic="puts", size=BODY, rate=RATE, seconds=seconds, latencies=1)
        one.stored_at_least("puts", answer["messages"])
        return answer

    def ready() -> None:
        """Lets both clients connect again before each measurement, so that no put's time includes connecting."""
        make_cold(one, bench.fill_memory)
        puts()
        reader.ask("pull_columns", topic="backlog", limit=1000)

    def alone() -> Sample:
        ready()
        return puts()

    def beside() -> Sample:
        ready()
        before = read_from_disk(one.master.pid)
        with reading(reader, count) as goes_on:
            sample = puts()
            if not goes_on() and bench.plan.pick(True, True, False):
                raise WrongResult("the read of the backlog ended before the puts did, so some puts ran without it")
        share = (read_from_disk(one.master.pid) - before) / size
        if share < COLD and bench.plan.pick(True, True, False):
            raise Unavailable(f"only {share * 100:.0f} % of the backlog came from the disk: it was not cold")
        return sample

    results = bench.contest({"alone": alone, "beside a cold read": beside})
    for key, target in (("p50_ms", None), ("p99_ms", targets.COLD_BACKLOG)):
        bench.report(
            f"put, {RATE} a second, while another client reads {size / 2**30:.2g} GiB from the disk: {key[:3]}",
            "ms",
            results.series("beside a cold read", key),
            "without it",
            results.series("alone", key),
            target,
            by_amount=True,
        )


@contextmanager
def reading(reader: Driver, count: int) -> Iterator[Callable[[], bool]]:
    """Reads the whole backlog as fast as possible, beginning when the block begins.  Yields a function that returns
    True while the backlog is still being read.
    """
    answers: list[object] = []

    def read() -> None:
        try:
            answers.append(reader.ask("pull_columns", topic="backlog")["messages"])
        except Unavailable as error:
            answers.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield thread.is_alive
    finally:
        thread.join()
    must_be("messages read beside the puts", answers, [count])


def make_cold(one: OurCluster, fill_memory: Callable[[], object]) -> None:
    """Drops the log's pages from the page cache.  Restarts the broker for that, because pages that a running process
    has mapped stay in memory.

    `fill_memory` fills the memory that this frees.  Otherwise the read of the backlog would find up to 8 GiB of free
    memory in some runs and none in others, and free memory is slow on some hosts (benchmarks/page_cache.py).
    """
    one.master.stop()
    for path in (one.master.store / "commitlog").iterdir():
        forget(path)
    fill_memory()
    one.master.start()
    one.await_writable()


def forget(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(file)  # pages that are not written to the disk yet cannot be dropped
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def read_from_disk(pid: int) -> int:
    """Returns how many bytes the kernel has read from the disk for a process, which only Linux counts."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise ValueError(f"/proc/{pid}/io has no read_bytes")
