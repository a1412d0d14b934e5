"""Reads a `.properties` file into a frozen dataclass, whose fields define the keys and the types of their values.

An unknown key and a wrong value are errors with file and line.  This module knows nothing about brokers.
"""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import javaproperties

from broker_service.errors import ConfigError

HIDDEN = "******"
REQUIRED: Any = dataclasses.MISSING
"""The default of a key that a file has to give."""


def key(
    default: Any,
    doc: str,
    *,
    name: str = "",
    low: int | None = None,
    high: int | None = None,
    one_of: tuple[int, ...] = (),
    runtime: bool = False,
    secret: bool = False,
) -> Any:
    """Makes a dataclass field that is a configuration key.  `default` is REQUIRED if the key has no default.

    `doc` is the description of the key in docs/configuration.md.  A number must be from `low` to `high` or in `one_of`.
    A `runtime` key may be changed while the broker runs.  If `name` is empty, the key's name is the field's name in
    camelCase.  No list, representation or error shows the value of a `secret` key.
    """
    metadata = {"doc": doc, "name": name, "low": low, "high": high, "one_of": one_of, "runtime": runtime}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def key_name(field: dataclasses.Field[Any]) -> str:
    """Returns the name of a field's key, for example `brokerId` for the field `broker_id`."""
    if field.metadata["name"]:
        return str(field.metadata["name"])
    return re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), field.name)


def fields_by_key(config_class: type) -> dict[str, dataclasses.Field[Any]]:
    return {key_name(field): field for field in dataclasses.fields(config_class)}


def is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is REQUIRED and field.default_factory is dataclasses.MISSING


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One `key=value`.  Errors name the place of the setting, `where`, for example `broker-a.properties:12`."""

    key: str
    value: str
    where: str


def read_settings(path: Path) -> dict[str, Setting]:
    """Reads the keys of a file, which is UTF-8.  Raises ConfigError, also for a repeated key."""
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    settings: dict[str, Setting] = {}
    line = 1
    try:
        for element in javaproperties.parse(text):
            if isinstance(element, javaproperties.KeyValue):
                if element.key in settings:
                    raise ConfigError(
                        f"{path}:{line}: {element.key} is repeated; {settings[element.key].where} has it already"
                    )
                # Java would keep blanks at the end of a value, but such blanks are always a mistake.
                settings[element.key] = Setting(element.key, element.value.strip(), f"{path}:{line}")
            line += len(element.source.splitlines())
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError(f"{path}:{line}: {error}") from error
    return settings


def values_in(text: str) -> dict[str, str]:
    """Parses text in the format of a `.properties` file to keys and values; raises ConfigError."""
    try:
        return {key: value.strip() for key, value in javaproperties.loads(text).items()}
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError(str(error)) from error


def parse_fields(config_class: type, settings: Iterable[Setting]) -> tuple[dict[str, Any], list[str]]:
    """Returns the value of each field by its name, and an error line for each unknown key and each wrong value."""
    fields = fields_by_key(config_class)
    values: dict[str, Any] = {}
    errors: list[str] = []
    for setting in settings:
        field = fields.get(setting.key)
        if field is None:
            errors.append(f"{setting.where}: unknown key {setting.key}{did_you_mean(setting.key, fields)}")
            continue
        try:
            value = values[field.name] = parse_value(field, setting.value)
            if expected := out_of_bounds(field, value):
                raise ValueError(expected)
        except ValueError as error:
            shown = setting.value if field.repr else HIDDEN
            errors.append(f"{setting.where}: {setting.key}={shown}: {error}")
    return values, errors


def parse_value(field: dataclasses.Field[Any], text: str) -> Any:
    """Parses the text of a value by the type of its field.  Raises ValueError, which says what was expected."""
    kind = field.type
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError("expected true or false")
        return text == "true"
    if kind is int:
        # int() alone would accept `1_000`, ` 7` and digits of other scripts.
        if not re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII):
            raise ValueError("expected a whole number")
        return int(text)
    if isinstance(kind, type) and issubclass(kind, Enum):
        names = [member.name for member in kind]
        if text not in names:
            raise ValueError(f"expected one of {', '.join(names)}{did_you_mean(text, names)}")
        return kind[text]
    if "\0" in text:
        raise ValueError("contains a NUL character")
    if kind is str:
        return text
    if not text:  # the type is Path or Path | None
        if kind is Path:
            raise ValueError("expected a path")
        return None
    return expand_path(text)


def expand_path(text: str) -> Path:
    """Makes a path absolute.

    `~` and RocketMQ's `${user.home}` at the start of the path mean the user's home directory.
    """
    return Path(text.replace("${user.home}", "~", 1)).expanduser().absolute()


def check_bounds(config: Any) -> None:
    """Raises ConfigError for a number out of its bounds.

    Configurations call this in `__post_init__`, so that no constructor call skips the check.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if expected := out_of_bounds(field, value):
            raise ConfigError(f"{key_name(field)}={value}: {expected}")


def out_of_bounds(field: dataclasses.Field[Any], value: Any) -> str:
    """Returns which values are allowed, or "" if the value is within its bounds."""
    low, high, one_of = field.metadata["low"], field.metadata["high"], field.metadata["one_of"]
    if one_of and value not in one_of:
        return f"expected one of {', '.join(map(str, one_of))}"
    if low is not None and value < low:
        return f"expected at least {low}" if high is None else f"expected {low} to {high}"
    if high is not None and value > high:
        return f"expected at most {high}" if low is None else f"expected {low} to {high}"
    return ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns `; did you mean brokerName?` with the most similar known word, or "" if no known word is similar."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def as_text(value: Any) -> str:
    """Returns a value as the text that it has in a properties file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name
    return "" if value is None else str(value)


def as_properties(config: Any) -> dict[str, str]:
    """Returns all keys with their values.  The value of a secret key is replaced by HIDDEN unless it is empty."""
    values = {name: (field, getattr(config, field.name)) for name, field in fields_by_key(type(config)).items()}
    return {name: as_text(value) if field.repr or not value else HIDDEN for name, (field, value) in values.items()}


def settings_from(values: Mapping[str, str], where: str) -> dict[str, Setting]:
    return {name: Setting(name, value, where) for name, value in values.items()}
