"""Leadership acts on what `mastership.py` decides: it opens a master for writes, follows a master, promotes a slave.

One lock covers opening a master, following a master and promotion, so a broker never follows while it is a master.

An operator starts a promotion, which has these steps:

1. The slave asks all known brokers of its name how far their logs go, and asks the name servers for a live master.  The
   promotion is refused if another log has more than this one, if a slave does not answer, or if a master is alive.
2. Every other slave promises to follow no master of a lower epoch.  A slave's log cannot grow after the promise, so the
   logs are compared a second time, with a result that stays true.
3. The new epoch is written, offsets beyond the log's end are lowered, and `role.json` is written.  Each write is on
   disk before the next write begins.
4. The broker takes writes, and tells the other brokers of its epoch.  A former master that is still alive then stops
   taking writes, because it hears of a newer epoch (it is fenced).

A forced promotion skips the promises and ignores the objections.  If a failure or a crash comes before `role.json` is
on disk, this broker stays a slave, and the new epoch does not count (`epoch_file.py`).  After a failed promotion, this
slave and the slaves that have promised follow their master again.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rocketsim_proto.reserved import MASTER_ID

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.config.broker_config import with_updates
from broker_service.errors import InvalidParameter, RocketSimError, ServiceNotAvailable, StaleEpoch
from broker_service.leadership.following import Following
from broker_service.leadership.inquiry import Inquiry
from broker_service.leadership.master_file import MasterFile
from broker_service.leadership.promises import Promises
from broker_service.leadership.promotion import Forfeit, OtherMember, forfeits, objections
from broker_service.leadership.role_file import RoleFile
from broker_service.modes import BrokerRole, FlushDiskType
from broker_service.replication.catch_up import LogState
from broker_service.replication.epochs import NO_EPOCH
from broker_service.replication.master import ReplicationMaster
from broker_service.replication.promise import Promise

logger = logging.getLogger(__name__)

CHECK_EVERY_S = 0.1  # how often a master that waits checks whether it may take writes
ASK_AGAIN_S = 0.5  # how often a slave asks whether its promise is over


class MastersWork(Protocol):
    """The periodic work of a master."""

    def begin(self) -> None:
        """Starts the work; called once, when this broker has begun to take writes."""


LEAVES_ROCKETMQ = (
    "this broker follows a RocketMQ master, and a promotion ends that for good: RocketMQ's brokers and clients do not "
    "learn of it, what is still sent to the RocketMQ master never gets here, and what is sent here never gets there. "
    "Stop its producers and the master first, wait until this broker has everything, and point the clients to it"
)


@dataclass(frozen=True, slots=True)
class Promoted:
    """The result of a promotion.

    `forfeits` are the bytes that other brokers lose, or may lose, because of the promotion.  `role` and
    `flush_disk_type` decide what this broker's OK to a producer guarantees from now on.  `former_role` is the role of
    the former master; None if it is not known.
    """

    epoch: int
    start_offset: int
    forfeits: tuple[Forfeit, ...]
    role: BrokerRole
    flush_disk_type: FlushDiskType
    former_role: BrokerRole | None

    @property
    def is_weaker(self) -> bool:
        """Returns True if the former master's OK meant that two brokers have the message, and this broker's OK means
        that one broker has it.
        """
        return self.role is BrokerRole.ASYNC_MASTER and self.former_role is BrokerRole.SYNC_MASTER

    def __str__(self) -> str:
        weaker = ("an OK no longer says that a slave has the message, as an OK of the former master did",)
        said = (f"epoch {self.epoch} from {self.start_offset} on", f"flushDiskType={self.flush_disk_type.name}")
        return "; ".join((*said, *(weaker if self.is_weaker else ()), *map(str, self.forfeits)))


class Leadership:
    """`run` checks if the broker is a master, a slave or fenced whenever `broker.members_changed` is notified."""

    def __init__(
        self,
        broker: Broker,
        *,
        following: Following,
        promises: Promises,
        master: ReplicationMaster,
        inquiry: Inquiry,
        masters_work: MastersWork,
        role_file: RoleFile,
        master_file: MasterFile,
    ) -> None:
        self._broker = broker
        self._following = following
        self.promises = promises
        self._master = master
        self._inquiry = inquiry
        self._masters_work = masters_work
        self._role_file = role_file
        self._master_file = master_file
        self._notified = broker.members_changed.waiter()
        self._lock = asyncio.Lock()  # a promotion and the opening for writes never overlap
        self._settled = asyncio.Event()

    async def settled(self, within_s: float) -> None:
        """Waits up to `within_s` until this broker's start is over: the broker takes writes, is a slave, or was
        replaced by a newer master (fenced).
        """
        try:
            async with asyncio.timeout(within_s):
                await self._settled.wait()
        except TimeoutError:
            pass

    async def run(self) -> None:
        """Runs until it is cancelled."""
        logged = ""
        try:
            while True:
                # the candidate is asked before the lock is taken, so that a promotion does not wait for the candidate's
                # answer
                over = await self._promise_that_is_over()
                async with self._lock:
                    if self._broker.mastership.standing is Standing.SLAVE:
                        if over is not None and over is self.promises.promised:
                            self.promises.end(over, "it was not promoted")
                        await self._following.follow_master()
                    elif self._broker.mastership.standing is Standing.WAITING:
                        waits_for = self._broker.waits_for()
                        if waits_for is None:
                            waits_for = await self._try_to_open()
                        if waits_for is not None and waits_for != logged:
                            logged = waits_for
                            logger.info("no writes yet: %s", waits_for)
                    # Once `offsets_wait_for` has returned None, it always returns None, because a slave that is set up
                    # later has no older offsets.
                    self._broker.offsets_wait_for()
                    if self._broker.mastership.standing is not Standing.WAITING:
                        self._settled.set()
                await self._pause()
        finally:
            await self._following.stop()

    async def _pause(self) -> None:
        pause_s = ASK_AGAIN_S if self.promises.promised else None
        if self._broker.mastership.standing is Standing.WAITING:
            pause_s = CHECK_EVERY_S
        watched = {asyncio.ensure_future(self._notified.wait())}
        try:
            following = {task for task in (self._following.task,) if task is not None}
            await asyncio.wait(
                watched | following,
                timeout=pause_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in following:
                if task.done() and task is self._following.task:
                    # raises the task's exception, because the task of a follower ends by itself only after a bug
                    task.result()
        finally:
            for task in watched:
                task.cancel()
        self._notified.clear()

    async def _try_to_open(self) -> str | None:
        """Lets this master take writes; returns why that has failed, or None.  After a failure, `run` tries again."""
        try:
            await self._open()
        except (OSError, ServiceNotAvailable) as error:
            return f"the epoch could not be written: {error}"
        return None

    async def _open(self) -> None:
        """Lets this master take writes.  If a new epoch begins, committed offsets beyond the log's end are lowered."""
        broker = self._broker
        misses = broker.mastership.misses(broker.peers.slaves())
        if broker.mastership.begins_epoch:
            # If another broker began the last epoch, this broker was a slave until now, and its new configuration
            # promotes it.
            epoch = await self._master.begin_epoch(
                promotion=not self._master.epochs.begun_here, above=self.promises.epoch
            )
            self._clamp_offsets()
        else:
            broker.acknowledgements.begin()
            epoch = broker.mastership.epoch
        if broker.mastership.standing is not Standing.WAITING:
            return  # meanwhile a newer master has ended the writes of this one
        broker.mastership.opened(epoch)
        if misses is not None:
            logger.warning("this master goes on alone: %s", misses)
        logger.info("this master takes writes: %s", broker)
        self._begin_work()

    def _begin_work(self) -> None:
        self._masters_work.begin()
        self._broker.description_changed.notify()

    async def _promise_that_is_over(self) -> Promise | None:
        promise = self.promises.may_be_over
        return promise if promise is not None and await self._inquiry.is_over(promise) else None

    def _clamp_offsets(self) -> None:
        for line in self._broker.offsets.clamp(self._broker.store.queues.end, new_generation=True):
            logger.warning("lowered a consumer offset beyond the end of its queue: %s", line)

    # --- what an OK means -------------------------------------------------------------------------------------------

    def update_config(self, values: Mapping[str, str]) -> None:
        """Sets keys that may change at run time: all of them or, after an error, none.

        `brokerRole` and `flushDiskType` decide what a master's OK to a producer guarantees.  When `brokerRole` or
        `flushDiskType` changes, the slaves must connect again to learn the new value, and their earlier
        acknowledgements do not count.  A restart reads `brokerRole` and `flushDiskType` from the configuration file,
        but on a promoted master from `role.json`, which this method writes.
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
            logger.warning("configuration changed: %s=%s, %s", key, value, until)
        if not broker.is_slave:
            role, flush = (setting.name for setting in meaning)
            self._master.disconnect(f"it is {role} with {flush} from now on: connect again")

    def _check_change_of_role(self, role_name: str) -> None:
        broker = self._broker
        if broker.is_slave:
            raise InvalidParameter(f"brokerRole={role_name}: this broker is a slave; promoteSlave makes it a master")
        if role_name == BrokerRole.SLAVE.name:
            raise InvalidParameter(
                "brokerRole=SLAVE: a master becomes a slave only at a restart: promote another broker, and start this "
                "one again with brokerRole=SLAVE and another brokerId"
            )
        if broker.mastership.standing is Standing.FENCED:
            broker.mastership.check_writable()

    # --- promotion --------------------------------------------------------------------------------------------------

    async def promote(
        self, broker_name: str, expected_epoch: int, asked_role: BrokerRole | None, *, force: bool
    ) -> Promoted:
        """Makes this slave the master of its name, in the steps that the top of this module describes.

        Without `asked_role` the broker gets the role of the former master, so that an OK to a producer guarantees the
        same.  The broker flushes before an OK if the former master did so, or if its own configuration says so.  Raises
        InvalidParameter with the objections, and StaleEpoch if the newest known epoch is not `expected_epoch` (0: any).
        """
        broker = self._broker
        if broker_name != broker.config.broker_name:
            raise InvalidParameter(f"this is broker {broker.config.broker_name}, not {broker_name!r}")
        if asked_role is BrokerRole.SLAVE:
            raise InvalidParameter("a slave can be promoted only to ASYNC_MASTER or SYNC_MASTER")
        # RocketMQ masters do not speak this protocol, so a RocketMQ master is not asked.
        following = self._following
        masters = () if broker.config.follows_rocketmq else (following.master_address, following.last_followed)
        others = await self._inquiry.others(*masters)
        async with self._lock:
            self._check_promotion(expected_epoch)
            role, flush = self._role_and_flush(asked_role)
            self._check_objections(self._objections(others), force=force)
            await self._following.stop()  # also wakes `run`, which follows the master again if the promotion fails
            above = self._newest_epoch(others)
            broker.mastership.candidate_epoch = self._master.epochs.epochs.next(promotion=True, above=above)
            try:
                if not force:
                    others = await self._inquiry.promises(broker.mastership.candidate_epoch, others)
                    self._check_objections(self._objections(others), force=False)
                before = self._log_state()
                epoch = await self._take_over(role, flush, above)
                broker.mastership.promoted(role, epoch, broker.known_slaves.addresses, broker.clock())
                broker.change_role(role, MASTER_ID, flush)
                # consumers now also see records that the former master had not confirmed
                broker.visibility.changed(None)
            finally:
                # After a fatal disk error only the next start knows whether the role was written.
                if broker.store.disk.fatal is None:
                    broker.mastership.candidate_epoch = NO_EPOCH
        promoted = Promoted(
            epoch, before.end_offset, tuple(forfeits(before, others)), role, flush, self._master_file.role
        )
        logger.warning("this broker is promoted to %s of broker name %s: %s", role.name, broker_name, promoted)
        self._begin_work()
        self._inquiry.announce_epoch(others)  # an old master that is still alive stops taking writes
        broker.members_changed.notify()
        return promoted

    def _role_and_flush(self, asked_role: BrokerRole | None) -> tuple[BrokerRole, FlushDiskType]:
        """Returns the role and the flush type that a promotion would give this broker.  The role is `asked_role`, or
        else the role of the master that this slave followed last.
        """
        role = asked_role or self._master_file.role
        if role is None:
            raise InvalidParameter(
                "this slave does not know the role of its last master, because it has followed no master with this "
                "version: name the role, SYNC_MASTER (--sync) if the master was one, else ASYNC_MASTER (--async)"
            )
        settings = self._master_file.flush_disk_type, self._broker.config.flush_disk_type
        return role, FlushDiskType.SYNC_FLUSH if FlushDiskType.SYNC_FLUSH in settings else FlushDiskType.ASYNC_FLUSH

    def _newest_epoch(self, others: list[OtherMember]) -> int:
        """Returns the newest epoch that any of these brokers knows or has promised."""
        answers = [other.answer for other in others if other.answer is not None]
        known = [number for answer in answers for number in (answer.epoch, answer.promised_epoch)]
        return max(self._broker.peers.newest_epoch, self.promises.epoch, *known)

    async def _take_over(self, role: BrokerRole, flush: FlushDiskType, above: int) -> int:
        """Writes the new epoch, the lowered offsets and the role, in this order; returns the epoch.

        The new epoch counts only once the role is written, so that a failure or a crash before that undoes the epoch.
        """
        epoch = await self._master.begin_epoch(promotion=True, above=above)
        try:
            self._clamp_offsets()
            self._role_file.save(role, flush, epoch)
        except (OSError, RocketSimError):
            # otherwise the new epoch would stop the writes of the master that this slave follows again
            self._master.take_back_epoch()
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
                f"the epoch is {known} now, not {expected_epoch}: another operator may have promoted a broker"
            )

    def _log_state(self) -> LogState:
        store = self._broker.store
        return LogState(self._master.epochs.epochs, store.min_offset, store.end_offset)

    def _objections(self, others: list[OtherMember]) -> list[str]:
        broker = self._broker
        against = objections(self._log_state(), others)
        if self._following.is_following():
            against.insert(0, f"the master at {self._following.last_followed} still answers: stop it first")
        if broker.config.follows_rocketmq:
            against.insert(0, LEAVES_ROCKETMQ)
        if master := broker.peers.master():
            against.insert(0, f"a name server still knows a live master at {master.address}: stop it first")
        if promised := self.promises.promised:
            against.append(f"this broker has promised {promised}, and asks that broker if it has given up: try again")
        return against

    def _check_objections(self, against: list[str], *, force: bool) -> None:
        if not against:
            return
        if not force:
            raise InvalidParameter(f"{'; '.join(against)}. To promote this slave anyway, force the promotion (--force)")
        logger.warning("promoted by force, although %s", "; ".join(against))
