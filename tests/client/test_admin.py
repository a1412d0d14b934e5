"""Every admin command with a real pair, in one long test because starting the pair takes most of the time."""

import time
from dataclasses import replace

import pytest

from rocketsim_client import Admin, ConsumeProgress, Message, Producer, PullConsumer, SubscriptionGroupConfig
from rocketsim_client.errors import (
    BrokerNotExist,
    GroupNotExist,
    InvalidParameter,
    NotFound,
    RocketSimError,
    TopicNotExist,
)
from testbed.polling import wait_until
from testbed.processes import Processes
from tests.client.conftest import start_real_pair

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with Processes(tmp_path_factory.mktemp("admin")) as processes:
        started = start_real_pair(processes)
        with Admin(started.name_server) as admin:
            yield admin, *started


@pytest.fixture(scope="module")
def sent(pair):
    """Sends ten messages to topic T, waits until the name server knows the topic, and returns the results."""
    admin, name_server, _, slave = pair
    made = admin.update_topic("T", read_queue_nums=2, write_queue_nums=2)
    assert [config.read_queue_nums for config in made.values()] == [2]
    wait_until(lambda: "T" in admin.topic_list(), "the topic")
    with Producer(name_server, "p") as producer:
        results = [producer.send(Message("T", b"%d" % number, keys=f"key-{number} all")) for number in range(10)]
    ends = {queue: bounds.max_offset for queue, bounds in admin.cluster.bounds("T").items()}
    assert sum(ends.values()) == 10
    wait_until(lambda: admin.broker_status(broker_addr=slave.address), "the slave")
    return results


def test_cluster_and_routes(pair, sent):
    admin, _, master, slave = pair
    members = {(member.broker_name, member.broker_id): member.address for member in admin.cluster_list()}
    assert members == {("broker-a", 0): master.address, ("broker-a", 1): slave.address}
    route = admin.topic_route("T")
    assert route.addresses("broker-a") == {0: master.address, 1: slave.address}
    assert len(route.readable_queues()) == 2
    with pytest.raises(TopicNotExist, match="Nowhere"):
        admin.topic_route("Nowhere")


def test_topic_status_counts_the_messages(pair, sent):
    admin = pair[0]
    rows = admin.topic_status("T")
    assert sum(row.max_offset - row.min_offset for row in rows) == 10
    assert all(row.last_update_timestamp for row in rows)
    assert "T" in [config.topic_name for config in admin.topic_configs(pair[2].address)]


def test_messages_are_found_by_either_id_by_key_and_by_offset(pair, sent):
    admin = pair[0]
    result = sent[3]
    wait_until(lambda: admin.query_msg_by_key("T", "key-3"), "the index")
    assert admin.query_msg_by_id("T", result.msg_id).body == b"3"
    assert admin.query_msg_by_id("T", result.offset_msg_id).body == b"3"
    (by_key,) = admin.query_msg_by_key("T", "key-3")
    assert by_key.msg_id == result.msg_id
    assert admin.query_msg_by_offset(result.message_queue, result.queue_offset).body == b"3"
    assert admin.query_msg_by_key("T", "no such key") == []
    every = admin.query_msg_by_key("T", "all")
    assert (len(every), every.more) == (10, False)
    newest = admin.query_msg_by_key("T", "all", max_num=4)
    assert [one.msg_id for one in newest] == [one.msg_id for one in every[:4]] and newest.more
    with pytest.raises(NotFound):
        admin.query_msg_by_id("T", "0" * 32)
    with pytest.raises(RocketSimError):
        admin.query_msg_by_offset(result.message_queue, 999)
    with pytest.raises(InvalidParameter):
        admin.query_msg_by_key("T", "k", max_num=65)


def test_a_key_is_found_whatever_the_clock_of_this_machine_says(pair, sent, monkeypatch):
    """The clock of the broker that stored the messages may be ahead of this machine's."""
    admin = pair[0]
    wait_until(lambda: admin.query_msg_by_key("T", "key-3"), "the index")
    monkeypatch.setattr(time, "time_ns", lambda: 10**15)
    assert [one.body for one in admin.query_msg_by_key("T", "key-3")] == [b"3"]
    assert admin.query_msg_by_key("T", "key-3", end_timestamp=10**9) == []


