"""Core has the state of the broker, and the parts that make its log durable: the flusher and the acknowledgements."""

import logging
from typing import Any

from broker_service.broker.core.broker import Broker, ack_levels
from broker_service.broker.core.long_polling import LongPolling
from broker_service.broker.core.mastership import Mastership
from broker_service.broker.core.visibility import Visibility
from broker_service.config.broker_config import BrokerConfig
from broker_service.config.store_settings import store_config
from broker_service.node.storage import Storage
from broker_service.replication.acknowledgement import Acknowledgements
from broker_service.replication.flusher import Flusher
from broker_service.replication.slave_streams import SlaveStreams
from broker_service.replication.tracker import Tracker
from broker_service.runtime.machine import Machine

logger = logging.getLogger(__name__)


class Core:
    def __init__(self, storage: Storage, machine: Machine, address: str, store_host: bytes) -> None:
        config, store, epochs = storage.config, storage.store, storage.epochs
        self._store = store
        slaves = {*config.slave_addresses} - {address}
        known = storage.tables.known_slaves.addresses
        self.mastership = Mastership(
            config.broker_role,
            epochs.epochs.last,
            asks_others=bool(config.name_servers or slaves),
            others={*config.name_servers, *slaves, *known.values()} - {address},
            known_slaves=known,
            clean_start=store.recovery.clean and (epochs.may_resume or not epochs.epochs.last),
            slave_count=max(len(slaves), len(known)),
            slave_wait_s=config.slave_wait_time_ms / 1000,
            now=machine.monotonic(),
        )
        self.flusher = Flusher(store, interval_s=config.flush_interval_commit_log / 1000)
        visibility = Visibility(store, LongPolling(config.max_long_polls))
        self.acknowledgements = Acknowledgements(
            ack_levels(config), Tracker(config.ha_slave_fallbehind_max), store, self.flusher, visibility
        )
        self.flusher.flushed.append(self.acknowledgements.on_flushed)
        self.flusher.failed.append(self.flush_failed)
        self.slave_streams: SlaveStreams[Any] = SlaveStreams()
        self.broker = Broker(
            config,
            store=store,
            epochs=epochs,
            tables=storage.tables,
            mastership=self.mastership,
            acknowledgements=self.acknowledgements,
            visibility=visibility,
            slaves=self.slave_streams,
            clocks=machine,
            store_host=store_host,
        )
        storage.tables.topics.changed.append(lambda _: self.broker.description_changed.notify())
        self.broker.config_changed.append(self._config_changed)

    def flush_failed(self, failure: BaseException) -> None:
        """Ends all writes, because after a failed flush the page cache may differ from the disk.  Reads continue."""
        self.broker.failure = str(failure)
        logger.critical("%s: this broker takes no more writes", failure)
        self.acknowledgements.abandon()
        self.broker.description_changed.notify()

    def _config_changed(self, config: BrokerConfig) -> None:
        self.broker.description_changed.notify()
        self._store.reconfigure(store_config(config))
