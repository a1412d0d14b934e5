"""Decides which pulls a read of ranges sends before earlier pulls are answered, and returns their answers in order.
Pure: it knows no network and no clock.

A broker returns at most 32 messages for a pull by default, so one pull at a time would be slow.  Without a filter the
offsets of a queue are consecutive, so it is known before the first answer where the next pulls begin, and several pulls
are in flight at once.

The first pull asks for more than 32 messages, to find out how many the broker returns (the step).  The window begins
with four pulls.  The window grows while the reader has to wait for answers, and halves when the broker asks for fewer
pulls.  At most 32 pulls are in flight.

An answer is held until the answers before it have come.  No pull is sent ahead while 32 answers are held, or if its
answer would not fit into 8 MiB beside the answers that are held and in flight.  One pull is sent in any case: the pull
whose answer is the next to return, because the answers that are held wait for it.

Answers may come in another order, with fewer messages than asked for, twice, or not at all.  If an answer has fewer
messages than asked for, the next pull asks for the rest.  Each offset of [from, until) is returned once, in order, and
no pull begins at or after `until`.

With a filter the broker leaves messages out, and only an answer says where the next pull begins, so each range has one
pull in flight, and eight ranges are read at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from rocketsim_client.errors import BadAnswer
from rocketsim_client.model import GetMessageStatus, OffsetRange, QueueRange

T = TypeVar("T")

USUAL_STEP = 32  # messages that brokers return for a pull by default
FIRST_PULL = 1024  # the first pull asks for more, to find out how many the broker returns
FEWEST = 4  # pulls in flight at the start
MOST = 32  # the most pulls in flight; a pull is sent ahead only while fewer answers than this are held
# The bytes of all answers that are held or in flight.  The size of an answer in flight is not known yet, so the mean
# size of the answers that have come counts for it.  Before the first answer, one byte counts for it.
MOST_BYTES = 8 << 20
RANGES_AHEAD = 8  # filtered ranges that are read at once, each with one pull
STEADY = 32  # after this many full answers in a row, a pull asks for more messages again
ENDS = frozenset(GetMessageStatus) - {
    GetMessageStatus.FOUND,
    GetMessageStatus.NO_MATCHED_MESSAGE,
    GetMessageStatus.MESSAGE_WAS_REMOVING,
}


class Ask(NamedTuple):
    """A pull to send."""

    range_index: int
    offset: int
    messages: int


@dataclass(frozen=True, slots=True)
class PullReply(Generic[T]):
    """A broker's answer to a pull.  The window does not read `records`."""

    status: GetMessageStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested: int
    records: T
    size_bytes: int


class Piece(NamedTuple, Generic[T]):
    """The part [begin, end) of a range, with the answer that has its records.  Pieces are returned in order.

    If the broker filters, `end` may be after the end of the range.
    """

    range_index: int
    begin: int
    end: int
    reply: PullReply[T]


@dataclass(slots=True)
class _Range(Generic[T]):
    at: int  # the next offset to return
    ahead: int  # the next offset to ask for
    until: int
    ready: dict[int, tuple[Ask, PullReply[T]]] = field(
        default_factory=dict
    )  # offset of a pull -> the pull and its answer; only answers that were not returned yet


