"""The public surface equals the golden files in tests/data/surface: nothing of it is removed or changed.

Additions are written to the files by `python -m tests.support.surface`.
"""

import argparse
import dataclasses
import enum

import pytest
from rocketsim_proto import broker_pb2

import broker_service.config.broker_config
import rocketsim_client
import rocketsim_source.options.source_options
from rocketsim_cli.main import app
from rocketsim_client import Producer, errors
from tests.support import surface


@pytest.mark.parametrize("part", surface.PARTS)
def test_nothing_of_the_public_surface_is_gone_or_changed(part):
    told = surface.difference(surface.golden(part), surface.lines_of(part))
    assert not told, told
    assert len(surface.golden(part)) > 150


def gone(part: str) -> list[str]:
    """Returns what the comparison reports as removed after such a change."""
    told = surface.difference(surface.golden(part), surface.lines_of(part))
    assert "keep the old name as an alias" in told.lower()
    return [line.removeprefix("- ") for line in told.splitlines() if line.startswith("- ")]


def test_a_public_name_that_is_gone_is_told(monkeypatch):
    monkeypatch.delattr(Producer, "flush")
    assert gone("client") == ["Producer.flush()", "Producer.flush(… timeout_s=None), argument 0"]


def test_an_export_that_is_gone_is_told(monkeypatch):
    monkeypatch.setattr(rocketsim_client, "__all__", [name for name in rocketsim_client.__all__ if name != "Cluster"])
    monkeypatch.delitem(rocketsim_client._MODULES, "Cluster")
    monkeypatch.delitem(vars(rocketsim_client), "Cluster", raising=False)
    assert "from rocketsim_client import Cluster" in gone("client")


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        pytest.param(
            lambda self, message, *, queue=None, key=None: None,
            "Producer.send(… timeout_s=None), keyword",
            id="an argument is gone",
        ),
        pytest.param(
            lambda self, message, *, queue=None, key="", timeout_s=None: None,
            "Producer.send(… key=None), keyword",
            id="another default",
        ),
        pytest.param(
            lambda self, msg, *, queue=None, key=None, timeout_s=None: None,
            "Producer.send(message)",
            id="another name",
        ),
        pytest.param(
            lambda self, message, *, queue=None, key, timeout_s=None: None,
            "Producer.send(message)",
            id="needed now",
        ),
        pytest.param(
            lambda self, message, queue=None, *, key=None, timeout_s=None: None,
            "Producer.send(… queue=None), keyword",
            id="another kind",
        ),
    ],
)
def test_another_signature_is_told(monkeypatch, changed, line):
    monkeypatch.setattr(Producer, "send", changed)
    assert line in gone("client")


def test_an_attribute_that_is_gone_is_told(monkeypatch):
    def without_group(self, name_server=""):
        self._group = name_server

    monkeypatch.setattr(Producer, "__init__", without_group)
    assert {"Producer.group", "Producer(… linger_ms=2), keyword"} <= set(gone("client"))


def test_an_error_with_another_parent_or_code_is_told(monkeypatch):
    monkeypatch.setattr(errors.TooNew, "code", 77)
    errors.NoRoute.__bases__ = (errors.RocketSimError,)
    try:
        assert gone("client") == ["NoRoute is a TopicNotExist", "NoRoute.code = 17", "TooNew.code = 1"]
    finally:
        errors.NoRoute.__bases__ = (errors.TopicNotExist,)


def test_a_field_of_grpc_with_another_number_is_told(monkeypatch):
    whole = broker_pb2.DESCRIPTOR

    class Renumbered:
        @staticmethod
        def CopyToProto(file):
            whole.CopyToProto(file)
            file.message_type[0].field[0].number = 999

    monkeypatch.setattr(broker_pb2, "DESCRIPTOR", Renumbered)
    (line,) = gone("grpc")
    assert line.startswith(f"field rocketsim.{next(iter(whole.message_types_by_name))}.")


def test_a_command_and_a_choice_that_are_gone_are_told(monkeypatch):
    kept = [one for one in app.registered_commands if one.callback.__name__ != "consume"]
    monkeypatch.setattr(app, "registered_commands", kept)
    parse = argparse.ArgumentParser.add_argument
    monkeypatch.setattr(
        argparse.ArgumentParser,
        "add_argument",
        lambda self, *words, **more: parse(
            self, *words, **more | ({"choices": ("broker",)} if "kind" in words else {})
        ),
    )
    lines = gone("commands")
    assert "python -m broker_service … kind takes namesrv" in lines
    assert "rocketsim consume … --topic str" in lines


def test_an_option_of_spark_with_another_default_is_told(monkeypatch):
    field = rocketsim_source.options.source_options.SourceOptions.__dataclass_fields__["pull_retries"]
    monkeypatch.setattr(field, "default", 6)
    assert gone("spark") == ["source option pullRetries default 5"]


def test_a_configuration_key_with_another_name_is_told(monkeypatch):
    field = broker_service.config.broker_config.BrokerConfig.__dataclass_fields__["slave_timeout"]
    monkeypatch.setattr(field, "metadata", field.metadata | {"name": "slaveTimeoutMs"})
    assert "broker slaveTimeout = 3000" in gone("configuration")


def test_an_addition_is_told_with_the_command_that_makes_it():
    told = surface.difference(["a"], ["a", "b"])
    assert told.splitlines()[0] == "+ b"
    assert surface.COMMAND in told


def test_the_command_adds_and_takes_nothing_away(tmp_path, monkeypatch, capsys):
    now = ["kept"]
    monkeypatch.setattr(surface, "GOLDEN", tmp_path)
    monkeypatch.setattr(surface, "PARTS", {"client": lambda: iter(now)})
    assert surface.main() == 0
    now.append("new")
    assert surface.main() == 0
    assert surface.golden("client") == ["kept", "new"]
    now.remove("kept")
    assert surface.main() == 1
    assert surface.golden("client") == ["kept", "new"]
    assert "- kept" in capsys.readouterr().out


def test_defaults_are_spelled_alike_by_every_python():
    class Word(enum.IntEnum):
        ONE = 1

    @dataclasses.dataclass
    class Fresh:
        values: list[int] = dataclasses.field(default_factory=list)

    assert surface.spelled(Word.ONE) == "Word.ONE"
    assert surface.spelled(frozenset({"b", "a"})) == "{'a', 'b'}"
    assert list(surface.of_function("Fresh", Fresh)) == ["Fresh()", "Fresh(… values=<a value of its own>), argument 0"]
