"""A master that pops from itself and acknowledges, until a test kills it.  It prints which acks begin, and which acks
were answered OK.

    python -m tests.consumption.popping_broker FOLDER [NAME_SERVER] [in-order]

With a name server the broker is a SYNC_MASTER, and begins when a slave is in sync.  With in-order, each message group
is acknowledged from its first message on.
"""

import asyncio
import sys
from pathlib import Path

from rocketsim_proto.records import record

from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from broker_service.pop.deliveries import ChangeInvisible, HandleStatus, Pop
from broker_service.put_result import PutStatus
from testbed.polling import until
from tests.support.brokers import put, running

MESSAGES = 600
CONSUMERS = 4
GROUPS = 12  # message groups; each has every twelfth message


async def consume(node: BrokerNode, client_id: str, *, in_order: bool) -> None:
    while True:
        pop = Pop(group="g", topic="t", client_id=client_id, max_messages=3, invisible_ms=60_000, poll_s=60)
        deliveries = (await node.consumption.pop(pop)).deliveries
        given_back = len(deliveries) - 1 if in_order else 1
        for number, delivery in enumerate(deliveries):
            body, handle = record.decode(delivery.record).body.decode(), delivery.receipt_handle
            if number == given_back > 0 and delivery.attempt == 1:
                await node.consumption.change_invisible(
                    ChangeInvisible(group="g", topic="t", receipt_handle=handle, invisible_ms=0)
                )
            elif number != 2 or in_order:
                print("acks", body, flush=True)
                (settled,) = await node.consumption.ack("g", "t", [handle])
                if settled.status is HandleStatus.OK and settled.stored is PutStatus.PUT_OK:
                    print("acked", body, flush=True)


async def main(folder: Path, *words: str) -> None:
    in_order, name_server = "in-order" in words, "".join(word for word in words if word != "in-order")
    keys = {"namesrv_addr": name_server, "broker_role": BrokerRole.SYNC_MASTER} if name_server else {}
    async with running(folder, **keys) as node:
        if name_server:
            await until(lambda: node.status.slaves() and node.status.slaves()[0].in_sync, "the slave is in sync")
        node.topics.put(TopicConfig("t", 2, 2), 0)
        if in_order:
            node.groups.put(SubscriptionGroup("g", consume_message_orderly=True), 0)
            for first in range(MESSAGES):
                if first % (10 * GROUPS) < GROUPS:  # ten messages of a group, then ten of the next one
                    bodies = (b"%d" % number for number in range(first, first + 10 * GROUPS, GROUPS))
                    await put(node, "t", *bodies, queue_id=first % 2, __SHARDINGKEY=str(first % GROUPS))
        else:
            for queue_id in range(2):
                bodies = (b"%d" % number for number in range(queue_id, MESSAGES, 2))
                await put(node, "t", *bodies, queue_id=queue_id)
        await asyncio.gather(*(consume(node, str(number), in_order=in_order) for number in range(CONSUMERS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
