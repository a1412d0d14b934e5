"""After an operator's promoteSlave, the old master takes no writes."""

import json

import pytest
from rocketsim_proto import admin_pb2

from rocketsim_client import MessageQueue, PullConsumer, PullStatus
from rocketsim_client.errors import InvalidParameter, NoRoute, RocketSimError
from rocketsim_client.model import SendStatus
from rocketsim_source.options.data_loss import DataLossError
from rocketsim_source.options.source_options import source_options
from rocketsim_source.planning.offsets import StreamOffset
from rocketsim_source.source_cluster import ClientCluster
from rocketsim_source.stream_query import StreamQuery
from testbed.polling import wait_until

pytestmark = pytest.mark.cluster


def promote(alone, slave, **fields):
    request = admin_pb2.PromoteSlaveRequest(broker_name="broker-a", **fields)
    return alone(slave).admin("PromoteSlave", request, 20.0)


def promote_after_the_masters_death(alone, slave, **fields):
    """Promotes as soon as the slave and the name server have noticed it."""

    def promoted():
        try:
            return promote(alone, slave, **fields)
        except InvalidParameter as refusal:
            assert any(part in str(refusal) for part in ("stop it first", "does not answer", "does not promise"))
            return None

    return wait_until(promoted, "the master's death is noticed")


def test_a_promoted_slave_takes_writes_and_the_old_master_is_fenced(pair_with_topic, alone):
    master, slave = pair_with_topic(brokerRole="SYNC_MASTER")
    alone(master).put("T", b"before")
    old_epoch = alone(master).ha_status().epoch
    master.kill()

    answer = promote_after_the_masters_death(alone, slave)
    assert answer.epoch > old_epoch
    wait_until(lambda: alone(slave).ha_status().is_master, "the slave is master")
    alone(slave).put("T", b"after")
    assert alone(slave).bodies("T") == [b"before", b"after"]

    master.launch()  # The old master may also refuse to start; in both cases it takes no writes.
    wait_until(lambda: master.address_path.exists() or not master.is_running(), "the old master is back")
    with pytest.raises(RocketSimError):
        alone(master).put("T", b"from the past")
    assert alone(slave).bodies("T") == [b"before", b"after"]


def test_an_old_master_with_a_tail_of_its_own_cannot_mix_it_in(pair_with_topic, alone):
    master, slave = pair_with_topic(brokerRole="ASYNC_MASTER")
    alone(master).put("T", b"shared")
    alone(master).wait_for_slaves()
    slave.kill()
    assert alone(master).put("T", b"only on the old master").status == SendStatus.SEND_OK
    master.kill()
    slave.start()
    promote_after_the_masters_death(alone, slave)
    wait_until(lambda: alone(slave).ha_status().is_master, "the slave is master")
    alone(slave).put("T", b"from the new master")

    # Restarted as a slave of the new master, the old master cuts its log back to the common part, keeps what it cut,
    # and logs that.
    master.start(brokerId=1, brokerRole="SLAVE")
    wait_until(lambda: alone(master).bodies("T") == [b"shared", b"from the new master"], "the former master follows")
    diverged = master.store / "rocketsim" / "diverged"
    kept = b"".join(path.read_bytes() for path in diverged.rglob("*") if path.is_file())
    assert b"only on the old master" in kept
    assert "diverged" in master.log()


@pytest.mark.parametrize("lost", [True, False], ids=["a tail is lost", "nothing is lost"])
def test_who_has_read_what_the_promoted_slave_does_not_have_is_told(processes, namesrv, alone, lost):
    """A pull consumer and the driver of a Spark query are told."""
    master, slave = processes.start_pair("broker-a", namesrv, brokerRole="ASYNC_MASTER")
    alone(master).update_topic("T", queues=1)
    alone(master).wait_for_slaves()
    alone(slave).wait_for_topic("T")
    queue = MessageQueue("T", "broker-a", 0)
    with PullConsumer(namesrv.address, "g") as consumer:
        alone(master).put("T", *[b"shared"] * 10)
        alone(master).wait_for_slaves()
        slave.kill()
        if lost:
            alone(master).put("T", *[b"lost"] * 10)
        end = consumer.pull(queue, 0).next_begin_offset
        assert end == (20 if lost else 10)
        query = driver(namesrv)
        read = query.latest_offset(query.latest_offset(query.initial_offset(), unlimited=False), unlimited=False)
        assert read.offsets == {MessageQueue(*queue): end}
        query.close()
        master.kill()
        slave.start()
        promote_after_the_masters_death(alone, slave)
        wait_until(lambda: alone(slave).ha_status().is_master, "the slave is master")
        alone(slave).put("T", *[b"new"] * 30)
        wait_until(lambda: has_master(consumer.cluster), "the route has it")
        result = consumer.pull(queue, end)
        if lost:
            assert (result.status, result.get_message_status.name) == (PullStatus.OFFSET_ILLEGAL, "OFFSET_TRUNCATED")
            assert result.next_begin_offset == 10
            result = consumer.pull(queue, result.next_begin_offset)
        assert [message.body for message in result.messages] == [b"new"] * 30

    query = driver(namesrv)
    restarted = StreamOffset.of(json.loads(json.dumps(read.json())))
    if lost:
        with pytest.raises(DataLossError, match=r"was read up to 20, .* has its records up to 10 only"):
            query.latest_offset(restarted, unlimited=False)
    else:
        assert query.latest_offset(restarted, unlimited=False).offsets == {MessageQueue(*queue): 40}
    query.close()


