"""A worker: consumes JSON messages of a topic, and acknowledges each one when the work for it is done.

    python examples/worker.py 127.0.0.1:9876 Orders

Several workers that run at the same time share the messages of their group.  A worker that gets SIGTERM ends after it
has finished its present message.
"""

import signal
import sys
import threading
from typing import Any

from rocketsim_client import Consumer, RocketSimError


def work(order: Any) -> None:
    """Does the work for a message.  A message can be delivered twice, so doing the work twice must do no harm."""
    print("order", order["id"], "is packed", flush=True)


def main(name_server: str, topic: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Consumer(name_server, "workers", topic, max_in_flight=100) as consumer:
        while not stop.is_set():
            try:
                message = consumer.poll(timeout_s=1)
            except RocketSimError as error:  # no broker answers, or the topic does not exist
                print("no order can be read:", error, flush=True)
                stop.wait(3)
                continue
            if message is None:
                continue
            try:
                work(message.json())
            except Exception as error:
                # The message is delivered again after a back-off, and after too many failures goes to the topic
                # %DLQ%workers.
                print("message", message.msg_id, "has failed:", repr(error), flush=True)
                consumer.nack(message)
            else:
                consumer.ack(message)


if __name__ == "__main__":
    main(*sys.argv[1:])
