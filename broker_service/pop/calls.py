"""ConsumptionCalls: the calls that a servicer makes.  `Consumption` has them; tests may fake them."""

from collections.abc import Sequence
from typing import Protocol

from broker_service.pop.model import Changed, ChangeInvisible, Pop, Popped, Settled


class ConnectedClients(Protocol):
    def is_connected(self, client_id: str) -> bool: ...


class ConsumptionCalls(Protocol):
    """Refusals are RocketSimErrors; `timeout_s` is the rest of the caller's time."""

    async def pop(self, pop: Pop) -> Popped: ...

    def end_polls(self, group: str, topic: str, client_id: str) -> None:
        """The client's pops that are held are answered now."""

    async def ack(self, group: str, topic: str, handles: Sequence[str], timeout_s: float = 3.0) -> list[Settled]:
        """One result for each handle.  A second ack of the same delivery is OK, too."""

    async def change_invisible(self, change: ChangeInvisible) -> Changed: ...

    async def forward_to_dlq(self, group: str, topic: str, handle: str, timeout_s: float = 3.0) -> Settled:
        """Moves the message to `%DLQ%<group>` now.  A second call for the same delivery is OK and moves nothing."""

    def give_back(
        self, group: str, topic: str, handles: Sequence[str], begun: int = 0, deadlines_ms: Sequence[int] = ()
    ) -> None:
        """Gives back what a call did not send before it ended.

        The first `begun` count as an attempt, and the last of these waits for its back-off.  All others are delivered
        again at once.  `deadlines_ms`: those of the call's answer.
        """

    def client_gone(self, client_id: str) -> None:
        """The client's renewed deliveries are delivered to others at once; its other ones keep their deadlines."""
