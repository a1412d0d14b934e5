"""The load process of RocketSim's client, `python -m benchmarks.load NAME_SERVER`, which gets its commands as driver.py
describes.

Each sending command runs for `seconds` and counts acknowledged messages.  Every status except SEND_OK is an error,
because the peer's figure, too, counts only messages that are stored as safely as the mode promises.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from rocketsim_proto.records.columnar import Records

from benchmarks.bodies import bodies
from benchmarks.driver_loop import serve
from benchmarks.figures import percentile
from rocketsim_client import Cluster, Message, Producer, PullConsumer, PullStatus, QueueRange, SendStatus
from rocketsim_client.model import MASTER_ID
from rocketsim_client.transport.consumption import ConsumptionCalls, PopAnswer, PopCall
from rocketsim_client.transport.own.reads import GrpcReads
from rocketsim_client.transport.under_way import UnderWay

FILL_ROWS = 50_000
COLUMN_ROWS, COLUMN_BYTES = 10_000, 16 << 20
COLUMNS_IN_FLIGHT = 8
TIMEOUT_S = 90.0  # for a call
ANSWERED_S = 300.0  # the longest time to wait for the answer to a send
POP_MESSAGES = 32
INVISIBLE_S = 10 * 3600.0
TIMERS_IN_FLIGHT = 10_000


class Load:
    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        self._producer_made: Producer | None = None
        self._readers: dict[bool, tuple[Cluster, PullConsumer]] = {}

    @property
    def _producer(self) -> Producer:
        if self._producer_made is None:
            # Bodies are not compressed, because the load process of the Java producer does not compress either.
            self._producer_made = Producer(
                self._name_server,
                group="bench",
                timeout_s=TIMEOUT_S,
                compress_msg_body_over_howmuch=1 << 30,
            )
        return self._producer_made

    def _reader(self, *, sockets: bool) -> tuple[Cluster, PullConsumer]:
        if sockets not in self._readers:
            made = Cluster(self._name_server, timeout_s=TIMEOUT_S, range_streams=sockets)
            self._readers[sockets] = made, PullConsumer(group="bench", timeout_s=TIMEOUT_S, cluster=made)
        return self._readers[sockets]

    @property
    def _consumer(self) -> PullConsumer:
        return self._reader(sockets=True)[1]

    # --- sends ----------------------------------------------------------------------------------------------------

    def fill(self, topic: str, count: int, size: int, start: int = 0) -> dict[str, Any]:
        """Sends bodies as columns, beginning with the number `start`."""
        begun = time.perf_counter()
        sent = 0
        for at in range(start, start + count, FILL_ROWS):
            results = self._producer.send_columns(
                topic, bodies(at, min(FILL_ROWS, start + count - at), size), timeout_s=TIMEOUT_S
            )
            _ok(results.send_status)
            sent += len(results)
        return _rate(sent, time.perf_counter() - begun)

    def send_async(self, topic: str, size: int, seconds: float, window: int) -> dict[str, Any]:
        """Sends one message per call, with a result for each, and with at most `window` messages in flight."""
        body = b"x" * size
        producer = self._producer
        pending: deque[Any] = deque()
        done = 0
        begun = time.perf_counter()
        end = begun + seconds
        while time.perf_counter() < end:
            for _ in range(16):
                if len(pending) >= window:
                    _ok(pending.popleft().result(ANSWERED_S).send_status)
                    done += 1
                pending.append(producer.send_async(Message(topic, body)))
        while pending:
            _ok(pending.popleft().result(ANSWERED_S).send_status)
            done += 1
        return _rate(done, time.perf_counter() - begun)

    def send(self, topic: str, size: int, seconds: float, threads: int) -> dict[str, Any]:
        """Sends with blocking calls, and measures the time of each call."""
        body = b"x" * size
        producer = self._producer

        def once() -> int:
            _ok(producer.send(Message(topic, body)).send_status)
            return 1

        return _threads(threads, seconds, once, latencies=True)

    def send_list(self, topic: str, size: int, seconds: float, threads: int, batch: int) -> dict[str, Any]:
        """Makes new `Message` objects and sends them with `send_batch`."""
        body = b"x" * size
        producer = self._producer

        def once() -> int:
            results = producer.send_batch([Message(topic, body) for _ in range(batch)])
            _ok(results.send_status)
            return len(results)

        return _threads(threads, seconds, once)

    def send_columns(self, topic: str, size: int, seconds: float) -> dict[str, Any]:
        """Sends Arrow arrays with bodies, tags and keys, and has several calls in flight."""
        rows = min(COLUMN_ROWS, max(1, COLUMN_BYTES // size))
        values = bodies(0, rows, size)
        tags = pa.repeat(pa.scalar("tag"), rows)
        keys = pa.array([f"key-{number:08}" for number in range(rows)])
        producer = self._producer
        pending: deque[Any] = deque()
        done = 0
        begun = time.perf_counter()
        end = begun + seconds
        while time.perf_counter() < end:
            if len(pending) >= COLUMNS_IN_FLIGHT:
                done += _part_count(pending.popleft())
            pending.extend(producer.send_columns_async(topic, values, tags=tags, keys=keys))
        while pending:
            done += _part_count(pending.popleft())
        return _rate(done, time.perf_counter() - begun)

    def paced(self, topic: str, size: int, rate: int, seconds: float, latencies: int = 0) -> dict[str, Any]:
        """Sends `rate` messages a second, each at the time when it is due.  Each body begins with the time of the send
        (ns, 20 digits).

        With `latencies`, the time from when a message is due to its acknowledgement is measured as well.
        """
        filler = b"x" * (size - 20)
        pending: deque[Any] = deque()
        took: list[float] = []
        begun = time.perf_counter()
        sent = 0
        while sent < rate * seconds:
            due = min(int((time.perf_counter() - begun) * rate) + 1, int(rate * seconds))
            while sent < due:
                future = self._producer.send_async(Message(topic, b"%020d" % time.time_ns() + filler))
                if latencies:
                    future.add_done_callback(partial(_note, took, begun + sent / rate))
                pending.append(future)
                sent += 1
            while pending and pending[0].done():
                _ok(pending.popleft().result().send_status)
            time.sleep(0.001)
        for future in pending:
            _ok(future.result(ANSWERED_S).send_status)
        return _rate(sent, time.perf_counter() - begun) | (_latencies(took) if latencies else {})

    def commit_groups(self, topic: str, groups: int) -> dict[str, Any]:
        """Makes many groups, each of which commits an offset in every queue."""
        queues = self._consumer.message_queues(topic)
        begun = time.perf_counter()
        for number in range(groups):
            self._consumer.cluster.commit(f"lag-{number:05}", dict.fromkeys(queues, number % 7))
        return _rate(groups, time.perf_counter() - begun)

    # --- consumption that the broker keeps ------------------------------------------------------------------------

    def timers(self, topic: str, count: int, size: int, after_s: int, spread_s: int) -> dict[str, Any]:
        """Sends messages with a delivery time: the first is due in `after_s` seconds, and all of them within `spread_s`
        seconds from then.
        """
        body, producer, first = b"x" * size, self._producer, int(time.time()) + after_s
        pending: deque[Any] = deque()
        begun = time.perf_counter()
        for number in range(count):
            if len(pending) >= TIMERS_IN_FLIGHT:
                _ok(pending.popleft().result(ANSWERED_S).send_status)
            pending.append(producer.send_async(Message(topic, body), deliver_at=first + number * spread_s // count))
        for future in pending:
            _ok(future.result(ANSWERED_S).send_status)
        return _rate(count, time.perf_counter() - begun) | {"first_s": first}

    def pop_ack(self, topic: str, group: str, address: str, seconds: float, threads: int) -> dict[str, Any]:
        """Pops and acknowledges messages, with one call for each step; an empty pop is an error."""

        def once() -> int:
            handles = [message.receipt_handle for message in self._pop(topic, group, address, POP_MESSAGES).messages]
            if not handles:
                raise RuntimeError(f"{topic} is empty for {group}: too few messages for a run")
            self._ack(topic, group, address, handles)
            return len(handles)

        return _threads(threads, seconds, once)

    def pop(self, topic: str, group: str, address: str, count: int) -> dict[str, Any]:
        """Pops `count` messages, and leaves them unacknowledged for hours."""
        begun, left = time.perf_counter(), count
        while left:
            found = len(self._pop(topic, group, address, min(left, POP_MESSAGES)).messages)
            if not found:
                raise RuntimeError(f"{topic} has {left} messages too few for {group}")
            left -= found
        return _rate(count, time.perf_counter() - begun)

    def pop_groups(self, topic: str, address: str, groups: int, count: int, threads: int) -> dict[str, Any]:
        """Makes groups, each of which pops and acknowledges all `count` messages of the topic."""
        numbers = iter(range(groups))
        turn = threading.Lock()

        def once() -> int:
            with turn:
                number = next(numbers, None)
            if number is None:
                return 0
            group, left = f"popping-{number:05}", count
            while left:
                found = self._pop(topic, group, address, POP_MESSAGES).messages
                self._ack(topic, group, address, [message.receipt_handle for message in found])
                left -= len(found)
            return 1

        return _threads(threads, None, once)

    def _pop(self, topic: str, group: str, address: str, count: int) -> PopAnswer:
        call = PopCall(
            group=group,
            topic=topic,
            broker_name="broker-a",
            client_id="bench",
            max_messages=count,
            invisible_s=INVISIBLE_S,
            expression="*",
            expression_type="TAG",
            poll_s=0.0,
            attempt_id="",
        )
        return self._consumption.pop(address, call, TIMEOUT_S, UnderWay())

    def _ack(self, topic: str, group: str, address: str, handles: Sequence[str]) -> None:
        settled = self._consumption.ack(address, group, topic, "broker-a", handles, TIMEOUT_S)
        if settled.again or not all(settled.valid):
            raise RuntimeError(f"an ack of {len(handles)} messages of {topic} was not taken: {settled}")

    @property
    def _consumption(self) -> ConsumptionCalls:
        return self._consumer.cluster.transport.consumption

    # --- pulls ----------------------------------------------------------------------------------------------------

    def pull_columns(self, topic: str, crc: int = 0, limit: int = 0, grpc: int = 0) -> dict[str, Any]:
        """Reads a topic, or about `limit` of its messages, as RecordBatches with offset, timestamp and body.

        The records come over plain sockets if the broker offers sockets and `grpc` is not set, otherwise over gRPC.  In
        the answer, `over` is the transport that was used.
        """
        client, consumer = self._reader(sockets=not grpc)
        bounds = consumer.bounds(topic)
        count = size = total = crcs = frame_bytes = 0
        begun = time.perf_counter()
        by_broker: dict[str, list[QueueRange]] = {}
        for queue, found in bounds.items():
            until = found.max_offset
            if limit:
                until = min(until, found.min_offset + -(-limit // len(bounds)))
            queue_range = QueueRange(topic, queue.queue_id, found.min_offset, until)
            by_broker.setdefault(queue.broker_name, []).append(queue_range)
            total += queue_range.until_offset - queue_range.from_offset
        for broker_name, ranges in by_broker.items():
            for frame in consumer.pull_range(broker_name, ranges):
                records = Records.walk(frame.records, frame.count, frame.sizes or None)
                batch = pa.RecordBatch.from_arrays(
                    [
                        pa.array(records.queue_id),
                        pa.array(records.queue_offset),
                        pa.array(records.born_timestamp),
                        records.bodies(),
                    ],
                    names=["queueId", "queueOffset", "bornTimestamp", "body"],
                )
                count += batch.num_rows
                frame_bytes += len(frame.records)
                size += int(records.body_size.sum())
                if crc:
                    records.check()
                    crcs += int(records.body_crc.astype(np.int64).sum())
        seconds = time.perf_counter() - begun
        over = {carrier(client, client.route(topic).addresses(name)[MASTER_ID]) for name in by_broker}
        if count != total:
            raise RuntimeError(f"only {count} of {total} messages were read")
        return _rate(count, seconds) | {
            "bytes": size,
            "checksum": crcs,
            "frame_bytes": frame_bytes,
            "bytes_rate": frame_bytes / seconds,
            "over": ", ".join(sorted(over)),
        }

    def pull_messages(self, topic: str, seconds: float, batch: int) -> dict[str, Any]:
        """Reads with `pull`, and uses the body of every message."""
        consumer = self._consumer
        queues = list(consumer.bounds(topic))
        at = {queue: consumer.min_offset(queue) for queue in queues}
        count = size = 0
        begun = time.perf_counter()
        end = begun + seconds
        while time.perf_counter() < end and queues:
            for queue in list(queues):
                answer = consumer.pull(queue, at[queue], batch)
                at[queue] = answer.next_begin_offset
                for message in answer.messages:
                    size += len(message.body)
                    count += 1
                if answer.status is not PullStatus.FOUND:
                    queues.remove(queue)
        return _rate(count, time.perf_counter() - begun) | {"bytes": size}


def _ok(status: SendStatus) -> None:
    if status is not SendStatus.SEND_OK:
        raise RuntimeError(f"a message was stored, but its status is {status.name}")


def _part_count(future: Any) -> int:
    part = future.result(ANSWERED_S)
    _ok(part.send_status)
    return len(part.msg_ids)


def _rate(count: int, seconds: float) -> dict[str, Any]:
    return {"messages": count, "seconds": seconds, "rate": count / seconds}


def _threads(
    threads: int, seconds: float | None, once: Callable[[], int], *, latencies: bool = False
) -> dict[str, Any]:
    """Calls `once` repeatedly in each thread: for `seconds`, or, if `seconds` is None, until it returns 0.

    If a thread fails, raises the first failure.
    """
    counts = [0] * threads
    took: list[list[float]] = [[] for _ in range(threads)]
    failures: list[BaseException] = []
    begun = time.perf_counter()
    end = float("inf") if seconds is None else begun + seconds

    def work(index: int) -> None:
        try:
            while (before := time.perf_counter()) < end:
                done = once()
                if seconds is None and not done:
                    break
                counts[index] += done
                took[index].append(time.perf_counter() - before)
        except BaseException as error:
            failures.append(error)
            raise

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise RuntimeError(f"a send failed: {failures[0]}") from failures[0]
    answer = _rate(sum(counts), time.perf_counter() - begun)
    if latencies:
        every = [one for some in took for one in some]
        answer |= _latencies(every)
    return answer


def carrier(client: Cluster, address: str) -> str:
    """Returns the transport that the client uses for ranges of this broker.  The transport is known only after a first
    pull.
    """
    reads = client.transport.reads
    if not isinstance(reads, GrpcReads):
        return client.protocol
    streams = reads.streams
    has_socket = streams is not None and streams.offers.accepts(address) and not streams.offers.wants_offer(address)
    return "sockets" if has_socket else "gRPC"


def _note(took: list[float], since: float, _: Any) -> None:
    took.append(time.perf_counter() - since)


def _latencies(took: Sequence[float]) -> dict[str, Any]:
    return {"p50_ms": percentile(took, 0.5) * 1000, "p99_ms": percentile(took, 0.99) * 1000}


def main(name_server: str) -> None:
    load = Load(name_server)
    sends = ("fill", "send_async", "send", "send_list", "send_columns", "paced", "timers")
    others = ("commit_groups", "pull_columns", "pull_messages", "pop_ack", "pop", "pop_groups")
    serve({name: getattr(load, name) for name in (*sends, *others)})


if __name__ == "__main__":
    main(sys.argv[1])
