"""RollCall: brokers of one name are asked who they are and how far their logs go.

A master asks the slaves that its configuration names and those that have followed it: so it hears, also without a name
server, of one that was promoted meanwhile or has what was lost here.  A slave asks everybody before it is promoted.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

import grpc
from rocketsim_proto.replication_pb2 import (
    GetMemberRequest,
    GetMemberResponse,
    PromiseEpochRequest,
    PromiseEpochResponse,
)
from rocketsim_proto.replication_pb2_grpc import ReplicationStub

from broker_service.runtime.peer_call import TRIED_AGAIN, PeerLost, ask
from broker_service.runtime.server import OpenChannel

logger = logging.getLogger(__name__)

ANSWER_WITHIN_S = 2.0

Answered = Callable[[str, GetMemberResponse | None], None]


class RollCall:
    """`slaves` says whom to ask now, `request` makes the question, `answered` hears each answer or that there was none,
    `forget` of those that are asked no more, `pause_s` says how long to wait for the next round.
    """

    def __init__(
        self,
        *,
        slaves: Callable[[], Iterable[str]],
        request: Callable[[], GetMemberRequest],
        answered: Answered,
        forget: Callable[[str], None],
        pause_s: Callable[[], float],
        open_channel: OpenChannel,
    ) -> None:
        self._slaves = slaves
        self._request = request
        self._answered = answered
        self._forget = forget
        self._pause_s = pause_s
        self._open_channel = open_channel
        self._troubles: dict[str, str] = {}
        self._asked: set[str] = set()
        self._under_way: set[str] = set()

    async def run(self) -> None:
        """Until cancelled.  The next round does not wait for who has not answered in the last one."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                before, self._asked = self._asked, set(self._slaves())
                for address in sorted(before - self._asked):
                    self._forget(address)
                for address in sorted(self._asked - self._under_way):
                    self._under_way.add(address)
                    tasks.create_task(self._ask(address), name=f"ask-{address}")
                await asyncio.sleep(self._pause_s())

    async def ask_each(self, addresses: Iterable[str]) -> dict[str, GetMemberResponse | None]:
        """What each of them answers now; None: it does not."""
        asked = sorted(set(addresses))
        replies = await asyncio.gather(*(self._ask_once(address) for address in asked))
        return {
            address: reply if isinstance(reply, GetMemberResponse) else None
            for address, reply in zip(asked, replies, strict=True)
        }

    async def ask_promises(
        self, addresses: Iterable[str], request: PromiseEpochRequest
    ) -> dict[str, PromiseEpochResponse | PeerLost]:
        """What each of them answers; PeerLost: whether it has promised is not known."""
        asked = sorted(set(addresses))
        replies = await asyncio.gather(*(self._ask_promise(address, request) for address in asked))
        return dict(zip(asked, replies, strict=True))

    async def _ask(self, address: str) -> None:
        try:
            reply = await self._ask_once(address)
        finally:
            self._under_way.discard(address)
        if address not in self._asked:
            return
        if isinstance(reply, GetMemberResponse):
            self._troubles.pop(address, None)
            self._answered(address, reply)
            return
        if str(reply) != self._troubles.get(address):  # once, not at every try
            logger.warning("slave %s does not answer: %s; asked again", address, reply)
            self._troubles[address] = str(reply)
        self._answered(address, None)

    async def _ask_once(self, address: str) -> GetMemberResponse | PeerLost:
        async with self._channel(address) as channel:
            try:
                return await ask(ReplicationStub(channel).GetMember(self._request(), timeout=ANSWER_WITHIN_S))
            except PeerLost as lost:
                return lost

    async def _ask_promise(self, address: str, request: PromiseEpochRequest) -> PromiseEpochResponse | PeerLost:
        async with self._channel(address) as channel:
            try:
                return await ask(ReplicationStub(channel).PromiseEpoch(request, timeout=ANSWER_WITHIN_S))
            except PeerLost as lost:
                return lost

    def _channel(self, address: str) -> grpc.aio.Channel:
        """One of its own for every question: one that is kept tries again ever more rarely."""
        return self._open_channel(address, TRIED_AGAIN)
