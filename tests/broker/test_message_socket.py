"""MessageSocket: whole messages, whatever the parts in which their bytes arrive, and whoever does not read."""

import asyncio
import random
import socket
import struct
import threading

import pytest

from broker_service.errors import RocketSimError
from broker_service.runtime import message_socket
from broker_service.runtime.message_socket import QUEUED_BYTES, SMALL_BYTES, UNSENT_BYTES, MessageSocket
from broker_service.runtime.peer_call import PeerLost
from testbed.polling import until

HEAD = struct.Struct("<I")
LARGEST = 64 << 20


def size_of(head: memoryview) -> int:
    (size,) = HEAD.unpack(head)
    if size > LARGEST:
        raise RocketSimError(f"{size} bytes")
    return HEAD.size + int(size)


def message(size: int, seed: int = 0) -> bytes:
    return HEAD.pack(size) + random.Random(seed).randbytes(size)


def ends() -> tuple[MessageSocket, socket.socket]:
    one, other = socket.socketpair()
    other.setblocking(False)
    return MessageSocket(one, HEAD.size, size_of), other


async def read_all(reader: MessageSocket) -> list[bytes]:
    found = []
    while (received := await reader.read()) is not None:
        found.append(bytes(received))
    return found


SIZES = [0, 1, 3, SMALL_BYTES - 4, SMALL_BYTES - 3, SMALL_BYTES, 5, 300_000, 0, 70_000, 2]


@pytest.mark.parametrize("part", [1 << 20, SMALL_BYTES, SMALL_BYTES + 1, 4099, 3])
async def test_messages_arrive_whole_in_whatever_parts_their_bytes_come(part: int) -> None:
    reader, other = ends()
    sizes = SIZES if part > 3 else [0, 1, 3, 7, 2, 0]
    sent = [message(size, seed) for seed, size in enumerate(sizes)]
    data, loop = b"".join(sent), asyncio.get_running_loop()

    async def send() -> None:
        for at in range(0, len(data), part):
            await loop.sock_sendall(other, data[at : at + part])
            await asyncio.sleep(0)
        other.close()

    sending = asyncio.create_task(send())
    assert await read_all(reader) == sent
    await sending
    reader.close()


async def test_a_connection_that_ends_within_a_message_is_an_error_behind_the_messages_before_it() -> None:
    reader, other = ends()
    other.send(message(10) + message(10)[:-1])
    other.close()
    assert bytes(await reader.read() or b"") == message(10)
    for _ in range(2):
        with pytest.raises(PeerLost, match="within a message"):
            await reader.read()
    reader.close()


async def test_an_impossible_head_is_an_error_behind_the_messages_before_it() -> None:
    reader, other = ends()
    other.send(message(10) + HEAD.pack(LARGEST + 1))
    assert bytes(await reader.read() or b"") == message(10)
    with pytest.raises(RocketSimError, match=f"{LARGEST + 1} bytes"):
        await reader.read()
    reader.close()
    other.close()


async def test_a_reset_connection_is_an_error() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listening.getsockname())
    other, _ = listening.accept()
    reader = MessageSocket(one, HEAD.size, size_of)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    with pytest.raises(PeerLost, match="has broken"):
        await reader.read()
    with pytest.raises(PeerLost, match="has broken"):
        await reader.write(b"lost")
    reader.close()
    listening.close()


async def test_nothing_is_received_while_enough_waits_to_be_read() -> None:
    reader, other = ends()
    sent = [message(1 << 20, seed) for seed in range(2 * (QUEUED_BYTES >> 20))]
    sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(other, b"".join(sent)))
    assert bytes(await reader.read() or b"") == sent[0]
    most = 0
    for _ in range(1000):
        await asyncio.sleep(0)
        most = max(most, reader.queued_bytes)
    assert QUEUED_BYTES <= most < QUEUED_BYTES + (2 << 20) and not sending.done()
    assert [bytes(await reader.read() or b"") for _ in sent[1:]] == sent[1:]
    await sending
    reader.close()
    other.close()


async def turns() -> None:
    """Lets every task do what it can do without waiting."""
    for _ in range(20):
        await asyncio.sleep(0)


async def received_from(other: socket.socket, size: int) -> bytes:
    received, loop = bytearray(), asyncio.get_running_loop()
    while len(received) < size:
        part = await loop.sock_recv(other, 1 << 20)
        assert part, "the connection has ended"
        received += part
    return bytes(received)


async def test_the_callers_memory_may_change_as_soon_as_a_write_returns() -> None:
    """The log bytes that a master sends are in a mapped file, which may be deleted."""
    writer, other = ends()
    memory = bytearray(b"a") * (8 << 20)
    await writer.write(b"head", memoryview(memory))
    memory[:] = bytes(len(memory))
    assert await received_from(other, 4 + len(memory)) == b"head" + b"a" * len(memory)
    writer.close()
    other.close()


async def test_a_writer_waits_while_much_is_unsent_and_nothing_is_lost_if_it_is_cancelled() -> None:
    writer, other = ends()
    sent = [message(UNSENT_BYTES // 2, seed) for seed in range(4)] + [message(3, 9)]
    await writer.write(sent[0])
    await writer.write(sent[1])
    for one in sent[2:]:
        waiting = asyncio.create_task(writer.write(one))
        await turns()
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    flushing = asyncio.create_task(writer.flush())
    assert await received_from(other, sum(map(len, sent))) == b"".join(sent)
    await flushing
    await writer.write(message(5))
    assert await received_from(other, 4 + 5) == message(5)
    writer.close()
    other.close()


async def test_a_writer_that_waits_hears_that_the_peer_is_gone() -> None:
    writer, other = ends()
    writing = asyncio.create_task(writer.write(bytes(UNSENT_BYTES * 2)))
    await turns()
    other.close()
    with pytest.raises(PeerLost, match="has broken"):
        await writing
    for call in (writer.flush(), writer.write(b"more")):
        with pytest.raises(PeerLost, match="has broken"):
            await call
    writer.close()


async def test_a_writer_that_waits_while_this_side_closes_is_not_told_that_all_was_sent() -> None:
    writer, other = ends()
    calls = [asyncio.create_task(writer.write(bytes(UNSENT_BYTES * 2))) for _ in range(2)]
    await turns()
    calls.append(asyncio.create_task(writer.flush()))
    await turns()
    writer.close()
    for call in (writer.write(b"more"), *calls):
        with pytest.raises(PeerLost, match="this side has closed the connection"):
            await call
    other.close()


async def test_closing_ends_a_call_to_the_kernel_that_waits_for_the_peer() -> None:
    """The interpreter waits for its threads before it ends."""
    before = {*threading.enumerate()}
    writer, other = ends()
    for _ in range(3):
        await writer.write(bytes(UNSENT_BYTES // 4))
    (sending,) = {*threading.enumerate()} - before
    writer.close()
    await until(lambda: not sending.is_alive(), "the thread has ended")
    other.close()


def test_what_follows_an_interrupted_write_is_the_rest_of_it() -> None:
    parts = [memoryview(b"head"), memoryview(b""), memoryview(b"records"), memoryview(b"more")]
    whole = b"".join(parts)
    assert [message_socket.without_first(parts, sent) for sent in range(len(whole) + 1)] == [
        whole[sent:] for sent in range(len(whole) + 1)
    ]
