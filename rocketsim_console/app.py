"""Serves the console's URLs: pages, their data as JSON, and live streams of that JSON."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rocketsim_client.admin import Admin
from rocketsim_client.errors import (
    AccessDenied,
    GroupNotExist,
    InvalidParameter,
    NotFound,
    RocketSimError,
    TopicNotExist,
)
from rocketsim_console import messages
from rocketsim_console.changes import Changes, no_actions, refused
from rocketsim_console.feeds import Feeds, TooManyViewers, trouble_of
from rocketsim_console.guard import Guard
from rocketsim_console.sessions import NoSession
from rocketsim_console.views import (
    KINDS,
    FailoversView,
    GroupsView,
    GroupView,
    Names,
    OverviewView,
    TopicsView,
    TopicView,
    View,
)
from rocketsim_console.watch import Watch

STATIC = Path(__file__).parent / "static"
PAGES = ("/", "/topics", "/topics/{name:path}", "/groups", "/groups/{name:path}", "/messages", "/failovers")
THREADS = 8  # threads that call the cluster
LOOK_S = 1.0  # the time between two rounds of calls to all brokers
IDLE_LOOK_S = 5.0  # the time between rounds of calls while nobody has a page open

T = TypeVar("T")


class Console:
    """The console of one cluster, for all its viewers.  `admin` is the console's own connection to the cluster."""

    def __init__(self, admin: Admin, *, hosts: Collection[str] = (), changes: Changes | None = None) -> None:
        """`hosts` are further host names that browsers may use.  Without `changes` the console only reads."""
        self.watch = Watch(admin)
        self._changes = changes
        self._admin = admin
        self._names = Names(admin)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="console")
        self._feeds = Feeds(self._threads)
        self.app = Starlette(
            routes=[
                *(Route(path, _shell) for path in PAGES),
                Route("/api/history", self._history),
                Route("/api/messages", self._find),
                Route("/api/message", self._message),
                Route("/api/body", self._body),
                *(changes.routes() if changes is not None else [Route("/api/actions", no_actions)]),
                Route("/api/{view}", self._once),
                Route("/live/{view}", self._live),
                Mount("/static", StaticFiles(directory=STATIC)),
            ],
            middleware=[Middleware(Guard, names=hosts)],
            exception_handlers={RocketSimError: _refused, TooManyViewers: _too_many, NoSession: refused},
            lifespan=self._running,
        )

    @contextlib.asynccontextmanager
    async def _running(self, app: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            looking.cancel()
            if self._changes is not None:
                self._changes.sessions.close()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def end_streams(self) -> None:
        """Ends the live streams of all viewers.  Must be called in the event loop that serves the app."""
        self._feeds.end()

    async def _look(self) -> None:
        while True:
            await self._in_thread(self.watch.look)
            await asyncio.sleep(LOOK_S if self._feeds.viewers else IDLE_LOOK_S)

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    # --- views ----------------------------------------------------------------------------------------------------

    def _view(self, request: Request) -> tuple[str, Callable[[], View]]:
        """Returns a key and a function that makes the view.  Requests for the same view have equal keys."""
        asked = request.query_params
        name, text = request.path_params["view"], asked.get("q", "")[:200]
        page = int(number) if (number := asked.get("page", "1")).isascii() and number.isdecimal() else 1
        kind = asked.get("kind", KINDS[0])
        if kind not in KINDS:
            raise InvalidParameter(f"kind {kind[:40]!r} is not one of {', '.join(KINDS)}")
        wanted = asked.get("name", "")[:500]
        makers: dict[str, tuple[tuple[object, ...], Callable[[], View]]] = {
            "overview": ((), lambda: OverviewView(self.watch)),
            "failovers": ((), lambda: FailoversView(self.watch)),
            "topics": ((text, page, kind), lambda: TopicsView(self._admin, self._names, text, page, kind)),
            "topic": ((wanted,), lambda: TopicView(self._admin, wanted)),
            "groups": ((text, page), lambda: GroupsView(self._admin, self._names, text, page)),
            "group": ((wanted,), lambda: GroupView(self._admin, wanted)),
        }
        if name not in makers:
            raise NotFound(f"view {name[:40]!r} does not exist")
        asked_for, make = makers[name]
        return repr((name, *asked_for)), make

    async def _once(self, request: Request) -> Response:
        _, make = self._view(request)
        return JSONResponse(await self._in_thread(make().ask))

    async def _live(self, request: Request) -> Response:
        key, make = self._view(request)
        self._feeds.check_room(key)
        return StreamingResponse(self._feeds.follow(key, make), media_type="text/event-stream")

    async def _history(self, request: Request) -> Response:
        return JSONResponse(self.watch.history())

    # --- messages -------------------------------------------------------------------------------------------------

    async def _find(self, request: Request) -> Response:
        wanted = [request.query_params.get(name, "") for name in ("topic", "by", "value", "queue")]
        return JSONResponse(await self._in_thread(messages.find, self._admin, *wanted))

    async def _message(self, request: Request) -> Response:
        message = await self._in_thread(messages.one, self._admin, *_place(request))
        return JSONResponse(messages.shown(message))

    async def _body(self, request: Request) -> Response:
        """Returns the body as a download, so that the browser does not show it as a page."""
        message = await self._in_thread(messages.one, self._admin, *_place(request))
        name = f"body-{message.queue_id}-{message.queue_offset}.bin"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(message.body, media_type="application/octet-stream", headers=headers)


def _place(request: Request) -> list[str]:
    return [request.query_params.get(name, "") for name in ("topic", "broker", "queue", "offset")]


async def _shell(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RocketSimError)
    return JSONResponse(trouble_of(error), status_of(error))


async def _too_many(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "TooManyViewers", "message": str(error)}, 503)


def status_of(error: RocketSimError) -> int:
    """Returns the HTTP status for an error of the client."""
    if isinstance(error, AccessDenied):
        return 403
    if isinstance(error, NotFound | TopicNotExist | GroupNotExist):
        return 404
    return 400 if isinstance(error, InvalidParameter) else 502
