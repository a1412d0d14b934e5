"""RollCall: a master asks the slaves that its configuration names who they are and how far their logs go.

A pair without name servers hears so of a slave that was promoted meanwhile, or has what was lost here.
"""

import asyncio
import logging
from collections.abc import Callable

from rocketsim_proto.replication_pb2 import GetMemberRequest, GetMemberResponse
from rocketsim_proto.replication_pb2_grpc import ReplicationStub

from broker_service.peer_call import PeerLost, ask
from broker_service.server import OpenChannel

logger = logging.getLogger(__name__)

ANSWER_WITHIN_S = 2.0

Answered = Callable[[str, GetMemberResponse | None], None]


class RollCall:
    """`request` makes the question (None: nothing to ask now), `answered` hears each answer or that there was none,
    `pause_s` says how long to wait for the next round.
    """

    def __init__(
        self,
        slaves: tuple[str, ...],
        *,
        request: Callable[[], GetMemberRequest | None],
        answered: Answered,
        pause_s: Callable[[], float],
        open_channel: OpenChannel,
    ) -> None:
        self._slaves = slaves
        self._request = request
        self._answered = answered
        self._pause_s = pause_s
        self._open_channel = open_channel

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for address in self._slaves:
                tasks.create_task(self._ask(address), name=f"ask-{address}")

    async def _ask(self, address: str) -> None:
        trouble = ""
        while True:
            request = self._request()
            if request is not None:
                reason = await self._ask_once(address, request)
                if reason and reason != trouble:  # once, not at every try
                    logger.warning("slave %s does not answer: %s; asked again", address, reason)
                trouble = reason
            await asyncio.sleep(self._pause_s())

    async def _ask_once(self, address: str, request: GetMemberRequest) -> str:
        """Why there was no answer; empty if there was one."""
        # A channel of its own for every question: one that is kept tries again ever more rarely.
        async with self._open_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            try:
                reply = await ask(ReplicationStub(channel).GetMember(request, timeout=ANSWER_WITHIN_S))
            except PeerLost as lost:
                self._answered(address, None)
                return str(lost)
        self._answered(address, reply)
        return ""
