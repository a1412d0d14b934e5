"""The values of pops, acknowledgements and changes of deadlines.  Times are milliseconds since 1970 on the broker's
clock; waiting times are seconds.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from broker_service.broker.core.traffic import Traffic
from broker_service.errors import InvalidParameter
from broker_service.put_result import PutStatus

MAX_MESSAGES = 32  # most messages of one pop, as in RocketMQ 5
MAX_HANDLES = 1024  # most handles of one call, because the event loop handles all of them without a pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Pop:
    """A consumer's request for messages of any queue of a topic.

    With `auto_renew` the broker extends the deadlines while the client is connected, and ignores `invisible_ms`.
    `poll_s` is how long the pop may wait for a first message.  `timeout_s` is how long the disk and the slave may take
    to store the deliveries, once messages are found.  A client that got no answer repeats its pop with the same
    `attempt_id`, which is empty for clients that never repeat a pop.  If the group consumes in order, a pop with the
    same `attempt_id` gets the messages that the first pop took.
    """

    group: str
    topic: str
    client_id: str = ""
    max_messages: int = MAX_MESSAGES
    invisible_ms: int = 60_000
    auto_renew: bool = False
    sub_expression: str = "*"
    expression_type: str = "TAG"
    poll_s: float = 0.0
    timeout_s: float = 3.0
    attempt_id: str = ""


class PopStatus(Enum):
    FOUND = auto()
    NO_MESSAGE = auto()  # there is nothing to deliver
    NO_MATCH = auto()  # the filter excluded all messages


class Delivery(NamedTuple):
    """A message that a client holds until `deadline_ms`.

    `record` has the bytes of the log, which `rocketsim_proto.records.record.decode` reads.  `topic` is the topic of the
    pop, even for a retried message; the record, the queue and the offset are then those in the retry topic.  `attempt`
    is 1 for the first delivery of the message.
    """

    record: bytes
    topic: str
    queue_id: int
    queue_offset: int
    attempt: int
    receipt_handle: str
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Popped:
    """The answer to a pop.

    `stored` says how safely the deliveries are stored.  If `stored` is not PUT_OK and this broker is lost, the messages
    may be delivered twice.
    """

    status: PopStatus
    deliveries: tuple[Delivery, ...] = ()
    popped_ms: int = 0
    stored: PutStatus = PutStatus.PUT_OK


@dataclass(slots=True)
class Counts:
    """Counts of events since the broker's start."""

    pops: int = 0  # pops that were answered with messages
    delivered: int = 0  # messages
    acknowledged: int = 0
    given: Traffic = field(default_factory=Traffic)  # messages delivered, by topic and group
    retried: Traffic = field(default_factory=Traffic)
    dead_letters: Traffic = field(default_factory=Traffic)


class HandleStatus(Enum):
    OK = auto()
    # The handle is expired, forged, cut off, of another group or topic, or its message was settled in another way.
    INVALID_RECEIPT_HANDLE = auto()


# With one of these put statuses a client need not call again.  A second call would not bring a missing slave back.
FINAL = (PutStatus.PUT_OK, PutStatus.SLAVE_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class Settled:
    """The result for one receipt handle.  If `stored` is not in FINAL, the client has to acknowledge again."""

    status: HandleStatus
    stored: PutStatus = PutStatus.PUT_OK


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisible:
    """A request to move the deadline of a delivery.

    `invisible_ms` is the time from now to the new deadline.  An `invisible_ms` of None stands for the group's back-off
    for this attempt, and 0 stands for no wait.  For a renewed delivery an `invisible_ms` of 0 also stands for the
    back-off, because Node's push consumer returns failed messages with 0.  With `counted` the delivery counts as an
    attempt, so the next delivery has a higher attempt number.
    """

    group: str
    topic: str
    receipt_handle: str
    invisible_ms: int | None
    counted: bool = True
    timeout_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of ChangeInvisible.  `receipt_handle` is always the handle of the request."""

    status: HandleStatus
    receipt_handle: str
    deadline_ms: int = 0
    stored: PutStatus = PutStatus.PUT_OK


def check_handle_count(handles: int) -> None:
    if not 1 <= handles <= MAX_HANDLES:
        raise InvalidParameter(f"a call has {handles} receipt handles: 1 to {MAX_HANDLES} are allowed")
