"""Broker is the state that all parts of a broker share: role, epoch, configuration, tables and log.

The code that works on this state is in `put.py` and in the folders `reads`, `delayed` and `leadership`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from rocketsim_proto.model import LogEpoch
from rocketsim_proto.records.record import Record
from rocketsim_proto.reserved import CHANGES_TOPIC, RETRY_PREFIX

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
    """Holds the state that all parts of a broker share.  Only the event loop's thread may use this object.  A promotion
    changes the role and the broker id in `config`.
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
        self.clock = clocks.monotonic  # monotonic seconds, which never decrease
        self.time = BrokerTime(clocks, store)
        self.now_ms = self.time.now_ms  # milliseconds since 1970 for store times and durations, which never decrease
        self.day_ms = self.time.day_ms  # the wall clock's milliseconds since 1970, for delivery times of clients
        self.stopping = False
        self.failure: str | None = None  # the error of a failed flush, after which nothing more is written
        self.config_changed: list[Callable[[BrokerConfig], None]] = []
        self.members_changed = Notice()  # notified of each answer of a name server or of another broker of this name
        # Notified when the broker must register again, with new facts, at its name servers.
        self.description_changed = Notice()
        # Each function is called with a group, a topic and the new offsets, before the table of committed offsets is
        # reset.  A function returns True if it keeps a position of its own for the group, as pops do, and has moved
        # this position.
        self.offsets_reset: list[Callable[[str, str, Mapping[int, int]], bool]] = []
        # Each function is called with a group, a topic, the time of a reset (-1 if it names offsets) and the new offset
        # of each queue, after an operator has reset the group.
        self.offsets_moved: list[Callable[[str, str, int, Mapping[int, int]], None]] = []
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
        """Returns the current epoch.  On a slave, the current epoch is the last epoch of the log that it copies."""
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
        """Returns the log offset at which this epoch ends in the history of the broker name.  Returns None if the epoch
        has not ended or is not known here.

        A consumer that has read in this epoch finds the same records in this log up to the returned offset, but not
        beyond.  A fenced broker (one that a newer master has replaced) returns None, because its log is no longer the
        history of the broker name.
        """
        return None if self.mastership.standing is Standing.FENCED else self.end_here_of(epoch)

    def end_here_of(self, epoch: LogEpoch) -> int | None:
        """Returns the log offset at which this epoch ends in this broker's own log, even if the broker is fenced."""
        if not epoch.epoch or epoch == self.log_epoch:
            return None
        end = self._epochs.epochs.end_of(*epoch)
        return end if end is not None and end <= self.store.end_offset else None

    def hold_s(self, asked_s: float) -> float:
        """Returns how many seconds a reader's call may wait for messages if the client asks for `asked_s`."""
        config = self.config
        return asked_s if config.long_polling_enable else min(asked_s, config.short_polling_time_mills / 1000)

    def waits_for(self) -> str | None:
        """Returns what this master still waits for before it takes writes, or None if it waits for nothing."""
        return self.mastership.waits_for(self.store.end_offset, self.peers.slaves(), self.clock())

    def offsets_wait_for(self) -> str | None:
        """Returns what this master still waits for before it takes commits of offsets.  Once this method has returned
        None, it always returns None.
        """
        return self.mastership.offsets_wait_for(self.peers.slaves(), self.clock())

    def check_answers_for_offsets(self) -> None:
        """Raises an error while another broker may have higher committed offsets than this broker."""
        if self.mastership.standing is Standing.FENCED:
            self.mastership.check_writable()
        if waits_for := self.offsets_wait_for():
            raise ServiceNotAvailable(
                f"this master does not answer for committed offsets yet: {waits_for}; ask its slave, or try again"
            )

    async def shared_changes(self, timeout_s: float) -> CommitStatus:
        """Sends the slaves the commits of offsets that were just made.  Returns which brokers have the commits within
        `timeout_s`.
        """
        if self.is_slave:
            return CommitStatus.COMMIT_MASTER_NOT_AVAILABLE
        return commit_status(await self.acknowledgements.wait_for_commit(self.changes.publish_soon(), timeout_s))

    async def shared_change(self, timeout_s: float, *, in_any_mode: bool = False) -> CommitStatus:
        """Sends an operator's change to the slaves.  Returns which brokers have the change, and the records that the
        change has appended.

        With `in_any_mode`, even an ASYNC_MASTER waits for a slave, if it has ever had one.  Changes of users and
        policies need `in_any_mode`, because a promotion must not restore a right that was taken away.
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
        """Appends a record after an operator's change, so that the change survives a promotion.  Returns False if the
        append fails.

        Only a SYNC_MASTER with several slaves needs the record.  A promotion chooses the slave with the longest log.  A
        slave gets the change before the record, so a slave whose log has the record also has the change.  Without the
        record, a slave that lacks the change could have the longest log.
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

        An empty name stands for any broker.
        """
        if asked not in ("", self.config.broker_name):
            raise ServiceNotAvailable(f"this is broker {self.config.broker_name}, not {asked}; query the route again")

    def lacks_retry_topic(self, topic: str) -> bool:
        """True for the retry topic of a group that has not needed one yet.  RocketMQ's groups always have one, and
        RocketMQ's tools ask for it.
        """
        group = topic.removeprefix(RETRY_PREFIX)
        return group != topic and topic not in self.topics.entries and group in self.groups.entries

    @property
    def takes_clients_writes(self) -> bool:
        """Returns True if producers may send to this broker.  The broker registers the same value at the name
        servers.
        """
        return self.may_append and self.store.admission.why_no_sends() is None

    @property
    def may_append(self) -> bool:
        """Returns True if this master can append the broker's own records, which are allowed even above the disk's
        warning level.
        """
        try:
            self.check_writable()
        except ServiceNotAvailable:
            return False
        return self.store.admission.writable

    # --- its configuration ------------------------------------------------------------------------------------------

    def update_config(self, values: Mapping[str, str]) -> None:
        """Sets configuration keys that may change at run time.  The new values hold until the next restart.  If
        ConfigError is raised, no key has changed.

        `brokerRole` and `flushDiskType` must be changed with `Leadership.update_config`, because they decide what an OK
        to a producer guarantees.
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

        Raises SystemBusy while a change of the topic is being written, because a record after the topic's deletion
        would belong to the next topic of that name.  Callers that can wait call `topics.until_settled` before the
        append.
        """
        self._check_open(topic)
        appended = self.store.append(batch, topic, self.now_ms(), self.store_host)
        self._was_appended(topic, appended)
        return appended

    def append_one(self, message: Record) -> Appended:
        """Appends one record that this broker has made, under the same rules as `append`."""
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
        """Notifies the slaves and then the readers that these queues have new records up to log offset `end_offset`."""
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
