"""What generated messages mean: answers turned into the client's values, or BadAnswer where they cannot be true.
Pure."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import bytes_field
from rocketsim_proto import namesrv_pb2 as ns

from rocketsim_client.errors import BadAnswer
from rocketsim_client.model import GetMessageStatus, PullFrame, Segment, SendStatus
from rocketsim_client.route import BrokerData
from rocketsim_client.transport import Acknowledged


def broker_data(data: ns.BrokerData) -> BrokerData:
    return BrokerData(data.cluster_name, data.broker_name, dict(data.broker_addrs), data.epoch)


def acknowledged(answer: pb.SendResponse, queue_ids: Sequence[int], sizes: Sequence[int], address: str) -> Acknowledged:
    """Give every message its place: offsets of a queue are consecutive in frame order, records of a run lie back to
    back."""
    count = len(sizes)
    if sum(run.count for run in answer.runs) != count or sum(queue.count for queue in answer.queues) != count:
        raise BadAnswer(
            f"{address} acknowledged another number of messages than the {count} it was sent", address=address
        )
    if count == 1:
        only_queue, only_run = answer.queues[0].first_queue_offset, answer.runs[0].commit_log_offset
        return Acknowledged(
            SendStatus(answer.status), [only_queue], [only_run], answer.store_host, answer.store_timestamp
        )
    ids = np.asarray(queue_ids)
    queue_offsets = np.full(count, -1, np.int64)
    for queue in answer.queues:
        mine = np.flatnonzero(ids == queue.queue_id)
        if len(mine) != queue.count:
            raise BadAnswer(f"{address} acknowledged {queue.count} messages in queue {queue.queue_id}, not {len(mine)}")
        queue_offsets[mine] = np.arange(queue.first_queue_offset, queue.first_queue_offset + queue.count)
    lengths = np.asarray(sizes, np.int64)
    starts = np.cumsum(lengths) - lengths
    log_offsets, at = starts, 0
    for run in answer.runs:
        piece = slice(at, at + run.count)
        log_offsets[piece] += run.commit_log_offset - starts[at]
        at += run.count
    return Acknowledged(
        SendStatus(answer.status),
        queue_offsets.tolist(),
        log_offsets.tolist(),
        answer.store_host,
        answer.store_timestamp,
    )


class ReceivedFrame(NamedTuple):
    """A PullFrame whose records are where gRPC left them."""

    records: bytes | memoryview
    answer: pb.PullFrame  # the other fields

    @classmethod
    def of(cls, data: bytes) -> "ReceivedFrame":
        records, others = bytes_field.split(pb.PullFrame.RECORDS_FIELD_NUMBER, data)
        answer = pb.PullFrame.FromString(others)
        return cls(answer.records or records, answer)


def pull_frame(received: ReceivedFrame, range_count: int, address: str) -> PullFrame:
    records, answer = received
    segments = [
        Segment(s.range_index, s.count, s.next_offset, s.min_offset, s.max_offset, GetMessageStatus(s.status))
        for s in answer.segments
    ]
    sizes = answer.sizes
    if any(segment.range_index >= range_count for segment in segments):
        raise BadAnswer(f"{address} sent a piece of a range that was not asked for", address=address)
    if sizes:
        count = sum(segment.count for segment in segments)
        if len(sizes) != 4 * count or int(np.frombuffer(sizes, "<u4").sum(dtype=np.int64)) != len(records):
            raise BadAnswer(
                f"{address} sent {len(records)} bytes of records, {len(sizes) // 4} sizes and a count of {count}: "
                "they do not agree",
                address=address,
            )
    return PullFrame(records, sizes, segments, answer.suggest_which_broker_id, answer.broker_id)
