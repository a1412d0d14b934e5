"""Turns answers of the generated types into the client's values.  Raises BadAnswer if an answer contradicts itself.
Pure."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import namesrv_pb2 as ns
from rocketsim_proto.bytes_field import Received

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
    """Works out the offsets of every message.  The messages that one queue got have consecutive offsets, in the order
    of the frame.  The records of one extent (in `answer.runs`) lie one after the other in the log."""
    count = len(sizes)
    queues, extents = answer.queues, answer.runs
    if sum([extent.count for extent in extents]) != count or sum([queue.count for queue in queues]) != count:
        raise BadAnswer(
            f"{address} was sent {count} messages, and acknowledged another number of messages", address=address
        )
    if count == 1:
        only_queue, only_extent = queues[0].first_queue_offset, extents[0].commit_log_offset
        return Acknowledged(
            SendStatus(answer.status), [only_queue], [only_extent], answer.store_host, answer.store_timestamp
        )
    queue_offsets, log_offsets = _offsets(answer, _list_of(queue_ids), _list_of(sizes), address)
    return Acknowledged(
        SendStatus(answer.status), queue_offsets, log_offsets, answer.store_host, answer.store_timestamp
    )


def _list_of(numbers: Sequence[int] | np.ndarray) -> list[int]:
    return numbers.tolist() if isinstance(numbers, np.ndarray) else list(numbers)


def _offsets(
    answer: pb.SendResponse, queue_ids: list[int], sizes: list[int], address: str
) -> tuple[Sequence[int], Sequence[int]]:
    ranges = {one.queue_id: range(one.first_queue_offset, one.first_queue_offset + one.count) for one in answer.queues}
    queue_offsets: Sequence[int] = ranges.get(queue_ids[0], ())
    if not len(queue_offsets) == len(queue_ids) == queue_ids.count(queue_ids[0]):  # not all in one queue
        left = {queue_id: iter(offsets) for queue_id, offsets in ranges.items()}
        try:
            queue_offsets = [next(left[queue_id]) for queue_id in queue_ids]
        except (KeyError, StopIteration):
            raise BadAnswer(f"{address} acknowledged too few messages in one of the queues", address=address) from None
    log_offsets: list[int] = []
    for extent in answer.runs:
        part = sizes[len(log_offsets) : len(log_offsets) + extent.count]
        log_offsets += list(accumulate(part, initial=extent.commit_log_offset))[:-1]
    return queue_offsets, log_offsets


def queue_bounds(answer: pb.QueueBoundsResponse, address: str) -> dict[int, QueueBounds]:
    log_epoch = LogEpoch(answer.log_epoch.epoch, answer.log_epoch.epoch_id)
    ends = {LogEpoch(item.epoch.epoch, item.epoch.epoch_id): item.offsets for item in answer.epoch_ends}
    if any(len(offsets) != len(answer.entries) for offsets in ends.values()):
        raise BadAnswer(
            f"{address} sent ends of epochs that do not match the number of queues in its answer", address=address
        )
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
