"""docs/configuration.md has every key, docs/commands.md every command."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from rocketsim_cli.main import app
from tests.support import configuration_table
from tests.support.configuration_table import with_tables

DOCUMENT = configuration_table.DOCUMENT.with_name("commands.md")
DOCUMENTS = [*sorted(DOCUMENT.parent.glob("*.md")), DOCUMENT.parents[1] / "README.md"]


def test_the_tables_of_keys_are_those_of_the_code():
    document = configuration_table.DOCUMENT.read_text()
    assert document == with_tables(document), "run: python -m tests.support.configuration_table"


def commands_of(command: Any) -> dict[str, Any]:
    return dict(command.commands)


def without_options(command: Any, words: list[str]) -> list[str]:
    takes_value = {name: not option.is_flag for option in command.params for name in option.opts}
    while words and words[0] in takes_value:
        words = words[1 + takes_value[words[0]] :]
    return words


def test_every_admin_command_is_named_and_no_other():
    text = DOCUMENT.read_text()
    table = text.partition("| to see | to change |")[2].partition("\n\n")[0]
    commands = commands_of(commands_of(typer.main.get_command(app))["admin"])
    assert set(re.findall(r"`(\w+)`", table)) == set(commands)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_every_command_line_starts_with_a_known_command(document: Path):
    command = typer.main.get_command(app)
    commands = commands_of(command)
    for words in re.findall(r"`rocketsim ([^`]*)`", document.read_text()):
        named = without_options(command, words.split())
        if not named:  # the words are an option that works without a command
            assert words in {name for option in command.params for name in option.opts}, words
            continue
        first, *rest = named
        assert first in commands, words
        below = getattr(commands[first], "commands", None)
        assert below is None or not rest or rest[0] in {*below, "COMMAND"}, words


def command_lines(text: str) -> list[list[str]]:
    """Returns the words of each line of code that calls `rocketsim`, without comments and without the rest
    of a pipe.
    """
    blocks = re.findall(r"^ *```(?:sh)?\n(.*?)^ *```$", text, re.M | re.S)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`(rocketsim [^`]*)`", text)
    parts = (part.strip() for line in lines for part in line.split(";"))
    return [shlex.split(part, comments=True) for part in parts if part.startswith("rocketsim ")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_every_option_of_a_command_line_exists(document: Path):
    for words in command_lines(document.read_text()):
        command = typer.main.get_command(app)
        known = {name for option in command.params for name in option.opts}
        for word in words[1:]:
            if word in getattr(command, "commands", {}):
                command = commands_of(command)[word]
                known |= {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
            elif re.fullmatch(r"--?[A-Za-z][A-Za-z-]*", word):
                assert word in {*known, "-h", "--help"}, words


def test_a_command_line_is_found_in_its_block_and_in_a_sentence():
    text = 'Run `rocketsim up --pairs 2` or\n\n```sh\nrocketsim store verify "$DIR"  # a comment\n```\n'
    assert command_lines(text) == [["rocketsim", "store", "verify", "$DIR"], ["rocketsim", "up", "--pairs", "2"]]
