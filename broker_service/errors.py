"""What the broker and the name server refuse, as exceptions.  Expected outcomes are values, not these.

Each class carries the RocketMQ response code its callers get; `rpc_errors.py` maps it to a gRPC status.
A message names the topic, file, offset or key concerned and what to do next.
"""


class RocketSimError(Exception):
    """Anything refused.  `code` is RocketMQ's response code (message.proto, ResponseCode)."""

    code = 1  # SYSTEM_ERROR


# --- the caller's fault -------------------------------------------------------------------------------------------


class MessageIllegal(RocketSimError):
    """A message or frame breaks a rule; sending it again cannot help."""

    code = 13


class QueueNotExist(MessageIllegal):
    """A send names a queue that its topic does not have (any more): another queue will do."""

    code = 29  # INVALID_PARAMETER, as RocketMQ 5 says of a queue id out of range


class TopicNotExist(RocketSimError):
    code = 17


class NoPermission(RocketSimError):
    code = 16


class AccessDenied(NoPermission):
    """Access control: the user may not do this.  RocketMQ has one code for all of these.

    `reason` is what metrics and logs call it; `user`: whose name the call has, empty unless there is that user.
    """

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


class SubscriptionParseFailed(RocketSimError):
    code = 23


class InvalidParameter(RocketSimError):
    code = 29


class NotFound(RocketSimError):
    """Asked for something (a message, a queue) that is not there."""

    code = 22


# --- ours, or the world's -----------------------------------------------------------------------------------------


class ServiceNotAvailable(RocketSimError):
    """This broker takes no writes (or no such call) now: a slave, fenced, shutting down, disk full."""

    code = 14


class SystemBusy(RocketSimError):
    code = 2


class StaleEpoch(ServiceNotAvailable):
    """The caller, or this broker, belongs to an epoch that a newer one has replaced."""


class DiskFull(ServiceNotAvailable):
    """The disk has no room; reads go on, and writes again when there is room, without a restart."""


class FlushFailed(ServiceNotAvailable, OSError):
    """A sync failed: what was written since the last one is in doubt, and this process never writes again.

    An OSError too: who takes back what a failed write has left, or goes on without it, does so here as well.
    """


class StoreCorrupt(RocketSimError):
    """Damage below the flushed offset: the broker stops and names the file and the offset."""


class StoreTooNew(RocketSimError):
    """The store directory has what this version does not read: of a newer one, or of RocketMQ."""


class ReadFailed(ServiceNotAvailable, OSError):
    """The disk cannot read a part of a file: names the file, the position and the disk's error."""

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
