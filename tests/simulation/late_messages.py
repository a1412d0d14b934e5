"""Messages with a delivery time and transactions in the simulated world.  The module compares the answers to producers
with the master's log at the end.
"""

import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketsim_proto import broker_pb2, broker_pb2_grpc, transactions_pb2, transactions_pb2_grpc
from rocketsim_proto.records.record import Record
from rocketsim_proto.reserved import TIMER_TOPIC

from tests.simulation import deaths
from tests.simulation.history import Change, History
from tests.simulation.promises import PromiseBroken
from tests.support.brokers import message

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.world import World

TIMES, TRADES = "D", "X"
OK = broker_pb2.SendResponse.PUT_OK
COMMIT, ROLLBACK = transactions_pb2.EndRequest.COMMIT, transactions_pb2.EndRequest.ROLLBACK


class LateMessages:
    """The messages with a delivery time, and what their brokers promise.

    With SYNC_MASTER and SYNC_FLUSH, no fault of the play takes back an OK.  With other modes, a new master may lack the
    end of the old master's log, and a power loss may take the end of a master's own log.  A master must act on all
    changes that are in its log.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self._loses_nothing = deaths.loses_nothing(world)
        self._deliver_ms: dict[bytes, int] = {}  # the delivery time of each message that was sent
        self._stored: set[bytes] = set()  # the bodies of the messages whose send was OK
        self._prepared: list[bytes] = []  # open transactions whose half message is OK
        self._ends: dict[bytes, int] = {}  # the resolution that a client has asked for
        self._ended: dict[bytes, list[Change]] = defaultdict(list)  # the ends that were answered with OK

    # --- producers ------------------------------------------------------------------------------------------------

    def act(self, broker: "Broker", chance: random.Random) -> None:
        chance.choice((self._send, self._prepare, self._end))(broker, chance)

    def _body(self) -> bytes:
        clients = self._world.clients
        body = b"%d.0 late" % len(clients.sent_at)
        clients.sent_at.append(self._world.loop.now)
        clients.bodies.add(body)
        return body

    def _send(self, broker: "Broker", chance: random.Random) -> None:
        body = self._body()
        deliver_ms = self._deliver_ms[body] = broker.clock.now_ms() + chance.choice((100, 2000, 9000))
        record = message(TIMES, body, 0, UNIQ_KEY=body.decode(), TIMER_DELIVER_MS=str(deliver_ms))
        request = broker_pb2.SendRequest(
            topic=TIMES, records=record, count=1, crc32=zlib.crc32(record), broker_name="broker-a"
        )

        async def work(stub: Any) -> None:
            if (await stub.Send(request, timeout=5.0)).status == OK:
                self._stored.add(body)

        self._world.clients._spawn(broker, broker_pb2_grpc.BrokerStub, work)

    def _prepare(self, broker: "Broker", chance: random.Random) -> None:
        body = self._body()
        record = message(TRADES, body, 0, UNIQ_KEY=body.decode())
        request = transactions_pb2.PrepareRequest(
            topic=TRADES, record=record, crc32=zlib.crc32(record), producer_group="p", broker_name="broker-a"
        )

        async def work(stub: Any) -> None:
            if (await stub.Prepare(request, timeout=5.0)).status == OK:
                self._prepared.append(body)

        self._world.clients._spawn(broker, transactions_pb2_grpc.TransactionsStub, work)

    def _end(self, broker: "Broker", chance: random.Random) -> None:
        if not self._prepared:
            return
        body = self._prepared.pop(chance.randrange(len(self._prepared)))
        resolution = self._ends.setdefault(body, chance.choice((COMMIT, COMMIT, ROLLBACK)))
        if chance.random() < 0.3:
            self._prepared.append(body)  # a client asks for the same end again
        is_safe, change = self._loses_nothing and deaths.has_slave_in_sync(broker), Change.asked(broker)
        request = transactions_pb2.EndRequest(
            topic=TRADES, broker_name="broker-a", transaction_id=body.decode(), resolution=resolution
        )

        async def work(stub: Any) -> None:
            answer = await stub.End(request, timeout=5.0)
            is_safe_now = is_safe and not answer.again and deaths.has_slave_in_sync(broker)
            change.answered(self._world, broker, is_safe=is_safe_now)
            self._ended[body].append(change)

        self._world.clients._spawn(broker, transactions_pb2_grpc.TransactionsStub, work)

    # --- promises -------------------------------------------------------------------------------------------------

    def missing(self, master: "Broker", records: Iterable[Record]) -> set[bytes]:
        """Returns the messages that should have been delivered and were not."""
        records, history = list(records), History.of(master)
        waiting = {one.body for one in records if one.topic == TIMER_TOPIC}
        if self._loses_nothing:
            waiting |= self._stored
        return (waiting | self._ended_with(COMMIT, history)) - {
            one.body for one in records if one.topic in (TIMES, TRADES)
        }

    def _ended_with(self, resolution: int, history: History) -> set[bytes]:
        return {
            body
            for body, ends in self._ended.items()
            if self._ends[body] == resolution and any(end.is_in(history) for end in ends)
        }

    def check(self, master: "Broker", records: Iterable[Record]) -> None:
        records, history = list(records), History.of(master)
        delivered = [one for one in records if one.topic in (TIMES, TRADES)]
        if (lost := self.missing(master, records)) and not any(self._world.promoted.values()):  # by force, to heal
            raise PromiseBroken(f"not delivered: {sorted(lost)[:5]}")
        if twice := [body for body, count in Counter(one.body for one in delivered).items() if count > 1]:
            raise PromiseBroken(f"delivered twice: {twice[:5]}")
        dropped = self._ended_with(ROLLBACK, history)
        for one in delivered:
            if one.topic == TRADES and (one.body not in self._ends or one.body in dropped):
                raise PromiseBroken(f"{one.body!r} is delivered, and was never committed")
            if one.topic == TIMES and one.store_timestamp < self._deliver_ms[one.body]:
                raise PromiseBroken(f"{one.body!r} is delivered before its time")

    @property
    def counts(self) -> dict[str, int]:
        return {"stored": len(self._stored), "transactions ended": len(self._ended)}


def play(world: "World", *, bad_disks: bool = False, full_disks: bool = False) -> LateMessages:
    late = LateMessages(world)
    master = deaths.play(world, late.act, bad_disks=bad_disks, full_disks=full_disks)
    world.loop.run_until(lambda: not late.missing(master, world.promises.records(master)), 20.0, 1.0)
    late.check(master, world.promises.records(master))
    return late


def play_on_bad_disks(world: "World") -> LateMessages:
    return play(world, bad_disks=True)


def play_on_full_disks(world: "World") -> LateMessages:
    return play(world, full_disks=True)


def play_with_deaths_while_copying(world: "World") -> LateMessages:
    """Plays with masters that often die between the records COPYING and COPIED."""
    chance = random.Random(world.seed + 1)

    def may_die(broker: "Broker", call: str, _: Path) -> None:
        is_copying = broker.is_writable and broker.live.consumption.state.timers.copying is not None
        if call == "pwrite" and is_copying and "heal" not in world.history and chance.random() < 0.2:
            broker.doom(1, powerless=chance.random() < 0.5)

    for broker in world.brokers:
        broker.disk.watch = partial(may_die, broker)
    return play(world)
