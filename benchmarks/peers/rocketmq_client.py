"""The load process of RocketMQ's official Python client, which runs in the environment of the Python peers.

The command is `python -m benchmarks.peers.rocketmq_client ENDPOINT TOPIC GROUP`.
"""

import sys
import time
from collections import deque
from typing import Any

from benchmarks.driver_loop import serve
from benchmarks.figures import percentile

SETTLE_S = 600.0


class Client:
    def __init__(self, endpoint: str, topic: str, group: str) -> None:
        from rocketmq.v5.client import ClientConfiguration, Credentials

        # RocketMQ's proxy waits for messages for at least 5 s, and refuses a receive whose deadline is sooner (code
        # 40018).  The time of a receive is await_duration plus `request_timeout`, so the default `request_timeout` of 3
        # s is too short.
        self._configuration = ClientConfiguration(endpoint, Credentials(), request_timeout=90)
        self._topic = topic
        self._group = group
        self._producer: Any = None
        self._consumer: Any = None

    def send_async(self, size: int, seconds: float, window: int) -> dict[str, Any]:
        producer, pending, done = self._sending(), deque[Any](), 0
        begun = time.perf_counter()
        while time.perf_counter() < begun + seconds:
            if len(pending) >= window:
                pending.popleft().result()
                done += 1
            pending.append(producer.send_async(self._message(size)))
        while pending:
            pending.popleft().result()
            done += 1
        taken = time.perf_counter() - begun
        return {"messages": done, "seconds": taken, "rate": done / taken}

    def send(self, size: int, seconds: float) -> dict[str, Any]:
        """Sends with blocking calls from one thread."""
        producer, took = self._sending(), []
        begun = time.perf_counter()
        while (before := time.perf_counter()) < begun + seconds:
            producer.send(self._message(size))
            took.append(time.perf_counter() - before)
        taken = time.perf_counter() - begun
        answer = {"messages": len(took), "seconds": taken, "rate": len(took) / taken}
        return answer | {"p99_ms": percentile(took, 0.99) * 1000}

    def _sending(self) -> Any:
        if self._producer is None:
            from rocketmq.v5.producer import Producer

            self._producer = Producer(self._configuration, (self._topic,))
            self._producer.startup()
        return self._producer

    def _message(self, size: int) -> Any:
        from rocketmq.v5.model import Message

        message = Message()
        message.topic = self._topic
        message.body = b"x" * size
        return message

    def consume(self, seconds: float, batch: int) -> dict[str, Any]:
        """Receives messages and acknowledges each of them.  The rate of receives is computed from the time of the
        receive calls alone, and the rate of acks from the time of the ack calls alone.

        A receive waits until there are messages, so an empty answer is an error.
        """
        consumer = self._ready()
        receives, acks, count = [], [], 0
        begun = time.perf_counter()
        while (before := time.perf_counter()) < begun + seconds:
            found = consumer.receive(batch, 60) or []
            receives.append(time.perf_counter() - before)
            if not found:
                raise RuntimeError("the topic is empty: too few messages for a run")
            count += len(found)
            for message in found:
                before = time.perf_counter()
                consumer.ack(message)
                acks.append(time.perf_counter() - before)
        taken = time.perf_counter() - begun
        return {
            "messages": count,
            "seconds": taken,
            "rate": count / taken,
            "receive_rate": count / sum(receives),
            "ack_rate": count / sum(acks),
            "receive_p99_ms": percentile(receives, 0.99) * 1000,
            "ack_p99_ms": percentile(acks, 0.99) * 1000,
        }

    def receive(self, seconds: float, batch: int) -> dict[str, Any]:
        """Receives messages without acknowledging them.  Received messages stay invisible for a minute, so each call
        needs messages that were not received before.
        """
        consumer = self._ready()
        count = size = 0
        begun = time.perf_counter()
        while time.perf_counter() < begun + seconds:
            for message in consumer.receive(batch, 60) or []:
                count += 1
                size += len(message.body)
        taken = time.perf_counter() - begun
        return {"messages": count, "seconds": taken, "rate": count / taken, "bytes": size}

    def _ready(self) -> Any:
        """Repeats receives until one succeeds, because RocketMQ's proxy needs the consumer's settings first.  Without
        the consumer's settings, the proxy refuses a receive (code 50001).
        """
        if self._consumer is None:
            from rocketmq.v5.consumer import SimpleConsumer
            from rocketmq.v5.exception import ClientException
            from rocketmq.v5.model import FilterExpression

            consumer = SimpleConsumer(
                self._configuration, self._group, {self._topic: FilterExpression()}, await_duration=2
            )
            consumer.startup()
            deadline = time.monotonic() + SETTLE_S
            while True:
                try:
                    consumer.receive(1, 10)
                    break
                except ClientException:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.5)
            self._consumer = consumer
        return self._consumer


def main(endpoint: str, topic: str, group: str) -> None:
    client = Client(endpoint, topic, group)
    serve({name: getattr(client, name) for name in ("send_async", "send", "receive", "consume")})


if __name__ == "__main__":
    main(*sys.argv[1:])
