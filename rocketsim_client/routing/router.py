"""Asks brokers: it gets routes from the name servers, and asks the members of a broker name in RocketMQ's order (table
D5).  Thread-safe.  The first call opens connections.

If a broker cannot be reached, the next member is asked at once, and that broker is asked last for a while.  A route is
asked for again as soon as it proves wrong.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from rocketsim_client import forks
from rocketsim_client.addresses import Brokers
from rocketsim_client.connection import Connection
from rocketsim_client.errors import (
    BrokerNotExist,
    CallTimeout,
    MasterNotExist,
    NameServerUnavailable,
    NoRoute,
    RocketSimError,
    Unreachable,
)
from rocketsim_client.model import MASTER_ID, MessageQueue
from rocketsim_client.retry import Another, another_may_do_better, retry_rule_of, tells_more
from rocketsim_client.route import BrokerData, TopicRoute
from rocketsim_client.routing.members import Member, candidates
from rocketsim_client.routing.route_cache import RouteCache
from rocketsim_client.transport.opening import LazyTransport
from rocketsim_client.transport.transport import Transport
from rocketsim_client.transport.unreachable import UnreachableAddresses

T = TypeVar("T")

logger = logging.getLogger(__name__)

LIST_FOR_S = 1.0  # how long the list of all brokers is used


def no_answer(topic: str, broker_name: str, only_id: int | None, failure: RocketSimError | None) -> RocketSimError:
    """The error to raise if no member of the broker name has answered."""
    if failure is None:
        wanted = "" if only_id is None else f"broker id {only_id} of "
        return BrokerNotExist(f"the route of topic {topic!r} has no address for {wanted}broker {broker_name!r}")
    if retry_rule_of(failure).another is Another.OF_A_SLAVE:
        error = MasterNotExist(f"broker {broker_name!r} has no master now, and its slave may not know: {failure}")
        error.__cause__ = failure
        return error
    return failure


class Router:
    def __init__(
        self,
        connection: Connection,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connection = connection
        self.timeout_s = connection.timeout_s  # of each call to one server
        self._transport = LazyTransport(connection, transport)
        self._clock = clock
        self._routes = RouteCache(connection.poll_interval_s)
        self._unreachable = UnreachableAddresses()
        self._list: Mapping[str, Mapping[int, str]] | None = None
        self._listed_at = 0.0
        self._asking = threading.Lock()
        self._asked_aside: dict[str, threading.Thread] = {}  # by topic
        forks.watch(self)

    @property
    def transport(self) -> Transport:
        """The calls to the servers.  It is made at its first use, and opens a connection at the first call."""
        return self._transport.get()

    @property
    def protocol(self) -> str:
        """The protocol that the servers speak: `grpc` or `remoting`.  `auto`: no server has answered yet."""
        self._transport.get()
        return self._transport.connection.protocol

    @property
    def name_servers(self) -> list[str]:
        return list(self.connection.name_servers)

    @property
    def brokers(self) -> Brokers:
        """The addresses that were given instead of name servers."""
        return self.connection.members

    @property
    def first_address(self) -> str:
        """A server that this client talks to."""
        return self.connection.first_address

    def forget_parent(self) -> None:
        self._asking, self._unreachable = threading.Lock(), UnreachableAddresses()
        self._asked_aside = {}

    def close(self) -> None:
        """Ends all calls that are under way."""
        self._transport.close()
        for thread in list(self._asked_aside.values()):
            thread.join()

    # --- routes ---------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        return self.transport.routes.topic_list(self.timeout_s)

    def members(self) -> list[BrokerData]:
        """All brokers that the name server knows."""
        return self.transport.routes.cluster_list(self.timeout_s)

    def route(self, topic: str, *, fresh: bool = False) -> TopicRoute:
        """The topic's route.  A known route is used until it is older than the poll interval, and further if no name
        server answers.  `fresh`: always asks, and raises if no name server answers."""
        known = self._routes.get(topic)
        if known and not fresh and not self._routes.is_due(topic, self._clock()):
            return known
        if known and not fresh and self._asking.locked():
            return known  # another thread is asking
        with self._asking:
            again = self._routes.get(topic)
            if again is not known and again and not fresh:
                return again
            try:
                return self._ask_route(topic)
            except (NameServerUnavailable, NoRoute):
                if known is None or fresh:
                    raise
                self._routes.ask_failed(topic, self._clock())
                return known

    def route_within(self, wait_s: float, topic: str) -> TopicRoute:
        """Like `route`, but if a route is known, it waits for a newer one at most `wait_s`."""
        known = self._routes.get(topic)
        if known is None:
            return self.route(topic)
        if self._routes.is_due(topic, self._clock()):
            self._ask_aside(self.route, topic, wait_s)
        return self._routes.get(topic) or known

    def refresh_within(self, wait_s: float, topic: str, *, is_old: bool = False) -> TopicRoute | None:
        """`refresh_after_failure`, or with `is_old` `refresh_old_route`, but it waits at most `wait_s`, because a send
        may have less time left than a name server takes that does not answer."""
        self._ask_aside(self.refresh_old_route if is_old else self.refresh_after_failure, topic, wait_s)
        return self._routes.get(topic)

    def _ask_aside(self, ask: Callable[[str], object], topic: str, wait_s: float) -> None:
        """Runs `ask` in a thread of its own, one at a time for a topic.  Returns after `wait_s` at the latest."""

        def run() -> None:
            try:
                ask(topic)
            except RocketSimError as error:
                logger.info("the route of topic %r was not asked for again: %s", topic, error)

        thread = self._asked_aside.get(topic)
        if thread is None or not thread.is_alive():
            thread = threading.Thread(target=run, name=f"rocketsim-route-{topic}", daemon=True)
            try:
                thread.start()
            except (
                RuntimeError
            ):  # Python 3.12 starts no threads at its end, when producers that were not closed are closed
                run()
                return
            self._asked_aside[topic] = thread
        thread.join(max(wait_s, 0.0))

    def refresh_after_failure(self, topic: str) -> TopicRoute | None:
        """Asks for the route now, unless that was done a moment ago.  Never raises, because the old route is better
        than none."""
        if self._routes.may_refresh(topic, self._clock()):
            with self._asking:
                return self._refreshed(topic)
        return self._routes.get(topic)

    def refresh_old_route(self, topic: str) -> TopicRoute | None:
        """Like `refresh_after_failure`, but after an answer that shows that the route is old and cannot be used.  So if
        another thread is asking, it waits for that answer."""
        known = self._routes.get(topic)
        with self._asking:
            if self._routes.get(topic) is known and self._routes.may_refresh(topic, self._clock()):
                return self._refreshed(topic)
        return self._routes.get(topic)

    def _refreshed(self, topic: str) -> TopicRoute | None:
        try:
            return self._ask_route(topic)
        except (NameServerUnavailable, NoRoute):
            self._routes.refresh_failed(topic, self._clock())
            return self._routes.get(topic)

    def _ask_route(self, topic: str) -> TopicRoute:
        """Asks for the route.  The caller holds `_asking`."""
        route = self.transport.routes.topic_route(topic, self.timeout_s)
        known = self._routes.get(topic)
        if known is not None and known != route:
            logger.info("the route of topic %r has changed: %s", topic, route)
        self._routes.learned(topic, route, self._clock())
        return route

    def queues(self, topic: str, *, fresh: bool = False) -> list[MessageQueue]:
        """The queues that can be read."""
        return self.route(topic, fresh=fresh).readable_queues()

    def addresses(self, topic: str, broker_name: str) -> Mapping[int, str]:
        """The addresses of the broker name's members.  If the topic's route does not have the name (the topic was
        deleted there, or its brokers did not run a moment ago), the list of all brokers is asked.
        """
        try:
            found = self.route(topic).addresses(broker_name)
        except NoRoute:
            found = {}
        return found or self._listed().get(broker_name, {})

    def _listed(self) -> Mapping[str, Mapping[int, str]]:
        now = self._clock()
        if self._list is None or now - self._listed_at >= LIST_FOR_S:
            self._list = {data.broker_name: data.addresses for data in self.members()}
            self._listed_at = now
        return self._list

    # --- which broker to ask --------------------------------------------------------------------------------------

    @property
    def has_bad_addresses(self) -> bool:
        """A quick check: False if `bad_addresses` is empty."""
        return bool(self._unreachable)

    def bad_addresses(self) -> frozenset[str]:
        """The addresses that recently did not answer."""
        return self._unreachable.current(self._clock())

    def failed(self, address: str, error: RocketSimError) -> None:
        if self._unreachable.failed(address, self._clock(), silent=isinstance(error, CallTimeout)):
            logger.warning("%s is tried last for a while: %s", address, error)

    def answered(self, address: str) -> None:
        if self._unreachable.answered(address):
            logger.info("%s answers again", address)

    def next_member(
        self, topic: str, broker_name: str, broker_id: int, tried: Collection[str] = (), *, only_this: bool = False
    ) -> Member | None:
        """The member to ask next, in RocketMQ's order (table D5), without `tried` addresses; unreachable ones come
        last.  `only_this`: only the member with that id, or None.

        If that is not the master that was asked for, or a member has failed, the route is first asked for again,
        because it may have changed.
        """
        member = self._find(topic, broker_name, broker_id, tried, only_this)
        # Not for a suggested slave that is not in the route: suggestions may name ids that do not exist.
        if member is None or (member.broker_id != broker_id and (tried or broker_id == MASTER_ID)):
            self.refresh_after_failure(topic)
            member = self._find(topic, broker_name, broker_id, tried, only_this)
        return member

    def _find(
        self, topic: str, broker_name: str, broker_id: int, tried: Collection[str], only_this: bool
    ) -> Member | None:
        order = candidates(self.addresses(topic, broker_name), broker_id, self.bad_addresses())
        open_to_choice = (member for member in order if not only_this or member.broker_id == broker_id)
        return next((member for member in open_to_choice if member.address not in tried), None)

    def ask(
        self,
        topic: str,
        broker_name: str,
        call: Callable[[Member], T],
        *,
        broker_id: int = MASTER_ID,
        only_this: bool = False,
    ) -> T:
        """Makes the call to members, in the order of `next_member`, and returns the first answer."""
        return self.ask_until(topic, broker_name, call, lambda _: True, broker_id=broker_id, only_this=only_this)[-1]

    def ask_until(
        self,
        topic: str,
        broker_name: str,
        call: Callable[[Member], T],
        is_enough: Callable[[T], bool],
        *,
        broker_id: int = MASTER_ID,
        only_this: bool = False,
    ) -> list[T]:
        """Makes the call to members, in the order of `next_member`, until an answer is enough.  Returns all answers.
        Members that do not answer are left out; raises if none answers.

        After a slave has answered, a master that recently did not answer is not asked.
        """
        tried: list[str] = []
        answers: list[T] = []
        failure: RocketSimError | None = None
        while member := self.next_member(topic, broker_name, broker_id, tried, only_this=only_this):
            tried.append(member.address)
            if answers and not member.is_slave and member.address in self.bad_addresses():
                continue
            try:
                answer = call(member)
            except RocketSimError as error:
                if not answers and not another_may_do_better(error, member.broker_id):
                    raise
                failure = error if tells_more(error, failure) else failure
                if isinstance(error, Unreachable):
                    self.failed(member.address, error)
            else:
                self.answered(member.address)
                answers.append(answer)
                if is_enough(answer):
                    break
        if answers:
            return answers
        raise no_answer(topic, broker_name, broker_id if only_this else None, failure)

    def ask_name(self, broker_name: str, call: Callable[[str], T]) -> T:
        """Calls the master of a broker name, or another broker of that name if the master does not answer.  It asks the
        name server for them at each call, because operators want to see the present ones."""
        return self._ask_name(broker_name, call, all_slaves=False)[0]

    def ask_master_or_slaves(self, broker_name: str, call: Callable[[str], T]) -> list[T]:
        """Like `ask_name`, but if the master does not answer, it returns the answers of all slaves that do."""
        return self._ask_name(broker_name, call, all_slaves=True)

    def _ask_name(self, broker_name: str, call: Callable[[str], T], *, all_slaves: bool) -> list[T]:
        members = {data.broker_name: data.addresses for data in self.members()}
        answers: list[T] = []
        failure: RocketSimError | None = None
        for member in candidates(members.get(broker_name, {}), MASTER_ID):
            try:
                answers.append(call(member.address))
            except RocketSimError as error:
                if not isinstance(error, Unreachable) and not (all_slaves and member.is_slave):
                    raise
                failure = error
            else:
                if not (all_slaves and member.is_slave):
                    break
        if answers:
            return answers
        raise failure or BrokerNotExist(f"the name server knows no broker {broker_name!r}")
