"""Clients of 9157579, the oldest supported version, work with a pair of this version, so that they may be upgraded at
any time.
"""

import json
import os
import subprocess
import sys

import pytest

from rocketsim_client.model import SendStatus
from tests.cluster.old_stores import CODE, promote
from tests.support.archives import unpack

pytestmark = pytest.mark.cluster

MESSAGES = 40
WORK = """
import json, sys
from rocketsim_client import Message, Producer, PullConsumer

name_server, numbers = sys.argv[1], range(int(sys.argv[2]), int(sys.argv[3]))
with Producer(name_server=name_server, group="old") as producer:
    statuses = {producer.send(Message("T", b"%d" % number)).send_status.name for number in numbers}
bodies, found, committed = [], {}, {}
with PullConsumer(name_server=name_server, group="old") as consumer:
    for queue in consumer.message_queues("T"):
        at = found[queue.queue_id] = max(0, consumer.committed(queue))
        while at < consumer.max_offset(queue):
            result = consumer.pull(queue, at)
            bodies += [message.body.decode() for message in result.messages]
            at = result.next_begin_offset
        committed[queue.queue_id] = consumer.commit(queue, at)
print(json.dumps([sorted(statuses), bodies, found, committed]))
"""


def test_an_old_client_sends_reads_and_commits_at_a_new_pair_before_and_after_a_promotion(
    processes, namesrv, alone, tmp_path
):
    old = unpack(CODE, tmp_path / "9157579")
    master, slave = processes.start_pair("broker-a", namesrv, brokerRole="SYNC_MASTER")
    alone(master).update_topic("T")
    alone(master).wait_for_slaves()
    alone(slave).wait_for_topic("T")
    assert alone(master).put("T", b"new").status == SendStatus.SEND_OK

    def work(first: int, last: int):
        environment = os.environ | {"PYTHONPATH": f"{old}{os.pathsep}{old / 'proto'}"}
        command = [sys.executable, "-c", WORK, namesrv.address, str(first), str(last)]
        done = subprocess.run(command, cwd=old, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    statuses, bodies, _, committed = work(0, MESSAGES)
    assert statuses == ["SEND_OK"]
    assert sorted(bodies) == sorted(["new", *map(str, range(MESSAGES))])
    master.kill()
    promote(namesrv, slave)
    assert alone(slave).put("T", b"newer").status == SendStatus.SLAVE_NOT_AVAILABLE
    statuses, bodies, found, _ = work(MESSAGES, 2 * MESSAGES)
    assert statuses == ["SLAVE_NOT_AVAILABLE"]
    assert found == committed, "where the group was before"
    assert sorted(bodies) == sorted(["newer", *map(str, range(MESSAGES, 2 * MESSAGES))])
