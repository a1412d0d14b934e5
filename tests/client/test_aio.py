"""The clients for asyncio against real brokers: cancelled calls leave nothing behind, and a close waits."""

import asyncio
import inspect
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rocketsim_client import (
    ClientClosed,
    Consumer,
    InvalidParameter,
    Message,
    MessageIllegal,
    MessageQueue,
    NoRoute,
    Producer,
    PullConsumer,
    PullStatus,
    RocketSimError,
    SendFailed,
    SendStatus,
    SqlExpression,
    Unreachable,
)
from rocketsim_client.aio import AsyncConsumer, AsyncProducer, AsyncPullConsumer
from testbed.polling import PATIENCE_S, PROCESS_PATIENCE_S, until, wait_until
from tests.client.conftest import RealPair
from tests.support.broker_thread import BrokerThread, broker_thread

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with broker_thread(tmp_path) as started:
        started.make_topic("T")
        yield started


def producer_of(broker: BrokerThread, **options: Any) -> AsyncProducer:
    return AsyncProducer(**{"cluster": broker.cluster, "timeout_s": PATIENCE_S} | options)


def consumer_of(broker: BrokerThread, group: str = "g", **options: Any) -> AsyncConsumer:
    return AsyncConsumer("", group, "T", **{"cluster": broker.cluster, "timeout_s": PATIENCE_S} | options)


def send(broker: BrokerThread, *bodies: bytes, message_group: str | None = None) -> None:
    with Producer(cluster=broker.cluster, timeout_s=PATIENCE_S) as producer:
        for body in bodies:
            producer.send(Message("T", body), message_group=message_group)


def stored(broker: BrokerThread) -> int:
    assert broker.cluster is not None
    return broker.cluster.bounds("T")[QUEUE].max_offset


@contextmanager
def silent(broker: BrokerThread) -> Iterator[Callable[[], None]]:
    """The broker answers nothing until the yielded function is called or the block ends."""
    is_silent, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_silent.set()
        goes_on.wait()

    thread = threading.Thread(target=broker.do, args=[hold])
    thread.start()
    assert is_silent.wait(PATIENCE_S)
    try:
        yield goes_on.set
    finally:
        goes_on.set()
        thread.join()


