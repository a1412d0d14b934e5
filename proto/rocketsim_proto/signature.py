"""Signs calls with two headers.  One header names the user and has a signature that only the owner of the secret key
can make, and the other header has the date.

RocketMQ 5's clients sign only the date, with HMAC-SHA1.  This project's clients and brokers sign the method and the
date with HMAC-SHA256, so that somebody who has seen the headers of a call cannot use them for another method.
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
    """An access key and its secret key.  The secret key does not appear in `repr`."""

    access_key: str
    secret_key: str = field(repr=False)


def signature(secret_key: str, method: str, date: str) -> str:
    """Signs a call of `method` (`/package.Service/Method`) and returns the signature, 64 hex digits."""
    return hmac.new(secret_key.encode(), f"{method}\n{date}".encode(), hashlib.sha256).hexdigest()


def v2_signature(secret_key: str, date: str) -> str:
    """Returns the signature of RocketMQ 5's clients, 40 hex digits."""
    return hmac.new(secret_key.encode(), date.encode(), hashlib.sha1).hexdigest()


def signed_headers(credentials: Credentials, method: str, now_s: float) -> tuple[tuple[str, str], tuple[str, str]]:
    """Makes the headers of a call that is made at `now_s`, in seconds since 1970."""
    date = datetime.fromtimestamp(now_s, UTC).strftime(DATE_FORMAT)
    signed = signature(credentials.secret_key, method, date)
    return (
        (AUTHORIZATION, f"{SCHEME} Credential={credentials.access_key}, SignedHeaders={DATE}, Signature={signed}"),
        (DATE, date),
    )


class _SignedCall:
    """A method of a stub that signs each call."""

    def __init__(self, call: Any, headers: Callable[[], Any]) -> None:
        self._call = call
        self._headers = headers

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._call(*arguments, metadata=self._headers(), **options)

    def future(self, *arguments: Any, **options: Any) -> Any:
        """Starts a signed unary call on a blocking channel, and returns its future."""
        return self._call.future(*arguments, metadata=self._headers(), **options)


class SigningChannel:
    """A gRPC channel, blocking or asynchronous, that signs each call when it is made."""

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
