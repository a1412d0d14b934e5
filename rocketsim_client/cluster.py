"""A cluster for programs that read: bounds and searches in queues, commits of offsets, ranges of records."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from rocketsim_client.addresses import Brokers
from rocketsim_client.connection import POLL_INTERVAL_S, TIMEOUT_S, Where, connection_of, unless
from rocketsim_client.errors import (
    BadAnswer,
    CallTimeout,
    CommitFailed,
    InvalidParameter,
    RocketSimError,
    TopicNotExist,
    Unreachable,
)
from rocketsim_client.expression import TagExpression
from rocketsim_client.model import (
    MASTER_ID,
    CommitResult,
    CommitStatus,
    LogEpoch,
    MessageQueue,
    PullFrame,
    QueueBounds,
    Ranges,
    by_broker,
)
from rocketsim_client.range_pull import FRAME_BYTES, RangeProgress
from rocketsim_client.retry import another_may_do_better, tells_more
from rocketsim_client.routing.members import Member
from rocketsim_client.routing.router import Router, no_answer
from rocketsim_client.tls import File
from rocketsim_client.transport.reads import OffsetsAnswer
from rocketsim_client.transport.transport import Transport

logger = logging.getLogger(__name__)

# A stream that lasts longer is opened again where it was. This bounds the wait for a broker that is dead.
STREAM_DEADLINE_S = 10.0
COMMIT_TARGETS = ("masterFirst", "masterOnly", "both")


def newest_offsets(answers: Sequence[OffsetsAnswer]) -> dict[tuple[str, int], int]:
    """The offsets of one broker name, by (topic, queue id).  If the master, which answers last, is among the answers,
    its offsets count; otherwise the newest, by generation, then offset.  Pure."""
    newest: dict[tuple[str, int], tuple[int, int]] = {}
    for answer in answers:
        if answer.broker_id == MASTER_ID:
            newest.clear()
        for number, (topic, queue_id, offset) in enumerate(answer.offsets):
            entry = answer.generations[number] if answer.generations else 0, offset
            newest[topic, queue_id] = max(entry, newest.get((topic, queue_id), entry))
    return {queue: offset for queue, (_, offset) in newest.items()}


class Cluster(Router):
    """Thread-safe.  It opens connections at its first call, and opens new ones in a forked child.

    The arguments are those of `Connection.of`.  `name_server`: `host:port;host:port`, or a Connection instead of all
    other arguments; only the two times may be given beside it.
    """

    def __init__(
        self,
        name_server: Where,
        *,
        brokers: Brokers | None = None,
        timeout_s: float = TIMEOUT_S,
        poll_interval_s: float = POLL_INTERVAL_S,
        channel_options: Mapping[str, int | str] | None = None,
        range_streams: bool = True,
        access_key: str = "",
        secret_key: str = "",
        tls: bool = False,
        tls_ca: File = None,
        tls_cert: File = None,
        tls_key: File = None,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        connection = connection_of(
            name_server,
            timeout_s=unless(TIMEOUT_S, timeout_s),
            poll_interval_s=unless(POLL_INTERVAL_S, poll_interval_s),
            brokers=brokers,
            channel_options=channel_options,
            range_streams=range_streams,
            access_key=access_key,
            secret_key=secret_key,
            tls=tls,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
        super().__init__(connection, transport, clock)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- offsets of queues ----------------------------------------------------------------------------------------

    def bounds(
        self,
        topic: str,
        queues: Sequence[MessageQueue] | None = None,
        *,
        fresh: bool = False,
        master_only: bool = False,
    ) -> dict[MessageQueue, QueueBounds]:
        """First offset and end of the topic's queues, with one call to each broker name: to its master, or to a slave
        while it has no master.  A queue that its broker does not have is absent."""
        wanted = self.queues(topic, fresh=fresh) if queues is None else list(queues)
        found: dict[MessageQueue, QueueBounds] = {}
        for _, broker_name, members in by_broker(wanted):
            ids = [] if queues is None else [queue.queue_id for queue in members]
            answer = self.broker_bounds(topic, broker_name, ids, master_only=master_only)
            found.update(
                {
                    MessageQueue(topic, broker_name, queue_id): answer[queue_id]
                    for queue_id in ids or answer
                    if queue_id in answer
                }
            )
        return found

    def broker_bounds(
        self,
        topic: str,
        broker_name: str,
        queue_ids: Sequence[int] = (),
        *,
        master_only: bool = False,
        read_in: Collection[LogEpoch] = (),
        group: str = "",
        closed: bool = False,
    ) -> dict[int, QueueBounds]:
        """The bounds of one broker's queues by id.  If no queue is named, or a named one does not exist, the bounds of
        all its queues: a broker refuses a question with an unknown queue as a whole.

        `read_in`: epochs in which the caller has read; the answer says where they ended.  `group`: the group whose
        pulls of ranges are counted.  `closed`: also named queues that the topic does not have any more, if the broker
        knows that option.
        """

        def call(member: Member) -> dict[int, QueueBounds]:
            at, timeout_s = member.address, self.timeout_s
            try:
                return self.transport.reads.queue_bounds(at, topic, queue_ids, timeout_s, read_in, group, closed)
            except InvalidParameter:
                if not queue_ids:
                    raise
                return self.transport.reads.queue_bounds(at, topic, [], timeout_s, read_in, group)

        return self.ask(topic, broker_name, call, only_this=master_only)

    def wait_for_records(self, topic: str, broker_name: str, ends: Mapping[int, int], hold_s: float) -> bool:
        """Waits until one of this broker's queues has a record beyond its end, by queue id.

        Returns False if none came within `hold_s` seconds, and at once on a cluster of Apache RocketMQ.
        """

        def call(member: Member) -> bool:
            return self.transport.reads.wait_for_records(member.address, topic, ends, hold_s, self.timeout_s)

        return self.ask(topic, broker_name, call)

    def search(self, topic: str, timestamps: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """For each queue the first offset stored at or after the timestamp (ms); the queue's end if all messages are
        older."""
        found: dict[MessageQueue, int] = {}
        for _, broker_name, queues in by_broker(timestamps):
            wanted = {queue.queue_id: timestamps[queue] for queue in queues}

            def call(member: Member, wanted: dict[int, int] = wanted) -> dict[int, int]:
                return self.transport.reads.search_offsets(member.address, topic, wanted, self.timeout_s)

            answer = self.ask(topic, broker_name, call)
            found.update({queue: answer[queue.queue_id] for queue in queues})
        return found

    # --- offsets of groups ----------------------------------------------------------------------------------------

    def committed(
        self,
        group: str,
        queues: Collection[MessageQueue],
        *,
        zero_for_new_group: bool = False,
    ) -> dict[MessageQueue, int]:
        """The next offset to read in each queue; -1: the master says that the group has none.

        While the master does not answer, all slaves are asked, and the newest offset counts, because a SYNC_MASTER
        waits for one slave only.  Slaves that do not answer are left out.  A queue is absent if no slave has an offset,
        since the master may have one.
        """
        found: dict[MessageQueue, int] = {}
        for broker_name, topic, members in self._by_name(queues):

            def call(member: Member, members: list[MessageQueue] = members) -> OffsetsAnswer:
                return self.transport.reads.query_offsets(
                    member.address, group, members, zero_for_new_group, self.timeout_s
                )

            answers = self.ask_until(topic, broker_name, call, lambda answer: answer.broker_id == MASTER_ID)
            for (of_topic, queue_id), offset in newest_offsets(answers).items():
                if offset >= 0 or answers[-1].broker_id == MASTER_ID:
                    found[MessageQueue(of_topic, broker_name, queue_id)] = offset
        return found

    def commit(
        self,
        group: str,
        offsets: Mapping[MessageQueue, int],
        target: str = "masterFirst",
        timeout_s: float | None = None,
    ) -> CommitResult:
        """Commits the next offsets to read.  The result says which broker took them, which brokers have them, and the
        offsets as they are now; a queue that is absent was not taken.  A lower offset changes nothing.  All brokers are
        tried.  CommitFailed, with the result, if any of them refused a part.

        A broker refuses a commit as a whole.  A refused commit is therefore repeated in halves, so that one bad queue
        does not keep the others from being committed.
        """
        if target not in COMMIT_TARGETS:
            raise ValueError(f"commit target {target!r} is not one of {', '.join(COMMIT_TARGETS)}")
        result = CommitResult()
        for _, topic, queues in self._by_name(offsets):
            self._commit(group, topic, {queue: offsets[queue] for queue in queues}, target, timeout_s, result)
        if result.failures:
            failure = next(iter(result.failures.values()))
            message = f"offsets of group {group!r} were not committed to {', '.join(result.failures)}: {failure}"
            raise CommitFailed(message, result) from failure
        return result

    def _commit(
        self,
        group: str,
        topic: str,
        offsets: Mapping[MessageQueue, int],
        target: str,
        timeout_s: float | None,
        result: CommitResult,
    ) -> None:
        """Commits at one broker name."""
        broker_name = next(iter(offsets)).broker_name

        def call(member: Member) -> tuple[int, CommitStatus]:
            answer = self.transport.reads.commit_offsets(member.address, group, offsets, timeout_s or self.timeout_s)
            for of_topic, queue_id, offset in answer.offsets:
                result.offsets[MessageQueue(of_topic, broker_name, queue_id)] = offset
            return member.broker_id, answer.status

        try:
            taker, status = self.ask(topic, broker_name, call, only_this=target == "masterOnly")
            result.broker_ids[broker_name] = taker
            if result.statuses.get(broker_name, CommitStatus.COMMIT_OK) is CommitStatus.COMMIT_OK:
                result.statuses[broker_name] = status  # OK only if all queues of the name are
            if target == "both":
                for broker_id in self.addresses(topic, broker_name):
                    if broker_id != taker:
                        self.ask(topic, broker_name, call, broker_id=broker_id, only_this=True)
        except (TopicNotExist, InvalidParameter) as error:
            if len(offsets) == 1:
                result.failures[broker_name] = error
                return
            items = list(offsets.items())
            for half in (items[: len(items) // 2], items[len(items) // 2 :]):
                self._commit(group, half[0][0].topic, dict(half), target, timeout_s, result)
        except RocketSimError as error:
            result.failures[broker_name] = error

    @staticmethod
    def _by_name(queues: Collection[MessageQueue]) -> Iterator[tuple[str, str, list[MessageQueue]]]:
        """Yields (broker name, a topic whose route has it, its queues)."""
        groups: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            groups.setdefault(queue.broker_name, []).append(queue)
        for broker_name, members in groups.items():
            yield broker_name, members[0].topic, members

    # --- reading --------------------------------------------------------------------------------------------------

    def pull_range(
        self,
        broker_name: str,
        ranges: Ranges,
        *,
        broker_id_hint: int = MASTER_ID,
        only_this: bool = False,
        group: str = "",
        expression: str = "*",
        max_frame_bytes: int = FRAME_BYTES,
        max_failures: int = 4,
        read_in: Mapping[MessageQueue, LogEpoch] | None = None,
    ) -> Iterator[PullFrame]:
        """The records of `ranges` in large frames, starting at the member that `broker_id_hint` names.

        If a broker breaks off or stops answering, another member of the name is asked for the rest (`only_this`: no
        other).  It raises after `max_failures` failures without a frame between them.  A range that a broker ends early
        (`Segment.status`) is not asked for again; the caller has to decide that.

        `read_in`: by queue, the epoch of the log when `until_offset` was read (`QueueBounds.log_epoch`).  If that epoch
        ended before `until_offset`, the range ends there with OFFSET_TRUNCATED, because other messages may follow now.
        """
        expression = TagExpression.parse(expression).text
        progress = RangeProgress(ranges)
        asked = (read_in or {}).items()
        epochs = {(queue.topic, queue.queue_id): epoch for queue, epoch in asked if queue.broker_name == broker_name}
        tried: list[str] = []
        failures = 0
        failure: RocketSimError | None = None
        while open_ranges := progress.open_ranges():
            topic = open_ranges[0].topic
            member = self.next_member(topic, broker_name, broker_id_hint, tried, only_this=only_this)
            if member is None and tried:
                tried.clear()  # all members were asked: begin with the first again
                member = self.next_member(topic, broker_name, broker_id_hint, only_this=only_this)
            if member is None or failures >= max_failures:
                raise no_answer(topic, broker_name, broker_id_hint if only_this else None, failure)
            frames = self.transport.reads.pull_range(
                member.address,
                open_ranges,
                group=group,
                expression=expression,
                max_frame_bytes=max_frame_bytes,
                timeout_s=max(STREAM_DEADLINE_S, self.timeout_s),
                read_in=epochs,
            )
            before = progress.total()
            try:
                for frame in frames:
                    yield progress.advance(frame)
                if progress.total() == before:
                    raise BadAnswer(
                        f"{member.address} ended a pull of ranges without saying why", address=member.address
                    )
                self.answered(member.address)
            except RocketSimError as error:
                if not another_may_do_better(error, member.broker_id):
                    raise
                if progress.total() > before:
                    failures, failure = 0, None
                    tried.clear()
                    if isinstance(error, CallTimeout):
                        continue  # Only the stream's own deadline has passed: continue.
                failure = error if tells_more(error, failure) else failure
                failures += 1
                tried.append(member.address)
                logger.warning(
                    "broker %s: what %s did not send is asked for again: %s", broker_name, member.address, error
                )
                if isinstance(error, Unreachable):
                    self.failed(member.address, error)
            finally:
                frames.close()  # type: ignore[attr-defined]  # a generator: closing it cancels the call
