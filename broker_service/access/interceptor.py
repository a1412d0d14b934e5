"""AccessInterceptor asks the gate before every call of a server, for all services.

The user is determined before gRPC receives the request, which is possible because a signature covers headers only.  A
request that nobody has signed is therefore neither kept in memory nor decompressed nor parsed.

Some calls need no signature.  `unsigned.py` limits how many unsigned requests are received at once.

Streams and long polls stay open for a long time.  A stream or long poll is checked again when its user or the user's
policies are changed, and ends if it would no longer be admitted.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol, TypeAlias

import grpc

from broker_service.access.gate import Gate
from broker_service.access.refusals import Refusals
from broker_service.access.rights import Caller, Need, Right
from broker_service.access.unsigned import UnsignedRequests
from broker_service.access.users import User
from broker_service.errors import AccessDenied, InvalidParameter, SystemBusy
from broker_service.runtime import rpc_errors

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Parse = Callable[[Any], Any]
Check = Callable[[User, str, Right, str, Any], None]
Count = Callable[[str, AccessDenied, Context], None]


class ClientProtocol(Protocol):
    """The way in which a call is refused in a protocol that other projects' clients speak.

    The module `wire/v2/rights.py` implements this class for RocketMQ 5's clients.
    """

    def refusal(self, method: str, error: AccessDenied, parse: Callable[[], Any]) -> Any:
        """Makes the answer to a refused call.  `parse` returns the call's request."""

    def repeats(self, method: str) -> bool:
        """Returns True if the answer to a refused call of this method repeats a part of the request."""

    def is_free(self, method: str, headers: Any) -> bool:
        """Returns True if anybody may make this call."""


class _ParsedCall:
    """The context of a call whose requests arrive as bytes and are parsed here, not by gRPC.

    A handler gets the requests either by iterating over this context or by calling `read`, but not in both ways.
    """

    __slots__ = ("_context", "parse")

    def __init__(self, parse: Parse, context: Context) -> None:
        self.parse = parse
        self._context = context

    async def read(self) -> Any:
        """Returns the next request, or EOF after the last one."""
        raw = await self._context.read()
        return raw if raw is grpc.aio.EOF else self.parse(raw)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        request = await self.read()
        if request is grpc.aio.EOF:
            raise StopAsyncIteration
        return request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class _UnsignedCall(_ParsedCall):
    """The context of a call that anybody may make."""

    __slots__ = ("_unsigned",)

    def __init__(self, parse: Parse, context: Context, unsigned: UnsignedRequests) -> None:
        super().__init__(parse, context)
        self._unsigned = unsigned

    async def read(self) -> Any:
        raw = await self._unsigned.receive(self._context)
        return raw if raw is grpc.aio.EOF else self.parse(raw)


class OpenCall(_ParsedCall):
    """The context of a call that stays open, or that checks more rights in its handler.

    `request` has the bytes of the last request that needed rights.  The function `check` raises AccessDenied if the
    user may no longer make the call.
    """

    __slots__ = (
        *("_check", "_count", "_has_begun", "is_writing", "method", "peer_name", "refused"),
        *("request", "right", "task", "user"),
    )

    def __init__(
        self,
        user: User,
        method: str,
        right: Right,
        parse: Parse,
        request: Any,
        context: Context,
        check: Check,
        count: Count,
    ) -> None:
        super().__init__(parse, context)
        self.user = user
        self.method = method
        self.right = right
        self.request = request
        self._check = check
        self._count = count
        self.peer_name = context.peer()
        self.task = asyncio.current_task()
        self.refused: AccessDenied | None = None
        self.is_writing = False  # stays True after a cancelled write, since gRPC continues that write
        self._has_begun = False

    async def read(self) -> Any:
        """Returns the next request, or EOF after the last one; raises AccessDenied if the request is not allowed."""
        raw = await self._context.read()
        if raw is grpc.aio.EOF:
            return raw
        request = self.parse(raw)
        needs = self.right.needs
        if needs is not None:
            self._check(self.user, self.method, self.right, self.peer_name, request)
            if any(True for _ in needs(request)):
                self.request = raw
        return request

    def may(self, need: Need) -> bool:
        """Returns True if the user has this right now, even if no request of the call has needed it."""
        try:
            self._check_now(need)
        except AccessDenied:
            return False
        return True

    def require(self, need: Need) -> None:
        """Raises AccessDenied, and counts the refusal, unless the user has this right now."""
        try:
            self._check_now(need)
        except AccessDenied as error:
            self._count(self.method, error, self._context)
            raise

    def _check_now(self, need: Need) -> None:
        self._check(self.user, self.method, Right(Caller.USER, lambda _: (need,)), self.peer_name, need)

    async def write(self, message: Any) -> None:
        self.is_writing = True
        if self._has_begun:
            await self._context.write(message)
        else:
            self._has_begun = True
            await rpc_errors.write_first(self._context, message)
        self.is_writing = False


