"""Connections between real processes that delay, break or pass data one way only; processes that hang (SIGSTOP)."""

import time
from itertools import count
from typing import NamedTuple

import pytest

from rocketsim_client import Cluster, Message, MessageQueue, Producer, PullConsumer
from rocketsim_client.errors import RocketSimError, SendFailed
from rocketsim_client.model import SendStatus
from testbed.polling import wait_until
from testbed.processes import ServerProcess
from tests.cluster.reader import Reader
from tests.cluster.send_storm import SendStorm, check
from tests.support.tcp_proxy import FROM_CLIENT, FROM_SERVER, TcpProxy

pytestmark = pytest.mark.cluster

QUICK = {"haHousekeepingInterval": 2_000, "haSendHeartbeatInterval": 300, "slaveTimeout": 500}
REGISTER_S = 0.2
STORED = {SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE}


class Line(NamedTuple):
    """A master and its slave, and the proxy between them."""

    wire: TcpProxy
    master: ServerProcess
    slave: ServerProcess


@pytest.fixture
def line(processes, namesrv, alone):
    """The slave reaches its master through the proxy only."""
    master = processes.start_broker("broker-a", 0, namesrv, brokerRole="SYNC_MASTER", **QUICK)
    with TcpProxy(lambda: master.address) as wire:
        slave = processes.start_broker("broker-a", 1, namesrv, haMasterAddress=wire.address, **QUICK)
        alone(master).update_topic("T")
        alone(master).wait_for_slaves()
        assert wire.carried > 0
        yield Line(wire, master, slave)


@pytest.mark.parametrize(
    "directions", [(), (FROM_CLIENT,), (FROM_SERVER,)], ids=["both ways", "from the slave", "from the master"]
)
def test_a_cut_wire_is_said_in_the_status_and_after_it_both_logs_are_equal(line, alone, directions):
    """Master and slave run and their connection stays open, so only missing messages show that the wire was cut."""
    master, numbers = alone(line.master), count()
    wait_until(lambda: master.put("T", b"%d" % next(numbers)).status == SendStatus.SEND_OK, "OK")
    line.wire.cut(*directions)
    assert master.put("T", b"%d" % next(numbers)).status in STORED
    wait_until(
        lambda: master.put("T", b"%d" % next(numbers)).status == SendStatus.SLAVE_NOT_AVAILABLE,
        "a slave that is not heard of is given up",
    )
    line.wire.heal()
    wait_until(lambda: master.put("T", b"%d" % next(numbers)).status == SendStatus.SEND_OK, "OK is back")
    bodies = [b"%d" % number for number in range(next(numbers))]
    assert master.bodies("T") == bodies
    wait_until(lambda: alone(line.slave).bodies("T") == bodies, "the slave has what it missed, once")


def test_a_slow_wire_makes_a_put_wait_and_nothing_else(line, alone):
    master = alone(line.master)
    line.wire.delay(0.1)
    for number in range(5):
        assert master.put("T", b"%d" % number, timeout_s=10.0).status in {SendStatus.SEND_OK, *STORED}
    line.wire.delay(2.0)  # longer than slaveTimeout
    wait_until(lambda: master.put("T", b"late").status in STORED, "a put that waits too long says so")
    line.wire.heal()
    wait_until(lambda: master.put("T", b"again").status == SendStatus.SEND_OK, "OK is back")
    wait_until(lambda: alone(line.slave).bodies("T") == master.bodies("T"), "the slave has everything")


def test_a_wire_that_breaks_again_and_again_loses_and_doubles_nothing(line, namesrv, alone):
    with SendStorm(namesrv.address, "T", 400, seed=13) as sending, Reader(namesrv.address, "readers") as reader:
        history = sending.history
        for _ in range(6):
            goal = len(history.ok) + 100
            wait_until(lambda goal=goal: len(history.ok) >= goal, f"{goal} acknowledged; {history}", 60.0)
            line.wire.reset()
        sending.stop()
        alone(line.master).wait_for_slaves()
        end = sum(end for _, end in alone(line.master).bounds("T").values())
        wait_until(lambda: len(reader.seen) == end, "the reader is at the end", 60.0)
    assert reader.faults == reader.taken_back == []
    for broker in (alone(line.master), alone(line.slave)):
        found = {place: one.body for place, one in broker.messages("T").items()}
        check(history, found)
        assert found == reader.seen


def test_a_broker_whose_name_server_hears_nothing_of_it_or_is_not_heard_stays_what_it_is(processes, namesrv, alone):
    """The broker's connection to the name server stays open, so nothing shows that the broker is cut off, and for a
    while it stays in the route.
    """
    with TcpProxy(lambda: namesrv.address) as wire:
        master, slave = processes.start_pair(
            "broker-a",
            namesrv,
            brokerRole="SYNC_MASTER",
            namesrvAddr=wire.address,
            registerNameServerPeriod=int(REGISTER_S * 1000),
            slaveTimeout=60_000,
        )
        alone(master).update_topic("T")
        alone(master).wait_for_slaves()
        epoch = alone(master).ha_status().epoch
        with Cluster(namesrv.address) as cluster, Producer(namesrv.address, group="p", timeout_s=60) as producer:
            route = wait_until(lambda: route_of(cluster, 2), "the name server knows both")
            for direction in (FROM_CLIENT, FROM_SERVER):
                wire.cut(direction)
                # long enough that registrations are among the data that is held back
                until = time.monotonic() + 2.5 * REGISTER_S
                while time.monotonic() < until:
                    assert producer.send(Message("T", b"x")).send_status == SendStatus.SEND_OK
                again = wait_until(lambda: route_of(cluster, 2), "both are still in the route")
                assert again == route, "as they were"
                wire.heal()
        wait_until(lambda: alone(master).put("T", b"y").status == SendStatus.SEND_OK, "OK")
        assert alone(master).ha_status().epoch == epoch and not alone(slave).ha_status().is_master


