"""`rocketsim context`: what is kept, who may read it, and that commands go by it."""

import stat
from pathlib import Path

import pytest

from rocketsim_cli import contexts
from rocketsim_cli.contexts import Cluster, Contexts
from tests.cli.test_commands import lines, rocketsim
from tests.support.tls import CA


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("ACCESS_KEY", "SECRET_KEY", "TOOLS", "CONTEXT"):
        monkeypatch.delenv(f"ROCKETSIM_{name}", raising=False)
    return tmp_path / "rocketsim" / "contexts.toml"


def test_what_is_written_is_read_again():
    odd = Cluster('a:1;"b"\\:2', tls=True, tlsCa="/ä/ca.pem", accessKey="k", secretKey="s\n\x7f")
    contexts.save(Contexts({"a b.c": odd, "plain": Cluster("x:1")}, "a b.c"))
    assert contexts.load() == Contexts({"a b.c": odd, "plain": Cluster("x:1")}, "a b.c")
    assert "s\n" not in repr(odd)


def test_only_the_user_may_read_it_and_its_secret_is_not_shown(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ROCKETSIM_ACCESS_KEY", "alice")
    monkeypatch.setenv("ROCKETSIM_SECRET_KEY", "hidden-word")
    assert rocketsim("--tls", "--tls-ca", str(CA), "context", "add", "prod", "-n", "a:1").returncode == 0
    assert stat.S_IMODE(home.stat().st_mode) == 0o600 and "hidden-word" in home.read_text()
    (row,) = lines(rocketsim("context", "list", "--json").stdout)
    assert (row["name"], row["current"], row["tls"], row["accessKey"]) == ("prod", True, True, "alice")
    for shown in (rocketsim("context", "list"), rocketsim("context", "list", "--json")):
        assert "hidden-word" not in shown.stdout


def test_commands_go_by_the_current_context_and_the_command_line_before_it():
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
    cluster = Cluster("a:1", tls=True, tlsCa=str(CA), accessKey="alice", secretKey="s")
    options = cluster.options()
    assert (options.tls, options.tls_ca, options.access_key, options.secret_key) == (True, CA, "alice", "s")


def test_a_name_that_is_not_there_and_a_file_that_is_damaged_say_what_to_do(home: Path):
    assert "there is no context 'x'; known: none" in rocketsim("--context", "x", "admin", "clusterList").stderr
    assert "there is no context 'x'" in rocketsim("context", "use", "x").stderr
    home.parent.mkdir()
    home.write_text("[contexts.a]\nnameserver = 'a:1'\n")
    assert str(home) in rocketsim("admin", "clusterList").stderr
    home.write_text("[contexts")
    done = rocketsim("context", "list")
    assert done.returncode == 1 and str(home) in done.stderr and "Traceback" not in done.stderr
