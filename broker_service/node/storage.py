"""Storage has the store and the files beside it, which are opened first and closed last."""

import logging
from typing import Self

from broker_service.broker.metadata.access import AccessTables, AclTable, UserTable
from broker_service.broker.metadata.consumer_offsets import ConsumerOffsetTable
from broker_service.broker.metadata.groups import SubscriptionGroupTable
from broker_service.broker.metadata.known_slaves import KnownSlaves
from broker_service.broker.metadata.tables import Tables
from broker_service.broker.metadata.topics import TopicTable
from broker_service.config.broker_config import BrokerConfig
from broker_service.config.store_settings import store_config
from broker_service.leadership.exchange import delete_queues
from broker_service.leadership.master_file import MasterFile
from broker_service.leadership.role_file import RoleFile
from broker_service.modes import BrokerRole
from broker_service.node.log_history import LogHistory
from broker_service.replication.epoch_file import EpochFile
from broker_service.runtime.machine import Machine
from broker_service.store.disk import Attempt
from broker_service.store.json_file import JsonFile
from broker_service.store.message_store import MessageStore
from broker_service.store.offset_journal import OffsetJournal

logger = logging.getLogger(__name__)


class Storage:
    """`config` has the current role, which a promotion may have changed since the configuration was written."""

    def __init__(self, config: BrokerConfig, store: MessageStore) -> None:
        self._root = config.store_path_root_dir
        self.store = store
        self.role_file = RoleFile(self._json_file("rocketsim/role.json"), store.disk)
        self.config = self.role_file.applied_to(config)
        self.master_file = MasterFile(self._json_file("rocketsim/master.json"))
        self.delay_file = self._json_file("config/delayOffset.json")
        self.delay_position_file = self._json_file("rocketsim/delay_position.json")
        self.epochs = EpochFile(self._root / "rocketsim" / "epochs.json", store.end_offset, store.disk)
        if self.config.broker_role is BrokerRole.SLAVE:
            self.epochs.forget_promotion(store.end_offset)
        if not store.recovery.clean:
            self._note_unclean_stop()
        topics = TopicTable(self._json_file("config/topics.json"), self._json_file("rocketsim/deleted_topics.json"))
        # If the broker crashed between a topic's tombstone and the deletion of its queues, the queues still exist, or
        # recovery has made them again from the log.  A topic of the same name can exist again, because a slave
        # can get a topic's deletion and its new creation at once.
        delete_queues(store, {name: one.queue_offsets for name, one in topics.tombstones.items()})
        topics.add_system_topics(config.default_topic_queue_nums, len(config.delay_levels_ms))
        self.tables = Tables(
            topics,
            SubscriptionGroupTable(
                self._json_file("config/subscriptionGroup.json"), self._json_file("rocketsim/deleted_groups.json")
            ),
            ConsumerOffsetTable(
                self._json_file("config/consumerOffset.json"),
                self._json_file("rocketsim/offset_generations.json"),
                OffsetJournal(self._root / "rocketsim" / "offsets.journal", store.disk),
                history=LogHistory(self.epochs, store),
                noted_file=self._json_file("rocketsim/noted_offsets.json"),
            ),
            KnownSlaves(self._json_file("rocketsim/slaves.json")),
            self._access_tables() if config.authentication_enabled else None,
        )

    @classmethod
    def open(cls, config: BrokerConfig, machine: Machine) -> Self:
        store = MessageStore.open(store_config(config), machine.now_ms(), machine.files)
        logger.info("store %s: %s", config.store_path_root_dir, store.recovery)
        try:
            return cls(config, store)
        except BaseException:
            if store.recovery.clean:
                store.close()
            else:
                # this stop must not count as a clean one, because the next start would then continue the epoch that
                # lost bytes
                store.abandon()
            raise

    def close(self) -> None:
        """Closes the store.  If something could not be written, the next start recovers it from the log."""
        if not self.epochs.is_noted and not self._note_unclean_stop():
            self.store.disk.stop("the last unclean stop is not in epochs.json, so this stop counts as unclean, too")
        self.store.close()

    def _json_file(self, name: str, *, private: bool = False) -> JsonFile:
        return JsonFile(self._root / name, self.store.disk, private=private)

    def _access_tables(self) -> AccessTables:
        def files(name: str) -> tuple[JsonFile, JsonFile]:
            return (
                self._json_file(f"rocketsim/{name}.json", private=True),
                self._json_file(f"rocketsim/deleted_{name}.json"),
            )

        return AccessTables(UserTable(*files("users")), AclTable(*files("acls")))

    def _note_unclean_stop(self) -> bool:
        """Notes the unclean stop in `epochs.json`; returns False if the disk is full.

        If the disk is full, `close` tries again, and the store counts as closed cleanly only if the second attempt
        succeeds.
        """
        with Attempt() as noting:
            self.epochs.note_unclean_stop()
        if noting.refused:
            logger.warning("epochs.json does not say yet that the last stop was unclean: %s", noting.refused)
        return noting.refused is None
