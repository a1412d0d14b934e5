"""Tests RocketMQ's own mqadmin, producer and pull consumers at our pair's remoting ports.

`./run test --interop` runs these tests.
"""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocketsim_client import Admin, MessageQueue, PullConsumer
from testbed.polling import wait_until
from testbed.processes import Processes
from testbed.real_rocketmq import NEWEST, client_jars, free_port, is_version_4, run_java
from tests.interop.marks import INTEROP
from tests.interop.programs import CLIENT_VERSIONS, MqAdmin

pytestmark = INTEROP
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """Starts a name server, a master and a slave with remoting ports, and yields the addresses of these ports."""
    ports = [free_port() for _ in range(3)]
    with Processes(tmp_path_factory.mktemp("pair")) as processes:
        namesrv = processes.start_namesrv(remotingPort=ports[0])
        keys = {"brokerClusterName": "north", "messageDelayLevel": "1s 5s", "enablePropertyFilter": "true"}
        keys |= {"transactionTimeOut": "2000", "transactionCheckInterval": "2000"}
        master = processes.start_broker("broker-a", 0, namesrv, brokerRole="SYNC_MASTER", remotingPort=ports[1], **keys)
        processes.start_broker("broker-a", 1, namesrv, remotingPort=ports[2], **keys)
        wait_until(lambda: "writable" in master.log(), "the master takes writes")
        name_server, broker, slave = (f"127.0.0.1:{port}" for port in ports)
        yield SimpleNamespace(name_server=name_server, broker=broker, slave=slave, grpc=namesrv.address)


def columns(printed: str) -> list[list[str]]:
    """Returns the rows of a table, each as the list of its columns."""
    return [line.split() for line in printed.splitlines() if line.strip() and not line.startswith("#")]


