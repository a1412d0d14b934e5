"""The names that bash completes, with the script that `rocketsim --install-completion` writes."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketsim_cli import completion
from rocketsim_cli.main import main
from rocketsim_client import Admin
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import Processes

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed"),
]

# Bash gives the words as it divides them: at blanks, and at colons.
COMPLETE = r"""
eval "$(_ROCKETSIM_COMPLETE=source_bash rocketsim)"
COMP_WORDS=(rocketsim "$@")
COMP_CWORD=$#
_rocketsim_completion rocketsim
printf '%s\n' "${COMPREPLY[@]}"
"""


class Running(NamedTuple):
    name_server: str
    broker: str


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Processes(tmp_path_factory.mktemp("broker")) as processes:
        namesrv = processes.start_namesrv()
        broker = processes.start_broker("broker-a", 0, namesrv)
        with Admin(namesrv.address) as admin:
            wait_until(lambda: admin.cluster_list(), "the broker is registered")
            for topic in ("Orders", "OrdersOld", "Payments"):
                admin.update_topic(topic)
            admin.update_topic("%odd")
            wait_until(lambda: {"Orders", "OrdersOld", "Payments", "%odd"} <= {*admin.topic_list()}, "the topics")
        yield Running(namesrv.address, broker.address)


def environment(home: Path, **more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("ROCKETSIM", "NAMESRV", "XDG"))}
    return {**plain, "PATH": path, "HOME": str(home), **more}


def completed_by_bash(home: Path, *words: str, **more: str) -> list[str]:
    """Returns what bash offers for the last word, which may be empty.  Fails if bash prints an error."""
    done = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", *words],
        capture_output=True,
        text=True,
        env=environment(home, **more),
        timeout=PROCESS_PATIENCE_S,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


Complete = Callable[..., list[str]]


@pytest.fixture
def completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
    """A function that returns the same as `completed_by_bash`, but without a new process, and with patience."""
    monkeypatch.setattr(completion, "TIMEOUT_S", PROCESS_PATIENCE_S)

    def complete(*words: str, **more: str) -> list[str]:
        line = {"COMP_WORDS": "\n".join(("rocketsim", *words)), "COMP_CWORD": str(len(words))}
        wanted = environment(tmp_path, _ROCKETSIM_COMPLETE="complete_bash", **line, **more)
        with pytest.MonkeyPatch.context() as patch:
            for name in os.environ.keys() - wanted.keys():
                patch.delenv(name)
            for name, value in wanted.items():
                patch.setenv(name, value)
            patch.setattr(completion, "before_fragment", "")
            patch.setattr(sys, "argv", ["rocketsim"])
            patch.setattr(
                sys.modules["__main__"], "__package__", None
            )  # without this patch the program's name would be python -m pytest
            with pytest.raises(SystemExit) as end:
                main()
        said = capsys.readouterr()
        assert (end.value.code, said.err) in ((0, ""), (None, ""))
        return said.out.split()

    return complete


def at(address: str) -> tuple[str, ...]:
    """Returns the words of `-n ADDRESS`, as bash splits them at colons."""
    return "-n", *address.replace(":", " : ").split()


def test_bash_offers_the_words_of_the_command_line(tmp_path: Path) -> None:
    """The tests below need no bash.  The test completes no names of a cluster, because a busy machine may answer too
    late for them.
    """
    assert completed_by_bash(tmp_path, "admin", "topicSta") == ["topicStatus"]
    assert completed_by_bash(tmp_path, "produce", *at("127.0.0.1:1"), "--ta") == ["--tag"]


@pytest.mark.parametrize("command", [("admin", "topicStatus"), ("produce",), ("consume",)], ids=" ".join)
def test_topics_are_those_of_the_cluster(completed: Complete, running: Running, command: tuple[str, ...]) -> None:
    n = at(running.name_server)
    assert completed(*command, *n, "-t", "Or") == ["Orders", "OrdersOld"]
    assert completed(*command, *n, "--topic", "Pay") == ["Payments"]
    every = completed(*command, *n, "-t", "")
    assert {"Orders", "OrdersOld", "Payments"} <= {*every} and not any(name.startswith("%") for name in every)
    assert completed(*command, *n, "-t", "%o") == ["%odd"]


def test_groups_and_names_of_brokers_and_clusters_are_completed(completed: Complete, running: Running) -> None:
    n = at(running.name_server)
    with Admin(running.name_server) as admin:
        from rocketsim_client import SubscriptionGroupConfig

        admin.update_sub_group(SubscriptionGroupConfig(group_name="people"))
    assert completed("consume", *n, "-g", "peo") == ["people"]
    assert completed("admin", "getConsumerConfig", *n, "-g", "peo") == ["people"]
    assert completed("admin", "wipeWritePerm", *n, "-b", "") == ["broker-a"]
    assert completed("admin", "topicList", *n, "-c", "Def") == ["DefaultCluster"]
    host, port = running.broker.split(":")
    assert completed("admin", "brokerStatus", *n, "-b", "") == [running.broker]
    # Bash replaces only what follows the last colon.
    assert completed("admin", "brokerStatus", *n, "-b", host, ":") == [port]
    assert completed("admin", "brokerStatus", *n, "-b", host, ":", port[:2]) == [port]


def test_the_cluster_is_that_of_the_line_the_environment_or_a_context(
    tmp_path: Path, completed: Complete, running: Running
) -> None:
    words = "produce", "-t", "Or"
    both = ["Orders", "OrdersOld"]
    assert completed(*words) == []
    assert completed(*words, NAMESRV_ADDR=running.name_server) == both
    added = subprocess.run(
        ["rocketsim", "context", "add", "mine", "-n", running.name_server], env=environment(tmp_path), check=False
    )
    assert added.returncode == 0
    assert completed(*words) == both
    assert completed("produce", *at("127.0.0.1:1"), "-t", "Or") == []
    subprocess.run(["rocketsim", "context", "add", "other", "-n", "127.0.0.1:1"], env=environment(tmp_path), check=True)
    assert completed(*words) == []
    assert completed("--context", "mine", *words) == both


def test_a_failure_is_silent(tmp_path: Path, completed: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "TIMEOUT_S", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert completed("produce", *at(address), "-t", "Or") == []
    assert completed("produce", *at(address), "-t", "Or") == []
    assert completed("produce", "-n", "nonsense", "-t", "Or") == []
    assert completed("--protocol", "nonsense", "produce", *at(address), "-t", "Or") == []
    contexts = tmp_path / ".config" / "rocketsim" / "contexts.toml"
    contexts.parent.mkdir(parents=True)
    contexts.write_text("current = ")
    assert completed("produce", "-t", "Or") == []
    assert completed("admin", "topicSta") == ["topicStatus"]  # words of the command line need no cluster


def test_the_installation_is_found_by_a_new_bash(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", "rocketsim --install-completion; true"],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
    )
    assert "bash completion installed" in done.stdout, done.stderr
    asked = subprocess.run(
        ["bash", "--rcfile", str(tmp_path / ".bashrc"), "-ic", "complete -p rocketsim"],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
    )
    assert "-F _rocketsim_completion rocketsim" in asked.stdout


@pytest.mark.parametrize(
    ("words", "position", "joined", "before"),
    [
        (
            ["rocketsim", "produce", "-n", "127.0.0.1", ":", "9876", "-t", "Re"],
            7,
            "produce -n 127.0.0.1:9876 -t Re",
            "",
        ),
        (["rocketsim", "-b", "127.0.0.1", ":"], 3, "-b ", "127.0.0.1:"),
        (["rocketsim", "-b", "127.0.0.1", ":", "10"], 4, "-b 10", "127.0.0.1:"),
        (["rocketsim", "-n", "'a:1;b:2'", "-t", ""], 4, "-n 'a:1;b:2' -t ", ""),
        (["rocketsim", "-b", "[", "::", "1]", ":", "98"], 6, "-b 98", "[::1]:"),
        (["rocketsim", "-n", "a", ":", ""], 4, "-n a: ", ""),
        (["rocketsim", "-t", "Or", "-n", "a"], 2, "-t Or", ""),  # the cursor is not at the end
    ],
)
def test_words_that_bash_has_divided_are_joined(
    words: list[str], position: int, joined: str, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "before_fragment", "")
    given = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(position), completion.VARIABLE: "complete_bash"}
    completion.join_words_of_bash(given)
    assert given["COMP_WORDS"].split("\n")[1:] == joined.split(" ")
    assert int(given["COMP_CWORD"]) == len(joined.split(" "))
    assert completion.before_fragment == before
