"""An asyncio service: reads orders from one topic and writes an invoice for each to another.

    python examples/async_service.py 127.0.0.1:9876 Orders Invoices

On SIGTERM, the service ends after it has finished the orders that it is working on.  If the process dies between the
send of an invoice and the acknowledgement of its order, the order is read again, and its invoice is sent twice.
Readers can recognize the second invoice by its key and drop it.
"""

import asyncio
import signal
import sys

from rocketsim_client import Message, ReceivedMessage, RocketSimError
from rocketsim_client.aio import AsyncConsumer, AsyncProducer

TASKS = 10


async def invoice(order: ReceivedMessage, producer: AsyncProducer, topic: str) -> None:
    value = order.json()
    await producer.send(Message.json(topic, {"order": value["id"], "total": value["price"]}, keys=str(value["id"])))


async def receive(consumer: AsyncConsumer) -> list[ReceivedMessage]:
    try:
        return await consumer.receive(1, timeout_s=1)
    except RocketSimError as error:  # no broker answers, or the topic does not exist
        print("no order can be read:", error, flush=True)
        await asyncio.sleep(3)
        return []


async def work(consumer: AsyncConsumer, producer: AsyncProducer, topic: str, stop: asyncio.Event) -> None:
    while not stop.is_set():
        for order in await receive(consumer):
            try:
                await invoice(order, producer, topic)
            except Exception as error:
                print("order", order.msg_id, "has failed:", repr(error), flush=True)
                await consumer.nack(order)
            else:
                await consumer.ack(order)


async def main(name_server: str, orders: str, invoices: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with (
        AsyncProducer(name_server, group="invoices") as producer,
        AsyncConsumer(name_server, "invoices", orders) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(TASKS):
            tasks.create_task(work(consumer, producer, invoices, stop))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
