"""Registration keeps one stream to each name server, on which this broker registers and hears which other brokers have
its name.

Name servers share nothing, so each stream has its own task.  A lost connection is made again.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import grpc
from rocketsim_proto import namesrv_pb2, namesrv_pb2_grpc
from rocketsim_proto.versions import WIRE, too_new

from broker_service.broker.core.broker import Broker
from broker_service.leadership.membership import Membership
from broker_service.runtime.peer_call import TRIED_AGAIN, PeerLost, read_stream, write_stream
from broker_service.runtime.server import OpenChannel

logger = logging.getLogger(__name__)

ANSWER_WITHIN_S = 6.0  # RocketMQ's timeout of a registration
RETRY_S = (0.2, 0.5, 1.0, 2.0)
REFUSED_RETRY_S = 1.0
UNREGISTER_WITHIN_S = 1.0

Stream = grpc.aio.StreamStreamCall[namesrv_pb2.BrokerRegistration, namesrv_pb2.RegistrationReply]


class Registration:
    """Registers this broker every `period_s`, and at once after a notice of `broker.description_changed`.

    `membership` says what is registered and gets the replies.  When a connection has ended, or an answer has not come
    in time, `membership` discards the last answer of that name server.  A name server's answer is therefore used for no
    longer than `period_s` and ANSWER_WITHIN_S together.
    """

    def __init__(
        self,
        broker: Broker,
        membership: Membership,
        open_channel: OpenChannel,
        *,
        period_s: float,
    ) -> None:
        self._membership = membership
        changed = broker.description_changed
        self.links = [
            _Link(address, period_s, changed.waiter(), membership, open_channel)
            for address in broker.config.name_servers
        ]

    async def run(self) -> None:
        """Runs until it is cancelled.

        The caller must call `unregister` before it cancels `run`, so that the name servers hear that this broker
        leaves.
        """
        async with asyncio.TaskGroup() as tasks:
            for link in self.links:
                tasks.create_task(link.run(), name=f"register-{link.address}")

    async def refresh(self, within_s: float) -> None:
        """Registers with all name servers now, and waits up to `within_s` for each to answer or fail.

        A name server that has not answered within `within_s` counts as lost.
        """
        for address in await self._ask(self.links, within_s):
            logger.warning("name server %s does not answer now: its earlier answers are no longer used", address)
            self._membership.name_server_lost(address)

    async def unregister(self) -> None:
        """Tells the name servers that this broker leaves, so that clients hear at once that the broker is gone."""
        connected = [link for link in self.links if link.connected]
        for link in self.links:
            link.leaving = True
        await self._ask(connected, UNREGISTER_WITHIN_S)

    async def _ask(self, links: "list[_Link]", within_s: float) -> list[str]:
        """Registers with these name servers; returns the addresses of those that have not answered."""
        before = [(link, link.answers, link.failures) for link in links]
        for link in links:
            link.wanted.set()
            link.tried_now.set()
        try:
            async with asyncio.timeout(within_s):
                for link, answers, failures in before:
                    await link.answered_since(answers, failures)
        except TimeoutError:
            pass
        return [link.address for link, answers, _ in before if link.answers == answers]


class _Link:
    """The stream to one name server."""

    def __init__(
        self,
        address: str,
        period_s: float,
        wanted: asyncio.Event,
        membership: Membership,
        open_channel: OpenChannel,
    ) -> None:
        self.address = address
        self.wanted = wanted
        self.tried_now = asyncio.Event()  # ends the pause after a try that has failed
        self.leaving = False
        self.connected = False
        self.answers = 0
        self.failures = 0
        self._period_s = period_s
        self._membership = membership
        self._open_channel = open_channel
        self._refused = False
        self._news = asyncio.Condition()  # notified of an answer and of the end of the stream
        self._tries = 0  # failed attempts since the last answer

    async def run(self) -> None:
        while not self.leaving:
            try:
                await self._talk()
                reason = "it closed the stream"
            except PeerLost as lost:
                reason = str(lost)
            except TimeoutError:
                reason = f"no answer within {ANSWER_WITHIN_S:g} s"
            if self._tries == 0 and not self.leaving:
                logger.warning("name server %s is lost: %s; trying again until it is back", self.address, reason)
            self.connected = False
            self._membership.name_server_lost(self.address)
            delay_s = RETRY_S[min(self._tries, len(RETRY_S) - 1)]
            self._tries += 1
            self.failures += 1
            self.tried_now.clear()
            async with self._news:
                self._news.notify_all()
            await self._pause(delay_s)

    async def _pause(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self.tried_now.wait()
        except TimeoutError:
            pass

    async def answered_since(self, answers: int, failures: int) -> None:
        """Waits until there are more than `answers` answers, or more than `failures` failed attempts."""
        async with self._news:
            await self._news.wait_for(lambda: self.answers > answers or self.failures > failures)

    async def _register(self, stream: Stream, registration: namesrv_pb2.BrokerRegistration) -> None:
        answers = self.answers
        await write_stream(stream, registration)
        async with self._news:
            await self._news.wait_for(lambda: self.answers > answers)

    async def _talk(self) -> None:
        """Uses one connection until it breaks.  A task of its own reads the stream, so that a broken connection is
        noticed at once.
        """
        options = [*TRIED_AGAIN, ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000)]
        async with self._open_channel(self.address, options) as channel:
            stream = namesrv_pb2_grpc.NameServerStub(channel).RegisterBroker()
            reading = asyncio.create_task(self._read(stream))
            try:
                while not reading.done():
                    answers = self.answers
                    self.wanted.clear()
                    registration = self._membership.registration()
                    registration.unregister = self.leaving
                    await self._wait(reading, self._register(stream, registration), ANSWER_WITHIN_S)
                    if self.answers == answers and not reading.done():
                        raise TimeoutError
                    if self.leaving:
                        return
                    await self._wait(reading, self.wanted.wait(), REFUSED_RETRY_S if self._refused else self._period_s)
                await reading
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, stream: Stream) -> None:
        async for reply in read_stream(stream):
            if problem := too_new("it", "the wire", reply.wire_version, WIRE):
                raise PeerLost(problem)
            if self._tries:
                logger.info("name server %s is back", self.address)
            self._tries = 0
            self.connected = True
            self.answers += 1
            self._refused = bool(reply.refused)
            self._membership.name_server_answered(self.address, reply)
            async with self._news:
                self._news.notify_all()

    async def _wait(self, reading: "asyncio.Task[None]", event: Coroutine[Any, Any, object], timeout_s: float) -> None:
        """Waits until the event, the end of the stream or the timeout comes.  Raises the exception that `event`
        raises.
        """
        waiting = asyncio.create_task(event)
        try:
            await asyncio.wait((reading, waiting), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
