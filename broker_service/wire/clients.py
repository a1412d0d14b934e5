"""Clients: which clients are connected, by whichever protocol, and their streams, on which the broker sends commands.

A client is gone when it says so (NotifyClientTermination), some time after its last stream has ended, or, if it has
called without a stream since then, some time after its last call.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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

STREAM_GONE_S = 5.0  # from the end of its last stream on; a client that has lost it reconnects within a second
SILENT_S = 25.0  # from its last call on: clients send a heartbeat every ten seconds
MAX_COMMANDS = 64  # under way to one client; a client that reads none of them gets no more
MAX_COMMAND_BYTES = 1 << 20  # of these together; one always may be under way
READS_WITHIN_S = 1.0  # a client that has read none of its questions for so long gets no more until it has
MAX_TOPICS = 100  # of one producer that are remembered
MAX_STREAMS = 20_000  # of all clients: 40 KiB each
MAX_STREAMS_OF_CLIENT = 16  # a client has one a broker, and for a moment those that broke off; the oldest one goes


_NONE: Mapping[asyncio.Task[None], int] = {}  # of all streams


def client_of(context: Context, client_id: str) -> str:
    """The id under which a client is known that has named itself so in this call: different users cannot share one."""
    return client_of_user(context.invocation_metadata() or (), client_id)


class ClientStream:
    """`question`: makes the message that asks this client about a transaction, in its protocol."""

    __slots__ = (  # there may be ten thousand that are idle
        *("_commands", "_context", "_has_begun", "_is_stuck", "_task", "_was_read", "_writers", "_writing"),
        *("client_id", "is_closing", "is_open", "question"),
    )

    def __init__(self, client_id: str, context: Context, question: Callable[[Check], Message]) -> None:
        self.client_id = client_id
        self.question = question
        self.is_open = False
        self.is_closing = False
        self._context = context
        self._has_begun = False  # a message was written
        if (task := asyncio.current_task()) is not None:
            task.set_name("client stream")  # the default has a number: memory for each of ten thousand
        self._task = task
        self._writing: asyncio.Lock | None = None  # while there are writers
        self._writers = 0
        self._commands: Mapping[asyncio.Task[None], int] = _NONE  # and the size of each in bytes
        self._was_read: asyncio.Event | None = None  # a command was; made for the first who waits for it
        self._is_stuck = False

    async def say(self, command: Message) -> None:
        """Waits while the client does not read, so other calls must not wait for it."""
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

    def tell(self, command: Message) -> bool:
        """Sends without waiting; False if too many commands are under way to this client."""
        size, under_way = command.ByteSize(), sum(self._commands.values())
        if self.is_closing or len(self._commands) >= MAX_COMMANDS or under_way + size > max(MAX_COMMAND_BYTES, size):
            return False
        task = asyncio.create_task(self._say_if_there(command))
        self._commands = {**self._commands, task: size}
        task.add_done_callback(self._command_ended)
        return True

    def _command_ended(self, task: asyncio.Task[None]) -> None:
        self._commands = {other: size for other, size in self._commands.items() if other is not task} or _NONE
        if not task.cancelled():
            self._is_stuck = False
            if self._was_read is not None:
                self._was_read.set()

    async def tell_in_turn(self, command: Message, wait_s: float) -> bool:
        """As `tell`, but waits for room while the client reads; False once it has read nothing for `wait_s`."""
        while not self.tell(command):
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

    async def _say_if_there(self, command: Message) -> None:
        try:
            await self.say(command)
        except (grpc.RpcError, asyncio.InvalidStateError) as error:  # the stream has ended
            logger.info("client %s did not get a command: %s", self.client_id, error)

    def may_publish(self, topic: str) -> bool:
        """Whether its user may now: who has lost the right gets no message of the topic, in a question neither."""
        return may(self._context, of_topic(topic, *PUB))

    def may_consume(self, group: str, topic: str) -> bool:
        """Whether its user may now."""
        return may(self._context, of_group(group, *SUB)) and may(self._context, of_topic(topic, *SUB))

    def close(self) -> None:
        """Ends the stream; the client connects again."""
        self.is_closing = True
        self.drop_commands()
        if self._task is not None:
            self._task.cancel()

    def drop_commands(self) -> None:
        for task in self._commands:
            task.cancel()


@dataclass(slots=True)
class _Client:
    """`older`: its other streams, the oldest first.  `until`: when a client without a stream is gone, unless it calls
    before.  `poll_s`: how long it polls, if it has said so."""

    newest: ClientStream | None = None
    older: tuple[ClientStream, ...] = ()  # most clients have none, and these share it
    until: float = 0.0
    poll_s: float | None = None
    topics: tuple[str, ...] = ()  # that it has declared, or published to, as a producer

    @property
    def streams(self) -> tuple[ClientStream, ...]:
        """The oldest first."""
        return (*self.older, self.newest) if self.newest is not None else ()

    @streams.setter
    def streams(self, streams: tuple[ClientStream, ...]) -> None:
        self.newest, self.older = (streams[-1], streams[:-1]) if streams else (None, ())


class Clients:
    """Consumers, and producers with a stream, by client id.

    A stream counts from its start, not from its settings: a client that reconnects does not send them again.
    `gone` are called for each client that is gone, and each time that one says so.  `clock`: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.gone: list[Callable[[str], None]] = []
        self._clock = clock
        self._clients: dict[str, _Client] = {}
        self._producers: dict[str, dict[str, None]] = {}  # topic -> client ids
        self.stream_count = 0  # that are open, also of clients that are gone
        self._sweeping: asyncio.TimerHandle | None = None

    def heard(self, client_id: str) -> None:
        """To be called at each call of a consumer."""
        client = self._of(client_id)
        if client.newest is None:
            client.until = self._clock() + SILENT_S
            self._sweep_at(client.until)

    def opened(self, stream: ClientStream) -> None:
        """To be followed by `ended`.  Raises SystemBusy if there are too many streams of all clients, of one client the
        oldest ends."""
        client = self._clients.get(stream.client_id)
        if client is not None and len(client.streams) >= MAX_STREAMS_OF_CLIENT:
            oldest = client.streams[0]
            self.ended(oldest)
            oldest.close()
        if self.stream_count >= MAX_STREAMS:
            raise SystemBusy(f"{self.stream_count} streams of clients are open already; connect again in a moment")
        stream.is_open = True
        self.stream_count += 1
        client = self._of(stream.client_id)
        client.streams = (*client.streams, stream)

    @contextmanager
    def ending(self, stream: ClientStream) -> Iterator[None]:
        """Around the call of an opened stream.  The cancellation by `ClientStream.close` ends the call without an
        error."""
        try:
            yield
        except asyncio.CancelledError:
            if not stream.is_closing:
                raise
        finally:
            self.ended(stream)

    def ended(self, stream: ClientStream) -> None:
        if stream.is_open:
            stream.is_open = False
            self.stream_count -= 1
        stream.drop_commands()
        client = self._clients.get(stream.client_id)
        if client is None or stream not in client.streams:
            return  # it is terminated
        client.streams = tuple(other for other in client.streams if other is not stream)
        if not client.streams:
            client.until = self._clock() + STREAM_GONE_S
            self._sweep_at(client.until)

    def terminated(self, client_id: str) -> None:
        """The client has said that it is gone; its streams end by themselves.

        It need not have called here: what is renewed for it may be of the master before this one.
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
        """The client's newest stream; None without one."""
        client = self._clients.get(client_id)
        return client.newest if client is not None else None

    def poll_s_of(self, client_id: str) -> float | None:
        """None before the client has said how long it polls."""
        client = self._clients.get(client_id)
        return client.poll_s if client is not None else None

    def polls(self, client_id: str, poll_s: float | None) -> None:
        """The client has said how long it polls, or that each call says it."""
        self._of(client_id).poll_s = poll_s

    def publishes(self, client_id: str, topic: str) -> None:
        """The client is a producer of the topic; remembered while it is connected."""
        client = self._clients.get(client_id)
        if client is not None and topic not in client.topics and len(client.topics) < MAX_TOPICS:
            client.topics += (topic,)
            self._producers.setdefault(topic, {})[client_id] = None

    def producer_of(self, topic: str, client_id: str, turn: int) -> ClientStream | None:
        """The stream of this client, else of one of the topic's producers, in turns; None if none is connected that may
        send to the topic."""
        for others in ((client_id,), self._producers.get(topic, ())):
            found = [stream for other in others if (stream := self.stream_of(other)) is not None]
            if streams := [stream for stream in found if stream.may_publish(topic)]:
                return streams[turn % len(streams)]
        return None

    async def ask(self, check: Check) -> bool:
        """Asks the client that has sent the half message, else another producer of its topic.  False if none of them is
        connected and reads."""
        stream = self.producer_of(check.transaction.topic, check.client_id, check.times)
        return stream is not None and await stream.tell_in_turn(stream.question(check), READS_WITHIN_S)

    def may_consume(self, client_id: str, group: str, topic: str) -> bool:
        """Whether the client's user may now; False of a client without a stream, of which that is not known."""
        stream = self.stream_of(client_id)
        return stream is not None and stream.may_consume(group, topic)

    def is_connected(self, client_id: str) -> bool:
        client = self._clients.get(client_id)
        return client is not None and (client.newest is not None or self._clock() < client.until)

    def close(self) -> None:
        """End all streams.  `gone` is not called: the clients connect to the next master."""
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
        """Or before, if a sweep is due by then: it calls the next one."""
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0.0, at - self._clock())
        if self._sweeping is not None and self._sweeping.when() <= when:
            return
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._sweeping = loop.call_at(when, self.sweep)

    def sweep(self) -> None:
        """Forget the clients that are gone; called again when the next one may be."""
        self._sweeping = None
        now = self._clock()
        silent = [client_id for client_id, client in self._clients.items() if client.newest is None]
        for client_id in silent:
            if self._clients[client_id].until <= now:
                logger.info("client %s is gone", client_id)
                self.terminated(client_id)
        waiting = [client.until for client in self._clients.values() if client.newest is None]
        if waiting:
            self._sweep_at(max(min(waiting), now + 1.0))
