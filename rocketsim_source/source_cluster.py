"""What the source asks of the brokers: `SourceCluster`, the seam, and `ClientCluster` over rocketsim_client.

A question is about queues of many brokers, and a broker name that does not answer is part of the answer, not an
exception: the queues of the others go on.  (`rocketsim_client.Cluster` asks one broker name and raises.)  Opens nothing
before the first call.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rocketsim_client.connection import Connection
from rocketsim_client.model import (
    MASTER_ID,
    CommitResult,
    LogEpoch,
    MessageQueue,
    OffsetRange,
    QueueBounds,
    by_broker,
)

if TYPE_CHECKING:
    from rocketsim_client.cluster import Cluster
    from rocketsim_client.model import PullFrame

Offsets = dict[MessageQueue, int]  # always the next offset to read
ReadIn = Mapping[MessageQueue, LogEpoch]  # the newest epoch of the queue's broker when the queue was read


@dataclass(slots=True)
class QueueStates:
    """The answer to a question about many queues: each of them is in exactly one of the three."""

    bounds: dict[MessageQueue, QueueBounds] = field(default_factory=dict)
    gone: set[MessageQueue] = field(default_factory=set)  # their living master has no such topic, or no such queue
    unreachable: dict[MessageQueue, Exception] = field(default_factory=dict)  # nobody answered who could know
    # The ends of those of `gone` that the topic had: nobody can send to them any more.  Older brokers do not say them.
    closed: Offsets = field(default_factory=dict)

    @property
    def unreachable_names(self) -> dict[str, Exception]:
        """One error for each broker name that some queue waits for."""
        return {queue.broker_name: error for queue, error in sorted(self.unreachable.items(), reverse=True)}

    def set_unreachable(self, unreachable: Mapping[MessageQueue, Exception]) -> None:
        """What else had to be known about these queues was not answered: they wait."""
        for queue, error in unreachable.items():
            self.bounds.pop(queue, None)
            self.unreachable[queue] = error


@dataclass(slots=True)
class OffsetAnswers:
    """An offset for each queue that has one, and the queues for which nobody answered."""

    offsets: Offsets = field(default_factory=dict)
    unreachable: dict[MessageQueue, Exception] = field(default_factory=dict)


class SourceCluster(Protocol):
    def topics(self) -> list[str]: ...

    def queues(self, topic: str, *, fresh: bool = False) -> list[MessageQueue] | None:
        """The readable queues of the brokers that are there; None if no name server knows any, which proves nothing
        about the topic."""

    def bounds(self, queues: Iterable[MessageQueue], read_in: ReadIn | None = None, group: str = "") -> QueueStates:
        """`read_in`: the epochs in which queues were read, to be told where those ended.  `group`: whose pulls are
        counted (`QueueBounds.ranges_pulled`)."""

    def search(self, timestamps: Mapping[MessageQueue, int]) -> OffsetAnswers:
        """The first offset stored at or after the time in ms; the end where nothing is that young."""

    def committed(self, group: str, queues: Collection[MessageQueue]) -> OffsetAnswers:
        """The group's offsets; a queue in neither part has none.  A slave that has none proves nothing: the queue is
        unreachable then."""

    def commit(self, group: str, offsets: Offsets, target: str, timeout_s: float) -> CommitResult:
        """What a broker refused is in the result's `failures`."""

    def pull(
        self,
        ranges: Sequence[OffsetRange],
        *,
        broker_id: int,
        only_this: bool,
        group: str,
        expression: str,
        frame_bytes: int,
        read_in: ReadIn | None = None,
    ) -> Iterator["PullFrame"]:
        """Ranges of one broker name as frames, starting at that broker id.  Closing the iterator ends the call."""

    def members(self, queue: MessageQueue) -> dict[int, bool]:
        """The broker ids of the queue's broker name, and whether each is worth trying (did not fail a moment ago)."""

    def suspect(self, queue: MessageQueue, broker_id: int) -> None:
        """That broker fell silent in the middle of a call: leave it alone for a moment."""

    def probe(self, queue: MessageQueue, offset: int, group: str) -> int:
        """Which broker id the master suggests to somebody who reads there."""

    def close(self) -> None: ...


