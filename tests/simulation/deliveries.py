"""Consumers of groups whose deliveries the broker keeps, in the simulated world: what each was given and what it has
acknowledged, held against what anybody is given later."""

import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketsim_proto import (
    admin_pb2,
    admin_pb2_grpc,
    broker_pb2,
    broker_pb2_grpc,
    consumption_pb2,
    consumption_pb2_grpc,
    metadata_pb2,
)
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record

from broker_service.consumption.retries import DLQ_PREFIX, PROPERTY_SOURCE, RETRY_PREFIX, dlq_topic
from tests.simulation import deaths
from tests.simulation.promises import PromiseBroken
from tests.support.brokers import message

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.world import World

TOPIC, QUEUES = "N", 2
ANY_ORDER, IN_ORDER, MORTAL = "any", "in-order", "mortal"
GROUPS = ANY_ORDER, IN_ORDER, MORTAL
MORTAL_ATTEMPTS = 2
MESSAGE_GROUPS = "a", "b", "c"
CLOCK_S = 0.002  # brokers count milliseconds
OK = broker_pb2.SendResponse.PUT_OK


class Term(NamedTuple):
    """Of a master.  In it nothing is lost of what it has done, whatever its disk and its slave have of it."""

    broker_id: int
    epoch: int
    power_losses: int


class Place(NamedTuple):
    message_group: str
    queue_id: int
    queue_offset: int


@dataclass(eq=False)
class Delivery:
    """Exclusive from some moment in `began` to `received` until `until` or later; times of the simulation."""

    group: str
    body: bytes
    handle: str
    term: Term
    began: float
    received: float
    until: float
    attempt: int
    is_given_up: bool = False  # its client has asked for an earlier end, or for an ack


