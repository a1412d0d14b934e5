"""Following knows which master a slave follows, and has the task that copies this master's log."""

import asyncio
import logging
from typing import Any

from broker_service.broker.core.broker import Broker
from broker_service.replication.slave import ReplicationSlave

logger = logging.getLogger(__name__)


class Following:
    """At any time, only one task runs, and it follows one master.  `Leadership` starts and stops the task."""

    def __init__(self, broker: Broker, follower: ReplicationSlave) -> None:
        self._broker = broker
        self._follower = follower
        self._is_master_known = False
        self.task: asyncio.Task[Any] | None = None
        self.last_followed = ""  # the address of the master that was followed last, kept after `stop`

    @property
    def master_address(self) -> str:
        """Returns the address of the master to follow.

        The address is `haMasterAddress` if it is set, else the address that name servers know, else the last master's
        address.
        """
        if self._broker.config.ha_master_address:
            return self._broker.config.ha_master_address
        master = self._broker.peers.master()
        return master.address if master else self.last_followed

    @property
    def address(self) -> str:
        """The address of the master whose stream this slave has; empty if the slave has no stream."""
        return self.last_followed if self._broker.is_slave and self._follower.is_following() else ""

    def is_following(self) -> bool:
        return self._follower.is_following()

    def try_now(self) -> None:
        """Ends the pause before the next attempt to follow the master."""
        self._follower.notify()

    async def follow_master(self) -> None:
        """Follows `master_address`, unless it is empty or is followed already."""
        address = self.master_address
        was_known, self._is_master_known = self._is_master_known, self._broker.peers.master() is not None
        if self._is_master_known and not was_known:
            self._follower.notify()
        if address == self.last_followed and self.task is not None:
            return
        await self.stop()
        if address:
            self.last_followed = address
            logger.info("follows the master at %s", address)
            self.task = asyncio.create_task(self._follower.follow(address), name="follow")

    async def stop(self) -> None:
        """Stops following.  When `stop` returns, nothing is copied any more."""
        task, self.task = self.task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
