"""The transport over RocketMQ's remoting protocol."""

from typing import TYPE_CHECKING, Any, cast

from rocketsim_client.connection import Connection
from rocketsim_client.errors import RocketSimError
from rocketsim_client.transport.remoting.connections import Connections
from rocketsim_client.transport.remoting.groups import Groups
from rocketsim_client.transport.remoting.members import KnownMembers
from rocketsim_client.transport.remoting.pace import Pace
from rocketsim_client.transport.remoting.reads import RemotingReads
from rocketsim_client.transport.remoting.routes import RemotingRoutes
from rocketsim_client.transport.remoting.unsupported import UnsupportedCalls

if TYPE_CHECKING:
    from rocketsim_client.transport.consumption import ConsumptionCalls
    from rocketsim_client.transport.remoting.admin import RemotingAdmin
    from rocketsim_client.transport.remoting.sends import RemotingSends
    from rocketsim_client.transport.transactions import TransactionCalls


class RemotingTransport:
    """All calls to an address share one connection.  A module that is not needed for reading is imported at its
    first use.  Thread-safe."""

    def __init__(self, settings: Connection) -> None:
        self.connections = Connections(settings)
        self._members = KnownMembers()
        self.routes = RemotingRoutes(self.connections, settings, self._members)
        groups = Groups(self.connections, settings.register_group)
        self.reads = RemotingReads(self.connections, self._members, groups, Pace(settings.max_pulls_per_second))
        self._sends: RemotingSends | None = None
        self._admin: RemotingAdmin | None = None

    @property
    def sends(self) -> "RemotingSends":
        if self._sends is None:
            from rocketsim_client.transport.remoting.sends import RemotingSends

            self._sends = RemotingSends(self.connections)
        return self._sends

    @property
    def consumption(self) -> "ConsumptionCalls":
        return cast("ConsumptionCalls", cast(Any, UnsupportedCalls("consuming as a member of a group")))

    @property
    def transactions(self) -> "TransactionCalls":
        return cast("TransactionCalls", cast(Any, UnsupportedCalls("transactions")))

    @property
    def admin(self) -> "RemotingAdmin":
        if self._admin is None:
            from rocketsim_client.transport.remoting.admin import RemotingAdmin

            self._admin = RemotingAdmin(self.connections, self._members)
        return self._admin

    def close(self, why: RocketSimError | None = None) -> None:
        self.connections.close(why)
