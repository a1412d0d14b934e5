"""rocketsim_testing on real processes: the pair, its pytest fixtures, and that it leaves nothing behind."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import rocketsim_testing
from rocketsim_client import Consumer, Message, Producer, PullConsumer, RocketSimError, SendStatus
from rocketsim_client.errors import CallTimeout, InvalidParameter
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import ROOT

pytestmark = pytest.mark.cluster

(EXAMPLE,) = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs/client.md").read_text(), re.M | re.S)  # kills the master

USER_TESTS = f"""{EXAMPLE}

import pytest
from rocketsim_client import SendStatus

topics, masters = [], []


@pytest.fixture(autouse=True)
def before_the_test(rocketsim_pair, rocketsim_topic):
    topics.append(rocketsim_topic)
    masters.append(rocketsim_pair.master_address)


def test_the_next_test_has_a_whole_pair_and_a_topic_of_its_own(rocketsim_pair, rocketsim_topic):
    assert topics[0] != topics[1] == rocketsim_topic
    assert masters == [rocketsim_pair.slave_address, rocketsim_pair.master_address]
    with Producer(rocketsim_pair.name_server, timeout_s=60) as producer:
        assert producer.send(Message(rocketsim_topic, b"x")).send_status == SendStatus.SEND_OK


def test_that_fails(rocketsim_pair):
    rocketsim_pair.kill_slave()
    assert False
"""

KILLED = """
import os, signal
import rocketsim_testing
with rocketsim_testing.pair():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def environment(folder: Path) -> dict[str, str]:
    code = os.pathsep.join(map(str, (ROOT, ROOT / "proto")))
    return os.environ | {"PYTHONPATH": code, "TMPDIR": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def is_clean(folder: Path) -> bool:
    """Returns whether neither a file in the folder nor a process that was started with it is left."""
    left = [one for one in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(one.info["cmdline"] or ())]
    return not left and not list(folder.iterdir())


def test_a_test_kills_promotes_restarts_and_waits() -> None:
    with rocketsim_testing.pair(slaveWaitTimeMs=1000) as pair:
        topic = pair.make_topic("Orders", queues=1)
        first_master = pair.master_address
        assert pair.lag("g", topic) in (None, 0)
        with Producer(pair.name_server, timeout_s=PROCESS_PATIENCE_S) as producer:
            assert producer.send(Message(topic, b"a")).send_status == SendStatus.SEND_OK
            with pytest.raises(TimeoutError, match="group g has a lag of 0 in topic Orders"):
                pair.wait_for_lag("g", topic, timeout_s=0)
            with Consumer(pair.name_server, "g", topic, timeout_s=PROCESS_PATIENCE_S) as consumer:
                consumer.ack(consumer.receive(timeout_s=PROCESS_PATIENCE_S))
            pair.wait_for_lag("g", topic, timeout_s=PROCESS_PATIENCE_S)
            pair.kill_master()
            with PullConsumer(pair.name_server) as reader:
                assert reader.read(topic).read_all().num_rows == 1  # from the slave
            with pytest.raises(RocketSimError), Producer(pair.name_server) as hasty:
                hasty.send(Message(topic, b"nobody takes it"))
            pair.promote()
            assert pair.slave_address == first_master != pair.master_address
            assert producer.send(Message(topic, b"b")).send_status == SendStatus.SLAVE_NOT_AVAILABLE
            pair.restart(PROCESS_PATIENCE_S)
            assert producer.send(Message(topic, b"c")).send_status == SendStatus.SEND_OK
            with pytest.raises(RocketSimError):  # the master answers
                pair.promote()


def test_a_broker_whose_port_was_taken_meanwhile_restarts_on_another_one() -> None:
    with rocketsim_testing.pair() as pair, socket.socket() as other:
        pair.kill_slave()
        host, _, port = pair.slave_address.rpartition(":")
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((host, int(port)))
        other.listen()
        pair.restart(PROCESS_PATIENCE_S)
        assert pair.slave_address != f"{host}:{port}"


def test_a_partition_keeps_the_slave_behind_until_it_heals_whoever_is_the_master() -> None:
    with rocketsim_testing.pair(slaveWaitTimeMs=1000) as pair:
        with pytest.raises(ValueError, match=r"pair\(endpoints=True\)"):
            _ = pair.endpoints
        topic = pair.make_topic(queues=1)
        with Producer(pair.name_server, timeout_s=PROCESS_PATIENCE_S) as producer:

            def statuses() -> list[SendStatus]:
                """Returns the statuses of two sends: one while the brokers are apart, and one afterwards."""
                with pair.partition(PROCESS_PATIENCE_S):
                    apart = producer.send(Message(topic, b"apart")).send_status
                    (slave,) = pair.admin.ha_status(broker_addr=pair.slave_address)
                    (master,) = pair.admin.ha_status(broker_addr=pair.master_address)
                    assert slave.commit_log_max_offset < master.commit_log_max_offset
                return [apart, producer.send(Message(topic, b"together")).send_status]

            assert statuses() == [SendStatus.SLAVE_NOT_AVAILABLE, SendStatus.SEND_OK]
            pair.kill_master()
            pair.promote()
            pair.restart(PROCESS_PATIENCE_S)
            assert statuses() == [SendStatus.SLAVE_NOT_AVAILABLE, SendStatus.SEND_OK]
            pair.kill_master()
            pair.restart(PROCESS_PATIENCE_S)
            with pytest.raises(ZeroDivisionError), pair.partition(PROCESS_PATIENCE_S):
                raise ZeroDivisionError
            assert producer.send(Message(topic, b"after an error")).send_status == SendStatus.SEND_OK


def test_a_slave_that_has_not_noticed_the_masters_death_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with rocketsim_testing.pair() as pair:
        promote_slave = pair.admin.promote_slave
        troubles = [InvalidParameter(f"the master at {pair.master_address} still answers: stop it first")]
        lost_answers = [CallTimeout("the answer was lost")]

        def refused_once_then_answered_too_late(*arguments: str, **fields: str) -> None:
            if troubles:
                raise troubles.pop()
            promote_slave(*arguments, **fields)
            raise lost_answers.pop()  # a second promotion would find the list empty

        monkeypatch.setattr(pair.admin, "promote_slave", refused_once_then_answered_too_late)
        former = pair.master_address
        pair.kill_master()
        pair.promote()
        assert pair.slave_address == former != pair.master_address
        assert not troubles
        assert not lost_answers


def test_fixtures_restore_the_pair_and_leave_nothing_behind(tmp_path: Path) -> None:
    files, tests = tmp_path / "files", tmp_path / "test_of_a_user.py"
    files.mkdir()
    tests.write_text(USER_TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "rocketsim_testing.plugin", "-p", "no:cacheprovider", tests]
    done = subprocess.run(command, cwd=tmp_path, env=environment(files), capture_output=True, text=True)
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert is_clean(files)


def test_what_pytest_imports_at_each_start_brings_no_client() -> None:
    code = "import sys, rocketsim_testing.plugin; print([name for name in ('grpc', 'pyarrow') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
    with pytest.raises(AttributeError, match="'rocketsim_testing' has no attribute 'Broker'"):
        _ = rocketsim_testing.Broker  # type: ignore[attr-defined]


def test_a_kill_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, env=environment(tmp_path))
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: is_clean(tmp_path), "processes and files are gone")
