"""Endpoint: where RocketMQ 5's clients reach this broker, and from where they call.  `Port` keeps it up to date."""

from broker_service.wire.v2.front import Front


class Endpoint:
    def __init__(self) -> None:
        self.own_address = ""  # host:port, also after the port was closed; empty before it is opened first
        self.is_open = False
        self.front: Front | None = None  # None: clients connect to gRPC itself

    @property
    def address(self) -> str:
        """host:port; empty while the port is closed."""
        return self.own_address if self.is_open else ""

    def client_of(self, peer: str) -> str:
        """The address of a caller, as gRPC writes it, by what `context.peer()` says."""
        return self.front.client_of(peer) if self.front is not None else peer

    def sender_of(self, peer: str) -> str:
        """As `client_of`, for records: also of a connection that has just ended."""
        return self.front.sender_of(peer) if self.front is not None else peer
