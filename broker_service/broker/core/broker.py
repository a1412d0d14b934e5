"""Broker is the state that all parts of a broker share: role, epoch, configuration, tables and log.

The work on this state is done in `put.py` and in the folders `reads`, `delayed` and `leadership`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from rocketsim_proto.model import LogEpoch
from rocketsim_proto.records.record import Record
from rocketsim_proto.reserved import CHANGES_TOPIC

from broker_service.broker.core.broker_time import BrokerTime
from broker_service.broker.core.changes import MetadataChanges
from broker_service.broker.core.consumers import Consumers
from broker_service.broker.core.mastership import Mastership, Standing
from broker_service.broker.core.peers import Peers
from broker_service.broker.core.visibility import Visibility
from broker_service.broker.metadata.tables import Tables
from broker_service.config.broker_config import BrokerConfig, with_updates
from broker_service.errors import ServiceNotAvailable, SystemBusy, TopicNotExist
from broker_service.modes import BrokerRole, FlushDiskType
from broker_service.names import is_internal_topic
from broker_service.put_result import Appended, CommitStatus, commit_status
from broker_service.replication.acknowledgement import AckLevels, Acknowledgements
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.epochs import Epoch
from broker_service.replication.slave_streams import SlaveStreams
from broker_service.runtime.clocks import Clocks
from broker_service.runtime.notice import Notice
from broker_service.store.batch import Batch
from broker_service.store.message_store import MessageStore

logger = logging.getLogger(__name__)

Queue = tuple[str, int]


class Broker:
    """Holds the state that a broker's parts share.  Only the event loop's thread uses it.  `config` has the current
    role and broker id, which a promotion changes.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        store: MessageStore,
        epochs: EpochFile,
        tables: Tables,
        mastership: Mastership,
        acknowledgements: Acknowledgements,
        visibility: Visibility,
        slaves: SlaveStreams[Any],
        clocks: Clocks,
        store_host: bytes,
    ) -> None:
        self.config = config
        self.store = store
        self.topics, self.groups, self.offsets, self.known_slaves, self.access = tables
        self.mastership = mastership
        self.acknowledgements = acknowledgements
        self.peers = Peers()
        self.consumers = Consumers()
        self.visibility = visibility
        self.long_polling = visibility.long_polling
        self.slaves = slaves
        self.changes = MetadataChanges(tables, mastership, slaves)
        self._epochs = epochs
        self.store_host = store_host
        self.clock = clocks.monotonic  # monotonic seconds, which never go back
        self.time = BrokerTime(clocks, store)
        self.now_ms = self.time.now_ms  # milliseconds for store times and durations, which never fall
        self.day_ms = self.time.day_ms  # the time of day in milliseconds, for times that clients choose
        self.stopping = False
        self.failure: str | None = None  # the error of the flush that failed, after which nothing is written
        self.config_changed: list[Callable[[BrokerConfig], None]] = []
        self.members_changed = Notice()  # notified of each answer of a name server or of a broker of this name
        self.description_changed = Notice()  # notified when the registration at name servers must change
        # Each function is called with group, topic and the new offsets before the table of offsets is reset.
        # A function returns True if it has moved an offset that it keeps itself.
        self.offsets_reset: list[Callable[[str, str, Mapping[int, int]], bool]] = []
        # Each function is called with a deleted group before the group's offsets are deleted.
        self.group_dropped: list[Callable[[str], None]] = []

    # --- its identity -----------------------------------------------------------------------------------------------

    @property
    def is_slave(self) -> bool:
        return not self.mastership.is_master

    @property
    def broker_id(self) -> int:
        return self.config.broker_id

    @property
    def epoch(self) -> int:
        """Returns the current epoch; on a slave, the last epoch of the log that it copies."""
        return self._epochs.epochs.last if self.is_slave else self.mastership.epoch

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """Returns the epochs of this log, the oldest first."""
        return self._epochs.epochs.epochs

    @property
    def log_epoch(self) -> LogEpoch:
        """Returns the epoch in which the end of this log was written."""
        epochs = self._epochs.epochs
        return LogEpoch(epochs.last, epochs.last_id)

    def end_of(self, epoch: LogEpoch) -> int | None:
        """Returns where this epoch ends in the history of this broker name; None if it is not over, or not known here.

        A consumer that has read in this epoch finds the same records here up to this offset, but not beyond it.  A
        fenced broker, which a newer master has replaced, returns None, because its log is no longer the history of the
        broker name.
        """
        return None if self.mastership.standing is Standing.FENCED else self.end_here_of(epoch)

    def end_here_of(self, epoch: LogEpoch) -> int | None:
        """Returns where this epoch ends in this broker's own log, even if the broker is fenced."""
        if not epoch.epoch or epoch == self.log_epoch:
            return None
        end = self._epochs.epochs.end_of(*epoch)
        return end if end is not None and end <= self.store.end_offset else None

    def hold_s(self, asked_s: float) -> float:
        """Returns how many seconds a reader's call may wait for messages if the client asks for `asked_s`."""
        config = self.config
        return asked_s if config.long_polling_enable else min(asked_s, config.short_polling_time_mills / 1000)

    def waits_for(self) -> str | None:
        """Returns what this master waits for before it takes writes; None if it waits for nothing."""
        return self.mastership.waits_for(self.store.end_offset, self.peers.slaves(), self.clock())

    def offsets_wait_for(self) -> str | None:
        """Returns what this master waits for before it takes commits.  Once the answer is None, it stays None."""
        return self.mastership.offsets_wait_for(self.peers.slaves(), self.clock())

    def check_answers_for_offsets(self) -> None:
        """Raises an error while another broker may have higher committed offsets than this one."""
        if self.mastership.standing is Standing.FENCED:
            self.mastership.check_writable()
        if waits_for := self.offsets_wait_for():
            raise ServiceNotAvailable(
                f"this master does not answer for committed offsets yet: {waits_for}; ask its slave, or try again"
            )

    async def shared_changes(self, timeout_s: float) -> CommitStatus:
        """Sends the commits that were just made to the slaves.  Returns which brokers have them within `timeout_s`."""
        if self.is_slave:
            return CommitStatus.COMMIT_MASTER_NOT_AVAILABLE
        return commit_status(await self.acknowledgements.wait_for_commit(self.changes.publish_soon(), timeout_s))

    async def shared_change(self, timeout_s: float, *, in_any_mode: bool = False) -> CommitStatus:
        """Sends an operator's change to the slaves.  Returns which brokers have the change and the records that it
        appended.

        With `in_any_mode` an ASYNC_MASTER that has ever had a slave waits for a slave, too.  Changes of users and
        policies need this, because a promotion must not restore a right that was taken away.
        """
        if self.is_slave:
            return CommitStatus.COMMIT_MASTER_NOT_AVAILABLE
        is_marked = self._mark_change()
        waits = self.acknowledgements.wait_for_change(
            self.changes.publish_soon(), timeout_s, in_any_mode=in_any_mode and bool(self.known_slaves.addresses)
        )
        status = commit_status(await waits)
        return status if is_marked or status is not CommitStatus.COMMIT_OK else CommitStatus.COMMIT_FLUSH_SLAVE_TIMEOUT

    def _mark_change(self) -> bool:
        """Appends a record after an operator's change if a SYNC_MASTER has several slaves.  Returns False if the append
        fails.

        Only the slave with the longest log is promoted without force, but another slave may have acknowledged the
        change.  Slaves get the change before the record.  So the slave with the longest log has the change, too.
        """
        if not self.acknowledgements.levels.sync_master or len(self.known_slaves.addresses) < 2:
            return True
        self.changes.publish()
        try:
            self.check_writable()
            self.append_one(Record(CHANGES_TOPIC, b"change"))
        except ServiceNotAvailable as error:
            logger.warning("a promotion may lose an operator's change, because the log refused its record: %s", error)
            return False
        return True

    def check_writable(self, client_epoch: int = 0) -> None:
        """Raises an error unless a client may write to the log now."""
        if self.stopping:
            raise ServiceNotAvailable("this broker is stopping; send to another one")
        waits_for = self.waits_for() if self.mastership.standing is Standing.WAITING else None
        self.mastership.check_writable(client_epoch, waits_for)
        if self.failure:
            raise ServiceNotAvailable(f"{self.failure}; reads continue, but writes need a restart")

    def check_name(self, asked: str) -> None:
        """Raises ServiceNotAvailable if a call names another broker, so that its client queries the route again.

        An empty name fits every broker.
        """
        if asked not in ("", self.config.broker_name):
            raise ServiceNotAvailable(f"this is broker {self.config.broker_name}, not {asked}; query the route again")

    @property
    def takes_clients_writes(self) -> bool:
        """Returns True if producers may send to this broker.  The broker tells name servers the same."""
        return self.may_append and self.store.admission.why_no_sends() is None

    @property
    def may_append(self) -> bool:
        """Returns True if this master can append its own records, even while its disk is above the warning level."""
        try:
            self.check_writable()
        except ServiceNotAvailable:
            return False
        return self.store.admission.writable

    # --- its configuration ------------------------------------------------------------------------------------------

    def update_config(self, values: Mapping[str, str]) -> None:
        """Sets keys that may change at run time.  The values hold until the next restart.  After a ConfigError no key
        has changed.

        `Leadership.update_config` changes the keys that define what an OK means.
        """
        self.become(with_updates(self.config, values))
        for key, value in values.items():
            logger.info("configuration changed: %s=%s, until the next restart", key, value)

    def change_role(self, role: BrokerRole, broker_id: int, flush: FlushDiskType) -> None:
        self.become(replace(self.config, broker_role=role, broker_id=broker_id, flush_disk_type=flush))

    def become(self, config: BrokerConfig) -> None:
        self.config = config
        self.acknowledgements.change_levels(ack_levels(config))
        self.acknowledgements.tracker.fall_behind_max = config.ha_slave_fallbehind_max
        for listener in self.config_changed:
            listener(config)

    # --- the log ----------------------------------------------------------------------------------------------------

    def append(self, batch: Batch, topic: str) -> Appended:
        """Appends checked records of one topic.  A master appends only through this method and `append_one`.

        Raises SystemBusy while a change of the topic is being written, because records after the tombstone of a
        deletion would belong to the next topic of that name.  Callers that can wait await `topics.until_settled` first.
        """
        self._check_open(topic)
        appended = self.store.append(batch, topic, self.now_ms(), self.store_host)
        self._was_appended(topic, appended)
        return appended

    def append_one(self, message: Record) -> Appended:
        """Appends one record that this broker has made, by the rules of `append`."""
        self._check_open(message.topic)
        appended = self.store.append_one(message, self.now_ms(), self.store_host)
        self._was_appended(message.topic, appended)
        return appended

    def _check_open(self, topic: str) -> None:
        if self.topics.is_changing(topic):
            raise SystemBusy(f"topic {topic} is being changed or deleted; try again in a moment")
        if topic not in self.topics.entries and not is_internal_topic(topic):
            raise TopicNotExist(f"topic {topic!r} does not exist here; create it with `rocketsim admin updateTopic`")

    def _was_appended(self, topic: str, appended: Appended) -> None:
        self.appended([(topic, queue.queue_id) for queue in appended.queues], appended.end_offset)

    def appended(self, queues: Iterable[Queue], end_offset: int) -> None:
        """Notifies first the slaves and then the readers of records in these queues, up to log offset `end_offset`."""
        self.changes.publish_topics()
        self.slaves.notify()
        self.visibility.appended(queues, end_offset)

    def __str__(self) -> str:
        return f"{self.config.broker_name} id {self.broker_id} {self.mastership} end={self.store.end_offset}"


def ack_levels(config: BrokerConfig) -> AckLevels:
    return AckLevels(
        sync_master=config.broker_role is BrokerRole.SYNC_MASTER,
        sync_flush=config.flush_disk_type is FlushDiskType.SYNC_FLUSH,
        sync_flush_timeout_s=config.sync_flush_timeout / 1000,
        slave_timeout_s=config.slave_timeout / 1000,
    )
