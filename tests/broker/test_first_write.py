"""This process cancels a stream while the stream gets its first message."""

import asyncio
import gc
from typing import Any

import pytest

from broker_service.runtime import rpc_errors
from broker_service.runtime.rpc_errors import write_first


class Stream:
    """A context whose write ends when the test says so."""

    def __init__(self) -> None:
        self.ends: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def write(self, _: object) -> None:
        await self.ends


async def under_way(stream: Any) -> "asyncio.Task[None]":
    call = asyncio.create_task(write_first(stream, b"first"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.sleep(0)
    assert not call.done(), "it waits for the write"
    return call


@pytest.mark.parametrize("error", [None, ConnectionResetError("the client is gone")])
async def test_a_stream_is_cancelled_when_its_first_write_has_ended_or_failed(error: Exception | None) -> None:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    stream = Stream()
    call = await under_way(stream)
    if error is None:
        stream.ends.set_result(None)
    else:
        stream.ends.set_exception(error)
    with pytest.raises(asyncio.CancelledError):
        await call
    del stream, call
    gc.collect()
    assert not unheard, "nobody else asks for the error of the write"


async def test_a_first_write_that_does_not_end_delays_the_cancellation_only_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rpc_errors, "FIRST_WRITE_S", 0.001)
    stream = Stream()
    call = await under_way(stream)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, 60)
    stream.ends.set_result(None)


async def test_a_second_cancel_does_not_wait() -> None:
    stream = Stream()
    call = await under_way(stream)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call, 60)
    stream.ends.set_result(None)
