"""A clean stop during pops and acks: what was answered OK is stored after the next start, everything else was answered
with an error, and the stop waits for no client.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketsim_proto import consumption_pb2 as pb
from rocketsim_proto.consumption_pb2_grpc import ConsumptionStub

from broker_service.errors import ServiceNotAvailable
from broker_service.pop.deliveries import PopStatus
from testbed.polling import PATIENCE_S, until
from tests.consumption.test_consumption import OK, Consumer, consumer
from tests.consumption.test_gathering import begun
from tests.consumption.test_pair import pair
from tests.support.brokers import put, stub_of

COUNT = 400
IN_TURN = 4  # the number of clients, each of which sends its acks one after the other
ACKED = 20
# status codes of the broker, and of gRPC once it takes no more calls
REFUSALS = {"FAILED_PRECONDITION", "UNAVAILABLE", "CANCELLED"}


async def all_bodies(one: Consumer) -> list[bytes]:
    found: list[bytes] = []
    while bodies := await one.bodies(max_messages=32):
        found += bodies
    return sorted(found)


def ack_of(*handles: str) -> pb.AckRequest:
    return pb.AckRequest(consumer_group="g", topic="t", receipt_handles=handles)


@pytest.mark.usefixtures("no_ticks")
async def test_what_is_pending_when_a_stop_begins_is_refused_and_has_not_happened(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b", b"c", b"d")
        a, b, c = (await one.pop(max_messages=3)).deliveries
        assert await one.ack(c) == [OK]
        calls = await begun(one, one.ack(a), one.nack(b), one.pop())
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, ServiceNotAvailable) and "is stopping" in str(answer)
    async with consumer(tmp_path) as one:
        assert one.committed() == 0
        assert await one.bodies() == [b"d"], "the pop that was refused has taken nothing"
        assert await one.ack(a, b) == [OK, OK], "they are where they were"
        assert one.committed() == 3


async def test_of_the_acks_that_clients_send_until_the_broker_is_gone_each_one_that_is_ok_stays(
    tmp_path: Path,
) -> None:
    bodies = [b"%03d" % number for number in range(COUNT)]
    acked: set[bytes] = set()
    in_doubt: set[bytes] = set()
    is_time = asyncio.Event()

    async def client(stub: Any, some: list[tuple[bytes, str]]) -> str:
        for body, handle in some:
            try:
                answer = await stub.Ack(ack_of(handle), timeout=PATIENCE_S)
            except grpc.aio.AioRpcError as error:
                in_doubt.add(body)
                return error.code().name
            assert list(answer.valid) == [True] and not answer.again
            acked.add(body)
            if len(acked) == ACKED:
                is_time.set()
        return "it was never refused"

    async with AsyncExitStack() as broker:
        one = await broker.enter_async_context(consumer(tmp_path))
        await put(one.node, "t", *bodies)
        handles = []
        while found := (await one.pop(max_messages=32)).deliveries:
            handles += [(bodies[delivery.queue_offset], delivery.receipt_handle) for delivery in found]
        poll = asyncio.ensure_future(one.pop(poll_s=PATIENCE_S))
        async with stub_of(one.node, ConsumptionStub) as stub:
            clients = asyncio.gather(*(client(stub, handles[number::IN_TURN]) for number in range(IN_TURN)))
            await asyncio.wait_for(is_time.wait(), PATIENCE_S)
            await broker.aclose()
            assert set(await clients) <= REFUSALS
        assert (await poll).status is PopStatus.NO_MESSAGE
    assert ACKED <= len(acked) < COUNT - IN_TURN
    async with consumer(tmp_path) as one:
        await one.later(3_600_000)
        again = set(await all_bodies(one))
    assert not again & acked and set(bodies) - acked - in_doubt <= again


async def test_an_ack_that_waits_for_a_slave_is_answered_by_the_stop_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ack is answered as a put is: stored, but less safely than the mode promises.  If the stop did not answer, the
    ack would wait until its own timeout.
    """
    async with pair(tmp_path, slave_timeout=600_000) as (master, _, masters), stub_of(master, ConsumptionStub) as stub:
        await put(master, "t", b"a", b"b")
        handles = [it.receipt_handle for it in (await Consumer(master).pop()).deliveries]
        monkeypatch.setattr(master.acknowledgements, "on_ack", lambda *_: None)
        acks = [asyncio.ensure_future(stub.Ack(ack_of(handle), timeout=PATIENCE_S)) for handle in handles]
        await until(lambda: str(master.acknowledgements).endswith("| 2 puts waiting"), "both wait for the slave")
        await masters.aclose()
        answers = await asyncio.gather(*acks)
        assert [(list(answer.valid), answer.again) for answer in answers] == [([True], True)] * 2
    async with consumer(tmp_path / "m", slave_wait_time_ms=0) as one:
        assert one.committed() == 2
