"""One task of a write, in an executor's Python worker.  The task sends Arrow batches as messages, and ends when every
message is acknowledged."""

import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext

from rocketsim_client.cluster import Cluster
from rocketsim_client.errors import MessageIllegal, RocketSimError, RowIllegal
from rocketsim_client.model import BatchPart
from rocketsim_client.producer import Producer
from rocketsim_client.retry import is_worth_sending_again
from rocketsim_source.options.sink_options import SinkOptions
from rocketsim_source.partition_numbers import QUEUES, queues_with
from rocketsim_source.python_worker import prepare_for_next_task, report_missing_codec
from rocketsim_source.sink.outgoing import OutgoingRows, RowProblem, outgoing
from rocketsim_source.sink.row_ids import ColumnIds, OldIds, PlaceIds, RowIds
from rocketsim_source.sink.writer import Sent, SinkPlan

Rows = npt.NDArray[np.int64]  # row numbers in the task

MASTER_WAIT_S = 0.2
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"

producers_of_process: dict[tuple[object, ...], Producer] = {}


class SendStuck(RuntimeError):
    """Raised if no frame has been acknowledged or refused within the time limit."""


def write_rows(plan: SinkPlan, batches: Iterator[pa.RecordBatch]) -> Sent:
    """Sends all rows, and returns when brokers have acknowledged every row.

    Raises an error if a row could not be sent, so that the task fails.
    """
    report_missing_codec()
    sender = RowSender(plan, worker_producer(plan.options), row_ids(plan))
    for batch in batches:
        rows = plan.options.send_batch_size or max(1, batch.num_rows)
        for start in range(0, batch.num_rows, rows):
            sender.send(batch.slice(start, rows))
    sent = sender.finish()
    prepare_for_next_task()
    return sent


def row_ids(plan: SinkPlan) -> RowIds | None:
    """Makes the object that gives this task's rows their message ids.  Returns None if the producer makes the ids."""
    options = plan.options
    if options.mode != "idempotent":
        return None
    if options.id_columns:
        return ColumnIds(options.sink_name or "", options.topic, plan.columns.ids)
    context = TaskContext.get()
    assert context is not None
    query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    whole = f"{query_id}-{batch_id}" if query_id and batch_id else plan.job
    if options.sink_name is None:
        return OldIds(whole, context.partitionId())
    return PlaceIds(options.sink_name, options.topic, whole, context.partitionId())


def worker_producer(options: SinkOptions) -> Producer:
    """Returns this worker's producer.

    The producer is made after the fork, and kept so that later tasks use the same channels and routes.  The producer is
    never closed.  No message is lost, because a task waits until all of its messages are acknowledged.
    """
    bodies = options.compress_over, options.compress_type, options.max_message_size
    key = os.getpid(), options.connection, options.group, options.retries, options.max_inflight, bodies
    if key not in producers_of_process:
        producers_of_process[key] = Producer(
            group=options.group,
            cluster=Cluster(options.connection),
            send_msg_timeout_ms=options.send_timeout_ms,
            retry_times_when_send_failed=options.retries,
            retry_times_when_send_async_failed=options.retries,
            max_in_flight=options.max_inflight,
            compress_msg_body_over_howmuch=options.compress_over,
            compress_type=options.compress_type,
            max_message_size=options.max_message_size,
        )
    return producers_of_process[key]


def refused(error: RowIllegal, topic: str, rows: Rows) -> MessageIllegal:
    """Returns the error for a row that the producer refused.  The error names the row by its number in the task instead
    of its number in the send.
    """
    skip = " (invalidProperties=skip leaves it out)" if error.problem.startswith("property ") else ""
    return MessageIllegal(f"topic {topic!r}: {place(int(rows[error.row]))}: {error.problem}{skip}")


def place(row: int) -> str:
    """Describes a row by its number, from 0, in the partition that this task writes, so that users can find the row."""
    context = TaskContext.get()
    return f"row {row}" + (f" of partition {context.partitionId()}" if context is not None else "")


