"""Lists the public surface as lines of text.  Each line is a fact on which a user's program, script or file may rely.

`python -m tests.support.surface` adds new lines to the golden files in tests/data/surface, with which
tests/test_surface.py compares the surface.  A line does not say where something is implemented, so a move inside a
package changes no line.  Required arguments and options are in their owner's line, and optional ones have lines of
their own.  A compatible change of the surface only adds lines.
"""

import argparse
import ast
import contextlib
import enum
import importlib
import inspect
import io
import pkgutil
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "data" / "surface"
COMMAND = "python -m tests.support.surface"
OWN = ("rocketsim_client", "rocketsim_proto", "rocketsim_testing")
OPERATORS = ("__call__", "__contains__", "__enter__", "__exit__", "__getitem__", "__iter__", "__len__")
OPERATORS += ("__aenter__", "__aexit__", "__aiter__", "__anext__")


# --- Python ----------------------------------------------------------------------------------------------------------


def client() -> Iterator[str]:
    """Yields the exported names of `rocketsim_client`, `rocketsim_client.aio` and `rocketsim_testing`, what their
    public members take and return, and all errors.
    """
    package = importlib.import_module("rocketsim_client")
    packages = [package, *map(importlib.import_module, ("rocketsim_client.aio", "rocketsim_testing"))]
    errors = importlib.import_module("rocketsim_client.errors")
    # An error may be defined anywhere in the package.
    for module in pkgutil.walk_packages(package.__path__, "rocketsim_client."):
        importlib.import_module(module.name)
    yield from (line for line in golden("client") if line.startswith("from ") and can_be_imported(line))
    yield from (f"from {one.__name__} import {name}" for one in packages for name in one.__all__)
    of_client = (kind for kind in subclasses(errors.RocketSimError) if kind.__module__.startswith("rocketsim_client."))
    exceptions = {kind for kind in of_client if is_public(kind.__name__)}
    yield from (f"from {kind.__module__} import {kind.__name__}" for kind in exceptions)
    for kind in exceptions:
        yield from of_exception(kind)
    exported = {getattr(one, name) for one in packages for name in one.__all__} - exceptions
    for function in [one for one in exported if inspect.isfunction(one)]:
        exported.remove(function)
        yield from of_function(f"{function.__module__.partition('.')[0]}.{function.__name__}", function)
    for kind in closed(exported):
        yield from of_class(kind, is_made_by_users=kind in exported)


def can_be_imported(line: str) -> bool:
    """Returns True if `from MODULE import NAME` works: an error may move if its old place remains as an alias."""
    _, module, _, name = line.split()
    try:
        return hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return False


def subclasses(kind: type) -> set[type]:
    """Returns the class and all its subclasses."""
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def closed(kinds: Iterable[type]) -> list[type]:
    """Returns these classes, and the classes of the values that their public members return."""
    found: set[type] = set()
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if kind in found:
            continue
        found.add(kind)
        for name in members_of(kind):
            member = inspect.getattr_static(kind, name)
            for of in filter(is_value, classes_in(given_by(member))):
                waiting.append(of)
        if is_dataclass(kind) or issubclass(kind, tuple):
            waiting += [of for hint in typing.get_type_hints(kind).values() for of in classes_in(hint) if is_value(of)]
    return sorted(found, key=lambda kind: kind.__qualname__)


def is_value(kind: type) -> bool:
    return (
        kind.__module__.startswith("rocketsim_client")
        and not getattr(kind, "_is_protocol", False)
        and not issubclass(kind, BaseException)
    )


def given_by(member: Any) -> Any:
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    return typing.get_type_hints(function).get("return") if inspect.isfunction(function) else None


def classes_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        yield hint
    for inner in typing.get_args(hint):
        yield from classes_in(inner)


def our_bases(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if base.__module__.partition(".")[0] in OWN]


def members_of(kind: type) -> list[str]:
    """Returns the public names that a class does not have from Python's own classes."""
    names = {name for base in our_bases(kind) for name in vars(base)}
    slots = {name for base in our_bases(kind) for name in getattr(base, "__slots__", ())}
    return sorted(name for name in names - slots - set(field_names(kind)) if is_public(name) or name in OPERATORS)


def is_public(name: str) -> bool:
    return not name.startswith("_")


