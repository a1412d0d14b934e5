"""BrokerNode: one broker process's parts, put together, started in order and stopped in reverse."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import grpc
from rocketsim_proto import (
    admin_pb2,
    admin_pb2_grpc,
    broker_pb2,
    namesrv_pb2,
    replication_pb2,
    replication_pb2_grpc,
)

from broker_service.admin.metrics import Metrics
from broker_service.admin.operations import Operations
from broker_service.admin.servicer import AdminServicer
from broker_service.admin.status import Status
from broker_service.broker.access import ReadAccess
from broker_service.broker.broker import Broker, ack_levels
from broker_service.broker.chores import Chores
from broker_service.broker.commits import Commits
from broker_service.broker.consumer_offsets import ConsumerOffsetTable
from broker_service.broker.delivery import Delivery
from broker_service.broker.groups import SubscriptionGroupTable
from broker_service.broker.leadership import Leadership
from broker_service.broker.mastership import Mastership
from broker_service.broker.metadata import MetadataExchange, topic_to_proto, version_to_proto
from broker_service.broker.peers import Member
from broker_service.broker.pull import PullPath
from broker_service.broker.pull_range import RangePath
from broker_service.broker.put import PutPath
from broker_service.broker.queue_lookup import QueueLookup
from broker_service.broker.registration import Registration
from broker_service.broker.replication_link import ReplicationLink
from broker_service.broker.servicer import BrokerServicer, add_to_server
from broker_service.broker.store_settings import store_config
from broker_service.broker.topics import TopicTable
from broker_service.broker.traffic import Traffic
from broker_service.config import BrokerConfig
from broker_service.errors import ConfigError, StoreCorrupt
from broker_service.model import BrokerRole
from broker_service.replication.acknowledgement import Acknowledgements
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.flusher import Flusher
from broker_service.replication.handshake import Identity
from broker_service.replication.master import ReplicationMaster
from broker_service.replication.slave import ReplicationSlave, SlaveSettings
from broker_service.replication.tracker import Tracker
from broker_service.replication.transfer import TransferSettings
from broker_service.server import Service, add_services, host_port
from broker_service.store.json_file import JsonFile
from broker_service.store.message_store import MessageStore
from broker_service.store.offset_journal import OffsetJournal

logger = logging.getLogger(__name__)

PROMOTION_LOOK_S = 2.0  # for the name servers' word before a promotion
GRACE_S = 8.0  # for calls that are under way when the broker stops
DRAIN_S = 7.0  # for puts that wait for a disk or a slave
CATCH_UP_S = 2.0  # for slaves that lack the last of the log
CATCH_UP_LOOK_S = 0.02


class BrokerNode:
    """`open` takes the store's directory; `start` needs a bound server; `stop` leaves no `abort` behind."""

    def __init__(self, config: BrokerConfig, store: MessageStore) -> None:
        self.file_config = config
        self.store = store
        root = config.store_path_root_dir
        self._role_file = JsonFile(root / "rocketsim" / "role.json")
        self.config = self._with_role(config)
        self._delay_file = JsonFile(root / "config" / "delayOffset.json")
        self._position_file = JsonFile(root / "rocketsim" / "delay_position.json")
        self.epochs = EpochFile(root / "rocketsim" / "epochs.json", store.end_offset)
        if not store.recovery.clean:
            self.epochs.note_unclean_stop()
        self.topics = TopicTable(
            JsonFile(root / "config" / "topics.json"), JsonFile(root / "rocketsim" / "deleted_topics.json")
        )
        self.topics.add_system_topics(config.default_topic_queue_nums, len(config.delay_levels_ms))
        self.groups = SubscriptionGroupTable(
            JsonFile(root / "config" / "subscriptionGroup.json"), JsonFile(root / "rocketsim" / "deleted_groups.json")
        )
        self.offsets = ConsumerOffsetTable(
            JsonFile(root / "config" / "consumerOffset.json"),
            JsonFile(root / "rocketsim" / "offset_generations.json"),
            OffsetJournal(root / "rocketsim" / "offsets.journal"),
        )

    @classmethod
    def open(cls, config: BrokerConfig) -> "BrokerNode":
        store = MessageStore.open(store_config(config), now_ms())
        logger.info("store %s: %s", config.store_path_root_dir, store.recovery)
        try:
            return cls(config, store)
        except BaseException:
            store.close()
            raise

    def _with_role(self, config: BrokerConfig) -> BrokerConfig:
        """A promotion outlives the configuration file that does not know of it."""
        override = self._role_file.load()
        if override is None:
            return config
        try:
            role, broker_id = BrokerRole(override["brokerRole"]), int(override["brokerId"])
        except (KeyError, ValueError, TypeError) as error:
            raise StoreCorrupt(f"{self._role_file.path}: {error}; remove it to take the role of the file") from error
        if role is not config.broker_role:
            logger.warning(
                "brokerRole=%s brokerId=%d since a promotion, not what the file says; remove %s to make it %s again",
                role.name,
                broker_id,
                self._role_file.path,
                config.broker_role.name,
            )
        return replace(config, broker_role=role, broker_id=broker_id)

    # --- starting ---------------------------------------------------------------------------------------------------

    async def start(self, server: grpc.aio.Server, address: str, store_host: bytes) -> None:
        self.address = address
        self.server = server
        config, store = self.config, self.store
        self.mastership = Mastership(
            config.broker_role,
            self.epochs.epochs.last,
            asks_name_servers=bool(config.name_servers),
            clean_start=store.recovery.clean and (self.epochs.goes_on or not self.epochs.epochs.last),
            slave_wait_s=config.slave_wait_time_ms / 1000,
        )
        self.flusher = Flusher(
            store,
            interval_s=config.flush_interval_commit_log / 1000,
            on_flushed=lambda offset: self.acknowledgements.on_flushed(offset),
            on_failure=self._flush_failed,
        )
        self.acknowledgements = Acknowledgements(
            ack_levels(config),
            Tracker(config.ha_slave_fallbehind_max),
            end_offset=lambda: store.end_offset,
            flushed_offset=lambda: self.flusher.flushed_offset,
            request_flush=self.flusher.request,
            visible_changed=lambda offset: self.broker.visible_changed(offset),
        )
        self.broker = Broker(
            config,
            store=store,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            mastership=self.mastership,
            acknowledgements=self.acknowledgements,
            log_epoch=lambda: self.epochs.epochs.last,
            store_host=store_host,
            clock=time.monotonic,
            now_ms=now_ms,
        )
        self.delivery = Delivery(self.broker, self._delay_file, self._position_file)
        self.metadata = MetadataExchange(self.broker, delays=self.delivery.position, take_delays=self.delivery.hear)
        link = ReplicationLink(self.broker, self.metadata, self.delivery, lambda: self.leadership.poke())
        identity = Identity(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            address=address,
            mapped_file_size_commit_log=config.mapped_file_size_commit_log,
            mapped_file_size_consume_queue=config.mapped_file_size_consume_queue,
        )
        self.replication_master = ReplicationMaster(
            log=store,
            epochs=self.epochs,
            identity=identity,
            acks=self.acknowledgements,
            flusher=self.flusher,
            broker=link,
            settings=TransferSettings(
                frame_bytes=config.ha_transfer_batch_size,
                heartbeat_s=config.ha_send_heartbeat_interval / 1000,
                housekeeping_s=config.ha_housekeeping_interval / 1000,
            ),
        )
        self.replication_slave = ReplicationSlave(
            log=store,
            epochs=self.epochs,
            identity=identity,
            flusher=self.flusher,
            broker=link,
            diverged=config.store_path_root_dir / "rocketsim" / "diverged",
            settings=SlaveSettings(
                housekeeping_s=config.ha_housekeeping_interval / 1000,
                metadata_interval_s=config.sync_metadata_interval / 1000,
            ),
        )
        self.registration = Registration(
            config.name_servers,
            period_s=config.register_name_server_period / 1000,
            describe=self._describe,
            answered=self._name_server_answered,
        )
        self.leadership = Leadership(
            self.broker,
            follower=self.replication_slave,
            # Numbered by the id in the file, which no other broker of this name has: a promoted one would count as 0.
            begin_epoch=lambda: self.replication_master.begin_epoch(self.file_config.broker_id),
            continue_epoch=self.acknowledgements.begin,
            refresh_peers=lambda: self.registration.refresh(PROMOTION_LOOK_S),
            opened=self._opened,
            role_file=self._role_file,
        )
        taken, given = Traffic(), Traffic()
        commits, lookup = Commits(self.broker), QueueLookup(self.broker)
        access = ReadAccess(self.broker, commits)
        self.puts = PutPath(self.broker, taken)
        self.pulls = PullPath(self.broker, access, commits, given)
        self.ranges = RangePath(self.broker, access, given)
        self.topics.changed.append(lambda _: self.registration.changed())
        self.broker.config_changed.append(lambda _: self.registration.changed())
        self.broker.config_changed.append(lambda changed: store.reconfigure(store_config(changed)))
        self.broker.config_changed.append(self._identify)
        self.status = Status(
            self.broker,
            self.leadership,
            self.replication_master,
            self.replication_slave,
            taken,
            given,
            self.delivery,
        )
        self.metrics = Metrics(self.broker, self.status)
        self.chores = Chores(
            self.broker,
            metadata=self.metadata,
            delivery=self.delivery,
            master=self.replication_master,
            slave=self.replication_slave,
            status=self.status,
            metrics=self.metrics,
            register=self.registration.changed,
        )
        self.broker.log_grew = self.chores.log_grew
        self.broker.tell_slaves = self.chores.tell_slaves
        operations = Operations(self.broker, self.leadership)
        self.health = await add_services(
            server,
            [
                Service(
                    broker_pb2.DESCRIPTOR.services_by_name["Broker"].full_name,
                    add_to_server,
                    BrokerServicer(self.broker, self.puts, self.pulls, self.ranges, commits, lookup),
                ),
                Service(
                    replication_pb2.DESCRIPTOR.services_by_name["Replication"].full_name,
                    replication_pb2_grpc.add_ReplicationServicer_to_server,
                    self.replication_master,
                ),
                Service(
                    admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name,
                    admin_pb2_grpc.add_AdminServicer_to_server,
                    AdminServicer(self.broker, operations, self.status, lookup),
                ),
            ],
        )
        if config.metrics_port:
            self._serve_metrics()
        self.flusher.start()
        await server.start()
        self._tasks: list[asyncio.Task[Any]] = []
        self._refusals: dict[str, str] = {}
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._own("leadership", self.leadership.run())
        self._own("registration", self.registration.run())
        for name, work in self.chores.loops():
            self._own(name, work)

    def _serve_metrics(self) -> None:
        self.metrics.picture()
        try:
            port = self.metrics.serve(self.config.bind_address, self.config.metrics_port)
        except OSError as error:
            raise ConfigError(f"metricsPort={self.config.metrics_port}: {error}") from error
        logger.info("metrics on http://%s/metrics", host_port(self.config.bind_address, port))

    def _own(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """A task that fails takes the process down, visibly."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def run_until(self, shutdown: asyncio.Event) -> None:
        """Raises what one of the broker's tasks failed with."""
        waiting = asyncio.ensure_future(shutdown.wait())
        try:
            await asyncio.wait((waiting, self._failed), return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
        finally:
            waiting.cancel()

    # --- stopping ---------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Say good-bye, take no more calls, let those under way end, flush, close."""
        self.broker.stopping = True
        await self.health.enter_graceful_shutdown()
        await self.registration.unregister()
        self.broker.long_polling.close()
        stopping = asyncio.ensure_future(self.server.stop(GRACE_S))
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.puts.drained()
        except TimeoutError:
            logger.warning("%s: answering the puts that still wait with their timeouts", self.acknowledgements)
        self.acknowledgements.abandon()
        await self._slaves_caught_up()
        self.replication_master.disconnect("this broker is stopping")
        await stopping
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.chores.finish()
        if self._failed.done():
            self._failed.exception()  # said by `run_until`
        self.metrics.close()
        await self.flusher.close()
        try:
            self.delivery.save()
            self.offsets.close(now_ms())
        except OSError as error:
            logger.error("the journal and the log keep what could not be written: %s", error)
        finally:
            self.store.close()
        logger.info("broker %s stopped at %d", self.config.broker_name, self.store.end_offset)

    async def _slaves_caught_up(self) -> None:
        """Slaves get the rest of the log first: a clean stop leaves nothing behind on one broker."""
        until = time.monotonic() + CATCH_UP_S
        end = self.store.end_offset
        while time.monotonic() < until:
            acks = [slave.ack_offset for slave in self.acknowledgements.tracker.slaves.values()]
            if all(ack is None or ack >= end for ack in acks):
                return
            await asyncio.sleep(CATCH_UP_LOOK_S)
        logger.warning("stopping before every slave has all: %s", self.acknowledgements)

    # --- what happens -----------------------------------------------------------------------------------------------

    def _opened(self) -> None:
        self._own("delivery", self.delivery.run())
        self.registration.changed()

    def _identify(self, config: BrokerConfig) -> None:
        """A promoted slave's id is 0 from then on, and its own is free for the former master."""
        self.replication_master.identity = replace(self.replication_master.identity, broker_id=config.broker_id)

    def _flush_failed(self, failure: BaseException) -> None:
        """What the page cache says is not to be believed any more: reads go on, writes never again."""
        self.broker.failure = str(failure)
        logger.critical("%s: takes no more writes", failure)
        self.acknowledgements.abandon()
        self.registration.changed()

    def _describe(self) -> namesrv_pb2.BrokerRegistration:
        broker = self.broker
        return namesrv_pb2.BrokerRegistration(
            cluster_name=broker.config.broker_cluster_name,
            broker_name=broker.config.broker_name,
            broker_id=broker.broker_id,
            address=self.address,
            epoch=broker.epoch,
            end_offset=self.store.end_offset,
            topics_version=version_to_proto(self.topics.version),
            topics=[topic_to_proto(topic) for topic in self.topics.announced(broker.config.auto_create_topic_enable)],
            broker_permission=broker.config.broker_permission,
            writable=broker.takes_clients_writes,
        )

    def _name_server_answered(self, name_server: str, reply: namesrv_pb2.RegistrationReply) -> None:
        broker = self.broker
        members = [Member(item.broker_id, item.address, item.epoch, item.end_offset) for item in reply.members]
        broker.peers.answered(name_server, members, reply.newest_epoch, self.address)
        if reply.newest_epoch > broker.epoch and broker.mastership.is_master:
            self.replication_master.broker.fenced(reply.newest_epoch, f"name server {name_server}")
        if not reply.refused:
            self.mastership.name_server_answered(broker.clock())
        elif reply.refused != self._refusals.get(name_server):
            logger.warning("name server %s refuses this broker: %s", name_server, reply.refused)
        self._refusals[name_server] = reply.refused  # said once
        self.leadership.poke()


def now_ms() -> int:
    return time.time_ns() // 1_000_000
