"""A RocketMQ master without Java: its HA port and, on another port, the remoting requests that a slave sends.

The master is scripted, or replays what a real master has sent:

    python -m tests.support.rocketmq_master 5.5.0 > tests/data/remoting/master-5.5.0.json

starts a RocketMQ of that version, sends some messages, and records its HA stream and its answers to a slave.
"""

import asyncio
import base64
import json
import re
import socket
import struct
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from rocketsim_proto.remoting.codes import RequestCode
from rocketsim_proto.remoting.frame import Header

from tests.support.asyncio_servers import stop_accepting
from tests.support.remoting_peer import RECORDED, RemotingPeer, answer_to

HEAD = struct.Struct(">qi")
RECORDED_FILE_BYTES = 1 << 20  # the size of the recorded master's log files
RECORDED_TOPIC, RECORDED_GROUP = "orders", "readers"
RECORDED_BODIES = [b"%d" % number for number in range(20)]  # in queue 0
RECORDED_OFFSET = 7  # what the group has committed in queue 0
# The requests of a slave.
ASKED = (
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
)


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
        self.refused: dict[int, int] = {}  # request code -> the code with which the request is refused
        self.bounds: tuple[int, int] | None = None  # None means the bounds of the HA port's log
        self.requests: list[Header] = []

    def answer(self, request: Header, _body: bytes) -> bytes:
        self.requests.append(request)
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
        if request.code in self.refused:
            return answer_to(request, self.refused[request.code], "refused")
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
        await stop_accepting(server)


# --- recorded masters -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def recorded_master(version: str) -> AsyncIterator[tuple[HaPort, str]]:
    """Yields the HA port, which first sends the recorded stream (`raw`), and the address for `haMasterAddress`."""
    recorded = json.loads((RECORDED / f"master-{version}.json").read_text())
    stream = base64.b64decode(recorded["stream"])
    async with scripted_master(b"\0" + b"".join(data for _, data in frames_of(stream))) as (ha, state, address):
        ha.raw = stream
        for code, answer in recorded["answers"].items():
            if answer["code"]:
                state.refused[int(code)] = answer["code"]
            body = base64.b64decode(answer["body"])
            state.instead[int(code)] = re.sub(rb"(?m)^haListenPort=\d+$", b"haListenPort=%d" % ha.port, body)
        yield ha, address


def frames_of(stream: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the log offset and the bytes of each frame."""
    at = 0
    while at < len(stream):
        offset, size = HEAD.unpack_from(stream, at)
        at += HEAD.size
        yield offset, stream[at : at + size]
        at += size


def record_master(version: str) -> dict[str, Any]:
    from rocketsim_client import Admin, Connection, Message, Producer, PullConsumer
    from rocketsim_client.model import MessageQueue
    from rocketsim_client.transport.remoting.connections import Connections, Request
    from testbed.polling import wait_until
    from testbed.real_rocketmq import BROKER_NAME, running

    settings = {"autoCreateSubscriptionGroup": "true", "mappedFileSizeCommitLog": RECORDED_FILE_BYTES}
    with tempfile.TemporaryDirectory() as work, running(Path(work), version=version, settings=settings) as rocketmq:
        rocketmq.wait_registered()
        where = Connection.of(rocketmq.name_server, protocol="remoting", timeout_s=20.0)
        queue = MessageQueue(RECORDED_TOPIC, BROKER_NAME, 0)
        with Admin(where) as admin:
            wait_until(lambda: bool(admin.cluster_list()), "the name server to know the broker")
            admin.update_topic(RECORDED_TOPIC, read_queue_nums=2, write_queue_nums=2)
            wait_until(lambda: RECORDED_TOPIC in admin.topic_list(), "the name server to know the topic")
        with Producer(where) as producer, PullConsumer(where, group=RECORDED_GROUP) as consumer:
            for body in RECORDED_BODIES:
                producer.send(Message(RECORDED_TOPIC, body, "tag"), queue=queue)
            wait_until(lambda: consumer.max_offset(queue) == len(RECORDED_BODIES), "all messages")
            consumer.pull(queue, 0)  # it makes the group
            consumer.commit(queue, RECORDED_OFFSET)
        connections = Connections(where)
        requests = [Request(code, code.name, {}) for code in ASKED]
        replies = connections.calls(rocketmq.address, requests, 20.0)
        connections.close()
        answers = {
            int(code): {"code": reply.header.code, "body": base64.b64encode(reply.body).decode()}
            for code, reply in zip(ASKED, replies, strict=True)
        }
        end = commit_log_end(replies[ASKED.index(RequestCode.GET_BROKER_RUNTIME_INFO)].body)
        stream = ha_stream_until(end, rocketmq.master.port + 1)
    return {"stream": base64.b64encode(stream).decode(), "answers": answers}


def commit_log_end(runtime_info: bytes) -> int:
    table: Mapping[str, str] = json.loads(runtime_info)["table"]
    return int(table["commitLogMaxOffset"])


def ha_stream_until(end: int, port: int) -> bytes:
    """Returns the bytes of an HA stream from log offset 1 to this end, as the master has cut them into frames."""
    with socket.create_connection(("127.0.0.1", port), 60.0) as connected, connected.makefile("rb") as stream:
        connected.sendall(struct.pack(">q", 1))
        received, at = b"", 1
        while at < end:
            head = stream.read(HEAD.size)
            offset, size = HEAD.unpack(head)
            received += head + stream.read(size)
            at = offset + size
    return received


if __name__ == "__main__":
    print(json.dumps(record_master(sys.argv[1]), indent=0))
