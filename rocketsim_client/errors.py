"""The errors of the client: first those that the caller causes, then those of the cluster or network.  An expected
outcome, such as a late slave or an empty queue, is a value and not an error.

Every class has the RocketMQ response code that it stands for.  A `BrokerRefused` has the code that the broker sent.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketsim_client.model import CommitResult


class RocketSimError(Exception):
    """The base of the client's errors.  `code` is RocketMQ's response code.  `address` is the address of the server
    that answered, or empty if no server answered."""

    code: int = 1  # SYSTEM_ERROR

    def __init__(self, message: str, *, address: str = "", code: int | None = None) -> None:
        super().__init__(message)
        self.address = address
        if code is not None:
            self.code = code

    def __reduce__(self) -> Any:
        return _rebuilt, (type(self), self.args, self.__dict__)

    def again(self) -> "RocketSimError":
        """Returns a copy of the error, because raising one object in several places would make its traceback longer
        each time."""
        other: RocketSimError = _rebuilt(type(self), self.args, self.__dict__)
        other.__cause__ = self.__cause__
        return other


def _rebuilt(kind: type[RocketSimError], args: tuple[Any, ...], facts: dict[str, Any]) -> RocketSimError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


# --- errors that the caller causes --------------------------------------------------------------------------------


class MessageIllegal(RocketSimError):
    """A message cannot be sent as it is, for example because of its topic, its size or a property.  Sending the message
    again cannot help."""

    code = 13


class RowIllegal(MessageIllegal):
    """A row of the columns given to `send_columns` is not a valid message.  `row` is the row's number, counted from 0,
    and `problem` says what is wrong."""

    def __init__(self, topic: str, row: int, problem: str) -> None:
        super().__init__(f"topic {topic!r}: row {row}: {problem}")
        self.row = row
        self.problem = problem


class QueueNotExist(MessageIllegal):
    """A broker does not have this queue of the topic.  If the broker had the queue before, the client's route is
    old."""

    code = 29


class TopicNotExist(RocketSimError):
    """A broker says that it does not have the topic.  Only a master's answer proves that the topic does not exist."""

    code = 17


class NoRoute(TopicNotExist):
    """No name server that answers knows a broker with the topic.  The topic was never created, or none of its brokers
    runs, or the name servers have just started.  A topic can exist even if NoRoute is raised."""


class NoPermission(RocketSimError):
    """The topic, the broker or the group does not allow the call: reading or writing is not permitted, or the group
    may not consume."""

    code = 16


class NotSupported(NoPermission):
    """This client cannot make the call, because no name server was given, or because the protocol does not have the
    call."""


class AccessDenied(NoPermission):
    """Access control refuses the call: a server does not know the user or its secret key, or the user lacks the
    right.  The message names user, action and resource."""


class TooNew(RocketSimError):
    """A name server or broker speaks a newer version of the protocol than this client.  Upgrade the client."""


class GroupNotExist(RocketSimError):
    """The broker does not have the consumer group, and does not create groups by itself."""

    code = 26


class ExpressionInvalid(RocketSimError):
    """A subscription expression cannot be parsed or is not supported."""

    code = 23


class InvalidParameter(RocketSimError):
    """An argument is wrong, whatever the state of the cluster.  The message names the argument."""

    code = 29


class OffsetIllegal(RocketSimError):
    """The queue does not have these offsets: retention has deleted the messages, the offsets are beyond the end, or
    the messages were cut when a slave was promoted."""

    code = 21


class NotFound(RocketSimError):
    """There is no such message, or no such open transaction."""

    code = 22


class InvalidReceiptHandle(RocketSimError):
    """An ack, nack or extension came after the delivery was over: the deadline had passed, the message was acknowledged
    or given back before, or the topic or group was reset.  The message is delivered again, unless it was
    acknowledged."""

    code = 40013  # the code of RocketMQ 5's protocol


class TlsFailed(RocketSimError):
    """No TLS connection is possible: one side does not accept the other's certificate, a file cannot be read, or only
    one side speaks TLS.  The message names the option."""


class ClientClosed(RocketSimError):
    """The producer, consumer or cluster has been closed."""


# --- errors of the cluster or the network -------------------------------------------------------------------------


class BrokerRefused(RocketSimError):
    """A broker has refused the call.  `code` is RocketMQ's number for the reason."""


class ServiceNotAvailable(BrokerRefused):
    """The broker takes no writes now: it is a slave, another master with a newer epoch has replaced it, it is
    shutting down, or its disk is full."""

    code = 14


class SystemBusy(BrokerRefused):
    """The broker is too busy to take the call now.  The broker may take the same call later."""

    code = 2


class StoreDamaged(BrokerRefused):
    """The broker's store has a damaged file."""


class Unreachable(RocketSimError):
    """No server answered in time.  The client cannot know whether the call had its effect."""


class BrokerUnavailable(Unreachable):
    """The address could not be reached, or the connection broke during the call."""


class CallTimeout(Unreachable):
    """The deadline passed without an answer."""


class NameServerUnavailable(Unreachable):
    """No name server answered."""


class BrokerNotExist(RocketSimError):
    """The route names no address for the broker."""


class MasterNotExist(BrokerNotExist):
    """The broker name has no master now, and its slave does not know the topic, queue or group.  A new topic, queue or
    group may not have reached the slave yet."""


class BadAnswer(RocketSimError):
    """An answer contradicts itself or the request: its records are damaged or belong to another topic, or a count is
    wrong."""


class SendFailed(RocketSimError):
    """No broker has acknowledged the message within the timeout and the retries.  `__cause__` is the last failure.

    If `maybe_stored` is True, the message may be stored, because the answer to an attempt was lost.
    """

    def __init__(self, message: str, *, attempts: int, maybe_stored: bool, code: int | None = None) -> None:
        super().__init__(message, code=code)
        self.attempts = attempts
        self.maybe_stored = maybe_stored


class SpoolFailed(SendFailed):
    """A message was neither acknowledged nor spooled: the spool or its disk is full, or its files were deleted, moved
    or replaced."""

    def __init__(self, message: str, *, attempts: int = 0, maybe_stored: bool = False, code: int | None = None) -> None:
        super().__init__(message, attempts=attempts, maybe_stored=maybe_stored, code=code)


class SpoolUnusable(RocketSimError):
    """A producer's spool cannot be opened or read: another process has it open, it is damaged, or a newer version has
    written it."""


class CommitFailed(RocketSimError):
    """At least one broker name did not take the commit.  `result` says which broker names took the commit, and which
    refused."""

    def __init__(self, message: str, result: "CommitResult") -> None:
        super().__init__(message)
        self.result = result


# A class that defines a code is the error for refusals with that code.  A subclass that defines no code of its own is a
# special case of its base's error.
_BY_CODE = {
    kind.code: kind
    for kind in (*RocketSimError.__subclasses__(), *BrokerRefused.__subclasses__())
    if "code" in vars(kind)
}
# RocketSim's servers also send a gRPC status, because some of RocketMQ's codes stand for several errors.
_BY_STATUS = {"DATA_LOSS": StoreDamaged, "UNAUTHENTICATED": AccessDenied}


def refusal(code: int, message: str, address: str, status: str = "") -> RocketSimError:
    """Returns the error for a server's refusal.

    `code` is RocketMQ's response code.  `status` is the name of gRPC's status, or empty over another protocol.
    """
    kind = _BY_STATUS.get(status) or _BY_CODE.get(code, BrokerRefused)
    return kind(message, address=address, code=code)
