"""Benchmarks fill the free memory with page cache before each run (benchmarks/page_cache.py)."""

from contextlib import ExitStack
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from benchmarks.bench import Bench
from benchmarks.cold_backlog import make_cold
from benchmarks.contest import FULL, Plan
from benchmarks.page_cache import PageCache

CHUNK = 1 << 20


def test_the_cache_is_full_when_reading_makes_no_memory_less_free(tmp_path):
    free = chain([9 * CHUNK, 8 * CHUNK, 7 * CHUNK, 6 * CHUNK], repeat(6 * CHUNK))
    cache = PageCache(tmp_path, lambda: next(free), CHUNK)

    assert cache.fill() == 4 * CHUNK
    assert cache.fill() == CHUNK, "a full cache costs one look"
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size == 5 * CHUNK, "no place is read a second time, because its pages may be in memory"
    assert file.stat().st_blocks * 512 < CHUNK, "the file takes no space on the disk"


@pytest.mark.parametrize("rounds", [1, 3])
def test_memory_is_filled_before_every_run_and_outside_of_its_time(tmp_path, rounds):
    happened = []

    def run():
        happened.append("run")
        return {"rate": 1.0}

    with ExitStack() as stack:
        bench = Bench(
            "test", Plan(FULL.name, rounds=rounds, warm_up=0), tmp_path, stack, lambda *_: None,
            fill_memory=lambda: happened.append("fill"),
        )  # fmt: skip
        bench.contest({"ours": run})

    assert happened == ["fill", "run"] * rounds


def test_memory_that_a_cold_log_has_freed_is_filled_before_the_broker_starts(tmp_path):
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "0").write_bytes(bytes(4096))
    happened = []
    one = SimpleNamespace(
        master=SimpleNamespace(
            store=tmp_path, stop=lambda: happened.append("stop"), start=lambda: happened.append("start")
        ),
        await_writable=lambda: happened.append("writable"),
    )

    make_cold(one, lambda: happened.append("fill"))

    assert happened == ["stop", "fill", "start", "writable"]
