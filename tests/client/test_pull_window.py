"""The window of pulls, with a broker that returns any number of messages in any order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketsim_client.errors import BadAnswer
from rocketsim_client.model import GetMessageStatus, QueueRange
from rocketsim_client.transport.remoting.pull_window import MOST, MOST_BYTES, Ask, PullReply, PullWindow

FOUND = GetMessageStatus.FOUND
LARGE = 4 << 20  # bytes of an answer with one message of RocketMQ's largest size


def found(offsets: list[int], following: int, size_bytes: int = 100) -> PullReply[list[int]]:
    return PullReply(FOUND, following, 0, 10_000, 0, offsets, size_bytes)


def run(data, window, ends, filtered, size_bytes=100, most_bytes=1 << 40) -> list[list[int]]:
    """Runs the window to its end, and returns the offsets that come out of each range.  In each turn the broker answers
    one pull in flight: it may shorten the answer, repeat it later, or lose it, so that the pull is sent again.  Each
    answer has `size_bytes`, and those that are in flight or wait for an earlier one never have more than `most_bytes`.
    """
    flight: list[Ask] = []
    held: set[tuple[int, int]] = set()  # range and first offset of each answer that has come and not been returned
    repeated: list[tuple[Ask, PullReply]] = []
    got: list[list[int]] = [[] for _ in ends]
    for _ in range(100_000):
        while (piece := window.next_piece()) is not None:
            got[piece.range_index] += [offset for offset in piece.reply.records if offset >= piece.begin]
            held.remove((piece.range_index, piece.begin))
        if window.is_done:
            return got
        new = window.asks()
        assert all(ask.offset + (0 if filtered else ask.messages) <= ends[ask.range_index] for ask in new)
        flight += new
        assert len(flight) <= MOST
        assert (len(flight) + len(held)) * size_bytes <= most_bytes
        if repeated and data.draw(st.booleans()):
            window.answered(*repeated.pop())
            continue
        assert flight, "nothing in flight, and not done"
        ask = flight.pop(data.draw(st.integers(0, len(flight) - 1)))
        match data.draw(st.sampled_from(["answer", "answer", "answer", "lost", "twice"])):
            case "lost":
                window.again(ask)
            case what:
                count = data.draw(st.integers(1, max(1, min(ask.messages, 40))))
                following = min(ask.offset + count, 10_000)
                offsets = list(range(ask.offset, following))
                if filtered:
                    offsets = [offset for offset in offsets if offset % 3 == 0]
                reply = found(offsets, following, size_bytes)
                window.answered(ask, reply)
                held.add((ask.range_index, ask.offset))
                if what == "twice":
                    repeated.append((ask, reply))
    raise AssertionError("no end")


ranges = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 200)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(ranges, st.sampled_from([None, 8, 32]), st.data())
def test_each_offset_comes_out_once_and_in_order(spans, step, data):
    asked = [QueueRange("t", number, begin, begin + length) for number, (begin, length) in enumerate(spans)]
    window = PullWindow[list](asked, filtered=False, step=step)
    got = run(data, window, [one.until_offset for one in asked], filtered=False)
    assert got == [list(range(one.from_offset, one.until_offset)) for one in asked]


@settings(max_examples=60, deadline=None)
@given(ranges, st.data())
def test_answers_of_4_mib_never_have_much_more_than_the_bound_whichever_order_they_come_in(spans, data):
    """The bound is exceeded at most by the answer for which the reader waits, and which is returned as it comes."""
    asked = [QueueRange("t", number, begin, begin + length) for number, (begin, length) in enumerate(spans)]
    window = PullWindow[list](asked, filtered=False)
    for _ in range(MOST):
        window.waited()
    ends = [one.until_offset for one in asked]
    got = run(data, window, ends, filtered=False, size_bytes=LARGE, most_bytes=MOST_BYTES + LARGE)
    assert got == [list(range(one.from_offset, one.until_offset)) for one in asked]


@settings(max_examples=40, deadline=None)
@given(ranges, st.data())
def test_of_a_filtered_queue_each_message_comes_out_once(spans, data):
    asked = [QueueRange("t", number, begin, begin + length) for number, (begin, length) in enumerate(spans)]
    window = PullWindow[list](asked, filtered=True)
    got = run(data, window, [one.until_offset for one in asked], filtered=True)
    for one, offsets in zip(asked, got, strict=True):
        wanted = [offset for offset in range(one.from_offset, one.until_offset) if offset % 3 == 0]
        assert [offset for offset in offsets if offset < one.until_offset] == wanted


def test_the_first_answer_says_how_much_a_pull_gives():
    window = PullWindow[list]([QueueRange("t", 0, 0, 10_000)], filtered=False)
    (first,) = window.asks()
    assert first.messages > 32 and window.asks() == []
    window.answered(first, found(list(range(8)), 8))  # a broker gives 8 messages when it reads from disk
    assert {ask.messages for ask in window.asks()} == {8}


def test_a_gap_is_asked_for_again_before_anything_else():
    window = PullWindow[list]([QueueRange("t", 0, 0, 10_000)], filtered=False, step=32)
    first, *_ = window.asks()
    window.answered(first, found(list(range(20)), 20))
    assert window.asks()[0] == Ask(0, 20, 12)


def test_the_window_grows_while_answers_are_waited_for_up_to_its_limit():
    window = PullWindow[list]([QueueRange("t", 0, 0, 10**6)], filtered=False, step=32)
    assert len(window.asks()) == 4
    for _ in range(100):
        window.waited()
    assert len(window.asks()) == MOST - 4


def test_answers_that_are_large_make_it_smaller():
    window = PullWindow[list]([QueueRange("t", 0, 0, 10**6)], filtered=False, step=32)
    for _ in range(100):
        window.waited()
    asks = window.asks()
    for ask in asks:
        window.answered(ask, found([], ask.offset + 32, MOST_BYTES // 2))
    while window.next_piece() is not None:
        pass
    assert len(window.asks()) == 2


def test_a_reader_that_waits_for_one_gap_holds_little():
    """The answers behind a gap that never comes do not fill the memory."""
    window = PullWindow[list]([QueueRange("t", 0, 0, 10**6)], filtered=False, step=32)
    for _ in range(100):
        window.waited()
    first, *others = window.asks()
    for _ in range(20):
        for ask in others:
            window.answered(ask, found([], ask.offset + 32))
        others = [ask for ask in window.asks() if ask != first]
    assert others == []


@pytest.mark.parametrize("backwards", [False, True])
def test_large_answers_behind_a_gap_let_only_the_pull_of_the_gap_be_sent(backwards: bool):
    window = PullWindow[list]([QueueRange("t", 0, 0, 10**6)], filtered=False, step=32)
    first, *others = window.asks()
    for _ in range(100):
        window.waited()
    for ask in reversed(others) if backwards else others:
        window.answered(ask, found([], ask.offset + 32, LARGE))
        assert window.asks() == []
    window.again(first)
    assert window.asks() == [first]
    window.answered(first, found([], 32, LARGE))
    ends = []
    while (piece := window.next_piece()) is not None:
        ends.append(piece.end)
    assert ends == [32, 64, 96, 128]
    assert len(window.asks()) == MOST_BYTES // LARGE


def test_large_answers_of_filtered_queues_leave_no_room_for_a_further_queue():
    asked = [QueueRange("t", 0, 0, 10)] + [QueueRange("t", number, 0, 10**6) for number in range(1, 100)]
    window = PullWindow[list](asked, filtered=True)
    first, *others = window.asks()
    for ask in [*others, first]:
        window.answered(ask, found([], 10, LARGE))
    while window.next_piece() is not None:
        pass
    assert window.asks() == [Ask(1, 10, first.messages)]


@pytest.mark.parametrize("size_bytes", [100, LARGE])
def test_the_pull_for_which_the_reader_waits_is_sent_however_much_is_held(size_bytes: int):
    """This pull fills no gap: the broker has skipped messages, and the range goes on at the offset behind them."""
    asked = [QueueRange("t", 0, 0, 64)] + [QueueRange("t", number, 0, 32) for number in range(1, 100)]
    window = PullWindow[list](asked, filtered=False, step=32)
    for _ in range(100):
        window.waited()
    first, *others = window.asks()
    while others:
        for ask in others:
            window.answered(ask, found([], ask.offset + 32, size_bytes))
        others = window.asks()
    window.answered(first, PullReply(GetMessageStatus.MESSAGE_WAS_REMOVING, 16, 0, 10_000, 0, [], 0))
    assert window.next_piece().end == 16
    assert window.asks() == [Ask(0, 16, 32)]


def test_a_range_that_its_broker_ends_is_over():
    window = PullWindow[list]([QueueRange("t", 0, 5, 100), QueueRange("t", 1, 0, 10)], filtered=False, step=32)
    asks = window.asks()
    window.answered(asks[0], PullReply(GetMessageStatus.OFFSET_TOO_SMALL, 50, 50, 100, 0, [], 0))
    piece = window.next_piece()
    assert (piece.begin, piece.end, piece.reply.min_offset) == (5, 5, 50)
    window.answered(asks[-1], found([], asks[-1].offset + asks[-1].messages))
    assert window.next_piece().range_index == 1


def test_an_answer_without_progress_is_refused():
    window = PullWindow[list]([QueueRange("t", 0, 5, 100)], filtered=False, step=32)
    with pytest.raises(BadAnswer, match="offset 5"):
        window.answered(window.asks()[0], found([], 5))
