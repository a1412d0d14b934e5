"""SlaveStreams has the streams of the connected slaves; it notifies them of appends and sends changes of metadata."""

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from rocketsim_proto.metadata_pb2 import Metadata


class SlaveStream(Protocol):
    def notify(self) -> None:
        """Checks for something to send, since the log may have grown."""

    def publish(self, change: Metadata) -> None:
        """Sends a change of metadata, after all earlier ones."""


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
        """Notifies all streams that the log has grown or an epoch has begun."""
        for stream in self._streams:
            stream.notify()

    def publish(self, change: Metadata) -> None:
        """Sends a change to all connected slaves; a slave that is too slow for changes gets a snapshot instead."""
        for stream in self._streams:
            stream.publish(change)

    def __iter__(self) -> Iterator[S]:
        return iter(list(self._streams))

    def __len__(self) -> int:
        return len(self._streams)
