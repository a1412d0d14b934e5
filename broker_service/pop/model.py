"""The values of pop, ack and change.  Times are milliseconds since 1970 on the broker's clock; waits are seconds."""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from broker_service.broker.core.traffic import Traffic
from broker_service.errors import InvalidParameter
from broker_service.model import PutStatus

MAX_MESSAGES = 32  # of one pop, as RocketMQ 5 has it
MAX_HANDLES = 1024  # of one call: the event loop does them in one turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Pop:
    """A consumer's request for messages of any queue of a topic.

    `auto_renew`: the broker extends the deadlines while the client is connected; `invisible_ms` is ignored then.
    `poll_s`: how long to wait for a first message.  `timeout_s`: how long disk and slave may take after that.
    `attempt_id`: a client that has got no answer sends it again, and gets, if its group consumes in order, what the
    first pop took.  "" without one.
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
    """A message, given to a client until `deadline_ms`.

    `record` is the record as the log has it (`rocketsim_proto.records.record.decode`).  `topic` is the one that was
    asked for; a retried message's record, queue and offset are those of the retry topic.  `attempt` counts from 1.
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
    """`stored` is a put's status: with another than PUT_OK the messages are delivered as well, but may come twice if
    this broker is lost."""

    status: PopStatus
    deliveries: tuple[Delivery, ...] = ()
    popped_ms: int = 0
    stored: PutStatus = PutStatus.PUT_OK


@dataclass(slots=True)
class Counts:
    """Since the broker's start."""

    pops: int = 0  # those that were answered with messages
    delivered: int = 0  # messages
    acknowledged: int = 0
    given: Traffic = field(default_factory=Traffic)  # what the pops got, by topic and group
    retried: Traffic = field(default_factory=Traffic)
    dead_letters: Traffic = field(default_factory=Traffic)


class HandleStatus(Enum):
    OK = auto()
    INVALID_RECEIPT_HANDLE = auto()  # past its deadline, settled otherwise, forged, cut off, of another group or topic


# Statuses of a put that asking again would make no better: it would bring no slave back.
FINAL = (PutStatus.PUT_OK, PutStatus.SLAVE_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class Settled:
    """`stored` is a put's status: OK with PUT_OK is final in the broker's mode; unless it is FINAL, ack again."""

    status: HandleStatus
    stored: PutStatus = PutStatus.PUT_OK


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisible:
    """`invisible_ms` counts from now; None: the group's back-off for this attempt; 0: deliver again at once, but after
    the back-off what the broker renews: so Node's push consumer gives back what has failed.
    `counted`: whether the next delivery counts as another attempt."""

    group: str
    topic: str
    receipt_handle: str
    invisible_ms: int | None
    counted: bool = True
    timeout_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Changed:
    """`receipt_handle` is that of the request, with every status."""

    status: HandleStatus
    receipt_handle: str
    deadline_ms: int = 0
    stored: PutStatus = PutStatus.PUT_OK


def check_handle_count(handles: int) -> None:
    if not 1 <= handles <= MAX_HANDLES:
        raise InvalidParameter(f"{handles} receipt handles in a call: 1 to {MAX_HANDLES}")
