"""TransactionServicer: converts calls of our own producers to calls of `transactions`, and decides nothing itself."""

import asyncio

from rocketsim_proto import broker_pb2, transactions_pb2_grpc
from rocketsim_proto import transactions_pb2 as pb
from rocketsim_proto.records import record

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.broker.put import PutPath
from broker_service.errors import InvalidParameter, NotFound
from broker_service.pop.deliveries import FINAL
from broker_service.put_result import commit_status
from broker_service.runtime.deadlines import longest_wait_s
from broker_service.runtime.rpc_errors import maps_errors
from broker_service.state import half_messages
from broker_service.state.transaction_changes import Resolution, TransactionId
from broker_service.transactions.transactions import Check, Transactions, UnknownTransaction
from broker_service.wire.clients import Clients, ClientStream, Context, client_of
from broker_service.wire.own.send_messages import send_of, send_response

MASTER_CHECK_S = 1.0  # a stream for questions checks this often whether the broker is still the master

_RESOLUTIONS = {pb.EndRequest.COMMIT: Resolution.COMMIT, pb.EndRequest.ROLLBACK: Resolution.ROLLBACK}


class TransactionServicer(transactions_pb2_grpc.TransactionsServicer):
    def __init__(self, broker: Broker, puts: PutPath, transactions: Transactions, clients: Clients) -> None:
        self._broker = broker
        self._puts = puts
        self._transactions = transactions
        self._clients = clients

    @maps_errors
    async def Prepare(self, request: pb.PrepareRequest, context: Context) -> broker_pb2.SendResponse:
        self._broker.check_name(request.broker_name)
        self._broker.check_writable(request.epoch)
        client_id = client_of(context, request.client_id)
        send = send_of(request, request.record, 1)
        placed = await self._transactions.begin(self._puts, send, client_id=client_id)
        self._clients.publishes(client_id, request.topic)
        status = await self._puts.safe(placed, longest_wait_s(context))
        return send_response(placed.appended, status, self._broker)

    @maps_errors
    async def End(self, request: pb.EndRequest, context: Context) -> pb.EndResponse:
        self._broker.check_name(request.broker_name)
        resolution = _RESOLUTIONS.get(request.resolution)
        if resolution is None:
            raise InvalidParameter(f"transaction {request.transaction_id!r} must end with COMMIT or ROLLBACK")
        transaction = TransactionId(request.topic, request.transaction_id)
        try:
            stored = await self._transactions.end(transaction, resolution, longest_wait_s(context))
        except UnknownTransaction as error:
            raise NotFound(str(error)) from error
        return pb.EndResponse(again=stored not in FINAL, status=commit_status(stored).name)

    async def Check(self, request: pb.CheckRequest, context: Context) -> None:
        """Keeps a stream open on which the broker asks this producer how its transactions end.

        The stream ends a moment before the caller's deadline, or when this broker is no longer the master.
        """
        stream = await self._opened(request, context)
        until = self._broker.clock() + longest_wait_s(context)
        for topic in request.topics:
            self._clients.publishes(stream.client_id, topic)
        with stream:
            # This loop polls the broker's role, because no event tells when a broker stops being the master.
            while self._is_master and (left_s := until - self._broker.clock()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(min(left_s, MASTER_CHECK_S))

    @maps_errors
    async def _opened(self, request: pb.CheckRequest, context: Context) -> ClientStream:
        self._broker.check_name(request.broker_name)
        self._broker.check_writable()
        if not request.client_id:
            raise InvalidParameter("the call names no client id")
        if not request.topics:
            raise InvalidParameter("a call that waits for questions about transactions must name their topics")
        stream = ClientStream(client_of(context, request.client_id), context, _question)
        self._clients.opened(stream)
        return stream

    @property
    def _is_master(self) -> bool:
        return self._broker.mastership.standing is Standing.WRITABLE and not self._broker.stopping


def _question(check: Check) -> pb.OpenTransaction:
    topic, name = check.transaction
    copy = half_messages.committed_copy(check.half, check.queue_id)
    return pb.OpenTransaction(topic=topic, transaction_id=name, record=record.encode(copy), times=check.times)
