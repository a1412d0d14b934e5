"""A transport for one instance of a cluster.  The servers know the instance's names as `INSTANCE%topic` and
`INSTANCE%group`.

Clouds give each customer an instance of a shared cluster of RocketMQ 4.  The user writes and reads names without the
instance, as with RocketMQ's own clients (`setNamespace`).  A record contains its topic, so the records that a client
reads are copied without the instance.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, MutableSequence, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import Message
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.record import MESSAGE_MAGIC_V2, RecordError

from rocketsim_client.errors import BadAnswer, RocketSimError
from rocketsim_client.model import LogEpoch, MessageQueue, OffsetRange, PullFrame, QueueBounds, QueueRange, Ranges
from rocketsim_client.route import BrokerData, TopicRoute
from rocketsim_client.transport.reads import OffsetsAnswer, PullAnswer, PullCall, ReadCalls
from rocketsim_client.transport.routes import RouteCalls
from rocketsim_client.transport.transport import Transport

if TYPE_CHECKING:
    from rocketsim_client.transport.admin import AdminCalls
    from rocketsim_client.transport.consumption import ConsumptionCalls
    from rocketsim_client.transport.sends import Acknowledged, Outgoing, SendCall, SendCalls
    from rocketsim_client.transport.transactions import TransactionCalls

# The names of a group's retry topic and of its dead-letter topic begin with these prefixes, before the instance.
RETRY, DEAD_LETTERS = "%RETRY%", "%DLQ%"
# RocketMQ's own topics and groups belong to no instance.
SYSTEM_PREFIXES = ("rmq_sys_", "RMQ_SYS_", "CID_RMQ_SYS_")
SYSTEM_NAMES = frozenset({"TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC"})
# Fields of messages in admin.proto that name a topic or a group.
NAMES = frozenset({"topic", "topic_name", "group", "group_name"})


class Namespace:
    """Adds an instance to names of topics and groups that are sent, and removes it from names that are received.
    Pure."""

    def __init__(self, instance: str) -> None:
        self.prefix = f"{instance}%"

    def added(self, name: str) -> str:
        """Returns the name that the servers use.  Names of RocketMQ's own topics and groups, and names that have the
        instance already, stay as they are."""
        kind, rest = _kind(name)
        is_system = name in SYSTEM_NAMES or name.startswith(SYSTEM_PREFIXES)
        return name if not name or is_system or rest.startswith(self.prefix) else f"{kind}{self.prefix}{rest}"

    def removed(self, name: str) -> str:
        """Returns the name that the user uses.  A name of another instance stays as it is."""
        kind, rest = _kind(name)
        return f"{kind}{rest.removeprefix(self.prefix)}"

    def has(self, name: str) -> bool:
        """Returns True if the name belongs to this instance."""
        return _kind(name)[1].startswith(self.prefix)

    def has_all(self, names: Collection[str], asked: Collection[str]) -> bool:
        """Returns True if an entry with these names belongs to this instance, and none of the names would look like one
        of this instance without being one.  `asked` has the names in the request, which may be RocketMQ's own."""
        are_own = all(self.added(self.removed(name)) == name for name in names)
        return are_own and any(self.has(name) or name in asked for name in names)

    def records(self, data: bytes | memoryview, address: str) -> bytes:
        """Returns the records with the instance cut from their topics."""
        if not len(data):
            return b""
        try:
            records = Records.walk(data)
            return _without(records, self.prefix.encode())
        except RecordError as error:
            raise BadAnswer(f"{address} sent damaged records: {error}", address=address) from error


def _kind(name: str) -> tuple[str, str]:
    """Splits a name into its prefix (retry, dead letters or none) and the rest."""
    for kind in (RETRY, DEAD_LETTERS):
        if name.startswith(kind):
            return kind, name[len(kind) :]
    return "", name


