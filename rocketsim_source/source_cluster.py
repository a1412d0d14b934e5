"""What the source asks of the brokers: `BrokerCluster`, the seam, and `ClientCluster` over rocketsim_client.

A trouble with one broker name is a value here, not an exception: the queues of the others go on.  Opens nothing before
the first call.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from rocketsim_source.connection import Connection
from rocketsim_source.planning.epochs import NO_EPOCH, Epoch, ReadIn
from rocketsim_source.planning.splits import QueueRange
from rocketsim_source.queue import Offsets, Queue

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
    settled: bool = True  # a master that has just started may still be fetching what it lost from its slave
    epoch: Epoch = NO_EPOCH  # of the log's end
    ends_in: Mapping[Epoch, int] = field(default_factory=dict)  # where the queue ended in epochs that are over

    @property
    def from_master(self) -> bool:
        """Whether it is the last word."""
        return self.broker_id == 0 and self.settled

    def cut_at(self, offset: int, read_in: Epoch) -> int | None:
        """From where on who read up to `offset` in that epoch has read other records than there are now; None: from
        nowhere on, as far as anybody can say."""
        end = self.ends_in.get(read_in)
        return end if end is not None and end < offset else None

    def read_in(self, offset: int, before: Epoch, *, advanced: bool) -> Epoch:
        """The epoch to keep with `offset`: as before, while it cannot be said whether what was read then is here."""
        if offset > self.max_offset:
            return before
        is_here = not before.number or before in self.ends_in
        return self.epoch if is_here or (advanced and self.epoch < before) else before


@dataclass(slots=True)
class Seen:
    """The answer to a question about many queues: each of them is in exactly one of the three."""

    bounds: dict[Queue, Bounds] = field(default_factory=dict)
    gone: set[Queue] = field(default_factory=set)  # their living master has no such topic, or no such queue to read
    silent: dict[Queue, Exception] = field(default_factory=dict)  # nobody answered who could know

    @property
    def silent_names(self) -> dict[str, Exception]:
        """One error for each broker name that some queue waits for."""
        return {queue.broker_name: error for queue, error in sorted(self.silent.items(), reverse=True)}

    def fell_silent(self, silent: Mapping[Queue, Exception]) -> None:
        """What else had to be known about these queues was not answered: they wait."""
        for queue, error in silent.items():
            self.bounds.pop(queue, None)
            self.silent[queue] = error


@dataclass(slots=True)
class Answered:
    """An offset for each queue that has one, and the queues for which nobody answered."""

    offsets: Offsets = field(default_factory=dict)
    silent: dict[Queue, Exception] = field(default_factory=dict)


@dataclass(slots=True)
class Committed:
    """Where a commit landed: broker id by broker name, what stands now, and what failed by broker name."""

    broker_ids: dict[str, int] = field(default_factory=dict)
    offsets: Offsets = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)


class BrokerCluster(Protocol):
    def topics(self) -> list[str]: ...

    def queues(self, topic: str, *, fresh: bool = False) -> list[Queue] | None:
        """The readable queues of the brokers that are there; None if no name server knows any, which proves nothing
        about the topic."""

    def bounds(self, queues: Iterable[Queue], read_in: ReadIn | None = None) -> Seen:
        """`read_in`: the epochs in which queues were read, to be told where those ended."""

    def search(self, timestamps: Mapping[Queue, int]) -> Answered:
        """The first offset stored at or after the time in ms; the end where nothing is that young."""

    def committed(self, group: str, queues: Collection[Queue]) -> Answered:
        """The group's offsets; a queue in neither part has none.  That a slave has none proves nothing: silent."""

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
        from rocketsim_client.errors import NoRoute

        try:
            return [Queue(*queue) for queue in self.client.queues(topic, fresh=fresh)]
        except NoRoute:
            return None

    def bounds(self, queues: Iterable[Queue], read_in: ReadIn | None = None) -> Seen:
        from rocketsim_client.errors import RocketSimError, TopicNotExist
        from rocketsim_client.model import LogEpoch
        from rocketsim_client.retry import is_worth_asking_again

        seen = Seen()
        away: dict[str, RocketSimError] = {}
        for (topic, broker_name), members in by_broker(queues).items():
            if broker_name in away:  # each further question might cost a timeout
                seen.silent |= dict.fromkeys(members, away[broker_name])
                continue
            try:
                ids = [queue.queue_id for queue in members]
                epochs = {LogEpoch(*read_in[queue]) for queue in members if queue in read_in} if read_in else ()
                answer = self.client.broker_bounds(topic, broker_name, ids, read_in=epochs)
            except RocketSimError as error:
                if is_worth_asking_again(error):
                    seen.silent |= dict.fromkeys(members, error)
                    if is_away(error):
                        away[broker_name] = error
                elif isinstance(error, TopicNotExist):
                    seen.gone.update(members)
                else:
                    raise
                continue
            from_master = any(found.is_master for found in answer.values())
            for queue in members:
                found = answer.get(queue.queue_id)
                if found is not None and found.readable:
                    seen.bounds[queue] = Bounds(
                        found.min_offset,
                        found.max_offset,
                        found.last_store_timestamp,
                        found.size_bytes,
                        found.broker_id,
                        found.is_master or found.broker_id != 0,
                        Epoch(*found.log_epoch),
                        {Epoch(*epoch): end for epoch, end in found.ends_in.items()},
                    )
                elif from_master:
                    seen.gone.add(queue)
                else:
                    seen.silent[queue] = LookupError(
                        f"the slave of {broker_name}, whose master is away, has no {queue}"
                    )
        return seen

    def search(self, timestamps: Mapping[Queue, int]) -> Answered:
        found = Answered()
        for (topic, _), members in by_broker(timestamps).items():
            asked = {as_client(queue): timestamps[queue] for queue in members}
            self._collect(found, members, partial(self.client.search, topic, asked))
        return found

    def committed(self, group: str, queues: Collection[Queue]) -> Answered:
        found = Answered()
        for broker_name in sorted({queue.broker_name for queue in queues}):
            members = [queue for queue in queues if queue.broker_name == broker_name]
            asked = [as_client(queue) for queue in members]
            self._collect(found, members, partial(self.client.committed, group, asked))
        for queue in set(queues) - found.offsets.keys() - found.silent.keys():
            found.silent[queue] = LookupError(
                f"the slave of {queue.broker_name}, whose master is away, has none of group {group}"
            )
        found.offsets = {queue: offset for queue, offset in found.offsets.items() if offset >= 0}
        return found

    @staticmethod
    def _collect(found: Answered, queues: Collection[Queue], ask: Callable[[], Mapping[Any, int]]) -> None:
        """The answer for these queues, or that there is none yet: a queue that its broker does not have (any more) is
        judged by its bounds, not here.
        """
        from rocketsim_client.errors import InvalidParameter, RocketSimError, TopicNotExist
        from rocketsim_client.retry import is_worth_asking_again

        try:
            found.offsets |= {Queue(*queue): offset for queue, offset in ask().items()}
        except RocketSimError as error:
            if not is_worth_asking_again(error) and not isinstance(error, TopicNotExist | InvalidParameter):
                raise
            found.silent |= dict.fromkeys(queues, error)

    def commit(self, group: str, offsets: Offsets, target: str, timeout_s: float) -> Committed:
        from rocketsim_client.errors import CommitFailed

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
        addresses = self.client.addresses(queue.topic, queue.broker_name)
        return {broker_id: address not in bad for broker_id, address in addresses.items()}

    def suspect(self, queue: Queue, broker_id: int) -> None:
        from rocketsim_client.errors import CallTimeout

        address = self.client.addresses(queue.topic, queue.broker_name).get(broker_id)
        if address is not None:
            self.client.failed(address, CallTimeout("no frame in time", address=address))

    def probe(self, queue: Queue, offset: int, group: str) -> int:
        from rocketsim_client.errors import RocketSimError
        from rocketsim_client.transport.transport import PullCall

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


def is_away(error: Exception) -> bool:
    """Nobody of the broker name can be reached, whatever is asked."""
    from rocketsim_client.errors import BrokerNotExist, Unreachable

    return isinstance(error, Unreachable) or type(error) is BrokerNotExist


def by_broker(queues: Iterable[Queue]) -> dict[tuple[str, str], list[Queue]]:
    groups: dict[tuple[str, str], list[Queue]] = {}
    for queue in queues:
        groups.setdefault((queue.topic, queue.broker_name), []).append(queue)
    return groups


def as_client(queue: Queue) -> Any:
    from rocketsim_client.model import MessageQueue

    return MessageQueue(*queue)
