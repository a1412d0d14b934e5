"""Sends over a plain socket if the broker offers one, else over gRPC."""

import time

import grpc
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import bytes_field
from rocketsim_proto.records.record import checksum

from rocketsim_client.addresses import local_ipv4
from rocketsim_client.transport import record_frame
from rocketsim_client.transport.own.answers import acknowledged
from rocketsim_client.transport.own.channels import Channels
from rocketsim_client.transport.own.range_streams import RangeStreams
from rocketsim_client.transport.sends import Acknowledged, Outgoing, SendCall


class SendStub:
    """The Send call of `BrokerStub`, for requests that are already encoded."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.Send: grpc.UnaryUnaryMultiCallable[bytes, pb.SendResponse] = channel.unary_unary(
            f"/{pb.DESCRIPTOR.services_by_name['Broker'].full_name}/Send",
            request_serializer=None,
            response_deserializer=pb.SendResponse.FromString,
        )


class GrpcSends:
    """Implements `SendCalls` over gRPC, and over plain sockets if it gets `streams`."""

    def __init__(self, channels: Channels, streams: RangeStreams | None) -> None:
        self.channels = channels
        self.streams = streams

    def send(self, address: str, outgoing: Outgoing, call: SendCall, timeout_s: float) -> Acknowledged:
        records, sizes = record_frame.encode(outgoing, local_ipv4(address))
        others = pb.SendRequest(
            topic=outgoing.topic,
            count=len(outgoing),
            crc32=checksum(records),
            producer_group=call.group,
            epoch=call.epoch,
            broker_name=call.broker_name,
            default_topic_queue_nums=call.default_topic_queue_nums,
        )
        answer = self._send(address, others, records, timeout_s)
        return acknowledged(answer, outgoing.queue_ids, sizes, address)

    def _send(
        self, address: str, others: pb.SendRequest, records: bytes | memoryview, timeout_s: float
    ) -> pb.SendResponse:
        """Sends over a plain socket if the broker offers one, else over gRPC."""
        streams = self.streams
        if streams is not None:
            begun = time.monotonic()
            sent = streams.send(address, others, records, timeout_s)
            if sent is not None:
                return sent
            timeout_s -= time.monotonic() - begun
            others.accepts_stream = streams.offers.wants_offer(address)
        request = bytes_field.join(pb.SendRequest.RECORDS_FIELD_NUMBER, [records], others.SerializeToString())
        answer: pb.SendResponse = self.channels.call(address, SendStub, "Send", request, timeout_s)
        if streams is not None and answer.HasField("stream"):
            streams.offers.offered(address, answer.stream)
        return answer
