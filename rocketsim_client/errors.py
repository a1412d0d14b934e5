"""What the client refuses or could not do, sorted by fault.  Expected outcomes (a slave that is late, an empty queue)
are values.

Every class carries the RocketMQ response code it stands for; `BrokerRefused` carries the one the broker sent.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketsim_client.model import CommitResult


class RocketSimError(Exception):
    """Anything the client raises.  `code` is RocketMQ's response code, `address` who answered (empty: nobody)."""

    code = 1  # SYSTEM_ERROR

    def __init__(self, message: str, *, address: str = "", code: int | None = None) -> None:
        super().__init__(message)
        self.address = address
        if code is not None:
            self.code = code

    def __reduce__(self) -> Any:
        return _rebuilt, (type(self), self.args, self.__dict__)

    def again(self) -> "RocketSimError":
        """The same error for somebody else: raising one object in many places grows its traceback each time."""
        other: RocketSimError = _rebuilt(type(self), self.args, self.__dict__)
        other.__cause__ = self.__cause__
        return other


def _rebuilt(kind: type[RocketSimError], args: tuple[Any, ...], facts: dict[str, Any]) -> RocketSimError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


# --- the caller's fault -------------------------------------------------------------------------------------------


class MessageIllegal(RocketSimError):
    """A message breaks a rule; sending it again cannot help."""

    code = 13


class RowIllegal(MessageIllegal):
    """A row of the columns given to `send_columns` breaks a rule: `row`, counted from 0, and `problem`."""

    def __init__(self, topic: str, row: int, problem: str) -> None:
        super().__init__(f"topic {topic!r}: row {row}: {problem}")
        self.row = row
        self.problem = problem


class QueueNotExist(MessageIllegal):
    """A broker has no such queue of the topic (any more): the route that named it is older than a change."""

    code = 29


class TopicNotExist(RocketSimError):
    """A broker says that it has no such topic.  Only a master's word proves that the topic is gone."""

    code = 17


class NoRoute(TopicNotExist):
    """No name server that answers knows a broker with the topic: it was never made, or all its brokers are away, or the
    name servers have just started.  Proves nothing about the topic.
    """


class NoPermission(RocketSimError):
    """The topic, the broker or the group does not allow this: its permission has no read (write), or the group may not
    consume."""

    code = 16


class NotSupported(NoPermission):
    """The way in which this client reaches the cluster has no such call: no name server was given, or the protocol does
    not know it."""


class AccessDenied(NoPermission):
    """Access control: a server does not know the user or its secret key, or the user may not do this.  The message says
    user, action and resource."""


class TooNew(RocketSimError):
    """A name server or broker speaks a newer version of the wire than this client: upgrade the client."""


class GroupNotExist(RocketSimError):
    """The broker has no such consumer group, and makes none by itself."""

    code = 26


class ExpressionInvalid(RocketSimError):
    """A subscription expression that cannot be parsed or is not supported."""

    code = 23


class InvalidParameter(RocketSimError):
    """An argument that cannot be right, whatever the state of the cluster; the message names it."""

    code = 29


class OffsetIllegal(RocketSimError):
    """Asked for offsets that the queue does not have (any more): deleted by retention, beyond its end, or cut when a
    slave was promoted."""

    code = 21


class NotFound(RocketSimError):
    """Asked for a message or queue that is not there."""

    code = 22


class InvalidReceiptHandle(RocketSimError):
    """An ack, nack or extension of a delivery that is over: past its deadline, settled otherwise, or of a topic or
    group that was reset.  The message is delivered again, unless it was acknowledged."""

    code = 40013  # RocketMQ 5's


class TlsFailed(RocketSimError):
    """A server and this client do not come together over TLS: a certificate that is not valid for the other side, a
    file that cannot be read, or only one of them speaks TLS.  The message names the option."""


class ClientClosed(RocketSimError):
    """The producer, consumer or cluster has been closed."""


# --- the cluster's, or the network's --------------------------------------------------------------------------------


class BrokerRefused(RocketSimError):
    """A broker answered, and the answer is no.  `code` says why in RocketMQ's numbers."""


class ServiceNotAvailable(BrokerRefused):
    """That broker takes no writes now: a slave, fenced by a newer epoch, shutting down, disk full."""

    code = 14


class SystemBusy(BrokerRefused):
    """The broker is too busy to take the call now; the same call may succeed later."""

    code = 2


class StoreDamaged(BrokerRefused):
    """The broker's store has a damaged file."""


class Unreachable(RocketSimError):
    """Nobody answered in time: the call may or may not have had its effect."""


class BrokerUnavailable(Unreachable):
    """The address could not be reached, or the connection broke during the call."""


class CallTimeout(Unreachable):
    """The deadline passed without an answer."""


class NameServerUnavailable(Unreachable):
    """None of the name servers answered."""


class BrokerNotExist(RocketSimError):
    """The route names no address for the broker."""


class MasterNotExist(BrokerNotExist):
    """No master of the broker name is there, and its slave knows nothing of the topic, queue or group: it may not have
    heard of it yet.
    """


class BadAnswer(RocketSimError):
    """An answer that contradicts itself or the question: damaged records, another topic's records, a wrong count."""


class SendFailed(RocketSimError):
    """A message was not acknowledged by any broker within its timeout and retries.  `__cause__` is the last failure.

    `maybe_stored` tells a definite failure from an unknown outcome: an attempt whose answer was lost may have been
    stored.
    """

    def __init__(self, message: str, *, attempts: int, maybe_stored: bool, code: int | None = None) -> None:
        super().__init__(message, code=code)
        self.attempts = attempts
        self.maybe_stored = maybe_stored


class SpoolFailed(SendFailed):
    """A message was neither acknowledged nor spooled: the spool is full, its disk takes no more, or its files were
    deleted, moved or replaced."""

    def __init__(self, message: str, *, attempts: int = 0, maybe_stored: bool = False, code: int | None = None) -> None:
        super().__init__(message, attempts=attempts, maybe_stored=maybe_stored, code=code)


class SpoolUnusable(RocketSimError):
    """A producer's spool cannot be opened or read: another process has it, it is damaged, or of a newer version."""


class CommitFailed(RocketSimError):
    """At least one broker name took no commit; `result` says what the others did."""

    def __init__(self, message: str, result: "CommitResult") -> None:
        super().__init__(message)
        self.result = result


_BY_CODE: dict[int, type[RocketSimError]] = {
    2: SystemBusy,
    13: MessageIllegal,
    14: ServiceNotAvailable,
    16: NoPermission,
    17: TopicNotExist,
    22: NotFound,
    23: ExpressionInvalid,
    26: GroupNotExist,
    29: InvalidParameter,
}


def refusal(code: int, message: str, address: str) -> RocketSimError:
    """The exception for a broker's or name server's refusal with RocketMQ's `code`."""
    return _BY_CODE.get(code, BrokerRefused)(message, address=address, code=code)
