"""The input and the result of a decoder: a frame, and the records that the decoder could not read."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from rocketsim_proto.records.columnar import RecordError, Records

from rocketsim_client.arrow import OfQueue
from rocketsim_source.reading.task_progress import Move

T = TypeVar("T")


class Undecodable(RuntimeError):
    """Raised if no batch can be made of a frame, although each of its records can be read."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A frame's records, without those that no broker has in readable form."""

    records: Records
    extents: list[OfQueue]
    broker_id: int
    moves: list[Move]  # one for each extent
    failures: int  # failures of the task before this frame


@dataclass(frozen=True, slots=True)
class Undecoded:
    """The records from which a decoder could not make rows.  The decoder has used the first `used` records of the
    frame, and cannot read `rows`."""

    used: int
    rows: list[int]  # empty if only the frame as a whole cannot be decoded
    why: RecordError


# Makes rows of a frame.  The generator's return value says what it could not read.
Decode = Callable[[Fetched], Generator[T, None, Undecoded | None]]
