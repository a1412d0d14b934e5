"""TransactionCalls: converts commits and rollbacks of RocketMQ 5's clients, and the broker's questions to their
producers.
"""

from rocketmq_v2 import definition_pb2, service_pb2

from broker_service.broker.core.broker import Broker
from broker_service.pop.deliveries import FINAL
from broker_service.state.transaction_changes import Resolution, TransactionId
from broker_service.transactions.transactions import Check, Transactions, UnknownTransaction
from broker_service.wire.v2 import delivered_message, names
from broker_service.wire.v2.status import OK, STORED_BUT, Refused, status

pb = definition_pb2

_RESOLUTIONS = {pb.COMMIT: Resolution.COMMIT, pb.ROLLBACK: Resolution.ROLLBACK}


class TransactionCalls:
    def __init__(self, broker: Broker, transactions: Transactions) -> None:
        self._broker = broker
        self._transactions = transactions

    async def end(self, request: service_pb2.EndTransactionRequest, timeout_s: float) -> pb.Status:
        """Commits or rolls back a transaction.  Changes nothing if the producer does not know the outcome yet."""
        topic = names.topic_of(request.topic)
        name = request.transaction_id
        if not name.strip():
            raise Refused(pb.INVALID_TRANSACTION_ID, "transaction id cannot be blank")
        if request.message_id not in ("", name):  # a transaction's id is the id of its message
            raise Refused(
                pb.INVALID_TRANSACTION_ID, f"transaction {name[:80]!r} does not have the message that the request names"
            )
        if self._broker.topics.get(topic) is None:
            raise names.topic_not_found(topic)
        resolution = _RESOLUTIONS.get(request.resolution, Resolution.UNKNOWN)
        try:
            stored = await self._transactions.end(TransactionId(topic, name), resolution, timeout_s)
        except UnknownTransaction as error:
            raise Refused(pb.INVALID_TRANSACTION_ID, str(error)) from error
        if stored in FINAL:
            return OK
        return status(STORED_BUT[stored], f"the outcome is stored, but {stored.name}; end the transaction again")

    def question(self, check: Check) -> service_pb2.TelemetryCommand:
        """Returns the command that asks a producer how the transaction ends."""
        topic, name = check.transaction
        message = delivered_message.message_of(
            check.half,
            pb.Resource(name=topic),
            queue_id=check.queue_id,
            queue_offset=check.half.queue_offset,
            attempt=1,
            receipt_handle="",
            max_body_size=self._broker.config.max_message_size,
        )
        command = service_pb2.RecoverOrphanedTransactionCommand(message=message, transaction_id=name)
        return service_pb2.TelemetryCommand(recover_orphaned_transaction_command=command)
