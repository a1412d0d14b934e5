import json

import pytest

from rocketsim_cli import tables
from rocketsim_cli.tables import show_rows, show_values

ROWS = [{"topic": "a" * 100, "offset": 7, "last": None}]


def test_a_piped_table_keeps_long_words_on_one_line(capsys):
    show_rows(("topic", "offset", "last"), ROWS, as_json=False)
    line = next(line for line in capsys.readouterr().out.splitlines() if "aaa" in line)
    assert line.split() == ["a" * 100, "7", "-"]


def test_json_is_a_line_a_row_with_the_same_names_and_types(capsys):
    show_rows(("topic", "offset", "last"), [*ROWS, *ROWS], as_json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [*ROWS, *ROWS]


def test_a_table_without_rows_still_shows_its_columns(capsys):
    show_rows(("topic", "offset"), [], as_json=False)
    assert capsys.readouterr().out.split()[:2] == ["topic", "offset"]


def test_values_come_sorted(capsys):
    show_values({"b": "2", "a": "1"}, as_json=False)
    assert capsys.readouterr().out.splitlines() == ["a: 1", "b: 2"]


def test_attributes_are_shown_as_an_operator_writes_them(capsys):
    rows = [{"topic": "a", "attributes": {"message.type": "FIFO"}}, {"topic": "b", "attributes": {}}]
    show_rows(("topic", "attributes"), rows, as_json=False)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert shown == [["a", "message.type=FIFO"], ["b", "-"]]


EVIL = "x\nbroker-z  forged\x1b[2J\x9b2J\u202e[red]"
SHOWN = r"x\nbroker-z  forged\x1b[2J\x9b2J\u202e[red]"


def test_names_of_others_forge_no_row_and_command_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"name": EVIL, "parts": [EVIL, "y"], "map": {EVIL: EVIL}}
    tables.show_rows(list(row), [row], as_json=False)
    said = capsys.readouterr().out
    assert SHOWN in said and "\x1b" not in said and "\x9b" not in said
    assert not [line for line in said.splitlines() if line.startswith("broker-z")]
    tables.show_values({EVIL: EVIL}, as_json=False)
    tables.note(EVIL)
    found = capsys.readouterr()
    assert found.out == f"{SHOWN}: {SHOWN}\n" and found.err == f"rocketsim: {SHOWN}\n"
    for show in (lambda: tables.show_rows(list(row), [row], as_json=True), lambda: tables.show_json(row)):
        show()
        line = capsys.readouterr().out
        assert line.count("\n") == 1 and "\x1b" not in line and "\x9b" not in line
        assert json.loads(line) == row
