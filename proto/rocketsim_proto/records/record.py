"""Encodes and decodes one commit-log record, byte for byte as Apache RocketMQ does, without I/O and generated code.

    0        4        8         12        16      20             28
    | size   | magic  | bodyCRC | queueId | flag  | queueOffset  | commitLogOffset |
    36        40              48             56              64           72
    | sysFlag | bornTimestamp | bornHost     | storeTimestamp | storeHost  | reconsumeTimes |
    76                          84         88
    | preparedTransactionOffset | bodySize | body … | topicSize 1 | topic … | propertiesSize 2 | properties … |

All integers are big-endian.  A host is a 4-byte IPv4 address and a 4-byte port.  If `sysFlag` says so, a host is a
16-byte IPv6 address and a port, which moves everything behind the host by 12 bytes.  Properties are NAME \\x01 VALUE
\\x02 pairs; RocketMQ before version 5 omits the last \\x02.  A record of version 2 (magic daa320ab) has a 2-byte
topicSize, for topics of more than 127 bytes.

If the rest of a log file is too small for the next record, one blank record fills it: | size 4 | blank magic 4 | … |
"""

import ipaddress
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from isal import isal_zlib

from rocketsim_proto.records import kernels

MESSAGE_MAGIC = 0xDAA320A7
MESSAGE_MAGIC_V2 = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194
BLANK = struct.Struct(">II")  # size, magic; the other bytes of a blank record have no meaning
BLANK_SIZE = BLANK.size

SYS_FLAG_COMPRESSED = 0x1
SYS_FLAG_MULTI_TAGS = 0x2
SYS_FLAG_TRANSACTION_MASK = 0xC  # 0 none, 4 prepared, 8 committed, 12 rolled back
SYS_FLAG_BORN_HOST_V6 = 0x10
SYS_FLAG_STORE_HOST_V6 = 0x20
SYS_FLAG_COMPRESSION_TYPE = 0x700  # 0x100 LZ4, 0x200 ZSTD, 0x300 ZLIB; 0 also means ZLIB, as older clients write it

HEAD = struct.Struct(">IIIiiqqiq")  # size … bornTimestamp: the 48 bytes before the hosts
HEAD_SIZE = HEAD.size
TAIL = struct.Struct(">iqi")  # reconsumeTimes, preparedTransactionOffset, bodySize
FIXED_SIZE_V4 = 88  # everything before the body, with IPv4 hosts
MIN_SIZE = FIXED_SIZE_V4 + 1 + 2

MAX_TOPIC_SIZE = 127
MAX_TOPIC_SIZE_V2 = 255
MAX_PROPERTIES_SIZE = 32767
NAME_END = "\x01"
PROPERTY_END = "\x02"

PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_UNIQ_KEY = "UNIQ_KEY"
PROPERTY_WAIT = "WAIT"
PROPERTY_DELAY = "DELAY"
PROPERTY_DELIVER_MS = "TIMER_DELIVER_MS"  # the delivery time that a client sets
PROPERTY_DELAY_S = (
    "TIMER_DELAY_SEC"  # RocketMQ's other properties for a delivery time, which brokers of this project refuse
)
PROPERTY_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
# Properties that clients and brokers set for one attempt to send a message.
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_RECONSUME_TIME = "RECONSUME_TIME"
PROPERTY_TRACE_CONTEXT = "TRACE_CONTEXT"
PROPERTY_BORN_HOST = "__BORNHOST"
PROPERTY_BORN_TIMESTAMP = "BORN_TIMESTAMP"


class RecordError(ValueError):
    """Raised if bytes are not a valid record.  `at` is the position in the buffer where the bad record starts."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(f"no valid record at byte {at}: {reason}")
        self.at = at
        self.reason = reason


@dataclass(slots=True)
class Record:
    """The fields of one record.  `body` is as stored, and still compressed if `sys_flag` says so."""

    topic: str
    body: bytes
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    commit_log_offset: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
    store_timestamp: int = 0
    store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def message_id(self) -> str:
        """The property UNIQ_KEY, which the client makes and keeps across retries.  A record without UNIQ_KEY has its
        offset message id instead.
        """
        return self.properties.get(PROPERTY_UNIQ_KEY) or offset_message_id(self.store_host, self.commit_log_offset)


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Returns the checksum of all bytes, as `zlib.crc32` does, several times as fast."""
    return isal_zlib.crc32(data) if kernels.compiled is None else kernels.compiled.crc32(data)


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """Returns the checksum of a body: CRC-32 without its top bit, as in RocketMQ."""
    return checksum(body) & 0x7FFFFFFF


