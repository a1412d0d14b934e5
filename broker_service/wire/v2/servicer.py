"""V2Servicer: converts calls of the service apache.rocketmq.v2 to calls of the broker, and results to answers."""

import logging
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from urllib.parse import unquote

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from rocketmq_v2 import definition_pb2, service_pb2_grpc
from rocketmq_v2 import service_pb2 as pb
from rocketsim_proto.records.record import encode_host

from broker_service.broker.core.broker import Broker
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.reads.commits import NOT_FOUND, Commits
from broker_service.broker.reads.queue_lookup import QueueLookup
from broker_service.errors import RocketSimError
from broker_service.pop.deliveries import Delivery
from broker_service.runtime.deadlines import longest_wait_s, time_left_s
from broker_service.state.transaction_changes import MAX_TEXT
from broker_service.wire.clients import Clients, ClientStream, Context, client_of
from broker_service.wire.v2 import names, route_answers
from broker_service.wire.v2.endpoint import Endpoint
from broker_service.wire.v2.message_rules import in_ms
from broker_service.wire.v2.receiving import Receiving
from broker_service.wire.v2.sends import SendPath
from broker_service.wire.v2.settings import check_settings, poll_s_in, reply_to, topics_in
from broker_service.wire.v2.status import OK, Refused, answers_with, status_of
from broker_service.wire.v2.topic_routes import PASSED_ON, TopicRoutes
from broker_service.wire.v2.transaction_calls import TransactionCalls
from broker_service.wire.v2.unsent import Unsent

logger = logging.getLogger(__name__)

CLIENT_ID = "x-mq-client-id"


