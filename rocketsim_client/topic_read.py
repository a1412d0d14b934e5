"""Reads ranges of a topic's queues as Arrow batches, one broker after the other.

A wrong answer raises an error, and the caller gets no part of it.  Missing messages raise an error, too, because
messages may be deleted, or cut by the promotion of a slave, while they are read.
"""

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import RecordError

from rocketsim_client.arrow import OfQueue, RecordDecoder
from rocketsim_client.cluster import Cluster
from rocketsim_client.errors import BadAnswer, OffsetIllegal
from rocketsim_client.expression import ALL, Expression
from rocketsim_client.model import GetMessageStatus, MessageQueue, OffsetRange, PullFrame, Segment, by_broker
from rocketsim_client.range_pull import check_rows


def batches(
    cluster: Cluster, group: str, ranges: Collection[OffsetRange], expression: Expression, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yields the messages of the ranges that `expression` selects.  Messages of a queue are in order."""
    decoder = RecordDecoder(schema, expression=expression)
    of_queue = {one.queue: one for one in ranges}
    for topic, broker_name, queues in by_broker(of_queue):
        open_ranges = [of_queue[queue] for queue in queues]
        frames = cluster.pull_range(broker_name, open_ranges, group=group, expression=expression.asked)
        at = [one.from_offset for one in open_ranges]
        for frame in frames:
            try:
                records = Records.walk(frame.records, frame.count, frame.sizes or None)
                records.check_topic(topic)
                found = _advance(frame, records, open_ranges, at, is_filtered=expression.asked != ALL)
                yield from decoder.batches(records, found, frame.broker_id)
            except RecordError as error:
                raise BadAnswer(
                    f"broker {broker_name!r} sent damaged records of topic {topic!r}: {error}; read again, and "
                    "check the broker's store with `rocketsim store verify` if it happens again"
                ) from error


def _advance(
    frame: PullFrame, records: Records, ranges: Sequence[OffsetRange], at: list[int], *, is_filtered: bool
) -> list[OfQueue]:
    """Returns how many of the frame's records belong to each queue, and moves `at`, the next offset of each range, past
    these records."""
    offsets, queue_ids, row = records.queue_offset, records.queue_id, 0
    found: list[OfQueue] = []
    for segment in frame.segments:
        queue, _, until = ranges[segment.range_index]
        start = at[segment.range_index]
        _check_whole(queue, segment, start, until)
        rows = slice(row, row + segment.count)
        check_rows(queue, queue_ids[rows], offsets[rows], start, min(until, segment.next_offset))
        if not is_filtered and segment.next_offset - start != segment.count:
            raise BadAnswer(
                f"{queue}: a broker sent {segment.count} records for the offsets {start} to {segment.next_offset}"
            )
        row += segment.count
        at[segment.range_index] = segment.next_offset
        found.append(OfQueue(queue, segment.count))
    return found


def _check_whole(queue: MessageQueue, segment: Segment, start: int, until: int) -> None:
    """Raises OffsetIllegal if the broker has ended the range before the offset `until`."""
    match segment.status:
        case GetMessageStatus.FOUND | GetMessageStatus.NO_MATCHED_MESSAGE:
            return
        case GetMessageStatus.OFFSET_TOO_SMALL | GetMessageStatus.MESSAGE_WAS_REMOVING:
            reason = "retention has deleted some of them"
        case GetMessageStatus.OFFSET_TRUNCATED:
            reason = "a slave was promoted that did not have all of them"
        case GetMessageStatus.NO_MATCHED_LOGIC_QUEUE:
            reason = "the queue does not exist, or not any more"
        case _:
            reason = "the broker that answers does not have all of them; its master may"
    raise OffsetIllegal(
        f"{queue}: offsets {start} to {until} were to be read, and {reason} ({segment.status.name}); the queue has "
        f"{segment.min_offset} to {segment.max_offset}"
    )
