"""Runs a name server and brokers in this process for the client's tests.  The brokers have stores in memory, and answer
correctly unless a test scripts other answers.

All brokers of one broker name share a store, like a pair that is always in sync.
"""

import threading
import zlib
from collections import defaultdict, deque
from concurrent import futures
from dataclasses import dataclass, field

import grpc
import numpy as np
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto import namesrv_pb2 as ns
from rocketsim_proto.broker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server
from rocketsim_proto.namesrv_pb2_grpc import NameServerServicer, add_NameServerServicer_to_server
from rocketsim_proto.records import record
from rocketsim_proto.records.columnar import Records

HOST = record.encode_host("127.0.0.1", 10911)
STATUS = pb.PullResponse


@dataclass
class Refuse:
    """Refuses the call with a RocketMQ code."""

    code: int
    status: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION
    reason: str = "refused by the test"


@dataclass
class LoseAnswer:
    """Does what was asked and answers UNAVAILABLE, as when the connection breaks before the answer."""


@dataclass
class Break:
    """Does nothing and answers UNAVAILABLE."""


@dataclass
class Hang:
    """Does nothing until the client gives up or the server stops."""


@dataclass
class Answer:
    """Answers with this response to every request."""

    response: object


def started_server(add_to_server, servicer, threads: int) -> tuple[grpc.Server, int]:
    server = grpc.server(
        futures.ThreadPoolExecutor(threads),
        options=[("grpc.max_receive_message_length", 16 << 20), ("grpc.so_reuseport", 0)],
    )
    add_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


