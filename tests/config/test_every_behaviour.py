"""Each option of docs/spark.md and each key of docs/operations.md has a test of its behaviour."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from broker_service.config import BrokerConfig, NamesrvConfig
from broker_service.properties import fields_by_key
from rocketsim_source.options.option_values import option_names
from rocketsim_source.options.sink_options import SinkOptions
from rocketsim_source.options.source_options import SourceOptions
from tests.config.behaviours import BROKER_KEYS, NAMESRV_KEYS, OPTIONS
from tests.support.configuration_table import DOCUMENT

TESTS = Path(__file__).parents[1]
SPARK = TESTS.parent / "docs" / "spark.md"
FIELDS = {
    item.metadata["option"].name: item.name
    for kind in (SourceOptions, SinkOptions)
    for item in kind.__dataclass_fields__.values()
    if "option" in item.metadata
}
ALIASES = {*option_names(SourceOptions), *option_names(SinkOptions)} - set(FIELDS)


def options_in_tables() -> set[str]:
    """The names in the first column of the tables of options."""
    found: set[str] = set()
    for table in re.findall(r"^\| option \|.*\n\|[-|]+\n((?:\|.*\n)+)", SPARK.read_text(), re.M):
        for row in table.splitlines():
            found.update(re.findall(r"`([\w.]+)[`=]", row.split("|")[1]))
    return found


def keys_in_table(name: str) -> set[str]:
    table = DOCUMENT.read_text().partition(f"<!-- {name} keys -->")[2].partition("<!-- end -->")[0]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.M))


def test_the_document_has_every_option_and_no_other() -> None:
    text = SPARK.read_text()
    missing = [name for name in (*FIELDS, *ALIASES) if not re.search(rf"`{re.escape(name)}\b", text)]
    assert missing == []
    assert options_in_tables() - {*FIELDS, *ALIASES} == set()
    assert len(options_in_tables()) > 60


def test_every_option_has_a_behaviour_and_no_other() -> None:
    assert set(OPTIONS) == set(FIELDS)


def test_every_key_has_a_behaviour_and_no_other() -> None:
    assert set(BROKER_KEYS) == keys_in_table("broker") == set(fields_by_key(BrokerConfig))
    assert set(NAMESRV_KEYS) == keys_in_table("namesrv") == set(fields_by_key(NamesrvConfig))


@cache
def functions(path: Path) -> dict[str, str]:
    """The source of each test of a file, decorators included."""
    lines = path.read_text().splitlines()
    return {
        node.name: "\n".join(lines[min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1 : node.end_lineno])
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


NAMED = [
    *((name, where, FIELDS[name]) for name, where in OPTIONS.items()),
    *((name, where, fields_by_key(BrokerConfig)[name].name) for name, where in BROKER_KEYS.items()),
    *((name, where, fields_by_key(NamesrvConfig)[name].name) for name, where in NAMESRV_KEYS.items()),
]


@pytest.mark.parametrize(("name", "where", "field"), NAMED)
def test_the_test_of_a_behaviour_is_there_and_speaks_of_it(name: str, where: str, field: str) -> None:
    file, _, rest = where.partition("::")
    test, _, other = rest.partition(" (")
    source = functions(TESTS / f"{file}.py").get(test)
    assert source is not None, f"there is no {test} in tests/{file}.py"
    names = {name, name.replace(".", "__"), field, other.removesuffix(")") or name}
    assert any(re.search(rf"\b{re.escape(one)}", source) for one in names), f"{test} does not say {' or '.join(names)}"
