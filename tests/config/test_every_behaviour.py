"""Each option of docs/spark.md and each key of docs/configuration.md has a test of its behaviour."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from broker_service.config.broker_config import BrokerConfig
from broker_service.config.namesrv_config import NamesrvConfig
from broker_service.config.properties import fields_by_key
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
    """Returns the names in the first column of the tables of options."""
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


def functions_in(source: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Returns the functions of a module, decorators included."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name: node for node in ast.parse(source).body if isinstance(node, kinds)}


@cache
def functions(path: Path) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    return functions_in(path.read_text())


def set_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Returns the names that a test sets: as arguments, as keys of dictionaries, and in strings that assign a value.

    Names in comments, docstrings, messages and expected values (a comparison, `match=`) do not count.
    """
    docstring = ast.get_docstring(function, clean=False)
    found: set[str] = set()
    nodes: list[ast.AST] = [function]
    while nodes:
        node = nodes.pop()
        match node:
            case ast.keyword(arg="match"):
                continue
            case ast.Assert(test=test):
                nodes.append(test)  # and not its message
                continue
            case ast.Compare(left=left, comparators=others):
                nodes.extend(
                    one for one in (left, *others) if not isinstance(one, ast.Constant | ast.Dict | ast.JoinedStr)
                )
                continue
            case ast.keyword(arg=str(name)):
                found.add(name)
            case ast.Dict(keys=keys):
                found.update(name for key in keys if (name := name_of(key)))
            case ast.Subscript(slice=key) if name := name_of(key):
                found.add(name)
            case ast.Constant(value=str(value)) if value != docstring:
                found.update(re.findall(r"([\w.]+) ?[=']", value))  # SQL: OPTIONS (name 'value')
        nodes.extend(ast.iter_child_nodes(node))
    return {name.lower() for name in found}


def name_of(key: ast.expr | None) -> str | None:
    """Returns a key as it is written, and of an f-string the part before its first value."""
    match key:
        case ast.Constant(value=str(name)) | ast.JoinedStr(values=[ast.Constant(value=str(name)), *_]):
            return name
    return None


NAMED = [
    *((name, where, FIELDS[name]) for name, where in OPTIONS.items()),
    *((name, where, fields_by_key(BrokerConfig)[name].name) for name, where in BROKER_KEYS.items()),
    *((name, where, fields_by_key(NamesrvConfig)[name].name) for name, where in NAMESRV_KEYS.items()),
]


@pytest.mark.parametrize(("name", "where", "field"), NAMED)
def test_the_test_of_a_behaviour_is_there_and_sets_it(name: str, where: str, field: str) -> None:
    file, _, rest = where.partition("::")
    test, _, prefix = rest.removesuffix(")").partition(" (")
    function = functions(TESTS / f"{file}.py").get(test)
    assert function is not None, f"there is no {test} in tests/{file}.py"
    names = {one.lower() for one in (name, name.replace(".", "__"), field)}
    given = set_in(function)
    assert names & given or (prefix and any(one.startswith(prefix.lower()) for one in given)), (
        f"{test} does not set {name}"
    )


def test_a_name_that_is_only_mentioned_is_not_set() -> None:
    (mentioned,) = functions_in("""
def test_pull_retries():
    '''pullRetries is tried'''
    # pullRetries
    assert options.pull_retries == 5, "see pullRetries"
    assert found == {"pullRetries": 5}
    with pytest.raises(OptionError, match="pullRetries"):
        read(startingOffsets="pullRetries")
    with pytest.raises(OptionError, match="pullRetries=5: at most"):
        read()
""").values()
    assert not {"pullretries", "pull_retries"} & set_in(mentioned)
    calls = (
        *("read(pullRetries=3)", "Options(pull_retries=3)", "read({'pullRetries': 3})", "sql('pullRetries=3')"),
        *("keys['pullRetries'] = 3", "read({f'pullRetries{more}': 3})"),
    )
    for call in calls:
        (function,) = functions_in(f"def test():\n    {call}").values()
        assert {"pullretries", "pull_retries"} & set_in(function), call
