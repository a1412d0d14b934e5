"""RocketMQ's own mqadmin asks and resets a running push consumer of RocketMQ's Java client at our pair.

`./run test --interop` runs these tests.
"""

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from rocketsim_client import Admin, Message, Producer
from testbed.polling import wait_until
from testbed.processes import Processes
from testbed.real_rocketmq import NEWEST, free_port
from tests.interop.marks import INTEROP
from tests.interop.programs import MqAdmin, asked_consumer, client_id_in, consumed

pytestmark = INTEROP
TOPIC, GROUP = "orders", "asked-workers"
COUNT = 6


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
            with asked_consumer(tmp_path, name_server, TOPIC, GROUP, version) as printed:
                once = {f"body{number}": 1 for number in range(COUNT)}
                wait_until(lambda: consumed(printed) == once, "the consumer has consumed all messages")
                client_id = client_id_in(printed)

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
