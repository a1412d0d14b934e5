"""The transport over RocketSim's own gRPC services and plain sockets."""

from typing import TYPE_CHECKING

from rocketsim_client.connection import Connection
from rocketsim_client.errors import RocketSimError
from rocketsim_client.transport.own.channels import Channels
from rocketsim_client.transport.own.range_streams import RangeStreams
from rocketsim_client.transport.own.reads import GrpcReads
from rocketsim_client.transport.own.routes import GrpcRoutes
from rocketsim_client.transport.server_protocol import SeenProtocols

if TYPE_CHECKING:
    from rocketsim_client.transport.own.admin import GrpcAdmin
    from rocketsim_client.transport.own.consumption import GrpcConsumption
    from rocketsim_client.transport.own.sends import GrpcSends
    from rocketsim_client.transport.own.transactions import GrpcTransactions


class GrpcTransport:
    """All calls to an address share one channel.  A module that is not needed for reading is imported at its first
    use.  Thread-safe."""

    def __init__(self, connection: Connection, seen: SeenProtocols | None = None) -> None:
        """With `connection.range_streams`, ranges and sends use plain sockets if the broker offers them.  With TLS only
        Unix sockets are used, because their bytes do not leave this machine.  Errors say what `seen` has found at
        addresses."""
        options = dict(connection.channel_options)
        self.channels = Channels(options, connection.credentials, connection.tls, seen)
        self.streams = RangeStreams(tcp=connection.tls is None) if connection.range_streams else None
        self.routes = GrpcRoutes(self.channels, connection.name_servers)
        self.reads = GrpcReads(self.channels, self.streams, connection.program)
        self._sends: GrpcSends | None = None
        self._consumption: GrpcConsumption | None = None
        self._transactions: GrpcTransactions | None = None
        self._admin: GrpcAdmin | None = None

    @property
    def sends(self) -> "GrpcSends":
        if self._sends is None:
            from rocketsim_client.transport.own.sends import GrpcSends

            self._sends = GrpcSends(self.channels, self.streams)
        return self._sends

    @property
    def consumption(self) -> "GrpcConsumption":
        if self._consumption is None:
            from rocketsim_client.transport.own.consumption import GrpcConsumption

            self._consumption = GrpcConsumption(self.channels)
        return self._consumption

    @property
    def transactions(self) -> "GrpcTransactions":
        if self._transactions is None:
            from rocketsim_client.transport.own.transactions import GrpcTransactions

            self._transactions = GrpcTransactions(self.channels)
        return self._transactions

    @property
    def admin(self) -> "GrpcAdmin":
        if self._admin is None:
            from rocketsim_client.transport.own.admin import GrpcAdmin

            self._admin = GrpcAdmin(self.channels)
        return self._admin

    def close(self, why: RocketSimError | None = None) -> None:
        self.channels.close(why)
        if self.streams is not None:
            self.streams.close()
