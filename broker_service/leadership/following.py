"""Following: which master a slave follows, and the task that copies its log."""

import asyncio
import logging
from typing import Any, Protocol

from broker_service.broker.core.broker import Broker

logger = logging.getLogger(__name__)


class Follower(Protocol):
    """Copies a master's log; `ReplicationSlave` is one."""

    async def follow(self, master_address: str) -> Any: ...

    def is_following(self) -> bool: ...

    def notify(self) -> None:
        """The master is back: a follower that pauses between two tries tries now."""


class Following:
    """One task at a time follows one master.  `Leadership` starts and stops it."""

    def __init__(self, broker: Broker, follower: Follower) -> None:
        self._broker = broker
        self._follower = follower
        self._master_is_there = False
        self.task: asyncio.Task[Any] | None = None
        self.last_followed = ""  # the address of the last master, also after `stop`

    @property
    def master_address(self) -> str:
        """The master that this slave follows.  Its own configuration goes before what a name server says."""
        if self._broker.config.ha_master_address:
            return self._broker.config.ha_master_address
        master = self._broker.peers.master()
        return master.address if master else self.last_followed

    @property
    def address(self) -> str:
        """The address of the master whose stream this slave has; empty: none."""
        return self.last_followed if self._broker.is_slave and self._follower.is_following() else ""

    def is_following(self) -> bool:
        return self._follower.is_following()

    def try_now(self) -> None:
        """A follower that pauses between two tries tries now."""
        self._follower.notify()

    async def follow_master(self) -> None:
        """Follow the master of now, if there is one and it is not followed already."""
        address = self.master_address
        was_there, self._master_is_there = self._master_is_there, self._broker.peers.master() is not None
        if self._master_is_there and not was_there:
            self._follower.notify()
        if address == self.last_followed and self.task is not None:
            return
        await self.stop()
        if address:
            self.last_followed = address
            logger.info("slave of the master at %s", address)
            self.task = asyncio.create_task(self._follower.follow(address), name="follow")

    async def stop(self) -> None:
        """On return nothing is copied any more."""
        task, self.task = self.task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
