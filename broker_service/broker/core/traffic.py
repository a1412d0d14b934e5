"""Traffic: messages and bytes received or sent since the start, for brokerStatus and the metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    messages: int = 0
    bytes: int = 0

    def add(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