def route_of(cluster, brokers: int):
    """Returns the brokers' addresses once the name server knows `brokers` of them, else None."""
    found = [dict(broker.addresses) for broker in cluster.transport.routes.cluster_list(5.0)]
    return found if sum(map(len, found)) == brokers else None


@pytest.mark.parametrize("direction", [FROM_CLIENT, FROM_SERVER])
def test_a_client_that_is_not_answered_ends_in_its_timeout_and_goes_on_when_the_wire_is_whole(
    processes, namesrv, alone, direction
):
    master = processes.start_broker("broker-a", 0, namesrv)
    alone(master).update_topic("T", 1)
    with TcpProxy(lambda: master.address) as wire:
        at = {"broker-a": {0: wire.address}}
        with (
            Cluster("", brokers=at, range_streams=False) as wired,  # a Unix socket does not go through the proxy
            Producer(cluster=wired, group="p", timeout_s=0.5) as producer,
            PullConsumer(brokers=at, group="c", timeout_s=0.5) as consumer,
        ):
            assert producer.send(Message("T", b"before"), timeout_s=30).send_status == SendStatus.SEND_OK
            queue = MessageQueue("T", "broker-a", 0)
            wait_until(lambda: pulled(consumer, queue) == [b"before"], "it reads")
            wire.cut(direction)
            sends = 0

            def is_in_doubt() -> bool:
                """Sends a message that gets no answer.  Returns True if the broker has stored it, or if the wire holds
                requests back.  If the timeout ends before the request arrives, the broker stores nothing.
                """
                nonlocal sends
                sends += 1
                with pytest.raises(SendFailed) as failed:
                    producer.send(Message("T", b"in doubt"))
                assert failed.value.maybe_stored
                return direction is FROM_CLIENT or b"in doubt" in alone(master).bodies("T")

            wait_until(is_in_doubt, "a send that the broker stores and that gets no answer")
            for call in (lambda: consumer.pull(queue, 0), lambda: consumer.commit(queue, 1)):
                with pytest.raises(RocketSimError):
                    call()
            assert alone(master).put("T", b"of others").status == SendStatus.SEND_OK, "others are served meanwhile"
            wire.heal()
            wait_until(lambda: is_sent(producer, b"after"), "sends are acknowledged again")
            found = wait_until(lambda: pulled(consumer, queue), "it reads again")
            assert found[0] == b"before" and b"of others" in found and b"after" in found
            assert found.count(b"in doubt") <= sends + producer.stats.sent_again
            if direction is FROM_SERVER:
                assert b"in doubt" in found, "it had arrived"


def is_sent(producer, body: bytes) -> bool:
    try:
        return producer.send(Message("T", body)).send_status == SendStatus.SEND_OK
    except RocketSimError:
        return False


def pulled(consumer, queue) -> list[bytes]:
    try:
        return [one.body for one in consumer.pull(queue, 0).messages]
    except RocketSimError:
        return []


@pytest.mark.parametrize("victim", ["the master", "the slave", "the name server"])
def test_a_process_that_hangs_for_a_while_takes_nothing_with_it(pair_with_topic, namesrv, alone, victim):
    master, slave = pair_with_topic(brokerRole="SYNC_MASTER", **QUICK)
    process = {"the master": master, "the slave": slave, "the name server": namesrv}[victim]
    with SendStorm(namesrv.address, "T", 300, seed=13) as sending, Reader(namesrv.address, "readers") as reader:
        history = sending.history
        wait_until(lambda: len(history.ok) >= 200, f"200 acknowledged; {history}", 60.0)
        process.freeze()
        if victim == "the master":  # a frozen master sends no answers any more, so sends fail
            wait_until(lambda: len(history.unknown) + len(history.failed) > 0, f"sends fail; {history}", 60.0)
        elif victim == "the slave":
            wait_until(lambda: len(history.stored) >= 50, f"sends are stored on the master alone; {history}", 60.0)
        else:
            goal = len(history.ok) + 200
            wait_until(lambda: len(history.ok) >= goal, f"known routes go on; {history}", 60.0)
        process.thaw()
        goal = len(history.ok) + 200
        wait_until(lambda: len(history.ok) >= goal, f"OK is back; {history}", 60.0)
        sending.stop()
        alone(master).wait_for_slaves()
        end = sum(end for _, end in alone(master).bounds("T").values())
        wait_until(lambda: len(reader.seen) == end, "the reader is at the end", 60.0)
    assert reader.faults == reader.taken_back == []
    for broker in (alone(master), alone(slave)):
        found = {place: one.body for place, one in broker.messages("T").items()}
        check(history, found)
        assert found == reader.seen
