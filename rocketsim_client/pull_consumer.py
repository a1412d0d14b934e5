"""The pull consumer, whose caller decides what to pull and when to commit.  The calls of a PullConsumer block, and any
thread may make them."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import RecordError

from rocketsim_client import validation
from rocketsim_client.addresses import Brokers
from rocketsim_client.cluster import Cluster
from rocketsim_client.connection import Where
from rocketsim_client.errors import BadAnswer, BrokerRefused, InvalidParameter, MasterNotExist, OffsetIllegal
from rocketsim_client.expression import Expression, SqlExpression, expression_of
from rocketsim_client.message_view import Messages, no_messages
from rocketsim_client.model import (
    NO_EPOCH,
    CommitResult,
    GetMessageStatus,
    LogEpoch,
    MessageQueue,
    OffsetRange,
    PullFrame,
    PullStatus,
    QueueBounds,
    Ranges,
)
from rocketsim_client.range_pull import FRAME_BYTES
from rocketsim_client.routing.members import Member
from rocketsim_client.routing.suggestions import Suggestions
from rocketsim_client.tls import File
from rocketsim_client.transport.reads import PullAnswer, PullCall

SUSPEND_S = 15.0  # RocketMQ's brokerSuspendMaxTimeMillis
MAX_REMEMBERED = 10_000  # the number of positions (queue, offset) whose leader epochs are kept
CALL_MARGIN_S = 3.0  # how much longer than its `suspend` time a call may take

_STATUS_BY_CODE = {
    0: PullStatus.FOUND,
    19: PullStatus.NO_NEW_MSG,
    20: PullStatus.NO_MATCHED_MSG,
    21: PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, slots=True)
class PullResult:
    """The answer to a pull.  `next_begin_offset` is where to pull next, whatever the status.  `broker_id` is the id of
    the broker that answered, where 0 is the master."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: Messages
    broker_id: int
    suggest_which_broker_id: int
    get_message_status: GetMessageStatus


