"""The transport over our own gRPC services: generated messages on one side, the client's values on the other, nothing
else."""

import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import namesrv_pb2 as ns
from rocketsim_proto.broker_pb2_grpc import BrokerStub
from rocketsim_proto.namesrv_pb2_grpc import NameServerStub

from rocketsim_client import forks, record_frame
from rocketsim_client.channels import Channels
from rocketsim_client.errors import (
    BadAnswer,
    NameServerUnavailable,
    RocketSimError,
    TopicNotExist,
    Unreachable,
)
from rocketsim_client.model import (
    GetMessageStatus,
    MessageQueue,
    PullFrame,
    QueueBounds,
    QueueRange,
    Segment,
    SendStatus,
)
from rocketsim_client.route import BrokerData, QueueData, TopicRoute
from rocketsim_client.transport import Acknowledged, OffsetsAnswer, Outgoing, PullAnswer, PullCall

T = TypeVar("T")


class GrpcTransport:
    """Thread-safe.  Name servers share nothing: the one that answered last is asked first, then the others."""

    def __init__(self, name_servers: Sequence[str]) -> None:
        self.channels = Channels()
        self._name_servers = list(name_servers)
        self._preferred = 0
        self._lock = threading.Lock()
        forks.watch(self)

    def forget_parent(self) -> None:
        self._lock = threading.Lock()

    def close(self) -> None:
        self.channels.close()

    # --- name servers ---------------------------------------------------------------------------------------------

    def topic_route(self, topic: str, timeout_s: float) -> TopicRoute:
        def ask(address: str) -> TopicRoute:
            request = ns.TopicRouteRequest(topic=topic)
            answer = self.channels.call(address, NameServerStub, "TopicRoute", request, timeout_s)
            if not answer.queue_datas:
                raise TopicNotExist(f"topic {topic!r}: no route at name server {address}", address=address)
            return TopicRoute(
                topic,
                tuple(
                    QueueData(data.broker_name, data.read_queue_nums, data.write_queue_nums, data.perm)
                    for data in answer.queue_datas
                ),
                {data.broker_name: broker_data(data) for data in answer.broker_datas},
            )

        return self._ask_name_servers(ask)

    def topic_list(self, timeout_s: float) -> list[str]:
        def ask(address: str) -> list[str]:
            answer = self.channels.call(address, NameServerStub, "TopicList", ns.TopicListRequest(), timeout_s)
            return sorted(answer.topics)

        return self._ask_name_servers(ask)

    def cluster_list(self, timeout_s: float) -> list[BrokerData]:
        def ask(address: str) -> list[BrokerData]:
            answer = self.channels.call(address, NameServerStub, "ClusterList", ns.ClusterListRequest(), timeout_s)
            return sorted(map(broker_data, answer.brokers), key=lambda data: (data.cluster_name, data.broker_name))

        return self._ask_name_servers(ask)

    def write_perm(self, broker_name: str, writable: bool, timeout_s: float) -> dict[str, int]:
        method = "AddWritePerm" if writable else "WipeWritePerm"
        request = ns.WritePermRequest(broker_name=broker_name)
        changed: dict[str, int] = {}
        failures: list[RocketSimError] = []
        for address in self._name_servers:
            try:
                changed[address] = self.channels.call(address, NameServerStub, method, request, timeout_s).topic_count
            except RocketSimError as error:
                failures.append(error)
        if failures:
            done = f"; done at {', '.join(changed)}" if changed else ""
            raise NameServerUnavailable(f"{method} of {broker_name}: {failures[0]}{done}") from failures[0]
        return changed

    def _ask_name_servers(self, ask: Callable[[str], T]) -> T:
        """The first answer.  `no such topic` is believed only when every name server that answers says so: one that has
        just started knows nothing yet."""
        unknown: TopicNotExist | None = None
        failure: Unreachable | None = None
        first = self._preferred
        for step in range(len(self._name_servers)):
            index = (first + step) % len(self._name_servers)
            try:
                answer = ask(self._name_servers[index])
            except TopicNotExist as error:
                unknown = error
            except Unreachable as error:
                failure = error
            else:
                self._preferred = index
                return answer
        if unknown:
            raise unknown
        servers = "; ".join(self._name_servers)
        raise NameServerUnavailable(f"no name server answered ({servers}): {failure}") from failure

    # --- brokers --------------------------------------------------------------------------------------------------

    def send(
        self,
        address: str,
        broker_name: str,
        outgoing: Outgoing,
        *,
        group: str,
        epoch: int,
        default_topic_queue_nums: int,
        timeout_s: float,
    ) -> Acknowledged:
        records, sizes = record_frame.encode(outgoing)
        request = pb.SendRequest(
            topic=outgoing.topic,
            records=records,
            count=len(outgoing),
            crc32=zlib.crc32(records),
            producer_group=group,
            epoch=epoch,
            broker_name=broker_name,
            default_topic_queue_nums=default_topic_queue_nums,
        )
        answer = self.channels.call(address, BrokerStub, "Send", request, timeout_s)
        return acknowledged(answer, outgoing.queue_ids, sizes, address)

    def pull(self, address: str, call: PullCall, timeout_s: float) -> PullAnswer:
        request = pb.PullRequest(
            consumer_group=call.group,
            topic=call.topic,
            queue_id=call.queue_id,
            queue_offset=call.queue_offset,
            max_msg_nums=call.max_msg_nums,
            max_msg_bytes=call.max_msg_bytes,
            sub_expression=call.expression,
            expression_type="TAG",
            suspend_timeout_ms=call.suspend_timeout_ms,
            commit_offset=call.commit_offset,
        )
        answer = self.channels.call(address, BrokerStub, "Pull", request, timeout_s)
        return PullAnswer(
            code=answer.code,
            status=GetMessageStatus(answer.status),
            next_begin_offset=answer.next_begin_offset,
            min_offset=answer.min_offset,
            max_offset=answer.max_offset,
            suggest_which_broker_id=answer.suggest_which_broker_id,
            broker_id=answer.broker_id,
            count=answer.count,
            records=answer.records,
            sizes=answer.sizes,
        )

    def pull_range(
        self,
        address: str,
        ranges: Sequence[QueueRange],
        *,
        group: str,
        expression: str,
        max_frame_bytes: int,
        timeout_s: float,
    ) -> Iterator[PullFrame]:
        request = pb.PullRangeRequest(
            consumer_group=group,
            ranges=[
                pb.PullRangeRequest.Range(
                    topic=piece.topic,
                    queue_id=piece.queue_id,
                    from_offset=piece.from_offset,
                    until_offset=piece.until_offset,
                )
                for piece in ranges
            ],
            sub_expression=expression,
            expression_type="TAG",
            max_frame_bytes=max_frame_bytes,
        )
        stream = self.channels.stream(address, BrokerStub, "PullRange", request, timeout_s)
        try:
            for answer in stream:
                yield pull_frame(answer, len(ranges), address)
        finally:
            stream.close()  # type: ignore[attr-defined]  # a generator: closing it cancels the call

    def commit_offsets(
        self, address: str, group: str, offsets: Mapping[MessageQueue, int], timeout_s: float
    ) -> OffsetsAnswer:
        request = pb.CommitOffsetsRequest(
            consumer_group=group,
            entries=[
                pb.CommitOffsetsRequest.Entry(topic=queue.topic, queue_id=queue.queue_id, offset=offset)
                for queue, offset in offsets.items()
            ],
        )
        answer = self.channels.call(address, BrokerStub, "CommitOffsets", request, timeout_s)
        if len(answer.offsets) != len(offsets):
            raise BadAnswer(
                f"{address} answered {len(answer.offsets)} offsets to {len(offsets)} commits", address=address
            )
        values = [(queue.topic, queue.queue_id, value) for queue, value in zip(offsets, answer.offsets, strict=True)]
        return OffsetsAnswer(values, answer.broker_id)

    def query_offsets(
        self, address: str, group: str, queues: Sequence[MessageQueue], zero_for_new_group: bool, timeout_s: float
    ) -> OffsetsAnswer:
        request = pb.QueryOffsetsRequest(consumer_group=group, zero_for_new_group=zero_for_new_group)
        for queue in queues:
            request.queues.add(topic=queue.topic, queue_id=queue.queue_id)
        answer = self.channels.call(address, BrokerStub, "QueryOffsets", request, timeout_s)
        return OffsetsAnswer([(e.topic, e.queue_id, e.offset) for e in answer.entries], answer.broker_id)

    def queue_bounds(
        self, address: str, topic: str, queue_ids: Sequence[int], timeout_s: float
    ) -> dict[int, QueueBounds]:
        request = pb.QueueBoundsRequest(topic=topic, queue_ids=list(queue_ids))
        answer = self.channels.call(address, BrokerStub, "QueueBounds", request, timeout_s)
        return {
            entry.queue_id: QueueBounds(
                entry.min_offset,
                entry.max_offset,
                entry.last_store_timestamp,
                entry.size_bytes,
                answer.broker_id,
                answer.is_master,
            )
            for entry in answer.entries
        }

    def search_offsets(
        self, address: str, topic: str, timestamps: Mapping[int, int], timeout_s: float
    ) -> dict[int, int]:
        request = pb.SearchOffsetsRequest(topic=topic)
        for queue_id, timestamp in timestamps.items():
            request.entries.add(queue_id=queue_id, timestamp=timestamp)
        answer = self.channels.call(address, BrokerStub, "SearchOffsets", request, timeout_s)
        if len(answer.offsets) != len(timestamps):
            raise BadAnswer(f"{address} answered {len(answer.offsets)} of {len(timestamps)} searches", address=address)
        return dict(zip(timestamps, answer.offsets, strict=True))


