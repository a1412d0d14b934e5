"""A RocketSim cluster as a reader and writer of offsets sees it: routes, bounds, ranges, commits.  Thread-safe;
channels open late.

The rules about whom to ask live here, once: table D5 within a broker name, a broker that cannot be reached is left at
once and not tried first again for a moment, the route is asked again as soon as it proves wrong.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from rocketsim_client import forks
from rocketsim_client.addresses import parse_name_servers
from rocketsim_client.brokers import BadAddresses, Member, candidates
from rocketsim_client.errors import (
    BadAnswer,
    BrokerNotExist,
    CallTimeout,
    ClientClosed,
    NameServerUnavailable,
    RocketSimError,
    ServiceNotAvailable,
    TopicNotExist,
    Unreachable,
)
from rocketsim_client.expression import TagExpression
from rocketsim_client.grpc_transport import GrpcTransport
from rocketsim_client.model import CommitResult, MessageQueue, PullFrame, QueueBounds, QueueRange, by_broker
from rocketsim_client.range_pull import RangeProgress
from rocketsim_client.route import MASTER_ID, BrokerData, RouteTable, TopicRoute
from rocketsim_client.transport import Transport

if TYPE_CHECKING:
    from rocketsim_client.producer import Producer

T = TypeVar("T")

# A stream that has to go on after this is opened anew where it was: bounds how long a dead peer is waited for.
STREAM_DEADLINE_S = 10.0
COMMIT_TARGETS = ("masterFirst", "masterOnly", "both")


class CommitFailed(RocketSimError):
    """At least one broker name took no commit; `result` says what the others did."""

    def __init__(self, message: str, result: CommitResult) -> None:
        super().__init__(message)
        self.result = result


class Cluster:
    """`name_server` is `host:port;host:port`.  `timeout_s` bounds each call to one server; falling back takes a further
    call."""

    def __init__(
        self,
        name_server: str | Sequence[str],
        *,
        timeout_s: float = 3.0,
        poll_interval_s: float = 30.0,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name_servers = parse_name_servers(name_server)
        self.timeout_s = timeout_s
        self.transport: Transport = transport or GrpcTransport(self.name_servers)
        self._clock = clock
        self._routes = RouteTable(poll_interval_s)
        self._bad = BadAddresses()
        self._asking = threading.Lock()
        self._producer: Producer | None = None
        self._closed = False
        forks.watch(self)

    def forget_parent(self) -> None:
        self._asking, self._bad, self._producer = threading.Lock(), BadAddresses(), None

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        if self._producer:
            self._producer.close()
        self.transport.close()

    # --- routes ---------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        return self.transport.topic_list(self.timeout_s)

    def members(self) -> list[BrokerData]:
        """All brokers the name server knows."""
        return self.transport.cluster_list(self.timeout_s)

    def route(self, topic: str, *, fresh: bool = False) -> TopicRoute:
        """The topic's route; from memory if it is not older than the poll interval and `fresh` is not asked for.  An
        old route is kept when no name server answers (but not for `fresh`)."""
        known = self._routes.get(topic)
        if known and not fresh and not self._routes.is_due(topic, self._clock()):
            return known
        if known and not fresh and self._asking.locked():
            return known  # Somebody asks already.
        with self._asking:
            again = self._routes.get(topic)
            if again is not known and again and not fresh:
                return again
            try:
                route = self.transport.topic_route(topic, self.timeout_s)
            except NameServerUnavailable:
                if known is None or fresh:
                    raise
                self._routes.asked_in_vain(topic, self._clock())
                return known
            except TopicNotExist:
                if known is None or fresh:
                    raise
                self._routes.asked_in_vain(topic, self._clock())
                return known
            self._routes.learned(topic, route, self._clock())
            return route

    def refresh_after_failure(self, topic: str) -> TopicRoute | None:
        """Ask again now, unless that was done a moment ago.  Never raises: the old route is better than none."""
        if not self._routes.may_refresh(topic, self._clock()):
            return self._routes.get(topic)
        try:
            return self.route(topic, fresh=True)
        except (NameServerUnavailable, TopicNotExist):
            self._routes.refreshed_in_vain(topic, self._clock())
            return self._routes.get(topic)

    def queues(self, topic: str, *, fresh: bool = False) -> list[MessageQueue]:
        """The queues that can be read."""
        return self.route(topic, fresh=fresh).readable_queues()

    # --- whom to ask ----------------------------------------------------------------------------------------------

    @property
    def has_bad_addresses(self) -> bool:
        """Quick: whether `bad_addresses` is worth a look."""
        return bool(self._bad)

    def bad_addresses(self) -> frozenset[str]:
        """Those that failed a moment ago."""
        return self._bad.now_bad(self._clock())

    def failed(self, address: str, error: RocketSimError) -> None:
        self._bad.failed(address, self._clock(), silent=isinstance(error, CallTimeout))

    def answered(self, address: str) -> None:
        self._bad.answered(address)

    def find(self, topic: str, broker_name: str, broker_id: int, tried: Collection[str] = ()) -> Member | None:
        """The next member to ask, by D5, leaving out `tried` addresses and putting those that just failed last."""
        order = candidates(self.route(topic).addresses(broker_name), broker_id, self.bad_addresses())
        return next((member for member in order if member.address not in tried), None)

    def ask(
        self,
        topic: str,
        broker_name: str,
        call: Callable[[Member], T],
        *,
        broker_id: int = MASTER_ID,
        only_this: bool = False,
    ) -> T:
        """`call`'s answer from the first member that gives one.  Whenever that is not the member asked for first, the
        route is looked at again: it may know better by now."""
        tried: list[str] = []
        failure: RocketSimError | None = None
        refreshed = False
        while True:
            member = self.find(topic, broker_name, broker_id, tried)
            if not refreshed and (member is None or member.broker_id != broker_id):
                self.refresh_after_failure(topic)
                refreshed = True
                continue
            if member is None or (only_this and member.broker_id != broker_id):
                break
            tried.append(member.address)
            try:
                answer = call(member)
            except (Unreachable, ServiceNotAvailable) as error:
                failure, refreshed = error, False
                if isinstance(error, Unreachable):
                    self.failed(member.address, error)
            else:
                self.answered(member.address)
                return answer
        if failure:
            raise failure
        wanted = f"broker id {broker_id} of " if only_this else ""
        raise BrokerNotExist(f"the route of topic {topic!r} has no address for {wanted}broker {broker_name!r}")

    def ask_name(self, broker_name: str, call: Callable[[str], T]) -> T:
        """`call(address)`'s answer from the master of a name, from another member when it does not answer.  For
        operators: the members are asked of the name server each time."""
        members = {data.broker_name: data.addresses for data in self.members()}
        failure: RocketSimError | None = None
        for member in candidates(members.get(broker_name, {}), MASTER_ID):
            try:
                return call(member.address)
            except Unreachable as error:
                failure = error
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
        """First offset and end of the topic's queues, one call a broker name: the master's, a slave's while there is
        none."""
        wanted = self.queues(topic, fresh=fresh) if queues is None else list(queues)
        found: dict[MessageQueue, QueueBounds] = {}
        for _, broker_name, members in by_broker(wanted):
            ids = [] if queues is None else [queue.queue_id for queue in members]

            def call(member: Member, ids: list[int] = ids) -> dict[int, QueueBounds]:
                return self.transport.queue_bounds(member.address, topic, ids, self.timeout_s)

            answer = self.ask(topic, broker_name, call, only_this=master_only)
            found.update({MessageQueue(topic, broker_name, queue_id): value for queue_id, value in answer.items()})
        return found

    def search(self, topic: str, timestamps: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Per queue the first offset stored at or after the timestamp (ms); the end where nothing is that young."""
        found: dict[MessageQueue, int] = {}
        for _, broker_name, queues in by_broker(timestamps):
            wanted = {queue.queue_id: timestamps[queue] for queue in queues}

            def call(member: Member, wanted: dict[int, int] = wanted) -> dict[int, int]:
                return self.transport.search_offsets(member.address, topic, wanted, self.timeout_s)

            answer = self.ask(topic, broker_name, call)
            found.update({queue: answer[queue.queue_id] for queue in queues})
        return found

    # --- offsets of groups ----------------------------------------------------------------------------------------

    def committed(
        self, group: str, queues: Collection[MessageQueue], *, zero_for_new_group: bool = False
    ) -> dict[MessageQueue, int]:
        """Next offset to read per queue; -1 where the group has none.  Master first, any broker of the name when it is
        gone."""
        found = dict.fromkeys(queues, -1)
        for broker_name, topic, members in self._by_name(queues):

            def call(member: Member, members: list[MessageQueue] = members) -> list[tuple[str, int, int]]:
                answer = self.transport.query_offsets(
                    member.address, group, members, zero_for_new_group, self.timeout_s
                )
                return answer.offsets

            for of_topic, queue_id, offset in self.ask(topic, broker_name, call):
                found[MessageQueue(of_topic, broker_name, queue_id)] = offset
        return found

    def commit(
        self,
        group: str,
        offsets: Mapping[MessageQueue, int],
        target: str = "masterFirst",
        timeout_s: float | None = None,
    ) -> CommitResult:
        """Commit the next offsets to read.  The result says which broker took them and what stands now: a lower offset
        changes nothing. All brokers are tried; CommitFailed (with that result) if any of them took nothing."""
        if target not in COMMIT_TARGETS:
            raise ValueError(f"commit target {target!r}: one of {', '.join(COMMIT_TARGETS)}")
        result = CommitResult({}, {}, {})
        for broker_name, topic, queues in self._by_name(offsets):
            wanted = {queue: offsets[queue] for queue in queues}

            def call(member: Member, wanted: dict[MessageQueue, int] = wanted, name: str = broker_name) -> int:
                answer = self.transport.commit_offsets(member.address, group, wanted, timeout_s or self.timeout_s)
                for of_topic, queue_id, offset in answer.offsets:
                    result.offsets[MessageQueue(of_topic, name, queue_id)] = offset
                return member.broker_id

            try:
                taker = self.ask(topic, broker_name, call, only_this=target == "masterOnly")
                result.broker_ids[broker_name] = taker
                if target == "both":
                    for broker_id in self.route(topic).addresses(broker_name):
                        if broker_id != taker:
                            self.ask(topic, broker_name, call, broker_id=broker_id, only_this=True)
            except RocketSimError as error:
                result.failures[broker_name] = error
        if result.failures:
            broker_name, failure = next(iter(result.failures.items()))
            message = f"offsets of group {group!r} were not committed to {', '.join(result.failures)}: {failure}"
            raise CommitFailed(message, result) from failure
        return result

    @staticmethod
    def _by_name(queues: Collection[MessageQueue]) -> Iterator[tuple[str, str, list[MessageQueue]]]:
        """(broker name, a topic to find its route by, its queues)."""
        groups: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            groups.setdefault(queue.broker_name, []).append(queue)
        for broker_name, members in groups.items():
            yield broker_name, members[0].topic, members

    # --- reading --------------------------------------------------------------------------------------------------

    def pull_range(
        self,
        broker_name: str,
        ranges: Sequence[QueueRange],
        *,
        broker_id_hint: int = MASTER_ID,
        only_this: bool = False,
        group: str = "",
        expression: str = "*",
        max_frame_bytes: int = 1 << 20,
        max_failures: int = 4,
    ) -> Iterator[PullFrame]:
        """The records of `ranges` in large frames, starting at the member that `broker_id_hint` names.

        A broker that breaks off or falls silent is left, and the rest read from another member of the name
        (`only_this`: from nowhere else); gives up after `max_failures` failures without a frame between them.  A range
        that a broker ends early (`Segment.status`) is not asked for again: that decision is the caller's.
        """
        expression = TagExpression.parse(expression).text
        progress = RangeProgress(ranges)
        tried: list[str] = []
        failures = 0
        failure: RocketSimError | None = None
        while open_ranges := progress.open_ranges():
            topic = open_ranges[0].topic
            member = self.find(topic, broker_name, broker_id_hint, tried)
            if member is None and tried:
                self.refresh_after_failure(topic)
                tried.clear()
                member = self.find(topic, broker_name, broker_id_hint)
            if only_this and member and member.broker_id != broker_id_hint:
                member = None
            if member is None or failures >= max_failures:
                wanted = f"broker id {broker_id_hint} of " if only_this else ""
                raise failure or BrokerNotExist(
                    f"the route of topic {topic!r} has no address for {wanted}broker {broker_name!r}"
                )
            frames = self.transport.pull_range(
                member.address,
                open_ranges,
                group=group,
                expression=expression,
                max_frame_bytes=max_frame_bytes,
                timeout_s=max(STREAM_DEADLINE_S, self.timeout_s),
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
            except (Unreachable, ServiceNotAvailable) as error:
                if progress.total() > before:
                    failures = 0
                    tried.clear()
                    if isinstance(error, CallTimeout):
                        continue  # Only the stream's own deadline: go on where we are.
                failure = error
                failures += 1
                tried.append(member.address)
                self.failed(member.address, error)
                if only_this:
                    tried.clear()
            finally:
                frames.close()  # type: ignore[attr-defined]  # a generator: closing it cancels the call

    # --- writing --------------------------------------------------------------------------------------------------

    def producer(self, group: str = "rocketsim") -> "Producer":
        """A producer over this cluster's channels, made once and closed with it."""
        if self._closed:
            raise ClientClosed("this cluster has been closed")
        if self._producer is None:
            from rocketsim_client.producer import Producer

            self._producer = Producer(group=group, cluster=self)
        return self._producer
