"""Reads the committed offsets of groups from the brokers of each broker name, and commits offsets there."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rocketsim_client.errors import InvalidParameter, RocketSimError, TopicNotExist
from rocketsim_client.model import MASTER_ID, CommitResult, CommitStatus, MessageQueue
from rocketsim_client.routing.members import Member
from rocketsim_client.transport.reads import OffsetsAnswer

if TYPE_CHECKING:
    from rocketsim_client.cluster import Cluster

COMMIT_TARGETS = ("masterFirst", "masterOnly", "both")


def newest_offsets(answers: Sequence[OffsetsAnswer]) -> dict[tuple[str, int], int]:
    """Returns the offsets of one broker name by (topic, queue id).  The answer of the master comes last, and its
    offsets replace those of the slaves.  Without an answer of the master, each queue gets the offset with the highest
    generation, or the highest offset among equal generations.  Pure."""
    newest: dict[tuple[str, int], tuple[int, int]] = {}
    for answer in answers:
        if answer.broker_id == MASTER_ID:
            newest.clear()
        for number, (topic, queue_id, offset) in enumerate(answer.offsets):
            entry = answer.generations[number] if answer.generations else 0, offset
            newest[topic, queue_id] = max(entry, newest.get((topic, queue_id), entry))
    return {queue: offset for queue, (_, offset) in newest.items()}


def committed(
    cluster: "Cluster", group: str, queues: Collection[MessageQueue], *, zero_for_new_group: bool
) -> dict[MessageQueue, int]:
    """Implements `Cluster.committed`."""
    found: dict[MessageQueue, int] = {}
    for broker_name, topic, members in _by_name(queues):

        def call(member: Member, members: list[MessageQueue] = members) -> OffsetsAnswer:
            return cluster.transport.reads.query_offsets(
                member.address, group, members, zero_for_new_group, cluster.timeout_s
            )

        answers = cluster.ask_until(topic, broker_name, call, lambda answer: answer.broker_id == MASTER_ID)
        for (of_topic, queue_id), offset in newest_offsets(answers).items():
            if offset >= 0 or answers[-1].broker_id == MASTER_ID:
                found[MessageQueue(of_topic, broker_name, queue_id)] = offset
    return found


def commit(
    cluster: "Cluster", group: str, offsets: Mapping[MessageQueue, int], target: str, timeout_s: float
) -> CommitResult:
    """Implements `Cluster.commit`, but returns refusals in the result instead of raising them."""
    if target not in COMMIT_TARGETS:
        raise ValueError(f"commit target {target!r} is not one of {', '.join(COMMIT_TARGETS)}")
    result = CommitResult()
    for _, topic, queues in _by_name(offsets):
        _commit(cluster, group, topic, {queue: offsets[queue] for queue in queues}, target, timeout_s, result)
    return result


def _commit(
    cluster: "Cluster",
    group: str,
    topic: str,
    offsets: Mapping[MessageQueue, int],
    target: str,
    timeout_s: float,
    result: CommitResult,
) -> None:
    """Commits the offsets of one broker name's queues."""
    broker_name = next(iter(offsets)).broker_name

    def call(member: Member) -> tuple[int, CommitStatus]:
        answer = cluster.transport.reads.commit_offsets(member.address, group, offsets, timeout_s)
        for of_topic, queue_id, offset in answer.offsets:
            result.offsets[MessageQueue(of_topic, broker_name, queue_id)] = offset
        return member.broker_id, answer.status

    try:
        taker, status = cluster.ask(topic, broker_name, call, only_this=target == "masterOnly")
        result.broker_ids[broker_name] = taker
        if result.statuses.get(broker_name, CommitStatus.COMMIT_OK) is CommitStatus.COMMIT_OK:
            # The first status that is not COMMIT_OK is kept as the status of the whole broker name.
            result.statuses[broker_name] = status
        if target == "both":
            for broker_id in cluster.addresses(topic, broker_name):
                if broker_id != taker:
                    cluster.ask(topic, broker_name, call, broker_id=broker_id, only_this=True)
    except (TopicNotExist, InvalidParameter) as error:
        if len(offsets) == 1:
            result.failures[broker_name] = error
            return
        items = list(offsets.items())
        for half in (items[: len(items) // 2], items[len(items) // 2 :]):
            _commit(cluster, group, half[0][0].topic, dict(half), target, timeout_s, result)
    except RocketSimError as error:
        result.failures[broker_name] = error


def _by_name(queues: Collection[MessageQueue]) -> Iterator[tuple[str, str, list[MessageQueue]]]:
    """Groups queues by broker name.  Yields each broker name with a topic, whose route has the broker name's addresses,
    and with the queues."""
    groups: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        groups.setdefault(queue.broker_name, []).append(queue)
    for broker_name, members in groups.items():
        yield broker_name, members[0].topic, members
