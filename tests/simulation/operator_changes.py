"""An operator deletes a topic and changes groups in the simulated world, while producers send to that topic and commit
its transactions, and delayed messages for the topic become due.
"""

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketsim_proto import (
    admin_pb2,
    admin_pb2_grpc,
    broker_pb2,
    broker_pb2_grpc,
    message_pb2,
    metadata_pb2,
    transactions_pb2,
    transactions_pb2_grpc,
)
from rocketsim_proto.records import record

from tests.simulation import deaths
from tests.simulation.history import Change, History
from tests.simulation.promises import PromiseBroken
from tests.support.brokers import message

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.world import World

TOPIC, GROUP, QUEUES = "Y", "settings", 2
CALL_S = 5.0
OK = broker_pb2.SendResponse.PUT_OK


class Deletion(NamedTuple):
    asked_at: float
    change: Change


class Setting(NamedTuple):
    """A numbered setting of the group.  A setting is later than another one if its `asked_at` comes after the end of
    the other setting's call.
    """

    number: int
    asked_at: float
    change: Change


class OperatorChanges:
    """What brokers promise about an operator's changes.

    If an operator has asked for the deletion of a topic, its earlier messages never appear in a later topic of the same
    name.  When a SYNC_MASTER has answered a change with COMMIT_OK, every later master has the change, if its log
    contains all bytes that the SYNC_MASTER's log had at the time of the answer.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self._accepted_at: dict[bytes, float] = {}  # body -> when it was stored with OK or prepared as a transaction
        self.prepared: list[bytes] = []
        self._deletions: list[Deletion] = []
        self._settings: list[Setting] = []
        self._over_at: list[float] = []  # when the client saw the call of each setting end
        self._watched: set[tuple[int, int]] = set()  # the runs of brokers whose table of topics is checked
        self._counts: Counter[str] = Counter()
        self._broken: PromiseBroken | None = None
        world.deleted_topics.add(TOPIC)

    # --- producers ------------------------------------------------------------------------------------------------

    def act(self, broker: "Broker", chance: random.Random) -> None:
        self.raise_what_is_broken()
        self.watch(broker)
        doings: tuple[Callable[[Broker, random.Random], None], ...] = (
            *(self.send, self._send_late, self._send_late, self.prepare, self.prepare, self.commit, self.commit),
            *(self._set_group, self._delete_meanwhile, self._delete_meanwhile),
        )
        chance.choice(doings)(broker, chance)

    def raise_what_is_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _body(self) -> bytes:
        clients = self._world.clients
        body = b"%d.0 passing" % len(clients.sent_at)
        clients.sent_at.append(self._world.loop.now)
        clients.bodies.add(body)
        return body

    def send(self, broker: "Broker", chance: random.Random) -> None:
        body = self._body()
        self._put(broker, body, message(TOPIC, body, chance.randrange(QUEUES)), accepted=True)

    def _send_late(self, broker: "Broker", chance: random.Random) -> None:
        """Sends a message with a delivery time.  If an operator has deleted the topic and made it again before the
        message is due, the new topic gets the message.
        """
        body = self._body()
        at_ms = broker.clock.now_ms() + chance.choice((50, 400, 1200))
        properties = chance.choice(({"DELAY": "1"}, {"TIMER_DELIVER_MS": str(at_ms)}, {"TIMER_DELIVER_MS": str(at_ms)}))
        self._put(broker, body, message(TOPIC, body, 0, UNIQ_KEY=body.decode(), **properties), accepted=False)

    def _put(self, broker: "Broker", body: bytes, record: bytes, *, accepted: bool) -> None:
        request = broker_pb2.SendRequest(
            topic=TOPIC, records=record, count=1, crc32=zlib.crc32(record), broker_name="broker-a"
        )

        async def work(stub: Any) -> None:
            if (await stub.Send(request, timeout=CALL_S)).status == OK:
                self._counts["stored"] += 1
                if accepted:
                    self._accepted_at[body] = self._world.loop.now

        self._world.clients._spawn(broker, broker_pb2_grpc.BrokerStub, work)

    def prepare(self, broker: "Broker", chance: random.Random) -> None:
        body = self._body()
        record = message(TOPIC, body, chance.randrange(QUEUES), UNIQ_KEY=body.decode())
        request = transactions_pb2.PrepareRequest(
            topic=TOPIC, record=record, crc32=zlib.crc32(record), producer_group="p", broker_name="broker-a"
        )

        async def work(stub: Any) -> None:
            if (await stub.Prepare(request, timeout=CALL_S)).status == OK:
                self.prepared.append(body)
                self._accepted_at[body] = self._world.loop.now

        self._world.clients._spawn(broker, transactions_pb2_grpc.TransactionsStub, work)

    def commit(self, broker: "Broker", chance: random.Random) -> None:
        for _ in range(min(len(self.prepared), chance.choice((1, 4)))):
            body = self.prepared.pop(chance.randrange(len(self.prepared)))
            request = transactions_pb2.EndRequest(
                topic=TOPIC,
                broker_name="broker-a",
                transaction_id=body.decode(),
                resolution=transactions_pb2.EndRequest.COMMIT,
            )

            async def work(stub: Any, request: Any = request) -> None:
                await stub.End(request, timeout=CALL_S)
                self._counts["committed"] += 1

            self._world.clients._spawn(broker, transactions_pb2_grpc.TransactionsStub, work)

    # --- the operator ---------------------------------------------------------------------------------------------

    def _delete_meanwhile(self, broker: "Broker", chance: random.Random) -> None:
        """Deletes the topic while commits are on their way to the broker, and sends more commits after the deletion."""
        self.commit(broker, chance)
        self.delete(broker)
        self.commit(broker, chance)

    def delete(self, broker: "Broker") -> None:
        deletion = Deletion(self._world.loop.now, Change.asked(broker))

        async def work(stub: Any) -> None:
            answer = await stub.DeleteTopic(admin_pb2.DeleteTopicRequest(topic=TOPIC), timeout=CALL_S)
            self._answered(broker, deletion.change, answer.status)
            self._deletions.append(deletion)
            self._counts["deletions"] += 1

        self._world.clients._spawn(broker, admin_pb2_grpc.AdminStub, work)

    def _set_group(self, broker: "Broker", chance: random.Random) -> None:
        self.set_group(broker)

    def set_group(self, broker: "Broker") -> None:
        number, now = len(self._over_at), self._world.loop.now
        setting = Setting(number, now, Change.asked(broker))
        self._over_at.append(now + CALL_S)
        group = metadata_pb2.SubscriptionGroupConfig(group_name=GROUP, retry_max_times=setting.number)

        async def work(stub: Any) -> None:
            answer = await stub.UpdateSubGroup(admin_pb2.UpdateSubGroupRequest(group=group), timeout=CALL_S)
            self._over_at[number] = self._world.loop.now
            self._answered(broker, setting.change, answer.status)
            if answer.status == message_pb2.COMMIT_OK:
                self._settings.append(setting)
                self._counts["settings"] += 1

        self._world.clients._spawn(broker, admin_pb2_grpc.AdminStub, work)

    def _answered(self, broker: "Broker", change: Change, status: int) -> None:
        is_safe = status == message_pb2.COMMIT_OK and deaths.loses_nothing(self._world)
        change.answered(self._world, broker, is_safe=is_safe)

    # --- promises -------------------------------------------------------------------------------------------------

    def watch(self, broker: "Broker") -> None:
        """Makes the play check, whenever the broker's table of topics changes, that no record of a deleted topic lies
        beyond the end offsets that the broker has noted for the topic's queues.
        """
        run = broker.broker_id, broker.run
        if run in self._watched or not broker.serves:
            return
        self._watched.add(run)
        topics, store = broker.live.topics, broker.live.store

        def became(name: str) -> None:
            if not broker.is_writable or name != TOPIC or name in topics.entries:
                return
            buried = topics.tombstones[name].queue_offsets
            for queue_id, end in store.queues.ends(name).items():
                if end > buried.get(queue_id, 0):
                    self._broken = self._broken or PromiseBroken(
                        f"{broker.name} has deleted {name} up to {buried}, and its queue {queue_id} goes on to {end}: "
                        "the next topic of that name gets what is behind"
                    )

        topics.changed.append(became)

    def check(self, master: "Broker") -> None:
        self.raise_what_is_broken()
        if any(self._world.promoted.values()):  # forced promotions may lose changes
            return
        history = History.of(master)
        deleted_at = max((one.asked_at for one in self._deletions if one.change.is_in(history)), default=0.0)
        for body in self._visible(master):
            if self._accepted_at.get(body, deleted_at) < deleted_at:
                raise PromiseBroken(
                    f"{body!r} was sent to a topic that was deleted later, and is in the next topic of its name"
                )
        self.check_settings(master)

    def check_settings(self, master: "Broker") -> None:
        if not self._world.levels.sync_master:
            return
        history, group = History.of(master), master.live.groups.get(GROUP)
        for number, asked_at, change in self._settings:
            if not change.is_in(history):
                continue
            if group is None or self._over_at[group.retry_max_times] < asked_at:
                raise PromiseBroken(
                    f"{master.name} has the group {group}, and the later setting {number} was COMMIT_OK"
                )

    def _visible(self, master: "Broker") -> Iterator[bytes]:
        """Yields what readers find in the topic that exists now."""
        store, config = master.live.store, master.live.topics.get(TOPIC)
        for queue_id in range(config.read_queue_nums if config is not None else 0):
            first, end = store.queues.bounds(TOPIC, queue_id)
            if first < end:
                data, at = b"".join(store.queues.read_ranges([(TOPIC, queue_id, first, end)], 1 << 30).records), 0
                while at < len(data):
                    yield record.decode(data, at).body
                    at = record.locate(data, at).end

    @property
    def counts(self) -> dict[str, int]:
        return dict(self._counts)


def play(world: "World") -> OperatorChanges:
    changes = OperatorChanges(world)
    master = deaths.play(world, changes.act)
    world.pass_time(3.0)
    changes.check(master)
    return changes
