"""Makes the status of an answer, also from an error.  Codes and texts are those of RocketMQ's proxy."""

import functools
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rocketmq_v2 import definition_pb2 as pb

from broker_service import errors
from broker_service.put_result import PutStatus
from broker_service.runtime.rpc_errors import refusal_of
from broker_service.wire.clients import Context

logger = logging.getLogger(__name__)

Request = TypeVar("Request")
Response = TypeVar("Response")


# Matches a path of this machine.  Clients get only the file's name, and the broker's log has the complete path.
_PATH = re.compile(r"(^|[\s'\"(=\[])(?:/[^/\s'\")\],;]+)*/([^/\s'\")\],;:]+)")


class Refused(errors.RocketSimError):
    """A refusal with a code of `apache.rocketmq.v2.Code`."""

    def __init__(self, code: pb.Code, text: str) -> None:
        super().__init__(text)
        self.status_code = code


# The codes for messages that are stored, but less safely than the mode promises.
STORED_BUT: dict[PutStatus, pb.Code] = {
    PutStatus.FLUSH_DISK_TIMEOUT: pb.MASTER_PERSISTENCE_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: pb.SLAVE_PERSISTENCE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: pb.HA_NOT_AVAILABLE,
}


def status(code: pb.Code, text: str = "") -> pb.Status:
    """Returns a status.  The text of a status always contains the code's name, so that users and tests can search
    for the name.
    """
    if code == pb.OK and not text:
        return OK
    name = pb.Code.Name(code)
    return pb.Status(code=code, message=name if not text else text if name in text else f"{name}: {text}")


OK = pb.Status(code=pb.OK, message=pb.Code.Name(pb.OK))


def status_of(error: Exception) -> pb.Status:
    if isinstance(error, Refused):
        return status(error.status_code, str(error))
    refusal = refusal_of(error)
    code: pb.Code = pb.Code.Value(refusal.v2_code)  # type: ignore[assignment]
    if code == pb.INTERNAL_SERVER_ERROR and not isinstance(refusal, errors.ServiceNotAvailable):
        logger.error("a call failed: %s", refusal)
    text = str(refusal)
    # an error of the broker itself can name paths
    if code == pb.INTERNAL_SERVER_ERROR or isinstance(refusal, errors.DiskFull):
        text = _PATH.sub(r"\1\2", text)
    return status(code, text)


def answers_with(
    response_class: Callable[..., Response],
) -> Callable[
    [Callable[[Any, Request, Context], Awaitable[Response]]],
    Callable[[Any, Request, Context], Awaitable[Response]],
]:
    """Decorates a unary method of a servicer.  An error of the method becomes a response that has only a status."""

    def decorated(
        method: Callable[[Any, Request, Context], Awaitable[Response]],
    ) -> Callable[[Any, Request, Context], Awaitable[Response]]:
        @functools.wraps(method)
        async def answering(self: Any, request: Request, context: Context) -> Response:
            try:
                return await method(self, request, context)
            except (errors.RocketSimError, OSError) as error:
                return response_class(status=status_of(error))

        return answering

    return decorated
