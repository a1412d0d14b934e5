"""RocketSim as a sink: Arrow batches become messages, and a task ends when every message is acknowledged.

- atLeastOnce: a task that is repeated sends its rows again, with new message ids.
- idempotent: a row that is written again has the same message id as before (`row_ids.py`), so that
  dropDuplicates("msgId") keeps each row once.
"""

import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rocketsim_source.options.option_values import OptionError
from rocketsim_source.options.sink_options import SinkOptions, sink_options
from rocketsim_source.sink.sink_columns import SinkColumns

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SinkPlan:
    """All that a task needs for writing.  Spark pickles the SinkPlan for the executors.

    All tasks of a batch write, and their retries, have the same `job`.
    """

    options: SinkOptions
    columns: SinkColumns
    job: str


def sink_plan(schema: StructType, given: Mapping[str, str], overwrite: bool) -> SinkPlan:
    if overwrite:
        raise OptionError("messages can only be added: use mode append (outputMode append or update for a stream)")
    options = sink_options(given)
    return SinkPlan(with_protocol(options), SinkColumns.of(schema, options), uuid.uuid4().hex)


def with_protocol(options: SinkOptions) -> SinkOptions:
    """Returns the options with the protocol that the servers speak, so that no task has to find it out."""
    from rocketsim_client.transport.opening import with_detected_protocol

    return replace(options, protocol=with_detected_protocol(options.connection).protocol)


class Sent(WriterCommitMessage):
    """Counts a task's rows by their send status, which is SEND_OK or a status for messages that are stored less safely.

    `left_out` counts by name the properties that were not sent (invalidProperties=skip).
    """

    def __init__(self, statuses: dict[str, int], left_out: dict[str, int] | None = None) -> None:
        self.statuses = statuses
        self.left_out = left_out or {}

    @property
    def rows(self) -> int:
        return sum(self.statuses.values())


class RocketSimWriter(DataSourceArrowWriter):
    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        from rocketsim_source.sink.task import write_rows

        return write_rows(self.plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        report(self.plan, messages, f"job {self.plan.job}")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        logger.warning("job %s was aborted; messages that were already sent stay in their topics", self.plan.job)


class RocketSimStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        from rocketsim_source.sink.task import write_rows

        return write_rows(self.plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        report(self.plan, messages, f"batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        logger.warning(
            "batch %d was aborted; messages that were already sent stay in their topics, and a retry sends them again",
            batchId,
        )


def report(plan: SinkPlan, messages: list[WriterCommitMessage | None], what: str) -> None:
    statuses: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for message in messages:
        if isinstance(message, Sent):
            statuses.update(message.statuses)
            left_out.update(message.left_out)
    weaker = {status: rows for status, rows in statuses.items() if status != "SEND_OK"}
    if weaker:
        logger.warning("%s: messages were stored less safely than the brokers' modes ask for: %s", what, weaker)
    if left_out:
        first = ", ".join(f"{name} ({count})" for name, count in left_out.most_common(5))
        logger.warning(
            "%s: %d properties were left out, since a message cannot have them (invalidProperties=skip): %s",
            what,
            left_out.total(),
            first,
        )
