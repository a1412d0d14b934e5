"""What the broker and the name server refuse, as exceptions.  Expected outcomes are values, not these.

Each class carries what its callers get: RocketMQ's response code, the gRPC status of a call of our own protocol, and
the code in an answer to RocketMQ 5's clients.  A subclass has those of its base unless it says otherwise.  A message
names the topic, file, offset or key concerned and what to do next.

What may succeed on another broker or later is FAILED_PRECONDITION, since gRPC reports a dead process as UNAVAILABLE.
"""


class RocketSimError(Exception):
    """Anything refused."""

    code = 1  # SYSTEM_ERROR; of message.proto, ResponseCode
    grpc_status = "INTERNAL"  # of grpc.StatusCode
    v2_code = "INTERNAL_SERVER_ERROR"  # of apache.rocketmq.v2.Code


# --- the caller's fault -------------------------------------------------------------------------------------------


class MessageIllegal(RocketSimError):
    """A message or frame breaks a rule; sending it again cannot help."""

    code = 13
    grpc_status = "INVALID_ARGUMENT"
    v2_code = "BAD_REQUEST"


class QueueNotExist(MessageIllegal):
    """A send names a queue that its topic does not have (any more): another queue will do."""

    code = 29  # INVALID_PARAMETER, as RocketMQ 5 says of a queue id out of range


class TopicNotExist(RocketSimError):
    code = 17
    grpc_status = "NOT_FOUND"
    v2_code = "TOPIC_NOT_FOUND"


class NoPermission(RocketSimError):
    code = 16
    grpc_status = "PERMISSION_DENIED"
    v2_code = "FORBIDDEN"


class AccessDenied(NoPermission):
    """Access control: the user may not do this.  RocketMQ has one code for all of these.

    `reason` is what metrics and logs call it; `user`: whose name the call has, empty unless there is that user.
    """

    # Also if the user is known: clients tell it by this status from a topic that may not be written.
    grpc_status = "UNAUTHENTICATED"
    v2_code = "UNAUTHORIZED"
    reason = "forbidden"

    def __init__(self, message: str, user: str = "") -> None:
        super().__init__(message)
        self.user = user


class NotAuthenticated(AccessDenied):
    """Access control: nobody has proved who makes the call."""

    reason = "unauthenticated"


class UnknownUser(NotAuthenticated):
    """The text has the name that the caller gave, which may be anything, a secret by mistake, too."""

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
    """Asked for something (a message, a queue) that is not there."""

    code = 22
    grpc_status = "NOT_FOUND"
    v2_code = "NOT_FOUND"


# --- ours, or the world's -----------------------------------------------------------------------------------------


class ServiceNotAvailable(RocketSimError):
    """This broker takes no writes (or no such call) now: a slave, fenced, shutting down, disk full."""

    code = 14
    grpc_status = "FAILED_PRECONDITION"


class SystemBusy(RocketSimError):
    code = 2
    grpc_status = "RESOURCE_EXHAUSTED"
    v2_code = "TOO_MANY_REQUESTS"


class StaleEpoch(ServiceNotAvailable):
    """The caller, or this broker, belongs to an epoch that a newer one has replaced."""


class DiskFull(ServiceNotAvailable):
    """The disk has no room; reads go on, and writes again when there is room, without a restart."""

    v2_code = "TOO_MANY_REQUESTS"  # clients wait before they try again, elsewhere if they can


class FlushFailed(ServiceNotAvailable, OSError):
    """A sync failed: what was written since the last one is in doubt, and this process never writes again.

    An OSError too: who takes back what a failed write has left, or goes on without it, does so here as well.
    """


class StoreCorrupt(RocketSimError):
    """Damage below the flushed offset: the broker stops and names the file and the offset."""

    grpc_status = "DATA_LOSS"


class StoreTooNew(RocketSimError):
    """The store directory has what this version does not read: of a newer one, or of RocketMQ."""


class ReadFailed(ServiceNotAvailable, OSError):
    """The disk cannot read a part of a file: names the file, the position and the disk's error."""

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
    """Another process has the store directory."""


class ConfigError(RocketSimError):
    """A configuration file, key or value is refused; names the file, the line and the nearest known key."""

    code = 29
    grpc_status = "INVALID_ARGUMENT"
