"""Asks the name servers for the routes of topics, and keeps the answers.

A route is asked for again when it is old, and as soon as it proves wrong.
"""

import logging
import threading
from collections.abc import Callable, Mapping

from rocketsim_client import forks
from rocketsim_client.errors import NameServerUnavailable, NoRoute, RocketSimError
from rocketsim_client.route import TopicRoute
from rocketsim_client.routing.route_cache import RouteCache
from rocketsim_client.transport.opening import LazyTransport

logger = logging.getLogger(__name__)

LIST_FOR_S = 1.0  # the list of all brokers is asked for again after this time


class Routes:
    """The routes of one client.  The first call opens connections.  Thread-safe."""

    def __init__(
        self, transport: LazyTransport, poll_interval_s: float, timeout_s: float, clock: Callable[[], float]
    ) -> None:
        """`timeout_s` is the limit of each call to a name server."""
        self._transport = transport
        self._timeout_s = timeout_s
        self._clock = clock
        self._known = RouteCache(poll_interval_s)
        self._list: Mapping[str, Mapping[int, str]] | None = None
        self._listed_at = 0.0
        self._asking = threading.Lock()
        self._asked_aside: dict[str, threading.Thread] = {}  # topic -> the thread that asks for its route
        forks.watch(self)

    def forget_parent(self) -> None:
        self._asking, self._asked_aside = threading.Lock(), {}

    def close(self) -> None:
        """Waits for the threads that ask for routes.  The caller has to close the transport first, so that the threads'
        calls end."""
        for thread in list(self._asked_aside.values()):
            thread.join()

    def route(self, topic: str, *, fresh: bool = False) -> TopicRoute:
        """Returns the topic's route.  A known route is used until it is older than the poll interval, and also later if
        no name server answers.  With `fresh` the name servers are always asked, and NameServerUnavailable is raised if
        none answers."""
        known = self._known.get(topic)
        if known and not fresh and not self._known.is_due(topic, self._clock()):
            return known
        if known and not fresh and self._asking.locked():
            return known  # another thread is asking
        with self._asking:
            again = self._known.get(topic)
            if again is not known and again and not fresh:
                return again
            try:
                return self._ask_route(topic)
            except (NameServerUnavailable, NoRoute):
                if known is None or fresh:
                    raise
                self._known.ask_failed(topic, self._clock())
                return known

    def route_within(self, wait_s: float, topic: str) -> TopicRoute:
        """Returns the topic's route.  If an old route is known, waits at most `wait_s` for a newer one."""
        known = self._known.get(topic)
        if known is None:
            return self.route(topic)
        if self._known.is_due(topic, self._clock()):
            self._ask_aside(self.route, topic, wait_s)
        return self._known.get(topic) or known

    def refresh_within(self, wait_s: float, topic: str, *, is_old: bool = False) -> TopicRoute | None:
        """Asks for the topic's route like `refresh_old_route` if `is_old`, otherwise like `refresh_after_failure`, but
        waits at most `wait_s`.  A name server may not answer, so sends that have little time left pass a short
        `wait_s`."""
        self._ask_aside(self.refresh_old_route if is_old else self.refresh_after_failure, topic, wait_s)
        return self._known.get(topic)

    def _ask_aside(self, ask: Callable[[str], object], topic: str, wait_s: float) -> None:
        """Runs `ask` in a thread of its own, and returns after `wait_s` at the latest.  At most one thread at a time
        asks for the route of a topic."""

        def run() -> None:
            try:
                ask(topic)
            except RocketSimError as error:
                logger.info("could not refresh the route of topic %r: %s", topic, error)

        thread = self._asked_aside.get(topic)
        if thread is None or not thread.is_alive():
            thread = threading.Thread(target=run, name=f"rocketsim-route-{topic}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # Python 3.12 starts no thread while the interpreter shuts down, and producers that the program did not
                # close are closed only then.
                run()
                return
            self._asked_aside[topic] = thread
        thread.join(max(wait_s, 0.0))

    def refresh_after_failure(self, topic: str) -> TopicRoute | None:
        """Asks for the route now, unless it was asked for a moment ago.  Never raises an error, because an old route is
        better than no route."""
        if self._known.may_refresh(topic, self._clock()):
            with self._asking:
                return self._refreshed(topic)
        return self._known.get(topic)

    def refresh_old_route(self, topic: str) -> TopicRoute | None:
        """Asks for the route after an answer which has shown that the known route is old.  If another thread is asking
        already, waits for that thread's answer, because the old route cannot be used.  Never raises."""
        known = self._known.get(topic)
        with self._asking:
            if self._known.get(topic) is known and self._known.may_refresh(topic, self._clock()):
                return self._refreshed(topic)
        return self._known.get(topic)

    def _refreshed(self, topic: str) -> TopicRoute | None:
        try:
            return self._ask_route(topic)
        except (NameServerUnavailable, NoRoute):
            self._known.refresh_failed(topic, self._clock())
            return self._known.get(topic)

    def _ask_route(self, topic: str) -> TopicRoute:
        """Asks for the route.  The caller holds `_asking`."""
        transport, left_s = self._transport.within(self._timeout_s, in_turn=True)
        route = transport.routes.topic_route(topic, left_s)
        known = self._known.get(topic)
        if known is not None and known != route:
            logger.info("the route of topic %r has changed: %s", topic, route)
        self._known.learned(topic, route, self._clock())
        return route

    def addresses(self, topic: str, broker_name: str) -> Mapping[int, str]:
        """Returns the addresses of the broker name's members by broker id.  If the topic's route lacks the broker name,
        uses the name servers' list of all brokers.  A route lacks a broker name, for example, if the brokers of this
        name were down a moment ago, or if the topic was deleted there."""
        try:
            found = self.route(topic).addresses(broker_name)
        except NoRoute:
            found = {}
        return found or self._listed().get(broker_name, {})

    def _listed(self) -> Mapping[str, Mapping[int, str]]:
        now = self._clock()
        if self._list is None or now - self._listed_at >= LIST_FOR_S:
            transport, left_s = self._transport.within(self._timeout_s, in_turn=True)
            members = transport.routes.cluster_list(left_s)
            self._list = {data.broker_name: data.addresses for data in members}
            self._listed_at = now
        return self._list
