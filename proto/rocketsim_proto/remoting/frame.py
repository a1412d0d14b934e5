"""Frames of RocketMQ's remoting protocol.  Pure.

    total 4 | form 1 | header length 3 | header | body

Numbers are big-endian, and `total` is the number of bytes that follow `total`.  A header is JSON or RocketMQ's binary
form.  An answer may have another form than its request, since brokers of 5.x always answer in JSON.

An answer has the `opaque` of its request.  A server also sends requests over the same connection, and their `opaque`
may equal that of a request of the client.  Only `Header.is_answer` distinguishes answers from requests.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from rocketsim_proto.remoting.codes import VERSION

MAX_FRAME_BYTES = 16 << 20  # a server closes the connection when it gets a longer frame
MAX_HEADER_BYTES = 1 << 20  # a usual header is much shorter: the answer to a batch of 1,000 messages has 33 KB of ids
HEAD = struct.Struct(">II")
IS_ANSWER = 1
IS_ONE_WAY = 2

_LANGUAGES = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST"),
)
_OTHER = _LANGUAGES.index("OTHER")
_FIXED = struct.Struct(">hBhiii")  # code, language, version, opaque, flag, length of the remark
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_INT32 = range(-(2**31), 2**31)
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class FrameError(ValueError):
    """Raised if bytes are not a frame of the remoting protocol, or if a frame is longer than the protocol allows.

    `first` has the first eight bytes of the frame if no frame can begin with them.
    """

    def __init__(self, message: str, first: bytes = b"") -> None:
        super().__init__(message)
        self.first = first


class Form(IntEnum):
    """The form of a header."""

    JSON = 0
    BINARY = 1


class Lengths(NamedTuple):
    """The form and the lengths in the first eight bytes of a frame."""

    form: Form
    header_bytes: int
    body_bytes: int


@dataclass(slots=True)
class Header:
    """The header of a request or an answer.  `code` is a RequestCode or a ResponseCode.  The values of `fields` are
    always text.  `remark` is empty if there is no remark.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    language: str = "PYTHON"
    version: int = VERSION

    @property
    def is_answer(self) -> bool:
        return bool(self.flag & IS_ANSWER)

    @property
    def is_one_way(self) -> bool:
        """A one-way request gets no answer, not even an error."""
        return bool(self.flag & IS_ONE_WAY)


