"""A service that takes orders over HTTP and sends each to a topic (pip install fastapi uvicorn).  A task packs them.

cd examples && NAMESRV_ADDR=127.0.0.1:9876 uvicorn fastapi_service:app
curl --json '{"id": "7", "price": 2}' http://127.0.0.1:8000/orders
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from rocketsim_client import Message, RocketSimError
from rocketsim_client.aio import AsyncConsumer, AsyncProducer


class Order(BaseModel):
    id: str
    price: int


async def pack(consumer: AsyncConsumer, packed: list[str]) -> None:
    while True:
        try:
            async for message in consumer:
                try:
                    packed.append(message.json()["id"])
                except Exception:
                    await consumer.nack(message)  # after too many failures it goes to the topic %DLQ%packers
                else:
                    await consumer.ack(message)
        except RocketSimError:
            await asyncio.sleep(1)  # no broker answers


@asynccontextmanager
async def clients(app: FastAPI) -> AsyncIterator[None]:
    address, topic = os.environ["NAMESRV_ADDR"], os.environ.get("TOPIC", "Orders")
    app.state.topic, app.state.packed = topic, []
    async with AsyncProducer(address) as app.state.producer, AsyncConsumer(address, "packers", topic) as consumer:
        packing = asyncio.create_task(pack(consumer, app.state.packed))
        yield
        packing.cancel()  # an acknowledgement that is being sent still goes out
        await asyncio.wait([packing])


app = FastAPI(lifespan=clients)


@app.post("/orders", status_code=202)
async def take(order: Order) -> dict[str, str]:
    try:
        result = await app.state.producer.send(Message.json(app.state.topic, order.model_dump(), keys=order.id))
    except RocketSimError as error:
        # The client must send the order again.  If it is stored twice then, readers drop the copy by its key.
        raise HTTPException(503, f"order {order.id} may not be stored: {error}") from error
    return {"status": result.send_status.name}


@app.get("/packed")
async def packed() -> list[str]:
    return list(app.state.packed)
