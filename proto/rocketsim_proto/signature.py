"""Who makes a call: two headers of it, with a signature that only the owner of a secret key can make.

RocketMQ 5's clients sign the date alone, with HMAC-SHA1.  Clients of this project, and brokers among themselves, sign
the method and the date with HMAC-SHA256, so that headers that somebody has read on the way serve for no other call.
"""

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

AUTHORIZATION = "authorization"
DATE = "x-mq-date-time"
SCHEME = "ROCKETSIM-HMAC-SHA256"
DATE_FORMAT = "%Y%m%dT%H%M%SZ"  # UTC


@dataclass(frozen=True, slots=True)
class Credentials:
    """The secret key is in no representation of them."""

    access_key: str
    secret_key: str = field(repr=False)


def signature(secret_key: str, method: str, date: str) -> str:
    """Of a call of `method`, `/package.Service/Method`: 64 hex digits."""
    return hmac.new(secret_key.encode(), f"{method}\n{date}".encode(), hashlib.sha256).hexdigest()


def v2_signature(secret_key: str, date: str) -> str:
    """As RocketMQ 5's clients make it: 40 hex digits."""
    return hmac.new(secret_key.encode(), date.encode(), hashlib.sha1).hexdigest()


def signed_headers(credentials: Credentials, method: str, now_s: float) -> tuple[tuple[str, str], tuple[str, str]]:
    """The headers of a call that is made at `now_s`, in seconds since 1970."""
    date = datetime.fromtimestamp(now_s, UTC).strftime(DATE_FORMAT)
    signed = signature(credentials.secret_key, method, date)
    return (
        (AUTHORIZATION, f"{SCHEME} Credential={credentials.access_key}, SignedHeaders={DATE}, Signature={signed}"),
        (DATE, date),
    )


class _SignedCall:
    """What a stub has for one method."""

    def __init__(self, call: Any, headers: Callable[[], Any]) -> None:
        self._call = call
        self._headers = headers

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._call(*arguments, metadata=self._headers(), **options)

    def future(self, *arguments: Any, **options: Any) -> Any:
        """Of a blocking channel's unary call."""
        return self._call.future(*arguments, metadata=self._headers(), **options)


class SigningChannel:
    """A channel of gRPC, blocking or asynchronous, whose calls are signed when they are made."""

    def __init__(self, channel: Any, credentials: Credentials, now: Callable[[], float] = time.time) -> None:
        self._channel = channel
        self._credentials = credentials
        self._now = now
        self.close = channel.close

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self._signing(method, self._channel.unary_unary(method, *arguments, **options))

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self._signing(method, self._channel.unary_stream(method, *arguments, **options))

    def stream_unary(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self._signing(method, self._channel.stream_unary(method, *arguments, **options))

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self._signing(method, self._channel.stream_stream(method, *arguments, **options))

    def _signing(self, method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return _SignedCall(call, lambda: signed_headers(self._credentials, method, self._now()))

    async def __aenter__(self) -> "SigningChannel":
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._channel.__aexit__(*error)
