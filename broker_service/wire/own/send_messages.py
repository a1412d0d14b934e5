"""Pure functions that convert the messages of Send and Prepare for PutPath, for gRPC and for plain sockets."""

from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import transactions_pb2

from broker_service.broker.core.broker import Broker
from broker_service.broker.put import FrameSend
from broker_service.put_result import Appended, PutStatus


def send_of(
    request: pb.SendRequest | transactions_pb2.PrepareRequest, records: bytes | memoryview, count: int
) -> FrameSend:
    return FrameSend(
        topic=request.topic,
        records=records,
        count=count,
        crc32=request.crc32,
        epoch=request.epoch,
        broker_name=request.broker_name,
        default_queue_nums=request.default_topic_queue_nums,
    )


def send_response(appended: Appended, status: PutStatus, broker: Broker) -> pb.SendResponse:
    response = pb.SendResponse(
        status=status.name,
        store_timestamp=appended.store_timestamp,
        store_host=broker.store_host,
        epoch=broker.epoch,
    )
    for queue in appended.queues:
        response.queues.add(queue_id=queue.queue_id, first_queue_offset=queue.first_queue_offset, count=queue.count)
    for commit_log_offset, count in appended.extents:
        response.runs.add(commit_log_offset=commit_log_offset, count=count)
    return response
