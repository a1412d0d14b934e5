"""Consumers: remembers, in memory only, which clients have consumed with each group lately."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

LATELY_S = 60.0  # a client that pops does so again within this time
Way = Literal["pop", "commit", "heartbeat"]
# A client is forgotten this many seconds after it was last seen.  Heartbeats of RocketMQ 4's clients expire after two
# minutes.  Spark commits once per batch, which may take minutes.
KEPT_S: dict[Way, float] = {"pop": LATELY_S, "heartbeat": 120.0, "commit": 600.0}
# Limit for each group, because a client could invent any number of ids; further clients are not remembered.
MAX_CLIENTS = 1_000


@dataclass(frozen=True, slots=True)
class Seen:
    """When and how a client was last seen; `at_s` is in monotonic seconds.  `messages` is the number of messages by
    which the client's last commit moved the offsets.
    """

    client_id: str
    way: Way
    at_s: float
    messages: int = 0

    def is_kept(self, now_s: float) -> bool:
        return now_s - self.at_s <= KEPT_S[self.way]


class Consumers:
    def __init__(self) -> None:
        self._seen: dict[str, dict[str, Seen]] = {}  # group -> client id -> when the client was last seen

    def popped(self, group: str, client_id: str, now_s: float) -> None:
        self._note(group, Seen(client_id, "pop", now_s))

    def committed(self, group: str, client_id: str, messages: int, now_s: float) -> None:
        self._note(group, Seen(client_id, "commit", now_s, messages))

    def sent_heartbeat(self, group: str, client_id: str, now_s: float) -> None:
        self._note(group, Seen(client_id, "heartbeat", now_s))

    def left(self, group: str, client_id: str) -> None:
        """Forgets a client that has announced that it leaves the group."""
        self._seen.get(group, {}).pop(client_id, None)

    def of(self, group: str, now_s: float) -> list[Seen]:
        """Returns the clients of a group, sorted by client id."""
        clients = self._seen.get(group, {})
        return [clients[client_id] for client_id in sorted(clients) if clients[client_id].is_kept(now_s)]

    def counts(self, now_s: float) -> dict[str, int]:
        """Returns how many clients of each group have popped lately.  Also forgets clients that were not seen for too
        long, so the caller must call this method periodically.
        """
        kept = {
            group: {seen.client_id: seen for seen in clients.values() if seen.is_kept(now_s)}
            for group, clients in self._seen.items()
        }
        self._seen = {group: clients for group, clients in kept.items() if clients}
        return dict(self._counts())

    def _counts(self) -> Iterator[tuple[str, int]]:
        for group, clients in self._seen.items():
            if count := sum(seen.way == "pop" for seen in clients.values()):
                yield group, count

    def _note(self, group: str, seen: Seen) -> None:
        clients = self._seen.setdefault(group, {})
        if seen.client_id in clients or len(clients) < MAX_CLIENTS:
            clients[seen.client_id] = seen
