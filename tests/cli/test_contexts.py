"""`rocketsim context`: its file, damage to the file, who may read it, and the commands that use it."""

import stat
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from broker_service.store.files import Files
from rocketsim_cli import contexts
from rocketsim_cli.connection import Cluster, Invocation, options_of
from rocketsim_cli.connection_options import ConnectionOptions
from rocketsim_cli.contexts import Contexts
from rocketsim_cli.trouble import Trouble
from tests.cli.test_commands import lines, rocketsim
from tests.support.tls import CA


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN", "TOOLS", "CONTEXT"):
        monkeypatch.delenv(f"ROCKETSIM_{name}", raising=False)
    return tmp_path / "rocketsim" / "contexts.toml"


def test_what_is_written_is_read_again():
    options = ConnectionOptions(tls=True, tls_ca=Path("/ä/ca.pem"), access_key="k\U0001f511", secret_key="s\n\x7f")
    odd, plain = Cluster('a:1;"b"\\:2', options), Cluster("x:1", ConnectionOptions())
    contexts.save(Contexts({"a b.c\U0001f600": odd, "plain": plain}, "a b.c\U0001f600"))
    assert contexts.load() == Contexts({"a b.c\U0001f600": odd, "plain": plain}, "a b.c\U0001f600")
    assert "s\n" not in repr(odd)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(home: Path, monkeypatch: pytest.MonkeyPatch):
    rocketsim("context", "add", "first", "-n", "a:1")
    before = home.read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(home))

    monkeypatch.setattr(Files, "fdatasync", full)
    done = rocketsim("context", "add", "second", "-n", "b:1")
    assert done.returncode == 1 and "No space left" in done.stderr
    assert home.read_text() == before and list(home.parent.iterdir()) == [home]


def test_a_user_without_a_home_has_no_contexts_and_is_told_so(monkeypatch: pytest.MonkeyPatch):
    """The user of a container, for example, is in no passwd file and has no home."""
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert contexts.load() == Contexts()
    with pytest.raises(Trouble, match="set XDG_CONFIG_HOME"):
        contexts.save(Contexts())


@pytest.mark.parametrize("command", [("broker",), ("namesrv",), ("store", "verify")])
def test_commands_that_call_no_server_do_not_read_it(home: Path, tmp_path: Path, command: tuple[str, ...]):
    home.parent.mkdir()
    home.write_text("[contexts")
    words = ("-c", str(tmp_path / "absent")) if len(command) == 1 else (str(tmp_path / "absent"),)
    assert str(home) not in rocketsim(*command, *words).stderr


def test_only_the_user_may_read_it_and_its_secret_is_not_shown(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ROCKETSIM_ACCESS_KEY", "alice")
    monkeypatch.setenv("ROCKETSIM_SECRET_KEY", "hidden-word")
    assert rocketsim("--tls", "--tls-ca", str(CA), "context", "add", "prod", "-n", "a:1").returncode == 0
    assert stat.S_IMODE(home.stat().st_mode) == 0o600 and "hidden-word" in home.read_text()
    (row,) = lines(rocketsim("context", "list", "--json").stdout)
    assert (row["name"], row["current"], row["tls"], row["accessKey"]) == ("prod", True, True, "alice")
    for shown in (rocketsim("context", "list"), rocketsim("context", "list", "--json")):
        assert "hidden-word" not in shown.stdout


def test_commands_use_the_current_context_unless_the_command_line_says_otherwise():
    rocketsim("context", "add", "first", "-n", "127.0.0.1:1")
    rocketsim("context", "add", "second", "-n", "127.0.0.1:2")
    asked = ("admin", "clusterList")
    assert "127.0.0.1:2" in rocketsim(*asked).stderr
    assert "127.0.0.1:1" in rocketsim("--context", "first", *asked).stderr
    assert "127.0.0.1:3" in rocketsim(*asked, "-n", "127.0.0.1:3").stderr
    first, second = lines(rocketsim("context", "use", "first", "--json").stdout)
    assert (first["name"], first["current"], second["current"]) == ("first", True, False)
    assert "127.0.0.1:1" in rocketsim(*asked).stderr
    assert "127.0.0.1:1" in rocketsim("consume", "-t", "T").stderr
    rocketsim("context", "remove", "first")
    assert rocketsim(*asked).returncode == 2  # -n is missing again


def test_keys_and_tls_of_a_context_are_used_unless_others_are_given(monkeypatch: pytest.MonkeyPatch):
    of_context = ConnectionOptions(tls=True, tls_ca=CA, access_key="alice", secret_key="s")
    cluster = Cluster("a:1", of_context)

    def options(name_server: str = "a:1", **given: Any) -> dict[str, Any]:
        found = Invocation(ConnectionOptions(**given), cluster)
        return options_of(name_server, cast(typer.Context, SimpleNamespace(find_object=lambda _: found)))

    assert options() == asdict(of_context)
    assert options(protocol="grpc") == asdict(of_context) | {"protocol": "grpc"}
    assert options("b:1") == asdict(ConnectionOptions())  # another cluster gets no keys of this one
    monkeypatch.setenv("ROCKETSIM_ACCESS_KEY", "bob")
    monkeypatch.setenv("ROCKETSIM_SECRET_KEY", "t")
    assert options() == asdict(of_context) | {"access_key": "bob", "secret_key": "t"}


def test_a_warning_says_that_others_may_read_a_secret(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ROCKETSIM_ACCESS_KEY", "alice")
    monkeypatch.setenv("ROCKETSIM_SECRET_KEY", "hidden-word")
    rocketsim("context", "add", "prod", "-n", "a:1")
    assert "other users may read" not in rocketsim("context", "list").stderr
    home.chmod(0o644)
    assert f"{home}: other users may read the secret in this file" in rocketsim("context", "list").stderr


@pytest.mark.parametrize(
    "text",
    [
        "[contexts.a]\nnameServer = 3",
        "[contexts.a]\nnameServer = 'a:1'\ntls = 'yes'",
        "[contexts.a]\ntls = true",
        "[contexts.a]\nnameServer = 'a:1'\ntlsCa = '/ca.pem'",
        "[contexts]\na = 'a:1'",
        "contexts = 3",
        "current = 3",
    ],
)
def test_a_value_that_cannot_be_is_refused_with_the_file(home: Path, text: str):
    home.parent.mkdir()
    home.write_text(text)
    done = rocketsim("admin", "clusterList")
    assert done.returncode == 1 and str(home) in done.stderr and "correct it" in done.stderr


def test_a_name_that_is_not_there_and_a_file_that_is_damaged_say_what_to_do(home: Path):
    assert "there is no context 'x'; known: none" in rocketsim("--context", "x", "admin", "clusterList").stderr
    assert "there is no context 'x'" in rocketsim("context", "use", "x").stderr
    home.parent.mkdir()
    home.write_text("[contexts.a]\nnameserver = 'a:1'\n")
    assert str(home) in rocketsim("admin", "clusterList").stderr
    home.write_text("[contexts")
    done = rocketsim("context", "list")
    assert done.returncode == 1 and str(home) in done.stderr and "Traceback" not in done.stderr
