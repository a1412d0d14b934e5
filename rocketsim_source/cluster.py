"""What the source asks of the brokers: `BrokerCluster`, the seam, and `ClientCluster` over rocketsim_client.

A trouble with one broker name is a value here, not an exception: the queues of the others go on.  Opens nothing before
the first call.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from rocketsim_source.connection import Connection
from rocketsim_source.queue import Offsets, Queue
from rocketsim_source.splits import QueueRange

if TYPE_CHECKING:
    from rocketsim_client.cluster import Cluster
    from rocketsim_client.model import PullFrame


@dataclass(frozen=True, slots=True)
class Bounds:
    """A queue's smallest offset and its end, as one broker of its name sees them."""

    min_offset: int
    max_offset: int
    last_store_timestamp: int = 0
    size_bytes: int = 0
    broker_id: int = 0

    @property
    def from_master(self) -> bool:
        return self.broker_id == 0


@dataclass(slots=True)
class Seen:
    """The answer to a question about many queues."""

    bounds: dict[Queue, Bounds] = field(default_factory=dict)
    gone: set[Queue] = field(default_factory=set)  # their broker answered that it has no such topic or queue
    silent: dict[str, Exception] = field(default_factory=dict)  # broker names of which nobody answered


@dataclass(slots=True)
class Committed:
    """Where a commit landed: broker id by broker name, what stands now, and what failed by broker name."""

    broker_ids: dict[str, int] = field(default_factory=dict)
    offsets: Offsets = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)


class BrokerCluster(Protocol):
    def topics(self) -> list[str]: ...

    def queues(self, topic: str, *, fresh: bool = False) -> list[Queue] | None:
        """The readable queues; None if there is no such topic."""

    def bounds(self, queues: Iterable[Queue]) -> Seen: ...

    def search(self, timestamps: Mapping[Queue, int]) -> Offsets:
        """The first offset stored at or after the time in ms; the end where nothing is that young."""

    def committed(self, group: str, queues: Collection[Queue]) -> tuple[Offsets, set[str]]:
        """The group's offsets (absent: none), and the broker names that did not answer."""

    def commit(self, group: str, offsets: Offsets, target: str, timeout_s: float) -> Committed: ...

    def pull(
        self,
        ranges: Sequence[QueueRange],
        *,
        broker_id: int,
        only_this: bool,
        group: str,
        expression: str,
        frame_bytes: int,
    ) -> Iterator["PullFrame"]:
        """Ranges of one broker name as frames, starting at that broker id.  Closing the iterator ends the call."""

    def members(self, queue: Queue) -> dict[int, bool]:
        """The broker ids of the queue's broker name, and whether each is worth trying (did not fail a moment ago)."""

    def suspect(self, queue: Queue, broker_id: int) -> None:
        """That broker fell silent in the middle of a call: leave it alone for a moment."""

    def probe(self, queue: Queue, offset: int, group: str) -> int:
        """Which broker id the master suggests to somebody who reads there."""

    def close(self) -> None: ...


