"""An outbox: orders that must reach the broker, also if none takes them now.

    python examples/outbox.py 127.0.0.1:9876 TopicTest outbox-folder 7 8 9

What no broker takes is SPOOLED: it waits in the folder, on this machine's disk, and is sent later, by this process or
by the next one with the folder.
"""

import sys

from rocketsim_client import CallTimeout, Message, Producer


def main(name_server: str, topic: str, folder: str, *orders: str) -> None:
    with Producer(name_server, group="outbox", spool=folder) as producer:
        for order in orders:
            # The key lets readers find an order that comes twice.
            result = producer.send(Message.json(topic, {"id": order}, keys=order, message_group=order))
            print("order", order, result.send_status.name)
        try:
            producer.drain_spool(timeout_s=10)
        except CallTimeout:
            print(producer.spool_status().records, "orders wait in", folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
