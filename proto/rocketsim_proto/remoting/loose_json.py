"""Reads the bodies of RocketMQ's answers, some of which are not JSON.  Pure.

RocketMQ writes maps with numbers as keys without quotes (`{0:"10.0.0.1:10911"}`), and maps whose keys are objects
(`{{"brokerName":"a","queueId":0,"topic":"t"}:{...}}`).  This module returns a number that is a key as text, as if it
had quotes, and an object that is a key as an `ObjectKey`.
"""

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # json itself reads texts with it
from typing import Any

MAX_DEPTH = 64  # RocketMQ's deepest body has seven levels

_BLANKS = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?")
_WORDS = {"true": True, "false": False, "null": None}


class LooseJsonError(ValueError):
    """Raised if the text is neither JSON nor RocketMQ's variant of it.  The message says at which character the text is
    wrong.
    """


class ObjectKey(tuple[tuple[str, Any], ...]):
    """A key that is an object, as the pairs of its names and values, sorted by name.  `dict(key)` makes a dict of the
    pairs.
    """


def loads(body: bytes | bytearray | memoryview | str) -> Any:
    """Decodes a body.  Raises LooseJsonError if the body is neither JSON nor RocketMQ's variant of it.  Strict JSON is
    decoded by the module `json`, which is faster.
    """
    try:
        source = body if isinstance(body, str) else bytes(body).decode()
    except UnicodeDecodeError as error:
        raise LooseJsonError(f"no UTF-8: {error}") from error
    try:
        return json.loads(source)
    except RecursionError as error:
        raise LooseJsonError(f"nested more than {MAX_DEPTH} deep") from error
    except ValueError:
        pass
    value, at = _value(source, _skip(source, 0), 0)
    if at != len(source):
        raise _unexpected(source, at)
    return value


def _skip(source: str, at: int) -> int:
    """Returns the position of the next character that is not a blank."""
    return _BLANKS.match(source, at).end()  # type: ignore[union-attr]  # it matches no blanks, too


def _value(source: str, at: int, depth: int) -> tuple[Any, int]:
    """Decodes the value that begins at `at`.  Returns the value, and the position of the next token."""
    if depth > MAX_DEPTH:
        raise LooseJsonError(f"nested more than {MAX_DEPTH} deep at character {at}")
    first = source[at : at + 1]
    if first == "{":
        return _object(source, at, depth)
    if first == "[":
        return _list(source, at, depth)
    if first == '"':
        return _string(source, at)
    number = _NUMBER.match(source, at)
    if number is not None:
        found = number[0]
        return int(found) if found.lstrip("-").isdigit() else float(found), _skip(source, number.end())
    for word, value in _WORDS.items():
        if source.startswith(word, at):
            return value, _skip(source, at + len(word))
    raise _unexpected(source, at)


def _string(source: str, at: int) -> tuple[str, int]:
    try:
        value, end = scanstring(source, at + 1, False)
    except ValueError as error:
        raise LooseJsonError(str(error)) from error
    return value, _skip(source, end)


def _list(source: str, at: int, depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []
    at = _skip(source, at + 1)
    while source[at : at + 1] != "]":
        value, at = _value(source, at, depth + 1)
        values.append(value)
        at = _separator(source, at, "]")
    return values, _skip(source, at + 1)


def _object(source: str, at: int, depth: int) -> tuple[dict[Any, Any], int]:
    values: dict[Any, Any] = {}
    at = _skip(source, at + 1)
    while source[at : at + 1] != "}":
        key, at = _key(source, at, depth + 1)
        if source[at : at + 1] != ":":
            raise _unexpected(source, at)
        values[key], at = _value(source, _skip(source, at + 1), depth + 1)
        at = _separator(source, at, "}")
    return values, _skip(source, at + 1)


def _key(source: str, at: int, depth: int) -> tuple[str | ObjectKey, int]:
    value, end = _value(source, at, depth)
    if isinstance(value, str):
        return value, end
    if type(value) is int:
        return str(value), end
    if isinstance(value, dict) and not any(isinstance(part, dict | list) for part in value.values()):
        if all(isinstance(name, str) for name in value):
            return ObjectKey(sorted(value.items())), end
    raise _unexpected(source, at)


def _separator(source: str, at: int, end: str) -> int:
    """Skips a comma, if there is one.  Returns the position of the next element, or of the list's or object's end."""
    if source[at : at + 1] == ",":
        at = _skip(source, at + 1)
        if source[at : at + 1] != end:
            return at
    elif source[at : at + 1] == end:
        return at
    raise _unexpected(source, at)


def _unexpected(source: str, at: int) -> LooseJsonError:
    return LooseJsonError(f"unexpected {source[at : at + 20]!r} at character {at}")
