"""TransactionChange is a change of the state of transactions, and is encoded in this file as one kind of transition.

| kind        | fields                                                                                        |
|-------------|-----------------------------------------------------------------------------------------------|
| 13 CHECKED  | next check 8, count 2, for each: queue offset of the half message 8, checks 2                 |
| 14 PREPARED | queue offset 8, log offset 8, next check 8, checks 2, topic text, client text, id long text; in |
|             | snapshots only                                                                                |
| 15 RESOLVED | resolution 1, queue offset 8 of a half message without an op record (all ones: none), topic   |
|             | text, id long text; in snapshots only                                                         |

A long text is | size 2 | UTF-8 |.
"""

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

CHECKED, PREPARED, RESOLVED = 13, 14, 15
MAX_TEXT = 255  # maximum size in bytes of a short text, such as a client id, whose size is stored in one byte
MAX_CHECKS = 0xFFFF

_CHECKED = Struct(">QH")
_ONE_CHECKED = Struct(">QH")
_PREPARED = Struct(">QQQH")
_RESOLVED = Struct(">BQ")
_TEXT, _LONG_TEXT = Struct(">B"), Struct(">H")
_NONE = 2**64 - 1


class TransactionId(NamedTuple):
    """Names a transaction.  `id` is the message id, which the client has made."""

    topic: str
    id: str


class Resolution(IntEnum):
    """How a transaction ended.

    UNKNOWN means that RocketMQ ended the transaction, or that a newer half message replaces its half message.
    """

    UNKNOWN = 0
    COMMIT = 1
    ROLLBACK = 2
    DISCARDED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Says that a half message is stored at these offsets.  `due_ms` is when the producer is asked next."""

    transaction: TransactionId
    queue_offset: int
    log_offset: int
    client_id: str = ""
    checks: int = 0
    due_ms: int = 0


@dataclass(frozen=True, slots=True)
class Checked:
    """Says that the producers of these half messages were asked how their transactions ended.

    Each entry of `checks` has the queue offset of a half message, and how often its producer was asked.
    """

    due_ms: int
    checks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """Says that an op record has settled these half messages."""

    queue_offsets: tuple[int, ...]
    resolution: Resolution


@dataclass(frozen=True, slots=True)
class Resolved:
    """Says that a transaction has ended.  For a half message without an op record, a snapshot has the half message's
    queue offset in `unlogged`.
    """

    transaction: TransactionId
    resolution: Resolution
    unlogged: int | None = None


TransactionChange = Prepared | Checked | Ended | Resolved


def encoded(change: Prepared | Checked | Resolved) -> bytes:
    match change:
        case Checked(due_ms, checks):
            pairs = b"".join(_ONE_CHECKED.pack(offset, min(times, MAX_CHECKS)) for offset, times in checks)
            return bytes((CHECKED,)) + _CHECKED.pack(due_ms, len(checks)) + pairs
        case Prepared():
            times = change.due_ms, min(change.checks, MAX_CHECKS)
            head = bytes((PREPARED,)) + _PREPARED.pack(change.queue_offset, change.log_offset, *times)
            topic, name = change.transaction
            return head + _text(topic) + _text(change.client_id) + _text(name, _LONG_TEXT)
        case Resolved(transaction, resolution, unlogged):
            head = bytes((RESOLVED,)) + _RESOLVED.pack(resolution, _NONE if unlogged is None else unlogged)
            return head + _text(transaction.topic) + _text(transaction.id, _LONG_TEXT)


def decode(kind: int, data: bytes, at: int) -> tuple[Prepared | Checked | Resolved, int]:
    """Returns the change whose fields begin at `at`, and the offset of their end.

    Damaged bytes raise struct.error, IndexError or ValueError.
    """
    if kind == CHECKED:
        due_ms, count = _CHECKED.unpack_from(data, at)
        at += _CHECKED.size
        pairs = [_ONE_CHECKED.unpack_from(data, at + number * _ONE_CHECKED.size) for number in range(count)]
        return Checked(due_ms, tuple(pairs)), at + count * _ONE_CHECKED.size
    if kind == PREPARED:
        queue_offset, log_offset, due_ms, checks = _PREPARED.unpack_from(data, at)
        topic, at = _text_at(data, at + _PREPARED.size, _TEXT)
        client_id, at = _text_at(data, at, _TEXT)
        name, at = _text_at(data, at, _LONG_TEXT)
        prepared = Prepared(
            transaction=TransactionId(topic, name),
            queue_offset=queue_offset,
            log_offset=log_offset,
            client_id=client_id,
            checks=checks,
            due_ms=due_ms,
        )
        return prepared, at
    resolution, unlogged = _RESOLVED.unpack_from(data, at)
    topic, at = _text_at(data, at + _RESOLVED.size, _TEXT)
    name, at = _text_at(data, at, _LONG_TEXT)
    ended = Resolved(TransactionId(topic, name), Resolution(resolution), None if unlogged == _NONE else unlogged)
    return ended, at


def _text(text: str, size: Struct = _TEXT) -> bytes:
    data = text.encode()
    return size.pack(len(data)) + data


def _text_at(data: bytes, at: int, size: Struct) -> tuple[str, int]:
    (length,) = size.unpack_from(data, at)
    begin, end = at + size.size, at + size.size + length
    if end > len(data):
        raise IndexError(f"a text of {length} bytes would end beyond the record")
    return data[begin:end].decode(), end
