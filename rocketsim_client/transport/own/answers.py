"""Turns answers of the generated types into the client's values.  Raises BadAnswer if an answer contradicts itself.
Pure."""

from collections.abc import Sequence
from typing import cast

import numpy as np
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import namesrv_pb2 as ns
from rocketsim_proto.bytes_field import Received
from rocketsim_proto.records.slices import FEW

from rocketsim_client.errors import BadAnswer
from rocketsim_client.model import (
    GetMessageStatus,
    LogEpoch,
    PullFrame,
    QueueBounds,
    Segment,
    SendStatus,
)
from rocketsim_client.route import BrokerData
from rocketsim_client.transport.sends import Acknowledged


def broker_data(data: ns.BrokerData) -> BrokerData:
    return BrokerData(data.cluster_name, data.broker_name, dict(data.broker_addrs), data.epoch, dict(data.broker_roles))


def acknowledged(answer: pb.SendResponse, queue_ids: Sequence[int], sizes: Sequence[int], address: str) -> Acknowledged:
    """Works out the offsets of every message.  The offsets of a queue are consecutive in the order of the frame, and
    the records of an extent (`runs`) lie one after the other in the log.  For many messages the offsets are numpy
    arrays."""
    count = len(sizes)
    queues, extents = answer.queues, answer.runs
    if sum([extent.count for extent in extents]) != count or sum([queue.count for queue in queues]) != count:
        raise BadAnswer(
            f"{address} did not acknowledge the {count} messages that it was sent, but another number", address=address
        )
    if count == 1:
        only_queue, only_extent = queues[0].first_queue_offset, extents[0].commit_log_offset
        return Acknowledged(
            SendStatus(answer.status), [only_queue], [only_extent], answer.store_host, answer.store_timestamp
        )
    offsets = _few_offsets if count <= FEW else _many_offsets
    queue_offsets, log_offsets = offsets(answer, queue_ids, sizes, address)
    return Acknowledged(
        SendStatus(answer.status), queue_offsets, log_offsets, answer.store_host, answer.store_timestamp
    )


def _few_offsets(
    answer: pb.SendResponse, queue_ids: Sequence[int], sizes: Sequence[int], address: str
) -> tuple[Sequence[int], Sequence[int]]:
    left = {queue.queue_id: [queue.first_queue_offset, queue.count] for queue in answer.queues}
    queue_offsets = []
    for queue_id in queue_ids:
        queue = left.get(int(queue_id), (0, 0))
        if not queue[1]:
            raise BadAnswer(f"{address} acknowledged too few messages in queue {queue_id}", address=address)
        queue_offsets.append(queue[0])
        left[int(queue_id)] = [queue[0] + 1, queue[1] - 1]
    log_offsets: list[int] = []
    for extent in answer.runs:
        at = extent.commit_log_offset
        for size in sizes[len(log_offsets) : len(log_offsets) + extent.count]:
            log_offsets.append(at)
            at += int(size)
    return queue_offsets, log_offsets


def _many_offsets(
    answer: pb.SendResponse, queue_ids: Sequence[int], sizes: Sequence[int], address: str
) -> tuple[Sequence[int], Sequence[int]]:
    ids = np.asarray(queue_ids)
    queue_offsets = np.full(len(ids), -1, np.int64)
    for queue in answer.queues:
        mine = np.flatnonzero(ids == queue.queue_id)
        if len(mine) != queue.count:
            raise BadAnswer(
                f"{address} acknowledged {queue.count} messages in queue {queue.queue_id}, not {len(mine)}",
                address=address,
            )
        queue_offsets[mine] = np.arange(queue.first_queue_offset, queue.first_queue_offset + queue.count)
    lengths = np.asarray(sizes, np.int64)
    log_offsets = np.cumsum(lengths) - lengths
    at = 0
    for extent in answer.runs:
        rows = slice(at, at + extent.count)
        log_offsets[rows] += extent.commit_log_offset - log_offsets[at]
        at += extent.count
    # The offsets stay arrays, because a program seldom reads the results of a batch of columns message by message.
    return cast(Sequence[int], queue_offsets), cast(Sequence[int], log_offsets)


def queue_bounds(answer: pb.QueueBoundsResponse, address: str) -> dict[int, QueueBounds]:
    log_epoch = LogEpoch(answer.log_epoch.epoch, answer.log_epoch.epoch_id)
    ends = {LogEpoch(item.epoch.epoch, item.epoch.epoch_id): item.offsets for item in answer.epoch_ends}
    if any(len(offsets) != len(answer.entries) for offsets in ends.values()):
        raise BadAnswer(f"{address} sent the ends of epochs for another number of queues than it has", address=address)
    return {
        entry.queue_id: QueueBounds(
            entry.min_offset,
            entry.max_offset,
            entry.last_store_timestamp,
            entry.size_bytes,
            answer.broker_id,
            answer.is_master,
            not answer.HasField("read_queue_nums") or entry.queue_id < answer.read_queue_nums,
            not answer.HasField("write_queue_nums") or entry.queue_id < answer.write_queue_nums,
            log_epoch,
            {epoch: offsets[at] for epoch, offsets in ends.items()},
            answer.offers_streams,
            (answer.ranges_over_streams, answer.ranges_over_grpc),
        )
        for at, entry in enumerate(answer.entries)
    }


def pull_frame(received: Received[pb.PullFrame], range_count: int, address: str) -> PullFrame:
    records, answer = received
    segments = [
        Segment(s.range_index, s.count, s.next_offset, s.min_offset, s.max_offset, GetMessageStatus(s.status))
        for s in answer.segments
    ]
    sizes = answer.sizes
    if any(segment.range_index >= range_count for segment in segments):
        raise BadAnswer(f"{address} sent records of a range that was not asked for", address=address)
    if sizes:
        count = sum(segment.count for segment in segments)
        if len(sizes) != 4 * count or int(np.frombuffer(sizes, "<u4").sum(dtype=np.int64)) != len(records):
            raise BadAnswer(
                f"{address} sent {len(records)} bytes of records, {len(sizes) // 4} sizes and a count of {count}: "
                "they do not agree",
                address=address,
            )
    return PullFrame(records, sizes, segments, answer.suggest_which_broker_id, answer.broker_id)
