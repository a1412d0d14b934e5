"""ConnectedProducers: finds the producers, of any protocol, that the broker may ask how their transactions end."""

from rocketsim_proto.records.record import PROPERTY_PRODUCER_GROUP

from broker_service.transactions.transactions import Check, Producers

# The client id of a half message that came over the remoting protocol begins with this text.  A client of the remoting
# protocol sends no id of its own.
REMOTING = "remoting:"


class ConnectedProducers:
    """Asks a connected producer how a transaction has ended.  The producer that began the transaction has used gRPC or
    the remoting protocol, and a producer of the same protocol is asked.

    `remoting` has the producers that are connected over the remoting protocol, and is None if `remotingPort` is off.
    They are also asked about half messages that a broker of RocketMQ stored in this log.
    """

    def __init__(self, grpc: Producers) -> None:
        self._grpc = grpc
        self.remoting: Producers | None = None

    async def ask(self, check: Check) -> bool:
        came_in_remoting = check.client_id.startswith(REMOTING)
        of_rocketmq = not check.client_id and PROPERTY_PRODUCER_GROUP in check.half.properties
        if (came_in_remoting or of_rocketmq) and self.remoting is not None and await self.remoting.ask(check):
            return True
        return not came_in_remoting and await self._grpc.ask(check)


def remoting_client_id(user: str, group: str) -> str:
    """Returns the client id that is stored with the half messages of this user and producer group."""
    return f"{REMOTING}{user}/{group}"
