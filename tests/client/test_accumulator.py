"""The producer decides when a batch may be sent."""

import pytest

from rocketsim_client.sending.accumulator import Accumulator, Kind, LaneKey

ASYNC = LaneKey("a", "T", Kind.ASYNC)
SYNC = LaneKey("a", "T", Kind.SYNC)
ORDERED = LaneKey("a", "T", Kind.ORDERED)


class ByKey(Accumulator[str]):
    def add(self, key, entry, size_bytes, now):
        return super().add(self.lane(*key), entry, size_bytes, now)

    def start_alone(self, key, entry, size_bytes):
        return super().start_alone(self.lane(*key), entry, size_bytes)


def accumulator(**changes) -> ByKey:
    return ByKey(**({"linger_s": 2.0, "batch_bytes": 100, "max_in_flight": 2} | changes))


def test_asynchronous_messages_wait_for_the_linger_of_the_first_of_them():
    acc = accumulator()
    assert acc.add(ASYNC, "x", 10, 100.0)
    assert not acc.add(ASYNC, "y", 10, 101.0)
    assert acc.take(101.9) is None
    assert acc.due_in(101.5) == 0.5
    assert acc.take(102.0).entries == ["x", "y"]


def test_a_full_batch_leaves_at_once_and_the_rest_begins_the_next():
    acc = accumulator()
    for name in "abc":
        acc.add(ASYNC, name, 40, 100.0)
    assert acc.take(100.0).entries == ["a", "b"]
    assert acc.take(100.0) is None
    assert acc.take(102.0).entries == ["c"]


def test_a_message_larger_than_a_batch_leaves_alone():
    acc = accumulator()
    acc.add(ASYNC, "small", 10, 0.0)
    acc.add(ASYNC, "large", 1000, 0.0)
    assert [acc.take(0.0).entries, acc.take(0.0).entries] == [["small"], ["large"]]


def test_no_more_batches_than_allowed_are_under_way():
    acc = accumulator()
    for name in "abc":
        acc.add(ASYNC, name, 100, 0.0)
    first = acc.take(0.0)
    assert acc.take(0.0) is not None
    assert acc.take(9.0) is None
    acc.done(first)
    assert acc.take(9.0).entries == ["c"]


def test_a_blocking_send_leaves_at_once_when_nothing_is_under_way():
    acc = accumulator()
    acc.add(SYNC, "x", 10, 0.0)
    assert acc.take(0.0).entries == ["x"]


def test_blocking_sends_gather_while_one_is_under_way_but_no_longer_than_the_linger():
    acc = accumulator()
    alone = acc.start_alone(SYNC, "first", 10)
    assert alone.entries == ["first"]
    acc.add(SYNC, "x", 10, 0.0)
    acc.add(SYNC, "y", 10, 0.0)
    assert acc.start_alone(SYNC, "z", 10) is None
    assert acc.take(0.0) is None
    assert acc.take(2.0).entries == ["x", "y"]


def test_what_gathered_leaves_as_soon_as_the_one_under_way_is_done():
    acc = accumulator()
    alone = acc.start_alone(SYNC, "first", 10)
    acc.add(SYNC, "x", 10, 0.0)
    acc.done(alone)
    assert acc.take(0.0).entries == ["x"]


def test_an_ordered_lane_has_one_batch_under_way_whatever_waits():
    acc = accumulator(max_in_flight=9)
    for name in "abc":
        acc.add(ORDERED, name, 100, 0.0)
    first = acc.take(0.0)
    assert first.entries == ["a"]
    assert acc.take(99.0) is None
    assert acc.due_in(99.0) is None
    acc.done(first)
    assert acc.take(0.0).entries == ["b"]


def test_what_is_not_full_waits_while_two_are_under_way_and_what_is_full_does_not():
    acc = accumulator(max_in_flight=9)
    under_way = []
    for name in "abc":
        acc.add(ASYNC, name, 1, 0.0)
        under_way.append(acc.take(2.0))
    assert [batch and batch.entries for batch in under_way] == [["a"], ["b"], None]
    assert acc.due_in(2.0) is None, "nobody need look before one of them is done"
    acc.add(ASYNC, "d", 99, 2.0)
    full = acc.take(2.0)
    assert full.entries == ["c", "d"]
    acc.add(ASYNC, "e", 1, 2.0)
    acc.done(under_way[0])
    assert acc.take(4.0) is None
    acc.done(full)
    assert acc.take(4.0).entries == ["e"]


def test_a_delayed_message_is_a_batch_of_its_own():
    acc = accumulator()
    key = LaneKey("a", "T", Kind.ALONE)
    for name in "ab":
        acc.add(key, name, 1, 0.0)
    assert [acc.take(0.0).entries, acc.take(0.0).entries] == [["a"], ["b"]]


def test_lanes_do_not_mix_and_do_not_hold_each_other_up():
    acc = accumulator(max_in_flight=1)
    acc.add(ASYNC, "a", 100, 0.0)
    acc.add(ASYNC, "a2", 100, 0.0)
    acc.add(ASYNC._replace(broker_name="b"), "b", 100, 0.0)
    acc.add(ASYNC._replace(wait_store_msg_ok=False), "w", 100, 0.0)
    assert [acc.take(0.0).entries[0] for _ in range(3)] == ["a", "b", "w"]
    assert acc.take(9.0) is None


def test_closing_lets_everything_leave():
    acc = accumulator()
    acc.add(ASYNC, "x", 1, 0.0)
    acc.closing = True
    batch = acc.take(0.0)
    assert batch.entries == ["x"]
    assert not acc.is_empty()
    acc.done(batch)
    assert acc.is_empty()


def test_bytes_count_until_the_batch_is_done():
    acc = accumulator()
    acc.add(ASYNC, "x", 60, 0.0)
    batch = acc.take(2.0)
    assert acc.size_bytes == 60
    acc.done(batch)
    assert acc.size_bytes == 0


@pytest.mark.parametrize("kind", list(Kind))
def test_idle_lanes_of_forgotten_topics_do_not_pile_up(kind):
    acc = accumulator()
    for number in range(1000):
        acc.add(LaneKey("a", f"T{number}", kind), "x", 1, 0.0)
        acc.done(acc.take(99.0))
    assert str(acc).startswith("0 waiting in 64 lanes")
