"""BrokerServicer: converts the calls of producers and consumers to calls of the broker, and decides nothing itself."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import broker_pb2_grpc, bytes_field
from rocketsim_proto.model import LogEpoch

from broker_service.broker.core.broker import Broker
from broker_service.broker.core.mastership import Standing
from broker_service.broker.put import PutPath
from broker_service.broker.reads.commits import CommitEntry, Commits
from broker_service.broker.reads.pull import Pull, PullPath
from broker_service.broker.reads.pull_range import RangePath
from broker_service.broker.reads.queue_lookup import QueueLookup
from broker_service.errors import InvalidParameter
from broker_service.runtime.deadlines import longest_wait_s
from broker_service.runtime.rpc_errors import maps_errors, maps_stream_errors
from broker_service.wire.clients import Context
from broker_service.wire.own.range_messages import ranges_of, without_records
from broker_service.wire.own.send_messages import send_of, send_response


class BrokerServicer(broker_pb2_grpc.BrokerServicer):
    def __init__(
        self,
        broker: Broker,
        puts: PutPath,
        pulls: PullPath,
        ranges: RangePath,
        commits: Commits,
        queues: QueueLookup,
        stream_offer: Callable[[], pb.StreamOffer | None],
    ) -> None:
        self._broker = broker
        self._puts = puts
        self._pulls = pulls
        self._ranges = ranges
        self._commits = commits
        self._queues = queues
        self._stream_offer = stream_offer

    @maps_errors
    async def Send(self, received: bytes_field.Received[pb.SendRequest], context: Context) -> pb.SendResponse:
        """Appends messages.  `received` holds the records as bytes that are not parsed (see `add_to_server`)."""
        records, request = received
        placed = await self._puts.append(send_of(request, records, request.count))
        status = await self._puts.safe(placed, longest_wait_s(context))
        response = send_response(placed.appended, status, self._broker)
        if request.accepts_stream and (offer := self._stream_offer()) is not None:
            response.stream.CopyFrom(offer)
        return response

    @maps_errors
    async def Pull(self, request: pb.PullRequest, context: Context) -> pb.PullResponse:
        hold_s = longest_wait_s(context)
        pulled = await self._pulls.pull(
            Pull(
                group=request.consumer_group,
                topic=request.topic,
                queue_id=request.queue_id,
                queue_offset=request.queue_offset,
                max_msg_nums=request.max_msg_nums,
                max_msg_bytes=request.max_msg_bytes,
                sub_expression=request.sub_expression,
                expression_type=request.expression_type,
                suspend_s=min(request.suspend_timeout_ms / 1000, hold_s),
                commit_offset=request.commit_offset if request.HasField("commit_offset") else None,
                read_in=LogEpoch(request.read_in.epoch, request.read_in.epoch_id),
            )
        )
        return pb.PullResponse(
            code=pulled.code.name,
            status=pulled.status.name,
            next_begin_offset=pulled.next_begin_offset,
            min_offset=pulled.min_offset,
            max_offset=pulled.max_offset,
            suggest_which_broker_id=pulled.suggested_broker_id,
            broker_id=self._broker.broker_id,
            count=pulled.count,
            records=pulled.records,
            sizes=pulled.sizes,
            epoch=self._broker.epoch,
            read_in=pb.LogEpoch(**pulled.read_in._asdict()),
        )

    @maps_stream_errors
    async def PullRange(self, request: pb.PullRangeRequest, context: Context) -> AsyncIterator[bytes]:
        """Yields answers that are serialized already (see `add_to_server`)."""
        if request.accepts_stream and (offer := self._stream_offer()) is not None:
            yield pb.PullFrame(stream=offer).SerializeToString()
            return
        self._ranges.calls.note(request.consumer_group, {one.topic for one in request.ranges}, is_stream=False)
        frames = self._ranges.pull_range(
            request.consumer_group,
            ranges_of(request),
            request.sub_expression,
            request.expression_type,
            request.max_frame_bytes,
        )
        async for frame in frames:
            others = without_records(frame, self._broker.broker_id, self._broker.epoch)
            data = bytes_field.join(pb.PullFrame.RECORDS_FIELD_NUMBER, frame.records, others)
            frame.records.clear()  # without this, a client that does not read would keep deleted log files on the disk
            yield data

    @maps_errors
    async def CommitOffsets(self, request: pb.CommitOffsetsRequest, context: Context) -> pb.CommitOffsetsResponse:
        entries = [CommitEntry(entry.topic, entry.queue_id, entry.offset) for entry in request.entries]
        standing, status = await self._commits.commit_and_share(
            request.consumer_group, entries, longest_wait_s(context), request.client_id
        )
        return pb.CommitOffsetsResponse(
            offsets=standing,
            status=status.name,
            broker_id=self._broker.broker_id,
            epoch=self._broker.epoch,
        )

    @maps_errors
    async def QueryOffsets(self, request: pb.QueryOffsetsRequest, context: Context) -> pb.QueryOffsetsResponse:
        found = await self._commits.query(
            request.consumer_group,
            [(queue.topic, queue.queue_id) for queue in request.queues],
            zero_for_new_group=request.zero_for_new_group,
        )
        return pb.QueryOffsetsResponse(
            entries=[
                pb.QueryOffsetsResponse.Entry(
                    topic=entry.topic, queue_id=entry.queue_id, offset=entry.offset, generation=entry.generation
                )
                for entry in found
            ],
            broker_id=self._broker.broker_id,
            epoch=self._broker.epoch,
        )

    @maps_errors
    async def QueueBounds(self, request: pb.QueueBoundsRequest, context: Context) -> pb.QueueBoundsResponse:
        found = await self._queues.bounds(request.topic, request.queue_ids, closed=request.closed_queues)
        topic = self._broker.topics.existing(request.topic)
        queue_ids = [item.queue_id for item in found]
        epochs = {LogEpoch(item.epoch, item.epoch_id) for item in request.read_in}
        ends = {epoch: self._queues.ends_in(request.topic, queue_ids, epoch) for epoch in epochs}
        calls = self._ranges.calls.of(request.consumer_group, request.topic)
        return pb.QueueBoundsResponse(
            entries=[
                pb.QueueBoundsResponse.Entry(
                    queue_id=bounds.queue_id,
                    min_offset=bounds.min_offset,
                    max_offset=bounds.max_offset,
                    last_store_timestamp=bounds.last_store_timestamp,
                    size_bytes=bounds.size_bytes,
                )
                for bounds in found
            ],
            broker_id=self._broker.broker_id,
            epoch=self._broker.epoch,
            is_master=self._broker.mastership.standing is Standing.WRITABLE,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            offers_streams=self._stream_offer() is not None,
            ranges_over_streams=calls.over_streams,
            ranges_over_grpc=calls.over_grpc,
            log_epoch=pb.LogEpoch(**self._broker.log_epoch._asdict()),
            epoch_ends=[
                pb.QueueBoundsResponse.EpochEnd(epoch=pb.LogEpoch(**epoch._asdict()), offsets=offsets)
                for epoch, offsets in sorted(ends.items())
                if offsets is not None
            ],
        )

    @maps_errors
    async def WaitForRecords(self, request: pb.WaitForRecordsRequest, context: Context) -> pb.WaitForRecordsResponse:
        if not 0 < len(request.queue_ids) == len(request.ends):
            raise InvalidParameter(
                f"a wait for records of topic {request.topic} names {len(request.queue_ids)} queues and "
                f"{len(request.ends)} ends: name at least one queue, and an end for each"
            )
        ends = dict(zip(request.queue_ids, request.ends, strict=True))
        hold_s = min(request.hold_ms / 1000, longest_wait_s(context))
        return pb.WaitForRecordsResponse(arrived=await self._queues.wait_for_records(request.topic, ends, hold_s))

    @maps_errors
    async def SearchOffsets(self, request: pb.SearchOffsetsRequest, context: Context) -> pb.SearchOffsetsResponse:
        offsets = await self._queues.search(
            request.topic, [(entry.queue_id, entry.timestamp) for entry in request.entries]
        )
        return pb.SearchOffsetsResponse(offsets=offsets, broker_id=self._broker.broker_id)


def add_to_server(servicer: BrokerServicer, server: Any) -> None:
    """Registers the service with a server as generated code does, except for the methods PullRange and Send.

    PullRange serializes its answers itself, and Send takes its records as bytes that are not parsed, so that neither
    method copies the records into a protobuf message.
    """
    broker_pb2_grpc.add_BrokerServicer_to_server(servicer, server)
    frames: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
        servicer.PullRange, request_deserializer=pb.PullRangeRequest.FromString
    )
    name = pb.DESCRIPTOR.services_by_name["Broker"].full_name
    sends: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
        servicer.Send,
        request_deserializer=bytes_field.deserializer(pb.SendRequest),
        response_serializer=pb.SendResponse.SerializeToString,
    )
    server.add_registered_method_handlers(name, {"PullRange": frames, "Send": sends})
