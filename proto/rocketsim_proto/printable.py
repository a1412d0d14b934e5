"""Escapes characters in foreign text that could forge a log line or control a terminal.  Pure."""

import re

# Control characters (C0, DEL, C1), line separators, characters that change the direction of text, and surrogates.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, keep: str = "") -> str:
    """Returns `text` with unprintable characters escaped, as \\n, \\x1b or \\u202e, except for those in `keep`."""
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def printable_json(line: str) -> str:
    """Escapes unprintable characters in one line of JSON, which keeps its meaning."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
