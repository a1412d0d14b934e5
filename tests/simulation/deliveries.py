"""Consumers of groups whose deliveries the broker keeps, in the simulated world.  The module compares what each
consumer has received and acknowledged with all later deliveries.
"""

import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from grpc.aio import AioRpcError
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
from rocketsim_proto.reserved import DLQ_PREFIX, RETRY_PREFIX

from broker_service.errors import RocketSimError
from broker_service.pop.deliveries import FINAL, HandleStatus
from broker_service.state.moves import PROPERTY_SOURCE, dlq_topic
from tests.simulation import deaths
from tests.simulation.clients import REFUSALS
from tests.simulation.history import NEVER, Change, History, Position
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
CLOCK_S = 0.002  # brokers count whole milliseconds, so times differ by up to this much
OK = broker_pb2.SendResponse.PUT_OK


class Term(NamedTuple):
    """The term of a master.  Everything that the master has done in its term counts, even if its disk or its slave does
    not have it.
    """

    broker_id: int
    epoch: int
    power_losses: int


class Place(NamedTuple):
    message_group: str
    queue_id: int
    queue_offset: int
    ends_at: Position


@dataclass(eq=False)
class Delivery:
    """A delivery of a message, with times of the simulation.  The broker took the message for this consumer between
    `began` and `received`.  No other consumer may get the message until `until` or later.
    """

    group: str
    body: bytes
    handle: str
    term: Term
    began: float
    received: float
    until: float
    attempt: int
    is_given_up: bool = False  # true if the client has asked for an earlier end or an ack


@dataclass(eq=False)
class Settlement:
    """The end of a message for a group: an ack, or a move to the dead letters."""

    change: Change
    is_forward: bool