def offset_id(found: str) -> str:
    """Returns the id that a broker gave a message.  `found` is mqadmin's description of it.  The queryMsgByUniqueKey of
    5.1.4 and 4.9.8 leaves this id out, and it is then made of the store's host and the offset in the log.
    """
    if printed := re.search(r"OffsetID:\s*(\w{32})", found):
        return printed[1]
    host, port = re.search(r"Store Host:\s*([\d.]+):(\d+)", found).groups()  # type: ignore[union-attr]
    offset = re.search(r"CommitLog Offset:\s*(\d+)", found)[1]  # type: ignore[index]
    return f"{socket.inet_aton(host).hex()}{int(port):08x}{int(offset):016x}".upper()


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_mqadmin_works_on_our_pair(pair: SimpleNamespace, tmp_path: Path, version: str) -> None:
    topic, group = f"orders{version.replace('.', '')}", f"readers{version.replace('.', '')}"
    here, broker = f"-n {pair.name_server}", f"-n {pair.name_server} -b {pair.broker}"
    admin = MqAdmin(version, tmp_path / "mqadmin")
    try:
        rows = columns(admin.run(f"clusterList {here}"))
        assert [row[:4] for row in rows] == [
            ["north", "broker-a", "0", pair.broker],
            ["north", "broker-a", "1", pair.slave],
        ]
        assert "broker-a" in admin.run(f"clusterList {here} -m")

        assert "success" in admin.run(f"updateTopic {here} -c north -t {topic} -r 2 -w 2")
        wait_until(lambda: topic in admin.run(f"topicList {here}").split(), "the name server knows the topic")
        assert "north" in admin.run(f"topicClusterList {here} -t {topic}")
        route = admin.run(f"topicRoute {here} -t {topic}")
        assert pair.broker in route and pair.slave in route and '"readQueueNums":2' in route

        sent = admin.run(f"sendMessage {here} -t {topic} -p hello -k key1 -c tag1")
        assert "SEND_OK" in sent
        message_id = sent.split()[-1]
        assert sorted(row[3] for row in columns(admin.run(f"topicStatus {here} -t {topic}"))[:2]) == ["0", "1"]
        assert message_id in admin.run(f"queryMsgByKey {here} -t {topic} -k key1")
        has_topic = version == NEWEST  # queryMsgById of 5.1.4 and 4.9.8 takes only the broker's message id
        found = admin.run(f"{'queryMsgById' if has_topic else 'queryMsgByUniqueKey'} {here} -t {topic} -i {message_id}")
        assert re.search(r"Message Body Path|hello", found) and "key1" in found
        at = f"-t {topic} -i {offset_id(found)}" if has_topic else f"-i {offset_id(found)}"
        assert "key1" in admin.run(f"queryMsgById {here} {at}")
        queue = next(row[1] for row in columns(admin.run(f"topicStatus {here} -t {topic}")) if row[3] == "1")
        assert "key1" in admin.run(f"queryMsgByOffset {here} -t {topic} -b broker-a -i {queue} -o 0")
        assert "hello" in admin.run(f"printMsg {here} -t {topic} -d true")

        assert "success" in admin.run(f"updateSubGroup {here} -c north -g {group} -r 3")
        assert "hello" in admin.run(f"consumeMessage {here} -t {topic} -g {group}")
        wait_until(lambda: group in admin.run(f"consumerProgress {here}"), "the group is listed")
        assert "broker-a" in admin.run(f"allocateMQ {here} -t {topic} -i one")

        assert "brokerVersionDesc" in admin.run(f"brokerStatus {broker}")
        assert "brokerName" in admin.run(f"getBrokerConfig {broker}")
        assert "success" in admin.run(f"updateBrokerConfig {broker} -k maxMessageSize -v 4194304")
        if not is_version_4(version):  # mqadmin of 4.9.8 lacks haStatus, and has all other commands of this test
            assert pair.broker in admin.run(f"haStatus {broker}")
        (row,) = columns(admin.run(f"statsAll {here} -t {topic}"))
        assert (row[0], row[-2]) == (topic, "1"), "the count of messages in the last day"
        for command in ("wipeWritePerm", "addWritePerm"):
            assert " OK, " in admin.run(f"{command} {here} -b broker-a")
        assert "success" in admin.run(f"deleteSubGroup {here} -c north -g {group} -r true")
        assert "success" in admin.run(f"deleteTopic {here} -c north -t {topic}")
    finally:
        admin.close()


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_java_producer_and_pull_consumers_work_on_our_pair(pair: SimpleNamespace, tmp_path: Path, version: str) -> None:
    topic, group = f"trades{version.replace('.', '')}", f"traders{version.replace('.', '')}"
    admin = MqAdmin(version, tmp_path / "mqadmin")
    try:
        admin.run(f"updateTopic -n {pair.name_server} -c north -t {topic} -r 4 -w 4")
        route = f"topicRoute -n {pair.name_server} -t {topic}"
        wait_until(lambda: topic in admin.run(f"topicList -n {pair.name_server}").split(), "the topic has a route")
        assert "brokerDatas" in admin.run(route)
        printed = run_java(
            client_jars(version), tmp_path, "256m", str(HERE / "Clients.java"), pair.name_server, topic, group
        )
        assert re.search(r"^sent SEND_OK \w{32,} \w{32}$", printed, re.MULTILINE)
        assert {"batch SEND_OK", "pulled 100", "polled 100"} <= {*printed.splitlines()}
        progress = admin.run(f"consumerProgress -n {pair.name_server} -g {group}")
        assert re.search(r"Diff Total: 0\b", progress), progress
    finally:
        admin.close()


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_java_push_consumers_share_give_back_give_up_and_consume_in_order(
    pair: SimpleNamespace, tmp_path: Path, version: str
) -> None:
    topic, group = f"jobs{version.replace('.', '')}", f"workers{version.replace('.', '')}"
    admin = MqAdmin(version, tmp_path / "mqadmin")
    try:
        admin.run(f"updateTopic -n {pair.name_server} -c north -t {topic} -r 4 -w 4")
        wait_until(lambda: topic in admin.run(f"topicList -n {pair.name_server}").split(), "the topic has a route")
        program = str(HERE / "PushConsumers.java")
        printed = run_java(client_jars(version), tmp_path, "256m", program, pair.name_server, topic, group)
        assert "consumed 80 shared true in order 81 dead letters 1" in printed.splitlines(), printed
        dlq = f"%DLQ%{group}"
        wait_until(lambda: dlq in admin.run(f"topicList -n {pair.name_server}").split(), "the topic has a route")
        with PullConsumer(pair.grpc) as consumer:
            (dead,) = consumer.pull(MessageQueue(dlq, "broker-a", 0), 0).messages
            assert (dead.keys, dead.body) == ("dead", b"x")
        for name in (group, f"{group}-orderly"):
            progress = admin.run(f"consumerProgress -n {pair.name_server} -g {name}")
            assert re.search(r"Diff Total: 0\b", progress), progress
    finally:
        admin.close()


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_rocketmqs_producer_sends_in_transactions_to_our_pair(
    pair: SimpleNamespace, tmp_path: Path, version: str
) -> None:
    topic = f"payments{version.replace('.', '')}"
    with Admin(pair.grpc) as admin:
        admin.update_topic(topic, read_queue_nums=1, write_queue_nums=1)
    printed = run_java(client_jars(version), tmp_path, "256m", str(HERE / "Transactions.java"), pair.name_server, topic)
    states = [f"{name} SEND_OK" for name in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW")]
    assert {*states, f"asked {topic} UNKNOW"} <= {*printed.splitlines()}
    assert printed.count("asked ") == 1
    with PullConsumer(pair.grpc) as consumer:
        queue = MessageQueue(topic, "broker-a", 0)
        wait_until(lambda: consumer.bounds(topic)[queue].max_offset == 2, "two messages are committed")
        assert [one.body for one in consumer.pull(queue, 0).messages] == [b"COMMIT_MESSAGE", b"UNKNOW"]


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_java_consumers_select_by_conditions_on_our_pair(pair: SimpleNamespace, tmp_path: Path, version: str) -> None:
    topic = f"prices{version.replace('.', '')}"
    with Admin(pair.grpc) as admin:
        admin.update_topic(topic, read_queue_nums=4, write_queue_nums=4)
    program = str(HERE / "Conditions.java")
    printed = run_java(client_jars(version), tmp_path, "256m", program, pair.name_server, topic, f"buyers-{topic}")
    selected = "[90, 92, 94, 96, 98]"
    expected = {f"pushed {selected}", f"pulled {selected}", "refused 23"}
    assert expected <= {*printed.splitlines()}, printed
