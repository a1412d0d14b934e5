"""A transport: all calls of the client to name servers and brokers, whatever the protocol.

A transport has six sets of calls, which the classes `RouteCalls`, `SendCalls`, `ReadCalls`, `ConsumptionCalls`,
`TransactionCalls` and `AdminCalls` describe.  Calls take messages as columns and return encoded records.  Every call to
a broker has an address and a timeout, is tried once, and raises the errors of `errors.py`.  A call that the transport's
protocol does not have raises NotSupported.
"""

from typing import TYPE_CHECKING, Protocol

from rocketsim_client.errors import RocketSimError
from rocketsim_client.transport.reads import ReadCalls
from rocketsim_client.transport.routes import RouteCalls

if TYPE_CHECKING:  # a process that only reads does not import these modules
    from rocketsim_client.transport.admin import AdminCalls
    from rocketsim_client.transport.consumption import ConsumptionCalls
    from rocketsim_client.transport.sends import SendCalls
    from rocketsim_client.transport.transactions import TransactionCalls


class Transport(Protocol):
    """Several threads may use one transport, and so may a forked child of the process that made it."""

    @property
    def routes(self) -> RouteCalls: ...
    @property
    def sends(self) -> "SendCalls": ...
    @property
    def reads(self) -> ReadCalls: ...
    @property
    def consumption(self) -> "ConsumptionCalls": ...
    @property
    def transactions(self) -> "TransactionCalls": ...
    @property
    def admin(self) -> "AdminCalls": ...

    def close(self, why: RocketSimError | None = None) -> None:
        """Closes the connections.  Calls that are under way and all later calls raise `why`, or ClientClosed if it is
        None."""