class Deliveries:
    """Of a SYNC_MASTER with SYNC_FLUSH, whose final answers nothing takes back that is done here."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._stored: set[bytes] = set()  # with OK
        self._places: dict[bytes, Place] = {}  # of what was stored or delivered
        self._given: dict[tuple[str, bytes], list[Delivery]] = defaultdict(list)  # by group and body
        self._kept: list[Delivery] = []  # to be acknowledged, changed or forgotten later
        self._acks: Counter[tuple[str, bytes]] = Counter()  # that were asked for, without those that are not valid
        self._settled: dict[tuple[str, bytes], float] = {}  # since when an ack is final
        self._dead: Counter[bytes] = Counter()  # dead letters, in the end
        self._broken: PromiseBroken | None = None

    # --- clients --------------------------------------------------------------------------------------------------

    def make_groups(self, broker: "Broker") -> None:
        """Only of one of them messages become dead letters."""
        for name in GROUPS:
            group = metadata_pb2.SubscriptionGroupConfig(
                group_name=name,
                consume_message_orderly=name == IN_ORDER,
                retry_max_times=MORTAL_ATTEMPTS - 1 if name == MORTAL else 10_000,
            )
            request = admin_pb2.UpdateSubGroupRequest(group=group)

            async def work(stub: Any, request: Any = request) -> None:
                await stub.UpdateSubGroup(request, timeout=5.0)

            self._spawn(broker, admin_pb2_grpc.AdminStub, work)

    def act(self, broker: "Broker", chance: random.Random) -> None:
        self.raise_what_is_broken()
        act = chance.choice((self._send, self._send, self._pop, self._pop, self._pop, self._ack, self._change))
        act(broker, chance)

    def _spawn(self, broker: "Broker", stub: Any, work: Any) -> None:
        self._world.clients._spawn(broker, stub, work)

    def _send(self, broker: "Broker", chance: random.Random) -> None:
        clients, queue, key = self._world.clients, chance.randrange(QUEUES), chance.choice(MESSAGE_GROUPS)
        bodies = []
        for _ in range(chance.choice((1, 2, 5))):
            bodies.append(b"%d.0 kept" % len(clients.sent_at))
            clients.sent_at.append(self._world.loop.now)
        clients.bodies.update(bodies)
        records = b"".join(message(TOPIC, body, queue, UNIQ_KEY=body.decode(), __SHARDINGKEY=key) for body in bodies)
        request = broker_pb2.SendRequest(
            topic=TOPIC, records=records, count=len(bodies), crc32=zlib.crc32(records), broker_name="broker-a"
        )

        async def work(stub: Any) -> None:
            response = await stub.Send(request, timeout=5.0)
            if response.status == OK:
                (at,) = response.queues
                for number, body in enumerate(bodies):
                    self._stored.add(body)
                    self._places[body] = Place(key, at.queue_id, at.first_queue_offset + number)

        self._spawn(broker, broker_pb2_grpc.BrokerStub, work)

    def _pop(self, broker: "Broker", chance: random.Random) -> None:
        most, invisible_ms = chance.choice((1, 2, 8)), chance.choice((300, 3000, 20_000))
        self.pop(broker, chance.choice(GROUPS), most, invisible_ms, chance.choice((0, 500)))

    def pop(self, broker: "Broker", group: str, most: int, invisible_ms: int, poll_ms: int = 0) -> None:
        request = consumption_pb2.PopRequest(
            consumer_group=group,
            topic=TOPIC,
            broker_name="broker-a",
            client_id="client",
            max_messages=most,
            invisible_ms=invisible_ms,
            poll_ms=poll_ms,
        )
        began, term = self._world.loop.now, self._term(broker)

        async def work(stub: Any) -> None:
            response = await stub.Pop(request, timeout=5.0)
            now, is_same = self._world.loop.now, self._term(broker) == term
            records = list(_records(response.records))
            for one in records:
                if one.topic == TOPIC:  # no copy for a retry
                    self._places[one.body] = Place(one.properties["__SHARDINGKEY"], one.queue_id, one.queue_offset)
            given = [
                Delivery(
                    group=group,
                    body=one.body,
                    handle=told.receipt_handle,
                    term=term,
                    began=began,
                    received=now,
                    until=began + max(0.0, told.left_ms / 1000 - CLOCK_S) if is_same else began,
                    attempt=told.attempt,
                )
                for one, told in zip(records, response.deliveries, strict=True)
            ]
            try:
                self._check(group, given)
            except PromiseBroken as broken:
                self._broken = self._broken or broken

        self._spawn(broker, consumption_pb2_grpc.ConsumptionStub, work)

    def _ack(self, broker: "Broker", chance: random.Random) -> None:
        for delivery in self._some(chance):
            self.ack(broker, delivery)

    def ack(self, broker: "Broker", delivery: Delivery) -> None:
        request = consumption_pb2.AckRequest(
            consumer_group=delivery.group, topic=TOPIC, broker_name="broker-a", receipt_handles=[delivery.handle]
        )
        key = delivery.group, delivery.body
        self._acks[key] += 1
        delivery.is_given_up = True
        is_safe = deaths.has_slave_in_sync(broker)

        async def work(stub: Any) -> None:
            response = await stub.Ack(request, timeout=5.0)
            if response.valid == [False]:
                self._acks[key] -= 1
            elif not response.again and is_safe and deaths.has_slave_in_sync(broker):
                self._settled.setdefault(key, self._world.loop.now)

        self._spawn(broker, consumption_pb2_grpc.ConsumptionStub, work)

    def _change(self, broker: "Broker", chance: random.Random) -> None:
        for delivery in self._some(chance):
            delivery.is_given_up = True
            entry = consumption_pb2.ChangeInvisibleRequest.Entry(
                receipt_handle=delivery.handle, invisible_ms=chance.choice((0, 500)), uncounted=chance.random() < 0.5
            )
            request = consumption_pb2.ChangeInvisibleRequest(
                consumer_group=delivery.group, topic=TOPIC, broker_name="broker-a", entries=[entry]
            )

            async def work(stub: Any, request: Any = request) -> None:
                await stub.ChangeInvisible(request, timeout=5.0)

            self._spawn(broker, consumption_pb2_grpc.ConsumptionStub, work)

    def _some(self, chance: random.Random) -> Iterator[Delivery]:
        """Deliveries whose consumer has decided now; some it forgets."""
        for _ in range(min(len(self._kept), chance.choice((1, 4, 16)))):
            delivery = self._kept.pop(chance.randrange(len(self._kept)))
            if chance.random() < 0.8:
                yield delivery

    def _term(self, broker: "Broker") -> Term:
        losses = sum(count for (how, *_), count in self._world.deaths.items() if how == "power")
        return Term(broker.broker_id, broker.role_epoch(), losses + self._world.evictions)

    # --- promises -------------------------------------------------------------------------------------------------

    def raise_what_is_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _check(self, group: str, given: list[Delivery]) -> None:
        together = {one.body for one in given}
        for one in given:
            key = group, one.body
            if self._is_settled(key, one.began):
                if not self._waited_behind_another(key):
                    self._break(f"{one.body!r} is delivered to group {group} again, and was acknowledged")
                del self._settled[key]  # it needs another ack
            if group == MORTAL and one.attempt > MORTAL_ATTEMPTS:
                self._break(f"{one.body!r} is delivered to group {group} for the {one.attempt}th time")
            for other in self._given[key]:
                if _overlap(one, other):
                    self._break(f"{one.body!r} is with two consumers of group {group} at once: {other} and {one}")
            if group == IN_ORDER and (earlier := self._earlier(one.body) - together):
                self._break(f"{one.body!r} is delivered in order, and nobody has acknowledged {sorted(earlier)[:3]}")
            self._given[key].append(one)
        if group == IN_ORDER:
            self._is_sorted(given)
        self._kept += given

    def _break(self, what: str) -> None:
        if not any(self._world.promoted.values()):  # by force, to heal
            raise PromiseBroken(what)

    def _is_settled(self, key: tuple[str, bytes], at: float) -> bool:
        return key in self._settled and self._settled[key] < at

    def _waited_behind_another(self, key: tuple[str, bytes]) -> bool:
        """In order, what is acknowledged comes again if a message before it is not at that time, as in RocketMQ."""
        group, body = key
        earlier = self._before(body) if group == IN_ORDER else ()
        return not all(self._is_settled((group, other), self._settled[key]) for other in earlier)

    def _earlier(self, body: bytes) -> set[bytes]:
        """What was stored before it, and no client has asked to end."""
        return {other for other in self._before(body) if other in self._stored and not self._acks[IN_ORDER, other]}

    def _before(self, body: bytes) -> Iterator[bytes]:
        """What is before it in its queue and message group."""
        if (place := self._places.get(body)) is not None:
            for other, at in self._places.items():
                if at[:2] == place[:2] and at.queue_offset < place.queue_offset:
                    yield other

    def _is_sorted(self, given: list[Delivery]) -> None:
        last: dict[tuple[str, int], int] = {}
        for one in given:
            key, queue, offset = self._places[one.body]
            if offset <= last.get((key, queue), -1):
                self._break(f"{one.body!r} comes behind a later one of its message group")
            last[key, queue] = offset

    def left(self, group: str) -> set[bytes]:
        """What was stored and nobody has acknowledged; an ack without an answer may have done it."""
        return {body for body in self._stored if not self._acks[group, body] > 0} - (
            self._dead.keys() if group == MORTAL else set()
        )

    def drain(self, broker: "Broker") -> None:
        """Consumers that acknowledge all that they are given, until there is nothing any more."""
        for _ in range(100):
            self.raise_what_is_broken()
            given = sum(map(len, self._given.values()))
            for group in GROUPS:
                self.pop(broker, group, 32, 20_000)
            self._world.pass_time(0.5)
            for delivery in self._kept:
                self.ack(broker, delivery)
            self._kept = []
            self._world.pass_time(0.5)
            self._look_at_copies(broker)
            is_empty = sum(map(len, self._given.values())) == given
            if is_empty and not any(self.left(group) for group in GROUPS):
                return
        if not any(self._world.promoted.values()):
            left = {group: sorted(self.left(group))[:5] for group in GROUPS}
            raise PromiseBroken(f"never delivered, or never acknowledged: {left}")

    def _look_at_copies(self, broker: "Broker") -> None:
        """Each is the settlement of one delivery, and no other one has settled that."""
        records = self._world.promises.records(broker)
        copies = [one for one in records if one.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]
        self._dead = Counter(one.body for one in copies if one.topic == dlq_topic(MORTAL))
        for source, count in Counter(one.properties[PROPERTY_SOURCE] for one in copies).items():
            if count > 1:
                self._break(f"delivery {source} was moved {count} times")
        for body, count in self._dead.items():
            if count > 1 or (MORTAL, body) in self._settled:
                self._break(f"{body!r} is {count} dead letters of group {MORTAL}, acknowledged or not")

    @property
    def counts(self) -> tuple[int, int]:
        """How many messages were stored, and how many acknowledged for good."""
        return len(self._stored), len(self._settled)


def _overlap(one: Delivery, other: Delivery) -> bool:
    """Whether both were exclusive at the same moment, whichever was first; `other` was received before."""
    if one.term != other.term or one.is_given_up or other.is_given_up:
        return False
    return other.received < one.began + _long(one) and one.received < other.began + _long(other)


def _long(delivery: Delivery) -> float:
    return delivery.until - delivery.began


def _records(data: bytes) -> Iterator[Record]:
    at = 0
    while at < len(data):
        yield record.decode(data, at)
        at = record.locate(data, at).end


def play(world: "World", *, disks: bool = False) -> Deliveries:
    deliveries = Deliveries(world)
    deliveries.make_groups(world.brokers[0])
    world.pass_time(10.0)  # every broker has them
    deliveries.drain(deaths.play(world, deliveries.act, disks=disks))
    return deliveries


def play_on_bad_disks(world: "World") -> Deliveries:
    return play(world, disks=True)
