"""RocketSim as a sink: Arrow batches -> messages, every one of them acknowledged before a task is done.

atLeastOnce   a task that is repeated sends its rows again, under new message ids
idempotent    a row that is written again has the id that it had (`row_ids.py`), so that dropDuplicates("msgId") has
              each row once
"""

import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
    """What travels to the executors.  `job` is one for all tasks of a batch write, and for their repetitions."""

    options: SinkOptions
    columns: SinkColumns
    job: str


def sink_plan(schema: StructType, given: Mapping[str, str], overwrite: bool) -> SinkPlan:
    if overwrite:
        raise OptionError("messages can only be added: use mode append (outputMode append or update for a stream)")
    options = sink_options(given)
    return SinkPlan(options, SinkColumns.of(schema, options), uuid.uuid4().hex)


class Sent(WriterCommitMessage):
    """One task's rows, by what their brokers said: SEND_OK, or stored but not as safe as asked for.  `left_out` are
    the properties that were not sent, by name (invalidProperties=skip)."""

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
        logger.warning("job %s was aborted; messages that were sent already stay", self.plan.job)


class RocketSimStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        from rocketsim_source.sink.task import write_rows

        return write_rows(self.plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        report(self.plan, messages, f"batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        logger.warning("batch %d was aborted; messages that were sent already stay, a retry sends them again", batchId)


def report(plan: SinkPlan, messages: list[WriterCommitMessage | None], what: str) -> None:
    statuses: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for message in messages:
        if isinstance(message, Sent):
            statuses.update(message.statuses)
            left_out.update(message.left_out)
    weaker = {status: rows for status, rows in statuses.items() if status != "SEND_OK"}
    if weaker:
        logger.warning("%s: stored, but less safely than the brokers are set to: %s", what, weaker)
    if left_out:
        first = ", ".join(f"{name} ({count})" for name, count in left_out.most_common(5))
        logger.warning(
            "%s: %d properties were left out, since a message cannot have them (invalidProperties=skip): %s",
            what,
            left_out.total(),
            first,
        )
