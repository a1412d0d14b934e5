"""The seam to the cluster: what the client asks of name servers and brokers, over whatever protocol.

A transport is six sets of calls, each a protocol of its own: `RouteCalls`, `SendCalls`, `ReadCalls`,
`ConsumptionCalls`, `TransactionCalls`, `AdminCalls`.  Calls take messages as columns and give record bytes.  Every call
of a broker names an address and a timeout, tries once, and raises the errors of `errors.py`.  A transport that has no
such call raises NotSupported.
"""

from typing import TYPE_CHECKING, Protocol

from rocketsim_client.transport.reads import ReadCalls
from rocketsim_client.transport.routes import RouteCalls

if TYPE_CHECKING:  # a reader needs none of them
    from rocketsim_client.transport.admin import AdminCalls
    from rocketsim_client.transport.consumption import ConsumptionCalls
    from rocketsim_client.transport.sends import SendCalls
    from rocketsim_client.transport.transactions import TransactionCalls


class Transport(Protocol):
    """Thread-safe; it may be used on in a forked child."""

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

    def close(self) -> None:
        """Ends all calls that are under way."""
