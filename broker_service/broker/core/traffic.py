"""Traffic counts messages, bytes and calls since the broker's start, by topic or by topic and group, and in total."""

from collections.abc import Callable

Labels = tuple[str, ...]
Counts = list[int]  # messages, bytes, and calls that had messages

OTHERS = "(others)"  # no topic or group can have this name
DEFAULT_MOST = 10_000


class Traffic:
    """Counts the first `most` label sets separately.  A label set is a topic, or a topic and a group.

    All further label sets are counted together under OTHERS, so that the totals are right and the memory is limited.
    Only the event loop may change the counts, but any thread may call `rows`.
    """

    def __init__(self, most: int = DEFAULT_MOST) -> None:
        self.messages = 0
        self.bytes = 0
        self.is_cut = False  # True if anything was counted under OTHERS
        self._most = most
        self._counts: dict[Labels, Counts] = {}

    def add(self, labels: Labels, messages: int, size: int) -> None:
        """Counts a batch of messages.  `labels` are (topic,) or (topic, group)."""
        self.messages += messages
        self.bytes += size
        counts = self._counts.get(labels)
        if counts is None:
            if not messages:
                return
            counts = self._new(labels)
        counts[0] += messages
        counts[1] += size
        counts[2] += messages > 0

    def _new(self, labels: Labels) -> Counts:
        if len(self._counts) >= self._most + self.is_cut:
            self.is_cut = True
            labels = (OTHERS,) * len(labels)
        return self._counts.setdefault(labels, [0, 0, 0])

    def counts(self, labels: Labels) -> Counts | None:
        return self._counts.get(labels)

    def rows(self) -> list[tuple[Labels, Counts]]:
        """Returns the labels and counts of each label set, in the order of their first messages."""
        # The copy is one step of the interpreter, so the event loop cannot change the counts meanwhile.
        return list(self._counts.items())

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Drops the counts of deleted topics.  The messages of deleted topics stay in the totals."""
        for labels in [labels for labels in self._counts if labels[0] != OTHERS and is_gone(labels[0])]:
            del self._counts[labels]
