"""Producers, consumers and operators of the simulation, which make single calls with the generated stubs.

The clients do not wait for answers: `promises.py` sees and checks all answers of the brokers.
"""

import itertools
import random
import zlib
from typing import TYPE_CHECKING, Any

import grpc
from grpc.aio import AioRpcError
from rocketsim_proto import admin_pb2, admin_pb2_grpc, broker_pb2, broker_pb2_grpc, message_pb2

from rocketsim_client.model import MASTER_ID
from tests.simulation.network import Network
from tests.simulation.virtual_loop import Process
from tests.support.brokers import message

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.world import World

HOST = "10.0.2.1"
TOPICS = ("T", "U")
GROUPS = ("g", "h")
QUEUES = 2
START = 0, None  # offset and epoch of a consumer that has read nothing yet
# With these statuses, the broker has stored nothing of the call.  After any other error, the message may be stored.
REFUSALS = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)


class Clients:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._process = Process(world.loop, "clients")
        self._network = Network(world.wire, HOST)
        self.sent_at: list[float] = []  # the times of all sends, by the number in the body
        self.delayed: dict[bytes, tuple[str, int, int]] = {}  # body -> topic, queue and delay level
        self.outcomes: dict[str, int] = {}
        self.bodies: set[bytes] = set()  # the bodies of all messages that were ever sent
        self.resets: set[tuple[str, str]] = set()  # (group, topic) whose offsets may have gone back
        self.promoting = False
        self.asked_to_promote: set[int] = set()
        self._next_to_read: dict[tuple[str, int], int] = {}
        self._place: dict[tuple[str, int], tuple[int, broker_pb2.LogEpoch | None]] = {}  # where the next pull continues
        self._planned: dict[tuple[str, int], tuple[int, broker_pb2.LogEpoch | None]] = {}  # where a range ends

    def _spawn(self, broker: "Broker", stub: Any, work: Any) -> None:
        async def call() -> None:
            async with self._network.open_channel(broker.address) as channel:
                try:
                    await work(stub(channel))
                except AioRpcError as error:
                    self._count(error.code().name)

        self._process.spawn(call())

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    # --- producers ------------------------------------------------------------------------------------------------

    def send(self, broker: "Broker", chance: random.Random, *, topic: str | None = None, delay: int = 0) -> str:
        topic = topic or chance.choice(TOPICS)
        number = len(self.sent_at)
        self.sent_at.append(self._world.loop.now)
        count = 1 if delay else chance.choice((1, 1, 2, 3))
        bodies = [b"%d.%d " % (number, n) + bytes(chance.randint(0, 300)) for n in range(count)]
        self.bodies.update(bodies)
        properties = {"DELAY": str(delay)} if delay else {"TAGS": "TagA", "KEYS": f"k{number % 5}"}
        queues = [chance.randrange(QUEUES) for _ in bodies]
        if delay:
            self.delayed[bodies[0]] = topic, queues[0], delay
        records = b"".join(
            message(topic, body, queue, **properties) for body, queue in zip(bodies, queues, strict=True)
        )
        request = broker_pb2.SendRequest(
            topic=topic, records=records, count=count, crc32=zlib.crc32(records), broker_name="broker-a"
        )

        async def work(stub: Any) -> None:
            try:
                response = await stub.Send(request, timeout=5.0)
            except AioRpcError as error:
                # A message that was refused "in doubt" may appear after a power loss (docs/replication.md).
                if error.code() in REFUSALS and "in doubt" not in (error.details() or ""):
                    self._world.promises.refused_bodies.update(bodies)
                raise
            self._count(broker_pb2.SendResponse.PutStatus.Name(response.status))

        self._spawn(broker, broker_pb2_grpc.BrokerStub, work)
        return f"send {number} of {count} to {broker.name}"

    # --- consumers ------------------------------------------------------------------------------------------------

    def pull(self, broker: "Broker", chance: random.Random) -> str:
        """Pulls from the beginning, from the middle or from where the last answer ended.  Some pulls let the broker
        wait for new messages before it answers.
        """
        topic, queue = chance.choice(TOPICS), chance.randrange(QUEUES)
        place = self._place.get((topic, queue), START)
        offset, read_in = chance.choice((START, place, place, (chance.randint(0, 60), None)))
        known = self._next_to_read.get((topic, queue), 0)
        commit = chance.randint(0, known) if chance.random() < 0.2 else None
        request = broker_pb2.PullRequest(
            consumer_group=chance.choice(GROUPS),
            topic=topic,
            queue_id=queue,
            queue_offset=offset,
            max_msg_nums=32,
            suspend_timeout_ms=chance.choice((0, 2000)),
            commit_offset=commit,
            read_in=read_in,
        )

        async def work(stub: Any) -> None:
            response = await stub.Pull(request, timeout=6.0)
            if (offset, read_in) in (START, self._place.get((topic, queue))):
                self._place[topic, queue] = response.next_begin_offset, response.read_in
            if response.count:
                self._next_to_read[topic, queue] = max(known, response.next_begin_offset)
            self._count("read" if response.count else "nothing to read")

        self._spawn(broker, broker_pb2_grpc.BrokerStub, work)
        return f"pull {topic}:{queue} from {offset} at {broker.name}"

    def pull_range(self, broker: "Broker", chance: random.Random) -> str:
        """Pulls a range of every queue.  The range ends at the last end of the queue that a client has seen, or at an
        offset far beyond that end.
        """
        ranges = []
        for topic, queue in itertools.product(TOPICS, range(QUEUES)):
            until, read_in = chance.choice((self._planned.get((topic, queue), (1000, None)), (1000, None)))
            begin = chance.choice((0, chance.randint(0, until)))
            ranges.append(
                broker_pb2.PullRangeRequest.Range(
                    topic=topic, queue_id=queue, from_offset=begin, until_offset=until, read_in=read_in
                )
            )
        request = broker_pb2.PullRangeRequest(consumer_group="g", ranges=ranges, max_frame_bytes=4096)

        async def work(stub: Any) -> None:
            async for _ in stub.PullRange(request, timeout=5.0):
                self._count("frame")

        self._spawn(broker, broker_pb2_grpc.BrokerStub, work)
        return f"pull ranges at {broker.name}"

    def look(self, broker: "Broker", chance: random.Random) -> str:
        """Asks for the bounds of a topic's queues, and for the queues' offsets some seconds ago."""
        topic = chance.choice(TOPICS)
        bounds = broker_pb2.QueueBoundsRequest(topic=topic)
        at_ms = broker.clock.now_ms() - chance.choice((100, 1000, 5000, 20_000))
        entries = [broker_pb2.SearchOffsetsRequest.Entry(queue_id=queue, timestamp=at_ms) for queue in range(QUEUES)]
        search = broker_pb2.SearchOffsetsRequest(topic=topic, entries=entries)

        async def work(stub: Any) -> None:
            found = await stub.QueueBounds(bounds, timeout=5.0)
            for entry in found.entries:
                self._planned[topic, entry.queue_id] = entry.max_offset, found.log_epoch
            await stub.SearchOffsets(search, timeout=5.0)
            self._count("looked")

        self._spawn(broker, broker_pb2_grpc.BrokerStub, work)
        return f"look at {topic} at {broker.name}"

    def commit(self, broker: "Broker", chance: random.Random) -> str:
        """Commits the offset up to which the group has read, or a lower one."""
        topic, queue = chance.choice(TOPICS), chance.randrange(QUEUES)
        offset = chance.randint(0, self._next_to_read.get((topic, queue), 0))
        return self.commit_offset(broker, chance.choice(GROUPS), topic, queue, offset)

    def commit_offset(self, broker: "Broker", group: str, topic: str, queue: int, offset: int) -> str:
        entries = [broker_pb2.CommitOffsetsRequest.Entry(topic=topic, queue_id=queue, offset=offset)]
        request = broker_pb2.CommitOffsetsRequest(consumer_group=group, entries=entries)

        async def work(stub: Any) -> None:
            response = await stub.CommitOffsets(request, timeout=5.0)
            self._count(message_pb2.CommitStatus.Name(response.status))

        self._spawn(broker, broker_pb2_grpc.BrokerStub, work)
        return f"commit {group} {offset} at {broker.name}"

    def query(self, broker: "Broker", group: str) -> str:
        request = broker_pb2.QueryOffsetsRequest(consumer_group=group)

        async def work(stub: Any) -> None:
            await stub.QueryOffsets(request, timeout=5.0)
            self._count("offsets")

        self._spawn(broker, broker_pb2_grpc.BrokerStub, work)
        return f"query offsets at {broker.name}"

    def query_name(self, group: str) -> str:
        """Queries a group's offsets as rocketsim_client does: asks the master, and if no master answers, all slaves."""
        promises = self._world.promises.offsets
        asked = promises.standing_of(group)
        request = broker_pb2.QueryOffsetsRequest(consumer_group=group)

        async def call() -> None:
            answers = []
            for broker in sorted(self._world.brokers, key=lambda broker: not broker.leads):
                async with self._network.open_channel(broker.address) as channel:
                    try:
                        response = await broker_pb2_grpc.BrokerStub(channel).QueryOffsets(request, timeout=3.0)
                    except AioRpcError as error:
                        self._count(error.code().name)
                        continue
                answers.append((broker, response))
                if response.broker_id == MASTER_ID:
                    return  # `answered_query` has checked the master's answer
            promises.answered_by_slaves(asked, answers)

        self._process.spawn(call())
        return "query offsets of the name"

    # --- operators ------------------------------------------------------------------------------------------------

    def reset(self, broker: "Broker", chance: random.Random) -> str:
        return self.reset_offset(broker, chance.choice(GROUPS), chance.choice(TOPICS), chance.choice((0, -1)))

    def reset_offset(self, broker: "Broker", group: str, topic: str, timestamp: int) -> str:
        request = admin_pb2.ResetOffsetByTimeRequest(group=group, topic=topic, timestamp=timestamp, force=True)
        self.resets.add((request.group, request.topic))

        async def work(stub: Any) -> None:
            await stub.ResetOffsetByTime(request, timeout=5.0)
            self._count("reset")

        self._spawn(broker, admin_pb2_grpc.AdminStub, work)
        return f"reset {request.group} at {broker.name}"

    def delete_topic(self, broker: "Broker", chance: random.Random) -> str:
        self._world.deleted_topics.add("V")

        async def work(stub: Any) -> None:
            await stub.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="V"), timeout=5.0)
            self._count("topic deleted")

        self._spawn(broker, admin_pb2_grpc.AdminStub, work)
        return f"delete topic V at {broker.name}"

    def promote(self, broker: "Broker", *, force: bool) -> str:
        world = self._world
        role = "SYNC_MASTER" if world.levels.sync_master else "ASYNC_MASTER"
        request = admin_pb2.PromoteSlaveRequest(broker_name="broker-a", broker_role=role, force=force)

        async def work(stub: Any) -> None:
            self.promoting = True
            self.asked_to_promote.add(broker.broker_id)
            try:
                await stub.PromoteSlave(request, timeout=20.0)
                self._count("promoted")
            finally:
                self.promoting = False

        self._spawn(broker, admin_pb2_grpc.AdminStub, work)
        return f"promote {broker.name}{' by force' if force else ''}"
