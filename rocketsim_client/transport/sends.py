"""Calls that send messages, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rocketsim_client.model import SendStatus


@dataclass(slots=True)
class Outgoing:
    """Messages of one topic for one broker name, as columns of equal length.

    `bodies` and `properties` (encoded, message id included) are lists of bytes or Arrow binary arrays; `queue_ids` a
    list or an integer array; flags and birth times (ms) are one value for all messages or, for Arrow arrays, one for
    each.
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
    """The broker and group of a send, and the epoch of the route that it uses (0: unknown)."""

    broker_name: str
    group: str
    epoch: int = 0
    default_topic_queue_nums: int = 4  # if this send makes the topic


@dataclass(slots=True)
class Acknowledged:
    """A broker's acknowledgement of an Outgoing, with one offset for each message, in order.  If a protocol does not
    tell an offset, it is -1, `store_host` is empty and `store_timestamp` is 0."""

    status: SendStatus
    queue_offsets: Sequence[int]
    commit_log_offsets: Sequence[int]
    store_host: bytes
    store_timestamp: int


class SendCalls(Protocol):
    def send(self, address: str, outgoing: Outgoing, call: SendCall, timeout_s: float) -> Acknowledged: ...
