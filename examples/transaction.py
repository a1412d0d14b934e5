"""A transaction: readers see the message if, and only if, the database has committed the payment.

    python examples/transaction.py 127.0.0.1:9876 Payments payments.db 7

If the process dies after the commit of the database and before that of the message, the broker asks the `checker` of
the next process, which looks for the payment in the database.
"""

import sqlite3
import sys

from rocketsim_client import Message, MessageView, Producer


def is_paid(database: str, order: str) -> bool:
    with sqlite3.connect(database) as connection:
        return connection.execute("SELECT 1 FROM paid WHERE id = ?", [order]).fetchone() is not None


def main(name_server: str, topic: str, database: str, order: str) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS paid (id TEXT PRIMARY KEY)")

    def checker(message: MessageView) -> bool:
        return is_paid(database, message.keys or "")

    with Producer(name_server, group="payments", checker=checker) as producer:
        # Answers the broker's questions about transactions that an earlier process has left open.
        producer.check_transactions(topic)
        with producer.transaction() as transaction:
            transaction.send(Message.json(topic, {"id": order, "paid": True}, keys=order))
            with sqlite3.connect(database) as connection:  # an error here rolls back both the database and the message
                connection.execute("INSERT INTO paid VALUES (?)", [order])
        print("order", order, "is paid:", transaction.status.name if transaction.status else "")


if __name__ == "__main__":
    main(*sys.argv[1:])
