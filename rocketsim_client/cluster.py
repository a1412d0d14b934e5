"""Asks a cluster's name servers for routes, and its brokers for bounds, offsets and ranges of records.

The members of a broker name (its master and slaves) are asked in RocketMQ's order (table D5).  If a broker cannot be
reached, the next broker of the same name is asked at once, and the broker that failed is asked last for a while.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from rocketsim_client import forks, group_offsets
from rocketsim_client.addresses import Brokers
from rocketsim_client.connection import POLL_INTERVAL_S, TIMEOUT_S, Where, connection_of, unless
from rocketsim_client.errors import (
    BadAnswer,
    BrokerNotExist,
    CallTimeout,
    CommitFailed,
    InvalidParameter,
    MasterNotExist,
    RocketSimError,
    Unreachable,
)
from rocketsim_client.expression import TagExpression
from rocketsim_client.model import (
    MASTER_ID,
    CommitResult,
    LogEpoch,
    MessageQueue,
    PullFrame,
    QueueBounds,
    Ranges,
    by_broker,
)
from rocketsim_client.range_pull import FRAME_BYTES, RangeProgress
from rocketsim_client.retry import Another, another_may_do_better, retry_rule_of, tells_more
from rocketsim_client.route import BrokerData, TopicRoute
from rocketsim_client.routing.members import Member, candidates
from rocketsim_client.routing.routes import Routes
from rocketsim_client.tls import File
from rocketsim_client.transport.opening import LazyTransport
from rocketsim_client.transport.transport import Transport
from rocketsim_client.transport.unreachable import UnreachableAddresses

T = TypeVar("T")

logger = logging.getLogger(__name__)

# A stream that lasts longer than this is opened again at the offsets that it has reached, so that a pull does not wait
# longer for a dead broker.
STREAM_DEADLINE_S = 10.0


def no_answer(topic: str, broker_name: str, only_id: int | None, failure: RocketSimError | None) -> RocketSimError:
    """Returns the error to raise if no member of the broker name has answered."""
    if failure is None:
        wanted = "" if only_id is None else f"broker id {only_id} of "
        return BrokerNotExist(f"the route of topic {topic!r} has no address for {wanted}broker {broker_name!r}")
    if retry_rule_of(failure).another is Another.OF_A_SLAVE:
        error = MasterNotExist(
            f"broker {broker_name!r} has no master now, and its slave may not know the topic: {failure}"
        )
        error.__cause__ = failure
        return error
    return failure


class Cluster:
    """The brokers and name servers of a cluster, for programs that call them directly.  The first call opens
    connections, and so does the first call in a forked child.  Thread-safe.

    The arguments are those of `Connection.of`.  `name_server` is `host:port;host:port`, or a Connection, which replaces
    all other arguments except `timeout_s` and `poll_interval_s`.
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
        self.connection = connection
        self.timeout_s: float = connection.timeout_s  # the limit of each call to one server
        self._transport = LazyTransport(connection, transport)
        self._routes = Routes(self._transport, connection.poll_interval_s, self.timeout_s, clock)
        self._unreachable = UnreachableAddresses()
        self._clock = clock
        forks.watch(self)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all calls that are under way."""
        self._transport.close()
        self._routes.close()

    def forget_parent(self) -> None:
        """Forgets, in a forked child, which addresses its parent could not reach."""
        self._unreachable = UnreachableAddresses()

    @property
    def transport(self) -> Transport:
        """The calls to the servers.  The transport is made when it is first used, and connects at the first call."""
        return self._transport.get()

    def transport_within(self, timeout_s: float) -> tuple[Transport, float]:
        """Returns the transport for a call, and how many of the call's `timeout_s` seconds are left for it.  Less than
        `timeout_s` is left if the servers' protocol had to be found out first."""
        return self._transport.within(timeout_s)

    @property
    def protocol(self) -> str:
        """The protocol of the servers, which is `grpc` or `remoting`, or `auto` while no server has answered."""
        self._transport.get()
        return self._transport.connection.protocol

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers.  If brokers are given instead of name servers, the list is empty."""
        return list(self.connection.name_servers)

    @property
    def brokers(self) -> Brokers:
        """The addresses of brokers that were given instead of name servers."""
        return self.connection.members

    @property
    def first_address(self) -> str:
        """The address of one of the servers."""
        return self.connection.first_address

    # --- routes ---------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Returns all topics that the name server knows."""
        transport, left_s = self._transport.within(self.timeout_s, in_turn=True)
        return transport.routes.topic_list(left_s)

    def members(self) -> list[BrokerData]:
        """Returns all brokers that the name server knows."""
        transport, left_s = self._transport.within(self.timeout_s, in_turn=True)
        return transport.routes.cluster_list(left_s)

    def route(self, topic: str, *, fresh: bool = False) -> TopicRoute:
        """Returns the topic's route.  A known route is used until it is older than the poll interval, and also later if
        no name server answers.  With `fresh` the name servers are always asked, and NameServerUnavailable is raised if
        none answers."""
        return self._routes.route(topic, fresh=fresh)

    def route_within(self, wait_s: float, topic: str) -> TopicRoute:
        """Returns the topic's route.  If an old route is known, waits at most `wait_s` for a newer one."""
        return self._routes.route_within(wait_s, topic)

    def refresh_within(self, wait_s: float, topic: str, *, is_old: bool = False) -> TopicRoute | None:
        """Asks for the topic's route like `refresh_old_route` if `is_old`, otherwise like `refresh_after_failure`, but
        waits at most `wait_s`."""
        return self._routes.refresh_within(wait_s, topic, is_old=is_old)

    def refresh_after_failure(self, topic: str) -> TopicRoute | None:
        """Asks for the topic's route now, unless it was asked for a moment ago.  Never raises."""
        return self._routes.refresh_after_failure(topic)

    def refresh_old_route(self, topic: str) -> TopicRoute | None:
        """Asks for the topic's route after an answer which shows that the known route cannot be used.  Never raises."""
        return self._routes.refresh_old_route(topic)

    def queues(self, topic: str, *, fresh: bool = False) -> list[MessageQueue]:
        """Returns the topic's queues that can be read."""
        return self.route(topic, fresh=fresh).readable_queues()

    def addresses(self, topic: str, broker_name: str) -> Mapping[int, str]:
        """Returns the addresses of the broker name's members by broker id, even if the topic's route lacks the broker
        name."""
        return self._routes.addresses(topic, broker_name)

    # --- which broker to ask --------------------------------------------------------------------------------------

    @property
    def has_bad_addresses(self) -> bool:
        """True if at least one address recently did not answer.  Reading this property is cheaper than calling
        `bad_addresses`."""
        return bool(self._unreachable)

    def bad_addresses(self) -> frozenset[str]:
        """Returns the addresses that recently did not answer."""
        return self._unreachable.current(self._clock())

    def failed(self, address: str, error: RocketSimError) -> None:
        """Notes that the address did not answer, so that it is asked last for a while."""
        if self._unreachable.failed(address, self._clock(), silent=isinstance(error, CallTimeout)):
            logger.warning("%s is tried last for a while: %s", address, error)

    def answered(self, address: str) -> None:
        """Notes that an address has answered, so that it is tried first again."""
        if self._unreachable.answered(address):
            logger.info("%s answers again", address)

    def next_member(
        self, topic: str, broker_name: str, broker_id: int, tried: Collection[str] = (), *, only_this: bool = False
    ) -> Member | None:
        """Returns the member of the broker name to ask next, in RocketMQ's order (table D5).  Addresses in `tried` are
        left out, and unreachable addresses come last.  With `only_this`, returns the member with the id `broker_id`, or
        None, but no other member.

        Refreshes the route first if no member is found, if the wanted master cannot be chosen, or if an earlier member
        has failed.
        """
        member = self._find(topic, broker_name, broker_id, tried, only_this)
        # The route is not refreshed for a suggested slave that is missing in it, because brokers also suggest broker
        # ids that do not exist.
        if member is None or (member.broker_id != broker_id and (tried or broker_id == MASTER_ID)):
            self.refresh_after_failure(topic)
            member = self._find(topic, broker_name, broker_id, tried, only_this)
        return member

    def _find(
        self, topic: str, broker_name: str, broker_id: int, tried: Collection[str], only_this: bool
    ) -> Member | None:
        order = candidates(self.addresses(topic, broker_name), broker_id, self.bad_addresses())
        open_to_choice = (member for member in order if not only_this or member.broker_id == broker_id)
        return next((member for member in open_to_choice if member.address not in tried), None)

    def ask(
        self,
        topic: str,
        broker_name: str,
        call: Callable[[Member], T],
        *,
        broker_id: int = MASTER_ID,
        only_this: bool = False,
    ) -> T:
        """Calls one broker of the name after the other, in the order of `next_member`, and returns the first answer."""
        return self.ask_until(topic, broker_name, call, lambda _: True, broker_id=broker_id, only_this=only_this)[-1]

    def ask_until(
        self,
        topic: str,
        broker_name: str,
        call: Callable[[Member], T],
        is_enough: Callable[[T], bool],
        *,
        broker_id: int = MASTER_ID,
        only_this: bool = False,
    ) -> list[T]:
        """Calls one broker of the name after the other, in the order of `next_member`, until `is_enough` is true for an
        answer.  Returns all answers.  Raises an error only if no broker of the name answers.

        After a slave has answered, a master that recently did not answer is not asked.
        """
        tried: list[str] = []
        answers: list[T] = []
        failure: RocketSimError | None = None
        while member := self.next_member(topic, broker_name, broker_id, tried, only_this=only_this):
            tried.append(member.address)
            if answers and not member.is_slave and member.address in self.bad_addresses():
                continue
            try:
                answer = call(member)
            except RocketSimError as error:
                if not answers and not another_may_do_better(error, member.broker_id):
                    raise
                failure = error if tells_more(error, failure) else failure
                if isinstance(error, Unreachable):
                    self.failed(member.address, error)
            else:
                self.answered(member.address)
                answers.append(answer)
                if is_enough(answer):
                    break
        if answers:
            return answers
        raise no_answer(topic, broker_name, broker_id if only_this else None, failure)

    def ask_name(self, broker_name: str, call: Callable[[str], T]) -> T:
        """Calls the master of a broker name, or another broker of that name if the master does not answer.  Each call
        asks the name server for the present brokers."""
        return self._ask_name(broker_name, call, all_slaves=False)[0]

    def ask_master_or_slaves(self, broker_name: str, call: Callable[[str], T]) -> list[T]:
        """Calls the master of a broker name.  If the master does not answer, returns the answers of all slaves that
        do."""
        return self._ask_name(broker_name, call, all_slaves=True)

    def _ask_name(self, broker_name: str, call: Callable[[str], T], *, all_slaves: bool) -> list[T]:
        members = {data.broker_name: data.addresses for data in self.members()}
        answers: list[T] = []
        failure: RocketSimError | None = None
        for member in candidates(members.get(broker_name, {}), MASTER_ID):
            try:
                answers.append(call(member.address))
            except RocketSimError as error:
                if not isinstance(error, Unreachable) and not (all_slaves and member.is_slave):
                    raise
                failure = error
            else:
                if not (all_slaves and member.is_slave):
                    break
        if answers:
            return answers
        raise failure or BrokerNotExist(f"the name server knows no broker {broker_name!r}")

    # --- offsets of queues ----------------------------------------------------------------------------------------

    def bounds(
        self,
        topic: str,
        queues: Sequence[MessageQueue] | None = None,
        *,
        fresh: bool = False,
        master_only: bool = False,
    ) -> dict[MessageQueue, QueueBounds]:
        """Returns the first offset and the end of each queue of the topic.  For each broker name one call is made, to
        the master, or to a slave while there is no master.  The result leaves out a queue that its broker does not
        have."""
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
        """Returns the bounds of one broker's queues by queue id.  Without `queue_ids`, returns the bounds of all the
        broker's queues.  A broker refuses a call that names an unknown queue, so this method repeats the call without
        names.

        `read_in` has the leader epochs in which the caller has read, and the answer says at which offsets they ended.
        The answer also says how many range pulls `group` has made.  With `closed`, the answer also has the queues of
        `queue_ids` that the topic has no longer, if the broker is new enough for this option.
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
        """Waits until one of this broker's queues has a record at or after its offset in `ends`, which maps queue ids
        to the queues' ends.

        Returns False if no record came within `hold_s` seconds.  Returns False at once if the cluster is Apache
        RocketMQ's.
        """

        def call(member: Member) -> bool:
            return self.transport.reads.wait_for_records(member.address, topic, ends, hold_s, self.timeout_s)

        return self.ask(topic, broker_name, call)

    def search(self, topic: str, timestamps: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Returns for each queue the first offset that was stored at or after the timestamp (ms), or the queue's end
        if all its messages are older."""
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
        """Returns, for each queue, the offset of the next message that the group reads.  An offset of -1 means that the
        group has no offset, according to the master.

        While the master does not answer, all slaves are asked, and the newest offset counts.  Some slaves may have
        older offsets, because a SYNC_MASTER waits for one slave only.  Slaves that do not answer are left out.  The
        result leaves out a queue if no slave has an offset for it, because the master may have one.
        """
        return group_offsets.committed(self, group, queues, zero_for_new_group=zero_for_new_group)

    def commit(
        self,
        group: str,
        offsets: Mapping[MessageQueue, int],
        target: str = "masterFirst",
        timeout_s: float | None = None,
    ) -> CommitResult:
        """Commits, for each queue, the offset of the next message to read.  The result says which broker took the
        offsets, which brokers have them, and which offsets the queues have now.  A queue that is absent from the result
        was not committed.  A lower offset changes nothing.  All brokers are tried.  If a broker refused some of the
        offsets, raises CommitFailed, whose `result` is this result.

        If a broker refuses one offset of a commit, the broker takes none of the others.  A refused commit is repeated
        in two halves, so that one bad queue does not keep the other queues from being committed.
        """
        result = group_offsets.commit(self, group, offsets, target, timeout_s or self.timeout_s)
        if result.failures:
            failure = next(iter(result.failures.values()))
            message = f"offsets of group {group!r} were not committed to {', '.join(result.failures)}: {failure}"
            raise CommitFailed(message, result) from failure
        return result

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
        """Yields the records of `ranges` in large frames, and begins at the member that `broker_id_hint` names.

        If a broker breaks off or stops answering, another broker of the same name is asked for the rest, unless
        `only_this` is set.  Raises an error after `max_failures` failures without a frame between them.  A range that a
        broker ends early (`Segment.status`) is not asked for again, because only the caller can decide that.

        `read_in` maps each queue to the leader epoch that the log had when `until_offset` was read
        (`QueueBounds.log_epoch`).  If the epoch in `read_in` ended before `until_offset`, the broker ends the range at
        the end of the epoch with OFFSET_TRUNCATED, because other messages may have taken the later offsets.
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
                tried.clear()  # all members were asked, so begin with the first one again
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
                        f"{member.address} ended a pull of ranges without sending a record or a reason",
                        address=member.address,
                    )
                self.answered(member.address)
            except RocketSimError as error:
                if not another_may_do_better(error, member.broker_id):
                    raise
                if progress.total() > before:
                    failures, failure = 0, None
                    tried.clear()
                    if isinstance(error, CallTimeout):
                        continue  # this timeout is only the deadline of the stream, and the broker still works
                failure = error if tells_more(error, failure) else failure
                failures += 1
                tried.append(member.address)
                logger.warning(
                    "broker %s: the records that %s did not send are asked for again: %s",
                    broker_name,
                    member.address,
                    error,
                )
                if isinstance(error, Unreachable):
                    self.failed(member.address, error)
            finally:
                frames.close()  # type: ignore[attr-defined]  # it is a generator, and closing it cancels the call
