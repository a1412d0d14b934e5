"""SourceCluster: the interface by which the source asks brokers, and its implementation with rocketsim_client.

A call of SourceCluster can ask about queues of many brokers.  If no broker of a name answers, the result lists the
queues of this name as unreachable, and has answers for the other queues.  (`rocketsim_client.Cluster` asks one broker
name, and raises an error.)  No connection is opened before the first call.
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
from rocketsim_source.record_waits import RecordWaits

if TYPE_CHECKING:
    from rocketsim_client.cluster import Cluster
    from rocketsim_client.model import PullFrame

Offsets = dict[MessageQueue, int]  # queue -> the next offset to read
ReadIn = Mapping[MessageQueue, LogEpoch]  # queue -> the newest leader epoch of its broker when the queue was read


@dataclass(slots=True)
class QueueStates:
    """The answer to a call about many queues.

    Each queue is in exactly one of `bounds`, `gone` and `unreachable`.
    """

    bounds: dict[MessageQueue, QueueBounds] = field(default_factory=dict)
    gone: set[MessageQueue] = field(default_factory=set)  # the master answered that it has no such topic or queue
    # Queues for which no broker has answered, or for which only a slave has answered that does not have the queue.
    unreachable: dict[MessageQueue, Exception] = field(default_factory=dict)
    # Each queue in `gone` that exists, but is neither readable nor writable any more -> its final end.  Older brokers
    # do not report final ends.
    closed: Offsets = field(default_factory=dict)

    @property
    def unreachable_names(self) -> dict[str, Exception]:
        """Maps each broker name that has an unreachable queue to the error of one of its queues."""
        return {queue.broker_name: error for queue, error in sorted(self.unreachable.items(), reverse=True)}

    def set_unreachable(self, unreachable: Mapping[MessageQueue, Exception]) -> None:
        """Moves the given queues to `unreachable`, because a further call about them was not answered."""
        for queue, error in unreachable.items():
            self.bounds.pop(queue, None)
            self.unreachable[queue] = error


@dataclass(slots=True)
class OffsetAnswers:
    """An offset for each queue that has one, and the queues for which no broker answered."""

    offsets: Offsets = field(default_factory=dict)
    unreachable: dict[MessageQueue, Exception] = field(default_factory=dict)


class SourceCluster(Protocol):
    @property
    def protocol(self) -> str:
        """The protocol that the servers speak, or `auto` while no server has answered."""

    def topics(self) -> list[str]: ...

    def queues(self, topic: str, *, fresh: bool = False) -> list[MessageQueue] | None:
        """Returns the readable queues of the registered brokers, or None if no name server knows a readable queue of
        the topic.  If the result is None, the topic may still exist at brokers that are not registered now.
        """

    def bounds(self, queues: Iterable[MessageQueue], read_in: ReadIn | None = None, group: str = "") -> QueueStates:
        """Returns the bounds of the queues.  For each leader epoch in `read_in`, the answer says at which offset the
        epoch ended.  The answer also counts the pulls of `group` (`QueueBounds.ranges_pulled`).
        """

    def wait_for_records(self, ends: Offsets, hold_s: float) -> bool:
        """Waits until a queue may have a record at or after its offset in `ends`.  Returns False if no record came
        within `hold_s` seconds, or earlier if a broker cannot wait.
        """

    def search(self, timestamps: Mapping[MessageQueue, int]) -> OffsetAnswers:
        """Returns for each queue the offset of the first record stored at or after the time in ms, or the queue's
        end if all its records are older."""

    def committed(self, group: str, queues: Collection[MessageQueue]) -> OffsetAnswers:
        """Returns the group's committed offsets.  If a queue is in neither part of the answer, the group has no offset
        for the queue.  If only a slave answers, and has no offset, the queue counts as unreachable, because the master
        may have an offset.
        """

    def commit(self, group: str, offsets: Offsets, target: str, timeout_s: float) -> CommitResult:
        """Commits the group's offsets.  The result's `failures` has the errors of the brokers that refused, by broker
        name.
        """

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
        """Pulls ranges of one broker name from the given broker id, as frames.  Closing the iterator ends the call."""

    def members(self, queue: MessageQueue) -> dict[int, bool]:
        """Maps each broker id of the queue's broker name to True, or to False if that broker failed a moment ago."""

    def suspect(self, queue: MessageQueue, broker_id: int) -> None:
        """Notes that a broker stopped answering in the middle of a call, so that other brokers are asked first for a
        while."""

    def probe(self, queue: MessageQueue, offset: int, group: str) -> int:
        """Returns the broker id that the master suggests for reading the queue at this offset."""

    def close(self) -> None: ...


class ClientCluster:
    """Implements `SourceCluster` with the client's Cluster."""

    def __init__(self, cluster: "Cluster") -> None:
        self.client = cluster
        self._record_waits = RecordWaits(cluster)

    @classmethod
    def open(cls, connection: Connection) -> "ClientCluster":
        from rocketsim_client.cluster import Cluster

        return cls(Cluster(connection))

    @property
    def protocol(self) -> str:
        return self.client.protocol

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
            if broker_name in away:  # another call to this name might not end before its timeout
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

    def wait_for_records(self, ends: Offsets, hold_s: float) -> bool:
        return self._record_waits.wait(ends, hold_s)

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
                f"the slave of {queue.broker_name}, whose master is away, has no offset of group {group}"
            )
        found.offsets = {queue: offset for queue, offset in found.offsets.items() if offset >= 0}
        return found

    @staticmethod
    def _collect(
        found: OffsetAnswers, queues: Collection[MessageQueue], ask: Callable[[], Mapping[MessageQueue, int]]
    ) -> None:
        """Adds what `ask` returns for the queues to `found`.  If a broker says that it does not have a queue, the queue
        counts as unreachable in `found`, and `bounds` decides later if the queue is gone.
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
            return MASTER_ID  # a failed probe does no harm, because its answer is only a hint
        return answer.suggest_which_broker_id

    def close(self) -> None:
        self._record_waits.close()
        self.client.close()


def is_away(error: Exception) -> bool:
    """Returns True if the error means that no broker of the name can be reached for any call."""
    from rocketsim_client.errors import BrokerNotExist, Unreachable

    return isinstance(error, Unreachable) or type(error) is BrokerNotExist
