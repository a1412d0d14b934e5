"""Collects the data of the pages.  Each view asks the cluster only for what its page shows."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from rocketsim_proto.reserved import DLQ_PREFIX, INTERNAL_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS

from rocketsim_client.admin import Admin
from rocketsim_client.admin_model import ConsumeProgress, SubscriptionGroupConfig, TopicConfig
from rocketsim_client.at_once import at_once
from rocketsim_client.errors import GroupNotExist, NoRoute, RocketSimError, TopicNotExist
from rocketsim_client.model import MessageQueue, QueueBounds
from rocketsim_console.rates import Rates
from rocketsim_console.watch import Watch

PAGE = 25  # topics or groups on a page, each of which needs a call to every broker name
MAX_ROWS = 500  # the most queues on a page
NAMES_S = 5.0  # how long a list of names is kept
CONFIG_S = 30.0  # how long settings are kept, which is long because a broker sends those of all its topics at once

KINDS = ("users", "retry", "dead letters", "system", "all")


class View(Protocol):
    """The data of one page, for all its viewers.  `ask` is called every `every_s` seconds, by one thread at a time."""

    every_s: float

    def ask(self) -> dict[str, Any]: ...


class Names:
    """The names of topics and groups, which all pages share.  Any thread may call its methods."""

    def __init__(self, admin: Admin, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, list[str]]] = {}

    def topics(self) -> list[str]:
        return self._fresh("topics", self._admin.topic_list)

    def groups(self) -> list[str]:
        return self._fresh("groups", lambda: sorted(groups_of(self._admin)))

    def _fresh(self, what: str, ask: Callable[[], list[str]]) -> list[str]:
        with self._lock:
            asked_s, names = self._kept.get(what, (-NAMES_S, []))
            now_s = self._clock()
            if now_s - asked_s >= NAMES_S:
                names = sorted(ask())
                self._kept[what] = now_s, names
            return names


def groups_of(admin: Admin) -> dict[str, SubscriptionGroupConfig]:
    """Returns all groups, with the settings of the first broker name that has the group."""
    names = sorted({member.broker_name for member in admin.cluster_list()})

    def of_name(name: str) -> list[SubscriptionGroupConfig]:
        return admin.cluster.ask_name(name, admin.sub_groups)

    answers, refusals = at_once(names, of_name)
    if refusals and not answers:
        raise next(iter(refusals.values()))
    found: dict[str, SubscriptionGroupConfig] = {}
    for groups in answers.values():
        for group in groups:
            found.setdefault(group.group_name, group)
    return found


def kind_of(topic: str) -> str:
    """Returns the topic's kind: one of KINDS, but never `all`."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DLQ_PREFIX):
        return "dead letters"
    return "system" if topic in SYSTEM_TOPICS or topic.startswith(INTERNAL_PREFIX) else "users"


