"""Polls: keeps the pops that wait for a message.

A new message wakes one waiting pop of each group.  A woken pop wakes the next one, because there may be more messages.
"""

import asyncio
from collections.abc import Iterable

from broker_service.errors import SystemBusy
from broker_service.state.moves import retry_topic

A_CLIENTS_SHARE = 4  # one client may hold a quarter of all waiting pops
# The oldest waiter comes first; the result False ends a wait without a message.
Waiters = dict[asyncio.Future[bool], None]


class Polls:
    """Keeps waiting pops.  A pop awaits nothing between its scan and its registration here, and appends run on the same
    event loop, so no pop misses a message.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held_by: dict[str, Waiters] = {}  # client id -> its waiting pops
        self._waiting: dict[str, dict[str, Waiters]] = {}  # topic or retry topic -> group -> its waiting pops
        self.held = 0
        self.closed = False

    async def wait(self, group: str, topic: str, timeout_s: float, client_id: str) -> bool:
        """Waits until a message may have come, and then returns True.  Returns False at the time-out, or if the client
        or the broker ends the wait.
        """
        if self.closed or timeout_s <= 0:
            return False
        if self.held >= self._most:
            raise SystemBusy(f"{self.held} pops are held already (maxLongPolls); pop again in a moment")
        of_client = self._held_by.get(client_id, {})
        if len(of_client) >= max(1, self._most // A_CLIENTS_SHARE):
            raise SystemBusy(
                f"client {client_id} holds {len(of_client)} pops already, its full share of maxLongPolls; "
                "pop again in a moment"
            )
        notified: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        topics = topic, retry_topic(group, topic)
        for name in topics:
            self._waiting.setdefault(name, {}).setdefault(group, {})[notified] = None
        self._held_by.setdefault(client_id, {})[notified] = None
        self.held += 1
        try:
            async with asyncio.timeout(timeout_s):
                await notified
            return notified.result() and not self.closed
        except TimeoutError:
            return _is_notified(notified) and not self.closed
        except asyncio.CancelledError:
            if _is_notified(notified):
                self.notify(group, topic)  # the cancelled call cannot take the message, so another pop is woken
            raise
        finally:
            self.held -= 1
            del self._held_by[client_id][notified]
            if not self._held_by[client_id]:
                del self._held_by[client_id]
            for name in topics:
                self._remove(name, group, notified)

    def arrived(self, queues: Iterable[tuple[str, int]]) -> None:
        for topic in {topic for topic, _ in queues}:
            for waiters in self._waiting.get(topic, {}).values():
                _notify_one(waiters)

    def notify(self, group: str, topic: str) -> None:
        _notify_one(self._waiting.get(topic, {}).get(group, {}))

    def end(self, group: str, topic: str, client_id: str) -> None:
        """Ends the client's waiting pops, except those that a message has woken already."""
        of_client = self._held_by.get(client_id, {})
        for notified in self._waiting.get(topic, {}).get(group, {}).keys() & of_client.keys():
            if not notified.done():
                notified.set_result(False)

    def close(self) -> None:
        """Ends all waiting pops.  Later calls of `wait` return at once."""
        self.closed = True
        for groups in self._waiting.values():
            for waiters in groups.values():
                for notified in waiters:
                    if not notified.done():
                        notified.set_result(False)

    def _remove(self, topic: str, group: str, notified: asyncio.Future[bool]) -> None:
        groups = self._waiting[topic]
        del groups[group][notified]
        if not groups[group]:
            del groups[group]
            if not groups:
                del self._waiting[topic]


def _is_notified(poll: asyncio.Future[bool]) -> bool:
    return poll.done() and not poll.cancelled() and poll.result()


def _notify_one(waiters: Waiters) -> None:
    for notified in waiters:
        if not notified.done():
            notified.set_result(True)
            return