class PullWindow(Generic[T]):
    """Plans the pulls of several ranges.  `filtered` means that the broker leaves messages out.  `step` is the number
    of messages that the broker returns for a pull, or None if that is not known yet."""

    def __init__(
        self, ranges: Sequence[QueueRange | OffsetRange], *, filtered: bool, step: int | None = None, most: int = MOST
    ) -> None:
        self._ranges = [_Range[T](one.from_offset, one.from_offset, one.until_offset) for one in ranges]
        self._filtered = filtered
        self._cap = step or USUAL_STEP
        self._step = self._cap
        self._knows_step = step is not None or filtered
        self._most = most
        self._wide = min(FEWEST, most)
        self._flight: set[Ask] = set()
        self._gaps: set[Ask] = set()
        self._current = 0
        self._steady = 0
        self._bytes = 0
        self._answers = 0

    @property
    def is_done(self) -> bool:
        """True if all ranges have been returned."""
        self._skip_finished()
        return self._current >= len(self._ranges)

    @property
    def step(self) -> int | None:
        """The number of messages that the broker returns for a pull, or None if that is not known."""
        return self._cap if self._knows_step and not self._filtered else None

    def asks(self) -> list[Ask]:
        """Returns the pulls to send now, and notes them as in flight."""
        self._skip_finished()
        held = self._held()
        held_bytes = sum(held)
        mean_bytes = max(1, self._bytes // max(self._answers, 1))
        found: list[Ask] = []
        while len(self._flight) < self._room():
            ask = self._next_ask()
            if ask is None:
                break
            is_full = held_bytes + (len(self._flight) + 1) * mean_bytes > MOST_BYTES
            if (is_full or len(held) >= self._most) and not self._is_next(ask):
                break
            self._note_sent(ask)
            found.append(ask)
        return found

    def waited(self) -> None:
        """Lets the window grow, because the caller had to wait for an answer."""
        self._wide = min(self._wide + 1, self._most)

    def again(self, ask: Ask) -> None:
        """Puts back a pull that was not answered, or that the broker refused for the moment, so that it is sent
        again."""
        if ask in self._flight:
            self._flight.discard(ask)
            self._gaps.add(ask)

    def slower(self) -> None:
        """Halves the window, because the broker asked for fewer pulls."""
        self._wide = max(1, self._wide // 2)

    def answered(self, ask: Ask, reply: PullReply[T]) -> None:
        """Takes the answer to a pull.  Ignores the answer if the pull is not in flight any more."""
        if ask not in self._flight:
            return
        self._flight.discard(ask)
        one = self._ranges[ask.range_index]
        self._answers += 1
        self._bytes += reply.size_bytes
        if reply.status not in ENDS and reply.next_offset <= ask.offset:
            raise BadAnswer(f"a pull at offset {ask.offset} was answered with {reply.next_offset} as the next offset")
        one.ready[ask.offset] = ask, reply
        if self._filtered or reply.status is not GetMessageStatus.FOUND:
            return
        got = reply.next_offset - ask.offset
        if not self._knows_step:
            self._learn(got, ask.messages)
            one.ahead = max(one.ahead, reply.next_offset)
            return
        if got < ask.messages:
            self._gaps.add(Ask(ask.range_index, reply.next_offset, ask.messages - got))
            self._step, self._steady = min(self._step, got), 0
        elif ask.messages == self._step < self._cap:
            self._steady += 1
            if self._steady >= STEADY:
                self._step, self._steady = min(self._step * 2, self._cap), 0

    def next_piece(self) -> Piece[T] | None:
        """Returns the next piece in order, or None if its answer has not come yet."""
        self._skip_finished()
        if self._current >= len(self._ranges):
            return None
        index, one = self._current, self._ranges[self._current]
        found = one.ready.pop(one.at, None)
        if found is None:
            return None
        ask, reply = found
        begin = one.at
        if reply.status in ENDS:
            self._drop(index)
            one.at = one.ahead = one.until
            return Piece(index, begin, begin, reply)
        one.at = reply.next_offset
        if (
            self._filtered
            or reply.status is not GetMessageStatus.FOUND
            or reply.next_offset > ask.offset + ask.messages
        ):
            # The pulls that were sent ahead are dropped, because none of them begins at this answer's `next_offset`.
            if not self._filtered:
                self._drop(index)
            one.ahead = one.at
        return Piece(index, begin, reply.next_offset, reply)

    # --- which pulls --------------------------------------------------------------------------------------------------

    def _room(self) -> int:
        """Returns how many pulls may be in flight."""
        if not self._knows_step:
            return 1
        return RANGES_AHEAD if self._filtered else self._wide

    def _held(self) -> list[int]:
        """Returns the sizes in bytes of the answers that have come and wait for earlier ones."""
        return [reply.size_bytes for one in self._ranges[self._current :] for _, reply in one.ready.values()]

    def _is_next(self, ask: Ask) -> bool:
        """Returns True if the answer to this pull is the next that `next_piece` returns."""
        return ask.range_index == self._current and ask.offset == self._ranges[self._current].at

    def _next_ask(self) -> Ask | None:
        """Returns the first pull, by range and then by offset, that is neither in flight nor answered, or None if
        there is none.  So it returns the pull whose answer is the next to return, unless that pull is in flight."""
        ahead = self._next_filtered() if self._filtered else self._next_ahead()
        wanted = {ask for ask in self._gaps if self._is_wanted(ask)}
        if ahead is not None:
            wanted.add(ahead)
        return min(wanted, default=None)

    def _is_wanted(self, ask: Ask) -> bool:
        one = self._ranges[ask.range_index]
        return one.at <= ask.offset < one.until

    def _note_sent(self, ask: Ask) -> None:
        self._gaps.discard(ask)
        self._flight.add(ask)
        if self._knows_step and not self._filtered:
            one = self._ranges[ask.range_index]
            one.ahead = max(one.ahead, ask.offset + ask.messages)

    def _next_ahead(self) -> Ask | None:
        for index in range(self._current, len(self._ranges)):
            one = self._ranges[index]
            if one.ahead < one.until:
                count = min(self._step if self._knows_step else FIRST_PULL, one.until - one.ahead)
                return Ask(index, one.ahead, count)
        return None

    def _next_filtered(self) -> Ask | None:
        for index in range(self._current, min(self._current + RANGES_AHEAD, len(self._ranges))):
            one = self._ranges[index]
            in_flight = any(ask.range_index == index for ask in self._flight)
            if one.at < one.until and not in_flight and not one.ready:
                return Ask(index, one.at, FIRST_PULL)
        return None

    def _learn(self, got: int, asked: int) -> None:
        """Learns from the first answer how many messages the broker returns for a pull.  If the broker returned all
        messages that were asked for, its limit may be higher, and at least 32 is assumed."""
        self._cap = max(got, USUAL_STEP)
        self._step = self._cap if got == asked else got
        self._knows_step = True

    def _drop(self, index: int) -> None:
        """Forgets all pulls and answers of a range."""
        self._ranges[index].ready.clear()
        self._flight = {ask for ask in self._flight if ask.range_index != index}
        self._gaps = {ask for ask in self._gaps if ask.range_index != index}

    def _skip_finished(self) -> None:
        while self._current < len(self._ranges):
            one = self._ranges[self._current]
            if one.at < one.until:
                return
            self._drop(self._current)
            self._current += 1
