"""Send's messages <-> the frames and appends of PutPath, for gRPC and for plain sockets.  Pure."""

from rocketsim_proto import broker_pb2 as pb

from broker_service.broker.put import Send
from broker_service.model import Appended, PutStatus


def send_of(request: pb.SendRequest, records: bytes | memoryview, timeout_s: float) -> Send:
    return Send(
        topic=request.topic,
        records=records,
        count=request.count,
        crc32=request.crc32,
        epoch=request.epoch,
        broker_name=request.broker_name,
        default_queue_nums=request.default_topic_queue_nums,
        timeout_s=timeout_s,
    )


def send_response(appended: Appended, status: PutStatus, store_host: bytes, epoch: int) -> pb.SendResponse:
    response = pb.SendResponse(
        status=status.name, store_timestamp=appended.store_timestamp, store_host=store_host, epoch=epoch
    )
    for queue in appended.queues:
        response.queues.add(queue_id=queue.queue_id, first_queue_offset=queue.first_queue_offset, count=queue.count)
    for commit_log_offset, count in appended.extents:
        response.runs.add(commit_log_offset=commit_log_offset, count=count)
    return response
