"""Makes calls to one broker without the client's fallback, so that this broker answers."""

import uuid
from collections.abc import Callable, Mapping

from rocketsim_proto import admin_pb2
from rocketsim_proto.admin_pb2_grpc import AdminStub
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records

from rocketsim_client.errors import BrokerUnavailable, ServiceNotAvailable, TopicNotExist
from rocketsim_client.model import CommitStatus, MessageQueue, QueueRange
from rocketsim_client.transport.own.transport import GrpcTransport
from rocketsim_client.transport.reads import OffsetsAnswer, PullAnswer, PullCall
from rocketsim_client.transport.sends import Acknowledged, Outgoing, SendCall
from testbed.polling import wait_until
from testbed.processes import ServerProcess

BORN_MS = 1_700_000_000_000


class OneBroker:
    def __init__(self, process: ServerProcess, transport: GrpcTransport) -> None:
        self.process = process
        self.transport = transport

    @property
    def address(self) -> str:
        return self.process.address

    def put(
        self,
        topic: str,
        *bodies: bytes,
        queue_id: int = 0,
        timeout_s: float = 10.0,
        epoch: int = 0,
        **properties: str,
    ) -> Acknowledged:
        """Sends one frame with these bodies.  Each message gets these `properties`, for example WAIT, DELAY, KEYS and
        TAGS.
        """
        encoded = [
            record.encode_properties({**properties, record.PROPERTY_UNIQ_KEY: uuid.uuid4().hex.upper()}) for _ in bodies
        ]
        outgoing = Outgoing(topic, [queue_id] * len(bodies), list(bodies), encoded, born_timestamp=BORN_MS)
        call = SendCall(str(self.process.keys["brokerName"]), "tests", epoch)
        return self.transport.sends.send(self.address, outgoing, call, timeout_s)

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Returns the smallest offset and the end of each queue, by queue id.  An unknown topic has no queues."""
        try:
            answer = self.transport.reads.queue_bounds(self.address, topic, [], 5.0)
        except TopicNotExist:
            return {}
        return {queue_id: (bounds.min_offset, bounds.max_offset) for queue_id, bounds in answer.items()}

    def messages(self, topic: str) -> dict[tuple[int, int], record.Record]:
        """Returns all messages that the broker serves, by (queue id, queue offset)."""
        found: dict[tuple[int, int], record.Record] = {}
        for queue_id, (start, end) in self.bounds(topic).items():
            at = start
            while at < end:
                ranges = [QueueRange(topic, queue_id, at, end)]
                for frame in self.transport.reads.pull_range(
                    self.address, ranges, group="tests", expression="*", max_frame_bytes=1 << 20, timeout_s=30.0
                ):
                    for one in _decode(frame.records, frame.sizes):
                        found[one.queue_id, one.queue_offset] = one
                    at = max([at, *(segment.next_offset for segment in frame.segments)])
                    assert frame.segments, "a frame without a segment says nothing about where it got to"
        return found

    def pull(self, topic: str, queue_id: int = 0, offset: int = 0) -> PullAnswer:
        call = PullCall(group="tests", topic=topic, queue_id=queue_id, queue_offset=offset)
        return self.transport.reads.pull(self.address, call, 10.0)

    def bodies(self, topic: str) -> list[bytes]:
        return [one.body for _, one in sorted(self.messages(topic).items())]

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> CommitStatus:
        name = str(self.process.keys["brokerName"])
        queues = {MessageQueue(topic, name, queue_id): offset for queue_id, offset in offsets.items()}
        return self._when_it_answers_for_offsets(
            lambda: self.transport.reads.commit_offsets(self.address, group, queues, 5.0)
        ).status

    def committed(self, group: str, topic: str, queue_id: int = 0) -> int:
        queue = MessageQueue(topic, str(self.process.keys["brokerName"]), queue_id)
        answer = self._when_it_answers_for_offsets(
            lambda: self.transport.reads.query_offsets(self.address, group, [queue], False, 5.0)
        )
        return next(
            (offset for of_topic, of_queue, offset in answer.offsets if (of_topic, of_queue) == (topic, queue_id)), -1
        )

    def _when_it_answers_for_offsets(self, call: Callable[[], OffsetsAnswer]) -> OffsetsAnswer:
        """Repeats the call until the broker answers it.  A master that has just started refuses until it has the
        offsets that its slave took while the master was away.
        """

        def look() -> OffsetsAnswer | None:
            try:
                return call()
            except ServiceNotAvailable:
                return None

        answer = wait_until(look, f"{self.process.name} answers for offsets")
        assert answer is not None
        return answer

    def admin(self, method: str, request: object, timeout_s: float = 10.0):  # type: ignore[no-untyped-def]
        return self.transport.channels.call(self.address, AdminStub, method, request, timeout_s)

    def update_topic(self, topic: str, queues: int = 4) -> None:
        """Creates the topic as soon as this master takes writes."""
        config = {"topic_name": topic, "read_queue_nums": queues, "write_queue_nums": queues, "perm": 6}
        request = admin_pb2.UpdateTopicRequest(topic=config)

        def made() -> bool:
            try:
                self.admin("UpdateTopic", request)
            except (ServiceNotAvailable, BrokerUnavailable):
                return False
            return True

        wait_until(made, f"{self.process.name} takes writes")

    def wait_for_topic(self, topic: str) -> "OneBroker":
        """Waits until the broker has the topic.  Topics reach a slave apart from the log, a moment later."""
        wait_until(lambda: self.bounds(topic), f"{self.process.name} knows topic {topic}")
        return self

    def ha_status(self) -> admin_pb2.HaStatusResponse:
        return self.admin("HaStatus", admin_pb2.HaStatusRequest())

    def wait_for_slaves(self, count: int = 1) -> "OneBroker":
        """Waits until so many slaves have everything that the master has."""

        def look() -> bool:
            status = self.ha_status()
            return sum(slave.in_sync and slave.diff_bytes <= 0 for slave in status.slaves) >= count

        wait_until(look, f"{count} slaves of {self.process.name} in sync")
        return self


def _decode(data: bytes, sizes: bytes) -> list[record.Record]:
    records = Records.walk(data, sizes=sizes or None)
    records.check()
    return [record.decode(data, int(start)) for start in records.starts]
