import json

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
