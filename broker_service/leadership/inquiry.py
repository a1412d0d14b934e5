"""Inquiry asks the other brokers of a slave's name, before the slave is promoted and while the slave is bound by a
promise.
"""

import asyncio

from broker_service.leadership.membership import Membership, answer_of, with_promise
from broker_service.leadership.promotion import OtherMember
from broker_service.leadership.registration import Registration
from broker_service.leadership.roll_call import RollCall
from broker_service.replication.promise import Promise, is_over
from broker_service.runtime.tasks import OwnedTasks

NAME_SERVERS_WITHIN_S = 2.0  # how long a promotion waits for the answers of name servers


class Inquiry:
    """`Membership` decides whom to ask, and `RollCall` asks.  The results include brokers that have not answered."""

    def __init__(
        self, membership: Membership, registration: Registration, roll_call: RollCall, tasks: OwnedTasks
    ) -> None:
        self._membership = membership
        self._registration = registration
        self._roll_call = roll_call
        self._tasks = tasks

    async def others(self, *masters: str) -> list[OtherMember]:
        """Asks every known broker of this name how far its log goes.

        `masters` are the addresses of masters that this slave follows or would follow.
        """
        candidates = self._membership.candidates(*masters)
        replies, _ = await asyncio.gather(
            self._roll_call.ask_each(candidates), self._registration.refresh(NAME_SERVERS_WITHIN_S)
        )
        candidates = self._membership.candidates(*masters)
        # A name server may have told of more brokers in the meantime.
        replies |= await self._roll_call.ask_each(candidates.keys() - replies.keys())
        return [
            OtherMember(reply.broker_id if reply else candidates[address], address, answer_of(reply))
            for address, reply in replies.items()
            if address in candidates
        ]

    async def promises(self, epoch: int, others: list[OtherMember]) -> list[OtherMember]:
        """Asks the slaves in `others` to promise that they follow no master of a lower epoch.

        Returns `others` with these slaves' answers, which say how far their logs go after the promise.
        """
        asked = [other.address for other in others if other.answer is not None and not other.answer.is_master]
        replies = await self._roll_call.ask_promises(asked, self._membership.request_for_promise(epoch))
        return [with_promise(other, epoch, replies.get(other.address)) for other in others]

    async def is_over(self, promise: Promise) -> bool:
        """Asks the candidate to which the promise was given; returns True if its promotion has ended without success.

        The candidate is asked at the address in the promise, and at each address that is now known for its broker id.
        """
        known = self._membership.candidates().items()
        elsewhere = [address for address, broker_id in known if broker_id == promise.broker_id]
        replies = await self._roll_call.ask_each([promise.address, *elsewhere])
        there = replies.pop(promise.address)
        same = [reply for reply in replies.values() if reply is not None and reply.broker_id == promise.broker_id]
        answers = same if there is None else [there]
        return any(is_over(promise, reply.broker_id, reply.candidate_epoch) for reply in answers)

    def announce_epoch(self, others: list[OtherMember]) -> None:
        """Sends the current epoch to these brokers in a task, by a GetMember call to each of them."""
        self._tasks.own("announce-epoch", self._roll_call.ask_each([other.address for other in others]))