def may(context: Any, need: Need) -> bool:
    """Returns True if the user of an open call has this right now.  Without access control, returns True.

    `context` is the context that the call's handler got.
    """
    return not isinstance(context, OpenCall) or context.may(need)


def require(context: Any, need: Need) -> None:
    """Raises AccessDenied unless the user of a call has this right.  Without access control, does nothing.

    `context` is the context that the call's handler got.  The right of the call must have `finds`.
    """
    if isinstance(context, OpenCall):
        context.require(need)


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """The interceptor of one port.

    A refused call ends with UNAUTHENTICATED, or in the way that the clients' `protocol` requires.
    """

    def __init__(
        self,
        gate: Gate,
        refusals: Refusals,
        unsigned: UnsignedRequests,
        protocol: ClientProtocol | None = None,
    ) -> None:
        self._gate = gate
        self._refusals = refusals
        self._unsigned = unsigned
        self._protocol = protocol
        self._open: dict[str, set[OpenCall]] = {}  # user name -> the open calls of that user

    def check_again(self, username: str) -> None:
        """Ends those open calls of a user that would no longer be admitted.

        Called when the user or the user's policies have changed.
        """
        for call in self._open.get(username, ()):
            if call.refused is not None or call.task is None:
                continue
            try:
                request = None if call.request is None else call.parse(call.request)
                call.user = self._gate.current(call.user)
                self._gate.check(call.user, call.method, call.right, call.peer_name, request)
            except AccessDenied as error:
                call.refused = error
                call.task.cancel()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "Awaitable[Handler | None]"],
        details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        handler = await continuation(details)
        method = str(details.method)
        if handler is None:  # gRPC answers UNIMPLEMENTED
            return None
        try:
            right = self._gate.right_of(method)
            user = None if right.caller is Caller.ANYBODY else self._caller(method, details.invocation_metadata)
        except AccessDenied as error:
            return self._refusing(method, handler, error)
        if user is None:
            return self._unguarded(handler)
        return self._guard(user, method, right, handler)

    def _guard(self, user: User, method: str, right: Right, handler: Handler) -> Handler:
        """Wraps a handler so that its requests are checked.

        The wrapper has no deserializer, because it must check that the user still exists before it parses a request.
        """
        serializer = handler.response_serializer
        parse: Parse = handler.request_deserializer or _as_it_is
        if handler.request_streaming and handler.response_streaming:
            if right.needs is None:  # the messages of the stream need no check
                guarded = self._guard_streams(user, method, right, handler.stream_stream, _as_it_is)
                return grpc.stream_stream_rpc_method_handler(guarded, handler.request_deserializer, serializer)
            guarded = self._guard_streams(user, method, right, handler.stream_stream, parse)
            return grpc.stream_stream_rpc_method_handler(guarded, None, serializer)
        if handler.response_streaming:
            guarded = self._guard_answer_stream(user, method, right, handler.unary_stream, parse)
            return grpc.unary_stream_rpc_method_handler(guarded, None, serializer)
        if handler.request_streaming:
            return self._refusing(method, handler, AccessDenied(f"access control cannot check the call {method}"))
        guarded = self._guard_unary(user, method, right, handler.unary_unary, parse)
        return grpc.unary_unary_rpc_method_handler(guarded, None, serializer)

    def _caller(self, method: str, metadata: Any) -> User | None:
        """Returns the user of the call, or None if anybody may make it; raises NotAuthenticated."""
        headers = list(metadata or ())
        if self._protocol is not None and self._protocol.is_free(method, headers):
            return None
        return self._gate.caller(method, headers)

    def _admit(
        self, user: User, method: str, right: Right, context: Context, raw: Any, parse: Parse
    ) -> tuple[User, Any]:
        """Returns the current state of the user, and the parsed request; raises AccessDenied if the request is not
        allowed.

        The user is looked up again, because the request may have arrived long after the headers.
        """
        user = self._gate.current(user)
        request = parse(raw)
        self._gate.check(user, method, right, context.peer(), request)
        return user, request

    def _count(self, method: str, error: AccessDenied, context: Context) -> None:
        address = self._gate.address(context.peer())
        for line in self._refusals.refused(error, method, address, self._gate.now_s):
            logger.warning("%s", line)

    async def _refuse(self, method: str, error: AccessDenied, context: Context, parse: Callable[[], Any]) -> Any:
        self._count(method, error, context)
        if self._protocol is None:
            await rpc_errors.abort(context, error)
        return self._protocol.refusal(method, error, parse)

    async def _refuse_stream(self, method: str, error: AccessDenied, context: Any) -> None:
        answer = await self._refuse(method, error, context, lambda: None)
        if getattr(context, "is_writing", False):
            await rpc_errors.abort(context, error)  # no message can be written while another write is unfinished
        await context.write(answer)

    async def _while_allowed(self, call: OpenCall, work: Awaitable[Any]) -> Any:
        """Runs an open call; raises AccessDenied when `check_again` refuses it."""
        username = call.user.username
        self._open.setdefault(username, set()).add(call)
        try:
            return await work
        except asyncio.CancelledError:
            assert call.task is not None
            # `uncancel` returns more than 0 if the client has cancelled the call, too.
            if call.refused is None or call.task.uncancel():
                raise
            raise call.refused from None
        finally:
            calls = self._open[username]
            calls.discard(call)
            if not calls:
                del self._open[username]

    def _guard_unary(self, user: User, method: str, right: Right, call: Any, parse: Parse) -> Any:
        async def guarded(raw: Any, context: Context) -> Any:
            try:
                now, request = self._admit(user, method, right, context, raw, parse)
                if not (right.waits or right.finds):
                    return await call(request, context)
                opened = self._opened(now, method, right, parse, raw, context)
                return await self._while_allowed(opened, call(request, opened))
            except AccessDenied as error:
                return await self._refuse(method, error, context, lambda: parse(raw))

        return guarded

    def _guard_answer_stream(self, user: User, method: str, right: Right, call: Any, parse: Parse) -> Any:
        async def guarded(raw: Any, context: Any) -> None:
            try:
                now, request = self._admit(user, method, right, context, raw, parse)
                context = self._opened(now, method, right, parse, raw, context)
                await self._while_allowed(context, _answered(call(request, context), context))
            except AccessDenied as error:
                await self._refuse_stream(method, error, context)

        return guarded

    def _guard_streams(self, user: User, method: str, right: Right, call: Any, parse: Parse) -> Any:
        async def guarded(_: AsyncIterator[Any], context: Any) -> None:
            try:
                now = self._gate.current(user)
                self._gate.check(now, method, right, context.peer())
                context = self._opened(now, method, right, parse, None, context)
                await self._while_allowed(context, call(context, context))
            except AccessDenied as error:
                await self._refuse_stream(method, error, context)

        return guarded

    def _opened(self, user: User, method: str, right: Right, parse: Parse, request: Any, context: Context) -> OpenCall:
        return OpenCall(user, method, right, parse, request, context, self._gate.check, self._count)

    # The following handlers are all stream handlers, also for calls with one request.  gRPC receives a stream
    # handler's request only when the handler asks for it, but receives any other handler's request before it calls
    # the handler.  On the wire a call with one message is the same as a stream with one message.

    def _unguarded(self, handler: Handler) -> Handler:
        parse: Parse = handler.request_deserializer or _as_it_is
        call: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

        async def received(_: AsyncIterator[Any], context: Any) -> None:
            context = request = _UnsignedCall(parse, context, self._unsigned)
            try:
                if not handler.request_streaming and (request := await context.read()) is grpc.aio.EOF:
                    await rpc_errors.abort(context, InvalidParameter("the call has no request"))
                if handler.response_streaming:
                    await _answered(call(request, context), context)
                else:
                    await context.write(await call(request, context))
            except SystemBusy as error:
                await rpc_errors.abort(context, error)

        return grpc.stream_stream_rpc_method_handler(received, None, handler.response_serializer)

    def _refusing(self, method: str, handler: Handler, error: AccessDenied) -> Handler:
        """Makes the handler that answers a refused call."""
        parse: Parse = handler.request_deserializer or _as_it_is

        async def refuse(_: AsyncIterator[Any], context: Any) -> None:
            request = b""
            if self._protocol is not None and self._protocol.repeats(method):
                try:
                    received = await self._unsigned.receive(context)
                except SystemBusy as busy:
                    await rpc_errors.abort(context, busy)
                request = b"" if received is grpc.aio.EOF else received
            answer = await self._refuse(method, error, context, lambda: parse(request))
            await context.write(answer)

        return grpc.stream_stream_rpc_method_handler(refuse, None, handler.response_serializer)


def _as_it_is(request: Any) -> Any:
    return request


async def _answered(call: Any, context: Any) -> None:
    """Runs a handler that either yields its answers or writes them itself."""
    if not hasattr(call, "__aiter__"):
        await call
        return
    async with aclosing(call) as answers:
        async for answer in answers:
            await context.write(answer)