def of_exception(kind: type[BaseException]) -> Iterator[str]:
    """Yields an error's place in the hierarchy, its code, and its members that its parents do not have."""
    name = kind.__qualname__
    yield from (f"{name} is a {base.__name__}" for base in kind.__mro__[1:-2] if is_public(base.__name__))
    yield f"{name}.code = {kind.code}"  # type: ignore[attr-defined]
    own = set(vars(kind)) & set(members_of(kind)) - {"code"}
    if "__init__" in vars(kind):
        yield from of_function(name, kind)
        own.update(filter(is_public, set_on_self(vars(kind)["__init__"])))
    yield from (f"{name}.{member}" for member in own - {"code"})


def of_class(kind: type, *, is_made_by_users: bool) -> Iterator[str]:
    name = kind.__qualname__
    if issubclass(kind, enum.Enum):
        yield from (f"{name}.{member.name} = {spelled(member.value)}" for member in kind)
        return
    if is_made_by_users:
        yield from of_function(name, kind)
    yield from (f"{name}.{field}" for field in field_names(kind))
    if issubclass(kind, tuple):
        yield f"{name} unpacks into {', '.join(field_names(kind))}"
    for member_name in members_of(kind):
        member = inspect.getattr_static(kind, member_name)
        function = getattr(member, "__func__", member)
        if member_name in OPERATORS:
            yield f"{name}.{member_name}"
        elif inspect.isfunction(function):
            yield from of_function(f"{name}.{member_name}", getattr(kind, member_name), inspect.isfunction(member))
        elif inspect.isdatadescriptor(member) or hasattr(member, "__get__"):
            yield f"{name}.{member_name}"  # a property
        else:
            yield f"{name}.{member_name} = {spelled(member)}"


def field_names(kind: type) -> list[str]:
    """Returns the public attributes of an instance: fields, slots, and what `__init__` sets."""
    if issubclass(kind, tuple):
        return list(kind._fields)  # type: ignore[attr-defined]
    names: set[str] = set()
    for base in our_bases(kind):
        names.update(getattr(base, "__slots__", ()))
        if is_dataclass(base):
            names.update(field.name for field in fields(base))
        elif "__init__" in vars(base):
            names.update(set_on_self(base.__init__))
    return sorted(filter(is_public, names))


def set_on_self(function: Callable[..., Any]) -> Iterator[str]:
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node.attr


def of_function(name: str, function: Any, bound: bool = False) -> Iterator[str]:
    """Yields the lines of a function.  `bound` says that the first argument is the instance."""
    parameters = list(inspect.signature(function).parameters.values())[bound:]
    needed = [spelled_parameter(one) for one in parameters if one.default is one.empty and one.kind not in OPEN]
    yield f"{name}({', '.join(needed)})"
    for position, one in enumerate(parameters):
        if one.kind in OPEN:
            yield f"{name}({OPEN[one.kind]}{one.name})"
        elif one.default is not one.empty:
            where = "keyword" if one.kind is one.KEYWORD_ONLY else f"argument {position}"
            yield f"{name}(… {one.name}={spelled(one.default)}), {where}"


OPEN = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def spelled_parameter(one: inspect.Parameter) -> str:
    marks: dict[int, str] = {one.KEYWORD_ONLY: "*", one.POSITIONAL_ONLY: "/"}
    return marks.get(one.kind, "") + one.name


def spelled(value: Any) -> str:
    """Returns a default or constant as text that is the same in every process and every Python version."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f"{type(value).__name__}({', '.join(map(spelled, value))})"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(spelled, value))}]"
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(spelled, value)))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{spelled(key)}: {spelled(of)}' for key, of in value.items())}}}"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return "<a value of its own>"  # for example a dataclass's default factory


# --- gRPC ------------------------------------------------------------------------------------------------------------


def grpc() -> Iterator[str]:
    """Yields the services, methods, messages, fields and numbers of the generated modules."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    package = importlib.import_module("rocketsim_proto")
    for found in pkgutil.iter_modules(package.__path__):
        if not found.name.endswith(("_pb2", "_pb2_grpc")):
            continue
        module = importlib.import_module(f"rocketsim_proto.{found.name}")
        yield f"import rocketsim_proto.{found.name}"
        if found.name.endswith("_pb2_grpc"):
            yield from (f"from rocketsim_proto.{found.name} import {name}" for name in defined_in(module))
            continue
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        names: list[str] = [of.name for of in file.message_type] + [of.name for of in file.enum_type]
        yield from (f"from rocketsim_proto.{found.name} import {name}" for name in names)
        for message in file.message_type:
            yield from of_message(f"{file.package}.{message.name}", message)
        for words in file.enum_type:
            yield from of_enum(f"{file.package}.{words.name}", words)
        for service in file.service:
            yield f"service {file.package}.{service.name}"
            for method in service.method:
                takes, gives = ("stream " * method.client_streaming, "stream " * method.server_streaming)
                yield (
                    f"rpc {file.package}.{service.name}/{method.name}: "
                    f"{takes}{method.input_type[1:]} -> {gives}{method.output_type[1:]}"
                )


