"""ClientStreams: the Telemetry streams of clients, by which the broker can tell a client something unasked."""

import asyncio
import logging

import grpc
from rocketmq_v2 import definition_pb2
from rocketmq_v2 import service_pb2 as pb

from broker_service.v2.status import Context

logger = logging.getLogger(__name__)

MAX_COMMANDS = 64  # under way to one client; who reads none of them gets no more


class ClientStream:
    def __init__(self, client_id: str, context: Context) -> None:
        self.client_id = client_id
        self.settings: definition_pb2.Settings | None = None
        self.is_closing = False
        self._context = context
        self._task = asyncio.current_task()
        self._writing = asyncio.Lock()
        self._commands: set[asyncio.Task[None]] = set()

    async def say(self, command: pb.TelemetryCommand) -> None:
        """Waits while the client does not read: nobody else may wait for it."""
        async with self._writing:
            await self._context.write(command)

    def tell(self, command: pb.TelemetryCommand) -> bool:
        """Without waiting; False if too much is under way to this client already."""
        if self.is_closing or len(self._commands) >= MAX_COMMANDS:
            return False
        task = asyncio.create_task(self._say_if_there(command))
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)
        return True

    async def _say_if_there(self, command: pb.TelemetryCommand) -> None:
        try:
            await self.say(command)
        except (grpc.RpcError, asyncio.InvalidStateError) as error:  # the stream has ended
            logger.info("client %s did not get a command: %s", self.client_id, error)

    def close(self) -> None:
        """The broker ends it; the client connects anew."""
        self.is_closing = True
        self.drop_commands()
        if self._task is not None:
            self._task.cancel()

    def drop_commands(self) -> None:
        for task in self._commands:
            task.cancel()


class ClientStreams:
    """By client id; of several streams of one client the newest counts.

    A stream counts from its start on, not from its settings: a client that comes back does not send them again.
    """

    def __init__(self) -> None:
        self._streams: dict[str, ClientStream] = {}
        self._open: set[ClientStream] = set()

    def opened(self, stream: ClientStream) -> None:
        self._open.add(stream)
        self._streams[stream.client_id] = stream

    def ended(self, stream: ClientStream) -> None:
        self._open.discard(stream)
        stream.drop_commands()
        if self._streams.get(stream.client_id) is stream:
            del self._streams[stream.client_id]

    def get(self, client_id: str) -> ClientStream | None:
        return self._streams.get(client_id)

    def close(self) -> None:
        for stream in list(self._open):
            stream.close()

    def __len__(self) -> int:
        return len(self._streams)