def has_master(cluster) -> bool:
    """Returns whether the route has a master; there is no route until the restarted slave has registered."""
    try:
        return 0 in cluster.route("T", fresh=True).addresses("broker-a")
    except NoRoute:
        return False


def driver(namesrv):
    given = {"nameServer": namesrv.address, "topic": "T", "startingOffsets": "earliest", "idlePollMs": "0"}
    options = source_options(given, streaming=True)
    return StreamQuery(options, ClientCluster.open(options.connection))


def test_the_role_after_a_promotion_outlives_a_restart(pair_with_topic, alone):
    master, slave = pair_with_topic()
    master.kill()
    epoch = promote_after_the_masters_death(alone, slave).epoch
    slave.kill()
    slave.start()
    wait_until(lambda: alone(slave).ha_status().is_master, "still master")
    assert alone(slave).ha_status().epoch >= epoch
    alone(slave).update_topic("T")  # waits until the slave takes writes
    assert alone(slave).put("T", b"x").status == SendStatus.SEND_OK


def test_promotion_is_refused_while_the_master_answers(processes, namesrv, alone):
    master, slave = processes.start_pair("broker-a", namesrv)
    alone(master).wait_for_slaves()
    with pytest.raises(RocketSimError):
        promote(alone, slave)
    assert not alone(slave).ha_status().is_master
    with pytest.raises(RocketSimError):
        promote(alone, slave, expected_epoch=alone(master).ha_status().epoch + 7, force=True)
    assert not alone(slave).ha_status().is_master


def test_a_slave_that_was_stopped_meanwhile_is_not_promoted_in_the_place_of_one_that_has_all(processes, namesrv, alone):
    keys = {"brokerRole": "SYNC_MASTER"}
    master, ahead = processes.start_pair("broker-a", namesrv, **keys)
    behind = processes.start_broker("broker-a", 2, namesrv)
    alone(master).update_topic("T")
    alone(master).wait_for_slaves(2)
    for slave in (ahead, behind):
        alone(slave).wait_for_topic("T")
    alone(master).put("T", b"on all three")
    wait_until(lambda: len(alone(behind).bodies("T")) == 1, "copied")
    behind.freeze()
    for number in range(500):
        assert alone(master).put("T", b"%d" % number + b"." * 4096).status == SendStatus.SEND_OK
    end = alone(master).ha_status().commit_log_max_offset
    master.kill()
    wait_until(lambda: alone(ahead).ha_status().commit_log_max_offset == end, "the other slave has all")
    behind.thaw()

    def refused():
        with pytest.raises(InvalidParameter) as refusal:
            promote(alone, behind)
        reason = str(refusal.value)
        return None if "stop it first" in reason or "does not answer" in reason else reason

    reason = wait_until(refused, "the master's death is noticed")
    assert f"slave 1 at {ahead.address} has more" in reason
    lost = end - alone(behind).ha_status().commit_log_max_offset
    assert lost > 100 * 4096 and f"({lost} bytes" in reason
    assert not alone(behind).ha_status().is_master

    answer = promote(alone, behind, force=True)
    assert (1, ahead.address, lost) in [(item.broker_id, item.address, item.bytes) for item in answer.forfeits]


def test_the_slave_that_has_all_is_promoted_and_nothing_acknowledged_is_lost(processes, namesrv, alone):
    master, ahead = processes.start_pair("broker-a", namesrv, brokerRole="SYNC_MASTER")
    behind = processes.start_broker("broker-a", 2, namesrv)
    alone(master).update_topic("T")
    alone(master).wait_for_slaves(2)
    for slave in (ahead, behind):
        alone(slave).wait_for_topic("T")
    behind.freeze()
    bodies = [b"%d" % number for number in range(100)]
    for body in bodies:
        assert alone(master).put("T", body).status == SendStatus.SEND_OK
    master.kill()

    def not_while_one_is_silent():
        with pytest.raises(InvalidParameter) as refusal:
            promote(alone, ahead)
        return "stop it first" not in str(refusal.value) and str(refusal.value)

    reason = wait_until(not_while_one_is_silent, "the master's death is noticed")
    assert f"slave 2 at {behind.address}, which is known, does not answer" in reason
    behind.thaw()
    promote_after_the_masters_death(alone, ahead)
    wait_until(lambda: alone(ahead).bodies("T") == bodies, "all of it is there")
    wait_until(lambda: alone(behind).bodies("T") == bodies, "the other one follows")
