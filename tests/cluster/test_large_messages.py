"""A body of 128 MiB, the largest that a broker may be configured to take, on every path of a message."""

import os

import pytest
from rocketsim_proto import admin_pb2
from rocketsim_proto.limits import MAX_BODY_BYTES

from broker_service.store.config import StoreConfig
from broker_service.store.message_store import MessageStore
from rocketsim_client import MessageQueue, PullConsumer
from rocketsim_client.errors import MessageIllegal
from rocketsim_client.model import SendStatus
from testbed.polling import wait_until

pytestmark = pytest.mark.cluster

LOG_FILE = 200 << 20
NOW_MS = 1_795_200_000_000


def test_the_longest_body_is_sent_copied_refilled_and_read(processes, namesrv, alone):
    keys = {"maxMessageSize": MAX_BODY_BYTES, "slaveTimeout": 60_000, "brokerRole": "SYNC_MASTER"}
    keys |= {"mappedFileSizeCommitLog": LOG_FILE, "slaveReadEnable": True}
    master, slave = processes.start_pair("broker-a", namesrv, **keys)
    alone(master).update_topic("T", queues=1)
    alone(master).wait_for_slaves()
    body = os.urandom(1 << 16) * (MAX_BODY_BYTES >> 16)
    with pytest.raises(MessageIllegal, match=str(MAX_BODY_BYTES + 1)):
        alone(master).put("T", body + b"!", timeout_s=60)
    alone(master).put("T", b"before", timeout_s=60)
    assert alone(master).put("T", body, timeout_s=60, KEYS="large").status is SendStatus.SEND_OK
    assert alone(master).put("T", b"behind", timeout_s=60).status is SendStatus.SEND_OK, (
        "a blank of 72 MiB lies between"
    )
    ends = {alone(broker).wait_for_topic("T").ha_status().commit_log_max_offset for broker in (master, slave)}
    assert len(ends) == 1 and ends.pop() > 128 << 20
    for broker in (master, slave):
        wait_until(lambda one=broker: alone(one).bounds("T") == {0: (0, 3)}, "readers see all of it")
    assert alone(slave).bodies("T") == [b"before", body, b"behind"]  # by PullRange
    by_offset = admin_pb2.QueryMsgByOffsetRequest(topic="T", queue_id=0, offset=1)
    assert len(alone(slave).admin("QueryMsgByOffset", by_offset, timeout_s=60).records) > MAX_BODY_BYTES
    # The master loses the end of its log, as in a power loss, and gets it back from its slave.
    master.kill()
    store = MessageStore.open(StoreConfig(root=master.store, mapped_file_size_commit_log=LOG_FILE), NOW_MS)
    assert store.truncate(len(store.log.record_at(0)), None) > MAX_BODY_BYTES
    store.close()
    master.start()
    wait_until(lambda: alone(master).bounds("T") == {0: (0, 3)}, "the master has it again", 60.0)
    slave.stop()  # from now on only the master answers pulls
    with PullConsumer(namesrv.address, "g") as consumer:
        queue, at, pulled = MessageQueue("T", "broker-a", 0), 0, []
        while at < 3:
            found = consumer.pull(queue, at, timeout_s=60)
            pulled += [message.body for message in found.messages]
            assert found.next_begin_offset > at, found.status
            at = found.next_begin_offset
    assert pulled == [b"before", body, b"behind"]
