"""A master that takes messages whose delivery time is in an hour, then moves its clock and delivers all messages in
small batches.  The program prints a line for each batch, until a test kills it.

    python -m tests.consumption.timing_broker FOLDER [NAME_SERVER]

With a name server the broker is a SYNC_MASTER, and begins when a slave is in sync.
"""

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path

from broker_service.broker.core.broker import Queue
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.delayed import timer_delivery
from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from broker_service.put_result import PutStatus
from testbed.polling import until
from tests.support.brokers import goes_by, message, put_send, running, send_of

MESSAGES = 600
HOUR_MS = 3_600_000


def in_an_hour(node: BrokerNode) -> None:
    """Moves the broker's clock two hours ahead, so that everything that waits becomes due."""
    real = node.broker.now_ms
    goes_by(node.broker, lambda: real() + 2 * HOUR_MS)
    node.consumption.timer_delivery.loop.wake()


async def send(node: BrokerNode) -> None:
    now_ms = node.broker.now_ms()
    for number in range(MESSAGES):
        deliver_ms = str(now_ms + HOUR_MS + 5 * number)
        sent = message("t", b"%d" % number, 0, UNIQ_KEY=str(number), TIMER_DELIVER_MS=deliver_ms)
        _, status = await put_send(node, send_of("t", sent), timeout_s=60.0)
        assert status is PutStatus.PUT_OK


async def main(folder: Path, name_server: str) -> None:
    timer_delivery.BATCH = 3
    pair = {"namesrv_addr": name_server, "broker_role": BrokerRole.SYNC_MASTER, "slave_timeout": 60_000}
    keys = pair if name_server else {}
    async with running(folder, **keys) as node:
        if name_server:
            await until(lambda: node.status.slaves() and node.status.slaves()[0].in_sync, "the slave is in sync")
        node.topics.put(TopicConfig("t", 1, 1), 0)

        def say(queues: Iterable[Queue]) -> None:
            if ("t", 0) in queues:
                print(node.store.queues.end("t", 0), flush=True)

        node.broker.visibility.arrived.append(say)
        await send(node)
        in_an_hour(node)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), "".join(sys.argv[2:])))