def _without(records: Records, prefix: bytes) -> bytes:
    """Cuts the prefix out of each topic that has it, and corrects the lengths of the records and topics."""
    data, starts, sizes = records.data.copy(), records.starts, records.sizes
    topics, topic_sizes = records.topic_start, records.topic_size
    cut = np.zeros(len(starts), np.int64)
    begins = [data[at : at + len(RETRY)].tobytes() for at in topics[data[topics] == ord("%")].tolist()]
    cut[data[topics] == ord("%")] = [
        len(RETRY) if begin.startswith(RETRY.encode()) else len(DEAD_LETTERS) for begin in begins
    ]
    is_long = topic_sizes >= cut + len(prefix)
    places = (topics + cut)[is_long, None] + np.arange(len(prefix))
    has = np.zeros(len(starts), bool)
    has[is_long] = (data[places] == np.frombuffer(prefix, np.uint8)).all(axis=1)
    keep = np.ones(len(data), bool)
    keep[places[has[is_long]]] = False
    shorter = (sizes[has] - len(prefix)).astype(">i4").view(np.uint8).reshape(-1, 4)
    data[starts[has, None] + np.arange(4)] = shorter
    names = topic_sizes[has] - len(prefix)
    data[topics[has] - 1] = names & 0xFF
    is_second = records.magic[has] == MESSAGE_MAGIC_V2
    data[topics[has][is_second] - 2] = names[is_second] >> 8
    return data[keep].tobytes()


class NamespacedTransport:
    """Wraps the remoting transport, and adds the instance to all names in its calls."""

    def __init__(self, transport: Transport, instance: str) -> None:
        self._transport = transport
        self._namespace = Namespace(instance)
        self.routes: RouteCalls = _Routes(transport.routes, self._namespace)
        self.reads: ReadCalls = _Reads(transport.reads, self._namespace)

    @property
    def sends(self) -> "SendCalls":
        return _Sends(self._transport.sends, self._namespace)

    @property
    def consumption(self) -> "ConsumptionCalls":
        return self._transport.consumption

    @property
    def transactions(self) -> "TransactionCalls":
        return self._transport.transactions

    @property
    def admin(self) -> "AdminCalls":
        return _Admin(self._transport.admin, self._namespace)

    def close(self, why: RocketSimError | None = None) -> None:
        self._transport.close(why)


class _Routes:
    def __init__(self, routes: RouteCalls, namespace: Namespace) -> None:
        self._routes = routes
        self._namespace = namespace

    def topic_route(self, topic: str, timeout_s: float) -> TopicRoute:
        return replace(self._routes.topic_route(self._namespace.added(topic), timeout_s), topic=topic)

    def topic_list(self, timeout_s: float) -> list[str]:
        """Returns the topics of the instance."""
        found = self._routes.topic_list(timeout_s)
        return [self._namespace.removed(name) for name in found if self._namespace.has(name)]

    def cluster_list(self, timeout_s: float) -> list[BrokerData]:
        return self._routes.cluster_list(timeout_s)

    def write_perm(self, broker_name: str, writable: bool, timeout_s: float) -> dict[str, int]:
        return self._routes.write_perm(broker_name, writable, timeout_s)