def text(value: object) -> str:
    """Converts a value to text for `Header.fields`, as RocketMQ does: booleans become `true` and `false`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def encode(header: Header, body: bytes | bytearray | memoryview = b"", form: Form = Form.JSON) -> bytes:
    """Encodes a whole frame.  Raises FrameError if the frame is too long."""
    return encode_without_body(header, len(body), form) + bytes(body)


def encode_without_body(header: Header, body_bytes: int, form: Form = Form.JSON) -> bytes:
    """Encodes a frame without its body, which the caller sends after it.  Raises FrameError if the frame with its body
    is too long.
    """
    return with_head(_as_json(header) if form is Form.JSON else _as_binary(header), body_bytes, form)


def with_head(header: bytes, body_bytes: int, form: Form = Form.JSON) -> bytes:
    """Returns the eight bytes that begin a frame, followed by its encoded header."""
    total = 4 + len(header) + body_bytes
    if len(header) > MAX_HEADER_BYTES or total > MAX_FRAME_BYTES:
        raise FrameError(
            f"a frame of {total} bytes with a header of {len(header)}: at most {MAX_FRAME_BYTES} and {MAX_HEADER_BYTES}"
        )
    return HEAD.pack(total, form << 24 | len(header)) + header


def lengths(head: bytes | bytearray | memoryview) -> Lengths:
    """Reads the first eight bytes of a frame.  Raises FrameError, which shows the eight bytes, if no frame can begin
    with them.
    """
    total, packed = HEAD.unpack(head)
    form, header_bytes = packed >> 24, packed & 0xFFFFFF
    if (
        total > MAX_FRAME_BYTES
        or form not in (Form.JSON, Form.BINARY)
        or not 0 < header_bytes <= min(total - 4, MAX_HEADER_BYTES)
    ):
        raise FrameError(f"{bytes(head)!r} does not begin a frame of the remoting protocol", bytes(head))
    return Lengths(Form(form), header_bytes, total - 4 - header_bytes)


def decode_header(form: Form, header: bytes | bytearray | memoryview) -> Header:
    """Decodes a header.  Raises FrameError if the bytes are not a header of this form."""
    return _of_json(bytes(header)) if form is Form.JSON else _of_binary(bytes(header))


def decode(frame: bytes | bytearray | memoryview) -> tuple[Header, bytes]:
    """Decodes one whole frame into header and body.  Raises FrameError if the bytes are not exactly one frame."""
    view = memoryview(frame)
    if len(view) < HEAD.size:
        raise FrameError(f"{len(view)} bytes are less than the beginning of a frame")
    form, header_bytes, body_bytes = lengths(view[: HEAD.size])
    if len(view) != HEAD.size + header_bytes + body_bytes:
        raise FrameError(f"a frame of {len(view)} bytes instead of {HEAD.size + header_bytes + body_bytes}")
    body_at = HEAD.size + header_bytes
    return decode_header(form, view[HEAD.size : body_at]), bytes(view[body_at:])


# --- JSON ---------------------------------------------------------------------------------------------------------


def _as_json(header: Header) -> bytes:
    values: dict[str, Any] = {
        "code": int(header.code),
        "language": header.language,
        "version": header.version,
        "opaque": header.opaque,
        "flag": header.flag,
    }
    if header.remark:
        values["remark"] = header.remark
    if header.fields:
        values["extFields"] = header.fields
    values["serializeTypeCurrentRPC"] = "JSON"
    return _JSON.encode(values).encode(errors="replace")


def _of_json(header: bytes) -> Header:
    try:
        values = json.loads(header)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise FrameError(f"a header that is not JSON: {header[:60]!r}") from error
    if not isinstance(values, dict):
        raise FrameError(f"a header that is not a JSON object: {header[:60]!r}")
    return Header(
        code=_number(values, "code", None),
        opaque=_number(values, "opaque", 0),
        flag=_number(values, "flag", 0),
        remark=_text(values, "remark", ""),
        fields=_fields(values.get("extFields")),
        language=_text(values, "language", "OTHER"),
        version=_number(values, "version", 0),
    )


def _number(values: Mapping[str, Any], name: str, default: int | None) -> int:
    value = values.get(name, default)
    if type(value) is not int or value not in _INT32:
        raise FrameError(f"a header whose {name} is {str(value)[:60]!r}")
    return value


def _text(values: Mapping[str, Any], name: str, default: str) -> str:
    value = values.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise FrameError(f"a header whose {name} is not text")
    return value


def _fields(values: object) -> dict[str, str]:
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise FrameError("a header whose extFields are not texts")
    kinds = set(map(type, values.values()))
    if kinds <= {str}:  # the usual case
        return values
    if kinds & {dict, list}:
        raise FrameError("a header whose extFields are not texts")
    return {name: text(value) for name, value in values.items() if value is not None}


# --- binary -------------------------------------------------------------------------------------------------------


def _as_binary(header: Header) -> bytes:
    if not -0x8000 <= header.code < 0x8000:
        raise FrameError(f"code {header.code} does not fit into a binary header")
    remark = header.remark.encode(errors="replace")
    parts = []
    for name, value in header.fields.items():
        key, encoded = name.encode(errors="replace"), value.encode(errors="replace")
        if len(key) > 0x7FFF:
            raise FrameError(f"a field's name of {len(key)} bytes does not fit into a binary header")
        if key and encoded:  # an empty value is left out, because the other side reads it as absent anyway
            parts += [_SHORT.pack(len(key)), key, _INT.pack(len(encoded)), encoded]
    fields = b"".join(parts)
    language = _LANGUAGES.index(header.language) if header.language in _LANGUAGES else _OTHER
    fixed = _FIXED.pack(header.code, language, header.version, header.opaque, header.flag, len(remark))
    return b"".join((fixed, remark, _INT.pack(len(fields)), fields))


def _of_binary(header: bytes) -> Header:
    try:
        code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(header)
        remark, at = _piece(header, _FIXED.size, remark_bytes)
        (fields_bytes,) = _INT.unpack_from(header, at)
        at += _INT.size
        if fields_bytes != len(header) - at:
            raise FrameError(
                f"a binary header that has {len(header) - at} bytes of fields, and announces {fields_bytes}"
            )
        fields: dict[str, str] = {}
        while at < len(header):
            (key_bytes,) = _SHORT.unpack_from(header, at)
            key, at = _piece(header, at + _SHORT.size, key_bytes)
            (value_bytes,) = _INT.unpack_from(header, at)
            value, at = _piece(header, at + _INT.size, value_bytes)
            if value:
                fields[key] = value
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"a binary header that is cut short or not UTF-8: {header[:60]!r}") from error
    name = _LANGUAGES[language] if language < len(_LANGUAGES) else "OTHER"
    return Header(code, opaque, flag, remark, fields, name, version)


def _piece(header: bytes, at: int, size: int) -> tuple[str, int]:
    if not 0 <= size <= len(header) - at:
        raise FrameError(f"a binary header of {len(header)} bytes with a text of {size} at {at}")
    return header[at : at + size].decode(), at + size