class V2Servicer(service_pb2_grpc.MessagingServiceServicer):
    def __init__(
        self,
        broker: Broker,
        endpoint: Endpoint,
        *,
        sends: SendPath,
        routes: TopicRoutes,
        commits: Commits,
        queues: QueueLookup,
        clients: Clients,
        receiving: Receiving,
        transactions: TransactionCalls,
    ) -> None:
        self._broker = broker
        self._endpoint = endpoint
        self._sends = sends
        self._routes = routes
        self._commits = commits
        self._lookup = queues
        self._clients = clients
        self._receiving = receiving
        self._transactions = transactions
        self._question = transactions.question  # bound once, because a bound method for each stream takes memory
        self._unsent = Unsent()

    # --- where the queues are ---------------------------------------------------------------------------------------

    @answers_with(pb.QueryRouteResponse)
    async def QueryRoute(self, request: pb.QueryRouteRequest, context: Context) -> pb.QueryRouteResponse:
        client_id_of(context)
        queues = await self._queues_of(request.topic, request.endpoints)
        own = self._broker.config.broker_name
        return pb.QueryRouteResponse(
            status=OK, message_queues=route_answers.message_queues(request.topic, queues, own, request.endpoints)
        )

    @answers_with(pb.QueryAssignmentResponse)
    async def QueryAssignment(self, request: pb.QueryAssignmentRequest, context: Context) -> pb.QueryAssignmentResponse:
        """Answers with the queues from which a push consumer receives.  The consumer group need not exist."""
        self._clients.called(client_id_of(context))
        group = self._group(request.group)
        queues = await self._queues_of(request.topic, request.endpoints)
        found = route_answers.assignments(
            request.topic,
            queues,
            self._broker.config.broker_name,
            request.endpoints,
            fifo=group.consume_message_orderly,
        )
        if not found:
            raise Refused(definition_pb2.FORBIDDEN, f"no readable queue of topic {request.topic.name}")
        return pb.QueryAssignmentResponse(status=OK, assignments=found)

    async def _queues_of(
        self, topic: definition_pb2.Resource, dialled: definition_pb2.Endpoints
    ) -> list[route_answers.Queues]:
        route_answers.check_dialled(dialled)
        name = names.topic_of(topic)
        queues = await self._routes.queues_of(name, self._endpoint.own_address)
        if not queues:
            raise names.topic_not_found(name)
        return queues

    # --- clients ----------------------------------------------------------------------------------------------------

    async def Telemetry(self, request_iterator: AsyncIterator[pb.TelemetryCommand], context: Context) -> None:
        """Exchanges settings and commands with a client, until the client ends the stream."""
        try:
            stream = ClientStream(client_id_of(context), context, self._question)
            self._clients.opened(stream)
        except RocketSimError as error:
            await context.write(pb.TelemetryCommand(status=status_of(error)))
            return
        with stream:
            # Unlike `request_iterator`, `context.read` keeps no command in memory while the stream is idle.
            while (command := await context.read()) is not grpc.aio.EOF:
                if command.WhichOneof("command") == "settings":
                    await self._answer_settings(stream, command.settings, context)
                del command

    async def _answer_settings(self, stream: ClientStream, settings: definition_pb2.Settings, context: Context) -> None:
        """Answers a client's settings with those of the broker.  The topics and the group need not exist.

        Invalid settings end the call with INVALID_ARGUMENT.
        """
        try:
            check_settings(settings)
            for topic in topics_in(settings):
                names.topic_of(topic)
            group = SubscriptionGroup()
            if settings.HasField("subscription"):
                group = self._group(settings.subscription.group)
        except RocketSimError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        self._clients.polls(stream.client_id, poll_s_in(settings))
        for topic in settings.publishing.topics:
            if self._broker.topics.get(topic.name) is not None:
                self._clients.publishes(stream.client_id, topic.name)
        reply = reply_to(settings, group, self._broker.config.max_message_size)
        await stream.write(pb.TelemetryCommand(status=OK, settings=reply))

    @answers_with(pb.HeartbeatResponse)
    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:
        """Keeps a consumer connected.  Always answers OK, because Go's client may send no id and fails on errors."""
        if (client_id := client_id_in(context)) and request.client_type != definition_pb2.PRODUCER:
            self._clients.called(client_id)
        return pb.HeartbeatResponse(status=OK)

    @answers_with(pb.NotifyClientTerminationResponse)
    async def NotifyClientTermination(
        self, request: pb.NotifyClientTerminationRequest, context: Context
    ) -> pb.NotifyClientTerminationResponse:
        """Removes a client that ends.  A producer's request names no consumer group, or an empty one."""
        self._clients.terminated(client_id_of(context))
        return pb.NotifyClientTerminationResponse(status=OK)

    def _group(self, resource: definition_pb2.Resource) -> SubscriptionGroup:
        name = names.group_of(resource)
        return self._broker.groups.get(name) or SubscriptionGroup(name)

    # --- sending ----------------------------------------------------------------------------------------------------

    @answers_with(pb.SendMessageResponse)
    async def SendMessage(self, request: pb.SendMessageRequest, context: Context) -> pb.SendMessageResponse:
        client_id = client_id_of(context)
        peer = peer_of(self._endpoint.sender_of(context.peer()))
        sent = await self._sends.send(request.messages, peer, longest_wait_s(context), client_id)
        self._clients.publishes(client_id, request.messages[0].topic.name)
        return sent

    @answers_with(pb.EndTransactionResponse)
    async def EndTransaction(self, request: pb.EndTransactionRequest, context: Context) -> pb.EndTransactionResponse:
        client_id_of(context)
        return pb.EndTransactionResponse(status=await self._transactions.end(request, longest_wait_s(context)))

    @answers_with(pb.RecallMessageResponse)
    async def RecallMessage(self, request: pb.RecallMessageRequest, context: Context) -> pb.RecallMessageResponse:
        """Recalls a message.  Passes the call on to the broker that has the message, because clients ask any broker."""
        client_id_of(context)
        headers = context.invocation_metadata() or ()
        if (other := self._sends.elsewhere(request)) and PASSED_ON not in dict(headers):
            answer = await self._routes.recall(request, other, headers, longest_wait_s(context))
            if answer is not None:
                return answer
        message_id = await self._sends.recall(request.topic, request.recall_handle, longest_wait_s(context))
        return pb.RecallMessageResponse(status=OK, message_id=message_id)

    # --- receiving --------------------------------------------------------------------------------------------------

    async def ReceiveMessage(self, request: pb.ReceiveMessageRequest, context: Context) -> None:
        """Pops messages, and sends a status, the messages and the delivery time.

        If the client ends the call early, all messages are given back.  All messages are made before the first one is
        sent, because gRPC is faster if no other work comes between the writes.  A message that cannot be made counts as
        a message whose sending had begun.
        """
        deliveries: Sequence[Delivery] = ()
        topic, answers = request.message_queue.topic, []
        begun, held, all_written, client_id = 0, 0, False, ""
        try:
            try:
                client_id = client_id_of(context)
                self._clients.called(client_id)
                self._unsent.check(client_id)
                left_s = time_left_s(context)
                found, deliveries = await self._receiving.pop(request, client_id, left_s)
                size = 0
                for delivery in deliveries:
                    begun += 1
                    message = self._receiving.message_of(delivery, topic)
                    answers.append(pb.ReceiveMessageResponse(message=message))
                    size += max(len(delivery.record), len(message.body))  # an unpacked body is larger than its record
                begun = 0
                # frees the records, because `answers` has the bodies
                deliveries = [delivery._replace(record=b"") for delivery in deliveries]
                if deliveries:
                    held = self._unsent.take(client_id, size)
            except (RocketSimError, OSError) as error:
                found = status_of(error)
            await context.write(pb.ReceiveMessageResponse(status=found))
            for answer in answers if held else ():
                begun += 1
                await context.write(answer)
            now = Timestamp()
            now.FromMilliseconds(self._broker.now_ms())
            await context.write(pb.ReceiveMessageResponse(delivery_timestamp=now))
            all_written = held > 0 or not deliveries
        finally:
            if held:
                self._unsent.give(client_id, held)
            if deliveries and not all_written:
                self._receiving.give_back(request, deliveries, begun)

    @answers_with(pb.AckMessageResponse)
    async def AckMessage(self, request: pb.AckMessageRequest, context: Context) -> pb.AckMessageResponse:
        self._clients.called(client_id_of(context))
        return await self._receiving.ack(request, longest_wait_s(context))

    async def ChangeInvisibleDuration(
        self, request: pb.ChangeInvisibleDurationRequest, context: Context
    ) -> pb.ChangeInvisibleDurationResponse:
        """Moves the deadline of a delivery.  The receipt handle stays the same.

        Every answer has the handle, even a refusal, because clients read the handle before they check the status.
        """
        try:
            self._clients.called(client_id_of(context))
            changed = await self._receiving.change_invisible(request, longest_wait_s(context))
        except (RocketSimError, OSError) as error:
            changed = status_of(error)
        return pb.ChangeInvisibleDurationResponse(status=changed, receipt_handle=request.receipt_handle)

    @answers_with(pb.ForwardMessageToDeadLetterQueueResponse)
    async def ForwardMessageToDeadLetterQueue(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, context: Context
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        """Makes the message a dead letter.  A second call for the same delivery is OK and makes no second copy."""
        self._clients.called(client_id_of(context))
        moved = await self._receiving.forward_to_dlq(request, longest_wait_s(context))
        return pb.ForwardMessageToDeadLetterQueueResponse(status=moved)

    @answers_with(pb.SyncLiteSubscriptionResponse)
    async def SyncLiteSubscription(
        self, request: pb.SyncLiteSubscriptionRequest, context: Context
    ) -> pb.SyncLiteSubscriptionResponse:
        raise unsupported("SyncLiteSubscription")

    async def PullMessage(self, request: pb.PullMessageRequest, context: Context) -> None:
        await context.write(pb.PullMessageResponse(status=status_of(unsupported("PullMessage"))))

    # --- offsets ----------------------------------------------------------------------------------------------------

    @answers_with(pb.UpdateOffsetResponse)
    async def UpdateOffset(self, request: pb.UpdateOffsetRequest, context: Context) -> pb.UpdateOffsetResponse:
        raise unsupported("UpdateOffset")

    @answers_with(pb.GetOffsetResponse)
    async def GetOffset(self, request: pb.GetOffsetRequest, context: Context) -> pb.GetOffsetResponse:
        """Answers with the group's committed offset of one queue: the offset of the next message to consume."""
        client_id_of(context)
        group = names.group_of(request.group)
        topic, queue_id = self._queue(request.message_queue)
        await self._lookup.bounds(topic, [queue_id])  # raises an error if the queue does not exist
        (found,) = await self._commits.query(group, [(topic, queue_id)], zero_for_new_group=False)
        if found.offset == NOT_FOUND:
            raise Refused(
                definition_pb2.OFFSET_NOT_FOUND, f"group {group} has no offset in queue {queue_id} of topic {topic}"
            )
        return pb.GetOffsetResponse(status=OK, offset=found.offset)

    @answers_with(pb.QueryOffsetResponse)
    async def QueryOffset(self, request: pb.QueryOffsetRequest, context: Context) -> pb.QueryOffsetResponse:
        """Answers with a queue's first offset, its end, or the first offset stored at or after a time."""
        client_id_of(context)
        topic, queue_id = self._queue(request.message_queue)
        if request.query_offset_policy == definition_pb2.TIMESTAMP:
            if not request.HasField("timestamp"):
                raise Refused(definition_pb2.BAD_REQUEST, "the policy is TIMESTAMP, and the request has no timestamp")
            (offset,) = await self._lookup.search(topic, [(queue_id, in_ms(request.timestamp))])
        else:
            (bounds,) = await self._lookup.bounds(topic, [queue_id])
            at_end = request.query_offset_policy == definition_pb2.END
            offset = bounds.max_offset if at_end else bounds.min_offset
        return pb.QueryOffsetResponse(status=OK, offset=offset)

    def _queue(self, queue: definition_pb2.MessageQueue) -> tuple[str, int]:
        topic = names.topic_of(queue.topic)
        names.check_broker(queue.broker.name, self._broker.config.broker_name)
        if self._broker.topics.get(topic) is None:
            raise names.topic_not_found(topic)
        return topic, queue.id


def client_id_of(context: Context) -> str:
    if client_id := client_id_in(context):
        return client_id
    raise Refused(definition_pb2.CLIENT_ID_REQUIRED, "client id cannot be empty")


def client_id_in(context: Context) -> str:
    metadata = context.invocation_metadata() or ()
    client_id = client_of(context, next((str(value) for key, value in metadata if key == CLIENT_ID), ""))
    if len(client_id) > MAX_TEXT and len(client_id.encode()) > MAX_TEXT:
        raise Refused(definition_pb2.BAD_REQUEST, f"client id {client_id[:40]!r}… is longer than {MAX_TEXT} bytes")
    return client_id


def unsupported(call: str) -> Refused:
    return Refused(definition_pb2.UNSUPPORTED, f"{call} is not supported")


@lru_cache(maxsize=4096)
def peer_of(peer: str) -> tuple[str, bytes]:
    """Returns a caller's address as text, and as the bytes that a record contains.  The address of a caller on a Unix
    socket is loopback.
    """
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return "127.0.0.1", encode_host("127.0.0.1", 0)
    host = host.strip("[]").partition("%")[0]
    return host, encode_host(host, int(port))
