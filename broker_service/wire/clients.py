"""Clients: keeps the connected clients of all gRPC protocols, and the streams on which the broker sends them commands.

A client counts as connected while it has a stream.  A client without a stream counts as connected for a few seconds
after its last stream (STREAM_GONE_S) or call (SILENT_S).  A client that sends NotifyClientTermination is removed at
once.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.message import Message

from broker_service.access.interceptor import may
from broker_service.access.rights import PUB, SUB, of_group, of_topic
from broker_service.access.signature import client_of_user
from broker_service.errors import SystemBusy
from broker_service.runtime.rpc_errors import write_first
from broker_service.transactions.transactions import Check

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

STREAM_GONE_S = 5.0  # a client counts as gone this long after its last stream; clients reconnect within a second
SILENT_S = 25.0  # a client without a stream counts as gone this long after a call; heartbeats come every 10 s
MAX_COMMANDS = 64  # most unread commands to one client
MAX_COMMAND_BYTES = 1 << 20  # most bytes of unread commands to one client; a single command may be larger
# how long a client may take to read a question; a slower client gets no further question before it has read one
READS_WITHIN_S = 1.0
MAX_TOPICS = 100  # most topics that are remembered for one producer
MAX_STREAMS = 20_000  # most streams of all clients together; each takes 40 KiB
MAX_STREAMS_OF_CLIENT = 16  # a client needs one stream; its broken streams may remain for a moment


_NONE: Mapping[asyncio.Task[None], int] = {}  # the empty mapping that all streams without commands share


def client_of(context: Context, client_id: str) -> str:
    """Returns the id under which the broker keeps a client: the client's own id, prefixed with the user if the call is
    signed, so that clients of different users never share an id.
    """
    return client_of_user(context.invocation_metadata() or (), client_id)


class ClientStream:
    """A stream on which the broker sends commands to one client.  `question` makes the command that asks how a
    transaction ends.

    A `with` statement around the stream's call ends the stream when the call ends.  A cancellation by `close` is no
    error, and is not raised.
    """

    __slots__ = (  # slots save memory, because ten thousand streams may be idle
        *("_commands", "_context", "_has_begun", "_is_stuck", "_task", "_was_read", "_writers", "_writing"),
        *("client_id", "is_closing", "open_in", "question"),
    )

    def __init__(self, client_id: str, context: Context, question: Callable[[Check], Message]) -> None:
        self.client_id = client_id
        self.question = question
        self.open_in: Clients | None = None  # None before the stream is opened, and after it has ended
        self.is_closing = False
        self._context = context
        self._has_begun = False  # True once a message was written
        if (task := asyncio.current_task()) is not None:
            # all streams share this task name, because asyncio's numbered names would take memory for each task
            task.set_name("client stream")
        self._task = task
        self._writing: asyncio.Lock | None = None  # None while nobody writes
        self._writers = 0
        self._commands: Mapping[asyncio.Task[None], int] = _NONE  # the task that writes a command -> its size in bytes
        self._was_read: asyncio.Event | None = None  # set when a command was read; created by the first waiter
        self._is_stuck = False

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self.open_in is not None:
            self.open_in.ended(self)
        return isinstance(error, asyncio.CancelledError) and self.is_closing

    async def write(self, command: Message) -> None:
        """Writes a command to the stream.  Calls of other clients must not await a write, because a write waits as long
        as the client does not read.
        """
        writing = self._writing = self._writing or asyncio.Lock()
        self._writers += 1
        try:
            async with writing:
                if self._has_begun:
                    await self._context.write(command)
                else:
                    self._has_begun = True
                    await write_first(self._context, command)
        finally:
            self._writers -= 1
            if not self._writers:
                self._writing = None

    def send(self, command: Message) -> bool:
        """Sends a command without waiting.  Returns False if the client has too many unread commands."""
        size, under_way = command.ByteSize(), sum(self._commands.values())
        if self.is_closing or len(self._commands) >= MAX_COMMANDS or under_way + size > max(MAX_COMMAND_BYTES, size):
            return False
        task = asyncio.create_task(self._write_if_open(command))
        self._commands = {**self._commands, task: size}
        task.add_done_callback(self._command_ended)
        return True

    def _command_ended(self, task: asyncio.Task[None]) -> None:
        self._commands = {other: size for other, size in self._commands.items() if other is not task} or _NONE
        if not task.cancelled():
            self._is_stuck = False
            if self._was_read is not None:
                self._was_read.set()

    async def send_in_turn(self, command: Message, wait_s: float) -> bool:
        """Sends a command.  If the client has too many unread commands, `send_in_turn` first waits until the client has
        read a command.

        Returns False if the client reads no command within `wait_s`.  After a timeout, further calls return False at
        once, until the client has read a command.
        """
        while not self.send(command):
            if self.is_closing or self._is_stuck:
                return False
            was_read = self._was_read = self._was_read or asyncio.Event()
            was_read.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await was_read.wait()
            except TimeoutError:
                self._is_stuck = True
        return True

    async def _write_if_open(self, command: Message) -> None:
        try:
            await self.write(command)
        except (grpc.RpcError, asyncio.InvalidStateError) as error:  # the stream has ended
            logger.info("client %s did not get a command: %s", self.client_id, error)

    def may_publish(self, topic: str) -> bool:
        """Returns True if the client's user may publish to the topic now.

        A client without this right gets no message of the topic, not even in the question how a transaction ends.
        """
        return may(self._context, of_topic(topic, *PUB))

    def may_consume(self, group: str, topic: str) -> bool:
        """Returns True if the client's user may consume the topic with the group now."""
        return may(self._context, of_group(group, *SUB)) and may(self._context, of_topic(topic, *SUB))

    def close(self) -> None:
        """Ends the stream.  A client that loses its stream connects again."""
        self.is_closing = True
        self.drop_commands()
        if self._task is not None:
            self._task.cancel()

    def drop_commands(self) -> None:
        for task in self._commands:
            task.cancel()


