"""Serves the requests of pages that change something: list the actions, run an action, and sign in with a user's own
keys.

A page of another site cannot send these requests: the browser sends the session's cookie only from the console's own
pages, the request's Origin must be the console, and the request must have the session's token in a header.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rocketsim_client.admin import Admin
from rocketsim_client.errors import InvalidParameter, NotFound
from rocketsim_console.actions import Action
from rocketsim_console.sessions import NoSession, Session, Sessions

TOKEN = "X-RocketSim-Token"
MAX_BODY = 64 << 10


class Changes:
    """The web API for changes.  `actions` are what users may do.  `connect(access_key, secret_key)` opens a user's
    connection to the cluster, which signs its calls unless both keys are empty.
    """

    def __init__(self, actions: Sequence[Action], connect: Callable[[str, str], Admin]) -> None:
        self._action_by_name = {action.name: action for action in actions}
        self.sessions = Sessions(connect)

    def routes(self) -> list[Route]:
        return [
            Route("/api/actions", self._list),
            Route("/api/actions/{name}", self._run, methods=["POST"]),
            Route("/api/keys", self._keys, methods=["POST"]),
        ]

    async def _list(self, request: Request) -> Response:
        session = self.sessions.find(_cookie(request)) or self.sessions.open()
        actions = [action.as_json() for action in self._action_by_name.values()]
        return _with_session(request, session, {"actions": actions})

    async def _run(self, request: Request) -> Response:
        session, values = await self._checked(request)
        action = self._action_by_name.get(request.path_params["name"])
        if action is None:
            raise NotFound(f"action {request.path_params['name'][:40]!r} does not exist")
        done = await asyncio.to_thread(action.run, session.admin, values)
        return JSONResponse({"done": done})

    async def _keys(self, request: Request) -> Response:
        """Opens a session for the keys of a user, or one without keys if both are empty."""
        session, values = await self._checked(request)
        access_key, secret_key = values.get("access_key", ""), values.get("secret_key", "")
        if bool(access_key) != bool(secret_key):
            raise InvalidParameter("give both the access key and the secret key")
        return _with_session(request, self.sessions.open(access_key, secret_key, instead_of=session), {})

    async def _checked(self, request: Request) -> tuple[Session, dict[str, str]]:
        """Returns the session of the request and its JSON body, an object of texts."""
        origin = request.headers.get("origin", "")
        if origin != f"{request.url.scheme}://{request.headers.get('host', '')}":
            raise NoSession(f"a page of {origin[:100] or 'an unknown site'} may not change anything here")
        session = self.sessions.check(_cookie(request), request.headers.get(TOKEN, ""))
        try:
            values = json.loads(await _body(request))
        except ValueError:
            values = None
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise InvalidParameter("the request's body is not a JSON object of texts")
        return session, values


async def no_actions(request: Request) -> Response:
    """Answers for a console that only reads."""
    return JSONResponse({"actions": [], "token": "", "user": ""})


async def refused(request: Request, error: Exception) -> Response:
    """Answers a request that raised NoSession."""
    return JSONResponse({"error": "NoSession", "message": str(error)}, 403)


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise InvalidParameter(f"the request's body has more than {MAX_BODY} bytes")
    return body


def _cookie_name(request: Request) -> str:
    """Returns the cookie's name, which has the console's port, because all ports of a host share their cookies."""
    return f"rocketsim-console-{request.url.port or request.url.scheme}"


def _cookie(request: Request) -> str:
    return request.cookies.get(_cookie_name(request), "")


def _with_session(request: Request, session: Session, value: dict[str, Any]) -> Response:
    answer = JSONResponse({**value, "token": session.token, "user": session.user})
    secure = request.url.scheme == "https"
    answer.set_cookie(_cookie_name(request), session.id, httponly=True, samesite="strict", secure=secure)
    return answer
