"""A scripted client of RocketMQ's remoting protocol, and a broker that serves it."""

import asyncio
import itertools
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

from rocketsim_proto.remoting import acl, frame, loose_json, message_batch
from rocketsim_proto.remoting.codes import RequestCode
from rocketsim_proto.remoting.frame import HEAD, IS_ANSWER, Form, Header
from rocketsim_proto.signature import Credentials

from broker_service.node.node import BrokerNode
from testbed.polling import PATIENCE_S
from tests.support.brokers import running


class Refused(Exception):
    """The server has answered with a code other than success."""

    def __init__(self, header: Header) -> None:
        super().__init__(f"{header.code}: {header.remark}")
        self.code = header.code
        self.header = header


class Client:
    """One connection.  `told` has the requests that the server has sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, user: Credentials | None) -> None:
        self._reader = reader
        self.writer = writer
        self._user = user
        self._opaque = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[tuple[Header, bytes]]] = {}
        self.told: asyncio.Queue[tuple[Header, bytes]] = asyncio.Queue()
        self.language = "PYTHON"
        self.reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, port: int, user: Credentials | None = None, context: ssl.SSLContext | None = None) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context), user)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.reading.cancel()
        await asyncio.wait([self.reading])
        await closed(self.writer)

    def ask(
        self,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        form: Form = Form.JSON,
        flag: int = 0,
    ) -> "asyncio.Future[tuple[Header, bytes]]":
        encoded, answer = self._asked(code, fields or {}, body, form, flag)
        self.writer.write(encoded)
        return answer

    async def together(self, *asked: tuple[int, Mapping[str, object], bytes]) -> list[Header]:
        """Sends requests with one write.  Returns the headers of the answers in the order of the requests."""
        encoded, answers = zip(*(self._asked(*one) for one in asked), strict=True)
        self.writer.write(b"".join(encoded))
        async with asyncio.timeout(PATIENCE_S):
            return [header for header, _ in await asyncio.gather(*answers)]

    def _asked(
        self, code: int, fields: Mapping[str, object], body: bytes, form: Form = Form.JSON, flag: int = 0
    ) -> "tuple[bytes, asyncio.Future[tuple[Header, bytes]]]":
        given = {name: frame.text(value) for name, value in fields.items()}
        if self._user is not None:
            given = acl.signed(given, body, self._user.access_key, self._user.secret_key)
        header = Header(int(code), next(self._opaque), flag, fields=given, language=self.language)
        answer = self._waiting[header.opaque] = asyncio.get_running_loop().create_future()
        return frame.encode(header, body, form), answer

    async def call(self, code: int, body: bytes = b"", form: Form = Form.JSON, **fields: object) -> Any:
        """Returns the answer's fields and body.  Raises Refused."""
        async with asyncio.timeout(PATIENCE_S):
            header, answered = await self.ask(code, fields, body, form)
        if header.code:
            raise Refused(header)
        return header.fields, answered

    def reply(self, asked: Header, body: bytes = b"", code: int = 0, remark: str = "", form: Form = Form.JSON) -> None:
        """Answers a request of the server."""
        self.writer.write(frame.encode(Header(code, asked.opaque, IS_ANSWER, remark, {}, "JAVA"), body, form))

    async def json(self, code: int, **fields: object) -> Any:
        return loose_json.loads((await self.call(code, **fields))[1])

    async def refused(self, code: int, body: bytes = b"", **fields: object) -> int:
        """Returns the code of the refusal."""
        try:
            found = await self.call(code, body, **fields)
        except Refused as refusal:
            return refusal.code
        raise AssertionError(f"answered with {found}")

    async def send(self, topic: str, *bodies: bytes, queue_id: int = 0, **properties: str) -> dict[str, str]:
        """Sends one message, or a batch of several.  Returns the answer's fields."""
        encoded = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        body, rest = bodies[0], {"i": encoded} if encoded else {}
        if len(bodies) > 1:
            body = message_batch.encode(message_batch.BatchMessage(0, one, encoded.encode()) for one in bodies)
            rest = {"m": "true"}
        code = RequestCode.SEND_MESSAGE_V2 if len(bodies) == 1 else RequestCode.SEND_BATCH_MESSAGE
        given = {"a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1, "h": 0}
        fields, _ = await self.call(code, body, **given, **rest)
        return dict(fields)

    async def pull(self, topic: str, offset: int, queue_id: int = 0, **fields: object) -> tuple[Header, bytes]:
        """Returns the header and the records, whatever the answer's code is."""
        given = {
            "consumerGroup": "readers",
            "topic": topic,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
        }
        async with asyncio.timeout(PATIENCE_S):
            return await self.ask(RequestCode.PULL_MESSAGE, given | fields)

    async def _read(self) -> None:
        try:
            while True:
                form, header_bytes, body_bytes = frame.lengths(await self._reader.readexactly(HEAD.size))
                header = frame.decode_header(form, await self._reader.readexactly(header_bytes))
                body = await self._reader.readexactly(body_bytes)
                if header.is_answer:
                    self._waiting.pop(header.opaque).set_result((header, body))
                else:
                    await self.told.put((header, body))
        except (asyncio.IncompleteReadError, OSError) as error:
            for one in self._waiting.values():
                one.set_exception(error)


async def closed(writer: asyncio.StreamWriter) -> None:
    """Closes a connection, and drops bytes that are not yet sent."""
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def remoting_broker(root: Path, **keys: Any) -> AsyncIterator[tuple[BrokerNode, Client]]:
    """Runs a broker with a remoting port, and a client that is connected to it."""
    async with running(root, remoting_port=0, **keys) as node:
        async with await Client.connect(port_of(node)) as client:
            yield node, client


def port_of(node: BrokerNode) -> int:
    assert node.remoting is not None
    return node.remoting.server.port
