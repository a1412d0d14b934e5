"""Tests RocketMQ's own producer, push and pull consumers while a master of ours is killed and its slave is promoted.

`./run test --interop` runs these tests.
"""

from pathlib import Path

import pytest

from rocketsim_client import Admin
from rocketsim_client.errors import RocketSimError
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import Processes
from testbed.real_rocketmq import client_jars, free_port, java
from tests.interop.marks import INTEROP
from tests.interop.programs import CLIENT_VERSIONS
from tests.support.programs import Program

pytestmark = INTEROP
PROGRAM = Path(__file__).parent / "Failover.java"
MANY = 100  # messages before and after the promotion
STORED = ("SEND_OK", "SLAVE_NOT_AVAILABLE")  # the promoted slave has no slave itself, so it answers SLAVE_NOT_AVAILABLE


def bodies(program: Program, what: str) -> list[str]:
    """Returns the bodies of the program's lines that begin with this word."""
    return [line.rpartition(" ")[2] for line in list(program.lines) if line.startswith(f"{what} ")]


def has_sent(program: Program, more: int) -> None:
    before = len(bodies(program, "sent"))

    def has() -> bool:
        assert program.process.poll() is None, program.errors()
        return len(bodies(program, "sent")) >= before + more

    wait_until(has, f"{more} messages are sent", PROCESS_PATIENCE_S)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_what_was_acknowledged_is_consumed_after_a_promotion(tmp_path: Path, version: str) -> None:
    ports = [free_port() for _ in range(3)]
    with Processes(tmp_path) as processes:
        namesrv = processes.start_namesrv(remotingPort=ports[0])
        master = processes.start_broker("broker-a", 0, namesrv, brokerRole="SYNC_MASTER", remotingPort=ports[1])
        slave = processes.start_broker("broker-a", 1, namesrv, slaveReadEnable="true", remotingPort=ports[2])
        wait_until(lambda: "writable" in master.log(), "the master takes writes")
        with Admin(namesrv.address) as admin:
            admin.update_topic("orders", read_queue_nums=4, write_queue_nums=4)
        home = tmp_path / "java"
        home.mkdir()
        command = java(client_jars(version), home, "256m", str(PROGRAM), f"127.0.0.1:{ports[0]}", "orders", "shop")
        with Program(home, command) as program:
            has_sent(program, MANY)
            master.kill()

            def is_promoted() -> bool:
                try:
                    with Admin(namesrv.address) as admin:
                        admin.promote_slave(slave.address, broker_name="broker-a")
                except RocketSimError as refusal:  # the master's death is not noticed yet
                    assert "stop it first" in str(refusal) or "does not answer" in str(refusal), refusal
                    return False
                return True

            wait_until(is_promoted, "the slave is promoted", PROCESS_PATIENCE_S)
            has_sent(program, MANY)
            program.say("enough")
            lines = [line.split() for line in list(program.lines) if line.startswith("sent ")]
            assert {status for _, status, _ in lines} <= {*STORED}
            sent = {body for _, _, body in lines}
            for what in ("pushed", "pulled"):
                wait_until(lambda what=what: sent <= {*bodies(program, what)}, f"all are {what}", PROCESS_PATIENCE_S)
            program.end()
