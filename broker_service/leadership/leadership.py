"""Leadership: acts on what `mastership.py` decides.  Opens a master's log for writes, follows a master, promotes.

One task does both, so a broker is never a master and somebody's slave at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.config.process_config import with_updates
from broker_service.errors import InvalidParameter, RocketSimError, ServiceNotAvailable, StaleEpoch
from broker_service.leadership.master_file import MasterFile
from broker_service.leadership.promotion import Forfeit, Other, forfeits, objections
from broker_service.leadership.role_file import RoleFile
from broker_service.model import MASTER_ID, BrokerRole, FlushDiskType
from broker_service.replication.catch_up import LogState
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.epochs import NO_EPOCH, PROMOTION
from broker_service.replication.promise import Promise, refusal

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.1
ASK_AGAIN_S = 0.5  # whether a promise is over


class Follows(Protocol):
    """A slave's task; `ReplicationSlave` is one."""

    async def follow(self, master_address: str) -> Any: ...

    def is_following(self) -> bool: ...

    def notify(self) -> None:
        """The master is back: a follower that pauses between two tries tries now."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """The new epoch, where it starts, and what is cut, or may be, at others; what an OK means from now on, and the role
    of the master before (None: not known)."""

    epoch: int
    start_offset: int
    forfeits: tuple[Forfeit, ...]
    role: BrokerRole
    flush_disk_type: FlushDiskType
    former_role: BrokerRole | None

    @property
    def is_weaker(self) -> bool:
        """Whether an OK was on two brokers and is on one now."""
        return self.role is BrokerRole.ASYNC_MASTER and self.former_role is BrokerRole.SYNC_MASTER

    def __str__(self) -> str:
        weaker = ("an OK does not say any more that a slave has the message, as the former master's did",)
        said = (f"epoch {self.epoch} from {self.start_offset} on", f"flushDiskType={self.flush_disk_type.name}")
        return "; ".join((*said, *(weaker if self.is_weaker else ()), *map(str, self.forfeits)))


class Leadership:
    """`begin_epoch` hears whether it is a promotion, and which epochs it has to be above; `take_back_epoch` undoes it,
    before anybody has heard of it.  `ask_others` asks everybody of the name, and the masters it is given, what they
    have; `tell_others` asks once more, for the question names the epoch of now.  `ask_promises` asks the slaves among
    them to follow no master below an epoch, `is_over` a candidate whether it has given up what was promised to it.
    `disconnect_slaves` hears why their streams end; they connect again.  `notified` is set by whoever learns a fact: a
    name server or slave has answered, the master has another address.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        follower: Follows,
        epochs: EpochFile,
        begin_epoch: Callable[[bool, int], Awaitable[int]],
        take_back_epoch: Callable[[], None],
        continue_epoch: Callable[[], None],
        ask_others: Callable[[str, str], Awaitable[list[Other]]],
        ask_promises: Callable[[int, list[Other]], Awaitable[list[Other]]],
        tell_others: Callable[[list[str]], None],
        is_over: Callable[[Promise], Awaitable[bool]],
        log_state: Callable[[], LogState],
        opened: Callable[[], None],
        role_file: RoleFile,
        master_file: MasterFile,
        disconnect_slaves: Callable[[str], None],
        notified: asyncio.Event,
    ) -> None:
        self._broker = broker
        self._follower = follower
        self._epochs = epochs
        self._begin_epoch = begin_epoch
        self._take_back_epoch = take_back_epoch
        self._continue_epoch = continue_epoch
        self._ask_others = ask_others
        self._ask_promises = ask_promises
        self._tell_others = tell_others
        self._is_over = is_over
        self._log_state = log_state
        self._opened = opened
        self._role_file = role_file
        self._master_file = master_file
        self._disconnect_slaves = disconnect_slaves
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

    @property
    def follows(self) -> str:
        """The address of the master whose stream this slave has; empty: none."""
        return self._followed if self._broker.is_slave and self._follower.is_following() else ""

    @property
    def promised(self) -> Promise | None:
        """To whom this slave has promised to follow no master of a lower epoch, as long as that holds."""
        return self._epochs.promised

    async def settled(self, within_s: float) -> None:
        """Return when this broker is past its start (it takes writes, or never will by itself), or the time is over."""
        try:
            async with asyncio.timeout(within_s):
                await self._settled.wait()
        except TimeoutError:
            pass

    async def run(self) -> None:
        """Until cancelled."""
        logged = ""
        try:
            while True:
                over = await self._promise_that_is_over()  # a promotion does not wait for this
                async with self._lock:
                    if self._broker.mastership.standing is Standing.SLAVE:
                        if over is not None and over is self._epochs.promised:
                            self._end_promise(over, "it was not promoted")
                        await self._follow(self.master_address)
                    elif self._broker.mastership.standing is Standing.WAITING:
                        waits_for = self._broker.waits_for()
                        if waits_for is None:
                            waits_for = await self._opening()
                        if waits_for is not None and waits_for != logged:
                            logged = waits_for
                            logger.info("no writes yet: %s", waits_for)
                    self._broker.offsets_wait_for()  # a slave that is made after this one's start has nothing to tell
                    if self._broker.mastership.standing is not Standing.WAITING:
                        self._settled.set()
                await self._pause()
        finally:
            await self._stop_following()

    async def _pause(self) -> None:
        pause_s = ASK_AGAIN_S if self._epochs.promised else None
        if self._broker.mastership.standing is Standing.WAITING:
            pause_s = LOOK_AGAIN_S
        watched = {asyncio.ensure_future(self._notified.wait())}
        try:
            following = {self._following} if self._following is not None else set()
            await asyncio.wait(
                watched | following,
                timeout=pause_s,
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
            epoch = await self._begin_epoch(not self._epochs.begun_here, self._promised_epoch)
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

    # --- promises to those who are promoted -------------------------------------------------------------------------

    def promise(self, candidate: Promise) -> str:
        """From now on this slave follows no master of a lower epoch; else why not, a clause."""
        mastership = self._broker.mastership
        reason = refusal(
            candidate,
            self._epochs.promised,
            self._epochs.epochs.last,
            is_slave=self._broker.is_slave,
            follows=self.follows,
            candidate_epoch=mastership.candidate_epoch,
        )
        return reason or self._note(candidate)

    def hears_of_master(self, master: Promise) -> None:
        """Of a newer promotion, from the promoted one: the master that it replaced is not followed any more."""
        newest = max(self._epochs.epochs.last, self._promised_epoch)
        if self._broker.is_slave and master.epoch // PROMOTION > newest // PROMOTION:
            if problem := self._note(master):
                logger.error("this slave %s", problem)

    @property
    def _promised_epoch(self) -> int:
        return self._epochs.promised.epoch if self._epochs.promised else NO_EPOCH

    def forget(self, broker_id: int, address: str) -> bool:
        """An operator says that this broker is gone for good; whether something was promised to it, which is over."""
        promised = self._epochs.promised
        if promised is None or (broker_id != promised.broker_id and address != promised.address):
            return False
        self._end_promise(promised, "that broker is gone for good")
        return True

    def _note(self, promise: Promise) -> str:
        try:
            self._epochs.promise(promise)
        except OSError as error:
            return f"cannot write its promise: {error}"
        logger.warning("promised %s: no master of a lower epoch is followed", promise)
        self._notified.set()
        return ""

    async def _promise_that_is_over(self) -> Promise | None:
        promise = self._epochs.promised
        if promise is None or self._broker.mastership.standing is not Standing.SLAVE:
            return None
        return promise if await self._is_over(promise) else None

    def _end_promise(self, promise: Promise, why: str) -> None:
        logger.warning("the promise of %s is over: %s", promise, why)
        try:
            self._epochs.end_promise()
        except OSError as error:
            logger.warning("%s: after a restart it has to end once more", error)
        self._follower.notify()

    # --- what an OK means -------------------------------------------------------------------------------------------

    def update_config(self, values: Mapping[str, str]) -> None:
        """Run-time keys; all of them or, with an error, none.  `brokerRole` and `flushDiskType` say what an OK of a
        master means: its slaves connect again, and are told; what they acknowledge before that does not count.  A
        restart reads the configuration file again, of a master that was promoted `role.json`, which is written here.
        """
        broker, before = self._broker, self._broker.config
        if (role_name := values.get("brokerRole", before.broker_role.name)) != before.broker_role.name:
            self._check_change_of_role(role_name)
        changed = with_updates(before, values)
        meaning = changed.broker_role, changed.flush_disk_type
        if meaning == (before.broker_role, before.flush_disk_type):
            broker.update_config(values)
            return
        until = "also after a restart" if self._role_file.change(*meaning) else "until the next restart"
        if not broker.is_slave:
            broker.mastership.change_role(changed.broker_role)
        broker.become(changed)
        for key, value in values.items():
            logger.warning("configuration: %s=%s %s", key, value, until)
        if not broker.is_slave:
            role, flush = (setting.name for setting in meaning)
            self._disconnect_slaves(f"it is {role} with {flush} from now on: connect again")

    def _check_change_of_role(self, role_name: str) -> None:
        broker = self._broker
        if broker.is_slave:
            raise InvalidParameter(f"brokerRole={role_name}: this broker is a slave; promoteSlave makes it a master")
        if role_name == BrokerRole.SLAVE.name:
            raise InvalidParameter(
                "brokerRole=SLAVE: promote another broker, and start this one again with brokerRole=SLAVE and another "
                "brokerId"
            )
        if broker.mastership.standing is Standing.FENCED:
            broker.mastership.check_writable()

    # --- promotion --------------------------------------------------------------------------------------------------

    async def promote(
        self, broker_name: str, expected_epoch: int, asked_role: BrokerRole | None, *, force: bool
    ) -> Promoted:
        """Make this slave the master of its name.  An operator's act, and fenced.

        Without `asked_role` it is the master that the former one was, so that an OK keeps its meaning.  A log that the
        former one flushed before its OK, or that this broker's configuration says to flush, is flushed before an OK.

        Unless it is forced, every other slave first promises to follow no master of a lower epoch: only then its log
        cannot grow any more, and is compared with this one's.

        The epoch is on disk first and the role last, then writes are taken: a crash in between leaves the slave that it
        was, and so does a promotion that fails; it follows again, and so do those who have promised.
        """
        broker = self._broker
        if broker_name != broker.config.broker_name:
            raise InvalidParameter(f"this is broker {broker.config.broker_name}, not {broker_name!r}")
        if asked_role is BrokerRole.SLAVE:
            raise InvalidParameter("promote to ASYNC_MASTER or SYNC_MASTER")
        others = await self._ask_others(self.master_address, self._followed)
        async with self._lock:
            self._check_promotion(expected_epoch)
            role, flush = self._kept_from_the_master(asked_role)
            self._check_objections(self._objections(others), force=force)
            await self._stop_following()  # which ends the pause of `run`: it follows again if what comes now fails
            above = self._newest_epoch(others)
            broker.mastership.candidate_epoch = self._epochs.epochs.next(promotion=True, above=above)
            try:
                if not force:
                    others = await self._ask_promises(broker.mastership.candidate_epoch, others)
                    self._check_objections(self._objections(others), force=False)
                before = self._log_state()
                epoch = await self._take_over(role, flush, above)
                broker.mastership.promoted(role, epoch, broker.known_slaves.addresses, broker.clock())
                broker.change_role(role, MASTER_ID, flush)
                broker.visibility.changed(None)  # what the former master had not confirmed is ours now
            finally:
                if broker.store.disk.fatal is None:  # else only the next start knows whether the role was written
                    broker.mastership.candidate_epoch = NO_EPOCH
        promoted = Promoted(
            epoch, before.end_offset, tuple(forfeits(before, others)), role, flush, self._master_file.role
        )
        logger.warning("promoted: %s of %s with %s", role.name, broker_name, promoted)
        self._opened()
        self._tell_others([other.address for other in others])  # a master that is alive stops taking writes now
        self._notified.set()
        return promoted

    def _kept_from_the_master(self, asked_role: BrokerRole | None) -> tuple[BrokerRole, FlushDiskType]:
        """What the OK of this broker means once it is promoted."""
        role = asked_role or self._master_file.role
        if role is None:
            raise InvalidParameter(
                "this slave does not know the role of its master, since it has followed none with this version: name "
                "the role, SYNC_MASTER (--sync) if the master was one, else ASYNC_MASTER (--async)"
            )
        settings = self._master_file.flush_disk_type, self._broker.config.flush_disk_type
        return role, FlushDiskType.SYNC_FLUSH if FlushDiskType.SYNC_FLUSH in settings else FlushDiskType.ASYNC_FLUSH

    def _newest_epoch(self, others: list[Other]) -> int:
        """That anybody knows, or has promised to anybody."""
        answers = [other.answer for other in others if other.answer is not None]
        known = [number for answer in answers for number in (answer.epoch, answer.promised_epoch)]
        return max(self._broker.peers.newest_epoch, self._promised_epoch, *known)

    async def _take_over(self, role: BrokerRole, flush: FlushDiskType, above: int) -> int:
        """The new epoch; it, the offsets and the role are on disk, in this order: with the role all of it counts, and
        without it, after a restart too, the epoch has not been."""
        epoch = await self._begin_epoch(True, above)
        try:
            self._clamp_offsets()
            self._role_file.save(role, flush, epoch)
        except (OSError, RocketSimError):
            self._take_back_epoch()  # else it would fence the master that it goes on to follow
            raise
        return epoch

    def _check_promotion(self, expected_epoch: int) -> None:
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

    def _objections(self, others: list[Other]) -> list[str]:
        broker = self._broker
        against = objections(self._log_state(), others)
        if self._follower.is_following():
            against.insert(0, f"the master at {self._followed} still answers: stop it first")
        if master := broker.peers.master():
            against.insert(0, f"a name server still knows a live master at {master.address}: stop it first")
        if promised := self._epochs.promised:
            against.append(f"this broker has promised {promised}, and asks it whether that is over: try again")
        return against

    def _check_objections(self, against: list[str], *, force: bool) -> None:
        if not against:
            return
        if not force:
            raise InvalidParameter(f"{'; '.join(against)}. Or force the promotion (--force)")
        logger.warning("promoted by force, although %s", "; ".join(against))
