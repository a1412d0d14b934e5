"""Tick does the work that a broker repeats ten times a second, such as the store's own tick and sending changes of
metadata.
"""

import asyncio

from broker_service.broker.core.broker import Broker
from broker_service.replication.slave import ReplicationSlave

TICK_S = 0.1  # a change of metadata waits this long at most before it is sent to the slaves


class Tick:
    def __init__(self, broker: Broker, slave: ReplicationSlave) -> None:
        self._broker = broker
        self._slave = slave

    async def run(self) -> None:
        broker = self._broker
        writable = broker.takes_clients_writes
        while True:
            broker.store.tick(broker.now_ms())
            if broker.is_slave:
                broker.changes.forget()
                if broker.offsets.take_news():
                    self._slave.hand_back()
            else:
                broker.changes.publish()
            if writable != broker.takes_clients_writes:
                writable = not writable
                self._broker.description_changed.notify()
            await asyncio.sleep(TICK_S)