def page_of(names: list[str], text: str, page: int) -> tuple[list[str], dict[str, int]]:
    """Returns one page of the names that contain the text, and the numbers of the page and of all pages."""
    found = [name for name in names if text.lower() in name.lower()] if text else names
    pages = max(1, -(-len(found) // PAGE))
    page = min(max(page, 1), pages)
    return found[(page - 1) * PAGE : page * PAGE], {"page": page, "pages": pages, "total": len(found)}


class OverviewView:
    """Shows the newest picture of `Watch`, without a call to a broker."""

    every_s = 1.0

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def ask(self) -> dict[str, Any]:
        return self._watch.overview()


class FailoversView:
    """Shows the events that `Watch` has seen, and the brokers' epochs and cuts, without a call to a broker."""

    every_s = 1.0

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def ask(self) -> dict[str, Any]:
        return {**self._watch.timeline(), "epochs": self._watch.epochs(), "cuts": self._watch.cuts()}


class TopicsView:
    every_s = 3.0

    def __init__(self, admin: Admin, names: Names, text: str, page: int, kind: str) -> None:
        self._admin = admin
        self._names = names
        self._text, self._page, self._kind = text, page, kind
        self._rates: Rates[str] = Rates()

    def ask(self) -> dict[str, Any]:
        names = [topic for topic in self._names.topics() if self._kind in ("all", kind_of(topic))]
        shown, place = page_of(names, self._text, self._page)
        answers, refusals = at_once(shown, self._admin.cluster.bounds)
        ends = {topic: sum(one.max_offset for one in bounds.values()) for topic, bounds in answers.items()}
        rates = self._rates.per_second(time.monotonic(), ends)
        return {
            **place,
            "rows": [
                _topic_row(topic, answers[topic], rates[topic])
                if topic in answers
                else {"topic": topic, "kind": kind_of(topic), "trouble": str(refusals[topic])}
                for topic in shown
            ],
        }


def _topic_row(topic: str, bounds: dict[MessageQueue, QueueBounds], rate: float | None) -> dict[str, Any]:
    return {
        "topic": topic,
        "kind": kind_of(topic),
        "queues": len(bounds),
        "brokers": len({queue.broker_name for queue in bounds}),
        "messages": sum(one.max_offset - one.min_offset for one in bounds.values()),
        "bytes": sum(one.size_bytes for one in bounds.values()),
        "rate": rate,
        "last_ms": max((one.last_store_timestamp for one in bounds.values()), default=0),
    }


class TopicView:
    every_s = 2.0

    def __init__(self, admin: Admin, topic: str) -> None:
        self._admin = admin
        self._topic = topic
        self._rates: Rates[MessageQueue] = Rates()
        self._configs: tuple[float, list[dict[str, Any]]] = (-CONFIG_S, [])

    def ask(self) -> dict[str, Any]:
        route = self._admin.topic_route(self._topic)
        bounds = self._admin.cluster.bounds(self._topic)
        rates = self._rates.per_second(time.monotonic(), {queue: one.max_offset for queue, one in bounds.items()})
        rows = [
            {
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "min": one.min_offset,
                "max": one.max_offset,
                "bytes": one.size_bytes,
                "last_ms": one.last_store_timestamp,
                "rate": rates[queue],
                "readable": one.readable,
                "writable": one.writable,
                "served_by": one.broker_id,
            }
            for queue, one in sorted(bounds.items())
        ]
        return {
            "topic": self._topic,
            "kind": kind_of(self._topic),
            "routes": [{**asdict(data), "master": route.addresses(data.broker_name).get(0)} for data in route.queues],
            "settings": self._settings(),
            "queues": rows[:MAX_ROWS],
            "queues_total": len(rows),
            "groups": self._groups(),
        }

    def _settings(self) -> list[dict[str, Any]]:
        asked_s, settings = self._configs
        if time.monotonic() - asked_s >= CONFIG_S:
            answers, _ = at_once(self._admin.masters(), self._config_at)
            settings = [
                {"at": at, **asdict(config), "commit_status": None}
                for at, config in answers.items()
                if config is not None
            ]
            self._configs = time.monotonic(), settings
        return settings

    def _config_at(self, address: str) -> TopicConfig | None:
        configs = self._admin.topic_configs(address)
        return next((config for config in configs if config.topic_name == self._topic), None)

    def _groups(self) -> list[dict[str, Any]]:
        groups: dict[str, list[ConsumeProgress]] = defaultdict(list)
        for place in self._admin.consumer_progress(topic=self._topic):
            groups[place.group].append(place)
        rows = [{"group": group, **_lag(places)} for group, places in sorted(groups.items())]
        return rows[:MAX_ROWS]


class GroupsView:
    every_s = 5.0

    def __init__(self, admin: Admin, names: Names, text: str, page: int) -> None:
        self._admin = admin
        self._names = names
        self._text, self._page = text, page
        self._rates: Rates[str] = Rates()

    def ask(self) -> dict[str, Any]:
        shown, place = page_of(self._names.groups(), self._text, self._page)
        answers, refusals = at_once(shown, self._admin.consumer_progress)
        consumed = {group: sum(max(0, one.consumer_offset) for one in places) for group, places in answers.items()}
        rates = self._rates.per_second(time.monotonic(), consumed)
        return {
            **place,
            "rows": [
                {"group": group, **_lag(answers[group]), "rate": rates[group]}
                if group in answers
                else {"group": group, "trouble": str(refusals[group])}
                for group in shown
            ],
        }


def _lag(places: list[ConsumeProgress]) -> dict[str, Any]:
    """Adds up the lag of several queues.  For each queue with a lag, the time since its last consumed message was
    stored is computed; `age_ms` is the longest of these times.  `age_ms` is None if no queue with a lag has a consumed
    message.
    """
    late = [place.last_timestamp for place in places if place.diff > 0 and place.last_timestamp > 0]
    return {
        "topics": sorted({place.queue.topic for place in places}),
        "queues": len(places),
        "lag": sum(place.diff for place in places),
        "age_ms": time.time_ns() // 1_000_000 - min(late) if late else None,
    }


class GroupView:
    every_s = 2.0

    def __init__(self, admin: Admin, group: str) -> None:
        self._admin = admin
        self._group = group
        self._rates: Rates[MessageQueue] = Rates()
        self._config: tuple[float, SubscriptionGroupConfig | None] = (-CONFIG_S, None)

    def ask(self) -> dict[str, Any]:
        config = self._settings()
        places = self._admin.consumer_progress(self._group)
        if config is None and not places:
            raise GroupNotExist(f"no broker has consumer group {self._group!r}")
        rates = self._rates.per_second(
            time.monotonic(), {place.queue: max(0, place.consumer_offset) for place in places}
        )
        now_ms = time.time_ns() // 1_000_000
        rows = [
            {
                "topic": place.queue.topic,
                "broker": place.queue.broker_name,
                "queue": place.queue.queue_id,
                "end": place.broker_offset,
                "committed": place.consumer_offset,
                "lag": place.diff,
                "age_ms": now_ms - place.last_timestamp if place.diff > 0 and place.last_timestamp > 0 else None,
                "rate": rates[place.queue],
                "told_by": place.broker_id,
                "resets": place.generation,
            }
            for place in sorted(places, key=lambda place: place.queue)
        ]
        topics: dict[str, list[ConsumeProgress]] = defaultdict(list)
        for place in places:
            topics[place.queue.topic].append(place)
        return {
            "group": self._group,
            "settings": {**asdict(config), "commit_status": None} if config is not None else None,
            **_lag(places),
            "rows": rows[:MAX_ROWS],
            "rows_total": len(rows),
            "by_topic": [
                {"topic": topic, "kind": kind_of(topic), **_lag(of_topic)} for topic, of_topic in sorted(topics.items())
            ],
            "dead_letters": self._dead_letters(),
            "clients": self._clients(),
        }

    def _settings(self) -> SubscriptionGroupConfig | None:
        asked_s, config = self._config
        if time.monotonic() - asked_s >= CONFIG_S:
            config = groups_of(self._admin).get(self._group)
            self._config = time.monotonic(), config
        return config

    def _clients(self) -> dict[str, Any]:
        """Returns the clients that have consumed with the group lately, or why no broker has named them."""
        try:
            clients = self._admin.consumer_connection(self._group)
        except RocketSimError as error:
            return {"rows": [], "total": 0, "trouble": str(error)}
        return {"rows": [asdict(one) for one in clients[:MAX_ROWS]], "total": len(clients), "trouble": ""}

    def _dead_letters(self) -> dict[str, Any] | None:
        """Returns the number of dead letters, or `trouble`, the reason why no broker has answered.  Returns None if the
        group has no dead letters.
        """
        topic = f"{DLQ_PREFIX}{self._group}"
        try:
            bounds = self._admin.cluster.bounds(topic)
        except (NoRoute, TopicNotExist):
            return None
        except RocketSimError as error:
            return {"topic": topic, "trouble": str(error)}
        return {"topic": topic, "messages": sum(one.max_offset - one.min_offset for one in bounds.values())}
