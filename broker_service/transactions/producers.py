"""ConnectedProducers: finds producers of all protocols that the broker may ask how their transactions end."""

from rocketsim_proto.records.record import PROPERTY_PRODUCER_GROUP

from broker_service.transactions.transactions import Check, Producers

# The client ids of half messages from the remoting protocol begin with this.  Its clients send no id with a message.
REMOTING = "remoting:"


class ConnectedProducers:
    """Asks a producer of the protocol in which the transaction came.

    `remoting` has the producers of the remoting protocol while its port is open.  These producers are also asked about
    half messages of a RocketMQ that has used this store.
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
    """Returns the client id for half messages that this user has sent with this producer group."""
    return f"{REMOTING}{user}/{group}"
