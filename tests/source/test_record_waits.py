"""An idle query waits at all of its brokers, with one call at each, and the first answer ends the wait."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from rocketsim_client.errors import Unreachable
from rocketsim_client.model import MessageQueue
from rocketsim_source.record_waits import MOST_CALLS, RecordWaits
from testbed.polling import wait_until

A0, A1, B0 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1), MessageQueue("T", "b", 0)
LONG_S = 60.0


class Brokers:
    """Brokers where calls wait until the test lets a record arrive."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[int, int]]] = []
        self.waiting: dict[str, int] = defaultdict(int)
        self.arrived: dict[str, threading.Event] = defaultdict(threading.Event)
        self.away: set[str] = set()

    def wait_for_records(self, topic: str, broker_name: str, ends: Mapping[int, int], hold_s: float) -> bool:
        self.asked.append((topic, broker_name, dict(ends)))
        if broker_name in self.away:
            raise Unreachable("away", address=broker_name)
        self.waiting[broker_name] += 1
        try:
            return self.arrived[broker_name].wait(hold_s)
        finally:
            self.waiting[broker_name] -= 1


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    found = Brokers()
    yield found
    for name in "ab":
        found.arrived[name].set()  # so that no thread outlives its test


def test_a_query_of_one_broker_waits_with_one_call_for_all_its_queues(brokers: Brokers) -> None:
    brokers.arrived["a"].set()
    assert RecordWaits(brokers).wait({A0: 5, A1: 7}, LONG_S)
    assert brokers.asked == [("T", "a", {0: 5, 1: 7})]
    assert not RecordWaits(brokers).wait({B0: 5}, 0.01)


def test_the_first_broker_with_a_record_ends_the_wait_and_the_other_call_serves_the_next_one(brokers: Brokers) -> None:
    waits = RecordWaits(brokers)
    brokers.arrived["b"].set()
    assert waits.wait({A0: 5, B0: 5}, LONG_S)
    wait_until(lambda: brokers.waiting == {"a": 1, "b": 0}, "the call at b to end")
    brokers.arrived["b"].clear()
    brokers.arrived["a"].set()
    assert waits.wait({A0: 5, B0: 6}, LONG_S)
    wait_until(lambda: brokers.waiting == {"a": 0, "b": 1}, "the next call at b to wait")
    assert sorted(name for _, name, _ in brokers.asked) == ["a", "b", "b"]
    waits.close()


def test_a_broker_that_does_not_answer_ends_the_wait(brokers: Brokers) -> None:
    brokers.away.add("b")
    waits = RecordWaits(brokers)
    assert not waits.wait({B0: 5}, LONG_S)
    assert not waits.wait({A0: 5, B0: 5}, LONG_S)
    waits.close()


def test_a_query_of_very_many_brokers_does_not_wait(brokers: Brokers) -> None:
    ends = {MessageQueue("T", f"x{number}", 0): 0 for number in range(MOST_CALLS + 1)}
    assert not RecordWaits(brokers).wait(ends, LONG_S)
    assert not RecordWaits(brokers).wait({}, LONG_S)
    assert brokers.asked == []
