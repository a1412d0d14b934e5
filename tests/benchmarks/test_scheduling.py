"""All contestants are in the harness's session, so that they share the CPU fairly, and end with their children."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from benchmarks import driver as driver_module
from benchmarks import leash, scheduling
from benchmarks.bench import Bench, Unavailable, WrongResult
from benchmarks.contest import SMOKE
from benchmarks.driver import Driver, python_driver
from benchmarks.peers import kafka, maven
from benchmarks.peers.rocketmq import JVMS
from testbed.polling import wait_until
from testbed.processes import Processes
from testbed.real_rocketmq import JavaServer

SLEEPS = "import time; print('{}', flush=True); time.sleep(600)"
STARTS_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPS!r}], stdin=subprocess.DEVNULL)"
JAVA = f"""#!{sys.executable}
import os, socket, time
with socket.create_server(("127.0.0.1", int(os.environ["FAKE_JAVA_PORT"]))):
    time.sleep(0 if "format" in os.sys.argv else 600)
"""


@pytest.fixture
def java(tmp_path, monkeypatch):
    """Installs a `java` that accepts connections on a free port, whatever its arguments are."""
    path = tmp_path / "bin" / "java"
    path.parent.mkdir()
    path.write_text(JAVA)
    path.chmod(0o755)
    with socket.socket() as held:  # keeps the port from others, but not from the fake `java`, since it does not listen
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
        monkeypatch.setenv("FAKE_JAVA_PORT", str(port))
        monkeypatch.setattr(kafka, "free_port", lambda: port)
        monkeypatch.setattr(maven, "jars", lambda *words: tmp_path)
        yield port


def facts(pid: int) -> tuple[int, str | None]:
    autogroup = Path(f"/proc/{pid}/autogroup")
    return os.getsid(pid), autogroup.read_text() if autogroup.exists() else None


def commands_of_children() -> dict[int, str]:
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # the list can contain a zombie, an ended child of an earlier test
            found[process.pid] = " ".join(process.cmdline())
    return found


def test_all_contestants_are_in_the_harness_s_scheduling_group(tmp_path, java):
    with ExitStack() as stack:
        raw = stack.enter_context(python_driver("raw", "benchmarks.raw", tmp_path / "raw.log"))
        raw.ask("stream", frames=1)  # its server is there
        stack.enter_context(Processes(tmp_path / "ours")).start_namesrv()
        stack.enter_context(kafka.running(tmp_path / "kafka"))
        running = commands_of_children()
        words = ("benchmarks.raw", "benchmarks.raw server", "namesrv", "kafka.Kafka")
        assert [word for word in words if not any(word in command for command in running.values())] == []
        assert {facts(pid) for pid in running} == {facts(os.getpid())}
        assert scheduling.outsiders() == []


def test_java_servers_are_in_the_harness_s_scheduling_group(tmp_path, java):
    server = JavaServer("master", java, tmp_path, ["java", "Main"], JVMS)
    server.start()
    try:
        (pid,) = (pid for pid, command in commands_of_children().items() if "Main" in command.split())
        assert facts(pid) == facts(os.getpid())
    finally:
        server.kill()


def test_a_contestant_that_has_a_session_of_its_own_is_refused(tmp_path):
    with ExitStack() as stack:
        bench = Bench("test", SMOKE, tmp_path, stack, lambda *_: None)
        other = subprocess.Popen([sys.executable, "-c", SLEEPS], start_new_session=True, stdout=subprocess.PIPE)
        stack.enter_context(other)
        stack.callback(other.kill)
        assert other.stdout.readline()  # Python runs
        runs = []
        with pytest.raises(WrongResult, match=rf"process {other.pid}\) is in session {other.pid}, .*not in session"):
            bench.contest({"ours": lambda: runs.append(1) or {"rate": 1.0}})
        assert runs == []


def test_a_contestant_that_leaves_the_group_in_its_run_is_refused(tmp_path):
    with ExitStack() as stack:
        bench = Bench("test", SMOKE, tmp_path, stack, lambda *_: None)

        def leaves():
            other = stack.enter_context(subprocess.Popen([sys.executable, "-c", SLEEPS], start_new_session=True))
            stack.callback(other.kill)
            wait_until(lambda: os.getsid(other.pid) == other.pid, "a session of its own", 20)
            return {"rate": 1.0}

        with pytest.raises(WrongResult, match="not all processes share the CPU"):
            bench.contest({"ours": leaves})


def test_a_process_that_ends_is_no_outsider():
    ended = subprocess.Popen([sys.executable, "-c", SLEEPS])
    assert not scheduling.is_ending(psutil.Process(ended.pid))
    ended.kill()
    wait_until(lambda: scheduling.is_ending(psutil.Process(ended.pid)), "the process to end")
    ended.wait()


def test_the_head_of_a_table_says_what_everybody_shares():
    words = scheduling.describe()
    assert f"session {os.getsid(0)}" in words
    assert words.endswith(("autogroup is on", "autogroup is off", "autogroup is not there"))


def test_a_driver_that_is_killed_because_it_hangs_takes_along_what_it_has_started(tmp_path, monkeypatch):
    driver = Driver("test", [sys.executable, "-c", STARTS_A_CHILD], tmp_path / "log")
    driver.ask("started")  # the child prints this answer, and never reads its input
    (child,) = psutil.Process(driver.pid).children()
    monkeypatch.setattr(driver_module, "ANSWER_TIMEOUT_S", 0.1)
    with pytest.raises(Unavailable, match="ended because it hung"):
        driver.ask("started")
    gone, _ = psutil.wait_procs([child], timeout=60)
    assert gone
    with driver:
        pass


def test_killing_what_has_ended_already_is_nothing():
    process = leash.start([sys.executable, "-c", "pass"])
    process.wait()
    leash.kill(process)
