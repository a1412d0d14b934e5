"""BrokerNode: one broker process's parts, put together, started in order and stopped in reverse."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc
from rocketsim_proto import (
    admin_pb2,
    admin_pb2_grpc,
    broker_pb2,
    consumption_pb2,
    consumption_pb2_grpc,
    replication_pb2,
    replication_pb2_grpc,
    transactions_pb2,
    transactions_pb2_grpc,
)
from rocketsim_proto.signature import SigningChannel

from broker_service.admin.metrics import Metrics
from broker_service.admin.operations import Operations
from broker_service.admin.progress import Progress
from broker_service.admin.servicer import AdminServicer
from broker_service.admin.status import Status
from broker_service.admin.users import UserOperations
from broker_service.broker.core.broker import Broker, ack_levels
from broker_service.broker.core.long_polling import LongPolling
from broker_service.broker.core.mastership import Mastership
from broker_service.broker.core.traffic import Traffic
from broker_service.broker.core.visibility import Visibility
from broker_service.broker.metadata.access import AccessTables, AclTable, UserTable
from broker_service.broker.metadata.consumer_offsets import ConsumerOffsetTable
from broker_service.broker.metadata.groups import SubscriptionGroupTable
from broker_service.broker.metadata.known_slaves import KnownSlaves
from broker_service.broker.metadata.tables import Tables
from broker_service.broker.metadata.topics import TopicTable
from broker_service.broker.put import PutPath
from broker_service.broker.reads.commits import Commits
from broker_service.broker.reads.pull import PullPath
from broker_service.broker.reads.pull_range import RangePath
from broker_service.broker.reads.queue_lookup import QueueLookup
from broker_service.broker.reads.read_checks import ReadChecks
from broker_service.config.process_config import BrokerConfig
from broker_service.config.store_settings import store_config
from broker_service.delayed.schedule_service import ScheduleService
from broker_service.errors import ConfigError, RocketSimError
from broker_service.leadership.exchange import MetadataExchange, delete_queues
from broker_service.leadership.following import Following
from broker_service.leadership.inquiry import Inquiry
from broker_service.leadership.leadership import Leadership
from broker_service.leadership.master_file import MasterFile
from broker_service.leadership.master_link import MasterLink
from broker_service.leadership.membership import Membership
from broker_service.leadership.promises import Promises
from broker_service.leadership.registration import Registration
from broker_service.leadership.role_file import RoleFile
from broker_service.leadership.roll_call import RollCall
from broker_service.leadership.slave_link import SlaveLink
from broker_service.model import BrokerRole
from broker_service.node.access_control import AccessControl, LostRights
from broker_service.node.log_history import LogHistory
from broker_service.node.masters_work import MastersWork
from broker_service.node.periodic import PeriodicTasks
from broker_service.pop.consumption import Consumption
from broker_service.replication import master_frame
from broker_service.replication.acknowledgement import Acknowledgements
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.flusher import Flusher
from broker_service.replication.handshake import Identity
from broker_service.replication.master import ReplicationMaster
from broker_service.replication.slave import ReplicationSlave, SlaveSettings
from broker_service.replication.slave_streams import SlaveStreams
from broker_service.replication.tracker import Tracker
from broker_service.replication.transfer import TransferSettings
from broker_service.runtime.machine import Machine
from broker_service.runtime.server import Service, add_services, host_port
from broker_service.runtime.tasks import OwnedTasks
from broker_service.store.disk import Attempt
from broker_service.store.json_file import JsonFile
from broker_service.store.message_store import MessageStore
from broker_service.store.offset_journal import OffsetJournal
from broker_service.wire.clients import Clients
from broker_service.wire.own.broker_servicer import BrokerServicer, add_to_server
from broker_service.wire.own.consumption_servicer import ConsumptionServicer
from broker_service.wire.own.range_streams import RangeStreams
from broker_service.wire.own.transaction_servicer import TransactionServicer
from broker_service.wire.v2.port import Port as V2Port
from broker_service.wire.v2.receiving import Receiving
from broker_service.wire.v2.sends import SendPath
from broker_service.wire.v2.servicer import V2Servicer
from broker_service.wire.v2.topic_routes import TopicRoutes
from broker_service.wire.v2.transaction_calls import TransactionCalls

logger = logging.getLogger(__name__)

GRACE_S = 8.0  # for calls that are under way when the broker stops
DRAIN_S = 7.0  # for puts that wait for a disk or a slave
CATCH_UP_S = 2.0  # for slaves that lack the last of the log


class BrokerNode:
    """`open` takes the store's directory; `start` needs a bound server; `stop` leaves no `abort` behind."""

    def __init__(self, config: BrokerConfig, store: MessageStore, machine: Machine) -> None:
        self.file_config = config
        self.store = store
        self.machine = machine
        root = config.store_path_root_dir
        self._role_file = RoleFile(self._json_file("rocketsim/role.json"), store.disk)
        self.config = self._role_file.applied_to(config)
        self._master_file = MasterFile(self._json_file("rocketsim/master.json"))
        self._delay_file = self._json_file("config/delayOffset.json")
        self._position_file = self._json_file("rocketsim/delay_position.json")
        self.epochs = EpochFile(root / "rocketsim" / "epochs.json", store.end_offset, store.disk)
        if self.config.broker_role is BrokerRole.SLAVE:
            self.epochs.forget_promotion(store.end_offset)
        if not store.recovery.clean:
            self._note_unclean_stop()
        self.topics = TopicTable(
            self._json_file("config/topics.json"), self._json_file("rocketsim/deleted_topics.json")
        )
        # Where a crash came between a topic's tombstone and its queues, these are still there, or the log has brought
        # them back; a slave may have heard at once that the topic was deleted and made again.
        delete_queues(store, {name: one.queue_offsets for name, one in self.topics.tombstones.items()})
        self.topics.add_system_topics(config.default_topic_queue_nums, len(config.delay_levels_ms))
        self.groups = SubscriptionGroupTable(
            self._json_file("config/subscriptionGroup.json"), self._json_file("rocketsim/deleted_groups.json")
        )
        self.known_slaves = KnownSlaves(self._json_file("rocketsim/slaves.json"))
        self.offsets = ConsumerOffsetTable(
            self._json_file("config/consumerOffset.json"),
            self._json_file("rocketsim/offset_generations.json"),
            OffsetJournal(root / "rocketsim" / "offsets.journal", store.disk),
            history=LogHistory(self.epochs, store),
            noted_file=self._json_file("rocketsim/noted_offsets.json"),
        )

        self.access = self._access_tables() if config.authentication_enabled else None
        self.access_control = AccessControl(config, self.access, machine)

    def _access_tables(self) -> AccessTables:
        def table(name: str) -> tuple[JsonFile, JsonFile]:
            root, disk = self.file_config.store_path_root_dir / "rocketsim", self.store.disk
            return JsonFile(root / f"{name}.json", disk, private=True), JsonFile(root / f"deleted_{name}.json", disk)

        return AccessTables(UserTable(*table("users")), AclTable(*table("acls")))

    def _note_unclean_stop(self) -> bool:
        """False where the disk has no room for it: to be tried again before this store counts as closed cleanly."""
        with Attempt() as noting:
            self.epochs.note_unclean_stop()
        if noting.refused:
            logger.warning("%s: the epochs' file does not know yet that the last stop was unclean", noting.refused)
        return noting.refused is None

    def _json_file(self, name: str) -> JsonFile:
        return JsonFile(self.file_config.store_path_root_dir / name, self.store.disk)

    @classmethod
    def open(cls, config: BrokerConfig, machine: Machine | None = None) -> "BrokerNode":
        machine = machine or Machine()
        store = MessageStore.open(store_config(config), machine.now_ms(), machine.files)
        logger.info("store %s: %s", config.store_path_root_dir, store.recovery)
        try:
            return cls(config, store, machine)
        except BaseException:
            if store.recovery.clean:
                store.close()
            else:
                store.abandon()  # a clean stop would hide the unclean one, in whose epoch nothing may be written
            raise

    # --- starting ---------------------------------------------------------------------------------------------------

    async def start(self, server: grpc.aio.Server, address: str, store_host: bytes) -> None:
        self.server = server
        self.assemble(address, store_host)
        self.health = await add_services(server, self._services())
        if self.config.metrics_port:
            self._serve_metrics()
        stream_sockets = self._stream_sockets()
        self.flusher.start()
        await server.start()
        self.tasks.own("leadership", self.leadership.run())
        self.tasks.own("registration", self.registration.run())
        self.tasks.own("roll-call", self.roll_call.run())
        self.tasks.own("v2-port", self.v2_port.run())
        self.tasks.own("range-streams", self.range_streams.serve(stream_sockets))
        for name, work in self.periodic.loops():
            self.tasks.own(name, work)

    def assemble(self, address: str, store_host: bytes) -> None:
        """Make all parts; none of them does anything yet."""
        self.address = address
        self.tasks = OwnedTasks()
        self._make_broker(store_host)
        self._make_calls()
        self._make_v2()
        self._make_replication()

    def _make_broker(self, store_host: bytes) -> None:
        config, store = self.config, self.store
        slaves = {*config.slave_addresses} - {self.address}
        known = self.known_slaves.addresses
        self.mastership = Mastership(
            config.broker_role,
            self.epochs.epochs.last,
            asks_others=bool(config.name_servers or slaves),
            others={*config.name_servers, *slaves, *known.values()} - {self.address},
            known_slaves=known,
            clean_start=store.recovery.clean and (self.epochs.may_resume or not self.epochs.epochs.last),
            slave_count=max(len(slaves), len(known)),
            slave_wait_s=config.slave_wait_time_ms / 1000,
            now=self.machine.monotonic(),
        )
        self.flusher = Flusher(
            store,
            interval_s=config.flush_interval_commit_log / 1000,
        )
        visibility = Visibility(store, LongPolling(config.max_long_polls))
        self.acknowledgements = Acknowledgements(
            ack_levels(config),
            Tracker(config.ha_slave_fallbehind_max),
            store,
            self.flusher,
            visibility,
        )
        self.flusher.flushed.append(self.acknowledgements.on_flushed)
        self.flusher.failed.append(self._flush_failed)
        self.slave_streams: SlaveStreams[Any] = SlaveStreams()
        tables = Tables(self.topics, self.groups, self.offsets, self.known_slaves, self.access)
        self.broker = Broker(
            config,
            store=store,
            epochs=self.epochs,
            tables=tables,
            mastership=self.mastership,
            acknowledgements=self.acknowledgements,
            visibility=visibility,
            slaves=self.slave_streams,
            clocks=self.machine,
            store_host=store_host,
        )
        self.schedule = ScheduleService(self.broker, self._delay_file, self._position_file)
        checks = ReadChecks(self.broker, Commits(self.broker))
        self.clients = Clients(self.machine.monotonic)
        self.consumption = Consumption(self.broker, checks, self.clients, self.machine.chance)
        self.clients.gone.append(self.consumption.client_gone)
        self.consumption.start()
        self.metadata = MetadataExchange(self.broker, self.schedule)

    def _make_replication(self) -> None:
        config, store = self.config, self.store
        membership = self.membership = Membership(self.broker, self.address, self.v2_port, self._role_file)
        identity = Identity(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            address=self.address,
            mapped_file_size_commit_log=config.mapped_file_size_commit_log,
            mapped_file_size_consume_queue=config.mapped_file_size_consume_queue,
        )
        self.replication_slave = ReplicationSlave(
            log=store,
            epochs=self.epochs,
            identity=identity,
            flusher=self.flusher,
            broker=SlaveLink(self.broker, self.metadata, self.schedule, self.consumption.writer, self._master_file),
            diverged=config.store_path_root_dir / "rocketsim" / "diverged",
            settings=SlaveSettings(
                housekeeping_s=config.ha_housekeeping_interval / 1000,
                metadata_interval_s=config.sync_metadata_interval / 1000,
            ),
            open_channel=self._open_channel,
            chance=self.machine.chance,
        )
        self.following = Following(self.broker, self.replication_slave)
        self.promises = Promises(self.broker, self.epochs, self.following)
        self.replication_master = ReplicationMaster(
            log=store,
            epochs=self.epochs,
            identity=identity,
            acks=self.acknowledgements,
            flusher=self.flusher,
            broker=MasterLink(self.broker, self.metadata, membership, self.following, self.promises),
            settings=TransferSettings(
                frame_bytes=config.ha_transfer_batch_size,
                heartbeat_s=config.ha_send_heartbeat_interval / 1000,
                housekeeping_s=config.ha_housekeeping_interval / 1000,
            ),
            streams=self.slave_streams,
            chance=self.machine.chance,
        )
        self.registration = Registration(
            self.broker, membership, self._open_channel, period_s=config.register_name_server_period / 1000
        )
        self.roll_call = RollCall(membership, self._open_channel)
        self.inquiry = Inquiry(membership, self.registration, self.roll_call, self.tasks)
        self.leadership = Leadership(
            self.broker,
            following=self.following,
            promises=self.promises,
            master=self.replication_master,
            inquiry=self.inquiry,
            masters_work=MastersWork(self.broker, self.schedule, self.consumption, self.tasks),
            role_file=self._role_file,
            master_file=self._master_file,
        )
        self.topics.changed.append(lambda _: self.broker.description_changed.notify())
        self.broker.config_changed.append(lambda _: self.broker.description_changed.notify())
        self.broker.config_changed.append(lambda changed: store.reconfigure(store_config(changed)))
        self.broker.config_changed.append(self._identify)

    def _make_calls(self) -> None:
        taken, given = self._taken, self._given = Traffic(), Traffic()
        commits = self.commits = Commits(self.broker)
        self.lookup = QueueLookup(self.broker)
        checks = ReadChecks(self.broker, commits)
        self.puts = PutPath(self.broker, taken, timers=lambda: self.consumption.state.timers.weight)
        self.pulls = PullPath(self.broker, checks, commits, given)
        self.ranges = RangePath(self.broker, checks, given)
        self.range_streams = RangeStreams(self.broker, self.ranges, self.puts)
        LostRights(self.broker, self.consumption, self.clients)

    def _services(self) -> list[Service]:
        self.status = Status(
            self.broker,
            self.following,
            self.promises,
            self.replication_master,
            self.replication_slave,
            self._taken,
            self._given,
            self.schedule,
        )
        self.progress = Progress(self.broker, self.consumption)
        self.metrics = Metrics(
            self.broker,
            self.status,
            self.range_streams,
            self.consumption,
            self.access_control.refusals,
            connections=lambda: (
                self.clients.stream_count,
                self.v2_port.connections,
                self.v2_port.connections_refused,
            ),
        )
        self.periodic = PeriodicTasks(
            self.broker,
            schedule=self.schedule,
            consumption=self.consumption,
            slave=self.replication_slave,
            status=self.status,
            metrics=self.metrics,
            progress=self.progress,
        )
        operations = Operations(self.broker, self.leadership)
        users = UserOperations(self.broker, self.leadership)
        transactions = self.consumption.transactions
        return broker_services(
            BrokerServicer(
                self.broker,
                self.puts,
                self.pulls,
                self.ranges,
                self.commits,
                self.lookup,
                self.range_streams.offer,
            ),
            self.replication_master,
            AdminServicer(self.broker, operations, self.progress, self.status, self.lookup, users),
            ConsumptionServicer(self.broker, self.consumption),
            TransactionServicer(self.broker, self.puts, transactions, self.clients),
        )

    def _make_v2(self) -> None:
        self.v2_routes = TopicRoutes(self.broker, self._open_channel, self.machine.network.open_channel)
        sends = SendPath(self.broker, self.puts, self.consumption.transactions)
        servicer = V2Servicer(
            self.broker,
            sends=sends,
            routes=self.v2_routes,
            commits=self.commits,
            queues=self.lookup,
            clients=self.clients,
            receiving=Receiving(self.broker, self.consumption, self.clients),
            transactions=TransactionCalls(self.broker, self.consumption.transactions, self.clients),
        )
        self.v2_port = V2Port(
            self.broker,
            servicer,
            self.clients,
            self.machine,
            self.config.grpc_address_path,
            opened=sends.opened,
            access=self.access_control,
        )

    def _open_channel(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> Any:
        """To another broker or a name server, whose calls are signed if there is something to sign with."""
        channel = self.machine.network.open_channel(address, options)
        credentials = self.config.inner_credentials
        if credentials is None:
            return channel
        return SigningChannel(channel, credentials, now=lambda: self.machine.now_ms() / 1000)

    def _stream_sockets(self) -> list[socket.socket]:
        config = self.config
        if not config.pull_range_stream_enable or config.authentication_enabled:
            return []  # nobody is asked there who he is
        return self.machine.network.listen_for_streams(
            self.range_streams.unix_name, config.bind_address, config.pull_range_stream_port
        )

    def _serve_metrics(self) -> None:
        self.metrics.picture()
        try:
            network = self.machine.network
            port = self.metrics.serve(
                self.config.bind_address,
                self.config.metrics_port,
                network.certificates,
                client_auth="metricsPort" in network.client_auth_ports,
            )
        except OSError as error:
            raise ConfigError(f"metricsPort={self.config.metrics_port}: {error}") from error
        scheme = "http" if network.certificates is None else "https"
        logger.info("metrics on %s://%s/metrics", scheme, host_port(self.config.bind_address, port))

    # --- stopping ---------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Say good-bye, take no more calls, let those under way end, flush, close."""
        self.broker.stopping = True
        await self.health.enter_graceful_shutdown()
        await self.registration.unregister()
        self.broker.long_polling.close()
        self.consumption.close()
        stopping = asyncio.gather(
            self.server.stop(GRACE_S), self.v2_port.close(GRACE_S), self.range_streams.stop(GRACE_S)
        )
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.puts.drained()
        except TimeoutError:
            logger.warning("%s: answering the puts that still wait with their timeouts", self.acknowledgements)
        self.acknowledgements.abandon()
        # Slaves get the rest of the log first: a clean stop leaves nothing behind on one broker.
        if not await self.acknowledgements.slaves_caught_up(CATCH_UP_S):
            logger.warning("stopping before every slave has all: %s", self.acknowledgements)
        self.replication_master.disconnect("this broker is stopping")
        await stopping
        await self.tasks.cancel()
        await self.v2_port.close(0)  # if it was about to open
        await self.v2_routes.close()
        await self.periodic.finish()
        await asyncio.gather(*(table.settled() for table in (self.topics, self.groups, *(self.access or ()))))
        self.metrics.close()
        await self.flusher.close()
        try:
            self.schedule.save()
            self.consumption.clean_stop.note_transactions()
            self.offsets.close(self.broker.now_ms())
            self.consumption.clean_stop.note_offsets()
            self.consumption.writer.catch_up()  # what follows needs all of the state
            self.consumption.timer_delivery.write_check()
            self.consumption.clean_stop.write_order_info()
            if saving := self.consumption.saving():
                saving()
        except (RocketSimError, OSError) as error:
            logger.error("the journal and the log keep what could not be written: %s", error)
        finally:
            if not self.epochs.is_noted and not self._note_unclean_stop():
                self.store.disk.stop("the last unclean stop is not noted; this one counts as unclean, too")
            self.store.close()
        logger.info("broker %s stopped at %d", self.config.broker_name, self.store.end_offset)

    # --- what happens -----------------------------------------------------------------------------------------------

    def _identify(self, config: BrokerConfig) -> None:
        """A promoted slave's id is 0 from then on, and its own is free for the former master."""
        self.replication_master.identity = replace(self.replication_master.identity, broker_id=config.broker_id)

    def _flush_failed(self, failure: BaseException) -> None:
        """What the page cache says is not to be believed any more: reads go on, writes never again."""
        self.broker.failure = str(failure)
        logger.critical("%s: takes no more writes", failure)
        self.acknowledgements.abandon()
        self.broker.description_changed.notify()


def broker_services(
    broker: BrokerServicer,
    replication: replication_pb2_grpc.ReplicationServicer,
    admin: admin_pb2_grpc.AdminServicer,
    consumption: consumption_pb2_grpc.ConsumptionServicer,
    transactions: transactions_pb2_grpc.TransactionsServicer,
) -> list[Service]:
    """Each with the name under which reflection and health know it."""
    return [
        Service(
            broker_pb2.DESCRIPTOR.services_by_name["Broker"].full_name,
            add_to_server,
            broker,
            frequent=("Send", "Pull", "PullRange"),
        ),
        Service(
            replication_pb2.DESCRIPTOR.services_by_name["Replication"].full_name,
            master_frame.add_to_server,
            replication,
            frequent=("Replicate",),
        ),
        Service(
            admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name,
            admin_pb2_grpc.add_AdminServicer_to_server,
            admin,
        ),
        Service(
            consumption_pb2.DESCRIPTOR.services_by_name["Consumption"].full_name,
            consumption_pb2_grpc.add_ConsumptionServicer_to_server,
            consumption,
            frequent=("Pop", "Ack"),
        ),
        Service(
            transactions_pb2.DESCRIPTOR.services_by_name["Transactions"].full_name,
            transactions_pb2_grpc.add_TransactionsServicer_to_server,
            transactions,
        ),
    ]
