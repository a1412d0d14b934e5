"""An outbox: sends orders that must reach a broker, even if no broker is available now.

    python examples/outbox.py 127.0.0.1:9876 Orders outbox-folder 7 8 9

If no broker takes an order, its status is SPOOLED.  A spooled order waits in the folder on this machine's disk, until
this process, or a later one with the same folder, can send it.
"""

import sys

from rocketsim_client import CallTimeout, Message, Producer


def main(name_server: str, topic: str, folder: str, *orders: str) -> None:
    with Producer(name_server, group="outbox", spool=folder) as producer:
        for order in orders:
            # By the key, readers recognize an order that arrives twice.
            result = producer.send(Message.json(topic, {"id": order}, keys=order, message_group=order))
            print("order", order, result.send_status.name)
        try:
            producer.drain_spool(timeout_s=10)
        except CallTimeout:
            print(producer.spool_status().records, "orders wait in", folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
