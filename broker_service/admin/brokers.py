"""Serves operators' commands for this broker: its state, its settings, its slaves, its promotion."""

import logging
from collections.abc import Mapping

from rocketsim_proto import admin_pb2 as pb

from broker_service.access.policies import Action
from broker_service.access.rights import GET, of_cluster, user
from broker_service.admin.commands import Commands, SubjectOperations, change, command
from broker_service.config.properties import as_properties
from broker_service.errors import InvalidParameter
from broker_service.leadership.leadership import Promoted
from broker_service.modes import BrokerRole

EPOCHS = 100  # most epochs in an answer; every start that appends something begins an epoch
CUTS = 100  # most cuts in an answer

logger = logging.getLogger(__name__)


class BrokerCommands(Commands):
    @command(user(lambda request: [of_cluster(*GET)]))
    async def HaStatus(self, request: pb.HaStatusRequest) -> pb.HaStatusResponse:
        store = self._broker.store
        return pb.HaStatusResponse(
            is_master=not self._broker.is_slave,
            epoch=self._broker.epoch,
            master_address=self._status.master_address,
            commit_log_max_offset=store.end_offset,
            confirm_offset=self._status.confirm_offset,
            slaves=[
                pb.HaStatusResponse.Slave(
                    address=slave.address,
                    broker_id=slave.broker_id,
                    ack_offset=slave.ack_offset,
                    diff_bytes=slave.diff_bytes,
                    in_sync=slave.in_sync,
                    transfer_bytes_per_second=slave.transfer_bytes_per_second,
                    transfer_from_where=slave.transfer_from_where,
                )
                for slave in self._status.slaves()
            ],
            master_flush_offset=store.flushed_offset,
            state=self._status.line(),
            epochs=[
                pb.HaStatusResponse.Epoch(epoch=one.epoch, start_offset=one.start_offset)
                for one in self._broker.epochs[-EPOCHS:]
            ],
            cuts=[
                pb.HaStatusResponse.Cut(offset=one.offset, size=one.size, timestamp=one.at_ms)
                for one in self._status.cuts()[-CUTS:]
            ],
        )

    @command(user(lambda request: [of_cluster(*GET)]))
    async def BrokerStatus(self, request: pb.BrokerStatusRequest) -> pb.BrokerStatusResponse:
        return pb.BrokerStatusResponse(values=self._status.values())

    @command(user(lambda request: [of_cluster(*GET)]))
    async def GetBrokerConfig(self, request: pb.GetBrokerConfigRequest) -> pb.GetBrokerConfigResponse:
        return pb.GetBrokerConfigResponse(values=self._operations.config())

    @command(user(lambda request: [of_cluster(Action.UPDATE)]))
    async def UpdateBrokerConfig(self, request: pb.UpdateBrokerConfigRequest) -> pb.UpdateBrokerConfigResponse:
        return pb.UpdateBrokerConfigResponse(values=self._operations.update_config(dict(request.values)))

    # A starting master may wait for the removed slave, so this call does not wait until the master has started.
    @change(user(lambda request: [of_cluster(Action.UPDATE)]), past_start=False)
    async def RemoveSlave(self, request: pb.RemoveSlaveRequest) -> pb.RemoveSlaveResponse:
        self._operations.remove_slave(request.broker_id)
        return pb.RemoveSlaveResponse(known_slaves=self._broker.known_slaves.addresses)

    @command(user(lambda request: [of_cluster(Action.UPDATE)]))
    async def PromoteSlave(self, request: pb.PromoteSlaveRequest) -> pb.PromoteSlaveResponse:
        if request.expected_epoch < 0:
            raise InvalidParameter(f"expected epoch {request.expected_epoch} is negative")
        promoted = await self._operations.promote(
            request.broker_name, request.expected_epoch, request.broker_role, force=request.force
        )
        return pb.PromoteSlaveResponse(
            epoch=promoted.epoch,
            start_offset=promoted.start_offset,
            broker_role=promoted.role.name,
            flush_disk_type=promoted.flush_disk_type.name,
            former_role=promoted.former_role.name if promoted.former_role is not None else "",
            forfeits=[
                pb.PromoteSlaveResponse.Forfeit(broker_id=lost.broker_id, address=lost.address, bytes=lost.bytes)
                for lost in promoted.forfeits
            ],
        )


class BrokerOperations(SubjectOperations):
    def config(self) -> dict[str, str]:
        return as_properties(self._broker.config)

    def update_config(self, values: Mapping[str, str]) -> dict[str, str]:
        """Changes settings.  Returns the changed keys with their present values."""
        if not values:
            raise InvalidParameter("an update of the configuration must name a key and its value")
        self._leadership.update_config(values)
        now = self.config()
        return {key: now[key] for key in values}

    def remove_slave(self, broker_id: int) -> None:
        """Forgets a slave that is gone for good, so that no start waits for it and no promotion asks it."""
        broker = self._broker
        if broker_id in broker.acknowledgements.tracker.slaves:
            raise InvalidParameter(
                f"slave {broker_id} follows this master now: stop the slave for good before you remove it"
            )
        address = broker.known_slaves.addresses.get(broker_id, "")
        had_promise = self._leadership.promises.forget(broker_id, address)
        if address or not had_promise:
            broker.known_slaves.remove(broker_id)
        broker.mastership.forget_slave(broker_id)
        broker.peers.forget(address)
        logger.warning(
            "slave %d at %s is forgotten, because an operator says that it is gone for good", broker_id, address
        )

    async def promote(self, broker_name: str, expected_epoch: int, role_name: str, *, force: bool) -> Promoted:
        """Makes this slave the master.  Without a role name, this broker gets the role of the former master."""
        try:
            role = BrokerRole(role_name) if role_name else None
        except ValueError:
            raise InvalidParameter(f"brokerRole {role_name!r} must be ASYNC_MASTER or SYNC_MASTER") from None
        return await self._leadership.promote(broker_name, expected_epoch, role, force=force)
