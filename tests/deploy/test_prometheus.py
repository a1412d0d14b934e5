"""A real Prometheus scrapes a real pair: the dashboard's queries return samples, and each alert fires and clears."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest

from broker_service.node.app import broker
from broker_service.node.node import BrokerNode
from broker_service.runtime.machine import Machine, now_ms
from rocketsim_client import Admin, Consumer, Message, Producer, PullConsumer
from rocketsim_client.admin_model import SubscriptionGroupConfig
from testbed.polling import PROCESS_PATIENCE_S, until, wait_until
from testbed.processes import Processes
from testbed.real_rocketmq import free_port
from tests.deploy.test_monitoring import RULES, dashboard_queries, rules
from tests.support.brokers import small_config
from tests.support.prometheus import needs_prometheus, running_prometheus

pytestmark = [pytest.mark.cluster, pytest.mark.long, needs_prometheus]

VARIABLES = {"$cluster": "DefaultCluster", "$broker": ".*", "$topic": ".*", "$group": ".*", "$__rate_interval": "10s"}
# queries that find nothing in a healthy pair
MAY_BE_EMPTY = (
    "rocketsim_calls_refused_total",
    "rocketsim_sends_refused_total",
    "changes(rocketsim_master",
    "rocketsim_retried_messages_total",
)


# alerts of one broker alone, whose clock the test of a pair does not step
OF_ONE_BROKER = ("RocketSimClockStepped", "RocketSimMetricsCut")


class Watched:
    """A pair and its name server; each broker has a metricsPort."""

    def __init__(self, processes: Processes) -> None:
        namesrv = processes.start_namesrv()
        ports = free_port(), free_port()
        self.targets = [f"127.0.0.1:{port}" for port in ports]
        quick = {"haSendHeartbeatInterval": 500}
        self.master = processes.broker("broker-a", 0, namesrv, metricsPort=ports[0], **quick)
        self.slave = processes.broker("broker-a", 1, namesrv, metricsPort=ports[1], **quick)
        for one in (self.master, self.slave):
            one.launch()
        for one in (self.master, self.slave):
            one.wait_until_ready()
        self.name_server = namesrv.address
        self.admin = Admin(self.name_server)
        wait_until(lambda: len(self.admin.cluster_list()) == 2, "both brokers are registered")

    def work(self) -> None:
        """Makes messages of all kinds that the dashboard shows: read, popped, under way, and a dead letter."""
        self.admin.update_topic("orders", read_queue_nums=2, write_queue_nums=2)
        self.admin.update_sub_group(SubscriptionGroupConfig(group_name="workers", retry_max_times=0))
        with Producer(self.name_server) as producer:
            producer.send_batch([Message("orders", b"%d" % number) for number in range(20)])
        with PullConsumer(self.name_server, "readers") as reader:
            for queue in reader.message_queues("orders"):
                reader.pull(queue, 0)
                reader.commit(queue, 0)
        with Consumer(self.name_server, "workers", "orders") as consumer:
            messages = consumer.receive(4, timeout_s=60)
            consumer.nack(messages[0], 0)
            consumer.ack(messages[1])


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with Processes(tmp_path) as processes:
        made = Watched(processes)
        yield made
        made.admin.close()


def test_each_query_of_the_dashboard_finds_something(watched: Watched, tmp_path: Path) -> None:
    watched.work()
    with (
        running_prometheus(tmp_path / "prometheus", watched.targets) as prometheus,
        Producer(watched.name_server) as producer,
        PullConsumer(watched.name_server, "readers") as reader,
        Consumer(watched.name_server, "workers", "orders") as consumer,
    ):

        def empty() -> list[str]:
            """Returns the queries without a result, or with nothing but "not a number", while there is work."""
            sent = producer.send(Message("orders", b"x"))
            reader.pull(sent.message_queue, sent.queue_offset)
            consumer.receive(1, timeout_s=0.1)
            found = []
            for query in dashboard_queries():
                expression = query
                for name, value in VARIABLES.items():
                    expression = expression.replace(name, value)
                values = {sample["value"][1] for sample in prometheus.query(expression)}
                if values <= {"NaN"} and not any(part in query for part in MAY_BE_EMPTY):
                    found.append(query)
            return found

        try:
            wait_until(lambda: not empty(), "a result of each query", PROCESS_PATIENCE_S)
        except AssertionError:
            assert empty() == []


def quick_rules() -> str:
    """The shipped rules with shorter times: minutes are seconds."""
    text = re.sub(r"\b(\d+)m\b", r"\1s", RULES.read_text())
    return text.replace("> 300", "> 3").replace("behind_seconds > 30", "behind_seconds > 3").replace("10s", "20s")


def test_each_alert_fires_and_clears_while_a_pair_is_hurt(watched: Watched, tmp_path: Path) -> None:
    seen: set[str] = set()
    master, slave, admin = watched.master, watched.slave, watched.admin
    watched.work()

    def clear() -> None:
        """Settles all messages for all groups, and waits until no alert fires any more."""

        def is_clear() -> bool:
            for group in ("readers", "workers"):
                admin.reset_offset_by_time(group, "orders", -1)
            firing.clear()
            firing.update(prometheus.firing())
            return not firing

        firing: set[str] = set()
        try:
            wait_until(is_clear, "all alerts clear", PROCESS_PATIENCE_S)
        except AssertionError:
            assert firing == set()

    def fire(*alerts: str) -> None:
        wait_until(lambda: prometheus.firing() >= set(alerts), f"{alerts} fire", PROCESS_PATIENCE_S)
        seen.update(alerts)

    with running_prometheus(tmp_path / "prometheus", watched.targets, quick_rules()) as prometheus:
        fire("RocketSimConsumerLagAge")  # no consumer goes on with the messages
        clear()

        with Producer(watched.name_server) as producer, Consumer(watched.name_server, "workers", "orders") as consumer:
            producer.send(Message("orders", b"bad"))
            consumer.nack(consumer.receive(1, timeout_s=60), 0)
            fire("RocketSimDeadLetters")
        clear()

        keys = ("diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio")
        admin.update_broker_config(dict.fromkeys(keys, "1"), broker_addr=master.address)
        fire("RocketSimDiskFilling", "RocketSimDiskFull", "RocketSimNotWritable")
        admin.update_broker_config(dict.fromkeys(keys, "100"), broker_addr=master.address)
        clear()

        slave.freeze()
        with Producer(watched.name_server) as producer:
            producer.send(Message("orders", b"the slave lacks this one"))
        fire("RocketSimReplicationBehind")
        slave.thaw()
        slave.kill()
        fire("RocketSimBrokerDown", "RocketSimSlaveNotInSync")
        slave.start()
        clear()

        wait_until(lambda: prometheus.query("rocketsim_slave_in_sync == 1"), "the slave is in sync", PROCESS_PATIENCE_S)
        master.kill()
        fire("RocketSimNotWritable")
        admin.promote_slave(slave.address)
        fire("RocketSimFailover")
        master.start(brokerId=1, brokerRole="SLAVE")
        clear()

    assert seen == {rule["alert"] for rule in rules()} - set(OF_ONE_BROKER)


async def test_alerts_of_a_clock_that_steps_and_of_cut_metrics_fire_and_clear(tmp_path: Path) -> None:
    step_ms = 0
    port = free_port()

    def serving(most: int) -> AbstractAsyncContextManager[BrokerNode]:
        config = small_config(tmp_path / "store", metrics_port=port, metrics_otel_cardinality_limit=most)
        return broker(config, Machine(now_ms=lambda: now_ms() + step_ms))

    async def firing(*wanted: str) -> None:
        await until(lambda: prometheus.firing() == set(wanted), f"exactly {wanted} fire", PROCESS_PATIENCE_S)

    async with AsyncExitStack() as parts:
        node = await parts.enter_async_context(serving(1))
        for topic in ("a", "b"):
            node.wire.taken.add((topic,), 1, 100)
        running = running_prometheus(tmp_path / "prometheus", [f"127.0.0.1:{port}"], quick_rules())
        prometheus = await asyncio.to_thread(running.__enter__)
        try:
            await firing("RocketSimMetricsCut")
            step_ms = 3_600_000
            await firing(*OF_ONE_BROKER)
            step_ms = 0
            await firing("RocketSimMetricsCut")
            await parts.aclose()
            async with serving(10_000):
                await firing()
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)
