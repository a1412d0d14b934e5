"""Makes the calls that read, over gRPC.  Ranges come over a plain socket if the broker offers one."""

import logging
import os
import socket
import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing

import grpc
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import bytes_field
from rocketsim_proto.broker_pb2_grpc import BrokerStub
from rocketsim_proto.bytes_field import Received

from rocketsim_client.errors import BadAnswer
from rocketsim_client.model import (
    NO_EPOCH,
    GetMessageStatus,
    LogEpoch,
    MessageQueue,
    PullFrame,
    QueueBounds,
    Ranges,
    commit_status,
)
from rocketsim_client.transport.own.answers import pull_frame, queue_bounds
from rocketsim_client.transport.own.channels import Channels
from rocketsim_client.transport.own.range_streams import RangeStreams
from rocketsim_client.transport.reads import OffsetsAnswer, PullAnswer, PullCall

logger = logging.getLogger(__name__)


class RangeStub:
    """The PullRange call of `BrokerStub`, whose answers are decoded without a copy of the records."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.PullRange = channel.unary_stream(
            f"/{pb.DESCRIPTOR.services_by_name['Broker'].full_name}/PullRange",
            request_serializer=pb.PullRangeRequest.SerializeToString,
            response_deserializer=bytes_field.deserializer(pb.PullFrame),
        )


class GrpcReads:
    """Implements `ReadCalls` over gRPC, and ranges over plain sockets if it gets `streams`."""

    def __init__(self, channels: Channels, streams: RangeStreams | None, program: str = "") -> None:
        self.program = program
        self.channels = channels
        self.streams = streams
        self._ways: dict[str, str] = {}  # address -> how its last range came: gRPC or a plain socket

    def pull(self, address: str, call: PullCall, timeout_s: float) -> PullAnswer:
        request = pb.PullRequest(
            consumer_group=call.group,
            topic=call.topic,
            queue_id=call.queue_id,
            queue_offset=call.queue_offset,
            max_msg_nums=call.max_msg_nums,
            max_msg_bytes=call.max_msg_bytes,
            sub_expression=call.expression,
            expression_type="TAG",
            suspend_timeout_ms=call.suspend_timeout_ms,
            commit_offset=call.commit_offset,
            read_in=_epoch(call.read_in),
        )
        answer = self.channels.call(address, BrokerStub, "Pull", request, timeout_s)
        return PullAnswer(
            code=answer.code,
            status=GetMessageStatus(answer.status),
            next_begin_offset=answer.next_begin_offset,
            min_offset=answer.min_offset,
            max_offset=answer.max_offset,
            suggest_which_broker_id=answer.suggest_which_broker_id,
            broker_id=answer.broker_id,
            count=answer.count,
            records=answer.records,
            sizes=answer.sizes,
            read_in=LogEpoch(answer.read_in.epoch, answer.read_in.epoch_id),
        )

    def pull_range(
        self,
        address: str,
        ranges: Ranges,
        *,
        group: str,
        expression: str,
        max_frame_bytes: int,
        timeout_s: float,
        read_in: Mapping[tuple[str, int], LogEpoch] | None = None,
    ) -> Iterator[PullFrame]:
        request = pb.PullRangeRequest(
            consumer_group=group,
            ranges=[
                pb.PullRangeRequest.Range(
                    topic=one.topic,
                    queue_id=one.queue_id,
                    from_offset=one.from_offset,
                    until_offset=one.until_offset,
                    read_in=_epoch((read_in or {}).get((one.topic, one.queue_id), NO_EPOCH)),
                )
                for one in ranges
            ],
            sub_expression=expression,
            expression_type="TAG",
            max_frame_bytes=max_frame_bytes,
        )
        with closing(self._frames(address, request, timeout_s)) as frames:
            for answer in frames:
                yield pull_frame(answer, len(ranges), address)

    def _frames(
        self, address: str, request: pb.PullRangeRequest, timeout_s: float
    ) -> Generator[Received[pb.PullFrame], None, None]:
        """Pulls over a plain socket if the broker offers one, else over gRPC."""
        deadline = time.monotonic() + timeout_s
        streams = self.streams
        if streams is not None:
            frames = streams.frames(address, request, deadline, timeout_s)
            if frames is None and streams.offers.wants_offer(address):
                request.accepts_stream = True
                with closing(self.channels.stream(address, RangeStub, "PullRange", request, timeout_s)) as asked:
                    offer = None
                    for answer in asked:
                        if answer.message.HasField("stream"):
                            offer = answer.message.stream
                            break
                        self._uses(address, "gRPC")
                        yield answer
                    if offer is None:
                        return
                streams.offers.offered(address, offer)
                request.accepts_stream = False
                frames = streams.frames(address, request, deadline, timeout_s)
            if frames is not None:
                self._uses(address, "a plain socket")
                yield from frames
                return
        self._uses(address, "gRPC")
        left_s = deadline - time.monotonic()
        with closing(self.channels.stream(address, RangeStub, "PullRange", request, left_s)) as answers:
            yield from answers

    def _uses(self, address: str, way: str) -> None:
        """Logs whether the ranges of an address come over gRPC or a plain socket, if that has changed."""
        if self._ways.get(address) != way:
            self._ways[address] = way
            logger.info("ranges of %s come over %s", address, way)

    def commit_offsets(
        self, address: str, group: str, offsets: Mapping[MessageQueue, int], timeout_s: float
    ) -> OffsetsAnswer:
        request = pb.CommitOffsetsRequest(
            consumer_group=group,
            entries=[
                pb.CommitOffsetsRequest.Entry(topic=queue.topic, queue_id=queue.queue_id, offset=offset)
                for queue, offset in offsets.items()
            ],
            client_id=f"{self.program} {socket.gethostname()[:64]}@{os.getpid()}".strip(),
        )
        answer = self.channels.call(address, BrokerStub, "CommitOffsets", request, timeout_s)
        if len(answer.offsets) != len(offsets):
            raise BadAnswer(
                f"{address} answered {len(answer.offsets)} offsets to {len(offsets)} commits", address=address
            )
        values = [(queue.topic, queue.queue_id, value) for queue, value in zip(offsets, answer.offsets, strict=True)]
        return OffsetsAnswer(values, answer.broker_id, commit_status(answer.status))

    def query_offsets(
        self, address: str, group: str, queues: Sequence[MessageQueue], zero_for_new_group: bool, timeout_s: float
    ) -> OffsetsAnswer:
        request = pb.QueryOffsetsRequest(consumer_group=group, zero_for_new_group=zero_for_new_group)
        for queue in queues:
            request.queues.add(topic=queue.topic, queue_id=queue.queue_id)
        answer = self.channels.call(address, BrokerStub, "QueryOffsets", request, timeout_s)
        return OffsetsAnswer(
            [(e.topic, e.queue_id, e.offset) for e in answer.entries],
            answer.broker_id,
            generations=[e.generation for e in answer.entries],
        )

    def queue_bounds(
        self,
        address: str,
        topic: str,
        queue_ids: Sequence[int],
        timeout_s: float,
        read_in: Collection[LogEpoch] = (),
        group: str = "",
        closed: bool = False,
    ) -> dict[int, QueueBounds]:
        request = pb.QueueBoundsRequest(
            topic=topic, queue_ids=list(queue_ids), consumer_group=group, closed_queues=closed
        )
        for epoch in read_in:
            request.read_in.add(epoch=epoch.epoch, epoch_id=epoch.epoch_id)
        answer = self.channels.call(address, BrokerStub, "QueueBounds", request, timeout_s)
        return queue_bounds(answer, address)

    def wait_for_records(
        self, address: str, topic: str, ends: Mapping[int, int], hold_s: float, timeout_s: float
    ) -> bool:
        request = pb.WaitForRecordsRequest(
            topic=topic, queue_ids=ends.keys(), ends=ends.values(), hold_ms=round(hold_s * 1000)
        )
        answer = self.channels.call(address, BrokerStub, "WaitForRecords", request, hold_s + timeout_s)
        return bool(answer.arrived)

    def search_offsets(
        self, address: str, topic: str, timestamps: Mapping[int, int], timeout_s: float
    ) -> dict[int, int]:
        request = pb.SearchOffsetsRequest(topic=topic)
        for queue_id, timestamp in timestamps.items():
            request.entries.add(queue_id=queue_id, timestamp=timestamp)
        answer = self.channels.call(address, BrokerStub, "SearchOffsets", request, timeout_s)
        if len(answer.offsets) != len(timestamps):
            raise BadAnswer(f"{address} answered {len(answer.offsets)} of {len(timestamps)} searches", address=address)
        return dict(zip(timestamps, answer.offsets, strict=True))


def _epoch(epoch: LogEpoch) -> pb.LogEpoch | None:
    return pb.LogEpoch(epoch=epoch.epoch, epoch_id=epoch.epoch_id) if epoch.epoch else None
