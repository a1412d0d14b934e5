"""Commands for brokers: state, settings, promotion, and the write permission that name servers keep."""

from collections.abc import Mapping
from typing import Any

from rocketsim_proto import admin_pb2 as pb

from rocketsim_client.admin.commands import Commands, at_each, plain, status_of
from rocketsim_client.admin_model import Forfeit, HaCut, HaEpoch, HaSlave, HaStatus, Promotion, SlavesLeft
from rocketsim_client.errors import InvalidParameter


class BrokerCommands(Commands):
    def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        """Takes away the write permission of a broker's topics, at every name server.  Returns the number of topics
        that each name server has changed, by its address."""
        return self._write_perm(broker_name, writable=False)

    def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Gives back the write permission that `wipe_write_perm` took.  Returns the number of topics that each name
        server has changed, by its address."""
        return self._write_perm(broker_name, writable=True)

    def _write_perm(self, broker_name: str, *, writable: bool) -> dict[str, int]:
        transport, left_s = self._cluster.transport_within(self._timeout_s)
        return transport.routes.write_perm(broker_name, writable, left_s)

    def ha_status(self, *, broker_addr: str | None = None, cluster_name: str | None = None) -> list[HaStatus]:
        """Returns the state of replication of one broker, or of all brokers, slaves included."""
        answers = self._call_members(pb.HaStatusRequest(), broker_addr, cluster_name, lambda answer: answer)
        return [
            plain(
                HaStatus,
                answer,
                address=address,
                slaves=[plain(HaSlave, slave) for slave in answer.slaves],
                epochs=[plain(HaEpoch, epoch) for epoch in answer.epochs],
                cuts=[plain(HaCut, cut) for cut in answer.cuts],
            )
            for address, answer in answers.items()
        ]

    def broker_status(
        self, *, broker_addr: str | None = None, cluster_name: str | None = None
    ) -> dict[str, dict[str, str]]:
        """Returns all values that a broker reports, by broker address."""
        return self._call_members(pb.BrokerStatusRequest(), broker_addr, cluster_name, _values)

    def get_broker_config(
        self, *, broker_addr: str | None = None, cluster_name: str | None = None
    ) -> dict[str, dict[str, str]]:
        """Returns all current settings, by broker address."""
        return self._call_members(pb.GetBrokerConfigRequest(), broker_addr, cluster_name, _values)

    def update_broker_config(
        self, values: Mapping[str, str], *, broker_addr: str | None = None, cluster_name: str | None = None
    ) -> dict[str, dict[str, str]]:
        """Changes settings that can be changed at run time.  Returns the changed settings with their new values, by
        broker address.  `brokerRole` goes to masters only, because a slave cannot change its role."""
        request = pb.UpdateBrokerConfigRequest(values=dict(values))
        find = self.masters if "brokerRole" in values else self._members
        return at_each(find(broker_addr, cluster_name), lambda at: _values(self._call(at, request)))

    def promote_slave(
        self,
        broker_addr: str,
        *,
        broker_name: str | None = None,
        expected_epoch: int = 0,
        broker_role: str = "",
        force: bool = False,
    ) -> Promotion:
        """Makes a slave the master of its broker name, with a new epoch.  Without `force` the promotion is refused
        while the old master answers, or while another slave has a longer log or does not answer.  The returned
        Promotion says which bytes of log are lost.

        `broker_role` is SYNC_MASTER or ASYNC_MASTER.  An empty role keeps the old master's role, so that `SEND_OK`
        means the same as before.
        """
        if broker_name is None:
            named = [member for member in self.cluster_list() if member.address == broker_addr]
            if not named:
                raise InvalidParameter(f"the name server does not know {broker_addr}; give its broker name, too")
            broker_name = named[0].broker_name
        answer = self._call(
            broker_addr,
            pb.PromoteSlaveRequest(
                broker_name=broker_name, expected_epoch=expected_epoch, broker_role=broker_role, force=force
            ),
        )
        forfeits = tuple(
            Forfeit(lost.broker_id, lost.address, lost.bytes if lost.HasField("bytes") else None)
            for lost in answer.forfeits
        )
        return plain(Promotion, answer, address=broker_addr, forfeits=forfeits)

    def remove_slave(self, broker_addr: str, broker_id: int) -> SlavesLeft:
        """Makes the broker forget a slave that will not come back.  Returns the slaves that the broker still knows,
        by broker id."""
        answer = self._call(broker_addr, pb.RemoveSlaveRequest(broker_id=broker_id))
        return SlavesLeft(answer.known_slaves, status_of(answer))


def _values(answer: Any) -> dict[str, str]:
    return dict(answer.values)