async def cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@asynccontextmanager
async def started(work: Coroutine[Any, Any, Any]) -> "AsyncIterator[asyncio.Task[Any]]":
    """Yields a task that has run up to its first wait, and cancels the task at the end of the block."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def refused(call: Awaitable[Any], error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        await call
    return str(caught.value)


# --- all of them -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "blocking"),
    [(AsyncProducer, Producer), (AsyncConsumer, Consumer), (AsyncPullConsumer, PullConsumer)],
)
def test_clients_for_asyncio_take_the_arguments_of_the_blocking_ones(own: type, blocking: type) -> None:
    assert inspect.signature(own) == inspect.signature(blocking)
    with pytest.raises(TypeError, match="no_such_option"):
        own("127.0.0.1:1", no_such_option=1)


async def test_messages_are_sent_received_and_acknowledged(broker: BrokerThread) -> None:
    async with producer_of(broker) as producer, consumer_of(broker) as consumer:
        results = await asyncio.gather(*(producer.send(Message("T", b"%d" % number)) for number in range(100)))
        assert {result.send_status for result in results} == {SendStatus.SEND_OK}
        found: list[bytes] = []
        async for message in consumer:
            found.append(message.body)
            await consumer.ack(message)
            if len(found) == 100:
                break
        assert sorted(found, key=int) == [b"%d" % number for number in range(100)]
        assert consumer.in_flight == consumer.in_flight_bytes == 0
        assert await consumer.receive(timeout_s=0) == []
    async with consumer_of(broker) as again:
        assert await again.receive(timeout_s=0) == []


# --- the producer ------------------------------------------------------------------------------------------------


async def test_the_order_of_sends_is_that_of_the_calls(broker: BrokerThread) -> None:
    async with producer_of(broker) as producer:
        sends = [producer.send(Message("T", b"x"), message_group="m") for _ in range(200)]
        results = await asyncio.gather(*sends)
    assert [result.queue_offset for result in results] == list(range(200))


async def test_batches_and_columns(broker: BrokerThread) -> None:
    async with producer_of(broker) as producer:
        assert len(await producer.send_batch([Message("T", b"a"), Message("T", b"b")])) == 2
        assert len(await producer.send_columns("T", pa.array([b"c", b"d"]))) == 2
        assert producer.stats.acknowledged == stored(broker) == 4
        assert "the body is empty" in await refused(producer.send(Message("T", b"")), MessageIllegal)


async def test_a_cancelled_send_goes_on_whole(broker: BrokerThread) -> None:
    async with producer_of(broker) as producer:
        await producer.send(Message("T", b"first"))  # so that the route is known
        with silent(broker):
            async with started(producer.send(Message("T", b"cancelled"))) as task:
                await until(lambda: producer.stats.sent == 2, "the send is under way")
                await cancelled(task)
    assert stored(broker) == 2  # `close` has waited for the send
    assert producer.stats.acknowledged == 2


async def test_a_send_that_is_cancelled_before_it_is_accepted_goes_on_too(broker: BrokerThread) -> None:
    async with producer_of(broker) as producer:
        async with started(producer.send(Message("T", b"cancelled at once"))) as task:
            await cancelled(task)
    assert stored(broker) == 1


async def test_a_cancelled_close_goes_on_and_a_second_one_waits_for_it(broker: BrokerThread) -> None:
    producer = producer_of(broker)
    await producer.send(Message("T", b"first"))
    with silent(broker) as answers:
        async with started(producer.send(Message("T", b"second"))) as sending:
            await until(lambda: producer.stats.sent == 2, "the send is under way")
            async with started(producer.close()) as closing:
                await cancelled(closing)
            async with started(producer.close()) as closing:
                assert not closing.done() and not sending.done()
                answers()
                await closing
            assert (await sending).send_status == SendStatus.SEND_OK
    assert stored(broker) == 2
    await producer.close()
    await refused(producer.send(Message("T", b"late")), ClientClosed)


async def test_a_send_fails_when_its_broker_has_ended(tmp_path: Path) -> None:
    with broker_thread(tmp_path) as broker:
        broker.make_topic("T")
        brokers = broker.brokers
        producer = AsyncProducer(brokers=brokers, timeout_s=PATIENCE_S)
        await producer.send(Message("T", b"stored"))
    async with producer:
        await refused(producer.send(Message("T", b"nobody takes it")), SendFailed)


async def test_flush_waits_for_what_was_given_before(broker: BrokerThread) -> None:
    async with producer_of(broker) as producer, started(producer.send(Message("T", b"x"))) as sending:
        await producer.flush()
        assert producer.stats.acknowledged == 1
        assert (await sending).send_status == SendStatus.SEND_OK


async def test_a_transaction_is_committed_or_rolled_back_by_the_end_of_its_block(broker: BrokerThread) -> None:
    async with producer_of(broker) as producer:
        async with producer.transaction() as transaction:
            sent = await transaction.send(Message("T", b"paid"))
            assert sent.send_status is SendStatus.SEND_OK and sent.msg_id == transaction.transaction_id
            assert stored(broker) == 0
        assert stored(broker) == 1 and transaction.status is not None
        assert await transaction.commit() is transaction.status
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction() as transaction:
                await transaction.send(Message("T", b"unpaid"))
                raise ZeroDivisionError
        await refused(transaction.commit(), RocketSimError)
        assert stored(broker) == 1


async def test_a_transaction_that_is_cancelled_in_its_send_is_rolled_back_after_the_send(broker: BrokerThread) -> None:
    transactions = []

    async def work() -> None:
        async with producer.transaction() as transaction:
            transactions.append(transaction)
            await transaction.send(Message("T", b"cancelled"))

    async with producer_of(broker) as producer:
        await producer.send(Message("T", b"first"))  # so that the route is known
        with silent(broker) as goes_on:
            async with started(work()) as task:
                await until(lambda: producer.stats.sent == 2, "the half message is under way")
                task.cancel()
                goes_on()
                with pytest.raises(asyncio.CancelledError):
                    await task
        (transaction,) = transactions
        assert transaction.transaction_id and transaction.status is not None
        await refused(transaction.commit(), RocketSimError)
    assert stored(broker) == 1


def test_the_end_of_the_event_loop_ends_no_send(
    broker: BrokerThread, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """`asyncio.run` cancels the remaining tasks and closes its loop before the broker's answer arrives."""
    producer = producer_of(broker)

    async def leave() -> None:
        await producer.send(Message("T", b"first"))
        with silent(broker) as answers:
            tasks.append(asyncio.create_task(producer.send(Message("T", b"second"))))
            await until(lambda: producer.stats.sent == 2, "the send is under way")
            threads.append(threading.Timer(0, answers))

    tasks: list[Any] = []
    threads: list[threading.Thread] = []
    asyncio.run(leave())
    asyncio.run(producer.close())
    assert stored(broker) == 2
    assert not caplog.records and capsys.readouterr().err == ""


