"""The calls that send messages, which are passed as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rocketsim_client.model import SendStatus


@dataclass(slots=True)
class Outgoing:
    """Messages of one topic for one broker name, as columns of equal length.

    `bodies` and `properties` (encoded, with the message id) are lists of bytes or Arrow binary arrays.  `queue_ids` is
    a list or an integer array.  The flags and the birth times (ms) are one value for all messages, or, with Arrow
    arrays, arrays with a value for each message.
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
    """The arguments of a send besides its messages: the broker name, the producer group, and the epoch of the route
    that the producer uses (0: unknown)."""

    broker_name: str
    group: str
    epoch: int = 0
    default_topic_queue_nums: int = 4  # the number of queues if this send creates the topic


@dataclass(slots=True)
class Acknowledged:
    """A broker's acknowledgement of an Outgoing, with one offset for each message, in order.  Values that the protocol
    does not tell are -1 for an offset, empty for `store_host` and 0 for `store_timestamp`."""

    status: SendStatus
    queue_offsets: Sequence[int]
    commit_log_offsets: Sequence[int]
    store_host: bytes
    store_timestamp: int


class SendCalls(Protocol):
    def send(self, address: str, outgoing: Outgoing, call: SendCall, timeout_s: float) -> Acknowledged: ...
