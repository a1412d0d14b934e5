"""Sends: messages as columns, and where they went."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rocketsim_client.model import SendStatus


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


class SendCall(NamedTuple):
    """Of which broker and group a send is, and the epoch of the route that it goes by (0: unknown)."""

    broker_name: str
    group: str
    epoch: int = 0
    default_topic_queue_nums: int = 4  # of a topic that this send makes


@dataclass(slots=True)
class Acknowledged:
    """A broker's yes to an Outgoing.  The offsets are one each, in its order; -1 where a transport is not told one.
    `store_host` is empty and `store_timestamp` 0 then."""

    status: SendStatus
    queue_offsets: Sequence[int]
    commit_log_offsets: Sequence[int]
    store_host: bytes
    store_timestamp: int


class SendCalls(Protocol):
    def send(self, address: str, outgoing: Outgoing, call: SendCall, timeout_s: float) -> Acknowledged: ...
