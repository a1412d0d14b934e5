"""Parses the texts of options, and refuses names that are not options.  Pure.

Spark hands options over as strings under case-insensitive names.  Every refusal names the option, the given text and
what is accepted.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from rocketsim_proto.signature import Credentials

from rocketsim_client.address_map import AddressMap
from rocketsim_client.addresses import is_address, split_addresses
from rocketsim_client.errors import InvalidParameter, MessageIllegal
from rocketsim_client.validation import check_group, check_namespace, check_topic, check_topic_for_sending

MAX_LONG = 2**63 - 1
CHANNEL = "grpc."  # options with this prefix are passed to gRPC's channels as they are
MAX_SHOWN = 300  # an error repeats at most this many characters of a value
NEAR = 0.7  # a suggested name is at least this similar (difflib), so that "topic" is not suggested for "price"
OF_A_TABLE = "option."  # Spark's catalog puts this prefix before the options of CREATE TABLE
NO_TABLES = (
    "tables (CREATE TABLE … USING rocketsim) are not supported; CREATE TEMPORARY VIEW … USING rocketsim OPTIONS (…) "
    "takes the same options"
)
Parse = Callable[[str], Any]
Options = TypeVar("Options")


class OptionError(ValueError):
    """Raised if the options are unknown, malformed, contradictory or not supported yet.

    Only the user can correct the options, so a retry does not help.
    """


@dataclass(frozen=True, slots=True)
class Option:
    """The name of an option, and how its text becomes the value of a field of an options class."""

    name: str
    parse: Parse
    aliases: tuple[str, ...] = ()
    # The supported texts, or None if all texts are supported.  All texts that are not in `only` are refused as "not
    # supported yet".
    only: tuple[str, ...] | None = None
    is_secret: bool = False  # True if no error and no repr may show the value


def option(name: str, parse: Parse, default: Any = None, *aliases: str) -> Any:
    """Declares a dataclass field that `read_options` fills from the option of that name."""
    return field(default=default, metadata={"option": Option(name, parse, aliases)})


def secret(name: str) -> Any:
    """Declares an option whose text no error and no repr may show."""
    return field(default=None, metadata={"option": Option(name, text, is_secret=True)}, repr=False)


def unsupported(name: str, *only: str) -> Any:
    """Declares an option of RocketMQ or Kafka that is not implemented.  The option is accepted only with values that
    describe what RocketSim does without the option.
    """
    return field(default=None, metadata={"option": Option(name, text, (), tuple(value.lower() for value in only))})


def read_options(kind: type[Options], given: Mapping[str, str], *, also: tuple[str, ...] = ()) -> Options:
    """Makes an instance of the dataclass `kind` from Spark's options.

    An unknown name is an error that suggests the nearest known one, unless `strictOptions` is false.  Names in `also`
    are options of other classes, which are accepted and ignored.
    """
    given = {name.lower(): value for name, value in given.items()}
    if not given:
        raise OptionError(f"no options were given, not even nameServer: {NO_TABLES}")
    values: dict[str, Any] = {}
    known: list[str] = list(also)
    for item in fields(kind):  # type: ignore[arg-type]
        entry: Option | None = item.metadata.get("option")
        if entry is None:
            continue
        names = (entry.name, *entry.aliases)
        known += names
        used = [name for name in names if name.lower() in given]
        if len({given[name.lower()] for name in used}) > 1:
            raise OptionError(f"options {' and '.join(used)} mean the same and contradict each other; give one of them")
        if not used:
            assert item.default is not MISSING, item.name
            continue
        text_given = given[used[0].lower()]
        if entry.only is not None and text_given.strip().lower() not in entry.only:
            raise OptionError(f"option {used[0]} = {text_given!r} is not supported yet; leave it out")
        try:
            values[item.name] = entry.parse(text_given)
        except OptionError as error:
            shown = text_given if len(text_given) <= MAX_SHOWN else text_given[:MAX_SHOWN] + "…"
            if entry.is_secret:
                shown = "******"
            raise OptionError(f"option {used[0]} = {shown!r}: {error}") from None
    if any(item.name == "channel" for item in fields(kind)):  # type: ignore[arg-type]
        values["channel"] = {
            name: int(value) if re.fullmatch("-?[0-9]{1,18}", value) else value
            for name, value in given.items()
            if name.startswith(CHANNEL)
        }
    # Unknown names are refused before options are checked together, because a required option may be misspelt.
    if values.get("strict", True):
        refuse_unknown(given, known)
    return kind(**values)


def credentials(access_key: str | None, secret_key: str | None) -> Credentials | None:
    if access_key is None and secret_key is None:
        return None
    if access_key is None or secret_key is None:
        missing = "accessKey" if access_key is None else "secretKey"
        raise OptionError(f"{missing} is missing: accessKey and secretKey are given together")
    return Credentials(access_key, secret_key)


def check_tls(tls: bool, **files: str | None) -> None:
    given = [name for name, path in files.items() if path]
    if given and not tls:
        raise OptionError(f"{', '.join(given)}: these need tls=true; set that option, too")
    if ("tlsCert" in given) != ("tlsKey" in given):
        raise OptionError("tlsCert and tlsKey are a pair: a client's certificate and its key")


def option_names(kind: type[Any]) -> list[str]:
    """Returns all names of the options of a dataclass, with their aliases."""
    entries: list[Option] = [item.metadata["option"] for item in fields(kind) if "option" in item.metadata]
    return [name for entry in entries for name in (entry.name, *entry.aliases)]


def refuse_unknown(given: Mapping[str, str], known: list[str]) -> None:
    by_lower = {name.lower(): name for name in known}
    for name in sorted(given, key=lambda name: not name.startswith(OF_A_TABLE)):
        if name in by_lower:
            continue
        if name.startswith(CHANNEL):
            continue
        if name == "kafka.bootstrap.servers":
            raise OptionError(
                "kafka.bootstrap.servers names Kafka's brokers; leave it out, and say where the name server is: "
                "nameServer=host:port"
            )
        if name.startswith("kafka."):
            raise OptionError(f"option {name} is not supported yet; leave it out")
        if name.startswith(OF_A_TABLE):
            raise OptionError(f"{NO_TABLES} (Spark hands the options of a table over under other names, as {name})")
        near = closest(name, list(by_lower))
        hint = f"did you mean {by_lower[near]}?" if near else "docs/spark.md lists all options"
        raise OptionError(f"unknown option {name}; {hint} (strictOptions=false lets unknown options pass)")


def nearest(name: str, known: list[str]) -> str:
    """Returns the end of an error's text, such as `; did you mean topic?`, or an empty text if no known name is
    similar."""
    near = closest(name, known)
    return f"; did you mean {near}?" if near else ""


def closest(name: str, known: list[str]) -> str:
    """Returns the known name that `name` seems to be a misspelling of, or an empty text.

    If no known name is very similar (NEAR), a less similar name is returned, but only if it begins with the same letter
    as `name`.
    """
    near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
    return next(iter(near or [one for one in difflib.get_close_matches(name, known) if one[0] == name[0]]), "")


def text(value: str) -> str:
    if not value.strip():
        raise OptionError("must not be empty")
    return value.strip()


def boolean(value: str) -> bool:
    word = value.strip().lower()
    if word not in ("true", "false"):
        raise OptionError("must be true or false")
    return word == "true"


def integer(minimum: int, maximum: int = MAX_LONG) -> Parse:
    def parse(value: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", value.strip()):
            raise OptionError("must be a whole number")
        number = int(value)
        if not minimum <= number <= maximum:
            raise OptionError(f"must be between {minimum} and {maximum}")
        return number

    return parse


def choice(*words: str) -> Parse:
    def parse(value: str) -> str:
        for word in words:
            if value.strip().lower() == word.lower():
                return word
        raise OptionError(f"must be one of {', '.join(words)}")

    return parse


def words(*known: str, separator: str = "+") -> Parse:
    """Parses one or more of the known words, in any order."""

    def parse(value: str) -> frozenset[str]:
        pick = choice(*known)
        return frozenset(pick(word) for word in value.split(separator))

    return parse


MILLISECONDS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
BYTES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


def scaled(units: Mapping[str, int], minimum: int, example: str) -> Parse:
    def parse(value: str) -> int:
        match = re.fullmatch(r"([0-9]{1,19})\s*([a-z]*)", value.strip().lower())
        if match is None or match[2] not in units:
            raise OptionError(f"must be a whole number with or without a unit, such as {example}")
        number = int(match[1]) * units[match[2]]
        if not minimum <= number <= MAX_LONG:
            raise OptionError(f"must be at least {minimum}")
        return number

    return parse


def milliseconds(minimum: int = 0) -> Parse:
    return scaled(MILLISECONDS, minimum, "500, 30s or 15m")


def size_bytes(minimum: int = 1) -> Parse:
    return scaled(BYTES, minimum, "65536, 64k or 4m")


def group_name(value: str) -> str:
    return checked(text(value), check_group)


def topic_to_read(value: str) -> str:
    return checked(text(value), check_topic)


def topic_to_write(value: str) -> str:
    return checked(text(value), check_topic_for_sending)


def checked(value: str, check: Callable[[str], None]) -> str:
    """Applies a check of the client library while options are parsed, so that a bad value is refused before the first
    task runs."""
    try:
        check(value)
    except (InvalidParameter, MessageIllegal) as error:
        raise OptionError(f"is not possible: {error}") from None
    return value


def names(value: str) -> tuple[str, ...]:
    """Parses names separated by commas.  Blanks around the names are ignored."""
    found = tuple(name.strip() for name in value.split(","))
    if not all(found):
        raise OptionError("must be names separated by commas")
    if len(set(found)) != len(found):
        raise OptionError("names one twice")
    return found


def pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise OptionError(f"is not a regular expression: {error}") from None
    return text(value)


def addresses(value: str) -> tuple[str, ...]:
    """Parses host:port, several separated by `;` (as in RocketMQ) or `,`."""
    found = tuple(split_addresses(value))
    if not found:
        raise OptionError("must be host:port, several separated by ';'")
    for address in found:
        check_address(address)
    return found


def check_address(address: str) -> None:
    if not is_address(address):
        raise OptionError(f"{address!r} is not host:port")


def instance(value: str) -> str:
    return checked(text(value), check_namespace)


def address_map(value: str) -> str:
    """Parses `10.0.0.3:10911=host:20911,10.0.*=host`, which says at which addresses this machine reaches brokers."""
    try:
        return AddressMap.parse(value).text
    except InvalidParameter as error:
        raise OptionError(str(error)) from None


def static_brokers(value: str) -> dict[str, dict[int, str]]:
    """Parses `broker-a=0@host:port,1@host:port;broker-b=…` to broker name -> broker id -> address.

    A query that has the brokers' addresses needs no name server.
    """
    found: dict[str, dict[int, str]] = {}
    for piece in filter(None, (piece.strip() for piece in value.split(";"))):
        name, _, members = piece.partition("=")
        for member in members.split(","):
            match = re.fullmatch(r"\s*([0-9]{1,18})@(\S+)\s*", member)
            if match is None or not name.strip():
                raise OptionError("must be broker-a=0@host:port,1@host:port;broker-b=…")
            check_address(match[2])
            if found.setdefault(name.strip(), {}).setdefault(int(match[1]), match[2]) != match[2]:
                raise OptionError(f"names broker {match[1]} of {name.strip()} twice")
    if not found:
        raise OptionError("must be broker-a=0@host:port,1@host:port;broker-b=…")
    return found
