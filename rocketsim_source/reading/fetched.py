"""A frame as it is handed to a decoder, and what the decoder says of it."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from rocketsim_proto.records.columnar import RecordError, Records

from rocketsim_client.arrow import OfQueue
from rocketsim_source.reading.task_progress import Move

T = TypeVar("T")


class Undecodable(RuntimeError):
    """No batch can be made of a frame, although each of its records can be read."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A frame's records, without those that no broker has in readable form."""

    records: Records
    extents: list[OfQueue]
    broker_id: int
    moves: list[Move]  # one for each extent
    failures: int  # of the task before this frame


@dataclass(frozen=True, slots=True)
class Undecoded:
    """What a decoder could not make rows of: it has used `used` of a frame's records, and cannot read `rows`."""

    used: int
    rows: list[int]  # none: the frame as a whole
    why: RecordError


# Makes rows of a frame; what it could not read is the value that it returns.
Decode = Callable[[Fetched], Generator[T, None, Undecoded | None]]
