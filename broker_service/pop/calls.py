"""ConsumptionCalls: the calls that a servicer makes.  `Consumption` has them; tests may fake them."""

from collections.abc import Sequence
from typing import Protocol

from broker_service.pop.model import Changed, ChangeInvisible, Pop, Popped, Settled


class ConnectedClients(Protocol):
    def is_connected(self, client_id: str) -> bool: ...


class ConsumptionCalls(Protocol):
    """Raises RocketSimError for a refusal.  `timeout_s` is the time that the caller has left."""

    async def pop(self, pop: Pop) -> Popped: ...

    def end_polls(self, group: str, topic: str, client_id: str) -> None:
        """Answers the client's pops that wait for a message."""

    async def ack(self, group: str, topic: str, handles: Sequence[str], timeout_s: float = 3.0) -> list[Settled]:
        """Ends these deliveries; returns one result for each handle.  A second ack of the same delivery is OK."""

    async def change_invisible(self, change: ChangeInvisible) -> Changed: ...

    async def forward_to_dlq(self, group: str, topic: str, handle: str, timeout_s: float = 3.0) -> Settled:
        """Moves the message to `%DLQ%<group>` now.  A second call for the same delivery is OK and moves nothing."""

    def give_back(
        self, group: str, topic: str, handles: Sequence[str], begun: int = 0, deadlines_ms: Sequence[int] = ()
    ) -> None:
        """Undoes the deliveries that a call did not send completely before it ended.

        The sending of the first `begun` messages had begun, so their deliveries count as attempts, and the last of them
        waits for its back-off.  All others are delivered again at once.  `deadlines_ms` are the deliveries' deadlines
        in the call's answer.
        """

    def client_gone(self, client_id: str) -> None:
        """Ends the client's renewed deliveries now.  Its other deliveries keep their deadlines."""
