"""RollCall asks the other brokers of this broker's name for their identity and for the ends of their logs.

A master asks the configured slaves and those that have followed it.  The answers tell the master, even without a name
server, if a slave was promoted meanwhile, or if a slave has a part of the log that this broker lost.  A slave asks all
known brokers before it is promoted.
"""

import asyncio
import logging
from collections.abc import Iterable

import grpc
from rocketsim_proto.replication_pb2 import (
    GetMemberResponse,
    PromiseEpochRequest,
    PromiseEpochResponse,
)
from rocketsim_proto.replication_pb2_grpc import ReplicationStub

from broker_service.leadership.membership import Membership
from broker_service.runtime.peer_call import TRIED_AGAIN, PeerLost, ask
from broker_service.runtime.server import OpenChannel

logger = logging.getLogger(__name__)

ANSWER_WITHIN_S = 2.0


class RollCall:
    """`membership` says which brokers to ask and what to ask, and gets the answers."""

    def __init__(self, membership: Membership, open_channel: OpenChannel) -> None:
        self._membership = membership
        self._open_channel = open_channel
        self._troubles: dict[str, str] = {}
        self._asked: set[str] = set()
        self._under_way: set[str] = set()

    async def run(self) -> None:
        """Asks the slaves in rounds, until it is cancelled.  No round waits for the answers of the round before."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                before, self._asked = self._asked, set(self._membership.slaves())
                for address in sorted(before - self._asked):
                    self._membership.is_gone(address)
                for address in sorted(self._asked - self._under_way):
                    self._under_way.add(address)
                    tasks.create_task(self._ask(address), name=f"ask-{address}")
                await asyncio.sleep(self._membership.pause_s())

    async def ask_each(self, addresses: Iterable[str]) -> dict[str, GetMemberResponse | None]:
        """Asks each broker once; the value of a broker that does not answer is None."""
        asked = sorted(set(addresses))
        replies = await asyncio.gather(*(self._ask_once(address) for address in asked))
        return {
            address: reply if isinstance(reply, GetMemberResponse) else None
            for address, reply in zip(asked, replies, strict=True)
        }

    async def ask_promises(
        self, addresses: Iterable[str], request: PromiseEpochRequest
    ) -> dict[str, PromiseEpochResponse | PeerLost]:
        """Asks each broker for a promise.  After a PeerLost it is not known whether the broker has promised."""
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
            self._membership.slave_answered(address, reply)
            return
        if str(reply) != self._troubles.get(address):  # the same reason is logged once
            logger.warning("slave %s does not answer: %s; asking again", address, reply)
            self._troubles[address] = str(reply)
        self._membership.slave_answered(address, None)

    async def _ask_once(self, address: str) -> GetMemberResponse | PeerLost:
        async with self._channel(address) as channel:
            try:
                return await ask(
                    ReplicationStub(channel).GetMember(self._membership.question(), timeout=ANSWER_WITHIN_S)
                )
            except PeerLost as lost:
                return lost

    async def _ask_promise(self, address: str, request: PromiseEpochRequest) -> PromiseEpochResponse | PeerLost:
        async with self._channel(address) as channel:
            try:
                return await ask(ReplicationStub(channel).PromiseEpoch(request, timeout=ANSWER_WITHIN_S))
            except PeerLost as lost:
                return lost

    def _channel(self, address: str) -> grpc.aio.Channel:
        """Opens a channel for one question.  A channel that was kept for the next question would reconnect more and
        more rarely.
        """
        return self._open_channel(address, TRIED_AGAIN)
