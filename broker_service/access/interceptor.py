"""AccessInterceptor: asks the gate before every call of a server, whichever service has it."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from broker_service import rpc_errors
from broker_service.access.gate import Gate
from broker_service.access.model import User
from broker_service.access.rights import Caller, Right
from broker_service.errors import AccessDenied

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Answer = Callable[[str, AccessDenied, Any], Any]


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """A refused call ends with UNAUTHENTICATED, or with the message that `answer` makes for its method.

    `is_free` says of a method and its headers whether it may be called by anybody.
    """

    def __init__(
        self, gate: Gate, answer: Answer | None = None, is_free: Callable[[str, Any], bool] | None = None
    ) -> None:
        self._gate = gate
        self._answer = answer
        self._is_free = is_free
        self._guarded: dict[str, tuple[Handler, Handler]] = {}  # by method: what was found, and what is called

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "Awaitable[Handler | None]"],
        details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        handler = await continuation(details)
        method = str(details.method)
        if handler is None:  # gRPC says UNIMPLEMENTED
            return None
        try:
            right = self._gate.right_of(method)
        except AccessDenied as error:
            return _refusing(handler, error)
        if right.caller is Caller.ANYBODY:
            return handler
        known = self._guarded.get(method)
        if known is None or known[0] is not handler:
            known = self._guarded[method] = handler, self._guard(method, right, handler)
        return known[1]

    def _guard(self, method: str, right: Right, handler: Handler) -> Handler:
        ways = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._of_streams(method, right, handler.stream_stream), **ways)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._of_answers(method, right, handler.unary_stream), **ways)
        if handler.request_streaming:
            return _refusing(handler, AccessDenied(f"access control cannot check the call {method}"))
        return grpc.unary_unary_rpc_method_handler(self._of_one(method, right, handler.unary_unary), **ways)

    def _admit(self, method: str, right: Right, context: Context, request: Any = None) -> User | None:
        """None: anybody.  Raises AccessDenied."""
        headers = list(context.invocation_metadata() or ())
        if self._is_free is not None and self._is_free(method, headers):
            return None
        user = self._gate.caller(method, headers)
        self._gate.check(user, method, right, context.peer(), request)
        return user

    async def _refuse(self, method: str, error: AccessDenied, context: Context, request: Any = None) -> Any:
        if self._answer is None:
            await rpc_errors.abort(context, error)
        return self._answer(method, error, request)

    def _of_one(self, method: str, right: Right, call: Any) -> Any:
        async def guarded(request: Any, context: Context) -> Any:
            try:
                self._admit(method, right, context, request)
            except AccessDenied as error:
                return await self._refuse(method, error, context, request)
            return await call(request, context)

        return guarded

    def _of_answers(self, method: str, right: Right, call: Any) -> Any:
        async def yielding(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                self._admit(method, right, context, request)
            except AccessDenied as error:
                yield await self._refuse(method, error, context)
                return
            async for answer in call(request, context):
                yield answer

        async def writing(request: Any, context: Context) -> None:
            try:
                self._admit(method, right, context, request)
            except AccessDenied as error:
                await context.write(await self._refuse(method, error, context))
                return
            await call(request, context)

        return yielding if inspect.isasyncgenfunction(call) else writing

    def _of_streams(self, method: str, right: Right, call: Any) -> Any:
        async def guarded(requests: AsyncIterator[Any], context: Context) -> None:
            try:
                user = self._admit(method, right, context)
                if user is not None and right.needs is not None:
                    requests = self._checked(requests, user, method, right, context)
                await call(requests, context)
            except AccessDenied as error:
                await context.write(await self._refuse(method, error, context))

        return guarded

    async def _checked(
        self, requests: AsyncIterator[Any], user: User, method: str, right: Right, context: Context
    ) -> AsyncIterator[Any]:
        async for request in requests:
            self._gate.check(user, method, right, context.peer(), request)
            yield request


def _refusing(handler: Handler, error: AccessDenied) -> Handler:
    """In place of a handler that cannot be guarded."""

    async def refuse(_: Any, context: Context) -> None:
        await rpc_errors.abort(context, error)

    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(refuse)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(refuse)
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)
