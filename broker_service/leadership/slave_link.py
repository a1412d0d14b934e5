"""SlaveLink is the `SlaveBroker` of `replication/protocols.py`, through which `ReplicationSlave` uses the broker."""

import asyncio
import logging
from collections.abc import Callable

from rocketsim_proto.metadata_pb2 import Metadata

from broker_service.broker.core.broker import Broker
from broker_service.delayed.schedule_service import ScheduleService
from broker_service.errors import RocketSimError
from broker_service.leadership.exchange import MetadataExchange
from broker_service.leadership.master_file import MasterFile
from broker_service.modes import BrokerRole, FlushDiskType
from broker_service.replication.catch_up import Cut
from broker_service.state.writer import StateWriter

logger = logging.getLogger(__name__)

# The shortest time between two notifications of the pulls that wait for records on a slave.
NOTIFY_EVERY_S = 0.002


class SlaveLink:
    def __init__(
        self,
        broker: Broker,
        metadata: MetadataExchange,
        schedule: ScheduleService,
        state: StateWriter,
        master_file: MasterFile,
    ) -> None:
        self._broker = broker
        self._metadata = metadata
        self._schedule = schedule
        self._state = state
        self._master_file = master_file
        self._trouble = ""  # why the last catch-up failed
        self._notifying: asyncio.TimerHandle | None = None

    def follows_master_that_waits(self, *, for_slave: bool, for_flush: bool) -> None:
        self._master_file.followed(
            BrokerRole.SYNC_MASTER if for_slave else BrokerRole.ASYNC_MASTER,
            FlushDiskType.SYNC_FLUSH if for_flush else FlushDiskType.ASYNC_FLUSH,
        )

    def apply_metadata(self, metadata: Metadata) -> None:
        self._metadata.apply(metadata)

    def generation(self, group: str, topic: str, queue_id: int) -> int:
        return self._broker.offsets.get(group, topic, queue_id).generation

    def offsets_to_hand_back(self) -> Metadata | None:
        return self._metadata.offsets_to_hand_back()

    def replicated(self, visible_offset: int) -> None:
        """Lets consumers see the records up to `visible_offset`, which the master counts as safe."""
        try:
            self._state.catch_up()
        # replication continues after this error, and a later pop raises the error again
        except (RocketSimError, OSError) as error:
            if self._trouble != str(error):
                logger.error("the state of consumption is not known, pops will be refused: %s", error)
            self._trouble = str(error)
        else:
            self._trouble = ""
        self._broker.visibility.changed(visible_offset)
        if self._notifying is None:
            self._notifying = asyncio.get_running_loop().call_later(NOTIFY_EVERY_S, self._notify_readers)

    def log_will_be_cut(self, end_offset: int) -> None:
        self._schedule.log_will_be_cut(end_offset)
        self._clamp_offsets(lambda topic, queue_id: self._broker.store.queues.end_at(topic, queue_id, end_offset))

    def log_cut(self, cut: Cut) -> None:
        self._broker.visibility.changed(cut.end_offset)
        self._schedule.log_cut(cut.end_offset)
        try:
            # the state is reloaded before the offsets are lowered, because a full disk can prevent the lowering, and
            # nothing repeats the reloading later
            self._state.reload()
        finally:
            # If no cut bytes were kept, the master has all records of this log, so this slave's offsets are handed back
            # to the master and not lowered.
            if cut.kept_in is not None:
                self._clamp_offsets(self._broker.store.queues.end)

    def _clamp_offsets(self, end_of: Callable[[str, int], int]) -> None:
        for line in self._broker.offsets.clamp(end_of, new_generation=False):
            logger.warning("lowered a consumer offset beyond the end of its queue: %s", line)

    def _notify_readers(self) -> None:
        self._notifying = None
        store = self._broker.store
        self._broker.long_polling.arrived_somewhere(lambda topic, queue_id: store.queues.bounds(topic, queue_id)[1])
