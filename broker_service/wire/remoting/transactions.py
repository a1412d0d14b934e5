"""TransactionAnswers: ends transactions of producers that speak the remoting protocol.

A producer sends the message with the property TRAN_MSG (`sends.py`), and gets the offsets of the half message, which a
commit or rollback must name.  If no commit or rollback comes, the broker sends the producer CHECK_TRANSACTION_STATE
with the same offsets (`members.py`), and the producer then ends the transaction.
"""

from rocketsim_proto.records.record import PROPERTY_PRODUCER_GROUP, Record
from rocketsim_proto.remoting.codes import RequestCode

from broker_service.access.remoting import request_topic_check
from broker_service.access.rights import PUB
from broker_service.errors import InvalidParameter
from broker_service.runtime.remoting.calls import Answer, Handlers, Request
from broker_service.state import half_messages
from broker_service.state.transaction_changes import Resolution, TransactionId
from broker_service.transactions.transactions import Transactions
from broker_service.wire.remoting.sends import SAFE_WAIT_S, put_answer

# the code 0 stands for a producer that does not know the outcome yet
_RESOLUTIONS = {8: Resolution.COMMIT, 12: Resolution.ROLLBACK}


class TransactionAnswers:
    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def handlers(self) -> Handlers:
        return {RequestCode.END_TRANSACTION: self.end}

    async def end(self, request: Request) -> Answer:
        resolution = _RESOLUTIONS.get(request.number("commitOrRollback", 0))
        if resolution is None:
            return Answer()
        log_offset = request.number("commitLogOffset")
        half = await self._transactions.half_at(log_offset)
        self._check_is_its_own(request, half)
        topic = half_messages.real_topic(half)
        request_topic_check(request, *PUB)(topic)
        transaction = TransactionId(topic, half.message_id)
        return put_answer(await self._transactions.end(transaction, resolution, SAFE_WAIT_S))

    @staticmethod
    def _check_is_its_own(request: Request, half: Record) -> None:
        """Raises InvalidParameter unless the request names topic, producer group and queue offset of the half message.

        RocketMQ also checks these fields, because a log offset alone can be guessed.  Clients before RocketMQ 5 name no
        topic.
        """
        topic, group = half_messages.real_topic(half), half.properties.get(PROPERTY_PRODUCER_GROUP, "")
        for what, said, found in (
            ("topic", request.text("topic", "") or topic, topic),
            ("producer group", request.text("producerGroup", ""), group),
            ("queue offset", str(request.number("tranStateTableOffset")), str(half.queue_offset)),
        ):
            if said != found:
                raise InvalidParameter(
                    f"the half message at log offset {half.commit_log_offset} has another {what} than {said[:80]!r}"
                )