def broker_data(data: ns.BrokerData) -> BrokerData:
    return BrokerData(data.cluster_name, data.broker_name, dict(data.broker_addrs), data.epoch)


def acknowledged(answer: pb.SendResponse, queue_ids: Sequence[int], sizes: Sequence[int], address: str) -> Acknowledged:
    """Give every message its place: offsets of a queue are consecutive in frame order, records of a run lie back to
    back."""
    count = len(sizes)
    if sum(run.count for run in answer.runs) != count or sum(queue.count for queue in answer.queues) != count:
        raise BadAnswer(
            f"{address} acknowledged another number of messages than the {count} it was sent", address=address
        )
    if count == 1:
        only_queue, only_run = answer.queues[0].first_queue_offset, answer.runs[0].commit_log_offset
        return Acknowledged(
            SendStatus(answer.status), [only_queue], [only_run], answer.store_host, answer.store_timestamp
        )
    ids = np.asarray(queue_ids)
    queue_offsets = np.full(count, -1, np.int64)
    for queue in answer.queues:
        mine = np.flatnonzero(ids == queue.queue_id)
        if len(mine) != queue.count:
            raise BadAnswer(f"{address} acknowledged {queue.count} messages in queue {queue.queue_id}, not {len(mine)}")
        queue_offsets[mine] = np.arange(queue.first_queue_offset, queue.first_queue_offset + queue.count)
    lengths = np.asarray(sizes, np.int64)
    starts = np.cumsum(lengths) - lengths
    log_offsets, at = starts, 0
    for run in answer.runs:
        piece = slice(at, at + run.count)
        log_offsets[piece] += run.commit_log_offset - starts[at]
        at += run.count
    return Acknowledged(
        SendStatus(answer.status),
        queue_offsets.tolist(),
        log_offsets.tolist(),
        answer.store_host,
        answer.store_timestamp,
    )


def pull_frame(answer: pb.PullFrame, range_count: int, address: str) -> PullFrame:
    segments = [
        Segment(s.range_index, s.count, s.next_offset, s.min_offset, s.max_offset, GetMessageStatus(s.status))
        for s in answer.segments
    ]
    records, sizes = answer.records, answer.sizes
    if any(segment.range_index >= range_count for segment in segments):
        raise BadAnswer(f"{address} sent a piece of a range that was not asked for", address=address)
    if sizes:
        count = sum(segment.count for segment in segments)
        if len(sizes) != 4 * count or int(np.frombuffer(sizes, "<u4").sum(dtype=np.int64)) != len(records):
            raise BadAnswer(
                f"{address} sent {len(records)} bytes of records, {len(sizes) // 4} sizes and a count of {count}: "
                "they do not agree",
                address=address,
            )
    return PullFrame(records, sizes, segments, answer.suggest_which_broker_id, answer.broker_id)