def test_groups_their_progress_and_resets(pair, sent):
    admin, name_server, master, _ = pair
    made = admin.update_sub_group(SubscriptionGroupConfig(group_name="g", broker_id=0, retry_max_times=3))
    assert made[master.address].retry_max_times == 3
    with PullConsumer(name_server, "g") as consumer:
        consumer.commit_all({queue: 4 for queue in consumer.message_queues("T")})
        rows = admin.consumer_progress("g", "T")
        assert [(row.consumer_offset, row.broker_offset, row.diff, row.broker_id) for row in rows] == [(4, 5, 1, 0)] * 2
        reset = admin.reset_offset_by_time("g", "T", 0)
        assert [(row.offset, row.previous, row.status.name) for row in reset] == [(0, 4, "COMMIT_OK")] * 2
        assert set(consumer.committed_all(consumer.message_queues("T")).values()) == {0}
        of_earlier_broker = ConsumeProgress(
            "g", rows[0].queue, 5, 6, 0, 0
        )  # the committed offset of that earlier broker may be ahead of what is visible
        assert of_earlier_broker.diff == 0 and replace(of_earlier_broker, consumer_offset=3).diff == 2
        admin.reset_offset_by_time("g", "T", -1)
        assert {row.diff for row in admin.consumer_progress("g")} == {0}
    with pytest.raises(BrokerNotExist, match="broker-z"):
        admin.reset_offset_by_time("g", "T", 0, broker_name="broker-z")
    assert "g" in [config.group_name for config in admin.sub_groups(master.address)]
    admin.delete_sub_group("g", remove_offset=True)
    assert "g" not in [config.group_name for config in admin.sub_groups(master.address)]


def test_brokers_show_and_change_their_configuration(pair):
    admin, _, master, slave = pair
    values = admin.get_broker_config()
    assert values[master.address]["brokerRole"] == "ASYNC_MASTER" and values[slave.address]["brokerRole"] == "SLAVE"
    changed = admin.update_broker_config({"slaveReadEnable": "true"}, broker_addr=master.address)
    assert changed[master.address]["slaveReadEnable"] == "true"
    for wrong in ({"storePathRootDir": "elsewhere"}, {"noSuchKey": "1"}):
        with pytest.raises(RocketSimError, match=next(iter(wrong))):
            admin.update_broker_config(wrong, broker_addr=master.address)
    assert set(admin.broker_status()) == {master.address, slave.address}


def test_the_pair_shows_its_replication(pair, sent):
    admin, _, master, slave = pair
    status = {row.address: row for row in admin.ha_status()}
    assert status[master.address].is_master and not status[slave.address].is_master
    (row,) = status[master.address].slaves
    wait_until(
        lambda: admin.ha_status(broker_addr=master.address)[0].slaves[0].diff_bytes == 0, "the slave to catch up"
    )
    assert row.broker_id == 1


def test_write_permission_is_taken_and_given_back(pair, sent):
    admin, name_server, _, _ = pair
    assert admin.wipe_write_perm("broker-a")[name_server] >= 1
    try:
        assert admin.topic_route("T").writable_queues() == []
    finally:
        admin.add_write_perm("broker-a")
    assert len(admin.topic_route("T").writable_queues()) == 2


def test_a_deleted_topic_is_gone(pair, sent):
    admin, _, master, _ = pair
    admin.update_topic("Gone")
    wait_until(lambda: "Gone" in admin.topic_list(), "the topic")
    assert admin.delete_topic("Gone") == [master.address]
    wait_until(lambda: "Gone" not in admin.topic_list(), "the topic to go")
    with pytest.raises(TopicNotExist):
        admin.delete_topic("Gone")


def test_a_group_that_only_one_of_the_pairs_knows_is_deleted_there(tmp_path):
    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv()
        processes.start_broker("broker-a", 0, name_server)
        second = processes.start_broker("broker-b", 0, name_server)
        with Admin(name_server.address) as admin:
            wait_until(lambda: len(admin.masters()) == 2, "both brokers")
            admin.update_sub_group(SubscriptionGroupConfig(group_name="g"), broker_addr=second.address)
            assert admin.delete_sub_group("g") == [second.address]
            with pytest.raises(GroupNotExist, match=second.address):
                admin.delete_sub_group("g")


def test_promotion_is_refused_while_the_master_answers_and_done_when_it_is_dead(pair, sent):
    """The last test of this file: it ends the master."""
    admin, name_server, master, slave = pair
    with pytest.raises(RocketSimError):
        admin.promote_slave(slave.address)
    before = admin.ha_status(broker_addr=slave.address)[0].epoch
    master.kill()
    promotion = wait_until(lambda: promoted(admin, slave.address), "the promotion")
    assert promotion.epoch > before
    with Producer(name_server, "p") as producer, PullConsumer(name_server, "g2") as consumer:
        result = wait_until(lambda: sent_by(producer), "the new master to take a message")
        assert consumer.pull(result.message_queue, result.queue_offset).messages[0].body == b"after"
    with pytest.raises(InvalidParameter):
        admin.promote_slave("127.0.0.1:1")


def promoted(admin, address):
    try:
        return admin.promote_slave(address, broker_name="broker-a")
    except RocketSimError:
        return None


def sent_by(producer):
    try:
        return producer.send(Message("T", b"after"))
    except RocketSimError:
        return None
