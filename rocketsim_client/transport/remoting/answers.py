"""Turns answers of the remoting protocol into the client's values, and RocketMQ's codes into its errors.  Pure."""

import re
from collections.abc import Mapping
from typing import Any

from rocketsim_proto.remoting import loose_json
from rocketsim_proto.remoting.codes import ResponseCode
from rocketsim_proto.remoting.frame import Header
from rocketsim_proto.remoting.loose_json import LooseJsonError

from rocketsim_client.errors import (
    AccessDenied,
    BadAnswer,
    BrokerRefused,
    InvalidParameter,
    MessageIllegal,
    NotFound,
    NotSupported,
    RocketSimError,
    SystemBusy,
    refusal,
)
from rocketsim_client.model import GetMessageStatus

_ACL = "AclException|check signature failed|username cannot be null|authoriz|authentic|User:|No accessKey"
# Some of RocketMQ's codes stand for several errors, which are told apart by words in the answer's remark.
_BY_REMARK: tuple[tuple[ResponseCode, re.Pattern[str], type[RocketSimError]], ...] = (
    (ResponseCode.NO_PERMISSION, re.compile(_ACL, re.I), AccessDenied),
    (ResponseCode.SYSTEM_ERROR, re.compile(_ACL, re.I), AccessDenied),
    (ResponseCode.SYSTEM_ERROR, re.compile("body size|too (large|long)|exceed|over max", re.I), MessageIllegal),
    (ResponseCode.SYSTEM_ERROR, re.compile("queueId.*(illegal|not exist)", re.I), InvalidParameter),
    (ResponseCode.SYSTEM_ERROR, re.compile("can not find message by the offset", re.I), NotFound),
)
_STATUSES = {status.name: status for status in GetMessageStatus}
_BY_PULL_CODE = {
    ResponseCode.SUCCESS: GetMessageStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: GetMessageStatus.OFFSET_OVERFLOW_ONE,
    ResponseCode.PULL_RETRY_IMMEDIATELY: GetMessageStatus.NO_MATCHED_MESSAGE,
    ResponseCode.PULL_OFFSET_MOVED: GetMessageStatus.OFFSET_OVERFLOW_BADLY,
}
PULL_CODES = frozenset(_BY_PULL_CODE)


def error_of(header: Header, what: str, address: str) -> RocketSimError:
    """Returns the exception for a server's refusal.  `what` names the request in words for users."""
    code, text = header.code, f"{what} at {address}: {_first_line(header.remark) or f'refused with code {header.code}'}"
    if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return NotSupported(
            f"{what}: {address} does not know this call ({_first_line(header.remark)})", address=address
        )
    for of_code, words, kind in _BY_REMARK:
        if code == of_code and words.search(header.remark):
            return kind(text, address=address)
    if code == ResponseCode.FLOW_CONTROL:
        return SystemBusy(text, address=address, code=code)
    if code == ResponseCode.NOT_LEADER_FOR_QUEUE:
        return NotSupported(f"{text}: static topics are not supported", address=address)
    if code == ResponseCode.GO_AWAY:
        return BrokerRefused(f"{text} (it is shutting down)", address=address, code=code)
    return refusal(code, text, address)


def _first_line(remark: str) -> str:
    """Returns only the first line of a remark, because the rest may be a stack trace."""
    return remark.splitlines()[0][:500] if remark.strip() else ""


def field(header: Header, name: str, address: str) -> int:
    """Returns a number in the header's fields.  Raises BadAnswer if the field is missing or no number."""
    value = header.fields.get(name, "")
    if not re.fullmatch(r"-?[0-9]{1,19}", value):
        raise BadAnswer(f"{address} answered without a number for {name}: {value[:40]!r}", address=address)
    return int(value)


def body_of(body: bytes, address: str) -> dict[str, Any]:
    """Parses the body of an answer.  Raises BadAnswer if the body is not a JSON object."""
    try:
        value = loose_json.loads(body)
    except LooseJsonError as error:
        raise BadAnswer(f"{address} sent a body that cannot be read: {error}", address=address) from error
    if not isinstance(value, dict):
        raise BadAnswer(f"{address} sent a body that is not an object: {body[:60]!r}", address=address)
    return value


def part(value: Mapping[Any, Any], name: str, kind: type, address: str) -> Any:
    """Returns a value in a body.  Raises BadAnswer if the value is missing or of another type."""
    found = value.get(name)
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise BadAnswer(f"{address} sent a body without {name}", address=address)
    return found


def pull_status(code: int, remark: str) -> GetMessageStatus:
    """Returns the status of a pull.  RocketMQ 4 and 5 write the status into the remark.  If the remark has no status,
    the response code decides."""
    return _STATUSES.get(remark) or _BY_PULL_CODE[ResponseCode(code)]