class RowSender:
    """Sends the rows of one task, and collects the acknowledgements."""

    def __init__(self, plan: SinkPlan, producer: Producer, row_ids: RowIds | None) -> None:
        self._plan = plan
        self._producer = producer
        self._row_ids = row_ids
        self._turn = 0
        self._waiting: deque[tuple[Any, Rows]] = deque()
        self._statuses: Counter[str] = Counter()
        self._left_out: Counter[str] | None = Counter() if plan.options.invalid_properties == "skip" else None
        self._rows_before = 0  # rows of earlier batches

    def send(self, batch: pa.RecordBatch) -> None:
        options = self._plan.options
        try:
            for rows in outgoing(batch, self._plan.columns, options.topic, self._row_ids, self._left_out):
                absolute = self._rows_before + rows.rows
                self._waiting.extend((future, absolute) for future in self._accepted(rows))
        except RowProblem as error:
            raise ValueError(f"{place(self._rows_before + error.row)}: {error.problem}") from None
        self._rows_before += batch.num_rows
        # Each broker has its own limit of frames in flight.  This loop only limits the memory for waiting frames.
        while len(self._waiting) > 4 * self._plan.options.max_inflight:
            self._settle()

    def _accepted(self, rows: OutgoingRows) -> Sequence[Any]:
        """Passes the rows to the producer and returns their futures.

        A temporary error (no master, no name server) is retried for sendTimeoutMs.
        """
        deadline = time.monotonic() + self._plan.options.send_timeout_ms / 1000
        while True:
            try:
                return self._producer.send_columns_async(
                    rows.topic,
                    rows.bodies,
                    tags=rows.tags,
                    keys=rows.keys,
                    properties=rows.properties,
                    message_groups=rows.message_groups,
                    msg_ids=rows.msg_ids,
                    queue=self._queue(rows),
                )
            except RowIllegal as error:
                raise refused(error, rows.topic, self._rows_before + rows.rows) from None
            except RocketSimError as error:
                if not is_worth_sending_again(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(MASTER_WAIT_S)

    def finish(self) -> Sent:
        while self._waiting:
            self._settle()
        return Sent(dict(self._statuses), dict(self._left_out or {}))

    def _acknowledged(self, future: Any) -> BatchPart:
        """Waits for a frame's acknowledgement.

        Every frame is answered or fails within sendTimeoutMs after it was sent.  If no frame is answered or fails for
        twice sendTimeoutMs, something is stuck, and the task fails, because otherwise it would hang.
        """
        stats = self._producer.stats
        while True:
            settled = stats.acknowledged + stats.failed
            try:
                return cast(BatchPart, future.result(2 * self._plan.options.send_timeout_ms / 1000))
            except TimeoutError:
                if future.done():  # the frame was answered just now, or the TimeoutError is the frame's own error
                    return cast(BatchPart, future.result())
                if stats.acknowledged + stats.failed == settled:
                    raise SendStuck(
                        f"no frame was answered or given up within {2 * self._plan.options.send_timeout_ms} ms (twice "
                        f"sendTimeoutMs): this task waits for {1 + len(self._waiting)} frames, the first of which goes "
                        f"to topic {future.queue.topic} at broker {future.queue.broker_name}; {self._producer}"
                    ) from None

    def _settle(self) -> None:
        """Waits until the oldest frame is acknowledged, and counts its messages by their send status."""
        future, rows = self._waiting.popleft()
        try:
            part = self._acknowledged(future)
        except RowIllegal as error:
            raise refused(error, future.queue.topic, rows) from None
        status = part.send_status.name
        self._statuses[status] += len(part.msg_ids)
        if status != "SEND_OK" and self._plan.options.unsynced_send_policy == "fail":
            raise RuntimeError(f"{len(part.msg_ids)} messages were stored with {status} (unsyncedSendPolicy=fail)")

    def _queue(self, rows: OutgoingRows) -> Any:
        """Returns the queue to which the rows go, or None if the rows name no queue.

        The column queueId does not name a broker, so rows with a queue id go to each of the topic's brokers in turn.  A
        number in the column partition also names the broker.
        """
        if rows.queue_id is None:
            return None
        there = self._producer.publish_queues(rows.topic)
        queues = queues_with(rows.queue_id, there)
        if not queues:
            number = rows.queue_id
            of_broker = "" if number < QUEUES else f" ({number % QUEUES} of a broker of another name)"
            names = ", ".join(sorted({queue.broker_name for queue in there}))
            row = place(self._rows_before + int(rows.rows[0]))
            raise ValueError(
                f"{row}: topic {rows.topic} has no writable queue {number}{of_broker} at {names}; leave out the column "
                "queueId (partition) to spread the rows over all queues"
            )
        self._turn += 1
        return queues[self._turn % len(queues)]
