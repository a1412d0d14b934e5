"""RocketMQ's own mqadmin asks and resets a running push consumer of RocketMQ's Java client at our pair.

`./run test --interop` runs these tests.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rocketsim_client import Admin, Message, Producer
from testbed.polling import wait_until
from testbed.processes import Processes
from testbed.real_rocketmq import COMMAND_TIMEOUT_S, NEWEST, client_jars, free_port, java
from tests.interop.marks import INTEROP
from tests.interop.programs import MqAdmin

pytestmark = INTEROP
PROGRAM = Path(__file__).parent / "AskedConsumer.java"
TOPIC, GROUP = "orders", "asked-workers"
COUNT = 6


@contextmanager
def push_consumer(home: Path, name_server: str, version: str) -> Iterator[Path]:
    """Runs a push consumer.  Yields the file of what it prints."""
    printed = home / "consumer.out"
    command = java(client_jars(version), home, "128m", str(PROGRAM), name_server, TOPIC, GROUP)
    with printed.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, cwd=home)
    try:
        yield printed
    finally:
        try:
            process.communicate(timeout=COMMAND_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()


def consumed(printed: Path) -> dict[str, int]:
    """Returns how often each message was consumed."""
    return {
        body: int(times) for body, times in re.findall(r"^consumed (\w+) (\d+)$", printed.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize("version", [NEWEST, "4.9.8"])
def test_mqadmin_asks_and_resets_a_running_push_consumer(tmp_path: Path, version: str) -> None:
    name_server = f"127.0.0.1:{free_port()}"
    here = f"-n {name_server}"
    with ExitStack() as stack:
        processes = stack.enter_context(Processes(tmp_path))
        namesrv = processes.start_namesrv(remotingPort=name_server.rpartition(":")[2])
        master, _ = processes.start_pair("broker-a", namesrv, brokerRole="SYNC_MASTER", remotingPort=0)
        wait_until(lambda: "writable" in master.log(), "the master takes writes")
        admin = stack.enter_context(Admin(namesrv.address))
        admin.update_topic(TOPIC, read_queue_nums=2, write_queue_nums=2)
        with Producer(namesrv.address) as producer:
            sent = [producer.send(Message(TOPIC, b"body%d" % number, keys="key")) for number in range(COUNT)]

        def commits_all() -> bool:
            return [one.diff for one in admin.consumer_progress(GROUP, TOPIC)] == [0, 0]

        tools = MqAdmin(version, tmp_path / "mqadmin")
        try:
            with push_consumer(tmp_path, name_server, version) as printed:
                once = {f"body{number}": 1 for number in range(COUNT)}
                wait_until(lambda: consumed(printed) == once, "the consumer has consumed all messages")
                found = re.search(r"^client (\S+)$", printed.read_text(), re.MULTILINE)
                assert found is not None
                client_id = found[1]

                assert client_id in tools.run(f"consumerConnection {here} -g {GROUP}")
                shown = tools.run(f"consumerStatus {here} -g {GROUP} -i {client_id} -s")
                assert TOPIC in shown and "CONSUME_PASSIVELY" in shown and "ConsumeMessageThread" in shown
                assert "Same subscription" in tools.run(f"consumerStatus {here} -g {GROUP}")

                # queryMsgById of 4.9.8 takes only the broker's message id
                query = "queryMsgById" if version == NEWEST else "queryMsgByUniqueKey"
                again = tools.run(f"{query} {here} -t {TOPIC} -i {sent[0].msg_id} -g {GROUP} -d {client_id}")
                assert "consumeResult=CR_SUCCESS" in again
                assert consumed(printed) == once | {"body0": 2}
                # The client commits for the first time ten seconds after its start.
                wait_until(commits_all, "the consumer has committed what it consumed")
                progress = tools.run(f"consumerProgress {here} -g {GROUP}")
                assert re.search(r"Diff Total: 0\b", progress), progress

                tools.run(f"resetOffsetByTime {here} -g {GROUP} -t {TOPIC} -s 0")
                twice = {f"body{number}": 2 for number in range(COUNT)} | {"body0": 3}
                wait_until(lambda: consumed(printed) == twice, "the consumer has consumed all messages again")
            progress = tools.run(f"consumerProgress {here} -g {GROUP}")
            assert re.search(r"Diff Total: 0\b", progress), progress
        finally:
            tools.close()
