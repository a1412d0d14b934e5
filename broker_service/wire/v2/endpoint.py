"""Endpoint: the address of the port for RocketMQ 5's clients, and the addresses of the clients.  `Port` updates it."""

from broker_service.wire.v2.front import Front


class Endpoint:
    def __init__(self) -> None:
        self.own_address = ""  # host:port, also while the port is closed; empty before it was opened first
        self.is_open = False
        self.front: Front | None = None  # None: clients connect to gRPC itself

    @property
    def address(self) -> str:
        """Returns host:port; empty while the port is closed."""
        return self.own_address if self.is_open else ""

    def client_of(self, peer: str) -> str:
        """Returns the address of a client, in gRPC's form, for the value of `context.peer()`."""
        return self.front.client_of(peer) if self.front is not None else peer

    def sender_of(self, peer: str) -> str:
        """Returns the same for the address in a record, also for a connection that has just ended."""
        return self.front.sender_of(peer) if self.front is not None else peer
