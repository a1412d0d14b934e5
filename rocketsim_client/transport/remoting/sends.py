"""Sends to RocketMQ's brokers in batches, each for one queue."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from rocketsim_proto.records.property_columns import joined
from rocketsim_proto.records.slices import binary_array, fixed_binary, flat_bytes, offsets
from rocketsim_proto.remoting import message_batch
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode

from rocketsim_client.errors import BadAnswer, MessageIllegal, NotSupported
from rocketsim_client.model import SendStatus
from rocketsim_client.retry import SENDS
from rocketsim_client.transport.remoting import versions
from rocketsim_client.transport.remoting.answers import field
from rocketsim_client.transport.remoting.connections import Connections, Reply, Request, checked
from rocketsim_client.transport.sends import Acknowledged, Outgoing, SendCall

MAX_BATCH_BYTES = (4 << 20) - (64 << 10)  # a broker's maxMessageSize is 4 MiB and bounds a whole batch
STORED = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
# Properties with the time of a delivery, which brokers of 4.x ignore.
TIMES = (b"TIMER_DELIVER_MS\x01", b"TIMER_DELAY_MS\x01", b"TIMER_DELAY_SEC\x01")
# Properties that a broker obeys only in a message that is sent alone, and only stores in a message of a batch.
ALONE = (b"DELAY\x01", *TIMES)
_HEAD = np.dtype([("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("flag", ">i4"), ("body_size", ">i4")])


class Batch(NamedTuple):
    """The rows of an Outgoing that one request sends, in order."""

    queue_id: int
    rows: Sequence[int]
    is_alone: bool


class RemotingSends:
    """Implements `SendCalls` over the remoting protocol.  A queue has one request under way at a time, because a
    broker may store two requests in the wrong order.  Requests for different queues are sent together."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._versions: dict[str, int] = {}  # address -> the broker's version

    def send(self, address: str, outgoing: Outgoing, call: SendCall, timeout_s: float) -> Acknowledged:
        deadline = time.monotonic() + timeout_s
        bodies, properties = binary_array(outgoing.bodies), binary_array(outgoing.properties)
        body_sizes, properties_sizes = np.diff(offsets(bodies)), np.diff(offsets(properties))
        check(outgoing.topic, body_sizes, properties_sizes)
        flags = np.broadcast_to(np.asarray(outgoing.flags, np.int64), len(bodies))
        sys_flags = np.broadcast_to(np.asarray(outgoing.sys_flags, np.int64), len(bodies))
        whole = flat_bytes(properties).tobytes()
        if any(name in whole for name in TIMES):
            self._check_timers(address, outgoing.topic, call.broker_name, timeout_s)
        alone = _alone(outgoing.properties, whole)
        sizes = body_sizes + properties_sizes + message_batch.OVERHEAD_BYTES
        status = SendStatus.SEND_OK
        queue_offsets = np.full(len(bodies), -1, np.int64)
        for together in rounds(batches(np.asarray(outgoing.queue_ids), sizes, sys_flags, alone)):
            requests = []
            for batch in together:
                rows = np.asarray(batch.rows, np.int64)
                first = int(rows[0])
                if batch.is_alone:
                    body, own = bodies[first].as_py(), properties[first].as_py().decode()
                else:
                    body, own = encoded(bodies.take(rows), properties.take(rows), flags[rows]), ""
                fields = {
                    "a": call.group,
                    "b": outgoing.topic,
                    "c": "TBW102",
                    "d": str(call.default_topic_queue_nums),
                    "e": str(batch.queue_id),
                    "f": str(int(sys_flags[first])),
                    "g": str(_nth(outgoing.born_timestamp, first)),
                    "h": str(int(flags[first]) if batch.is_alone else 0),
                    "i": own,
                    "m": "false" if batch.is_alone else "true",
                    "n": call.broker_name,
                }
                code = RequestCode.SEND_MESSAGE_V2 if batch.is_alone else RequestCode.SEND_BATCH_MESSAGE
                requests.append(
                    Request(code, f"a send of {len(rows)} messages to topic {outgoing.topic!r}", fields, body)
                )
            for reply, batch in self._stored(address, requests, together, deadline):
                status = max(status, STORED[ResponseCode(reply.header.code)])
                queue_offsets[list(batch.rows)] = self._offsets(reply, batch)
        return Acknowledged(status, queue_offsets, [-1] * len(bodies), b"", 0)  # type: ignore[arg-type]

    def _check_timers(self, address: str, topic: str, broker_name: str, timeout_s: float) -> None:
        """Raises NotSupported for a delivery time at a broker of 4.x, which would deliver such a message at once.  The
        version is in the broker's answer to any request, so a cheap request is sent to find it out."""
        if address not in self._versions:
            fields = {"topic": topic, "queueId": "0", "bname": broker_name}
            request = Request(RequestCode.GET_MAX_OFFSET, f"the version of broker {address}", fields)
            (reply,) = self._connections.calls(address, [request], timeout_s)
            self._versions[address] = reply.header.version
        if not versions.delivers_at_times(self._versions[address]):
            raise NotSupported(
                f"topic {topic!r}: the broker {address} of RocketMQ 4 delivers no message at a given time "
                "(deliver_at); use delay_level instead",
                address=address,
            )

    def _stored(
        self, address: str, requests: Sequence[Request], together: Sequence[Batch], deadline: float
    ) -> Iterator[tuple[Reply, Batch]]:
        """Sends the batches, and yields the answer to each.  A batch that the broker refuses because it is busy is sent
        again until the deadline, because a busy broker stores nothing."""
        left = list(zip(requests, together, strict=True))
        failures = 0
        while left:
            timeout_s = max(deadline - time.monotonic(), 0.001)
            replies = self._connections.calls(address, [request for request, _ in left], timeout_s)
            busy = []
            for reply, (request, batch) in zip(replies, left, strict=True):
                if reply.header.code in (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL):
                    busy.append((request, batch))
                    refused = reply, request
                else:
                    yield checked(reply, request, list(STORED)), batch
            failures += 1
            pause_s = SENDS.pause_s(failures)
            if busy and time.monotonic() + pause_s >= deadline:
                checked(*refused)
            if busy:
                time.sleep(pause_s)
            left = busy

    @staticmethod
    def _offsets(reply: Reply, batch: Batch) -> "np.ndarray[Any, Any]":
        first = field(reply.header, "queueOffset", reply.address)
        if field(reply.header, "queueId", reply.address) != batch.queue_id and not batch.is_alone:
            raise BadAnswer(
                f"{reply.address} stored a batch in another queue than {batch.queue_id}", address=reply.address
            )
        return np.arange(first, first + len(batch.rows), dtype=np.int64)


