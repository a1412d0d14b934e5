"""The input and the result of a decoder: a frame, and the records that the decoder could not read."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from rocketsim_proto.records.columnar import RecordError, Records

from rocketsim_client.arrow import OfQueue
from rocketsim_source.reading.task_progress import Move

T = TypeVar("T")


class Undecodable(RuntimeError):
    """Raised if a frame cannot be decoded as a whole, although each of its records can be read."""


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
    """The records that a decoder could not read.  The decoder has returned the first `used` records of the frame, and
    cannot read the records `rows`.
    """

    used: int
    rows: list[int]  # empty if only the frame as a whole cannot be decoded
    why: RecordError


# Decodes a frame to rows.  The generator's return value says which records it could not read.
Decode = Callable[[Fetched], Generator[T, None, Undecoded | None]]
