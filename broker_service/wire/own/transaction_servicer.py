"""proto <-> transactions for our own producers; decides nothing itself."""

import asyncio
from functools import partial
from typing import Any

import grpc
from rocketsim_proto import broker_pb2, transactions_pb2_grpc
from rocketsim_proto import transactions_pb2 as pb
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record, RecordError

from broker_service.access.signature import client_of_user
from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.broker.put import PutPath, Send
from broker_service.errors import InvalidParameter, MessageIllegal, NotFound
from broker_service.model import PutStatus, commit_status
from broker_service.pop.model import FINAL
from broker_service.runtime.deadlines import longest_wait_s
from broker_service.runtime.rpc_errors import maps_errors
from broker_service.state import half_messages
from broker_service.state.transaction_changes import Prepared, Resolution, TransactionId
from broker_service.transactions.transactions import Check, Transactions, UnknownTransaction
from broker_service.wire.v2.clients import Clients, ClientStream

Context = grpc.aio.ServicerContext

LOOK_S = 1.0  # how often a held call looks whether this broker is still the master

_RESOLUTIONS = {pb.EndRequest.COMMIT: Resolution.COMMIT, pb.EndRequest.ROLLBACK: Resolution.ROLLBACK}


class TransactionServicer(transactions_pb2_grpc.TransactionsServicer):
    def __init__(self, broker: Broker, puts: PutPath, transactions: Transactions, clients: Clients) -> None:
        self._broker = broker
        self._puts = puts
        self._transactions = transactions
        self._clients = clients

    @maps_errors
    async def Prepare(self, request: pb.PrepareRequest, context: Context[Any, Any]) -> broker_pb2.SendResponse:
        self._broker.check_name(request.broker_name)
        self._broker.check_writable(request.epoch)
        message = _message_of(request)
        client_id = _client_of(request, context)
        timeout_s = longest_wait_s(context)
        await self._transactions.get_room(request.topic)
        send = Send(
            topic=request.topic,
            records=request.record,
            count=1,
            crc32=request.crc32,
            epoch=request.epoch,
            default_queue_nums=request.default_topic_queue_nums,
            timeout_s=timeout_s,
            stored_as=partial(self._transactions.half_of, client_id=client_id, immunity_s=0),
        )
        begun = await self._transactions.begin(message, partial(self._puts.put, send))
        if isinstance(begun, Prepared):
            status = await self._broker.acknowledgements.wait(self._broker.store.end_offset, timeout_s)
            return self._prepared(begun.queue_offset, begun.log_offset, status)
        appended, status = begun
        self._clients.publishes(client_id, request.topic)
        (queue,), ((log_offset, _),) = appended.queues, appended.extents
        return self._prepared(queue.first_queue_offset, log_offset, status)

    def _prepared(self, queue_offset: int, log_offset: int, status: PutStatus) -> broker_pb2.SendResponse:
        response = broker_pb2.SendResponse(
            status=status.name, store_host=self._broker.store_host, epoch=self._broker.epoch
        )
        response.queues.add(first_queue_offset=queue_offset, count=1)
        response.runs.add(commit_log_offset=log_offset, count=1)
        return response

    @maps_errors
    async def End(self, request: pb.EndRequest, context: Context[Any, Any]) -> pb.EndResponse:
        self._broker.check_name(request.broker_name)
        resolution = _RESOLUTIONS.get(request.resolution)
        if resolution is None:
            raise InvalidParameter(f"transaction {request.transaction_id!r}: COMMIT or ROLLBACK expected")
        transaction = TransactionId(request.topic, request.transaction_id)
        try:
            stored = await self._transactions.end(transaction, resolution, longest_wait_s(context))
        except UnknownTransaction as error:
            raise NotFound(str(error)) from error
        return pb.EndResponse(again=stored not in FINAL, status=commit_status(stored).name)

    async def Check(self, request: pb.CheckRequest, context: Context[Any, Any]) -> None:
        """Ends a moment before the caller's deadline, and when this broker is the master no more."""
        stream = await self._opened(request, context)
        until = self._broker.clock() + longest_wait_s(context)
        for topic in request.topics:
            self._clients.publishes(stream.client_id, topic)
        try:
            # No event tells that a broker stops being the master.
            while self._is_master and (left_s := until - self._broker.clock()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(min(left_s, LOOK_S))
        except asyncio.CancelledError:
            if not stream.is_closing:
                raise
        finally:
            self._clients.ended(stream)

    @maps_errors
    async def _opened(self, request: pb.CheckRequest, context: Context[Any, Any]) -> ClientStream:
        self._broker.check_name(request.broker_name)
        self._broker.check_writable()
        if not request.client_id:
            raise InvalidParameter("a client id is missing")
        if not request.topics:
            raise InvalidParameter(
                "a call for questions names topics: those of the transactions that it is asked about"
            )
        stream = ClientStream(_client_of(request, context), context, _question)
        self._clients.opened(stream)
        return stream

    @property
    def _is_master(self) -> bool:
        return self._broker.mastership.standing is Standing.WRITABLE and not self._broker.stopping


def _client_of(request: pb.PrepareRequest | pb.CheckRequest, context: Context[Any, Any]) -> str:
    return client_of_user(context.invocation_metadata() or (), request.client_id)


def _message_of(request: pb.PrepareRequest) -> Record:
    """The message; the put path checks all of it once more."""
    try:
        message = record.decode(request.record, check_crc=False)
    except RecordError as error:
        raise MessageIllegal(f"topic {request.topic}: the record cannot be read: {error}") from error
    if not message.properties.get(record.PROPERTY_UNIQ_KEY):
        raise MessageIllegal(f"topic {request.topic}: a transactional message has an id (UNIQ_KEY)")
    if not message.properties.keys().isdisjoint((record.PROPERTY_DELAY, record.PROPERTY_DELIVER_MS)):
        raise MessageIllegal(f"topic {request.topic}: a transactional message cannot have a delay or a delivery time")
    return message


def _question(check: Check) -> pb.OpenTransaction:
    topic, name = check.transaction
    copy = half_messages.committed_copy(check.half, check.queue_id)
    return pb.OpenTransaction(topic=topic, transaction_id=name, record=record.encode(copy), times=check.times)