class PullConsumer:
    """Reads queues, and commits the offsets of a group.  A group's offset is the offset of the next message that the
    group reads.

    `name_server` is `host:port;host:port`, or a Connection, which says where the cluster is and how its servers are
    called.  Without a name server, `brokers` says where the brokers are: broker name -> broker id -> `host:port`.

    `timeout_s` (3, or the Connection's) is the limit of each call to one broker.  A route is used for `poll_interval_s`
    (30).  `timeout_ms` and `poll_name_server_interval_ms` are older names of `timeout_s` and `poll_interval_s`, in
    milliseconds.  `access_key` and `secret_key` are the user and password that calls are signed with, for servers with
    access control.  `tls`, `tls_ca`, `tls_cert` and `tls_key` are as for Cluster.
    """

    def __init__(
        self,
        name_server: Where = "",
        group: str = "DEFAULT_CONSUMER",
        *,
        timeout_s: float | None = None,
        poll_interval_s: float | None = None,
        brokers: Brokers | None = None,
        access_key: str = "",
        secret_key: str = "",
        tls: bool = False,
        tls_ca: File = None,
        tls_cert: File = None,
        tls_key: File = None,
        cluster: Cluster | None = None,
        clock: Callable[[], float] = time.monotonic,
        timeout_ms: int = 3000,
        poll_name_server_interval_ms: int = 30_000,
    ) -> None:
        validation.check_group(group)
        self.group = group
        self._owns_cluster = cluster is None
        self._cluster = cluster or Cluster(
            name_server,
            brokers=brokers,
            timeout_s=validation.seconds(timeout_s, timeout_ms),
            poll_interval_s=validation.seconds(poll_interval_s, poll_name_server_interval_ms),
            access_key=access_key,
            secret_key=secret_key,
            tls=tls,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
        self._timeout_s = self._cluster.timeout_s if cluster is None else validation.seconds(timeout_s, timeout_ms)
        self._clock = clock
        self._suggestions = Suggestions()
        # (queue, offset) -> the leader epoch in which the queue was read up to that offset, sent with the next pull.
        self._read_in: dict[tuple[MessageQueue, int], LogEpoch] = {}
        self._closed = threading.Event()

    def __enter__(self) -> "PullConsumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the consumer.  Pulls that are still waiting for an answer end, too."""
        self._closed.set()
        if self._owns_cluster:
            self._cluster.close()

    @property
    def cluster(self) -> Cluster:
        """The cluster that this consumer pulls from."""
        return self._cluster

    def message_queues(self, topic: str) -> list[MessageQueue]:
        """Returns all readable queues of the topic, by the newest route."""
        return self._cluster.queues(topic)

    # --- pulling --------------------------------------------------------------------------------------------------

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_msg_nums: int = 32,
        expression: str | SqlExpression | None = "*",
        *,
        suspend: bool | float = False,
        timeout_s: float | None = None,
        max_msg_bytes: int = 0,
        commit_offset: int | None = None,
    ) -> PullResult:
        """Pulls once from the broker that was suggested last.  If the suggested broker cannot be reached, pulls from
        another broker of the same broker name.  With `suspend` the broker holds the call while nothing can be read, for
        15 seconds or for the given number of seconds.  `expression` selects by tags, as in "TagA || TagB", or by an
        `SqlExpression`.

        OFFSET_ILLEGAL with the broker's status OFFSET_TRUNCATED means that a slave became the master without having all
        the messages that this consumer has read.  From `next_begin_offset` on, the queue has other messages than those
        that this consumer has read.
        """
        if offset < 0 or max_msg_nums < 1 or max_msg_bytes < 0:
            raise InvalidParameter(
                f"offset, max_msg_nums and max_msg_bytes must be at least 0, 1 and 0: {offset}, {max_msg_nums} and "
                f"{max_msg_bytes} are given"
            )
        selection = expression_of(expression)
        suspend_s = SUSPEND_S if suspend is True else float(suspend)
        timeout = timeout_s if timeout_s is not None else (suspend_s + CALL_MARGIN_S if suspend_s else self._timeout_s)
        call = PullCall(
            group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_msg_nums,
            max_msg_bytes=max_msg_bytes,
            expression=selection.asked,
            suspend_timeout_ms=int(min(suspend_s, max(timeout - 0.5, 0)) * 1000),
            commit_offset=commit_offset,
            read_in=self._read_in.get((queue, offset), NO_EPOCH),
        )
        deadline = self._clock() + timeout

        def ask(member: Member) -> PullAnswer:
            return self._cluster.transport.reads.pull(member.address, call, max(deadline - self._clock(), 0.1))

        for last_try in (False, True):
            pause = min(self._suggestions.pause_s(queue), max(deadline - self._clock(), 0))
            if pause:
                self._closed.wait(pause)
            wanted = self._suggestions.broker_id(queue)
            answer = self._cluster.ask(queue.topic, queue.broker_name, ask, broker_id=wanted)
            progress = answer.code != 20 or answer.next_begin_offset != offset
            self._suggestions.answered(queue, answer.suggest_which_broker_id, progress=progress)
            if progress or last_try or self._clock() >= deadline:
                break
        if answer.read_in.epoch:
            self._remember(queue, answer.next_begin_offset, answer.read_in)
        return self._result(queue, answer, selection)

    def _remember(self, queue: MessageQueue, offset: int, epoch: LogEpoch) -> None:
        self._read_in[queue, offset] = epoch
        while len(self._read_in) > MAX_REMEMBERED:
            self._read_in.pop(next(iter(self._read_in)), None)

    def _result(self, queue: MessageQueue, answer: PullAnswer, selection: Expression) -> PullResult:
        status = _STATUS_BY_CODE.get(answer.code)
        if status is None:
            raise BrokerRefused(f"pull of {queue}: the broker answered with code {answer.code}", code=answer.code)
        messages = no_messages(queue.broker_name)
        if answer.count or answer.records:
            messages = Messages(self._checked(queue, answer, selection), answer.records, queue.broker_name)
            if status is PullStatus.FOUND and not messages:
                # The client's filter selected no message, because the tags only have the same hash code as the wanted
                # tags, or because the SQL condition is false.
                status = PullStatus.NO_MATCHED_MSG
        return PullResult(
            status,
            answer.next_begin_offset,
            answer.min_offset,
            answer.max_offset,
            messages,
            answer.broker_id,
            answer.suggest_which_broker_id,
            answer.status,
        )

    @staticmethod
    def _checked(queue: MessageQueue, answer: PullAnswer, selection: Expression) -> Records:
        """Returns the records of the answer.  Raises BadAnswer if the answer is wrong, so that the caller gets no part
        of a wrong answer."""
        try:
            records = Records.walk(answer.records, answer.count, answer.sizes or None)
            records.check()
            records.check_topic(queue.topic)
        except RecordError as error:
            raise BadAnswer(
                f"pull of {queue}: broker id {answer.broker_id} sent damaged records: {error}; pull again, "
                "and check the broker's store with `rocketsim store verify` if it happens again"
            ) from error
        if (records.queue_id != queue.queue_id).any():
            raise BadAnswer(f"pull of {queue}: broker id {answer.broker_id} sent records of another queue")
        if not selection.selects_all:
            selected = selection.selects(records)
            if not selected.all():
                return records[selected]
        return records

    def pull_range(
        self,
        broker_name: str,
        ranges: Ranges,
        *,
        expression: str = "*",
        broker_id_hint: int = 0,
        max_frame_bytes: int = FRAME_BYTES,
    ) -> Iterator[PullFrame]:
        """Yields the records of ranges of one broker's queues in large frames, for callers that read whole batches."""
        return self._cluster.pull_range(
            broker_name,
            ranges,
            broker_id_hint=broker_id_hint,
            group=self.group,
            expression=expression,
            max_frame_bytes=max_frame_bytes,
        )

    def read(
        self,
        topic: str,
        *,
        queues: Collection[MessageQueue] | None = None,
        start: str | int | Mapping[MessageQueue, int] = "earliest",
        end: Mapping[MessageQueue, int] | None = None,
        expression: str | SqlExpression | None = "*",
        columns: Sequence[str] | None = None,
    ) -> pa.RecordBatchReader:
        """Reads the topic's messages as Arrow batches, up to the present ends of its queues.  Messages of a queue are
        in order.  Commits no offsets.

        `queues` limits the read to some of the topic's queues.  `start` is `"earliest"`, `"committed"`, a store time in
        ms since 1970, or an offset for each queue.  With `"committed"`, a queue in which the group has no offset is
        read from its first message.  If `start` has an offset for each queue, only the queues in `start` are read.
        `end` maps a queue to the offset before which its read stops.  `expression` selects messages as in `pull`.
        `columns` are some of topic, brokerName, queueId, queueOffset, msgId, keys, tags, body, flag, bornTimestamp,
        storeTimestamp, reconsumeTimes, messageGroup, properties, bornHost, storeHost.  If `columns` is None, the
        batches have all columns except bornHost and storeHost.

        Raises OffsetIllegal, here or while batches are read, if a queue does not have the offsets that are to be read,
        or has lost them.
        """
        from rocketsim_client import arrow, topic_read

        selection, schema = expression_of(expression), arrow.schema_of(columns)
        wanted = list(queues) if queues is not None else None
        bounds = self._cluster.bounds(topic, wanted)
        ends = end or {}
        for queue in [*(wanted or ()), *ends]:
            self._is_there(queue, bounds)
        starts = self._starts(topic, start, bounds, some=wanted is not None)
        ranges = [OffsetRange(queue, at, ends.get(queue, bounds[queue].max_offset)) for queue, at in starts.items()]
        for queue, begin, until in ranges:
            has = bounds[queue]
            if not has.min_offset <= begin or not max(begin, until) <= has.max_offset:
                raise OffsetIllegal(
                    f"{queue}: offsets {begin} to {until} were to be read; the queue has {has.min_offset} to "
                    f"{has.max_offset}"
                )
        return pa.RecordBatchReader.from_batches(
            schema, topic_read.batches(self._cluster, self.group, ranges, selection, schema)
        )

    def _starts(
        self,
        topic: str,
        start: str | int | Mapping[MessageQueue, int],
        bounds: Mapping[MessageQueue, QueueBounds],
        *,
        some: bool,
    ) -> dict[MessageQueue, int]:
        first = {queue: found.min_offset for queue, found in sorted(bounds.items()) if found.readable}
        if start == "earliest":
            return first
        if start == "committed":
            return first | {queue: at for queue, at in self.committed_all(first).items() if at >= 0}
        if isinstance(start, int):
            return self._cluster.search(topic, dict.fromkeys(first, start))
        if isinstance(start, str):
            raise InvalidParameter(
                f"start {start!r} is not earliest, committed, a time in ms, or an offset for each queue"
            )
        for queue in start:
            self._is_there(queue, bounds)
        if some and set(start) != first.keys():
            raise InvalidParameter("start has an offset for other queues than those that `queues` names")
        return dict(start)

    @staticmethod
    def _is_there(queue: MessageQueue, bounds: Mapping[MessageQueue, QueueBounds]) -> None:
        if queue not in bounds:
            raise InvalidParameter(
                f"broker {queue.broker_name!r} has no queue {queue.queue_id} of topic {queue.topic!r}"
            )

    # --- the group's offsets --------------------------------------------------------------------------------------

    def committed(self, queue: MessageQueue) -> int:
        """Asks the queue's master for the offset of the next message that the group reads, which is -1 if the group has
        no offset.  While the master does not answer, returns the newest offset of its slaves.  Raises MasterNotExist if
        only slaves answer and none of them has an offset, because the master may have one."""
        return self.committed_all([queue])[queue]

    def committed_all(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """Returns, for each queue, the offset of the next message that the group reads, like `committed`.
        MasterNotExist names the queues whose master does not answer and whose slaves have no offset."""
        found = self._cluster.committed(self.group, queues)
        if unknown := sorted(set(queues) - found.keys()):
            raise MasterNotExist(
                f"it is not known if group {self.group!r} has an offset of {', '.join(map(str, unknown))}: the "
                "master does not answer and its slave has none; ask again when the master is back"
            )
        return found

    def commit(self, queue: MessageQueue, offset: int) -> int:
        """Commits the offset of the next message to read.  The commit goes to the queue's master, or to a slave while
        the master does not answer.  Returns the queue's offset after the commit.  A lower offset changes nothing.  The
        result of `commit_all` also says which brokers have the offset.  An offset that a SYNC_MASTER has answered with
        COMMIT_OK survives the loss of one broker."""
        return self.commit_all({queue: offset}).offsets[queue]

    def commit_all(self, offsets: Mapping[MessageQueue, int]) -> CommitResult:
        """Commits, for several queues, the offset of the next message to read, like `commit`."""
        return self._cluster.commit(self.group, offsets)

    # --- the queues' offsets --------------------------------------------------------------------------------------

    def bounds(self, topic: str) -> dict[MessageQueue, QueueBounds]:
        """Returns the first offset and the exclusive end of each readable queue of the topic."""
        return self._cluster.bounds(topic)

    def min_offset(self, queue: MessageQueue) -> int:
        """Returns the first offset that can be read.  A slave is asked while the master does not answer."""
        return self._bounds(queue).min_offset

    def max_offset(self, queue: MessageQueue) -> int:
        """Returns the offset after the last message."""
        return self._bounds(queue).max_offset

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Returns the offset of the first message that was stored at or after the timestamp, or the queue's end if all
        messages are older."""
        return self._cluster.search(queue.topic, {queue: timestamp_ms})[queue]

    def _bounds(self, queue: MessageQueue) -> QueueBounds:
        found = self._cluster.bounds(queue.topic, [queue])
        self._is_there(queue, found)
        return found[queue]
