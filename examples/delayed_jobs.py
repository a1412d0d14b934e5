"""Delayed jobs: sends reminders that are delivered later, and runs each when it arrives.

    python examples/delayed_jobs.py 127.0.0.1:9876 Jobs 5

`deliver_at` is the time of the delivery, at most three days from now.  `delay_level` is the number of an entry in the
broker's list of delays: 1 means one second, and 18 means two hours.
"""

import sys
import time

from rocketsim_client import Consumer, Message, Producer


def main(name_server: str, topic: str, seconds: str) -> None:
    due = time.time() + float(seconds)
    with Producer(name_server, group="reminders") as producer:
        producer.send(Message.json(topic, {"job": "at a time", "due": due}, deliver_at=due))
        producer.send(Message.json(topic, {"job": "after a delay", "due": time.time() + 1}, delay_level=1))

    left = 2
    with Consumer(name_server, "reminders", topic) as consumer:
        for message in consumer:
            job = message.json()
            print(job["job"], "early" if time.time() < job["due"] - 0.5 else "due", flush=True)
            consumer.ack(message)
            left -= 1
            if not left:
                break


if __name__ == "__main__":
    main(*sys.argv[1:])
