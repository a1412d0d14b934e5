"""UnsignedRequests limits how many unsigned requests this process receives at once.

gRPC keeps a request in memory from its first byte on, even if the client never sends the end.  A call that needs a
signature and has none is refused by its headers, and its request is never received.  A call that anybody may make needs
no signature, so its headers are no reason to refuse it, and its request must be received.  At most MOST requests
without a signature are received at the same time, and the other calls wait for their turn.  While a call waits, gRPC
has no more than one HTTP/2 window of its request in memory (`server.UNREAD_BYTES`).
"""

import asyncio
from typing import Any
from weakref import WeakValueDictionary

import grpc

from broker_service.errors import SystemBusy

MOST = 2  # most requests that are received at once
MOST_WAITING = 1000
MOST_WAITING_OF_ONE = 100  # most waiting calls of one connection
PATIENCE_S = 0.2  # while other requests wait, a request must arrive within two periods of this length
ROUNDS = 5  # while no other request waits, a request must arrive within this number of periods (PATIENCE_S)


class UnsignedRequests:
    """The limit for all ports of a process.

    Only one request per connection is received at a time, so that no connection can take all turns.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(MOST)
        self._connections: WeakValueDictionary[str, _Connection] = WeakValueDictionary()
        self._waiting = 0

    async def receive(self, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        """Waits for the call's turn, and returns the bytes of its next request, or EOF; raises SystemBusy."""
        peer = context.peer()
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._connections[peer] = _Connection()
        if self._waiting >= MOST_WAITING or connection.waiting >= MOST_WAITING_OF_ONE:
            raise SystemBusy(f"{self._waiting} calls without a signature wait to be received; try again later")
        self._waiting += 1
        connection.waiting += 1
        try:
            await connection.turn.acquire()
        finally:
            self._waiting -= 1
            connection.waiting -= 1
        try:
            self._waiting += 1
            try:
                await self._places.acquire()
            finally:
                self._waiting -= 1
            try:
                return await self._received(context)
            finally:
                self._places.release()
        finally:
            connection.turn.release()

    async def _received(self, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        reading = asyncio.ensure_future(context.read())
        try:
            for number in range(ROUNDS):
                await asyncio.wait([reading], timeout=PATIENCE_S)
                if reading.done():
                    return reading.result()
                if self._waiting and number:
                    break
        finally:
            reading.cancel()
        raise SystemBusy("the unsigned request did not arrive completely in time; send it again")


class _Connection:
    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting = 0
