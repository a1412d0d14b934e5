"""Replication has the parts that work with other brokers of this name, from copying the log to promotion."""

from dataclasses import replace
from typing import Any

from rocketsim_proto import replication_pb2

from broker_service.config.broker_config import BrokerConfig
from broker_service.leadership.exchange import MetadataExchange
from broker_service.leadership.following import Following
from broker_service.leadership.inquiry import Inquiry
from broker_service.leadership.leadership import Leadership, MastersWork
from broker_service.leadership.master_link import MasterLink
from broker_service.leadership.membership import Membership
from broker_service.leadership.promises import Promises
from broker_service.leadership.registration import Registration
from broker_service.leadership.roll_call import RollCall
from broker_service.leadership.slave_link import SlaveLink
from broker_service.node.channels import Channels
from broker_service.node.core import Core
from broker_service.node.features import Features
from broker_service.node.storage import Storage
from broker_service.replication import master_frame
from broker_service.replication.handshake import Identity
from broker_service.replication.master import ReplicationMaster
from broker_service.replication.rocketmq_slave import RocketMQSlave
from broker_service.replication.slave import ReplicationSlave, SlaveSettings
from broker_service.replication.transfer import TransferSettings
from broker_service.runtime.machine import Machine
from broker_service.runtime.server import Service
from broker_service.runtime.tasks import OwnedTasks
from broker_service.store.cuts import diverged_directory
from broker_service.wire.own.range_streams import RangeStreams
from broker_service.wire.v2.endpoint import Endpoint


class Replication:
    def __init__(
        self,
        storage: Storage,
        core: Core,
        features: Features,
        v2_endpoint: Endpoint,
        *,
        address: str,
        machine: Machine,
        channels: Channels,
        tasks: OwnedTasks,
        masters_work: MastersWork,
        range_streams: RangeStreams,
        remoting_address: str = "",
    ) -> None:
        config, store, broker = storage.config, storage.store, core.broker
        schedule, writer = features.schedule, features.consumption.writer
        metadata = self.metadata = MetadataExchange(broker, schedule)
        self._tasks = tasks
        self.membership = Membership(broker, address, v2_endpoint, storage.role_file, remoting_address)
        identity = Identity(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            address=address,
            mapped_file_size_commit_log=config.mapped_file_size_commit_log,
            mapped_file_size_consume_queue=config.mapped_file_size_consume_queue,
        )
        parts: dict[str, Any] = dict(
            log=store,
            epochs=storage.epochs,
            identity=identity,
            flusher=core.flusher,
            broker=SlaveLink(broker, metadata, schedule, writer, storage.master_file),
            diverged=diverged_directory(config.store_path_root_dir),
            settings=SlaveSettings(
                housekeeping_s=config.ha_housekeeping_interval / 1000,
                metadata_interval_s=config.sync_metadata_interval / 1000,
                plain_sockets=config.pull_range_stream_enable,
                tcp_sockets=machine.network.certificates is None,
            ),
            open_channel=channels.open,
            chance=machine.chance,
        )
        self.slave = (
            RocketMQSlave(file_size=config.mapped_file_size_commit_log, user=config.inner_credentials, **parts)
            if config.follows_rocketmq
            else ReplicationSlave(**parts)
        )
        self.following = Following(broker, self.slave)
        self.promises = Promises(broker, storage.epochs, self.following)
        self.master = ReplicationMaster(
            log=store,
            epochs=storage.epochs,
            identity=identity,
            acks=core.acknowledgements,
            flusher=core.flusher,
            broker=MasterLink(broker, metadata, self.membership, self.following, self.promises),
            settings=TransferSettings(
                frame_bytes=config.ha_transfer_batch_size,
                heartbeat_s=config.ha_send_heartbeat_interval / 1000,
                housekeeping_s=config.ha_housekeeping_interval / 1000,
            ),
            streams=core.slave_streams,
            chance=machine.chance,
            sockets=range_streams,
        )
        range_streams.take_slave = self.master.take
        self.registration = Registration(
            broker, self.membership, channels.open, period_s=config.register_name_server_period / 1000
        )
        self.roll_call = RollCall(self.membership, channels.open)
        self.inquiry = Inquiry(self.membership, self.registration, self.roll_call, tasks)
        self.leadership = Leadership(
            broker,
            following=self.following,
            promises=self.promises,
            master=self.master,
            inquiry=self.inquiry,
            masters_work=masters_work,
            role_file=storage.role_file,
            master_file=storage.master_file,
        )
        broker.config_changed.append(self._identify)

    def services(self) -> list[Service]:
        name = replication_pb2.DESCRIPTOR.services_by_name["Replication"].full_name
        return [Service(name, master_frame.add_to_server, self.master, frequent=("Replicate",))]

    def start(self) -> None:
        self._tasks.own("leadership", self.leadership.run())
        self._tasks.own("registration", self.registration.run())
        self._tasks.own("roll-call", self.roll_call.run())

    def _identify(self, config: BrokerConfig) -> None:
        """Takes over the broker id of a changed configuration.

        A promoted slave gets id 0, which frees its old id for the former master.
        """
        self.master.identity = replace(self.master.identity, broker_id=config.broker_id)
