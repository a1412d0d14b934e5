"""Timers keeps the messages that wait for their delivery time: their log offsets, by the second in which they are due.

RocketMQ's TIMER_OUT_MS is the last whole second before the delivery time.  A second is due when it is over, so no
message is delivered before its time, and each message at most a second after it.  A timer whose record cannot be read
has an unknown second.
"""

import heapq
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable
from itertools import chain, islice

from broker_service.state.transitions import UNKNOWN, Copied, Copying, Timer, Waiting

RECALL_WEIGHT = 10  # a recall takes as much memory as this many timers, because it names its message


class Timers:
    """Keeps the log offsets of timers by second, in log order.  A recall is itself a timer; its key is kept until all
    timers of its second are settled.
    """

    def __init__(self) -> None:
        self.count = 0
        self.copying: int | None = None  # log offset of a `Copying` that no `Copied` has ended
        self.unread: set[int] = set()  # log offsets of timers that could not be read, and whose second is unknown
        self._waiting: dict[int, array[int]] = {}
        self._done: dict[int, set[int]] = {}  # second -> settled timers behind the first one that still waits
        self._recalls: dict[int, dict[str, None]] = {}
        self._recall_count = 0
        self._seconds: list[int] = []  # a heap; seconds that are over are removed later

    # --- asking -----------------------------------------------------------------------------------------------------

    @property
    def weight(self) -> int:
        """Returns how much memory the timers take, counted in waiting messages."""
        return self.count + len(self.unread) + RECALL_WEIGHT * self._recall_count

    def next_second(self) -> int | None:
        while self._seconds and self._seconds[0] not in self._waiting:
            heapq.heappop(self._seconds)
        return self._seconds[0] if self._seconds else None

    def due(self, now_ms: int) -> list[int]:
        """Returns the seconds that are over, the oldest first."""
        found: list[int] = []
        while (second := self.next_second()) is not None and due_ms(second) <= now_ms:
            heapq.heappop(self._seconds)
            if second not in found[-1:]:
                found.append(second)
        for second in found:
            heapq.heappush(self._seconds, second)
        return found

    def first(self, second: int, count: int, without: Collection[int] = ()) -> list[int]:
        """Returns the log offsets of the first `count` timers that wait in this second, except those in `without`."""
        done = self._done.get(second, ())
        waiting = (one for one in self._waiting.get(second, ()) if one not in done and one not in without)
        return list(islice(waiting, count))

    def waits(self, second: int, log_offset: int) -> bool:
        offsets = self._waiting.get(second, ())
        at = bisect_left(offsets, log_offset)
        return at < len(offsets) and offsets[at] == log_offset and log_offset not in self._done.get(second, ())

    def is_recalled(self, second: int, key: str) -> bool:
        return key in self._recalls.get(second, ())

    def oldest(self, without: Collection[int] = ()) -> int | None:
        """Returns the lowest log offset of a waiting timer, except those in `without`."""
        unread = self.unread.difference(without)
        if not without:
            return min(chain(unread, (offsets[0] for offsets in self._waiting.values())), default=None)
        firsts = (self.first(second, 1, without) for second in self._waiting)
        return min(chain(unread, (first[0] for first in firsts if first)), default=None)

    def before(self, log_offset: int) -> list[tuple[int, list[int]]]:
        """Returns the timers before a log offset, by second.  Timers whose due second is not known are left out."""
        return [
            (second, [one for one in offsets[: bisect_left(offsets, log_offset)] if self.waits(second, one)])
            for second, offsets in self._waiting.items()
            if offsets[0] < log_offset
        ]

    def since(self, log_offset: int) -> list[tuple[int, list[int]]]:
        """Returns the timers from a log offset on, by second.  Timers whose due second is not known are left out."""
        return [
            (second, [one for one in offsets[bisect_left(offsets, log_offset) :] if self.waits(second, one)])
            for second, offsets in self._waiting.items()
            if offsets[-1] >= log_offset
        ]

    def rebuilding(self) -> list[Waiting | Copied | Copying]:
        """Returns transitions that rebuild these timers from nothing."""
        seconds = self._waiting
        if self.unread:
            seconds = {**self._waiting, UNKNOWN: array("q", sorted(self.unread))}
        offsets = seconds.values()
        waiting = Waiting(
            array("q", seconds).tobytes(),
            array("q", map(len, offsets)).tobytes(),
            b"".join(offsets),
            tuple((second, key) for second, keys in self._recalls.items() for key in keys),
        )
        done = [Copied(second, tuple(log_offsets)) for second, log_offsets in self._done.items()]
        return [waiting, *done, *([] if self.copying is None else [Copying(self.copying)])]

    # --- changing ---------------------------------------------------------------------------------------------------

    def apply(self, transition: Timer | Copying | Copied | Waiting) -> None:
        """Applies a transition.  A transition that does not fit, such as a second settlement, has no effect."""
        match transition:
            case Timer(second, log_offset, recalls):
                self._wait(second, array("q", (log_offset,)))
                if recalls:
                    self._recall(second, recalls)
            case Waiting(seconds, counts, log_offsets, keys):
                at, all_offsets = 0, array("q", log_offsets)
                for second, count in zip(array("q", seconds), array("q", counts), strict=True):
                    self._wait(second, all_offsets[at : at + count])
                    at += count
                for second, key in keys:
                    self._recall(second, key)
            case Copying(log_offset):
                if self.copying is None:
                    self.copying = log_offset
            case Copied(second, log_offsets):
                self.copying = None
                self._settle(second, log_offsets)
                self.unread.difference_update(log_offsets)

    def find(self, found: Timer) -> None:
        """Adds a timer that could not be read before, now that its second is known."""
        second, log_offset, recalls = found.second, found.log_offset, found.recalls
        self.unread.remove(log_offset)
        if (known := self._waiting.get(second)) is None:
            self._wait(second, array("q", (log_offset,)))
        else:
            insort(known, log_offset)
            self.count += 1
        if recalls:
            self._recall(second, recalls)

    def _wait(self, second: int, log_offsets: "array[int]") -> None:
        """Adds timers, which have higher log offsets than all others of their second.  Known timers are skipped."""
        if second == UNKNOWN:
            self.unread.update(log_offsets)
            return
        known = self._waiting.get(second)
        if known is None:
            self._waiting[second] = log_offsets
            heapq.heappush(self._seconds, second)
        else:
            log_offsets = log_offsets[bisect_right(log_offsets, known[-1]) :]
            known.extend(log_offsets)
        self.count += len(log_offsets)

    def _recall(self, second: int, key: str) -> None:
        keys = self._recalls.setdefault(second, {})
        self._recall_count += key not in keys
        keys[key] = None

    def _settle(self, second: int, log_offsets: Iterable[int]) -> None:
        settled = {one for one in log_offsets if self.waits(second, one)}
        if not settled:
            return
        self.count -= len(settled)
        offsets = self._waiting[second]
        done = self._done.pop(second, set())
        done |= settled
        gone = 0
        while gone < len(offsets) and offsets[gone] in done:
            done.discard(offsets[gone])
            gone += 1
        del offsets[:gone]
        if not offsets:
            del self._waiting[second]
            self._recall_count -= len(self._recalls.pop(second, ()))
        elif done:
            self._done[second] = done


def due_ms(second: int) -> int:
    return (second + 1) * 1000
