"""PushSubscriptions: knows which groups read which topics with push consumers of RocketMQ 4.

Push consumers of a group divide the queues among themselves, and commit offsets.  If the group also popped the topic,
each message would be delivered twice: to a push consumer, and by a pop.
"""

from collections.abc import Iterable

from broker_service.errors import NoPermission

Subscription = tuple[str, str]  # group, topic


class PushSubscriptions:
    def __init__(self) -> None:
        self._of_client: dict[str, frozenset[Subscription]] = {}
        self._clients: dict[Subscription, set[str]] = {}

    def subscribe(self, client_id: str, subscriptions: Iterable[Subscription]) -> None:
        """Replaces all subscriptions of a client.  A client with no subscriptions is forgotten."""
        for one in self._of_client.pop(client_id, ()):
            self._clients[one].discard(client_id)
            if not self._clients[one]:
                del self._clients[one]
        if new := frozenset(subscriptions):
            self._of_client[client_id] = new
            for one in new:
                self._clients.setdefault(one, set()).add(client_id)

    def reads(self, group: str, topic: str) -> bool:
        return (group, topic) in self._clients

    def check_pop(self, group: str, topic: str) -> None:
        if clients := self._clients.get((group, topic)):
            raise NoPermission(
                f"group {group} reads topic {topic} with push consumers of RocketMQ 4 ({min(clients)} is one), and "
                "would get each message twice if it popped, too: stop them first, or pop with a group of your own"
            )
