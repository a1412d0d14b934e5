"""Keeps the known routes, and decides when to ask for a route again.  Pure: the caller passes the time."""

from dataclasses import dataclass, field

from rocketsim_client.route import TopicRoute


@dataclass(slots=True)
class _Known:
    route: TopicRoute
    asked_at: float


@dataclass(slots=True)
class RouteCache:
    """The known routes.  A topic's route is asked for again every `poll_interval_s`.  After a failure the route is
    asked for earlier, but at most once in `retry_interval_s`."""

    poll_interval_s: float = 30.0
    retry_interval_s: float = 0.2
    failed_interval_s: float = 3.0
    _routes: dict[str, _Known] = field(default_factory=dict)
    _refreshed_at: dict[str, float] = field(default_factory=dict)

    def get(self, topic: str) -> TopicRoute | None:
        known = self._routes.get(topic)
        return known.route if known else None

    def is_due(self, topic: str, now: float) -> bool:
        known = self._routes.get(topic)
        return known is None or now - known.asked_at >= self.poll_interval_s

    def may_refresh(self, topic: str, now: float) -> bool:
        """Returns True, and notes the time, if the route may be asked for again after a failure.  Returns False if the
        route was asked for a moment ago."""
        last = self._refreshed_at.get(topic)
        if last is not None and now - last < self.retry_interval_s:
            return False
        self._refreshed_at[topic] = now
        return True

    def refresh_failed(self, topic: str, now: float) -> None:
        """Notes that no name server answered, or that none knows the topic.  The route is not asked for again for
        `failed_interval_s`, because each call may cost a timeout."""
        self._refreshed_at[topic] = now + self.failed_interval_s - self.retry_interval_s

    def learned(self, topic: str, route: TopicRoute, now: float) -> None:
        self._routes[topic] = _Known(route, now)

    def ask_failed(self, topic: str, now: float) -> None:
        """Keeps the old route until the next poll, as RocketMQ does."""
        if known := self._routes.get(topic):
            known.asked_at = now
