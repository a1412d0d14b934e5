"""Starts the cluster of the tests of RocketMQ's dashboard, with a topic, messages, groups and a dead letter."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rocketsim_client import Admin, Consumer, Message, MessageQueue, Producer, PullConsumer
from rocketsim_client.admin_model import SubscriptionGroupConfig
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import Processes
from testbed.real_rocketmq import free_port

QUEUES = [MessageQueue("orders", "broker-a", queue_id) for queue_id in (0, 0, 0, 0, 1, 1)]  # of each message
RETRY_DELAYS_MS = [1000, 7000]  # of the group `poppers`


@dataclass(frozen=True)
class DashboardCluster:
    """A running pair in the cluster `north`, whose remoting ports include the VIP channel."""

    admin: Admin
    name_server: str  # host:port for our own clients
    remoting: str  # host:port for RocketMQ's clients and its dashboard


@contextmanager
def running(folder: Path) -> Iterator[DashboardCluster]:
    """Starts a name server and a pair with the messages and groups of `prepare`, and ends them with the context."""
    port = free_port()
    with Processes(folder) as processes:
        namesrv = processes.start_namesrv(remotingPort=port)
        keys = {"brokerClusterName": "north", "remotingPort": 0, "remotingVipChannel": "true"}
        master, _ = processes.start_pair("broker-a", namesrv, brokerRole="SYNC_MASTER", **keys)
        wait_until(lambda: "writable" in master.log(), "the master takes writes")
        with Admin(namesrv.address) as admin:
            wait_until(lambda: len(admin.cluster_list()) == 2, "both brokers are registered")
            prepare(admin, namesrv.address)
            yield DashboardCluster(admin, namesrv.address, f"127.0.0.1:{port}")


def prepare(admin: Admin, name_server: str) -> None:
    """Makes a topic with six messages, and the settings of the group `poppers`.  The group `readers` commits."""
    admin.update_topic("orders", read_queue_nums=2, write_queue_nums=2)
    policy = json.dumps({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": RETRY_DELAYS_MS}})
    admin.update_sub_group(SubscriptionGroupConfig(group_name="poppers", retry_max_times=0, group_retry_policy=policy))
    with Producer(name_server) as producer:
        for number, queue in enumerate(QUEUES):
            producer.send(Message("orders", b"body%d" % number, tags="tag", keys=f"key{number}"), queue=queue)
    with PullConsumer(name_server, "readers") as reader:
        reader.commit(QUEUES[0], 3)
        reader.commit(QUEUES[-1], 0)


def pop(admin: Admin, consumer: Consumer) -> None:
    """Consumes the six messages; the last one becomes a dead letter."""
    for _ in QUEUES:
        message = consumer.poll(PROCESS_PATIENCE_S)
        assert message is not None
        if message.body == b"body5":
            consumer.nack(message, 0)
        else:
            consumer.ack(message)

    def is_consumed() -> bool:
        progress = admin.consumer_progress("poppers", "orders")
        return len(progress) == 2 and not any(one.diff for one in progress) and "%DLQ%poppers" in admin.topic_list()

    wait_until(is_consumed, "the messages are consumed, and one is a dead letter")