def defined_in(module: types.ModuleType) -> Iterator[str]:
    for name, value in vars(module).items():
        # `NameServer`, without Stub or Servicer, is grpcio's experimental interface.
        if getattr(value, "__module__", "") == module.__name__ and is_public(name):
            yield name


def of_message(name: str, message: Any) -> Iterator[str]:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    yield f"message {name}"
    for field in message.field:
        kind = field.type_name[1:] or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
        label = FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower()
        chosen = field.HasField("oneof_index") and not field.proto3_optional
        choice = f", one of {message.oneof_decl[field.oneof_index].name}" if chosen else ""
        yield f"field {name}.{field.name} = {field.number}: {label} {kind}{choice}"
        if field.proto3_optional:  # a line of its own, because making a field optional changes no bytes
            yield f"field {name}.{field.name} is set or not"
    for inner in message.nested_type:
        yield from of_message(f"{name}.{inner.name}", inner)
    for words in message.enum_type:
        yield from of_enum(f"{name}.{words.name}", words)


def of_enum(name: str, words: Any) -> Iterator[str]:
    yield f"enum {name}"
    for word in words.value:
        yield f"value {name}.{word.name} = {word.number}"


# --- command lines ---------------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    """Yields `rocketsim` with its commands and options, and the servers' own command line."""
    import typer

    from rocketsim_cli.main import app
    from rocketsim_cli.options import Truth

    yield f"switches take {spelled([word.value for word in Truth])}"
    yield from of_command("rocketsim", typer.main.get_command(app))
    yield from of_parser("python -m broker_service")


def of_command(name: str, command: Any) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    needed = [min(one.opts, key=len) for one in options if one.required]
    needed += [str(one.name).upper() for one in arguments if one.required]
    yield " ".join([name, *sorted(needed)])
    hints = typing.get_type_hints(command.callback) if command.callback else {}
    for position, one in enumerate(arguments):
        yield f"{name} … argument {position} {str(one.name).upper()} {taken_by(one, hints)}"
    for one in options:
        for word in (*one.opts, *one.secondary_opts):
            yield f"{name} … {word} {taken_by(one, hints)}"
    for word, inner in getattr(command, "commands", {}).items():
        yield from of_command(f"{name} {word}", inner)


def taken_by(one: Any, hints: dict[str, Any]) -> str:
    """Returns the kind of a value, its default and its environment variable."""
    kinds = [kind for kind in classes_in(hints.get(one.name)) if kind is not type(None)]
    words = [spelled([word.value for word in kind]) if issubclass(kind, enum.Enum) else kind.__name__ for kind in kinds]
    several = " each time it is given" if one.multiple else " several" if one.nargs == -1 else ""
    default = "" if one.required else f" default {spelled(one.default)}"
    return f"{'/'.join(words)}{several}{default}{f' or ${one.envvar}' if one.envvar else ''}"


def of_parser(name: str) -> Iterator[str]:
    from broker_service.__main__ import main

    parsers: list[argparse.ArgumentParser] = []
    parse = argparse.ArgumentParser.parse_args

    def seen(self: argparse.ArgumentParser, *words: Any) -> Any:
        parsers.append(self)
        return parse(self, *words)

    argparse.ArgumentParser.parse_args = seen  # type: ignore[assignment,method-assign]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main(["--help"])
    finally:
        argparse.ArgumentParser.parse_args = parse  # type: ignore[method-assign]
    actions = [
        (action, action.option_strings or [str(action.metavar or action.dest)]) for action in parsers[0]._actions
    ]
    needed = [min(words, key=len) for action, words in actions if action.required and action.nargs != "*"]
    yield " ".join([name, *sorted(needed)])
    for action, words in actions:
        yield from (f"{name} … {word}{' several' if action.nargs == '*' else ''}" for word in words)
        yield from (f"{name} … {words[0]} takes {choice}" for choice in action.choices or ())


