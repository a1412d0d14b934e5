"""The load process of confluent-kafka, which runs in the peers' environment as `python -m benchmarks.peers.kafka_client
ADDRESS`.
"""

import sys
import time
import zlib
from typing import Any

from benchmarks.driver_loop import serve

# By default librdkafka pauses fetching for a second whenever 100,000 messages wait.
TUNED = {"fetch.queue.backoff.ms": 5, "queued.min.messages": 1_000_000}


def main(address: str) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    def producer() -> Any:
        return Producer(
            {
                "bootstrap.servers": address,
                "acks": "1",
                "linger.ms": 5,
                "queue.buffering.max.messages": 500_000,
                "partitioner": "random",
                "sticky.partitioning.linger.ms": 10,
            }
        )

    def fill(topic: str, count: int, size: int) -> dict[str, Any]:
        """Sends numbered bodies in the format of bodies.py."""
        made, filler = producer(), b"x" * (size - 20)
        begun = time.perf_counter()
        for number in range(count):
            _produce(made, topic, b"%020d" % number + filler)
            if not number & 1023:
                made.poll(0)
        if left := made.flush(60):
            raise RuntimeError(f"{left} messages were not acknowledged")
        seconds = time.perf_counter() - begun
        return {"messages": count, "seconds": seconds, "rate": count / seconds}

    def consume(topic: str, crc: int = 0) -> dict[str, Any]:
        """Reads the whole topic in lists of up to 10,000 messages and uses every value."""
        consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False, **TUNED})
        total, at = 0, []
        for number in consumer.list_topics(topic, timeout=10).topics[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number))
            total += high - low
            at.append(TopicPartition(topic, number, low))
        count = size = crcs = 0
        begun = time.perf_counter()
        consumer.assign(at)
        while count < total:
            found = consumer.consume(num_messages=min(10_000, total - count), timeout=1.0)
            count += len(found)
            for message in found:
                size += len(message.value())
            if crc:
                crcs += sum(zlib.crc32(message.value()) for message in found)
        seconds = time.perf_counter() - begun
        consumer.close()
        return {"messages": count, "seconds": seconds, "rate": count / seconds, "bytes": size, "checksum": crcs}

    def paced(topic: str, size: int, rate: int, seconds: int) -> dict[str, Any]:
        """Sends `rate` messages a second.  Each body begins with the time of the send (ns, 20 digits)."""
        made, filler = producer(), b"x" * (size - 20)
        begun, sent = time.perf_counter(), 0
        while sent < rate * seconds:
            due = min(int((time.perf_counter() - begun) * rate) + 1, rate * seconds)
            while sent < due:
                _produce(made, topic, b"%020d" % time.time_ns() + filler)
                sent += 1
            made.poll(0)
            time.sleep(0.001)
        if left := made.flush(60):
            raise RuntimeError(f"{left} messages were not acknowledged")
        return {"messages": sent, "rate": sent / (time.perf_counter() - begun)}

    serve({"fill": fill, "consume": consume, "paced": paced})


def _produce(producer: Any, topic: str, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value)
            return
        except BufferError:
            producer.poll(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
