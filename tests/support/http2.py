"""Makes a gRPC call frame by frame over HTTP/2, so that its request can stay incomplete.  gRPC's own clients send only
whole messages.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END, ACK, END_HEADERS = 1, 1, 4


class HalfSent:
    """A connection.  `begin` starts a call that promises a message of `size` bytes, and `send` sends as much of it as
    the server allows.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._changed = asyncio.Condition()
        self._window = self._initial = 65_535
        self._windows: dict[int, int] = {}  # of each stream
        self.ended: dict[int, bytes] = {}  # the last headers of a stream, as they were received
        self._next = 1
        writer.write(PREFACE)
        self._write(SETTINGS, 0, 0)

    async def begin(self, method: str, size: int) -> int:
        fields = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "x"}
        fields |= {"te": "trailers", "content-type": "application/grpc"}
        stream, self._next = self._next, self._next + 2
        self._windows[stream] = self._initial
        headers = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
        self._write(HEADERS, END_HEADERS, stream, headers)
        await self.send(stream, b"\0" + size.to_bytes(4, "big"))
        return stream

    async def send(self, stream: int, data: bytes) -> None:
        """Sends the data, and returns when all is sent or the call has ended."""
        while data:
            async with self._changed:
                await self._changed.wait_for(lambda: stream in self.ended or self._room(stream) > 0)
                if stream in self.ended:
                    return
                part, data = data[: self._room(stream)], data[self._room(stream) :]
                self._window -= len(part)
                self._windows[stream] -= len(part)
                self._write(DATA, 0, stream, part)
            await self._writer.drain()

    async def end_of(self, stream: int) -> bytes:
        async with self._changed:
            await self._changed.wait_for(lambda: stream in self.ended)
        return self.ended[stream]

    def _room(self, stream: int) -> int:
        return min(self._window, self._windows[stream], 16_384)

    def _write(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
        self._writer.write(head + payload)

    async def read(self) -> None:
        """Reads frames until the connection ends."""
        while True:
            head = await self._reader.readexactly(9)
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            async with self._changed:
                self._take(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
                self._changed.notify_all()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE and stream:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE:
            self._window += int.from_bytes(payload, "big")
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                if int.from_bytes(payload[at : at + 2], "big") == 4:
                    self._initial = int.from_bytes(payload[at + 2 : at + 6], "big")
            self._write(SETTINGS, ACK, 0)
        elif kind == PING and not flags & ACK:
            self._write(PING, ACK, 0, payload)
        elif kind == RST_STREAM or (kind == HEADERS and flags & END):
            self.ended.setdefault(stream, payload)


def _text(value: str) -> bytes:
    assert len(value) < 127
    return bytes((len(value),)) + value.encode()


@asynccontextmanager
async def half_sent(address: str) -> AsyncIterator[HalfSent]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    made = HalfSent(reader, writer)
    reading = asyncio.create_task(made.read())
    try:
        yield made
    finally:
        reading.cancel()
        writer.close()
