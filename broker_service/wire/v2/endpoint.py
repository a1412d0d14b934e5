"""Endpoint: knows the address of the port for RocketMQ 5's clients, and the addresses of its clients.  `Port` updates
it.
"""

from broker_service.wire.v2.front import Front


class Endpoint:
    def __init__(self) -> None:
        self.own_address = ""  # host:port, even while the port is closed; empty until the port is first opened
        self.is_open = False
        self.front: Front | None = None  # None if clients connect directly to gRPC

    @property
    def address(self) -> str:
        """Returns the port's address as host:port; empty while the port is closed."""
        return self.own_address if self.is_open else ""

    def client_of(self, peer: str) -> str:
        """Returns a client's address in gRPC's form.  `peer` is the value of `context.peer()`."""
        return self.front.client_of(peer) if self.front is not None else peer

    def sender_of(self, peer: str) -> str:
        """Returns a client's address for a record.  Unlike `client_of`, this method also knows connections that have
        just ended.
        """
        return self.front.sender_of(peer) if self.front is not None else peer
