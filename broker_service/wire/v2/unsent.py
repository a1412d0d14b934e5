"""Unsent: how many bytes of messages are being sent to consumers.  Pure.

A client that does not read its answers keeps them in the broker's memory, until it goes or its calls' time is over.
"""

from broker_service.errors import SystemBusy

MOST_BYTES = 256 << 20
SHARE = 4  # a client may have a quarter, so that it takes no other's place


class Unsent:
    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._bytes = 0
        self._of: dict[str, int] = {}

    def check(self, client_id: str, size: int = 1) -> None:
        """Raises SystemBusy if there is no room for so many bytes more; there is for one answer of any size."""
        own = self._of.get(client_id, 0)
        if own and own + size > self._most // SHARE:
            raise SystemBusy(f"this client has {own} bytes of messages to read already; receive again when it has")
        if self._bytes and self._bytes + size > self._most:
            raise SystemBusy(f"{self._bytes} bytes of messages are being sent to clients; receive again in a moment")

    def take(self, client_id: str, size: int) -> int:
        """Returns `size`, for `give`; raises as `check`."""
        self.check(client_id, size)
        self._bytes += size
        self._of[client_id] = self._of.get(client_id, 0) + size
        return size

    def give(self, client_id: str, size: int) -> None:
        self._bytes -= size
        self._of[client_id] -= size
        if not self._of[client_id]:
            del self._of[client_id]
