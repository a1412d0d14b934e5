"""A master whose own clients send and end transactions and print each OK answer, until a test kills the process.

    python -m tests.v2.committing_broker FOLDER [NAME_SERVER]

With a NAME_SERVER, the broker is a SYNC_MASTER, and the clients begin when a slave is in sync.  Of three transactions
one is committed, one is rolled back, and one stays open.
"""

import asyncio
import itertools
import sys
from pathlib import Path

from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s

from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from testbed.polling import until
from tests.support.brokers import running
from tests.support.v2 import client_of, make_topics, message, resource

CLIENTS = 3
WORDS = {d.COMMIT: "committed", d.ROLLBACK: "rolled_back"}


async def transact(node: BrokerNode, client_id: str) -> None:
    async with client_of(node, client_id) as client:
        for number in itertools.count():
            name = f"{client_id}-{number}"
            print("prepares", name, flush=True)
            half = message("X", name.encode(), message_id=name, message_type=d.TRANSACTION)
            if (await client.send(half)).status.code != d.OK:
                continue
            print("prepared", name, flush=True)
            resolution = (d.COMMIT, d.ROLLBACK, None)[number % 3]
            if resolution is None:
                continue
            print("ends", name, flush=True)
            request = s.EndTransactionRequest(topic=resource("X"), transaction_id=name, resolution=resolution)
            if (await client.EndTransaction(request)).status.code == d.OK:
                print(WORDS[resolution], name, flush=True)


async def main(folder: Path, name_server: str) -> None:
    keys = {"namesrv_addr": name_server, "broker_role": BrokerRole.SYNC_MASTER} if name_server else {}
    async with running(folder, grpc_server_port=0, transaction_time_out=3_600_000, **keys) as node:
        if name_server:
            await until(lambda: node.status.slaves() and node.status.slaves()[0].in_sync, "the slave is in sync")
        make_topics(node)
        await asyncio.gather(*(transact(node, str(number)) for number in range(CLIENTS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), "".join(sys.argv[2:])))
