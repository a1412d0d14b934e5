"""A scripted RocketMQ master: its HA port and, on another port, the remoting requests that a slave sends."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from rocketsim_proto.remoting.codes import RequestCode
from rocketsim_proto.remoting.frame import Header

from tests.support.remoting_peer import RemotingPeer, answer_to

HEAD = struct.Struct(">qi")


class HaPort:
    """Sends `log` to each slave, in frames of `frame_bytes`.  A test may change every attribute while it serves."""

    def __init__(self, log: bytes, min_offset: int = 0) -> None:
        self.log = bytearray(log)
        self.min_offset = min_offset  # the log offset of the first byte of `log`
        self.frame_bytes = 32 << 10
        self.reports: list[int] = []
        self.connections = 0
        self.port = 0
        self.raw: bytes | None = None  # bytes that are sent in place of frames, before the connection ends
        self.silent = False
        self._grown = asyncio.Event()

    @property
    def end_offset(self) -> int:
        return self.min_offset + len(self.log)

    def append(self, data: bytes) -> None:
        self.log += data
        self._grown.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        listening: asyncio.Task[None] | None = None
        try:
            (at,) = struct.unpack(">q", await reader.readexactly(8))
            self.reports.append(at)
            listening = asyncio.create_task(self._listen(reader))
            if self.silent:
                await listening
                return
            if self.raw is not None:
                writer.write(self.raw)
                await writer.drain()
                return
            while not listening.done():
                begin = at - self.min_offset
                data = bytes(self.log[begin : begin + self.frame_bytes]) if begin >= 0 else b""
                writer.write(HEAD.pack(at, len(data)) + data)
                at += len(data)
                await writer.drain()
                if not data:
                    self._grown.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._grown.wait(), 0.05)
        except (OSError, EOFError):
            pass
        finally:
            if listening is not None:
                listening.cancel()
            writer.transport.abort()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, EOFError):
            while True:
                self.reports.extend(struct.unpack(">q", await reader.readexactly(8)))


class RocketMQState:
    """What the master answers about itself."""

    def __init__(self, ha: HaPort, file_size: int) -> None:
        self.ha = ha
        self.config = {
            "brokerRole": "ASYNC_MASTER",
            "flushDiskType": "ASYNC_FLUSH",
            "mappedFileSizeCommitLog": str(file_size),
            "haListenPort": str(ha.port),
            "enableControllerMode": "false",
        }
        self.topics: dict[str, Any] = {"t": topic("t")}
        self.groups: dict[str, Any] = {"readers": {"groupName": "readers", "retryMaxTimes": 3}}
        self.offsets = '{"t@readers":{0:1}}'
        self.instead: dict[int, bytes] = {}  # request code -> the body that is sent in place of the right one
        self.bounds: tuple[int, int] | None = None  # None means the bounds of the HA port's log

    def answer(self, request: Header, _body: bytes) -> bytes:
        version = '{"counter":1,"timestamp":1}'
        low, high = self.bounds or (self.ha.min_offset, self.ha.end_offset)
        bodies = {
            RequestCode.GET_BROKER_CONFIG: "".join(f"{name}={value}\n" for name, value in self.config.items()),
            RequestCode.GET_BROKER_RUNTIME_INFO: json.dumps(
                {"table": {"commitLogMinOffset": str(low), "commitLogMaxOffset": str(high)}}
            ),
            RequestCode.GET_ALL_TOPIC_CONFIG: (
                f'{{"dataVersion":{version},"topicConfigTable":{json.dumps(self.topics)}}}'
            ),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (
                f'{{"dataVersion":{version},"subscriptionGroupTable":{json.dumps(self.groups)}}}'
            ),
            RequestCode.GET_ALL_CONSUMER_OFFSET: f'{{"offsetTable":{self.offsets}}}',
            RequestCode.GET_ALL_DELAY_OFFSET: '{"offsetTable":{3:7}}',
            RequestCode.GET_TOPIC_STATS_INFO: (
                '{"offsetTable":{{"brokerName":"a","queueId":3,"topic":"t"}:{"maxOffset":9,"minOffset":9}}}'
            ),
        }
        body = self.instead.get(request.code, bodies[RequestCode(request.code)].encode())
        return answer_to(request, body=body)


def topic(name: str) -> dict[str, Any]:
    return {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG"}


@contextmanager
def remoting_port(state: RocketMQState) -> Iterator[str]:
    with RemotingPeer(state.answer) as peer:
        yield peer.address


@asynccontextmanager
async def scripted_master(
    log: bytes, *, min_offset: int = 0, file_size: int = 1 << 20
) -> AsyncIterator[tuple[HaPort, RocketMQState, str]]:
    """Yields the HA port, what the master says about itself, and the address for `haMasterAddress`."""
    ha = HaPort(log, min_offset)
    server = await asyncio.start_server(ha.serve, "127.0.0.1", 0)
    ha.port = server.sockets[0].getsockname()[1]
    state = RocketMQState(ha, file_size)
    try:
        with remoting_port(state) as address:
            yield ha, state, address
    finally:
        server.close()
