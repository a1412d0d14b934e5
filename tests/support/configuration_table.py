"""Generates the tables of configuration keys in docs/configuration.md from the dataclasses.

`python -m tests.support.configuration_table` writes the tables into the document, and a test compares them.
"""

import dataclasses
from enum import Enum
from pathlib import Path

from broker_service.config.broker_config import BrokerConfig
from broker_service.config.loading import RESTRICTIONS
from broker_service.config.namesrv_config import NamesrvConfig
from broker_service.config.properties import as_text, fields_by_key, is_required
from broker_service.config.shared_keys import SharedKeys

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def key_table(config_class: type) -> str:
    lines = ["| key | values | default | at run time | what it is |", "|---|---|---|---|---|"]
    # Keys that brokers and name servers share come last.
    shared = {field.name for field in dataclasses.fields(SharedKeys)}
    for name, field in sorted(fields_by_key(config_class).items(), key=lambda item: item[1].name in shared):
        runtime = "yes" if field.metadata["runtime"] else ""
        lines.append(f"| `{name}` | {values(field)} | {default(field)} | {runtime} | {field.metadata['doc']} |")
    return "\n".join(lines) + "\n"


def values(field: dataclasses.Field[object]) -> str:
    low, high, one_of = field.metadata["low"], field.metadata["high"], field.metadata["one_of"]
    if field.type is bool:
        return "true, false"
    if isinstance(field.type, type) and issubclass(field.type, Enum):
        return ", ".join(member.name for member in field.type)
    if one_of:
        return ", ".join(map(str, one_of))
    if field.type is int:
        return f"{low} to {high}" if high is not None else f"{low} or more"
    return "path" if "Path" in str(field.type) else "text"


def default(field: dataclasses.Field[object]) -> str:
    if is_required(field):
        return "none, required"
    text = as_text(field.default)
    return f"`{text}`" if text else "empty"


def refused_table() -> str:
    lines = ["| key | only as | because |", "|---|---|---|"]
    for name, promise in RESTRICTIONS.items():
        allowed = " or ".join(f"`{value}`" if value else "empty" for value in sorted(promise.allowed))
        lines.append(f"| `{name}` | {allowed} | {promise.instead} |")
    return "\n".join(lines) + "\n"


TABLES = {
    "broker": lambda: key_table(BrokerConfig),
    "namesrv": lambda: key_table(NamesrvConfig),
    "refused": refused_table,
}


def with_tables(document: str) -> str:
    """Returns the document with new tables between each `<!-- NAME keys -->` and `<!-- end -->`."""
    for name, table in TABLES.items():
        start = document.index(f"<!-- {name} keys -->\n") + len(f"<!-- {name} keys -->\n")
        end = document.index("<!-- end -->", start)
        document = document[:start] + "\n" + table() + "\n" + document[end:]
    return document


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text()))
