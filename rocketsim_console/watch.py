"""Asks all brokers for their state, for all viewers together, and keeps the answers of the last minutes."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from rocketsim_client.admin import Admin
from rocketsim_client.admin_model import HaStatus
from rocketsim_client.at_once import at_once
from rocketsim_client.errors import AccessDenied, RocketSimError
from rocketsim_console.picture import COUNTERS, Broker, Pair, Picture, members_of, slave_of
from rocketsim_console.rates import Rates
from rocketsim_console.timeline import Event, cuts_of, epoch_words, epochs_of, events_between

POINTS = 900  # the most points of a chart: a quarter of an hour, with one point a second
EVENTS = 500
FORGET_MS = 3_600_000  # a broker is shown until it has been away for an hour


@dataclass(frozen=True, slots=True)
class Point:
    """The values of the charts at one moment, by broker address: messages per second in and out, and bytes that a slave
    is behind its master.
    """

    at_ms: int
    rates: dict[str, dict[str, float | None]]
    behind: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        return {"t": self.at_ms, **self.rates, "behind": self.behind}


class Watch:
    """Keeps the state of the brokers that `look` has found, for a few minutes.  Only one thread at a time may call
    `look`, while any thread may call the other methods.

    `now_ms` returns the time of day, for events and charts.  `clock` returns seconds, for the time between two calls of
    `look`.
    """

    def __init__(
        self,
        admin: Admin,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = admin
        self._now_ms = now_ms
        self._clock = clock
        self._rates: dict[str, Rates[str]] = {name: Rates() for name in COUNTERS}
        self._answered_ms: dict[str, int] = {}
        self.picture = Picture(now_ms())
        self.points: deque[Point] = deque(maxlen=POINTS)
        self.events: deque[Event] = deque(maxlen=EVENTS)

    def look(self) -> None:
        """Asks the name server and all brokers for their state.  Errors become part of the picture."""
        before, trouble = self.picture, ""
        try:
            registered = self._admin.cluster_list()
        except RocketSimError as error:
            trouble = f"{error}. Brokers that were known before are still asked and shown."
            brokers = [replace(broker, ha=None, status={}, trouble="") for broker in before.brokers]
        else:
            brokers = members_of(registered, before)
        answers, refusals = at_once([broker.address for broker in brokers], self._ask)
        if not trouble and (denied := [one for one in refusals.values() if isinstance(one, AccessDenied)]):
            trouble = f"A broker refuses the console's access keys: {str(denied[0]).rstrip(' .')}."
        at_ms = self._now_ms()
        self._answered_ms |= dict.fromkeys(answers, at_ms)
        earlier = before.by_address()
        asked = [_with_answer(broker, earlier.get(broker.address), answers, refusals) for broker in brokers]
        kept = tuple(
            broker
            for broker in asked
            if broker.state != "away" or at_ms - self._answered_ms.get(broker.address, at_ms) < FORGET_MS
        )
        picture = Picture(at_ms, kept, trouble)
        self.points.append(self._point(picture))
        self.events.extend(events_between(before, picture))
        self.picture = picture

    def _ask(self, address: str) -> tuple[HaStatus, dict[str, str]]:
        (ha,) = self._admin.ha_status(broker_addr=address)
        return ha, self._admin.broker_status(broker_addr=address)[address]

    def _point(self, picture: Picture) -> Point:
        now_s = self._clock()
        rates = {}
        for name, of_name in self._rates.items():
            counters = {
                broker.address: value for broker in picture.brokers if (value := broker.counter(name)) is not None
            }
            rates[name] = of_name.per_second(now_s, counters)
        behind = {}
        for pair in picture.pairs():
            for broker in pair.brokers:
                if (slave := slave_of(pair.master, broker)) is not None:
                    behind[broker.address] = slave.diff_bytes
        return Point(picture.at_ms, rates, behind)

    def overview(self) -> dict[str, Any]:
        """Returns the newest picture, with the newest rates."""
        picture = self.picture
        point = self.points[-1] if self.points else Point(picture.at_ms, {}, {})
        return {
            "at_ms": picture.at_ms,
            "trouble": picture.trouble,
            "pairs": [_pair_json(pair, point) for pair in picture.pairs()],
            "point": point.as_json(),
            "events": [asdict(event) for event in list(self.events)[-8:]],
        }

    def history(self) -> dict[str, Any]:
        """Returns all points of the charts, and the events of the same time."""
        return {"points": [point.as_json() for point in list(self.points)], **self.timeline()}

    def epochs(self) -> list[dict[str, Any]]:
        """Returns the epochs of all broker names, including those from before the console was started."""
        return [row for pair in self.picture.pairs() for row in epochs_of(pair)]

    def cuts(self) -> list[dict[str, Any]]:
        """Returns what brokers have cut off their logs and kept, also before the console was started."""
        return cuts_of(self.picture)

    def timeline(self) -> dict[str, Any]:
        """Returns all events that the console has seen, the oldest first."""
        return {"at_ms": self.picture.at_ms, "events": [asdict(event) for event in list(self.events)]}


def _with_answer(
    broker: Broker,
    earlier: Broker | None,
    answers: dict[str, tuple[HaStatus, dict[str, str]]],
    refusals: dict[str, RocketSimError],
) -> Broker:
    if broker.address in answers:
        ha, status = answers[broker.address]
        return replace(broker, ha=ha, status=status, cuts=ha.cuts)
    cuts = earlier.cuts if earlier is not None else None
    return replace(broker, trouble=str(refusals[broker.address]), cuts=cuts)


def _pair_json(pair: Pair, point: Point) -> dict[str, Any]:
    master = pair.master
    return {
        "name": pair.name,
        "cluster": pair.brokers[0].cluster,
        "level": pair.level,
        "summary": pair.summary,
        "master": master.address if master is not None else None,
        "epoch": epoch_words(max(broker.epoch for broker in pair.brokers)),
        "brokers": [_broker_json(broker, master, point) for broker in pair.brokers],
    }


def _broker_json(broker: Broker, master: Broker | None, point: Point) -> dict[str, Any]:
    slave = slave_of(master, broker)
    disk = broker.status.get("commitLogDiskRatio")
    return {
        "address": broker.address,
        "broker_id": broker.broker_id,
        "state": broker.state,
        "role": broker.status.get("brokerRole", ""),
        "writable": broker.writable,
        "why_not": broker.status.get("notWritable", ""),
        "epoch": broker.epoch,
        "in_sync": slave.in_sync if slave is not None else None,
        "behind": slave.diff_bytes if slave is not None else None,
        "log_end": broker.ha.commit_log_max_offset if broker.ha is not None else None,
        "disk": float(disk) if disk else None,
        "in": point.rates.get("in", {}).get(broker.address),
        "out": point.rates.get("out", {}).get(broker.address),
        "line": broker.ha.state if broker.ha is not None else "",
        "trouble": broker.trouble,
    }
