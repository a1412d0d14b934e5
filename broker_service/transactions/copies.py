"""Finds committed copies of half messages for which a crash has prevented the op record.

Each copy gets its op record before the next copy is appended.  A copy that lacks its op record therefore lies after the
last op record.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial

from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.reserved import OP_TOPIC

from broker_service.errors import NotFound, ReadFailed, StoreCorrupt
from broker_service.runtime import cold_reads
from broker_service.state import half_messages
from broker_service.state.half_messages import SYS_FLAG_COMMITTED
from broker_service.state.open_transactions import OpenTransactions
from broker_service.state.transaction_changes import Resolution, Resolved
from broker_service.store.message_store import MessageStore

logger = logging.getLogger(__name__)

FRAME_BYTES = 1 << 20  # bytes of a queue that are read at a time in the search for copies


async def find_copies(store: MessageStore, state: OpenTransactions) -> None:
    """Finds commits without an op record, and adds them to the state."""
    by_log_offset = {one.log_offset: one for one in state.open.values()}
    last_op = await _last_op(store)
    topics = {transaction.topic for transaction in state.open}
    for topic, queue_id in [queue for queue in store.queues.keys() if queue[0] in topics]:
        at = store.queues.end_at(topic, queue_id, max(min(by_log_offset), last_op))
        async for half_offsets in _copied_from(store, topic, queue_id, at):
            for offset in half_offsets:
                if (prepared := by_log_offset.get(offset)) is not None:
                    state.apply(Resolved(prepared.transaction, Resolution.COMMIT))


async def _copied_from(store: MessageStore, topic: str, queue_id: int, at: int) -> AsyncIterator[list[int]]:
    """Searches a queue from the offset `at` on for copies of half messages.  Yields the log offsets of these half
    messages, one list for each frame.

    Copies that cannot be read are left out.
    """
    frame = FRAME_BYTES
    end = store.queues.end(topic, queue_id)
    while at < end:
        read = partial(store.queues.read_ranges, [(topic, queue_id, at, end)], frame)
        try:
            found = await cold_reads.read(store, read)
            if found.answers[0].next_offset <= at:
                raise StoreCorrupt(f"queue {queue_id} of topic {topic} cannot be read at {at}")
            data = b"".join(found.records)
            with store.log.decoding(data):
                records = Records.walk(data, sizes=found.sizes)
                kinds = records.sys_flag & record.SYS_FLAG_TRANSACTION_MASK
                copied = records.prepared_transaction_offset[kinds == SYS_FLAG_COMMITTED].tolist()
        except (ReadFailed, StoreCorrupt) as error:
            if frame == 1:
                logger.error("a record cannot be read; if it was a commit, its producer is asked again: %s", error)
                at += 1
            frame = 1  # reads one record at a time, so that only the unreadable one is left out
            continue
        at, frame = found.answers[0].next_offset, min(2 * frame, FRAME_BYTES)
        yield copied
        await asyncio.sleep(0)  # lets other tasks run, because a read of records in memory does not pause


async def _last_op(store: MessageStore) -> int:
    """Returns the log offset of the last op record, or 0 if a RocketMQ has written this record, or if it cannot be
    read.

    RocketMQ writes its op records seconds after the copies, so copies without op records may also lie before RocketMQ's
    last op record.
    """
    read = partial(store.queues.log_offsets, OP_TOPIC, 0, store.queues.end(OP_TOPIC, 0) - 1)
    for log_offset in await cold_reads.read(store, read):
        try:
            data = await cold_reads.read(store, partial(store.log.record_at, log_offset))
            op = record.decode(data, check_crc=False)
        except (NotFound, ReadFailed, StoreCorrupt):
            return 0
        return log_offset if half_messages.PROPERTY_RESOLUTION in op.properties else 0
    return 0
