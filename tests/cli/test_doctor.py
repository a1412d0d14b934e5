"""`rocketsim doctor`: each check by itself, and the whole command with a pair and without a cluster."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata

import pytest
from rocketsim_proto import version
from rocketsim_proto.extras import DISTRIBUTION

from rocketsim_cli import doctor
from rocketsim_cli.connection_options import ConnectionOptions
from rocketsim_client import AccessDenied, AclPolicy, Admin
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


def test_a_codec_that_is_not_compiled_is_good_and_can_be_better(monkeypatch):
    monkeypatch.setattr("rocketsim_proto.records.kernels.in_use", lambda: "python")
    (codec,) = (one for one in doctor.of_installation() if one.check == "recordKernels")
    assert (codec.ok, codec.found) == (True, "python")
    assert "the wheel for this Python" in codec.advice and "gcc" in codec.advice


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
    assert found[f"broker {master.address}"] == f"ASYNC_MASTER, RocketSim {metadata.version(DISTRIBUTION)}"
    assert found["topic T"] == "4 queues to read, 3 to write"
    assert "ASYNC_MASTER" in on_terminal("doctor", "-n", namesrv.address)


def test_a_broker_of_another_version_is_named():
    same = doctor.of_broker("b:1", {"brokerRole": "SLAVE", "brokerVersionDesc": version.described()})
    other = doctor.of_broker("b:1", {"brokerRole": "SLAVE", "brokerVersionDesc": "RocketSim 0.0.1"})
    rocketmq = doctor.of_broker("b:1", {"brokerVersionDesc": "V5_3_2"})
    assert (same.ok, same.advice, other.ok, other.found) == (True, "", True, "SLAVE, RocketSim 0.0.1")
    assert version.described() in other.advice and "docs/upgrade.md" in other.advice
    assert (rocketmq.found, rocketmq.advice) == ("V5_3_2", "")


def is_served(admin: Admin, broker: str) -> bool:
    """Returns whether the broker is registered, knows the administrator and takes writes."""
    try:
        return bool(admin.cluster_list()) and admin.broker_status(broker_addr=broker)[broker]["brokerActive"] == "true"
    except AccessDenied:  # the first user is made after the start
        return False


@pytest.mark.cluster
def test_rights_that_the_keys_lack_are_said(tmp_path, monkeypatch):
    """The user `app` may send to T, and nothing else."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    keys = {
        "authenticationEnabled": "true",
        "initAuthenticationUser": '{"username":"admin","password":"4dm1n-s3cr3t"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"broker","secretKey":"1nn3r-s3cr3t"}',
    }
    with Processes(tmp_path) as processes:
        namesrv = processes.start_namesrv(**keys)
        master = processes.start_broker("broker-a", 0, namesrv, authorizationEnabled="true", **keys)
        with Admin(namesrv.address, access_key="admin", secret_key="4dm1n-s3cr3t") as admin:
            wait_until(lambda: is_served(admin, master.address), "the broker has its first user, and takes writes")
            for topic in ("T", "other"):
                admin.update_topic(topic, read_queue_nums=1, write_queue_nums=1)
            admin.create_user("app", "app-s3cr3t")
            admin.create_acl("User:app", [AclPolicy("Topic:T", ("Pub",))])
        monkeypatch.setenv("ROCKETSIM_ACCESS_KEY", "app")
        monkeypatch.setenv("ROCKETSIM_SECRET_KEY", "app-s3cr3t")
        done = rocketsim("doctor", "-n", namesrv.address, "-t", "T", "--json")
        assert done.returncode == 0, done.stdout
        rows = {row["check"]: row for row in lines(done.stdout)}
        assert "Action: Get" in rows[f"broker {master.address}"]["advice"]
        assert "these keys may send, and not read" in rows["topic T"]["found"]
        (other,) = failures("-n", namesrv.address, "-t", "other")
        assert other["check"] == "topic other" and "Topic:other" in other["found"]
        monkeypatch.setenv("ROCKETSIM_SECRET_KEY", "wr0ng-s3cr3t")
        unknown, _ = failures("-n", namesrv.address, "-t", "T")
        assert unknown["check"] == f"broker {master.address}" and "signature" in unknown["found"]


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
