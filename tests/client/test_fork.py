"""Channels and forks, as with Spark's workers: a child starts without channels and does not wait for its parent's."""

import os
import signal
import traceback

import pytest

from rocketsim_client import Cluster, Consumer, Message, Producer, PullConsumer
from testbed.polling import PATIENCE_S, wait_until
from testbed.processes import Processes

# Spark forks processes that have threads, so the tests do it, too.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

LIMIT_S = PATIENCE_S  # ends a child that waits for its parent's channels, which it would do for ever


def in_child(work, limit_s: float = LIMIT_S) -> None:
    """Runs `work` in a forked child, which is killed after `limit_s`."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    try:
        _, status = wait_until(lambda: ended(child), "the child's end", limit_s)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    assert os.waitstatus_to_exitcode(status) == 0


def ended(child: int) -> tuple[int, int] | None:
    done, status = os.waitpid(child, os.WNOHANG)
    return (done, status) if done else None


@pytest.fixture
def servers(tmp_path):
    """The servers run in processes of their own, because a gRPC server does not survive a fork."""
    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv()
        processes.start_broker("broker-a", 0, name_server)
        with Cluster(name_server.address) as cluster:
            wait_until(lambda: "TBW102" in cluster.topics(), "the broker to register")
            wait_until(lambda: cluster.route("TBW102", fresh=True).writable_queues(), "a master that takes writes")
        yield name_server.address


@pytest.mark.cluster
def test_a_child_of_a_parent_with_open_channels_calls_without_them(servers):
    with Producer(servers, send_msg_timeout_ms=10_000) as producer, PullConsumer(servers, "g") as consumer:
        queue = producer.send(Message("T", b"parent")).message_queue

        def child():
            assert producer.send(Message("T", b"inherited producer")).msg_id
            assert consumer.pull(queue, 0).messages
            with Producer(servers) as own:
                assert own.send_async(Message("T", b"own producer")).result(4)

        for _ in range(3):
            in_child(child)
        assert producer.send(Message("T", b"parent again"))


@pytest.mark.cluster
def test_a_child_consumes_for_itself_and_leaves_its_parent_s_messages_alone(servers):
    with Producer(servers, send_msg_timeout_ms=10_000) as producer, Consumer(servers, "g2", "C") as consumer:
        producer.send(Message("C", b"parent's"))
        wait_until(lambda: "C" in producer.cluster.topics(), "the name server to know the topic")
        (held,) = consumer.receive(timeout_s=60)
        producer.send(Message("C", b"child's"))

        def child():
            assert consumer.in_flight == 0
            (message,) = consumer.receive(timeout_s=60)
            assert message.body == b"child's"
            consumer.ack(message)
            consumer.close()

        in_child(child, limit_s=600)
        consumer.ack(held)
        assert consumer.receive(timeout_s=0) == [] and held.delivery_attempt == 1
