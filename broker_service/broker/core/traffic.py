"""Traffic: messages and bytes that passed since the broker's start, in total and by topic or by topic and group."""

from collections.abc import Callable

Labels = tuple[str, ...]

OTHERS = "(others)"  # which is no name that a topic or a group can have
DEFAULT_MOST = 10_000


class Traffic:
    """`most` label sets (a topic, or a topic and a group) are counted by themselves.  What comes after these is counted
    under OTHERS, so that sums stay right and memory is bounded.

    The event loop writes.  `rows` may be called by any thread.
    """

    def __init__(self, most: int = DEFAULT_MOST) -> None:
        self.messages = 0
        self.bytes = 0
        self.is_cut = False  # something was counted under OTHERS
        self._most = most
        self._counts: dict[Labels, list[int]] = {}

    def add(self, labels: Labels, messages: int, size: int) -> None:
        """Counts a batch; `labels` are (topic,) or (topic, group)."""
        self.messages += messages
        self.bytes += size
        counts = self._counts.get(labels)
        if counts is None:
            if not messages:
                return
            counts = self._new(labels)
        counts[0] += messages
        counts[1] += size

    def _new(self, labels: Labels) -> list[int]:
        if len(self._counts) >= self._most + self.is_cut:
            self.is_cut = True
            labels = (OTHERS,) * len(labels)
        return self._counts.setdefault(labels, [0, 0])

    def rows(self) -> list[tuple[Labels, list[int]]]:
        """(labels, [messages, bytes]) of each label set, in the order in which they came."""
        return list(self._counts.items())  # one step of the interpreter, also while the event loop adds

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Drops the topics that are gone; their messages stay in the totals."""
        for labels in [labels for labels in self._counts if labels[0] != OTHERS and is_gone(labels[0])]:
            del self._counts[labels]