def property_fault(name: str, value: str) -> str:
    """Returns why readers would not get this property as it was sent, or "" if they would.

    Only this function decides what a property can contain.  Code that accepts a message from a user refuses properties
    with a fault.  Code that reads records is tolerant (`decode_properties`).
    """
    if not name:
        return "its name is empty"
    if not value:
        return "its value is empty; RocketMQ's readers, and ours, leave such a property out"
    text = name + value
    if NAME_END in text or PROPERTY_END in text:
        return "it contains \\x01 or \\x02, which separate properties"
    if "\0" in text:
        return "it contains NUL, which a broker's recovery takes for bytes that were never written"
    return ""


def encode_properties(properties: Mapping[str, str] | Iterable[tuple[str, str]]) -> bytes:
    pairs = properties.items() if isinstance(properties, Mapping) else properties
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()


def decode_properties(data: bytes | bytearray | memoryview) -> dict[str, str]:
    """Decodes properties, as tolerantly as RocketMQ.

    A piece that lacks the separator, the name or the value is dropped.  If a name occurs twice, the last value counts.
    """
    properties = {}
    for piece in bytes(data).decode("utf-8", "replace").split(PROPERTY_END):
        name, separator, value = piece.partition(NAME_END)
        if name and separator and value:
            properties[name] = value
    return properties


def size_of(record: Record) -> int:
    """Returns the size in bytes of the encoded record."""
    return _size(record, len(record.topic.encode()), len(encode_properties(record.properties)))


def _size(record: Record, topic_size: int, properties_size: int) -> int:
    size = HEAD_SIZE + len(record.born_host) + 8 + len(record.store_host) + TAIL.size
    return size + len(record.body) + 1 + (topic_size > MAX_TOPIC_SIZE) + topic_size + 2 + properties_size


def encode(record: Record) -> bytes:
    topic = record.topic.encode()
    properties = encode_properties(record.properties)
    if len(topic) > MAX_TOPIC_SIZE_V2:
        raise RecordError(0, f"topic of {len(topic)} bytes; {MAX_TOPIC_SIZE_V2} at most")
    if len(properties) > MAX_PROPERTIES_SIZE:
        raise RecordError(0, f"properties of {len(properties)} bytes; {MAX_PROPERTIES_SIZE} at most")
    sys_flag = record.sys_flag & ~(SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6)
    sys_flag |= SYS_FLAG_BORN_HOST_V6 if len(record.born_host) == 20 else 0
    sys_flag |= SYS_FLAG_STORE_HOST_V6 if len(record.store_host) == 20 else 0
    is_long = len(topic) > MAX_TOPIC_SIZE
    size = _size(record, len(topic), len(properties))
    head = HEAD.pack(
        size,
        MESSAGE_MAGIC_V2 if is_long else MESSAGE_MAGIC,
        body_crc(record.body),
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.commit_log_offset,
        sys_flag,
        record.born_timestamp,
    )
    tail = TAIL.pack(record.reconsume_times, record.prepared_transaction_offset, len(record.body))
    return b"".join(
        (
            head,
            record.born_host,
            record.store_timestamp.to_bytes(8, "big"),
            record.store_host,
            tail,
            record.body,
            len(topic).to_bytes(1 + is_long, "big"),
            topic,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    )


class Parts(NamedTuple):
    """The positions of one record's parts in a buffer, and the fields before its hosts."""

    start: int
    size: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    commit_log_offset: int
    sys_flag: int
    born_timestamp: int
    born_end: int  # the position where the born host ends and the store timestamp starts
    store_end: int
    body_start: int
    body_end: int
    topic_start: int
    topic_end: int
    properties_start: int

    @property
    def end(self) -> int:
        return self.start + self.size


def locate(data: bytes | bytearray | memoryview, at: int = 0) -> Parts:
    """Locates the parts of the record at `at`.  Raises RecordError unless all lengths in the record are consistent."""
    if kernels.compiled is not None and (found := kernels.compiled.locate(data, at)) is not None:
        return Parts._make(found)
    left = len(data) - at
    if left < MIN_SIZE:
        raise RecordError(at, f"{left} bytes left, a record has at least {MIN_SIZE}")
    size, magic, crc, queue_id, flag, queue_offset, commit_log_offset, sys_flag, born = HEAD.unpack_from(data, at)
    if magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2):
        raise RecordError(at, f"magic {magic:08x}")
    if not MIN_SIZE <= size <= left:
        raise RecordError(at, f"size {size}, {left} bytes left")
    end = at + size
    born_end = at + HEAD_SIZE + (20 if sys_flag & SYS_FLAG_BORN_HOST_V6 else 8)
    store_end = born_end + 8 + (20 if sys_flag & SYS_FLAG_STORE_HOST_V6 else 8)
    body_start = store_end + TAIL.size
    topic_width = 2 if magic == MESSAGE_MAGIC_V2 else 1
    if body_start + topic_width + 2 > end:
        raise RecordError(at, f"size {size} is too small for its hosts")
    body_size = int.from_bytes(data[body_start - 4 : body_start], "big", signed=True)
    body_end = body_start + body_size
    if body_size < 0 or body_end + topic_width + 2 > end:
        raise RecordError(at, f"body of {body_size} bytes in a record of {size}")
    topic_start = body_end + topic_width
    topic_end = topic_start + int.from_bytes(data[body_end:topic_start], "big")
    if topic_end + 2 > end:
        raise RecordError(at, f"topic of {topic_end - topic_start} bytes in a record of {size}")
    properties_start = topic_end + 2
    properties_size = int.from_bytes(data[topic_end:properties_start], "big")
    if properties_start + properties_size != end:
        raise RecordError(at, f"properties of {properties_size} bytes do not end where the record of {size} does")
    return Parts(
        at,
        size,
        crc,
        queue_id,
        flag,
        queue_offset,
        commit_log_offset,
        sys_flag,
        born,
        born_end,
        store_end,
        body_start,
        body_end,
        topic_start,
        topic_end,
        properties_start,
    )


