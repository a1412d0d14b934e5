"""`rocketsim up --detach`, `down` and `status`, with real processes."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from rocketsim_proto.remoting.codes import RequestCode

from rocketsim_cli.cluster_directory import ClusterDirectory, Member, RunningCluster
from rocketsim_cli.running_process import RunningProcess
from rocketsim_console.changes import TOKEN
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import ROOT
from tests.support.remoting import Client

pytestmark = pytest.mark.cluster


FIRST_STEPS = re.findall(r"^```sh\nrocketsim (.*)\n```", (ROOT / "docs/start.md").read_text(), re.M)
UP, PRODUCE, DOWN, _ = (command.split() for command in FIRST_STEPS)  # the last one is doctor


class CommandLine:
    """Runs commands of a user whose state is in a directory of its own."""

    def __init__(self, state: Path) -> None:
        self.default = ClusterDirectory(state / "rocketsim" / "cluster")
        self._environment = {**os.environ, "XDG_STATE_HOME": str(state)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rocketsim_cli.main", *arguments],
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=PROCESS_PATIENCE_S,
        )

    def output(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def error(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 1, done.stdout
        return done.stderr


@pytest.fixture
def line(tmp_path: Path) -> Iterator[CommandLine]:
    made = CommandLine(tmp_path / "state")
    yield made
    for directory in (made.default, ClusterDirectory(tmp_path / "kept")):
        if (cluster := directory.load()) is not None:
            cluster.supervisor.signal(signal.SIGKILL)


def start_again(console: str, broker: str) -> None:
    """Starts the broker as the console's button does."""
    with httpx2.Client(base_url=console) as browser:
        token = browser.get("/api/actions").json()["token"]
        headers = {"Origin": console.rstrip("/"), TOKEN: token}
        answer = browser.post("/api/actions/start-broker", json={"broker": broker}, headers=headers, timeout=None)
        assert answer.json() == {"done": "broker-a-s is back."}


def rows_of(line: CommandLine, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in line.run("status", *arguments, "--json").stdout.splitlines()]


def test_a_cluster_runs_in_the_background_until_down(line: CommandLine) -> None:
    said = line.output(*UP, "--topic", "Ready")
    cluster = line.default.load()
    assert cluster is not None and cluster.is_ready
    name_server = next(member.address for member in cluster.members if member.role == "name server")
    assert f"export NAMESRV_ADDR={name_server} " in said and "`rocketsim down` ends it" in said
    assert os.getsid(cluster.supervisor.pid) == cluster.supervisor.pid != os.getsid(0)
    line.output(*({"127.0.0.1:9876": name_server, "TopicTest": "Ready"}.get(word, word) for word in PRODUCE))

    rows = rows_of(line)
    assert [row["role"] for row in rows if row["role"] != "console"] == ["supervisor", "name server", "master", "slave"]
    assert {row["state"] for row in rows} == {"running"} and {row["directory"] for row in rows} == {
        str(line.default.folder)
    }
    master, slave = (row for row in rows if row["role"] in ("master", "slave"))
    assert f"broker-a on {master['address']}" in said and f"broker-a-s on {slave['address']}" in said
    assert f"endpoints {master['rocketmq5']} " in said and slave["rocketmq5"] is None
    shown = line.output("status")
    assert all(text in shown for text in (str(line.default.folder), name_server, str(master["pid"])))
    state = line.default.folder / "cluster.json"
    assert state.stat().st_mode & 0o777 == 0o600 and line.default.folder.stat().st_mode & 0o777 == 0o700

    for second in (("up", "--detach"), ("up", "--dir", str(line.default.folder))):
        refusal = line.error(*second)
        assert f"a cluster runs in this directory already (process {cluster.supervisor.pid})" in refusal
        assert "`rocketsim down` ends it" in refusal
    assert {row["state"] for row in rows_of(line)} == {"running"}

    os.kill(slave["pid"], signal.SIGKILL)
    wait_until(lambda: "ended" in {row["state"] for row in rows_of(line)}, "the end of the slave is shown")
    start_again(rows[-1]["address"], slave["address"])
    wait_until(lambda: {row["state"] for row in rows_of(line)} == {"running"}, "the new process is shown")

    assert "are deleted" in line.output(*DOWN)
    assert cluster.running() == [] and list(line.default.folder.iterdir()) == []
    assert "no cluster runs in" in line.output("down")
    assert "no cluster runs in" in line.error("status")


