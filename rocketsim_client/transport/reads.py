"""The calls that read messages, and those that read or commit offsets."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rocketsim_client.model import (
    NO_EPOCH,
    CommitStatus,
    GetMessageStatus,
    LogEpoch,
    MessageQueue,
    PullFrame,
    QueueBounds,
    Ranges,
)


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
    read_in: LogEpoch = NO_EPOCH  # the leader epoch that came in the same answer as `queue_offset`


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
    read_in: LogEpoch = NO_EPOCH  # the leader epoch, for `PullCall.read_in` of the next pull


@dataclass(frozen=True, slots=True)
class OffsetsAnswer:
    """Committed offsets, in the order of the queues in the call.  An offset of -1 means that the group has committed
    none."""

    offsets: list[tuple[str, int, int]] = field(default_factory=list)  # topic, queue id, offset
    broker_id: int = 0
    status: CommitStatus = CommitStatus.UNSAID  # set only by `commit_offsets`
    generations: list[int] = field(default_factory=list)  # set only by `query_offsets`, one for each offset


class ReadCalls(Protocol):
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

    def wait_for_records(
        self, address: str, topic: str, ends: Mapping[int, int], hold_s: float, timeout_s: float
    ) -> bool:
        """Returns True as soon as one of the queues has a record at or after its offset in `ends`, which maps queue ids
        to the queues' ends.

        Returns False if no record came within `hold_s`.  Returns False at once if the protocol has no call for such a
        wait.
        """

    def search_offsets(
        self, address: str, topic: str, timestamps: Mapping[int, int], timeout_s: float
    ) -> dict[int, int]: ...
