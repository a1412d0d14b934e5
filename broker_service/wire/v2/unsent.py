"""Unsent: counts and limits the bytes of messages that are being sent to consumers.

The answers to a client that does not read stay in the broker's memory until the client's calls end.
"""

from broker_service.errors import SystemBusy

MOST_BYTES = 256 << 20
SHARE = 4  # one client may take a quarter of all bytes, so that it cannot block the others


class Unsent:
    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._bytes = 0
        self._of: dict[str, int] = {}

    def check(self, client_id: str, size: int = 1) -> None:
        """Raises SystemBusy if the limits do not allow `size` more bytes.  An answer may have any size while no
        other bytes are being sent.
        """
        own = self._of.get(client_id, 0)
        if own and own + size > self._most // SHARE:
            raise SystemBusy(f"this client has not read {own} bytes of messages yet; read them, and then receive again")
        if self._bytes and self._bytes + size > self._most:
            raise SystemBusy(f"{self._bytes} bytes of messages are being sent to clients; receive again in a moment")

    def take(self, client_id: str, size: int) -> int:
        """Adds `size` bytes.  Returns `size`, which the caller must pass to `give` later.  Raises SystemBusy."""
        self.check(client_id, size)
        self._bytes += size
        self._of[client_id] = self._of.get(client_id, 0) + size
        return size

    def give(self, client_id: str, size: int) -> None:
        self._bytes -= size
        self._of[client_id] -= size
        if not self._of[client_id]:
            del self._of[client_id]