class Deliveries:
    """The deliveries of a play, and what they promise.

    With SYNC_MASTER and SYNC_FLUSH, no fault of the play takes back a final answer.  With other modes, a new master may
    lack the end of the old master's log, and a power loss may take the end of a master's own log.  A master must act on
    all changes that are in its log.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self._loses_nothing = deaths.loses_nothing(world)
        self._stored: set[bytes] = set()  # bodies of messages whose send was OK
        self._places: dict[bytes, Place] = {}  # the place of each message that was stored or delivered
        self._given: dict[tuple[str, bytes], list[Delivery]] = defaultdict(list)  # by group and body
        self._kept: list[Delivery] = []  # deliveries to acknowledge, change or forget later
        self._settlements: dict[tuple[str, bytes], list[Settlement]] = defaultdict(list)
        self._forwards: set[tuple[str, bytes]] = set()  # moves to the dead letters that clients have asked for
        self._dead: Counter[tuple[str, bytes]] = Counter()  # the dead letters at the end of the play
        self._broken: PromiseBroken | None = None

    # --- clients --------------------------------------------------------------------------------------------------

    def make_groups(self, broker: "Broker") -> None:
        """Creates the groups.  Messages become dead letters in only one of these groups."""
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
        pops, sends = (self._pop, self._pop, self._pop), (self._send, self._send)
        act = chance.choice((*sends, *pops, self._ack, self._ack, self._change, self._forward))
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

        began = Position.now(broker)

        async def work(stub: Any) -> None:
            response = await stub.Send(request, timeout=5.0)
            if response.status == OK:
                (at,) = response.queues
                ends_at = began._replace(log_offset=response.runs[-1].commit_log_offset + len(records))
                for number, body in enumerate(bodies):
                    self._stored.add(body)
                    self._places[body] = Place(key, at.queue_id, at.first_queue_offset + number, ends_at)

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
        began, term, history = self._world.loop.now, self._term(broker), History.of(broker)

        async def work(stub: Any) -> None:
            response = await stub.Pop(request, timeout=5.0)
            now, is_same = self._world.loop.now, self._term(broker) == term
            records = list(_records(response.records))
            for one in records:
                if one.topic == TOPIC:  # no copy for a retry
                    key, ends_at = one.properties["__SHARDINGKEY"], history.position(one.commit_log_offset + 1)
                    self._places[one.body] = Place(key, one.queue_id, one.queue_offset, ends_at)
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
                self._check(group, given, history)
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
        answered = self._settle(broker, delivery, is_forward=False)

        async def work(stub: Any) -> None:
            try:
                response = await stub.Ack(request, timeout=5.0)
            except AioRpcError as error:
                if error.code() in REFUSALS and "in doubt" not in (error.details() or ""):
                    answered(is_valid=False)
                raise
            answered(is_valid=response.valid != [False], is_final=not response.again)

        self._spawn(broker, consumption_pb2_grpc.ConsumptionStub, work)

    def _forward(self, broker: "Broker", chance: random.Random) -> None:
        """Forwards messages to the dead letters as RocketMQ 5's clients do.  The call is made inside the broker,
        because the port for RocketMQ 5's clients is not simulated.
        """
        for delivery in self._some(chance):
            answered = self._settle(broker, delivery, is_forward=True)
            self._forwards.add((delivery.group, delivery.body))

            async def work(delivery: Delivery = delivery, answered: Any = answered) -> None:
                consumption = broker.live.consumption
                try:
                    settled = await consumption.forward_to_dlq(delivery.group, TOPIC, delivery.handle)
                except (RocketSimError, OSError) as error:
                    if "in doubt" not in str(error):
                        answered(is_valid=False)
                    return
                answered(is_valid=settled.status is HandleStatus.OK, is_final=settled.stored in FINAL)

            assert broker.process is not None
            broker.process.spawn(work())

    def _settle(self, broker: "Broker", delivery: Delivery, *, is_forward: bool) -> Any:
        """Notes that a client asks for the end of the message, which is an ack or a move to the dead letters.  Returns
        a function that must be called with the broker's answer.
        """
        settlement = Settlement(Change.asked(broker), is_forward)
        settlements = self._settlements[delivery.group, delivery.body]
        settlements.append(settlement)
        delivery.is_given_up = True
        is_safe = self._loses_nothing and deaths.has_slave_in_sync(broker)

        def answered(*, is_valid: bool, is_final: bool = False) -> None:
            if not is_valid:
                settlements.remove(settlement)
            else:
                is_safe_now = is_safe and is_final and deaths.has_slave_in_sync(broker)
                settlement.change.answered(self._world, broker, is_safe=is_safe_now)

        return answered

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
        """Takes some deliveries out of the kept ones, and yields most of these.  Deliveries that were taken out and not
        yielded are never acknowledged, as if their consumer had died.
        """
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

    def _check(self, group: str, given: list[Delivery], history: History) -> None:
        together = {one.body for one in given}
        for one in given:
            key = group, one.body
            if (settled_at := self._settled_at(key, history)) < one.began:
                if not self._waited_behind_another(key, settled_at, history):
                    self._break(f"{one.body!r} is delivered to group {group} again, and was settled", one.body)
                self._settlements.pop(key)  # the message needs another ack or move
            if group == MORTAL and one.attempt > MORTAL_ATTEMPTS:
                self._break(f"{one.body!r} is delivered to group {group} for the {one.attempt}th time", one.body)
            for other in self._given[key]:
                if _overlap(one, other):
                    self._break(
                        f"{one.body!r} is with two consumers of group {group} at once: {other} and {one}", one.body
                    )
            if group == IN_ORDER and (earlier := self._earlier(one.body, history) - together):
                self._break(
                    f"{one.body!r} is delivered in order, and nobody has acknowledged {sorted(earlier)[:3]}", one.body
                )
            self._given[key].append(one)
        if group == IN_ORDER:
            self._is_sorted(given)
        self._kept += given

    def _break(self, what: str, body: bytes) -> None:
        # A forced promotion may lose deliveries.
        if not any(self._world.promoted.values()) and not self._may_lack_a_copy(body):
            raise PromiseBroken(what)

    def _may_lack_a_copy(self, body: bytes) -> bool:
        """Returns True if the record that moved the message was unreadable at some time, so that the message may also
        still be at its former place.
        """
        unread = [broker for broker in self._world.brokers if broker.disk.unread_sectors]
        return any(
            broker.has_not_read(one.commit_log_offset, one.commit_log_offset + len(record.encode(one)))
            for whole in (self._world.serving() if unread else ())
            for one in self._world.promises.records(whole)
            if one.body == body and one.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
            for broker in unread
        )

    def _settled_at(self, key: tuple[str, bytes], history: History) -> float:
        """Returns the time of the answer to the ack or move that ended the message, or NEVER if that history has no
        such ack or move.
        """
        return min(
            (one.change.answered_at for one in self._settlements.get(key, ()) if one.change.is_in(history)),
            default=NEVER,
        )

    def _may_be_settled(self, key: tuple[str, bytes], history: History) -> bool:
        return any(one.change.may_be_in(history) for one in self._settlements.get(key, ()))

    def _waited_behind_another(self, key: tuple[str, bytes], settled_at: float, history: History) -> bool:
        """Returns True if a message that was acknowledged or moved at `settled_at` may be delivered again, because an
        earlier message of its message group was not acknowledged or moved before that time.  RocketMQ also delivers
        such a message again.
        """
        group, body = key
        earlier = self._before(body, history) if group == IN_ORDER else ()
        return not all(self._settled_at((group, other), history) < settled_at for other in earlier)

    def _earlier(self, body: bytes, history: History) -> set[bytes]:
        """Returns the messages that were stored before this one, and that no client has asked to acknowledge or to move
        to the dead letters.
        """
        return {
            other
            for other in self._before(body, history)
            if other in self._stored and not self._may_be_settled((IN_ORDER, other), history)
        }

    def _before(self, body: bytes, history: History) -> Iterator[bytes]:
        """Yields the messages before this one in its queue and message group."""
        if (place := self._places.get(body)) is not None:
            for other, at in self._places.items():
                is_before = at[:2] == place[:2] and at.queue_offset < place.queue_offset
                if is_before and (self._loses_nothing or history.has(at.ends_at)):
                    yield other

    def _is_sorted(self, given: list[Delivery]) -> None:
        last: dict[tuple[str, int], int] = {}
        for one in given:
            key, queue, offset, _ = self._places[one.body]
            if offset <= last.get((key, queue), -1):
                self._break(f"{one.body!r} comes behind a later one of its message group", one.body)
            last[key, queue] = offset

    def left(self, group: str, broker: "Broker") -> set[bytes]:
        """Returns the messages in the log that are neither acknowledged nor moved to the dead letters.  A message may
        be missing in the result if a client has asked for its ack or move and got no answer.
        """
        history = History.of(broker)
        sent = {one.body for one in self._world.promises.records(broker) if one.topic == TOPIC}
        if self._loses_nothing:
            sent |= self._stored
        return {
            body for body in sent if not self._may_be_settled((group, body), history) and not self._dead[group, body]
        }

    def drain(self, broker: "Broker") -> None:
        """Consumes and acknowledges all messages until no more come."""
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
            if is_empty and not any(self.left(group, broker) for group in GROUPS):
                return
        if not any(self._world.promoted.values()):
            left = {group: sorted(self.left(group, broker))[:5] for group in GROUPS}
            raise PromiseBroken(f"never delivered, or never acknowledged: {left}")

    def _look_at_copies(self, broker: "Broker") -> None:
        """Checks that each copy is the settlement of one delivery, and that no other copy has settled that delivery."""
        records = self._world.promises.records(broker)
        copies = [one for one in records if one.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]
        names = {dlq_topic(group): group for group in GROUPS}
        self._dead = Counter((names[one.topic], one.body) for one in copies if one.topic in names)
        bodies = {one.properties[PROPERTY_SOURCE]: one.body for one in copies}
        for source, count in Counter(one.properties[PROPERTY_SOURCE] for one in copies).items():
            if count > 1:
                self._break(f"delivery {source} was moved {count} times", bodies[source])
        history = History.of(broker)
        for (group, body), count in self._dead.items():
            settlements = self._settlements.get((group, body), ())
            is_acknowledged = any(not one.is_forward and one.change.is_in(history) for one in settlements)
            is_right = group == MORTAL or (group, body) in self._forwards
            if group != IN_ORDER:  # an ordered message may come again, see `_waited_behind_another`
                is_right = is_right and count == 1 and not is_acknowledged
            if not is_right:
                self._break(f"{body!r} is {count} dead letters of group {group}: {settlements}", body)
        for (group, body), settlements in self._settlements.items():
            if any(one.is_forward and one.change.is_in(history) for one in settlements) and not self._dead[group, body]:
                self._break(f"{body!r} was moved to the dead letters of group {group}, and is not there", body)

    @property
    def counts(self) -> dict[str, int]:
        settled = [one for some in self._settlements.values() for one in some if one.change.ends_at is not None]
        return {
            "stored": len(self._stored),
            "acknowledged": sum(not one.is_forward for one in settled),
            "dead letters": sum(self._dead.values()),
        }


def _overlap(one: Delivery, other: Delivery) -> bool:
    """Returns True if the message belonged exclusively to both deliveries at the same moment."""
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


def play(world: "World", *, bad_disks: bool = False, full_disks: bool = False) -> Deliveries:
    deliveries = Deliveries(world)
    deliveries.make_groups(world.brokers[0])
    world.pass_time(10.0)  # by then, every broker has the groups
    deliveries.drain(deaths.play(world, deliveries.act, bad_disks=bad_disks, full_disks=full_disks))
    return deliveries


def play_on_bad_disks(world: "World") -> Deliveries:
    return play(world, bad_disks=True)


def play_on_full_disks(world: "World") -> Deliveries:
    return play(world, full_disks=True)