@dataclass(slots=True)
class _Client:
    """A connected client.

    A client without a stream counts as gone at `until` (monotonic seconds), unless it makes a call before that time.
    `poll_s` is how long the client's long polls wait; None if each of its calls names its own time.
    """

    newest: ClientStream | None = None
    older: tuple[ClientStream, ...] = ()  # the oldest first; empty for a client with one stream
    until: float = 0.0
    poll_s: float | None = None
    topics: tuple[str, ...] = ()  # topics to which the client has published or has declared to publish

    @property
    def streams(self) -> tuple[ClientStream, ...]:
        """Returns all streams of the client, the oldest first."""
        return (*self.older, self.newest) if self.newest is not None else ()

    @streams.setter
    def streams(self, streams: tuple[ClientStream, ...]) -> None:
        self.newest, self.older = (streams[-1], streams[:-1]) if streams else (None, ())


class Clients:
    """Keeps the connected consumers, and the producers that have a stream, by client id.

    A client is connected from the start of its stream, not from its settings, because a client that reconnects does not
    send its settings again.  The functions in `gone` are called with the id of each client that is no longer connected.
    `clock` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.gone: list[Callable[[str], None]] = []
        self._clock = clock
        self._clients: dict[str, _Client] = {}
        self._producers: dict[str, dict[str, None]] = {}  # topic -> client ids
        self.stream_count = 0  # open streams, including those of clients that are gone
        self._sweeping: asyncio.TimerHandle | None = None

    def called(self, client_id: str) -> None:
        """Notes a call of a consumer.  The call keeps the consumer connected for at least `SILENT_S`."""
        client = self._of(client_id)
        if client.newest is None:
            client.until = self._clock() + SILENT_S
            self._sweep_at(client.until)

    def opened(self, stream: ClientStream) -> None:
        """Adds a stream.  The caller must use the stream in a `with` statement, or call `ended`.

        If the client has too many streams, its oldest stream is ended.  Raises SystemBusy if all clients together have
        too many streams.
        """
        client = self._clients.get(stream.client_id)
        if client is not None and len(client.streams) >= MAX_STREAMS_OF_CLIENT:
            oldest = client.streams[0]
            self.ended(oldest)
            oldest.close()
        if self.stream_count >= MAX_STREAMS:
            raise SystemBusy(f"{self.stream_count} streams of clients are open already; connect again in a moment")
        stream.open_in = self
        self.stream_count += 1
        client = self._of(stream.client_id)
        client.streams = (*client.streams, stream)

    def ended(self, stream: ClientStream) -> None:
        if stream.open_in is not None:
            stream.open_in = None
            self.stream_count -= 1
        stream.drop_commands()
        client = self._clients.get(stream.client_id)
        if client is None or stream not in client.streams:
            return  # the client was removed before, because it has said that it ends
        client.streams = tuple(other for other in client.streams if other is not stream)
        if not client.streams:
            client.until = self._clock() + STREAM_GONE_S
            self._sweep_at(client.until)

    def terminated(self, client_id: str) -> None:
        """Removes a client that has said that it ends, and calls the functions in `gone`.  The client closes its
        streams itself.

        The functions in `gone` are called for unknown clients, too, because the former master may have renewed
        deliveries for these clients.
        """
        client = self._clients.pop(client_id, None)
        for topic in client.topics if client is not None else ():
            producers = self._producers[topic]
            del producers[client_id]
            if not producers:
                del self._producers[topic]
        for listener in self.gone:
            listener(client_id)

    def stream_of(self, client_id: str) -> ClientStream | None:
        """Returns the client's newest stream, or None if it has no stream."""
        client = self._clients.get(client_id)
        return client.newest if client is not None else None

    def poll_s_of(self, client_id: str) -> float | None:
        """Returns how many seconds the client's long polls wait; None if each of its calls names its own time."""
        client = self._clients.get(client_id)
        return client.poll_s if client is not None else None

    def polls(self, client_id: str, poll_s: float | None) -> None:
        """Notes how many seconds the client's long polls wait; None if each call names its own time."""
        self._of(client_id).poll_s = poll_s

    def publishes(self, client_id: str, topic: str) -> None:
        """Notes that a client is a producer of the topic for as long as it is connected.  Ignores a client that is not
        connected.
        """
        client = self._clients.get(client_id)
        if client is not None and topic not in client.topics and len(client.topics) < MAX_TOPICS:
            client.topics += (topic,)
            self._producers.setdefault(topic, {})[client_id] = None

    def producer_of(self, topic: str, client_id: str, turn: int) -> ClientStream | None:
        """Returns the stream of this client, or else of another producer of the topic.  If there are several others,
        `turn` chooses one.

        Returns None if no connected producer may send to the topic.
        """
        for others in ((client_id,), self._producers.get(topic, ())):
            found = [stream for other in others if (stream := self.stream_of(other)) is not None]
            if streams := [stream for stream in found if stream.may_publish(topic)]:
                return streams[turn % len(streams)]
        return None

    async def ask(self, check: Check) -> bool:
        """Asks a producer how a transaction ends: the client that sent the half message, or else another producer of
        its topic.

        Returns False if no producer that may send to the topic is connected, or if the chosen producer does not read
        its stream.
        """
        stream = self.producer_of(check.transaction.topic, check.client_id, check.times)
        return stream is not None and await stream.send_in_turn(stream.question(check), READS_WITHIN_S)

    def may_consume(self, client_id: str, group: str, topic: str) -> bool:
        """Returns True if the client's user may consume now; False for a client without a stream, whose user is not
        known.
        """
        stream = self.stream_of(client_id)
        return stream is not None and stream.may_consume(group, topic)

    def is_connected(self, client_id: str) -> bool:
        client = self._clients.get(client_id)
        return client is not None and (client.newest is not None or self._clock() < client.until)

    def close(self) -> None:
        """Ends all streams.  Does not call the functions in `gone`, because the clients will connect to the next
        master.
        """
        for client in self._clients.values():
            for stream in client.streams:
                stream.close()
        self._clients.clear()
        self._producers.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    def __len__(self) -> int:
        return len(self._clients)

    def _of(self, client_id: str) -> _Client:
        client = self._clients.get(client_id)
        if client is None:
            client = self._clients[client_id] = _Client()
        return client

    def _sweep_at(self, at: float) -> None:
        """Plans a call of `sweep` at this time.  If an earlier sweep is planned already, no further sweep is planned,
        because the earlier one plans the next.
        """
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0.0, at - self._clock())
        if self._sweeping is not None and self._sweeping.when() <= when:
            return
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._sweeping = loop.call_at(when, self.sweep)

    def sweep(self) -> None:
        """Removes the clients that are no longer connected, and plans the next sweep."""
        self._sweeping = None
        now = self._clock()
        silent = [client_id for client_id, client in self._clients.items() if client.newest is None]
        for client_id in silent:
            if self._clients[client_id].until <= now:
                logger.info("client %s is no longer connected", client_id)
                self.terminated(client_id)
        waiting = [client.until for client in self._clients.values() if client.newest is None]
        if waiting:
            self._sweep_at(max(min(waiting), now + 1.0))
