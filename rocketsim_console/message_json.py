"""Turns a message into JSON for the pages: its fields, and its body as text, as formatted JSON and as hex."""

import json
from typing import Any

from rocketsim_proto.printable import printable

from rocketsim_client.errors import BadAnswer
from rocketsim_client.message_view import MessageView

PREVIEW = 160  # characters of a body in a list
SHOWN_BYTES = 64 << 10  # the most bytes of a body on its message's page, while the download has all bytes
HEX_BYTES = 4 << 10
HEX_COLUMNS = 16


def row_of(message: MessageView) -> dict[str, Any]:
    """Returns the message as a row of a list."""
    body, trouble = _body(message)
    return {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "msg_id": message.msg_id,
        "tags": message.tags,
        "keys": message.keys,
        "born_ms": message.born_timestamp,
        "stored_ms": message.store_timestamp,
        "bytes": len(body),
        "preview": trouble or printable(body[: 4 * PREVIEW].decode(errors="replace"))[:PREVIEW],
    }


def message_of(message: MessageView) -> dict[str, Any]:
    """Returns the message as its own page shows it."""
    body, trouble = _body(message)
    return {
        **row_of(message),
        "offset_msg_id": message.offset_msg_id,
        "log_offset": message.commit_log_offset,
        "born_host": "{}:{}".format(*message.born_host),
        "store_host": "{}:{}".format(*message.store_host),
        "flag": message.flag,
        "reconsume_times": message.reconsume_times,
        "properties": dict(sorted(message.properties.items())),
        "body": {
            "trouble": trouble,
            "bytes": len(body),
            "shown": min(len(body), SHOWN_BYTES),
            "text": text_of(body),
            "json": json_of(body),
            "hex": hex_of(body),
        },
    }


def _body(message: MessageView) -> tuple[bytes, str]:
    """Returns the body, or why it cannot be decompressed."""
    try:
        return message.body, ""
    except BadAnswer as error:
        return b"", str(error)


def text_of(body: bytes) -> str | None:
    """Returns the first part of the body as text.  Returns None if the body is not UTF-8.  Line breaks and tabs are
    kept, but no other control characters.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return printable(text[:SHOWN_BYTES], keep="\n\t")


def json_of(body: bytes) -> str | None:
    """Returns the body as formatted JSON.  Returns None if the body is not JSON, or too long."""
    if not body or len(body) > SHOWN_BYTES:
        return None
    try:
        return printable(json.dumps(json.loads(body), indent=2, ensure_ascii=False), keep="\n")
    except (ValueError, RecursionError):
        return None


def hex_of(body: bytes) -> str:
    """Returns a hex dump of the first part of the body: lines with an offset, bytes in hex, and ASCII characters."""
    lines = []
    for at in range(0, min(len(body), HEX_BYTES), HEX_COLUMNS):
        part = body[at : min(at + HEX_COLUMNS, HEX_BYTES)]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * HEX_COLUMNS - 1}}  {text}")
    return "\n".join(lines)
