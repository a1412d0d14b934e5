"""Text of others for a log or a terminal: what could forge a line, or tell a terminal to do something, is escaped."""

import re

# Control characters (C0, DEL, C1), what separates lines, what changes the direction of text, and halves of characters.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, keep: str = "") -> str:
    """`text` with such characters as \\n, \\x1b or \\u202e, without those in `keep`."""
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def printable_json(line: str) -> str:
    """The same for JSON in one line, which stays JSON."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