class ClientCluster:
    def __init__(self, cluster: "Cluster") -> None:
        self.client = cluster

    @classmethod
    def open(cls, connection: Connection) -> "ClientCluster":
        return cls(connection.open())

    def topics(self) -> list[str]:
        return self.client.topics()

    def queues(self, topic: str, *, fresh: bool = False) -> list[Queue] | None:
        from rocketsim_client.errors import TopicNotExist

        try:
            return [Queue(*queue) for queue in self.client.queues(topic, fresh=fresh)]
        except TopicNotExist:
            return None

    def bounds(self, queues: Iterable[Queue]) -> Seen:
        from rocketsim_client.errors import RocketSimError, TopicNotExist

        seen = Seen()
        for (topic, broker_name), members in by_broker(queues).items():
            if broker_name in seen.silent:
                continue
            try:
                answer = self.client.bounds(topic, [as_client(queue) for queue in members])
            except TopicNotExist:
                seen.gone.update(members)
                continue
            except RocketSimError as error:
                seen.silent[broker_name] = error
                continue
            for queue in members:
                found = answer.get(as_client(queue))
                if found is None:
                    seen.gone.add(queue)
                else:
                    seen.bounds[queue] = Bounds(
                        found.min_offset,
                        found.max_offset,
                        found.last_store_timestamp,
                        found.size_bytes,
                        found.broker_id,
                    )
        return seen

    def search(self, timestamps: Mapping[Queue, int]) -> Offsets:
        found: Offsets = {}
        for (topic, _), members in by_broker(timestamps).items():
            answer = self.client.search(topic, {as_client(queue): timestamps[queue] for queue in members})
            found |= {Queue(*queue): offset for queue, offset in answer.items()}
        return found

    def committed(self, group: str, queues: Collection[Queue]) -> tuple[Offsets, set[str]]:
        from rocketsim_client.errors import RocketSimError, Unreachable

        found: Offsets = {}
        silent: set[str] = set()
        for broker_name in sorted({queue.broker_name for queue in queues}):
            members = [as_client(queue) for queue in queues if queue.broker_name == broker_name]
            try:
                answer = self.client.committed(group, members)
            except (Unreachable, RocketSimError) as error:
                if error.code in (17, 26):
                    raise  # no such topic or group: no waiting will help
                silent.add(broker_name)
                continue
            found |= {Queue(*queue): offset for queue, offset in answer.items() if offset >= 0}
        return found, silent

    def commit(self, group: str, offsets: Offsets, target: str, timeout_s: float) -> Committed:
        from rocketsim_client.cluster import CommitFailed

        try:
            result = self.client.commit(group, {as_client(q): o for q, o in offsets.items()}, target, timeout_s)
        except CommitFailed as error:
            result = error.result
        return Committed(
            dict(result.broker_ids), {Queue(*q): o for q, o in result.offsets.items()}, dict(result.failures)
        )

    def pull(
        self,
        ranges: Sequence[QueueRange],
        *,
        broker_id: int,
        only_this: bool,
        group: str,
        expression: str,
        frame_bytes: int,
    ) -> Iterator["PullFrame"]:
        from rocketsim_client.model import QueueRange as ClientRange

        return self.client.pull_range(
            ranges[0].queue.broker_name,
            [ClientRange(r.queue.topic, r.queue.queue_id, r.from_offset, r.until_offset) for r in ranges],
            broker_id_hint=broker_id,
            only_this=only_this,
            group=group,
            expression=expression,
            max_frame_bytes=frame_bytes,
        )

    def members(self, queue: Queue) -> dict[int, bool]:
        bad = self.client.bad_addresses()
        addresses = self.client.route(queue.topic).addresses(queue.broker_name)
        return {broker_id: address not in bad for broker_id, address in addresses.items()}

    def suspect(self, queue: Queue, broker_id: int) -> None:
        from rocketsim_client.errors import CallTimeout

        address = self.client.route(queue.topic).addresses(queue.broker_name).get(broker_id)
        if address is not None:
            self.client.failed(address, CallTimeout("no frame in time", address=address))

    def probe(self, queue: Queue, offset: int, group: str) -> int:
        from rocketsim_client.errors import RocketSimError
        from rocketsim_client.transport import PullCall

        call = PullCall(group, queue.topic, queue.queue_id, offset, max_msg_nums=1)
        try:
            answer = self.client.ask(
                queue.topic,
                queue.broker_name,
                lambda member: self.client.transport.pull(member.address, call, self.client.timeout_s),
            )
        except RocketSimError:
            return 0  # a probe is only a hint
        return answer.suggest_which_broker_id

    def close(self) -> None:
        self.client.close()


def by_broker(queues: Iterable[Queue]) -> dict[tuple[str, str], list[Queue]]:
    groups: dict[tuple[str, str], list[Queue]] = {}
    for queue in queues:
        groups.setdefault((queue.topic, queue.broker_name), []).append(queue)
    return groups


def as_client(queue: Queue) -> Any:
    from rocketsim_client.model import MessageQueue

    return MessageQueue(*queue)


OpenCluster = Callable[[], BrokerCluster]
