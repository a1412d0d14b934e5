"""Consumers: counts the clients of each group that have popped within the last minute."""

LATELY_S = 60.0  # longer than a client waits between two pops


class Consumers:
    def __init__(self) -> None:
        self._last: dict[str, dict[str, float]] = {}  # group -> client id -> time of its last pop

    def popped(self, group: str, client_id: str, now: float) -> None:
        self._last.setdefault(group, {})[client_id] = now

    def counts(self, now: float) -> dict[str, int]:
        """Returns the number of clients of each group, and forgets clients that have not popped for `LATELY_S`."""
        for clients in self._last.values():
            for client_id in [one for one, last in clients.items() if now - last > LATELY_S]:
                del clients[client_id]
        self._last = {group: clients for group, clients in self._last.items() if clients}
        return {group: len(clients) for group, clients in self._last.items()}