def decode(data: bytes | bytearray | memoryview, at: int = 0, *, check_crc: bool = True) -> Record:
    """Decodes the record at `at`.

    Raises RecordError unless all lengths are consistent, the body matches its checksum, and the topic is UTF-8.
    """
    view = memoryview(data)
    parts = locate(view, at)
    body = bytes(view[parts.body_start : parts.body_end])
    if check_crc and body_crc(body) != parts.body_crc:
        raise RecordError(at, f"body CRC {body_crc(body):08x}, {parts.body_crc:08x} expected")
    try:
        topic = bytes(view[parts.topic_start : parts.topic_end]).decode()
    except UnicodeDecodeError:
        raise RecordError(at, "a topic that is not UTF-8") from None
    reconsume_times, prepared, _ = TAIL.unpack_from(view, parts.store_end)
    return Record(
        topic=topic,
        body=body,
        queue_id=parts.queue_id,
        flag=parts.flag,
        queue_offset=parts.queue_offset,
        commit_log_offset=parts.commit_log_offset,
        sys_flag=parts.sys_flag,
        born_timestamp=parts.born_timestamp,
        born_host=bytes(view[at + HEAD_SIZE : parts.born_end]),
        store_timestamp=int.from_bytes(view[parts.born_end : parts.born_end + 8], "big", signed=True),
        store_host=bytes(view[parts.born_end + 8 : parts.store_end]),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        properties=decode_properties(view[parts.properties_start : parts.end]),
    )


@lru_cache(maxsize=1024)
def encode_host(address: str, port: int) -> bytes:
    """Returns the 8 or 20 bytes that a record has for a host; `address` must be an IP address, not a name."""
    return ipaddress.ip_address(address).packed + port.to_bytes(4, "big")


@lru_cache(maxsize=1024)  # a batch has few hosts, and often only one
def decode_host(host: bytes) -> tuple[str, int]:
    return str(ipaddress.ip_address(host[:-4])), int.from_bytes(host[-4:], "big")


def offset_message_id(store_host: bytes, commit_log_offset: int) -> str:
    """Makes RocketMQ's offset message id: store host and log offset in hex, 32 digits, or 56 with an IPv6 host."""
    return (store_host + commit_log_offset.to_bytes(8, "big")).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """Splits an offset message id into (address, port, commit_log_offset).  Raises ValueError if the text has another
    form.
    """
    data = bytes.fromhex(message_id)
    if len(data) not in (16, 28):
        raise ValueError(f"{message_id!r} is not an offset message id: 32 or 56 hex digits")
    address, port = decode_host(data[:-8])
    return address, port, int.from_bytes(data[-8:], "big")


def tags_code(tags: str) -> int:
    """Returns Java's String.hashCode of the tags, which is stored in consume queues, or 0 without tags."""
    if not tags:
        return 0
    code = 0
    units = tags.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (code * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return code - (1 << 32) if code & 0x80000000 else code
