"""Leadership: acts on what `mastership.py` decides.  Opens a master's log for writes, follows a master, promotes.

One task does both, so a broker is never a master and somebody's slave at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.broker.leadership.promotion import Forfeit, Other, forfeits, objections
from broker_service.broker.leadership.role_file import RoleFile
from broker_service.errors import InvalidParameter, RocketSimError, ServiceNotAvailable, StaleEpoch
from broker_service.model import MASTER_ID, BrokerRole
from broker_service.replication.catch_up import LogState

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.1


class Follows(Protocol):
    """A slave's task; `ReplicationSlave` is one."""

    async def follow(self, master_address: str) -> Any: ...

    def is_following(self) -> bool: ...

    def notify(self) -> None:
        """The master is back: a follower that pauses between two tries tries now."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """The new epoch, where it starts, and what is cut, or may be, at others."""

    epoch: int
    start_offset: int
    forfeits: tuple[Forfeit, ...]

    def __str__(self) -> str:
        return "; ".join((f"epoch {self.epoch} from {self.start_offset} on", *map(str, self.forfeits)))


class Leadership:
    """`begin_epoch` hears whether it is a promotion; `take_back_epoch` undoes it, before anybody has heard of it.
    `is_copied` says whether the log's last epoch is another broker's.  `ask_others` asks everybody of the name, and the
    masters it is given, what they have; `tell_others` asks once more, for the question names the epoch of now.
    `notified` is set by whoever learns a fact: a name server or slave has answered, the master has another address.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        follower: Follows,
        begin_epoch: Callable[[bool], Awaitable[int]],
        take_back_epoch: Callable[[], None],
        continue_epoch: Callable[[], None],
        is_copied: Callable[[], bool],
        ask_others: Callable[[str, str], Awaitable[list[Other]]],
        tell_others: Callable[[list[str]], None],
        log_state: Callable[[], LogState],
        opened: Callable[[], None],
        role_file: RoleFile,
        notified: asyncio.Event,
    ) -> None:
        self._broker = broker
        self._follower = follower
        self._begin_epoch = begin_epoch
        self._take_back_epoch = take_back_epoch
        self._continue_epoch = continue_epoch
        self._is_copied = is_copied
        self._ask_others = ask_others
        self._tell_others = tell_others
        self._log_state = log_state
        self._opened = opened
        self._role_file = role_file
        self._notified = notified
        self._lock = asyncio.Lock()  # a promotion and an opening do not overlap
        self._settled = asyncio.Event()
        self._following: asyncio.Task[Any] | None = None
        self._followed = ""
        self._master_is_there = False

    @property
    def master_address(self) -> str:
        """The master this slave follows; its own configuration's before a name server's word."""
        if self._broker.config.ha_master_address:
            return self._broker.config.ha_master_address
        master = self._broker.peers.master()
        return master.address if master else self._followed

    async def settled(self, within_s: float) -> None:
        """Return when this broker is past its start (it takes writes, or never will by itself), or the time is over."""
        try:
            async with asyncio.timeout(within_s):
                await self._settled.wait()
        except TimeoutError:
            pass

    async def run(self) -> None:
        """Until cancelled."""
        told = ""
        try:
            while True:
                async with self._lock:
                    if self._broker.mastership.standing is Standing.SLAVE:
                        await self._follow(self.master_address)
                    elif self._broker.mastership.standing is Standing.WAITING:
                        waits_for = self._broker.waits_for()
                        if waits_for is None:
                            waits_for = await self._opening()
                        if waits_for is not None and waits_for != told:
                            told = waits_for
                            logger.info("no writes yet: %s", waits_for)
                    self._broker.offsets_wait_for()  # a slave that is made after this one's start has nothing to tell
                    if self._broker.mastership.standing is not Standing.WAITING:
                        self._settled.set()
                await self._pause()
        finally:
            await self._stop_following()

    async def _pause(self) -> None:
        waiting = self._broker.mastership.standing is Standing.WAITING
        watched = {asyncio.ensure_future(self._notified.wait())}
        try:
            following = {self._following} if self._following is not None else set()
            await asyncio.wait(
                watched | following,
                timeout=LOOK_AGAIN_S if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self._following is not None and self._following.done():
                self._following.result()  # A follower never ends but by a fault of ours: let it be seen.
        finally:
            for task in watched:
                task.cancel()
        self._notified.clear()

    async def _opening(self) -> str | None:
        """Why it did not work, to be tried again; None if it did."""
        try:
            await self._open()
        except (OSError, ServiceNotAvailable) as error:
            return f"the epoch could not be written: {error}"
        return None

    async def _open(self) -> None:
        """Take writes from now on.  After an unclean start the log may end before what was committed."""
        broker = self._broker
        misses = broker.mastership.misses(broker.peers.slaves())
        if broker.mastership.begins_epoch:
            # A slave that a configuration makes a master was promoted by that.
            epoch = await self._begin_epoch(self._is_copied())
            self._clamp_offsets()
        else:
            self._continue_epoch()
            epoch = broker.mastership.epoch
        if broker.mastership.standing is not Standing.WAITING:
            return  # fenced meanwhile
        broker.mastership.opened(epoch)
        if misses is not None:
            logger.warning("this master goes on alone: %s", misses)
        logger.info("this master takes writes: %s", broker)
        self._opened()

    def _clamp_offsets(self) -> None:
        for line in self._broker.offsets.clamp(self._broker.store.queue_end, new_generation=True):
            logger.warning("consumer offset beyond the end of its queue: %s", line)

    async def _follow(self, address: str) -> None:
        was_there, self._master_is_there = self._master_is_there, self._broker.peers.master() is not None
        if self._master_is_there and not was_there:
            self._follower.notify()
        if address == self._followed and self._following is not None:
            return
        await self._stop_following()
        if address:
            self._followed = address
            logger.info("slave of the master at %s", address)
            self._following = asyncio.create_task(self._follower.follow(address), name="follow")

    async def _stop_following(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    # --- promotion --------------------------------------------------------------------------------------------------

    async def promote(self, broker_name: str, expected_epoch: int, role: BrokerRole, *, force: bool) -> Promoted:
        """Make this slave the master of its name.  An operator's act, and fenced.

        The epoch is on disk first and the role last, then writes are taken: a crash in between leaves the slave that it
        was, and so does a promotion that fails; it follows again.
        """
        broker = self._broker
        if broker_name != broker.config.broker_name:
            raise InvalidParameter(f"this is broker {broker.config.broker_name}, not {broker_name!r}")
        if role is BrokerRole.SLAVE:
            raise InvalidParameter("promote to ASYNC_MASTER or SYNC_MASTER")
        others = await self._ask_others(self.master_address, self._followed)
        async with self._lock:
            self._check_promotion(expected_epoch, others, force)
            await self._stop_following()  # which ends the pause of `run`: it follows again if what comes now fails
            before = self._log_state()
            epoch = await self._take_over(role)
            broker.mastership.promoted(role, epoch, broker.known_slaves.addresses, broker.clock())
            broker.change_role(role, MASTER_ID)
            broker.visibility.changed(None)  # what the former master had not confirmed is ours now
        promoted = Promoted(epoch, before.end_offset, tuple(forfeits(before, others)))
        logger.warning("promoted: %s of %s with %s", role.name, broker_name, promoted)
        self._opened()
        self._tell_others([other.address for other in others])  # a master that is alive stops taking writes now
        self._notified.set()
        return promoted

    async def _take_over(self, role: BrokerRole) -> int:
        """The new epoch; it, the offsets and the role are on disk, in this order: with the role all of it counts, and
        without it, after a restart too, the epoch has not been."""
        epoch = await self._begin_epoch(True)
        try:
            self._clamp_offsets()
            self._role_file.save(role, epoch)
        except (OSError, RocketSimError):
            self._take_back_epoch()  # else it would fence the master that it goes on to follow
            raise
        return epoch

    def _check_promotion(self, expected_epoch: int, others: list[Other], force: bool) -> None:
        broker = self._broker
        if not broker.is_slave:
            raise InvalidParameter(f"this broker is a master already: {broker}")
        if broker.stopping:
            raise ServiceNotAvailable("this broker is stopping")
        known = max(broker.epoch, broker.peers.newest_epoch)
        if expected_epoch and expected_epoch != known:
            raise StaleEpoch(
                f"the epoch is {known} now, not {expected_epoch}: somebody else may have promoted a broker"
            )
        against = objections(self._log_state(), others)
        if self._follower.is_following():
            against.insert(0, f"the master at {self._followed} still answers: stop it first")
        if master := broker.peers.master():
            against.insert(0, f"a name server still knows a live master at {master.address}: stop it first")
        if not against:
            return
        if not force:
            raise InvalidParameter(f"{'; '.join(against)}. Or force the promotion (--force)")
        logger.warning("promoted by force, although %s", "; ".join(against))
