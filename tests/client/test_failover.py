"""Real brokers that are killed: sends go to another pair, reads continue at the slave, commits return to the master."""

import threading

import pytest

from rocketsim_client import Admin, Message, Producer, PullConsumer, PullStatus, SendFailed, SendStatus
from rocketsim_client.errors import TopicNotExist
from testbed.polling import PATIENCE_S, wait_until
from testbed.processes import Processes

pytestmark = pytest.mark.cluster


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path) as started:
        yield started


@pytest.fixture
def two_pairs(processes):
    """Yields (name server address, {(broker name, id): process}); both pairs have topic T."""
    name_server = processes.start_namesrv()
    brokers = {}
    for name in ("broker-a", "broker-b"):
        master, slave = processes.start_pair(name, name_server, brokerRole="SYNC_MASTER")
        brokers[name, 0], brokers[name, 1] = master, slave
    with Admin(name_server.address) as admin:
        wait_until(lambda: len(admin.cluster_list()) == 4, "four brokers")
        for name in ("broker-a", "broker-b"):
            address = brokers[name, 0].address
            wait_until(lambda at=address: admin.ha_status(broker_addr=at)[0].slaves, f"the slave of {name}")
        wait_until(lambda: made(admin), "topic T")
        wait_until(lambda: writable_queues(admin) == 8, "eight queues")
    return name_server.address, brokers


def made(admin: Admin) -> bool:
    try:
        return len(admin.update_topic("T", read_queue_nums=4, write_queue_nums=4)) == 2
    except Exception as error:
        assert "write" in str(error) or "available" in str(error).lower(), error
        return False


def writable_queues(admin: Admin) -> int:
    try:
        return len(admin.cluster.route("T", fresh=True).writable_queues())
    except TopicNotExist:  # no broker has told the name server of the topic yet
        return 0


def read_all(consumer: PullConsumer) -> list:
    found = []
    for queue in consumer.message_queues("T"):
        offset = 0
        while (result := consumer.pull(queue, offset, 500)).status is not PullStatus.NO_NEW_MSG:
            found += result.messages
            offset = result.next_begin_offset
    return found


def test_a_producer_moves_to_the_other_pair_when_a_master_is_killed_and_nothing_acknowledged_is_lost(two_pairs):
    address, brokers = two_pairs
    acknowledged, names = {}, []
    patient = {"timeout_s": PATIENCE_S}
    with Producer(address, "storm", **patient) as producer, PullConsumer(address, "g", **patient) as consumer:

        def send(numbers):
            futures = [(number, producer.send_async(Message("T", b"%d" % number))) for number in numbers]
            for number, future in futures:
                result = future.result(2 * PATIENCE_S)
                names.append(result.message_queue.broker_name)
                if result.send_status == SendStatus.SEND_OK:
                    acknowledged[result.msg_id] = b"%d" % number

        for start in range(0, 500, 50):
            send(range(start, start + 50))
        assert set(names) == {"broker-a", "broker-b"}
        storm = threading.Thread(target=send, args=(range(500, 5000),))
        storm.start()
        brokers["broker-a", 0].kill()
        storm.join()
        assert len(names) == 5000
        assert producer.send(Message("T", b"last")).message_queue.broker_name == "broker-b"
        read = {message.msg_id: message.body for message in read_all(consumer)}
    assert acknowledged.items() <= read.items()
    assert producer.stats.failed == 0


def test_a_consumer_goes_on_from_the_slave_and_commits_return_to_the_master(two_pairs):
    address, brokers = two_pairs
    with Producer(address, "p") as producer, PullConsumer(address, "g") as consumer:
        queue = next(queue for queue in producer.publish_queues("T") if queue.broker_name == "broker-a")
        for number in range(40):
            assert producer.send(Message("T", b"%d" % number), queue=queue).send_status == SendStatus.SEND_OK
        first = consumer.pull(queue, 0, 10)
        assert (len(first.messages), first.broker_id) == (10, 0)
        assert consumer.commit_all({queue: 10}).broker_ids == {"broker-a": 0}

        brokers["broker-a", 0].kill()
        rest = consumer.pull(queue, first.next_begin_offset)
        assert (rest.messages[0].body, rest.broker_id, rest.next_begin_offset) == (b"10", 1, 40)
        assert consumer.commit_all({queue: 40}).broker_ids == {"broker-a": 1}
        assert (consumer.min_offset(queue), consumer.max_offset(queue), consumer.committed(queue)) == (0, 40, 40)
        assert consumer.search_offset(queue, 0) == 0
        with pytest.raises(SendFailed):
            producer.send(Message("T", b"x"), queue=queue)

        brokers["broker-a", 0].start()
        wait_until(lambda: consumer.commit_all({queue: 40}).broker_ids == {"broker-a": 0}, "the master again")
        wait_until(lambda: consumer.committed(queue) == 40, "the slave's offset on the master")
        wait_until(lambda: consumer.pull(queue, 0).broker_id == 0, "pulls from the master again")


def test_a_frozen_master_costs_one_timeout_not_one_a_call(two_pairs):
    address, brokers = two_pairs
    patient = Producer(address, "p", send_msg_timeout_ms=10_000, send_msg_max_timeout_per_request_ms=1000)
    with patient as producer, PullConsumer(address, "g", timeout_ms=1000) as consumer:
        queue = next(queue for queue in producer.publish_queues("T") if queue.broker_name == "broker-a")
        producer.send(Message("T", b"x"), queue=queue)
        wait_until(lambda: consumer.pull(queue, 0).messages, "the message")
        end = consumer.max_offset(queue)  # 2 if the first send took longer than a second and was sent again
        brokers["broker-a", 0].freeze()
        try:
            for _ in range(21):
                assert consumer.max_offset(queue) == end
                assert producer.send(Message("T", b"y")).message_queue.broker_name == "broker-b"
        finally:
            brokers["broker-a", 0].thaw()