# --- Spark -----------------------------------------------------------------------------------------------------------


def spark() -> Iterator[str]:
    """Yields the data source's options with defaults, the columns of its schemas, and the columns
    that the sink takes.
    """
    from pyspark_rocketsim import DefaultSource
    from rocketsim_source import RocketSimDataSource
    from rocketsim_source.options.sink_options import FROM_SPARK_STREAMS, SinkOptions
    from rocketsim_source.options.source_options import FROM_SPARK, READER_GROUP, SourceOptions
    from rocketsim_source.options.view_options import VIEWS, ViewOptions
    from rocketsim_source.schema import OTHER_FORMS
    from rocketsim_source.sink.sink_columns import NAMES, check_type

    assert DefaultSource is RocketSimDataSource
    yield "from rocketsim_source import RocketSimDataSource"
    yield "from pyspark_rocketsim import DefaultSource"
    yield f"format {DefaultSource.name()}"
    for side, kind in (("source", SourceOptions), ("sink", SinkOptions), ("view", ViewOptions)):
        yield from of_options(side, kind)
    for view in VIEWS:
        for number, column in enumerate(DefaultSource({"nameServer": "h:1", "view": view}).schema()):
            null = "" if column.nullable else " not null"
            yield f"view {view} {number} {column.name} {column.dataType.simpleString()}{null}"
    yield from (f"source and sink let option {name} pass" for name in FROM_SPARK)
    yield from (f"sink lets option {name} pass" for name in FROM_SPARK_STREAMS)
    yield f"source without group reads as {READER_GROUP}"
    for profile in ("rocketmq", "kafka"):
        base = {"nameServer": "h:1", "topic": "T", "schemaProfile": profile}
        more = {"includeHeaders": "true"} if profile == "kafka" else {"includeHosts": "true"}
        other = {"bodyFormat": "string", "propertiesFormat": "json"}
        for shown, given in (("", {}), (spelled_options(more), more), (spelled_options(other), other)):
            for number, column in enumerate(DefaultSource(base | given).schema()):
                null = "" if column.nullable else " not null"
                yield f"schema {profile}{shown} {number} {column.name} {column.dataType.simpleString()}{null}"
    for name, kinds in OTHER_FORMS.items():
        yield from (f"source column {name} may be {kind.simpleString()}" for kind in kinds)
    for name, part in NAMES.items():
        first = next(other for other in NAMES if NAMES[other] == part)
        yield f"sink column {name}" + (f" is {first}" if name != first else "")
        yield from (f"sink column {name} may be {kind}" for kind in accepted(part, check_type))


def spelled_options(given: dict[str, str]) -> str:
    return "".join(f" {name}={value}" for name, value in given.items())


def of_options(side: str, kind: type) -> Iterator[str]:
    for field in fields(kind):
        if "option" not in field.metadata:
            continue
        option = field.metadata["option"]
        default = f"default {spelled(field.default)}" if option.only is None else f"only {spelled(option.only)}"
        choices = inspect.getclosurevars(option.parse).nonlocals if inspect.isfunction(option.parse) else {}
        words = [*choices.get("words", choices.get("known", ())), *TEXTS.get(option.name, ())]
        for name in (option.name, *option.aliases):
            yield f"{side} option {name} {default}"
            yield from (f"{side} option {name} takes {word}" for word in words if is_accepted(option.parse, word))