class _Reads:
    def __init__(self, reads: ReadCalls, namespace: Namespace) -> None:
        self._reads = reads
        self._namespace = namespace

    def pull(self, address: str, call: PullCall, timeout_s: float) -> PullAnswer:
        added = self._namespace.added
        answer = self._reads.pull(address, replace(call, topic=added(call.topic), group=added(call.group)), timeout_s)
        answer.records, answer.sizes = self._namespace.records(answer.records, address), b""
        return answer

    def pull_range(
        self,
        address: str,
        ranges: Ranges,
        *,
        group: str,
        expression: str,
        max_frame_bytes: int,
        timeout_s: float,
        read_in: Mapping[tuple[str, int], LogEpoch] | None = None,
    ) -> Iterator[PullFrame]:
        frames: Any = self._reads.pull_range(
            address,
            [self._range(one) for one in ranges],
            group=self._namespace.added(group),
            expression=expression,
            max_frame_bytes=max_frame_bytes,
            timeout_s=timeout_s,
        )
        with closing(frames):
            for frame in frames:
                frame.records = self._namespace.records(frame.records, address)
                yield frame

    def _range(self, one: QueueRange | OffsetRange) -> QueueRange | OffsetRange:
        if isinstance(one, QueueRange):
            return one._replace(topic=self._namespace.added(one.topic))
        return one._replace(queue=self._queue(one.queue))

    def _queue(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=self._namespace.added(queue.topic))

    def _answer(self, answer: OffsetsAnswer) -> OffsetsAnswer:
        offsets = [(self._namespace.removed(topic), queue_id, to) for topic, queue_id, to in answer.offsets]
        return replace(answer, offsets=offsets)

    def commit_offsets(
        self, address: str, group: str, offsets: Mapping[MessageQueue, int], timeout_s: float
    ) -> OffsetsAnswer:
        wanted = {self._queue(queue): to for queue, to in offsets.items()}
        return self._answer(self._reads.commit_offsets(address, self._namespace.added(group), wanted, timeout_s))

    def query_offsets(
        self, address: str, group: str, queues: Sequence[MessageQueue], zero_for_new_group: bool, timeout_s: float
    ) -> OffsetsAnswer:
        asked = [self._queue(queue) for queue in queues]
        name = self._namespace.added(group)
        return self._answer(self._reads.query_offsets(address, name, asked, zero_for_new_group, timeout_s))

    def queue_bounds(
        self,
        address: str,
        topic: str,
        queue_ids: Sequence[int],
        timeout_s: float,
        read_in: Collection[LogEpoch] = (),
        group: str = "",
        closed: bool = False,
    ) -> dict[int, QueueBounds]:
        return self._reads.queue_bounds(address, self._namespace.added(topic), queue_ids, timeout_s)

    def wait_for_records(
        self, address: str, topic: str, ends: Mapping[int, int], hold_s: float, timeout_s: float
    ) -> bool:
        return self._reads.wait_for_records(address, self._namespace.added(topic), ends, hold_s, timeout_s)

    def search_offsets(
        self, address: str, topic: str, timestamps: Mapping[int, int], timeout_s: float
    ) -> dict[int, int]:
        return self._reads.search_offsets(address, self._namespace.added(topic), timestamps, timeout_s)


class _Sends:
    def __init__(self, sends: "SendCalls", namespace: Namespace) -> None:
        self._sends = sends
        self._namespace = namespace

    def send(self, address: str, outgoing: "Outgoing", call: "SendCall", timeout_s: float) -> "Acknowledged":
        named = replace(outgoing, topic=self._namespace.added(outgoing.topic))
        by = call._replace(group=self._namespace.added(call.group))
        return self._sends.send(address, named, by, timeout_s)


class _Admin:
    def __init__(self, admin: "AdminCalls", namespace: Namespace) -> None:
        self._admin = admin
        self._namespace = namespace

    def command(self, address: str, request: Message, timeout_s: float) -> Any:
        asked = type(request)()
        asked.CopyFrom(request)
        rename(asked, self._namespace.added)
        answer = self._admin.command(address, asked, timeout_s)
        leave_out_others(answer, self._namespace, names_in(asked))
        rename(answer, self._namespace.removed)
        if getattr(answer, "records", b""):
            answer.records = self._namespace.records(answer.records, address)
        return answer


def leave_out_others(answer: Message, namespace: Namespace, asked: Collection[str]) -> None:
    """Removes the entries of topics and groups of other instances, and of no instance, from the lists of an answer.
    Brokers list the topics and groups of all instances, and without the instance some of their names would be equal."""
    for field, entries in answer.ListFields():
        if field.message_type is not None and isinstance(entries, MutableSequence):
            for at in reversed(range(len(entries))):
                if (names := names_in(entries[at])) and not namespace.has_all(names, asked):
                    del entries[at]


def names_in(message: Message) -> list[str]:
    """Returns all names of topics and groups in a message."""
    found: list[str] = []

    def note(name: str) -> str:
        found.append(name)
        return name

    rename(message, note)
    return found


def rename(message: Message, name: Callable[[str], str]) -> None:
    """Changes all names of topics and groups in a message, in place."""
    for field, value in message.ListFields():
        if isinstance(value, str):
            if field.name in NAMES:
                setattr(message, field.name, name(value))
        elif isinstance(value, Message):
            rename(value, name)
        elif field.message_type is not None:
            for one in value:
                if isinstance(one, Message):  # the elements of a map are its keys, which are texts
                    rename(one, name)