def check(topic: str, body_sizes: Any, properties_sizes: Any) -> None:
    """Raises MessageIllegal for messages that RocketMQ's brokers would refuse without a reason."""
    if len(body_sizes) and not body_sizes.min():
        raise MessageIllegal(f"topic {topic!r}: RocketMQ's brokers take no message whose body is empty")
    if len(properties_sizes) and properties_sizes.max() > message_batch.MAX_PROPERTIES_BYTES:
        raise MessageIllegal(
            f"topic {topic!r}: the properties of a message have more than {message_batch.MAX_PROPERTIES_BYTES} bytes"
        )


def batches(queue_ids: Any, sizes: Any, sys_flags: Any, alone: Any) -> list[Batch]:
    """Cuts the rows of each queue, in order, into batches that keep within a request's limits of rows and bytes.  Rows
    with different flags, and rows that have to go alone, are in batches of their own.  Numpy finds where each batch
    ends, so the loop makes one step for each batch, and not for each row."""
    found: list[Batch] = []
    for queue_id in np.unique(queue_ids).tolist():
        rows = np.flatnonzero(queue_ids == queue_id)
        own, flags, single = sizes[rows], sys_flags[rows], alone[rows]
        ends = np.cumsum(own)
        changes = np.flatnonzero((flags[1:] != flags[:-1]) | single[1:] | single[:-1]) + 1
        begin = 0
        while begin < len(rows):
            before = int(ends[begin - 1]) if begin else 0
            end = int(np.searchsorted(ends, before + MAX_BATCH_BYTES, side="right"))
            following = changes[np.searchsorted(changes, begin, side="right") :]
            limit = int(following[0]) if len(following) else len(rows)
            end = max(begin + 1, min(end, begin + message_batch.MAX_MESSAGES, limit))
            # A batch of one row is sent as a plain message, which may be larger than a batch.
            is_alone = end == begin + 1
            found.append(Batch(queue_id, rows[begin:end].tolist(), is_alone))
            begin = end
    return found


def rounds(found: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Yields lists of batches that are sent together.  Each list has the next batch of every queue."""
    queues: dict[int, list[Batch]] = {}
    for batch in found:
        queues.setdefault(batch.queue_id, []).append(batch)
    for at in range(max(map(len, queues.values()), default=0)):
        yield [of_queue[at] for of_queue in queues.values() if at < len(of_queue)]


def encoded(bodies: Any, properties: Any, flags: Any) -> memoryview:
    """Encodes the body of a batch, column by column."""
    body_sizes, properties_sizes = np.diff(offsets(bodies)), np.diff(offsets(properties))
    heads = np.zeros(len(bodies), _HEAD)
    heads["size"] = body_sizes + properties_sizes + message_batch.OVERHEAD_BYTES
    heads["flag"] = flags
    heads["body_size"] = body_sizes
    between = fixed_binary(properties_sizes.astype(">u2").view(np.uint8), 2)
    columns = [fixed_binary(heads.view(np.uint8), _HEAD.itemsize), bodies, between, properties]
    return flat_bytes(joined(columns)).data


def _alone(given: Any, whole: bytes) -> Any:
    """Marks the rows that have to be sent alone.  `whole` has the properties of all rows, so a search in `whole` is
    usually enough to see that no row has to be sent alone."""
    if not any(name in whole for name in ALONE):
        return np.zeros(len(given), bool)
    rows = (b"\x02" + bytes(one if isinstance(one, bytes) else one.as_py()) for one in given)
    return np.array([any(b"\x02" + name in row for name in ALONE) for row in rows], bool)


def _nth(values: Any, row: int) -> int:
    return int(values) if isinstance(values, int | np.integer) else int(values[row])