# Values in documents and users' jobs, for options that take more than a choice of words.
TEXTS = {
    "assign": ['{"T":{"broker-a":[0,1]}}'],
    "commitFailurePolicy": ["warn", "fail", "failAfter:3"],
    "dataLossAction": ["skip", "trimmed=skip,truncated=fail"],
    "endingOffsets": ["latest", '{"T":{"broker-a":{"0":-1}}}'],
    "maxBytesPerTrigger": ["65536", "64k", "4m", "1gb"],
    "maxTriggerDelay": ["500", "500ms", "30s", "15m", "1h"],
    "nameServer": ["h:1", "h:1;i:2", "h:1,i:2"],
    "brokers": ["broker-a=0@h:1,1@h:2;broker-b=0@h:3"],
    "newQueueOffsets": ["earliest", "latest", "committed,earliest"],
    "sinkMode": ["atLeastOnce", "idempotent"],
    "startingOffsets": ["earliest", "latest", "committed", '{"T":{"broker-a":{"0":5,"1":-2}}}'],
    "startingOffsetsByTimestamp": ['{"T":{"broker-a":{"0":1000}}}', '{"T":1000}'],
    "startingTimestamp": ["1000"],
}


def is_accepted(parse: Callable[[str], Any], text: str) -> bool:
    with contextlib.suppress(ValueError):
        parse(text)
        return True
    return False


def accepted(part: str, check_type: Callable[[str, str, Any], None]) -> Iterator[str]:
    from pyspark.sql import types as kinds

    text, binary = kinds.StringType(), kinds.BinaryType()
    headers = kinds.ArrayType(kinds.StructType([kinds.StructField("key", text), kinds.StructField("value", binary)]))
    whole = (kinds.ByteType(), kinds.ShortType(), kinds.IntegerType(), kinds.LongType())
    for kind in (text, binary, *whole, kinds.MapType(text, text), headers, kinds.TimestampType()):
        with contextlib.suppress(ValueError):
            check_type("c", part, kind)
            yield kind.simpleString()


# --- configuration ---------------------------------------------------------------------------------------------------


def configuration() -> Iterator[str]:
    """Yields the keys of a broker and a name server with their defaults, and RocketMQ's keys that may have only one
    value.
    """
    from broker_service.config.broker_config import BrokerConfig
    from broker_service.config.loading import RESTRICTIONS
    from broker_service.config.namesrv_config import NamesrvConfig
    from broker_service.config.properties import as_text, fields_by_key, is_required

    for server, kind in (("broker", BrokerConfig), ("namesrv", NamesrvConfig)):
        keys = fields_by_key(kind)
        yield f"{server} needs {', '.join(name for name, field in keys.items() if is_required(field)) or 'nothing'}"
        for name, field in keys.items():
            default = "" if is_required(field) else f" = {as_text(field.default)}"
            yield f"{server} {name}{default}".rstrip()
            if field.metadata["runtime"]:
                yield f"{server} {name} may be changed at run time"
            for bound, word in (("low", "least"), ("high", "most")):
                if field.metadata[bound] is not None:
                    yield f"{server} {name} is at {word} {field.metadata[bound]}"
            yield from (f"{server} {name} takes {number}" for number in field.metadata["one_of"])
            if isinstance(field.type, type) and issubclass(field.type, enum.Enum):
                yield from (f"{server} {name} takes {word.name}" for word in field.type)
    for name, promise in RESTRICTIONS.items():
        yield from (f"RocketMQ's {name} may be {value or 'empty'}" for value in promise.allowed)


# --- golden files ----------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], Iterator[str]]] = {
    part.__name__: part for part in (client, grpc, commands, spark, configuration)
}


def lines_of(part: str) -> list[str]:
    return sorted(set(PARTS[part]()))


def golden(part: str) -> list[str]:
    path = GOLDEN / f"{part}.txt"
    return path.read_text().splitlines() if path.exists() else []


def difference(before: Iterable[str], now: Iterable[str]) -> str:
    """Returns what to tell the author of a change.  The text is empty if the surface is unchanged."""
    gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    told = [f"- {line}" for line in gone] + [f"+ {line}" for line in new]
    if gone:
        told.append(
            "Lines of the public surface are gone or changed: users rely on them. Keep the old name as an alias, the "
            "old default and the old order of arguments."
        )
    elif new:
        told.append(f"These are additions: run `{COMMAND}`, and commit what it writes.")
    return "\n".join(told)


def main() -> int:
    """Adds new lines to the golden files, and removes none."""
    status = 0
    for part in PARTS:
        now = lines_of(part)
        if told := difference(golden(part), now):
            print(f"{part}:\n{told}")
        if set(golden(part)) <= set(now):
            (GOLDEN / f"{part}.txt").write_text("\n".join(now) + "\n")
        else:
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
