"""RocketMQ's official Python client as a driver: `python -m benchmarks.peers.rocketmq_client ENDPOINT TOPIC GROUP`.

Runs in the Python peers' environment.
"""

import sys
import time
from collections import deque
from typing import Any

from benchmarks.driver_loop import serve

SETTLE_S = 60.0


class Client:
    def __init__(self, endpoint: str, topic: str, group: str) -> None:
        from rocketmq.v5.client import ClientConfiguration, Credentials

        # The proxy waits for messages for at least 5 s, and refuses (40018) a receive with less time: its deadline is
        # await_duration plus this, whose default of 3 s is too short.
        self._configuration = ClientConfiguration(endpoint, Credentials(), request_timeout=30)
        self._topic = topic
        self._group = group
        self._producer: Any = None
        self._consumer: Any = None

    def send_async(self, size: int, seconds: float, window: int) -> dict[str, Any]:
        from rocketmq.v5.model import Message
        from rocketmq.v5.producer import Producer

        if self._producer is None:
            self._producer = Producer(self._configuration, (self._topic,))
            self._producer.startup()
        body, pending, done = b"x" * size, deque[Any](), 0
        begun = time.perf_counter()
        while time.perf_counter() < begun + seconds:
            if len(pending) >= window:
                pending.popleft().result()
                done += 1
            message = Message()
            message.topic = self._topic
            message.body = body
            pending.append(self._producer.send_async(message))
        while pending:
            pending.popleft().result()
            done += 1
        taken = time.perf_counter() - begun
        return {"messages": done, "seconds": taken, "rate": done / taken}

    def receive(self, seconds: float, batch: int) -> dict[str, Any]:
        """Receives without acknowledging.  Received messages are invisible for a minute, so new ones are needed."""
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
        """Receives until the proxy has the consumer's settings; before that it answers 50001."""
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
    serve({"send_async": client.send_async, "receive": client.receive})


if __name__ == "__main__":
    main(*sys.argv[1:])
