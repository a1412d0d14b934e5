"""SlaveStreams: the streams of the connected slaves, to be notified of appends and sent changes of metadata."""

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from rocketsim_proto.metadata_pb2 import Metadata


class SlaveStream(Protocol):
    def notify(self) -> None:
        """Check for something to send: the log may have grown."""

    def publish(self, change: Metadata) -> None:
        """Send the change after those before it."""


S = TypeVar("S", bound=SlaveStream)


class SlaveStreams(Generic[S]):
    """The master's service (`master.py`) adds and removes streams; the broker notifies them."""

    def __init__(self) -> None:
        self._streams: list[S] = []

    def add(self, stream: S) -> None:
        self._streams.append(stream)

    def remove(self, stream: S) -> None:
        self._streams.remove(stream)

    def notify(self) -> None:
        """The log has grown, or an epoch has begun."""
        for stream in self._streams:
            stream.notify()

    def publish(self, change: Metadata) -> None:
        """Every connected slave gets the change; one that is too slow for changes gets a snapshot instead."""
        for stream in self._streams:
            stream.publish(change)

    def __iter__(self) -> Iterator[S]:
        return iter(list(self._streams))

    def __len__(self) -> int:
        return len(self._streams)
