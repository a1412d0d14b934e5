"""`rocketsim doctor`: each check by itself, and the whole command with a pair and without a cluster."""

import sys
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from rocketsim_cli import doctor
from rocketsim_cli.tls import ConnectionOptions
from rocketsim_source.options.view_options import view_options
from testbed.polling import wait_until
from testbed.processes import Processes, ServerProcess
from tests.cli.test_commands import lines, on_terminal, rocketsim


@pytest.mark.parametrize(
    ("said", "ok", "found"),
    [
        ('openjdk version "17.0.9" 2023-10-17', True, "17"),
        ('java version "1.8.0_292"', False, "8"),
        ("Error: no such JVM\n", False, "Error: no such JVM"),
        (None, False, "no java on the PATH or in JAVA_HOME"),
    ],
)
def test_java_has_to_be_17(said, ok, found):
    finding = doctor.of_java(said)
    assert (finding.ok, finding.found) == (ok, found)
    assert ok or "install it" in finding.advice


def test_packages_that_are_missing_or_too_old_are_named():
    installed = {"grpcio": "1.85.1", "numpy": "1.26.4", "pyspark": "3.5.0", "rocketsim": "1"}.get
    needs = ["grpcio>=1.85", "numpy>=2.0", "isal>=1.8", 'pyspark>=4.2; extra == "spark"', 'rich>=13; extra == "cli"']
    finding = doctor.of_packages(needs, installed)
    assert not finding.ok
    assert finding.found == "numpy 1.26.4 is older than 2.0; isal is missing; pyspark 3.5.0 is older than 4.2"
    assert doctor.of_packages(["grpcio>=1.85"], installed).ok


def test_the_workers_of_spark_need_this_python(tmp_path):
    for name in ("python", "python3"):
        (tmp_path / name).symlink_to("/bin/true")
    here = str(tmp_path / "python")
    assert doctor.of_workers(None, str(tmp_path / "python3"), here).ok
    other = doctor.of_workers(None, "/bin/true", here)
    assert not other.ok and other.advice == f"export PYSPARK_PYTHON={here}"
    assert not doctor.of_workers("/nowhere/python", str(tmp_path / "python3"), here).ok


def test_this_installation_is_good(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    findings = list(doctor.of_installation())
    assert [one.check for one in findings] == ["python", "packages", "recordKernels", "java", "pysparkPython"]
    assert [one for one in findings if not one.ok] == []


def test_the_options_of_spark_are_those_of_the_command_line():
    given = {
        "name_server": "a:1",
        "tls": True,
        "tls_ca": "/ca.pem",
        "tls_cert": None,
        "access_key": "",
        "protocol": "remoting",
    }
    assert doctor.source_options(given) == {
        "nameServer": "a:1",
        "tls": "true",
        "tlsCa": "/ca.pem",
        "protocol": "remoting",
    }


def test_the_view_that_is_read_with_spark_takes_the_options_of_a_command_line_without_any():
    options = doctor.source_options({"name_server": "a:1", **asdict(ConnectionOptions())})
    assert view_options({"view": "brokers", **options}).name_server == ("a:1",)


def test_without_a_name_server_nothing_can_be_said_of_a_topic():
    assert rocketsim("doctor", "-t", "T").returncode == 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    with Processes(tmp_path_factory.mktemp("broker")) as processes:
        namesrv = processes.start_namesrv()
        broker = processes.start_broker("broker-a", 0, namesrv)
        made = ("admin", "updateTopic", "-n", namesrv.address, "-b", broker.address, "-t", "T", "-r", "4", "-w", "3")
        wait_until(lambda: rocketsim(*made).returncode == 0, "the topic is made")
        yield namesrv, broker


@pytest.mark.cluster
def test_a_cluster_is_looked_at_line_by_line(broker, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    namesrv, master = broker
    done = rocketsim("doctor", "-n", namesrv.address, "-t", "T", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["check"]: row["found"] for row in lines(done.stdout)}
    assert found["nameServer"] == f"{namesrv.address}, 1 brokers"
    assert found[f"broker {master.address}"] == "ASYNC_MASTER"
    assert found["topic T"] == "4 queues to read, 3 to write"
    assert "ASYNC_MASTER" in on_terminal("doctor", "-n", namesrv.address)


@pytest.mark.cluster
def test_what_fails_says_what_to_do_and_does_not_end_the_other_checks(broker, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    namesrv, master = broker
    (absent,) = failures("-n", namesrv.address, "-t", "absent")
    assert absent["check"] == "topic absent" and "absent" in absent["found"]
    (nobody,) = failures("-n", "127.0.0.1:1")
    assert nobody["check"] == "nameServer" and "127.0.0.1:1" in nobody["found"] and "rocketsim up" in nobody["advice"]
    (wrong,) = failures("-n", master.address)  # a broker's address in place of a name server's
    assert wrong["check"] == "nameServer" and "broker" in wrong["found"]


def failures(*arguments: str) -> list[dict]:
    done = rocketsim("doctor", *arguments, "--json")
    assert done.returncode == 1
    return [row for row in lines(done.stdout) if not row["ok"]]
