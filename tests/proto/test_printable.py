"""Text from users forges no line of a log and controls no terminal."""

import json

import pytest
from rocketsim_proto.printable import printable, printable_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("Grüße, 東京, 👋", "Grüße, 東京, 👋"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[2J\x1b]0;t\x07", r"\x1b[2J\x1b]0;t\x07"),
        ("\x9b2J\x7f", r"\x9b2J\x7f"),
        ("a\u202eb\u2066c\u2028d", r"a\u202eb\u2066c\u2028d"),
        ("\ud800", r"\ud800"),
    ],
)
def test_control_characters_are_escaped_and_letters_of_all_languages_are_not(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_what_a_caller_keeps_stays() -> None:
    assert printable("a\nb\t\x1b", keep="\n\t") == "a\nb\t\\x1b"


def test_json_stays_json() -> None:
    value = {"name": "a\n\x1b\x9b\u202e\u2028", "text": "東京"}
    line = printable_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(line) == value
    assert printable(line) == line and "東京" in line
