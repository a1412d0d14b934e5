"""The rate of a stream is calculated from its progress."""

import pytest

from benchmarks.bench import WrongResult
from benchmarks.spark_stream import steady


def batch(second, took_ms, rows):
    return {
        "timestamp": f"2026-01-02T03:04:{second:06.3f}Z",
        "durationMs": {"triggerExecution": took_ms},
        "numInputRows": rows,
    }


def test_the_rate_is_that_of_the_batches_with_data():
    progress = [batch(1, 900, 0), batch(10, 1000, 300), batch(11, 500, 300), batch(12.5, 1500, 400), batch(20, 5000, 0)]
    sample = dict(steady(progress))
    # estimated: the first batch, and seven times one of the later two
    assert sample.pop("full_rate") == (300 + 7 * 350) / (1 + 7 * 1.5)
    assert sample == {"messages": 1000, "seconds": 4.0, "rate": 250.0, "batches": 3}


@pytest.mark.parametrize("rows", [(), (0,), (0, 1000, 0)])
def test_one_batch_has_no_steady_rate(rows):
    with pytest.raises(WrongResult, match="batches with data"):
        steady([batch(number, 1000, count) for number, count in enumerate(rows)])