# --- the consumer ------------------------------------------------------------------------------------------------


async def test_a_cancelled_receive_has_taken_nothing(broker: BrokerThread) -> None:
    """The message arrives, and the task is cancelled before it has run again."""
    async with consumer_of(broker) as consumer:
        async with started(consumer.receive()) as task:
            send(broker, b"a")
            wait_until(lambda: consumer.in_flight == 1, "the message", PATIENCE_S)  # this wait blocks the event loop
            await cancelled(task)
        (message,) = await consumer.receive(timeout_s=0)
        assert (message.body, message.delivery_attempt) == (b"a", 1)
        await consumer.ack(message)


async def test_what_comes_after_a_cancelled_receive_is_the_next_ones(broker: BrokerThread) -> None:
    async with consumer_of(broker) as consumer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(consumer)
        async with started(consumer.receive(timeout_s=PATIENCE_S)) as task:
            send(broker, b"a")
            (message,) = await task
        assert (message.body, message.delivery_attempt) == (b"a", 1)
        await consumer.ack(message)


async def test_what_nobody_has_taken_is_given_back_by_the_close(broker: BrokerThread) -> None:
    async with consumer_of(broker) as consumer:
        async with started(consumer.receive()) as task:
            send(broker, b"a", b"b")
            wait_until(lambda: consumer.in_flight > 0, "a message", PATIENCE_S)
            await cancelled(task)
    bodies: list[bytes] = []
    async with consumer_of(broker) as other:
        while len(bodies) < 2:
            for message in await other.receive(timeout_s=PATIENCE_S):
                bodies.append(message.body)
                assert message.delivery_attempt == 1
                await other.ack(message)
    assert sorted(bodies) == [b"a", b"b"]


async def test_each_message_goes_to_one_task(broker: BrokerThread) -> None:
    found: list[bytes] = []

    async def work(consumer: AsyncConsumer) -> None:
        async for message in consumer:
            found.append(message.body)
            await consumer.ack(message)

    async with consumer_of(broker) as consumer:
        tasks = [asyncio.create_task(work(consumer)) for _ in range(20)]
        await asyncio.to_thread(send, broker, *(b"%d" % number for number in range(50)))
        await until(lambda: len(found) >= 50, "all messages")
        await consumer.close()
        await asyncio.gather(*tasks)  # the iterations end with the consumer's close
    assert sorted(found, key=int) == [b"%d" % number for number in range(50)]


