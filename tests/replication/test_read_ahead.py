"""A slave asks for the next message before it works on a large one."""

import asyncio
from contextlib import aclosing

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from broker_service.runtime.peer_call import PeerLost, read_ahead

SMALL, LARGE = b"small", b"a large message"


class Stream:
    """Gives its messages one after the other, and counts the reads that have begun."""

    def __init__(self, *messages: object) -> None:
        self.reads = 0
        self.cancelled = 0
        self._messages = list(messages)

    async def read(self) -> object:
        self.reads += 1
        if not self._messages:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        message = self._messages.pop(0)
        if isinstance(message, Exception):
            raise message
        return message


def is_large(message: bytes) -> bool:
    return len(message) >= len(LARGE)


async def test_the_next_message_is_read_while_the_caller_works_on_a_large_one():
    stream = Stream(SMALL, LARGE, LARGE, SMALL, grpc.aio.EOF)
    seen = [(message, stream.reads) async for message in read_ahead(stream, is_large)]
    assert seen == [(SMALL, 1), (LARGE, 3), (LARGE, 4), (SMALL, 4)]
    assert stream.reads == 5


async def test_a_caller_that_stops_leaves_no_read_behind():
    stream = Stream(LARGE)
    async with aclosing(read_ahead(stream, is_large)) as messages:
        assert await anext(messages) == LARGE
        assert (stream.reads, stream.cancelled) == (2, 0)
    assert stream.cancelled == 1


async def test_a_failure_is_raised_after_the_messages_that_came_before_it():
    lost = AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), details="reset")
    messages = read_ahead(Stream(LARGE, lost), is_large)
    assert await anext(messages) == LARGE
    with pytest.raises(PeerLost, match="UNAVAILABLE reset"):
        await anext(messages)
    with pytest.raises(PeerLost, match="not a message of this service"):
        await anext(read_ahead(Stream(None), is_large))
