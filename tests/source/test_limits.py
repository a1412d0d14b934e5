"""A batch reads as far as its limits allow, and no queue starves."""

from hypothesis import given
from hypothesis import strategies as st

from rocketsim_client.model import MessageQueue
from rocketsim_source.planning.limits import Limits, TriggerDelay, share

queues = st.integers(0, 30).map(lambda number: MessageQueue("T", "b", number))
backlogs = st.dictionaries(queues, st.integers(0, 10**6), max_size=20)


@given(backlogs, st.integers(1, 10**7), st.integers(0, 1000))
def test_shares_use_the_limit_up_and_never_exceed_it(found: dict[MessageQueue, int], limit: int, turn: int) -> None:
    shares = share(found, limit, turn)
    assert sum(shares.values()) == min(limit, sum(found.values()))
    assert all(0 < taken <= found[queue] for queue, taken in shares.items())


@given(backlogs, st.integers(1, 10**7))
def test_every_queue_gets_one_where_the_limit_allows(found: dict[MessageQueue, int], limit: int) -> None:
    waiting = {queue for queue, backlog in found.items() if backlog}
    if limit >= len(waiting):
        assert share(found, limit).keys() == waiting


@given(backlogs, st.integers(1, 5))
def test_no_queue_starves_while_the_others_are_refilled(found: dict[MessageQueue, int], limit: int) -> None:
    waiting = {queue for queue, backlog in found.items() if backlog}
    served: set[MessageQueue] = set()
    for turn in range(-(-len(waiting) // limit)):
        served |= share(found, limit, turn).keys()
    assert served == waiting


def test_shares_are_proportional() -> None:
    a, b = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)
    shares = share({a: 9000, b: 1000}, 1000)
    assert abs(shares[a] - 900) <= 1
    assert sum(shares.values()) == 1000


@given(backlogs, st.integers(1, 1000), st.integers(1, 10**7), st.integers(1, 10**9))
def test_all_limits_hold_together(found: dict[MessageQueue, int], per_queue: int, most: int, most_bytes: int) -> None:
    taken = Limits(most, per_queue, most_bytes).apply(found, dict.fromkeys(found, 100.0), 0)
    assert all(count <= per_queue for count in taken.values())
    assert sum(taken.values()) <= most
    assert sum(taken.values()) * 100 <= max(most_bytes, 100)
    assert bool(taken) == any(found.values())


def test_bytes_without_known_sizes_limit_nothing() -> None:
    queue = MessageQueue("T", "b", 0)
    assert Limits(max_bytes=1).apply({queue: 50}, {}, 0) == {queue: 50}


def test_a_small_batch_waits_for_its_delay_and_no_longer() -> None:
    delay = TriggerDelay(min_offsets=10, max_delay_ms=1000)
    assert delay.lets_through(1, now_ms=0)  # the first batch is not delayed
    assert not delay.lets_through(9, now_ms=1)
    assert not delay.lets_through(9, now_ms=999)
    assert delay.lets_through(9, now_ms=1000)
    assert delay.lets_through(10, now_ms=1001)
    assert not delay.lets_through(9, now_ms=1500)
    assert not delay.lets_through(0, now_ms=9999)


def test_without_a_minimum_nothing_waits() -> None:
    delay = TriggerDelay(None, 1000)
    assert all(delay.lets_through(1, now_ms=now) for now in range(5))