async def test_tasks_share_one_thread_that_asks(broker: BrokerThread) -> None:
    async with consumer_of(broker) as consumer:
        before = threading.active_count()
        tasks = [asyncio.create_task(consumer.receive()) for _ in range(50)]
        await asyncio.sleep(0)
        assert threading.active_count() <= before + 1
        await consumer.close()
        for task in tasks:
            await refused(task, ClientClosed)


async def test_a_receive_ends_in_its_own_time_while_another_one_waits(broker: BrokerThread) -> None:
    async with consumer_of(broker) as consumer, started(consumer.receive()) as long:
        assert await consumer.receive(timeout_s=0) == []
        assert await consumer.receive(timeout_s=0.01) == []
        assert not long.done()
        assert "at least 1" in await refused(consumer.receive(0), InvalidParameter)


async def test_a_cancelled_ack_goes_on(broker: BrokerThread) -> None:
    send(broker, b"a")
    async with consumer_of(broker) as consumer:
        (message,) = await consumer.receive(timeout_s=PATIENCE_S)
        with silent(broker):
            async with started(consumer.ack(message)) as task:
                await cancelled(task)
            async with started(consumer.close(PATIENCE_S)) as closing:
                await cancelled(closing)
    async with consumer_of(broker) as other:
        assert await other.receive(timeout_s=0) == []


async def test_an_ack_frees_the_next_message_of_a_group_in_order(broker: BrokerThread) -> None:
    broker.make_group("ordered", consume_message_orderly=True)
    send(broker, b"a", b"b", message_group="m")
    async with consumer_of(broker, "ordered") as consumer:
        (first,) = await consumer.receive(timeout_s=PATIENCE_S)
        async with started(consumer.receive(timeout_s=PATIENCE_S)) as task:
            assert await consumer.receive(timeout_s=0) == []
            await consumer.ack(first)
            (second,) = await task
        assert [first.body, second.body] == [b"a", b"b"]
        await consumer.nack(second, 0)
        (again,) = await consumer.receive(timeout_s=PATIENCE_S)
        assert (again.body, again.delivery_attempt) == (b"b", 2)
        await consumer.extend(again, 100)
        await consumer.ack(again)


async def test_errors_come_to_all_that_wait(broker: BrokerThread) -> None:
    topics = {"T": SqlExpression("price > 20")}
    async with AsyncConsumer("", "g", topics, cluster=broker.cluster, timeout_s=PATIENCE_S) as consumer:
        tasks = [asyncio.create_task(consumer.receive()) for _ in range(3)]
        for task in tasks:
            assert "enablePropertyFilter" in await refused(task, InvalidParameter)


async def test_a_receive_raises_when_its_time_is_over_and_no_broker_has_answered(tmp_path: Path) -> None:
    with broker_thread(tmp_path) as broker:
        broker.make_topic("T")
        consumer = AsyncConsumer("", "g", "T", brokers=broker.brokers, timeout_s=PATIENCE_S)
        assert await consumer.receive(timeout_s=0) == []
    async with consumer:
        await refused(consumer.receive(timeout_s=0.5), Unreachable)


@pytest.mark.cluster
async def test_an_iteration_outlives_its_broker(real_pair: Callable[[str], RealPair]) -> None:
    """The master is killed under a receive and a send, and comes again."""
    name_server, master, _ = await asyncio.to_thread(real_pair, "T")
    found: dict[bytes, int] = {}

    async def work(consumer: AsyncConsumer) -> None:
        async for message in consumer:
            found[message.body] = message.delivery_attempt
            await consumer.ack(message)

    options = {"timeout_s": PROCESS_PATIENCE_S, "poll_interval_s": 1}
    sent = [b"before", b"after"]
    async with (
        AsyncProducer(name_server, **options) as producer,
        AsyncConsumer(name_server, "g", "T", **options) as one,
    ):
        async with started(work(one)) as worker:
            await producer.send(Message("T", b"before"))
            await until(lambda: b"before" in found, "the first message", PROCESS_PATIENCE_S)
            await asyncio.to_thread(master.kill)
            async with started(producer.send(Message("T", b"cancelled"))) as cut:
                await cancelled(cut)
            await asyncio.to_thread(master.start)
            while True:
                try:
                    await producer.send(Message("T", b"after"))
                    break
                except RocketSimError:  # the master, or its route, is not there yet
                    continue
            await until(lambda: set(sent) <= found.keys(), "what was sent after the kill", PROCESS_PATIENCE_S)
            assert not worker.done()
            await one.close()
            await worker