class ClientCluster:
    def __init__(self, cluster: "Cluster") -> None:
        self.client = cluster

    @classmethod
    def open(cls, connection: Connection) -> "ClientCluster":
        from rocketsim_client.cluster import Cluster

        return cls(Cluster(connection))

    def topics(self) -> list[str]:
        return self.client.topics()

    def queues(self, topic: str, *, fresh: bool = False) -> list[MessageQueue] | None:
        from rocketsim_client.errors import NoRoute

        try:
            return self.client.queues(topic, fresh=fresh)
        except NoRoute:
            return None

    def bounds(self, queues: Iterable[MessageQueue], read_in: ReadIn | None = None, group: str = "") -> QueueStates:
        from rocketsim_client.errors import RocketSimError, TopicNotExist
        from rocketsim_client.retry import is_worth_asking_again

        states = QueueStates()
        away: dict[str, RocketSimError] = {}
        for topic, broker_name, members in by_broker(queues):
            if broker_name in away:  # each further question might cost a timeout
                states.unreachable |= dict.fromkeys(members, away[broker_name])
                continue
            try:
                ids = [queue.queue_id for queue in members]
                epochs = {read_in[queue] for queue in members if queue in read_in} if read_in else ()
                answer = self.client.broker_bounds(topic, broker_name, ids, read_in=epochs, group=group, closed=True)
            except RocketSimError as error:
                if is_worth_asking_again(error):
                    states.unreachable |= dict.fromkeys(members, error)
                    if is_away(error):
                        away[broker_name] = error
                elif isinstance(error, TopicNotExist):
                    states.gone.update(members)
                else:
                    raise
                continue
            from_master = any(found.is_master for found in answer.values())
            for queue in members:
                found = answer.get(queue.queue_id)
                if found is not None and found.readable:
                    states.bounds[queue] = found
                elif from_master:
                    states.gone.add(queue)
                    if found is not None and not found.writable:
                        states.closed[queue] = found.max_offset
                else:
                    states.unreachable[queue] = LookupError(
                        f"the slave of {broker_name}, whose master is away, has no {queue}"
                    )
        return states

    def search(self, timestamps: Mapping[MessageQueue, int]) -> OffsetAnswers:
        found = OffsetAnswers()
        for topic, _, members in by_broker(timestamps):
            asked = {queue: timestamps[queue] for queue in members}
            self._collect(found, members, partial(self.client.search, topic, asked))
        return found

    def committed(self, group: str, queues: Collection[MessageQueue]) -> OffsetAnswers:
        found = OffsetAnswers()
        for broker_name in sorted({queue.broker_name for queue in queues}):
            members = [queue for queue in queues if queue.broker_name == broker_name]
            self._collect(found, members, partial(self.client.committed, group, members))
        for queue in set(queues) - found.offsets.keys() - found.unreachable.keys():
            found.unreachable[queue] = LookupError(
                f"the slave of {queue.broker_name}, whose master is away, has none of group {group}"
            )
        found.offsets = {queue: offset for queue, offset in found.offsets.items() if offset >= 0}
        return found

    @staticmethod
    def _collect(
        found: OffsetAnswers, queues: Collection[MessageQueue], ask: Callable[[], Mapping[MessageQueue, int]]
    ) -> None:
        """The answer for these queues, or that there is none yet: a queue that its broker does not have (any more) is
        judged by its bounds, not here.
        """
        from rocketsim_client.errors import InvalidParameter, RocketSimError, TopicNotExist
        from rocketsim_client.retry import is_worth_asking_again

        try:
            found.offsets |= ask()
        except RocketSimError as error:
            if not is_worth_asking_again(error) and not isinstance(error, TopicNotExist | InvalidParameter):
                raise
            found.unreachable |= dict.fromkeys(queues, error)

    def commit(self, group: str, offsets: Offsets, target: str, timeout_s: float) -> CommitResult:
        from rocketsim_client.errors import CommitFailed

        try:
            return self.client.commit(group, offsets, target, timeout_s)
        except CommitFailed as error:
            return error.result

    def pull(
        self,
        ranges: Sequence[OffsetRange],
        *,
        broker_id: int,
        only_this: bool,
        group: str,
        expression: str,
        frame_bytes: int,
        read_in: ReadIn | None = None,
    ) -> Iterator["PullFrame"]:
        return self.client.pull_range(
            ranges[0].queue.broker_name,
            ranges,
            broker_id_hint=broker_id,
            only_this=only_this,
            group=group,
            expression=expression,
            max_frame_bytes=frame_bytes,
            read_in=read_in,
        )

    def members(self, queue: MessageQueue) -> dict[int, bool]:
        unreachable = self.client.bad_addresses()
        addresses = self.client.addresses(queue.topic, queue.broker_name)
        return {broker_id: address not in unreachable for broker_id, address in addresses.items()}

    def suspect(self, queue: MessageQueue, broker_id: int) -> None:
        from rocketsim_client.errors import CallTimeout

        address = self.client.addresses(queue.topic, queue.broker_name).get(broker_id)
        if address is not None:
            self.client.failed(address, CallTimeout("no frame in time", address=address))

    def probe(self, queue: MessageQueue, offset: int, group: str) -> int:
        from rocketsim_client.errors import RocketSimError
        from rocketsim_client.transport.reads import PullCall

        call = PullCall(group, queue.topic, queue.queue_id, offset, max_msg_nums=1)
        try:
            answer = self.client.ask(
                queue.topic,
                queue.broker_name,
                lambda member: self.client.transport.reads.pull(member.address, call, self.client.timeout_s),
            )
        except RocketSimError:
            return MASTER_ID  # a probe is only a hint
        return answer.suggest_which_broker_id

    def close(self) -> None:
        self.client.close()


def is_away(error: Exception) -> bool:
    """Nobody of the broker name can be reached, whatever is asked."""
    from rocketsim_client.errors import BrokerNotExist, Unreachable

    return isinstance(error, Unreachable) or type(error) is BrokerNotExist