def test_up_with_remoting_prints_the_name_server_that_leads_to_the_brokers_remoting_ports(line: CommandLine) -> None:
    said = line.output("up", "--detach", "--remoting")
    (port,) = re.findall(r"^  mqadmin clusterList -n 127\.0\.0\.1:(\d+)$", said, re.M)
    assert f"RocketMQ's dashboard: name server 127.0.0.1:{port} " in " ".join(said.split())
    shown = {row["role"]: row["rocketmq4"] for row in rows_of(line)}
    assert shown["name server"] == f"127.0.0.1:{port}"

    async def brokers() -> Any:
        async with await Client.connect(int(port)) as client:
            cluster = await client.json(RequestCode.GET_BROKER_CLUSTER_INFO)
            return cluster["brokerAddrTable"].get("broker-a", {}).get("brokerAddrs")

    listed = {"0": shown["master"], "1": shown["slave"]}
    assert None not in listed.values()
    wait_until(lambda: asyncio.run(brokers()) == listed, f"the printed name server lists {listed}")


def test_a_directory_keeps_its_messages_also_if_up_is_killed(line: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    where = "--dir", str(folder)
    line.output("up", "--detach", *where)
    cluster = ClusterDirectory(folder).load()
    assert cluster is not None
    line.output("produce", "-n", cluster.members[1].address, "-t", "TopicTest", "hello")
    assert cluster.supervisor.signal(signal.SIGKILL)
    wait_until(lambda: not cluster.running(), "the servers end with it")
    assert {row["state"] for row in rows_of(line, *where)} == {"ended"}
    assert f"`rocketsim up` ({cluster.supervisor.pid}) was killed" in line.error("status", *where)

    line.output("up", "--detach", *where)
    again = ClusterDirectory(folder).load()
    assert again is not None and again.supervisor != cluster.supervisor
    consume = "consume", "-n", again.members[1].address, "-t", "TopicTest", "-g", "g", "--max-messages", "1"
    assert "hello" in line.output(*consume)
    master = next(member.process for member in again.members if member.role == "master")
    assert master.signal(signal.SIGKILL)
    wait_until(lambda: not master.is_running(), "its end")
    done = line.run("status", *where)
    assert done.returncode == 1 and done.stderr == ""

    said = line.output("down", *where)
    assert f"{folder} keeps its stores and logs" in said and f"`rocketsim up --dir {folder}` continues" in said
    assert again.running() == [] and (folder / "store" / "broker-a").exists()
    (down,) = [json.loads(text) for text in line.output("down", *where, "--json").splitlines()]
    assert down == {"directory": str(folder), "ended": False, "keptBytes": 0}


def test_down_also_ends_a_cluster_in_the_foreground(line: CommandLine, tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "kept")
    command = [sys.executable, "-m", "rocketsim_cli.main", "up", "--dir", str(directory.folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as up:
        try:
            wait_until(lambda: (cluster := directory.load()) is not None and cluster.is_ready, "the cluster")
            line.output("down", "--dir", str(directory.folder))
            assert up.wait(PROCESS_PATIENCE_S) == 0
        finally:
            up.kill()


def test_a_start_that_fails_says_why(line: CommandLine) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refusal = line.error("up", "--detach", "--port", str(port))
    assert f"the cluster did not start: --port {port}: another process listens there" in refusal
    assert f"(log: {line.default.log})" in refusal and "Traceback" not in refusal
    assert "no cluster runs in" in line.output("down")


def test_another_process_that_has_got_the_pid_is_not_signalled(line: CommandLine, tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "kept")
    directory.folder.mkdir()
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            up = Member("up", "supervisor", RunningProcess(other.pid, "another start"))
            directory.save(RunningCluster(True, (up,)))
            assert "was killed" in line.error("status", "--dir", str(directory.folder))
            line.output("down", "--dir", str(directory.folder))
            assert other.poll() is None and directory.load() is None
        finally:
            other.kill()


def test_down_names_what_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rocketsim_cli import down
    from rocketsim_cli.trouble import Trouble

    monkeypatch.setattr(down, "TIMEOUT_S", 0.1)
    directory = ClusterDirectory(tmp_path)
    with subprocess.Popen(["sleep", "600"]) as frozen:
        try:
            process = RunningProcess.of(frozen.pid)
            # SIGTERM stays pending until the process continues
            assert process is not None and process.signal(signal.SIGSTOP)
            stopped = psutil.STATUS_STOPPED  # before the process has stopped, a SIGTERM would take effect
            wait_until(lambda: psutil.Process(frozen.pid).status() == stopped, "it is stopped")
            directory.save(RunningCluster(True, (Member("up", "supervisor", process),)))
            with pytest.raises(Trouble, match=rf"still running after 0 s: up \(process {frozen.pid}\)"):
                down.down(tmp_path)
        finally:
            frozen.kill()
    assert not process.is_running()


def test_a_process_that_nobody_has_waited_for_has_ended() -> None:
    with subprocess.Popen(["true"]) as child:
        process = RunningProcess.of(child.pid)
        wait_until(lambda: RunningProcess.of(child.pid) is None, "its end")  # it is a zombie now
        assert process is None or not process.is_running()
    assert RunningProcess.this().is_running() and RunningProcess.of(1 << 30) is None
