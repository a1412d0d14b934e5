"""The CPU of idle queries is calculated from what all processes have used."""

import pytest

from benchmarks.cpu import Used
from benchmarks.idle_queries import next_batches, per_query

USED = Used(
    {"Spark's Python": 1.2, "Spark's JVM": 0.6, "name server": 0.2, "master": 0.5, "slave": 0.1, "harness": 9.0}, 20.0
)


def test_the_servers_part_is_what_they_use_more_than_without_queries():
    without = Used({"name server": 0.1, "master": 0.3, "slave": 0.2, "Spark's JVM": 5.0}, 60.0)
    assert per_query(USED, without, 20) == pytest.approx(
        {"readers": 0.3, "servers": 0.15, "together": 0.45, "jvm": 0.15}
    )


def test_servers_that_use_less_than_before_cost_nothing():
    without = Used({"master": 10.0}, 20.0)
    found = per_query(USED, without, 20)
    assert found["servers"] == 0
    assert found["together"] == found["readers"] == pytest.approx(0.3)


class Query:
    """A streaming query, which has these numbers of rows in its batches once all data are processed."""

    def __init__(self, *rows):
        self._rows = rows
        self.recentProgress = []

    def processAllAvailable(self):
        self.recentProgress = [{"numInputRows": count} for count in self._rows]


def test_a_message_is_in_the_next_batch_that_has_rows():
    query = Query(0, 1, 0, 0, 1, 0, 1)
    assert next_batches(query, 1)[0] is query.recentProgress[4]
    assert next_batches(Query(0, 1, 0), 1) == []
