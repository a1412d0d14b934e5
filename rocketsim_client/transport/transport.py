"""The seam to the cluster: what the client asks of name servers and brokers, over whatever protocol.

Calls take messages as columns and give record bytes.  Every call names an address and a timeout, tries once, and raises
the errors of `errors.py`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rocketsim_client.model import (
    NO_EPOCH,
    CommitStatus,
    GetMessageStatus,
    LogEpoch,
    MessageQueue,
    PullFrame,
    QueueBounds,
    Ranges,
    SendStatus,
)
from rocketsim_client.route import BrokerData, TopicRoute


@dataclass(slots=True)
class Outgoing:
    """Messages of one topic for one broker name, as columns of equal length.

    `bodies` and `properties` (encoded, message id included) are lists of bytes or Arrow binary arrays; `queue_ids` a
    list or an integer array; flags and times of birth (ms) are one value for all, or one each (of Arrow arrays).
    """

    topic: str
    queue_ids: Any
    bodies: Any
    properties: Any
    born_timestamp: Any
    flags: Any = 0
    sys_flags: Any = 0

    def __len__(self) -> int:
        return len(self.bodies)


# (records back to back, their sizes) of messages that come from this IPv4 address: `record_frame.encode`, which the
# sender hands in, so that readers do not import it.
Encode = Callable[[Outgoing, bytes], tuple[bytes | memoryview, Sequence[int]]]


@dataclass(slots=True)
class Acknowledged:
    """A broker's yes to an Outgoing: where each message went, in its order."""

    status: SendStatus
    queue_offsets: Sequence[int]
    commit_log_offsets: Sequence[int]
    store_host: bytes
    store_timestamp: int


@dataclass(frozen=True, slots=True)
class PullCall:
    group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int = 32
    max_msg_bytes: int = 0
    expression: str = "*"
    suspend_timeout_ms: int = 0
    commit_offset: int | None = None
    read_in: LogEpoch = NO_EPOCH  # that of the answer which `queue_offset` comes from


@dataclass(slots=True)
class PullAnswer:
    code: int
    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int
    broker_id: int
    count: int
    records: bytes
    sizes: bytes
    read_in: LogEpoch = NO_EPOCH  # to be sent with `next_begin_offset`


@dataclass(frozen=True, slots=True)
class OffsetsAnswer:
    """Committed offsets in the order asked for; -1 where there is none."""

    offsets: list[tuple[str, int, int]] = field(default_factory=list)  # topic, queue id, offset
    broker_id: int = 0
    status: CommitStatus = CommitStatus.UNSAID  # of a commit
    generations: list[int] = field(default_factory=list)  # of what was asked for


class Transport(Protocol):
    def topic_route(self, topic: str, timeout_s: float) -> TopicRoute: ...
    def topic_list(self, timeout_s: float) -> list[str]: ...
    def cluster_list(self, timeout_s: float) -> list[BrokerData]: ...
    def write_perm(self, broker_name: str, writable: bool, timeout_s: float) -> dict[str, int]:
        """On every name server: how many topics it changed, by address."""

    def send(
        self,
        address: str,
        broker_name: str,
        outgoing: Outgoing,
        encode: Encode,
        *,
        group: str,
        epoch: int,
        default_topic_queue_nums: int,
        timeout_s: float,
    ) -> Acknowledged: ...

    def pull(self, address: str, call: PullCall, timeout_s: float) -> PullAnswer: ...

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
    ) -> Iterator[PullFrame]: ...

    def commit_offsets(
        self, address: str, group: str, offsets: Mapping[MessageQueue, int], timeout_s: float
    ) -> OffsetsAnswer: ...

    def query_offsets(
        self, address: str, group: str, queues: Sequence[MessageQueue], zero_for_new_group: bool, timeout_s: float
    ) -> OffsetsAnswer: ...

    def queue_bounds(
        self,
        address: str,
        topic: str,
        queue_ids: Sequence[int],
        timeout_s: float,
        read_in: Collection[LogEpoch] = (),
        group: str = "",
        closed: bool = False,
    ) -> dict[int, QueueBounds]: ...

    def search_offsets(
        self, address: str, topic: str, timestamps: Mapping[int, int], timeout_s: float
    ) -> dict[int, int]: ...

    def close(self) -> None: ...
