"""The routes that were learned, and when each has to be asked again.  Pure: `now` is an argument."""

from dataclasses import dataclass, field

from rocketsim_client.route import TopicRoute


@dataclass(slots=True)
class _Known:
    route: TopicRoute
    asked_at: float


@dataclass(slots=True)
class RouteCache:
    """What was learned, and whether to ask again: every `poll_interval_s`, and after a failure, but not more than once
    in `retry_interval_s` a topic."""

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
        """After a failure: yes, and remembered; no, if that was asked a moment ago."""
        last = self._refreshed_at.get(topic)
        if last is not None and now - last < self.retry_interval_s:
            return False
        self._refreshed_at[topic] = now
        return True

    def refresh_failed(self, topic: str, now: float) -> None:
        """No name server answered, or none knows the topic: not asked again for a while, since each question may cost a
        timeout."""
        self._refreshed_at[topic] = now + self.failed_interval_s - self.retry_interval_s

    def learned(self, topic: str, route: TopicRoute, now: float) -> None:
        self._routes[topic] = _Known(route, now)

    def ask_failed(self, topic: str, now: float) -> None:
        """Keep the old route, as RocketMQ does; ask again at the next poll."""
        if known := self._routes.get(topic):
            known.asked_at = now
