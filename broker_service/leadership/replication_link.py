"""ReplicationLink: what replication asks of the broker, on either side (`replication/protocols.py`)."""

import asyncio
import logging
from collections.abc import Callable

from rocketsim_proto.metadata_pb2 import Metadata

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.delayed.schedule_service import ScheduleService
from broker_service.errors import RocketSimError
from broker_service.leadership.exchange import MetadataExchange
from broker_service.leadership.leadership import Leadership
from broker_service.leadership.master_file import MasterFile
from broker_service.leadership.role_file import RoleFile
from broker_service.model import BrokerRole, FlushDiskType
from broker_service.replication.catch_up import Cut
from broker_service.replication.promise import Promise
from broker_service.replication.tracker import SlaveProgress

logger = logging.getLogger(__name__)

# A slave notifies those who wait for records at most this often.
NOTIFY_EVERY_S = 0.002


class ReplicationLink:
    """`notify` tells Leadership that a fact has changed; `leadership` answers for a slave; `catch_up` and `reload`
    bring what is derived from the log up to its end, from where it was and from the beginning."""

    def __init__(
        self,
        broker: Broker,
        metadata: MetadataExchange,
        schedule: ScheduleService,
        role_file: RoleFile,
        master_file: MasterFile,
        notify: Callable[[], None],
        leadership: Callable[[], Leadership],
        *,
        catch_up: Callable[[], None],
        reload: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._metadata = metadata
        self._schedule = schedule
        self._role_file = role_file
        self._master_file = master_file
        self._notify = notify
        self._leadership = leadership
        self._catch_up = catch_up
        self._reload = reload
        self._trouble = ""  # why the last catch-up failed
        self._notifying: asyncio.TimerHandle | None = None

    # --- a master's -------------------------------------------------------------------------------------------------

    def is_master(self) -> bool:
        mastership = self._broker.mastership
        return mastership.is_master and mastership.standing is not Standing.FENCED

    def takes_writes(self) -> bool:
        return self._broker.mastership.standing is Standing.WRITABLE

    def metadata(self) -> Metadata:
        return self._metadata.snapshot()

    def accept_offsets(self, slave_id: int, offsets: Metadata) -> None:
        self._metadata.accept_offsets(slave_id, offsets)

    def fenced(self, epoch: int, by: str) -> None:
        if self._broker.mastership.newer_epoch(epoch, by):
            logger.error(
                "FENCED by %s: no more writes here. To follow the new master, stop this broker, %sstart it with "
                "brokerRole=SLAVE and a brokerId that no other broker of its name has; what only this log has will be "
                "kept aside",
                self._broker.mastership.fenced_by,
                self._role_file.to_be_removed_first(),
            )
            self._notify()

    def follows(self) -> str:
        return self._leadership().follows

    def candidate_epoch(self) -> int:
        return self._broker.mastership.candidate_epoch

    def promise(self, candidate: Promise) -> str:
        return self._leadership().promise(candidate)

    def hears_of_master(self, master: Promise) -> None:
        self._leadership().hears_of_master(master)

    def slave_joined(self, slave: SlaveProgress) -> None:
        self._broker.mastership.slave_joined(slave.slave_id, self._broker.clock(), slave.address)
        self._broker.known_slaves.joined(slave.slave_id, slave.address)
        self._notify()

    def offsets_handed_back(self, slave: SlaveProgress) -> None:
        self._broker.mastership.offsets_handed_back(slave.slave_id)

    def visible_changed(self, visible_offset: int | None) -> None:
        self._broker.visibility.changed(visible_offset)

    # --- a slave's --------------------------------------------------------------------------------------------------

    def follows_master_that_waits(self, *, for_slave: bool, for_flush: bool) -> None:
        self._master_file.followed(
            BrokerRole.SYNC_MASTER if for_slave else BrokerRole.ASYNC_MASTER,
            FlushDiskType.SYNC_FLUSH if for_flush else FlushDiskType.ASYNC_FLUSH,
        )

    def apply_metadata(self, metadata: Metadata) -> None:
        self._metadata.apply(metadata)

    def offsets_to_hand_back(self) -> Metadata | None:
        return self._metadata.offsets_to_hand_back()

    def replicated(self, visible_offset: int) -> None:
        """Records up to here are stored as safely as the master asks."""
        try:
            self._catch_up()
        except (RocketSimError, OSError) as error:  # the log is replicated all the same; pops raise it again
            if self._trouble != str(error):
                logger.error("what consumers have under way is not known, and pops will be refused: %s", error)
            self._trouble = str(error)
        else:
            self._trouble = ""
        self._broker.visibility.changed(visible_offset)
        if self._notifying is None:
            self._notifying = asyncio.get_running_loop().call_later(NOTIFY_EVERY_S, self._notify_readers)

    def log_will_be_cut(self, end_offset: int) -> None:
        self._clamp_offsets(lambda topic, queue_id: self._broker.store.queue_end_at(topic, queue_id, end_offset))

    def log_cut(self, cut: Cut) -> None:
        self._broker.visibility.changed(cut.end_offset)
        self._schedule.log_cut(cut.end_offset)
        try:
            self._reload()  # first: it needs no room, and a cut is told of once
        finally:
            if cut.kept_in is not None:  # else the master has what was here, and the commits are to be handed back
                self._clamp_offsets(self._broker.store.queue_end)

    def _clamp_offsets(self, end_of: Callable[[str, int], int]) -> None:
        for line in self._broker.offsets.clamp(end_of, new_generation=False):
            logger.warning("consumer offset beyond the end of its queue: %s", line)

    def _notify_readers(self) -> None:
        self._notifying = None
        store = self._broker.store
        self._broker.long_polling.arrived_somewhere(lambda topic, queue_id: store.queue_bounds(topic, queue_id)[1])
