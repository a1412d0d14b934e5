"""Makes a store with pending work (deliveries, retries, dead letters, timers and transactions), and completes this
work.

The clock of the broker that makes the store is an hour slow, and that of the broker that completes it two hours fast.
While the store is made, only messages without a delay are due, because of the slow clock.  The messages named `soon`
are due when RocketMQ opens the store, and those named `later` when our broker opens the store again.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from google.protobuf.timestamp_pb2 import Timestamp
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s
from rocketsim_proto.records import record

from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.node.node import BrokerNode
from broker_service.pop.deliveries import ChangeInvisible, Delivery, HandleStatus, Pop
from broker_service.put_result import PutStatus
from testbed.polling import until
from tests.support.brokers import goes_by, put, running
from tests.support.v2 import Client, client_of, message, resource

HOUR_MS = 3_600_000
TOPICS = {"work": ("NORMAL", 3), "steps": ("FIFO", 1), "times": ("DELAY", 1), "trades": ("TRANSACTION", 1)}
RETRY = "%RETRY%crew+work"
KEYS = {"grpc_server_port": 0, "transaction_time_out": 48 * HOUR_MS}

# The messages that group crew has not acknowledged and that are no dead letters, and those of group line, in order.
WORK_LEFT = {f"work-{number}" for number in (2, 3, 5, 6, 10, 11)}
STEPS_LEFT = ["g-2", "g-3", "h-1"]
# The messages that are in these topics at the end, in any order.
TIMES = {"times-past", "level-soon", "times-soon", "times-later", "level-later"}
TRADES = {"committed", "open"}
NAMES = {f"work-{number}" for number in range(12)} | {"g-1", *STEPS_LEFT} | TIMES | TRADES


@asynccontextmanager
async def broker(root: Path, clock_ms: int) -> AsyncIterator[tuple[BrokerNode, Client]]:
    """Yields a master whose clock differs from the real time by `clock_ms`."""
    async with running(root, **KEYS) as node, client_of(node) as client:
        goes_by(node.broker, lambda: time.time_ns() // 1_000_000 + clock_ms)
        yield node, client


async def make(root: Path) -> None:
    """Makes the store of a broker that was stopped cleanly."""
    async with broker(root, -HOUR_MS) as (node, client):
        for name, (of_type, queues) in TOPICS.items():
            node.topics.update(TopicConfig(name, queues, queues, attributes={"message.type": of_type}), 0)
        node.groups.put(SubscriptionGroup("crew"), 0)
        node.groups.put(SubscriptionGroup("line", consume_message_orderly=True), 0)
        await _work(node)
        await _steps(node, client)
        await _times(node, client)
        await _trades(client)


async def _work(node: BrokerNode) -> None:
    for queue_id, numbers in enumerate((range(6), range(6, 10))):
        await put(node, "work", *(b"work-%d" % number for number in numbers), queue_id=queue_id)
    got = await pop(node, "crew", "work")
    assert len(got) == 10
    for number, name in enumerate(("work-9", "work-6", "work-5")):
        await give_back(node, got[name], 0)
        await until(lambda end=number + 1: node.store.queues.end(RETRY, 0) == end, f"{name} is in the retry topic")
        if name != "work-5":
            got |= await pop(node, "crew", "work")
    for name in ("work-0", "work-1", "work-4", "work-8", "work-9"):
        await acknowledge(node, "crew", "work", got[name])
    await give_back(node, got["work-3"], HOUR_MS)
    dead = await node.consumption.forward_to_dlq("crew", "work", got["work-7"].receipt_handle)
    assert dead.status is HandleStatus.OK
    await put(node, "work", b"work-10", b"work-11", queue_id=2)


async def _steps(node: BrokerNode, client: Client) -> None:
    steps = "g-1", "g-2", "g-3", "h-1"
    for name in steps:
        await sent(client, message("steps", name.encode(), message_group=name[0], message_type=d.FIFO))
    got = await pop(node, "line", "steps")
    assert (*got,) == steps
    await acknowledge(node, "line", "steps", got["g-1"])


async def _times(node: BrokerNode, client: Client) -> None:
    await put(node, "times", b"level-soon", DELAY="9")
    await put(node, "times", b"level-later", DELAY="18")
    handles = {}
    for name, in_ms in {"past": 200, "soon": HOUR_MS + 1, "later": 2 * HOUR_MS, "recalled": 2 * HOUR_MS}.items():
        at = Timestamp()
        at.FromMilliseconds(node.broker.now_ms() + in_ms)
        one = message("times", f"times-{name}".encode(), delivery_timestamp=at, message_type=d.DELAY)
        handles[name] = await sent(client, one)
    recall = s.RecallMessageRequest(topic=resource("times"), recall_handle=handles["recalled"])
    assert (await client.RecallMessage(recall)).status.code == d.OK
    await until(lambda: node.store.queues.end("times", 0) == 1, "the message that was due at once is delivered")


async def _trades(client: Client) -> None:
    for name in ("committed", "rolled-back", "open", "given-up"):
        await sent(client, message("trades", name.encode(), message_id=name, message_type=d.TRANSACTION))
    await end(client, "committed", d.COMMIT)
    await end(client, "rolled-back", d.ROLLBACK)


async def complete(root: Path) -> dict[str, list[str]]:
    """Returns what a broker whose clock is two hours fast delivers to each group, in order, until nothing is left."""
    received: dict[str, list[str]] = {}
    async with broker(root, 2 * HOUR_MS) as (node, client):
        await end(client, "open", d.COMMIT)
        await end(client, "given-up", d.ROLLBACK)
        state = node.consumption.state
        await until(lambda: not state.timers.count, "all timers are delivered")
        await until(lambda: node.store.queues.end("times", 0) >= 5, "all delay levels are delivered")
        await until(lambda: not state.under_way_count, "what was delivered is to be delivered again")
        for group, topic in (("crew", "work"), ("line", "steps"), ("other", "times"), ("other", "trades")):
            received[topic] = []
            while got := await pop(node, group, topic):
                received[topic] += got
                for delivery in got.values():
                    await acknowledge(node, group, topic, delivery)
    return received


async def sent(client: Client, one: d.Message) -> str:
    """Sends the message, and returns its recall handle."""
    answer = await client.send(one)
    assert answer.status.code == d.OK, answer
    return str(answer.entries[0].recall_handle)


async def end(client: Client, name: str, resolution: d.TransactionResolution) -> None:
    request = s.EndTransactionRequest(topic=resource("trades"), transaction_id=name, resolution=resolution)
    answer = await client.EndTransaction(request)
    assert answer.status.code == d.OK, answer


async def pop(node: BrokerNode, group: str, topic: str) -> dict[str, Delivery]:
    """Pops all messages that are there now, with an invisible time of an hour.  Returns the deliveries by body."""
    popped = await node.consumption.pop(Pop(group=group, topic=topic, client_id="me", invisible_ms=HOUR_MS))
    return {record.decode(one.record).body.decode(): one for one in popped.deliveries}


async def acknowledge(node: BrokerNode, group: str, topic: str, delivery: Delivery) -> None:
    (settled,) = await node.consumption.ack(group, topic, [delivery.receipt_handle])
    assert (settled.status, settled.stored) == (HandleStatus.OK, PutStatus.PUT_OK), settled


async def give_back(node: BrokerNode, delivery: Delivery, wait_ms: int) -> None:
    change = ChangeInvisible(group="crew", topic="work", receipt_handle=delivery.receipt_handle, invisible_ms=wait_ms)
    assert (await node.consumption.change_invisible(change)).status is HandleStatus.OK
