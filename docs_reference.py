"""Makes the reference pages of the documentation site from the code, when the site is built.

`TABLES` has a function for each marker `<!-- made from the code: NAME -->` in docs/.  The function's result
replaces everything from the marker to the next `<!-- end -->`.
"""

import asyncio
import dataclasses
import logging
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
MARKED = re.compile(r"^<!-- made from the code: (\w+) -->$.*?^<!-- end -->$", re.M | re.S)


def completed(text: str) -> str:
    """Returns the text of a page, in which the results of functions stand between the markers.  Raises KeyError if
    there is no table of this name.
    """
    return MARKED.sub(lambda found: TABLES[found[1]](), text)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


# --- options of Spark -------------------------------------------------------------------------------------------------


def spark_options() -> str:
    from rocketsim_source.options.sink_options import SinkOptions
    from rocketsim_source.options.source_options import SourceOptions

    explained = _sections_of_options()
    parts = []
    for title, kind in (("The source", SourceOptions), ("The sink", SinkOptions)):
        rows = []
        for item in dataclasses.fields(kind):
            entry = item.metadata.get("option")
            if entry is None or entry.only is not None:  # not supported yet
                continue
            names = ", ".join(f"`{name}`" for name in (entry.name, *entry.aliases))
            page, heading = explained[entry.name]
            link = f"[{heading}]({page}#{anchor(heading)})"
            rows.append((names, accepted(entry.parse), _default(item.default, entry.parse), link))
        parts.append(f"## {title}\n\n" + table(("option", "accepted values", "default", "explained in"), rows))
    return "\n".join(parts)


def accepted(parse: Callable[[str], Any]) -> str:
    """Returns a description of the values that an option accepts, in the words of its own error."""
    said = "text"
    for text in ("?", "-99999999999999999999"):
        try:
            parse(text)
        except ValueError as error:
            if found := re.fullmatch(r"must be (.*)|.*; (.*) go there|.*(host:port)", str(error)):
                said = next(part for part in found.groups() if part)
    if said == "between 1 and 9223372036854775807":
        return "a whole number from 1"
    return re.sub(r"^between (\d+) and (\d+)$", r"a whole number from \1 to \2", said).replace(
        " to 9223372036854775807", ""
    )


def _default(value: Any, parse: Callable[[str], Any]) -> str:
    if value is None or value == () or value == "":
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, frozenset):
        return f"`{'+'.join(sorted(value))}`"
    if isinstance(value, tuple):
        return f"`{','.join(value)}`"
    for word in re.findall(r"\w+", accepted(parse)):  # a word that the option accepts for a number
        if not word.isdigit() and _parsed(parse, word) == value:
            return f"`{word}`"
    return f"`{value}`"


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        return None


def _sections_of_options() -> dict[str, tuple[str, str]]:
    """Returns, by option, the page and the heading of the table that explains it."""
    found: dict[str, tuple[str, str]] = {}
    for page in ("spark.md", "rocketmq.md"):
        heading = ""
        for line in (ROOT / "docs" / page).read_text().splitlines():
            if line.startswith("#"):
                heading = line.lstrip("# ")
            elif line.startswith("| "):
                for name in re.findall(r"`([\w.]+)[`=]", line.split("|")[1]):
                    found.setdefault(name, (page, heading))
    # These options are not in a table, but in the text of a page.
    found.setdefault("strictOptions", ("spark.md", "RocketSim and Spark"))
    found.setdefault("includeHeaders", ("spark.md", "Columns"))
    found.setdefault("slaveBehindWaitMs", ("spark.md", "Losses"))
    return found


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


# --- commands ---------------------------------------------------------------------------------------------------------


def commands() -> str:
    import typer

    from rocketsim_cli.main import app

    return "\n".join(_command(["rocketsim"], typer.main.get_command(app)))


def _command(words: list[str], command: Any) -> Iterator[str]:
    below = getattr(command, "commands", {})
    yield f"## {' '.join(words)}\n"
    yield f"{_one_line(command.help)}\n"
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = [
        *words,
        *(["[OPTIONS]"] if options else []),
        *map(_placeholder, arguments),
        *(["COMMAND"] if below else []),
    ]
    yield f"```\n{' '.join(usage)}\n```\n"
    if any(one.help for one in arguments):
        yield table(("argument", "meaning"), ((f"`{_placeholder(one)}`", _one_line(one.help)) for one in arguments))
    if options:
        yield table(("option", "default", "meaning"), map(_option, options))
    for name in sorted(below):
        yield from _command([*words, name], below[name])


def _placeholder(argument: Any) -> str:
    name = argument.name.upper() + ("..." if argument.nargs != 1 else "")
    return name if argument.required else f"[{name}]"


def _option(option: Any) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in option.opts)
    if option.secondary_opts:
        names += " / " + ", ".join(f"`{name}`" for name in option.secondary_opts)
    default = "required" if option.required else _default_of(option.default)
    variable = option.envvar if isinstance(option.envvar, str) else ", ".join(option.envvar or ())
    meaning = _one_line(option.help) + (f" In the environment: `{variable}`." if variable else "")
    return names, default, meaning


def _default_of(value: Any) -> str:
    if value is None or value is False or value == "":  # not given
        return ""
    return "`true`" if value is True else f"`{getattr(value, 'value', value)}`"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


# --- metrics ----------------------------------------------------------------------------------------------------------


def metrics() -> str:
    """Returns a table of the metrics of a broker that is started for this, with all parts that a broker can have."""
    rows = asyncio.run(_families())
    kinds = {"counter": "_total", "gauge": "", "histogram": ""}
    return table(
        ("metric", "kind", "what it is"),
        sorted((f"`{name}{kinds[kind]}`", kind, help_text) for name, kind, help_text in rows),
    )


async def _families() -> list[tuple[str, str, str]]:
    from broker_service.config.broker_config import BrokerConfig
    from broker_service.node.app import broker

    # The broker would warn that it is stopped so soon.
    logging.getLogger("broker_service").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as folder:
        config = BrokerConfig(
            broker_name="broker-a",
            listen_port=0,
            grpc_server_port=-1,
            remoting_port=0,
            store_path_root_dir=Path(folder),
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=20_000,
            max_hash_slot_num=100,
            max_index_num=400,
        )
        async with broker(config) as node:
            node.status.sample()
            node.metrics.take_snapshot()
            return [(one.name, one.type, one.documentation) for one in node.metrics.collect()]


# --- configuration and Python -----------------------------------------------------------------------------------------


def python_api() -> str:
    """Returns instructions for mkdocstrings, which replaces them with the text of the docstrings."""
    import rocketsim_client
    import rocketsim_testing

    values = [getattr(rocketsim_client, name) for name in rocketsim_client.__all__]
    groups: dict[str, list[Any]] = {
        "What programs call": [one for one in values if one.__name__ in _CALLED],
        "Values": [one for one in values if one.__name__ not in _CALLED and not issubclass(one, Exception)],
        "Errors": [one for one in values if issubclass(one, Exception)],
        "Tests of programs": [getattr(rocketsim_testing, name) for name in rocketsim_testing.__all__],
    }
    lines = []
    for title, found in groups.items():
        lines.append(f"## {title}\n")
        for one in found:
            lines.append(f"::: {one.__module__}.{one.__qualname__}\n")
    return "\n".join(lines)


_CALLED = ("Producer", "Transaction", "Consumer", "PullConsumer", "Admin", "Cluster", "Connection")

TABLES = {"options": spark_options, "commands": commands, "metrics": metrics, "api": python_api}
