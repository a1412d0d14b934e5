"""Finds the user of a call from its headers and checks the signature.  These functions are pure: they get the time and
the users as arguments.

RocketMQ 5's clients sign the date only.  Each RocketMQ 5 client has its own format for the date, mostly in local time,
so the age of the signature cannot be checked.  Our own clients sign the method and the date in UTC; their calls are
refused if the date is too old or in the future.  The error texts are those of RocketMQ's proxy.
"""

import hmac
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from rocketsim_proto.remoting import acl
from rocketsim_proto.remoting.frame import Header
from rocketsim_proto.signature import AUTHORIZATION, DATE, DATE_FORMAT, SCHEME, signature, v2_signature

from broker_service.access.users import User
from broker_service.errors import BadSignature, ClockSkew, NotAuthenticated, UnknownUser

MAX_AGE_S = 15 * 60
# a field that clients of version 4.9.3 and before add after they have signed the request
_ADDED_LATE = "_UNIQUE_KEY_QUERY"
_ADDED_LATE_BY = 399  # the version number in requests of RocketMQ 4.9.3

FindUser = Callable[[str], User | None]


class _Claim(NamedTuple):
    scheme: str
    username: str
    signature: str
    date: str


def v2_caller(headers: Mapping[str, str], find_user: FindUser) -> User:
    """Returns the user whose RocketMQ 5 client signed these headers; raises NotAuthenticated."""
    claim = _claim(headers)
    return _proved(claim, find_user, lambda user: v2_signature(user.password, claim.date))


def own_caller(headers: Mapping[str, str], method: str, now_s: float, find_user: FindUser) -> User:
    """Returns the user for whom a client of this project signed these headers; raises NotAuthenticated.

    Headers that a RocketMQ 5 client has signed are refused.
    """
    if not headers.get(AUTHORIZATION):
        raise NotAuthenticated(
            "username cannot be null: the call is not signed; give this client an access key and its secret key."
        )
    claim = _claim(headers)
    if claim.scheme != SCHEME:
        raise NotAuthenticated(f"authentication header is incorrect: {SCHEME} is expected on this port.")
    user = _proved(claim, find_user, lambda user: signature(user.password, method, claim.date))
    try:
        signed_at = _seconds_of(claim.date)
    except ValueError:
        raise NotAuthenticated(f"the date of the call is not of the form {DATE_FORMAT}.", user.username) from None
    if abs(late_s := now_s - signed_at) > MAX_AGE_S:
        raise ClockSkew(
            f"the call was signed {abs(late_s):.0f} s {'ago' if late_s > 0 else 'ahead'} by this server's clock; "
            f"at most {MAX_AGE_S} s are allowed: set the clocks.",
            user.username,
        )
    return user


def remoting_caller(header: Header, body: bytes, find_user: FindUser) -> User:
    """Returns the user who signed a request of RocketMQ's remoting protocol; raises NotAuthenticated."""
    fields = header.fields
    if header.version <= _ADDED_LATE_BY and _ADDED_LATE in fields:
        fields = {name: value for name, value in fields.items() if name != _ADDED_LATE}
    username = fields.get(acl.ACCESS_KEY, "")
    if not username:
        raise NotAuthenticated("username cannot be null.")
    given = fields.get(acl.SIGNATURE, "").encode(errors="replace")  # a JSON text can have half a surrogate pair

    def is_right(user: User) -> bool:
        return hmac.compare_digest(acl.signature(user.password, fields, body).encode(), given)

    return proved(username, find_user, is_right)


@lru_cache(maxsize=1024)
def _seconds_of(date: str) -> float:
    """Converts a date to seconds since 1970.  Results are cached, since all calls of a second have the same date."""
    return datetime.strptime(date, DATE_FORMAT).replace(tzinfo=UTC).timestamp()


def client_of_user(metadata: Iterable[tuple[str, str | bytes]], client_id: str) -> str:
    """Returns `user/client id`, where `user` has signed the call, so that clients of different users never have the
    same id.

    Without a signature the client id alone is returned, and "" if the client id is empty.
    """
    headers = {name: value for name, value in metadata if isinstance(value, str)}
    if AUTHORIZATION not in headers:
        return client_id
    try:
        user = _claim(headers).username
    except NotAuthenticated:
        return client_id
    return client_id and f"{user}/{client_id}"


def is_client_of_user(client_id: str, user: str) -> bool:
    """Returns True if `client_of_user` made this id for this user."""
    return client_id.startswith(f"{user}/")


def _claim(headers: Mapping[str, str]) -> _Claim:
    scheme, blank, rest = headers.get(AUTHORIZATION, "").partition(" ")
    if not scheme:
        raise NotAuthenticated("username cannot be null.")
    if not blank:
        raise NotAuthenticated("authentication header is incorrect.")
    fields: dict[str, str] = {}
    for part in rest.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals:
            raise NotAuthenticated("authentication header is incorrect.")
        fields[name] = value
    username = fields.get("Credential", "").partition("/")[0]  # the user name comes first, then a region and a service
    if not username:
        raise NotAuthenticated("username cannot be null.")
    if not headers.get(DATE):
        raise NotAuthenticated("datetime is null.")
    return _Claim(scheme, username, fields.get("Signature", ""), headers[DATE])


def _proved(claim: _Claim, find_user: FindUser, expected: Callable[[User], str]) -> User:
    given = claim.signature.lower().encode()
    return proved(claim.username, find_user, lambda user: hmac.compare_digest(expected(user).encode(), given))


def proved(username: str, find_user: FindUser, is_right: Callable[[User], bool]) -> User:
    """Returns the user with this name.

    Raises NotAuthenticated if there is no such user, if the call's signature is wrong, or if the user is disabled.
    """
    user = _found(username, find_user)
    if not is_right(user):
        raise _wrong(user)
    # checked after the signature, so that only somebody with the secret learns that the user is disabled
    return _enabled(user)


def current(user: User, find_user: FindUser) -> User:
    """Looks up the user of an open call again; raises NotAuthenticated if a new call would be refused."""
    now = _found(user.username, find_user)
    if now.password != user.password:
        raise _wrong(now)
    return _enabled(now)


def _found(username: str, find_user: FindUser) -> User:
    if (user := find_user(username)) is None:
        raise UnknownUser(f"User:{username[:127]} is not found.")
    return user


def _wrong(user: User) -> BadSignature:
    return BadSignature("check signature failed.", user.username)


def _enabled(user: User) -> User:
    if user.is_disabled:
        raise NotAuthenticated(f"User:{user.username} is disabled.", user.username)
    return user