# --- the pull consumer -------------------------------------------------------------------------------------------


async def test_a_queue_is_pulled_and_committed(broker: BrokerThread) -> None:
    send(broker, b"a", b"b")
    async with AsyncPullConsumer("", "pull", cluster=broker.cluster) as consumer:
        assert await consumer.message_queues("T") == [QUEUE]
        pulled = await consumer.pull(QUEUE, await consumer.min_offset(QUEUE))
        assert [message.body for message in pulled.messages] == [b"a", b"b"]
        assert await consumer.max_offset(QUEUE) == (await consumer.bounds("T"))[QUEUE].max_offset == 2
        assert await consumer.search_offset(QUEUE, 0) == 0
        assert await consumer.committed(QUEUE) == -1
        assert await consumer.commit(QUEUE, pulled.next_begin_offset) == 2
        await consumer.commit_all({QUEUE: 2})
        assert await consumer.committed_all([QUEUE]) == {QUEUE: 2}
        batches = [batch async for batch in consumer.read("T", columns=["body"])]
        assert pa.Table.from_batches(batches).column("body").to_pylist() == [b"a", b"b"]
        with pytest.raises(InvalidParameter):
            await anext(consumer.read("T", start="tomorrow"))


async def test_a_cancelled_pull_is_made_again(broker: BrokerThread) -> None:
    async with AsyncPullConsumer("", "pull", cluster=broker.cluster) as consumer:
        async with started(consumer.pull(QUEUE, 0, suspend=True)) as task:
            await cancelled(task)
        send(broker, b"a")
        pulled = await consumer.pull(QUEUE, 0, suspend=True)
        assert pulled.status is PullStatus.FOUND and [message.body for message in pulled.messages] == [b"a"]


async def test_a_close_ends_pulls_and_waits_for_commits(broker: BrokerThread) -> None:
    send(broker, b"a")
    consumer = AsyncPullConsumer(brokers=broker.brokers, group="pull", timeout_s=PATIENCE_S)
    await consumer.bounds("T")
    async with started(consumer.pull(QUEUE, 1, suspend=True, timeout_s=PATIENCE_S)) as pull:
        with silent(broker) as answers:
            async with started(consumer.commit(QUEUE, 1)) as commit, started(consumer.close()) as closing:
                await cancelled(commit)
                answers()
                await closing
        with pytest.raises(ClientClosed):
            await pull
    await refused(consumer.bounds("T"), ClientClosed)
    assert broker.cluster is not None
    assert broker.cluster.committed("pull", [QUEUE]) == {QUEUE: 1}


async def test_each_task_that_receives_gets_an_error_with_a_traceback_of_its_own(broker: BrokerThread) -> None:
    """One error that all tasks raise would have a traceback of thousands of lines."""
    async with AsyncConsumer("", "g", "Unknown", cluster=broker.cluster, timeout_s=PATIENCE_S) as consumer:
        receives = (consumer.receive(timeout_s=PATIENCE_S) for _ in range(10))
        errors = await asyncio.gather(*receives, return_exceptions=True)
    assert {type(error) for error in errors} == {NoRoute}
    lengths = {len(list(traceback.walk_tb(error.__traceback__))) for error in errors if isinstance(error, NoRoute)}
    assert len(set(map(id, errors))) == 10 and max(lengths) < 10
