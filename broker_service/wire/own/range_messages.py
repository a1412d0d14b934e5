"""Pure functions for gRPC and plain sockets that convert PullRange's messages to RangePath's ranges, and RangePath's
frames to answers.
"""

from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto.model import LogEpoch

from broker_service.broker.reads.pull_range import Frame, Range


def ranges_of(request: pb.PullRangeRequest) -> list[Range]:
    return [
        Range(
            item.topic,
            item.queue_id,
            item.from_offset,
            item.until_offset,
            LogEpoch(item.read_in.epoch, item.read_in.epoch_id),
        )
        for item in request.ranges
    ]


def without_records(frame: Frame, broker_id: int, epoch: int) -> bytes:
    """Returns a frame as a serialized PullFrame without records, because the records are sent as slices of the log."""
    return pb.PullFrame(
        sizes=frame.sizes,
        segments=[
            pb.PullFrame.Segment(
                range_index=segment.range_index,
                count=segment.count,
                next_offset=segment.next_offset,
                min_offset=segment.min_offset,
                max_offset=segment.max_offset,
                status=segment.status.name,
            )
            for segment in frame.segments
        ],
        suggest_which_broker_id=frame.suggested_broker_id,
        broker_id=broker_id,
        epoch=epoch,
    ).SerializeToString()
