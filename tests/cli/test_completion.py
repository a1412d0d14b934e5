"""The names that bash completes, with the script that `rocketsim --install-completion` writes."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketsim_cli import completion
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


def completed(home: Path, *words: str, **more: str) -> list[str]:
    """Returns what bash offers for the last word, which may be empty.  Nothing may be said beside that."""
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


def at(address: str) -> tuple[str, ...]:
    """`-n ADDRESS`, as bash divides it."""
    return "-n", *address.replace(":", " : ").split()


@pytest.mark.parametrize("command", [("admin", "topicStatus"), ("produce",), ("consume",)], ids=" ".join)
def test_topics_are_those_of_the_cluster(tmp_path: Path, running: Running, command: tuple[str, ...]) -> None:
    n = at(running.name_server)
    offers(["Orders", "OrdersOld"], tmp_path, *command, *n, "-t", "Or")
    offers(["Payments"], tmp_path, *command, *n, "--topic", "Pay")
    every = completed(tmp_path, *command, *n, "-t", "")
    assert {"Orders", "OrdersOld", "Payments"} <= {*every} and not any(name.startswith("%") for name in every)
    offers(["%odd"], tmp_path, *command, *n, "-t", "%o")


def offers(expected: list[str], home: Path, *words: str, **more: str) -> None:
    """Waits until bash offers this.  It offers nothing while the cluster needs more than a second for its answer."""
    wait_until(lambda: completed(home, *words, **more) == expected, f"{words}: {expected}", PROCESS_PATIENCE_S)


def test_groups_and_names_of_brokers_and_clusters_are_completed(tmp_path: Path, running: Running) -> None:
    n = at(running.name_server)
    with Admin(running.name_server) as admin:
        from rocketsim_client import SubscriptionGroupConfig

        admin.update_sub_group(SubscriptionGroupConfig(group_name="people"))
    offers(["people"], tmp_path, "consume", *n, "-g", "peo")
    offers(["people"], tmp_path, "admin", "getConsumerConfig", *n, "-g", "peo")
    offers(["broker-a"], tmp_path, "admin", "wipeWritePerm", *n, "-b", "")
    offers(["DefaultCluster"], tmp_path, "admin", "topicList", *n, "-c", "Def")
    host, port = running.broker.split(":")
    offers([running.broker], tmp_path, "admin", "brokerStatus", *n, "-b", "")
    # Bash replaces only what follows the last colon.
    offers([port], tmp_path, "admin", "brokerStatus", *n, "-b", host, ":")
    offers([port], tmp_path, "admin", "brokerStatus", *n, "-b", host, ":", port[:2])


def test_the_cluster_is_that_of_the_line_the_environment_or_a_context(tmp_path: Path, running: Running) -> None:
    words = "produce", "-t", "Or"
    both = ["Orders", "OrdersOld"]
    assert completed(tmp_path, *words) == []
    offers(both, tmp_path, *words, NAMESRV_ADDR=running.name_server)
    added = subprocess.run(
        ["rocketsim", "context", "add", "mine", "-n", running.name_server], env=environment(tmp_path), check=False
    )
    assert added.returncode == 0
    offers(both, tmp_path, *words)
    assert completed(tmp_path, "produce", *at("127.0.0.1:1"), "-t", "Or") == []
    subprocess.run(["rocketsim", "context", "add", "other", "-n", "127.0.0.1:1"], env=environment(tmp_path), check=True)
    assert completed(tmp_path, *words) == []
    offers(both, tmp_path, "--context", "mine", *words)


def test_a_failure_is_silent(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert completed(tmp_path, "produce", *at(address), "-t", "Or") == []
    assert completed(tmp_path, "produce", *at(address), "-t", "Or") == []
    assert completed(tmp_path, "produce", "-n", "nonsense", "-t", "Or") == []
    assert completed(tmp_path, "--protocol", "nonsense", "produce", *at(address), "-t", "Or") == []
    contexts = tmp_path / ".config" / "rocketsim" / "contexts.toml"
    contexts.parent.mkdir(parents=True)
    contexts.write_text("current = ")
    assert completed(tmp_path, "produce", "-t", "Or") == []
    assert completed(tmp_path, "admin", "topicSta") == ["topicStatus"]  # words of the command line need no cluster


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
