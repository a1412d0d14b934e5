"""The exceptions with which a broker or a name server refuses something.  An outcome that callers must expect is a
return value, not an exception.

Each class has three codes for the caller.  `code` is RocketMQ's response code, `grpc_status` is the gRPC status in our
own protocol, and `v2_code` is the code for RocketMQ 5's clients.  A subclass has the codes of its base class unless it
defines others.  The message of an error names the topic, file, offset or key concerned, and says what to do next.

The status of a call that may succeed later, or on another broker, is FAILED_PRECONDITION.  UNAVAILABLE is left to gRPC,
which reports a dead process with it.
"""


class RocketSimError(Exception):
    """The base class of all refusals."""

    code = 1  # SYSTEM_ERROR; a number of ResponseCode in message.proto
    grpc_status = "INTERNAL"  # the name of a grpc.StatusCode
    v2_code = "INTERNAL_SERVER_ERROR"  # the name of an apache.rocketmq.v2.Code


# --- errors of the caller -----------------------------------------------------------------------------------------


class MessageIllegal(RocketSimError):
    """A message or frame breaks a rule.  Sending the same message again does not help."""

    code = 13
    grpc_status = "INVALID_ARGUMENT"
    v2_code = "BAD_REQUEST"


class QueueNotExist(MessageIllegal):
    """A send names a queue that its topic does not have.  The sender can use another queue."""

    code = 29  # INVALID_PARAMETER: RocketMQ 5's answer to a queue id that is out of range


class TopicNotExist(RocketSimError):
    code = 17
    grpc_status = "NOT_FOUND"
    v2_code = "TOPIC_NOT_FOUND"


class NoPermission(RocketSimError):
    code = 16
    grpc_status = "PERMISSION_DENIED"
    v2_code = "FORBIDDEN"


class AccessDenied(NoPermission):
    """Access control refuses a call.  RocketMQ has a single code for all refusals of access control.

    `reason` is the name of the refusal in metrics and logs.  `user` is the name of the caller if a user of that name
    exists, and empty otherwise.
    """

    # A known user without the right gets UNAUTHENTICATED, too.  With PERMISSION_DENIED a client could not tell this
    # refusal from that of a topic without write permission.
    grpc_status = "UNAUTHENTICATED"
    v2_code = "UNAUTHORIZED"
    reason = "forbidden"

    def __init__(self, message: str, user: str = "") -> None:
        super().__init__(message)
        self.user = user


class NotAuthenticated(AccessDenied):
    """The call does not prove which user makes it."""

    reason = "unauthenticated"


class UnknownUser(NotAuthenticated):
    """The message contains the name that the caller gave.  A caller may send any text as a name, even a secret by
    mistake.
    """

    reason = "unknown_user"


class BadSignature(NotAuthenticated):
    reason = "bad_signature"


class ClockSkew(NotAuthenticated):
    """The call was signed too long ago, or in the future."""

    reason = "clock_skew"


class SubscriptionGroupNotExist(RocketSimError):
    code = 26
    grpc_status = "NOT_FOUND"
    v2_code = "CONSUMER_GROUP_NOT_FOUND"


class SubscriptionParseFailed(RocketSimError):
    code = 23
    grpc_status = "INVALID_ARGUMENT"
    v2_code = "ILLEGAL_FILTER_EXPRESSION"


class InvalidParameter(RocketSimError):
    code = 29
    grpc_status = "INVALID_ARGUMENT"
    v2_code = "BAD_REQUEST"


class NotFound(RocketSimError):
    """The message, queue or other thing that the caller asks for does not exist."""

    code = 22
    grpc_status = "NOT_FOUND"
    v2_code = "NOT_FOUND"


# --- errors of this server or its machine -------------------------------------------------------------------------


class ServiceNotAvailable(RocketSimError):
    """This broker does not take the call now: it is a slave, a newer master has replaced it (it is fenced), it stops,
    or its disk is full.
    """

    code = 14
    grpc_status = "FAILED_PRECONDITION"


class SystemBusy(RocketSimError):
    code = 2
    grpc_status = "RESOURCE_EXHAUSTED"
    v2_code = "TOO_MANY_REQUESTS"


class StaleEpoch(ServiceNotAvailable):
    """The caller, or this broker, belongs to an epoch that a newer one has replaced."""


class DiskFull(ServiceNotAvailable):
    """The disk is full.  Reads continue.  Writes continue without a restart as soon as the disk has room again."""

    v2_code = "TOO_MANY_REQUESTS"  # with this code clients wait before they try again, on another broker if they can


class FlushFailed(ServiceNotAvailable, OSError):
    """A sync failed.

    The disk may lack what was written since the last successful sync, and this process never writes again.  FlushFailed
    is an OSError, too, so that the code that handles a failed write also handles a failed sync.
    """


class StoreCorrupt(RocketSimError):
    """The store is damaged below its flushed offset.  The broker stops; the message names the file and the offset."""

    grpc_status = "DATA_LOSS"


class StoreTooNew(RocketSimError):
    """The store directory contains files of a newer version, or of RocketMQ, that this version cannot read."""


class ReadFailed(ServiceNotAvailable, OSError):
    """The disk cannot read a part of a file.  The message names the file, the position and the disk's error."""

    grpc_status = "DATA_LOSS"

    @classmethod
    def of(cls, path: object, position: int, error: OSError) -> "ReadFailed":
        failed = cls(
            f"{path} cannot be read at {position}: {error.strerror or error}; look at the disk, and restore the file "
            "or take it from the other broker"
        )
        failed.errno = error.errno
        return failed


class StoreLocked(RocketSimError):
    """Another process uses the store directory."""


class ConfigError(RocketSimError):
    """A configuration file, key or value is refused.  The message names the file, line and nearest known key."""

    code = 29
    grpc_status = "INVALID_ARGUMENT"
