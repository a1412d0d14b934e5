"""UnsignedRequests: how many requests that nobody has signed this process receives at once.

gRPC keeps a request in memory from its first byte on, also one that is never sent to its end.  A call that needs a
signature and has none is refused by its headers, so that its request is never received.  The calls that anybody may
make come here: each waits for its turn, and until then gRPC holds no more of it than a window of HTTP/2
(`server.UNREAD_BYTES`).
"""

import asyncio
from typing import Any
from weakref import WeakValueDictionary

import grpc

from broker_service.errors import SystemBusy

MOST = 2  # requests that are received at once
MOST_WAITING = 1000
MOST_WAITING_OF_ONE = 100  # of one connection
PATIENCE_S = 0.2  # for one request, while others wait
ROUNDS = 5  # of that, while none does


class UnsignedRequests:
    """For all ports of a process.  One request of a connection is received at a time, so that each connection gets its
    turn whatever the others send."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(MOST)
        self._connections: WeakValueDictionary[str, _Connection] = WeakValueDictionary()
        self._waiting = 0

    async def receive(self, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        """The next request of a call as it came, or EOF after the last.  Raises SystemBusy."""
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
        raise SystemBusy("the request has not come to its end in time, and the call is not signed; send it again")


class _Connection:
    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting = 0