@dataclass
class PairStore:
    queues: dict = field(default_factory=lambda: defaultdict(list))  # (topic, queue id) -> record bytes
    offsets: dict = field(default_factory=dict)  # (group, topic, queue id) -> offset
    min_offsets: dict = field(default_factory=lambda: defaultdict(int))
    log_end: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class FakeBroker(BrokerServicer):
    def __init__(self, name: str, broker_id: int, store: PairStore) -> None:
        self.name = name
        self.broker_id = broker_id
        self.store = store
        self.suggest = 0
        self.epoch = 1
        self.put_status = pb.SendResponse.PUT_OK
        self.says_ok_without_waiting = False  # if true, only sends that wait get `put_status`, as at a real broker
        self.script: dict[str, deque] = defaultdict(deque)  # RPC name -> how to answer the next calls
        self.calls: dict[str, list] = defaultdict(list)
        self.frames_before_break: int | None = None
        self.max_message_size = 4 << 20
        self.write_queues = 4  # of every topic
        self.old_code = False  # if true, an unknown queue is refused with the code from before QueueNotExist
        self.queue_nums = 4  # of every topic
        self.read_queue_nums = 0  # readable queues, or 0 for all with the field unset, as by older brokers
        self.says_write_queues = True  # older brokers do not name their write queues
        self.missing: set[str] = set()  # topics that do not exist here
        self.before_send = lambda: None
        self._stopped = threading.Event()
        self._server, self.port = started_server(add_BrokerServicer_to_server, self, threads=16)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.let_go()
        self._server.stop(None).wait()

    def let_go(self) -> None:
        """Ends the call that hangs."""
        self._stopped.set()

    def _told(self, method: str, request: object, context: grpc.ServicerContext) -> object | None:
        self.calls[method].append(request)
        order = self.script[method].popleft() if self.script[method] else None
        match order:
            case Refuse(code, status, reason):
                context.set_trailing_metadata((("rocketsim-code", str(code)),))
                context.abort(status, reason)
            case Break():
                context.abort(grpc.StatusCode.UNAVAILABLE, "broken by the test")
            case Hang():
                context.add_callback(self._stopped.set)
                self._stopped.wait()
                self._stopped.clear()
                context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        return order

    def _check(
        self, context: grpc.ServicerContext, queues: list[tuple[str, int]], code: str, queue_nums: int = 0
    ) -> None:
        """Refuses the whole call if one topic or queue does not exist, as a real broker does."""
        for topic, queue_id in queues:
            if topic in self.missing:
                context.set_trailing_metadata((("rocketsim-code", "17"),))
                context.abort(grpc.StatusCode.NOT_FOUND, f"topic {topic!r} does not exist here")
            if queue_id >= (queue_nums or self.queue_nums):
                context.set_trailing_metadata((("rocketsim-code", code),))
                status = grpc.StatusCode.INVALID_ARGUMENT
                context.abort(status, f"queue {queue_id} of topic {topic}, which has {self.queue_nums} queues")

    def Send(self, request, context):
        self.before_send()
        order = self._told("Send", request, context)
        if isinstance(order, Answer):
            return order.response
        assert zlib.crc32(request.records) == request.crc32
        records = Records.walk(request.records, request.count)
        records.check()
        records.check_topic(request.topic)
        if int(records.body_size.max()) > self.max_message_size:
            context.set_trailing_metadata((("rocketsim-code", "13"),))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "body too large")
        if (most := int(records.queue_id.max())) >= self.write_queues:
            context.set_trailing_metadata((("rocketsim-code", "13" if self.old_code else "29"),))
            what = f"queue {most} of topic {request.topic}, which has {self.write_queues} write queues"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, what)
        status = self.put_status
        if self.says_ok_without_waiting and b"WAIT\x01false\x02" in request.records:
            status = pb.SendResponse.PUT_OK
        answer = pb.SendResponse(status=status, store_host=HOST, store_timestamp=1, epoch=self.epoch)
        with self.store.lock:
            begin = self.store.log_end
            sizes = records.sizes.astype(np.int64)
            log_offsets = begin + np.cumsum(sizes) - sizes
            self.store.log_end += int(sizes.sum())
            firsts: dict[int, list[int]] = {}
            offsets = []
            for queue_id in records.queue_id.tolist():
                queue = self.store.queues[request.topic, queue_id]
                firsts.setdefault(queue_id, [len(queue), 0])[1] += 1
                offsets.append(len(queue))
                queue.append(b"")
            data = bytearray(request.records)
            stamped = Records.walk(data, request.count)
            stamped.stamp(np.array(offsets), log_offsets, 1, HOST)
            for index, (start, size) in enumerate(zip(stamped.starts.tolist(), sizes.tolist(), strict=True)):
                queue_id = int(records.queue_id[index])
                self.store.queues[request.topic, queue_id][offsets[index]] = bytes(data[start : start + size])
        for queue_id, (first, count) in firsts.items():
            answer.queues.add(queue_id=queue_id, first_queue_offset=first, count=count)
        answer.runs.add(commit_log_offset=begin, count=request.count)
        if isinstance(order, LoseAnswer):
            context.abort(grpc.StatusCode.UNAVAILABLE, "answer lost by the test")
        return answer

    def Pull(self, request, context):
        order = self._told("Pull", request, context)
        if isinstance(order, Answer):
            return order.response
        self._check(context, [(request.topic, request.queue_id)], "1", self.read_queue_nums)
        queue = self.store.queues.get((request.topic, request.queue_id), [])
        low = self.store.min_offsets[request.topic, request.queue_id]
        at = request.queue_offset
        answer = pb.PullResponse(
            min_offset=low,
            max_offset=len(queue),
            next_begin_offset=at,
            broker_id=self.broker_id,
            suggest_which_broker_id=self.suggest,
        )
        if at < low:
            answer.code, answer.status, answer.next_begin_offset = 21, STATUS.OFFSET_TOO_SMALL, low
        elif at == len(queue):
            answer.code, answer.status = 19, STATUS.OFFSET_OVERFLOW_ONE
        elif at > len(queue):
            answer.code, answer.status, answer.next_begin_offset = 21, STATUS.OFFSET_OVERFLOW_BADLY, len(queue)
        else:
            found = queue[at : at + request.max_msg_nums]
            answer.records, answer.count = b"".join(found), len(found)
            answer.next_begin_offset = at + len(found)
        return answer

    def PullRange(self, request, context):
        order = self._told("PullRange", request, context)
        if isinstance(order, Answer):
            yield order.response
            return
        self._check(context, [(item.topic, item.queue_id) for item in request.ranges], "1", self.read_queue_nums)
        sent = 0
        for index, item in enumerate(request.ranges):
            queue = self.store.queues.get((item.topic, item.queue_id), [])
            low = self.store.min_offsets[item.topic, item.queue_id]
            at = item.from_offset
            while at < item.until_offset:
                if self.frames_before_break is not None and sent >= self.frames_before_break:
                    self.frames_before_break = None
                    context.abort(grpc.StatusCode.UNAVAILABLE, "broken in the middle by the test")
                frame = pb.PullFrame(suggest_which_broker_id=self.suggest, broker_id=self.broker_id)
                found = queue[at : min(at + 10, item.until_offset)]
                status = STATUS.FOUND if found else STATUS.OFFSET_OVERFLOW_ONE
                frame.records = b"".join(found)
                frame.sizes = np.array([len(data) for data in found], "<u4").tobytes()
                at += len(found)
                frame.segments.add(
                    range_index=index,
                    count=len(found),
                    next_offset=at,
                    min_offset=low,
                    max_offset=len(queue),
                    status=status,
                )
                sent += 1
                yield frame
                if not found:
                    break

    def CommitOffsets(self, request, context):
        self._told("CommitOffsets", request, context)
        self._check(context, [(entry.topic, entry.queue_id) for entry in request.entries], "29")
        answer = pb.CommitOffsetsResponse(broker_id=self.broker_id)
        for entry in request.entries:
            key = (request.consumer_group, entry.topic, entry.queue_id)
            self.store.offsets[key] = max(entry.offset, self.store.offsets.get(key, -1))
            answer.offsets.append(self.store.offsets[key])
        return answer

    def QueryOffsets(self, request, context):
        order = self._told("QueryOffsets", request, context)
        if isinstance(order, Answer):
            return order.response
        answer = pb.QueryOffsetsResponse(broker_id=self.broker_id)
        for queue in request.queues:
            offset = self.store.offsets.get((request.consumer_group, queue.topic, queue.queue_id), -1)
            answer.entries.add(topic=queue.topic, queue_id=queue.queue_id, offset=offset)
        return answer

    def QueueBounds(self, request, context):
        self._told("QueueBounds", request, context)
        self._check(context, [(request.topic, queue_id) for queue_id in request.queue_ids or [0]], "29")
        answer = pb.QueueBoundsResponse(
            broker_id=self.broker_id,
            is_master=self.broker_id == 0,
            read_queue_nums=self.read_queue_nums or None,
            write_queue_nums=self.write_queues if self.says_write_queues else None,
        )
        for queue_id in request.queue_ids or range(self.queue_nums):
            queue = self.store.queues.get((request.topic, queue_id), [])
            low = self.store.min_offsets[request.topic, queue_id]
            answer.entries.add(queue_id=queue_id, min_offset=low, max_offset=len(queue))
        return answer

    def SearchOffsets(self, request, context):
        self._told("SearchOffsets", request, context)
        self._check(context, [(request.topic, entry.queue_id) for entry in request.entries], "29")
        return pb.SearchOffsetsResponse(offsets=[entry.timestamp // 10 for entry in request.entries])


class FakeCluster(NameServerServicer):
    """A name server whose routes have the running brokers.  Every broker has `topics`, with four queues each."""

    def __init__(self, *topics: str) -> None:
        self.topics = set(topics)
        self.brokers: dict[tuple[str, int], FakeBroker] = {}
        self.route_calls: list[str] = []
        self.frozen: dict[str, dict[int, str]] | None = None  # a stale view of the brokers
        self.down = False
        self.wire_versions = {"name server": 0, "broker": 0}  # 0 as from versions that do not set the field
        self.write_queues = 4  # the write queues of every topic at every broker, as the route says
        self._stores: dict[str, PairStore] = defaultdict(PairStore)
        self._server, self.port = started_server(add_NameServerServicer_to_server, self, threads=4)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> "FakeCluster":
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            broker.stop()
        self._server.stop(None).wait()

    def start(self, name: str, broker_id: int = 0) -> FakeBroker:
        broker = self.brokers[name, broker_id] = FakeBroker(name, broker_id, self._stores[name])
        return broker

    def stop(self, name: str, broker_id: int = 0) -> None:
        self.brokers.pop((name, broker_id)).stop()

    def lose(self, name: str) -> None:
        """Deletes the disks of a broker name while none of its brokers runs."""
        del self._stores[name]

    def addresses(self) -> dict[str, dict[int, str]]:
        if self.frozen is not None:
            return self.frozen
        found: dict[str, dict[int, str]] = defaultdict(dict)
        for (name, broker_id), broker in self.brokers.items():
            found[name][broker_id] = broker.address
        return dict(found)

    def freeze(self) -> None:
        """Keeps giving the present routes, like a name server that has not noticed a change."""
        self.frozen = self.addresses()

    def messages(self, topic: str) -> list[record.Record]:
        return [
            record.decode(data)
            for name in sorted(self._stores)
            for (of_topic, _), queue in sorted(self._stores[name].queues.items())
            if of_topic == topic
            for data in queue
        ]

    def TopicRoute(self, request, context):
        self.route_calls.append(request.topic)
        if self.down:
            context.abort(grpc.StatusCode.UNAVAILABLE, "down")
        if request.topic not in self.topics:
            context.set_trailing_metadata((("rocketsim-code", "17"),))
            context.abort(grpc.StatusCode.NOT_FOUND, f"no topic {request.topic}")
        answer = ns.TopicRouteResponse(wire_version=self.wire_versions["name server"])
        for name, members in self.addresses().items():
            answer.queue_datas.add(broker_name=name, read_queue_nums=4, write_queue_nums=self.write_queues, perm=6)
            answer.broker_datas.add(
                cluster_name="c",
                broker_name=name,
                broker_addrs=members,
                epoch=1,
                wire_version=self.wire_versions["broker"],
            )
        return answer

    def TopicList(self, request, context):
        return ns.TopicListResponse(topics=sorted(self.topics))

    def ClusterList(self, request, context):
        answer = ns.ClusterListResponse(wire_version=self.wire_versions["name server"])
        for name, members in self.addresses().items():
            wire = self.wire_versions["broker"]
            answer.brokers.add(cluster_name="c", broker_name=name, broker_addrs=members, epoch=1, wire_version=wire)
        return answer
