"""Producer.transaction against a real broker in this process."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_service.admin.operations import Operations
from broker_service.errors import ServiceNotAvailable
from broker_service.modes import BrokerRole
from broker_service.put_result import PutStatus
from rocketsim_client import (
    ClientClosed,
    Cluster,
    CommitStatus,
    Consumer,
    InvalidParameter,
    Message,
    MessageIllegal,
    NotFound,
    Producer,
    SendFailed,
    SendStatus,
)
from rocketsim_client.errors import CallTimeout
from testbed.polling import PATIENCE_S, wait_until
from tests.support.broker_thread import BrokerThread, broker_thread

NEVER_MS = 3_600_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    """It asks nobody."""
    with broker_thread(tmp_path, transaction_time_out=NEVER_MS) as started:
        started.make_topic("T", 2)
        yield started


@pytest.fixture
def asking_broker(tmp_path: Path) -> Iterator[BrokerThread]:
    """Yields a broker that asks about open transactions at once, again and again, and never gives up."""
    with broker_thread(
        tmp_path, transaction_time_out=1, transaction_check_interval=20, transaction_check_max=65_535
    ) as started:
        started.make_topic("T", 2)
        yield started


def producer_of(broker: BrokerThread, **options: Any) -> Producer:
    return Producer(**{"cluster": broker.cluster, "timeout_s": PATIENCE_S} | options)


def received(broker: BrokerThread) -> list[bytes]:
    """Returns the bodies that readers see, each message once."""
    with Consumer("", "g", "T", cluster=broker.cluster, timeout_s=PATIENCE_S) as consumer:
        messages = consumer.receive(timeout_s=0)
        if messages:
            consumer.ack(messages)
        return sorted(message.body for message in messages)


def open_ones(broker: BrokerThread) -> dict[str, int]:
    """Returns the ids of open transactions, and how often producers were asked about each."""

    def look() -> dict[str, int]:
        consumption = broker.node.consumption
        consumption.writer.catch_up()
        return {name: prepared.checks for (_, name), prepared in consumption.state.transactions.open.items()}

    return broker.do(look)


def test_a_message_is_seen_after_the_end_of_the_block(broker: BrokerThread) -> None:
    with producer_of(broker) as producer:
        with producer.transaction() as transaction:
            result = transaction.send(Message("T", b"paid", tags="A"))
            assert (result.send_status, result.msg_id) == (SendStatus.SEND_OK, transaction.transaction_id)
            assert received(broker) == []
        assert received(broker) == [b"paid"]
        assert open_ones(broker) == {} and producer.stats.acknowledged == 1
        transaction.commit()  # committing twice is no error
        with pytest.raises(NotFound, match="has ended already, with COMMIT"):
            transaction.rollback()
        assert received(broker) == []


def test_an_exception_rolls_back_and_goes_on(broker: BrokerThread) -> None:
    with producer_of(broker) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction() as transaction:
            transaction.send(Message("T", b"unpaid"), message_group="g")
            raise ZeroDivisionError
        assert received(broker) == [] and open_ones(broker) == {}
        with pytest.raises(NotFound, match="ROLLBACK"):
            transaction.commit()


@pytest.mark.parametrize(
    ("keys", "status"),
    [
        pytest.param({}, CommitStatus.COMMIT_OK, id="ASYNC_MASTER"),
        pytest.param(
            {"broker_role": BrokerRole.SYNC_MASTER, "slave_wait_time_ms": 0},
            CommitStatus.SLAVE_NOT_AVAILABLE,
            id="SYNC_MASTER without a slave",
        ),
    ],
)
def test_an_end_says_who_has_it(tmp_path: Path, keys: dict[str, Any], status: CommitStatus) -> None:
    with broker_thread(tmp_path, transaction_time_out=NEVER_MS, **keys) as broker, producer_of(broker) as producer:
        broker.make_topic("T")
        with producer.transaction() as transaction:
            transaction.send(Message("T", b"1"))
            assert transaction.status is None
        assert transaction.status is status
        assert transaction.commit() is status  # again
        with pytest.raises(ZeroDivisionError), producer.transaction() as transaction:
            transaction.send(Message("T", b"2"))
            raise ZeroDivisionError
        assert transaction.status is status
        assert transaction.rollback() is status


def test_an_end_that_a_slave_does_not_take_says_so(broker: BrokerThread) -> None:
    passed_s = 0.0

    async def late(*_: Any) -> PutStatus:
        nonlocal passed_s
        passed_s += PATIENCE_S
        return PutStatus.FLUSH_SLAVE_TIMEOUT

    broker.node.consumption.transactions.end = late  # type: ignore[method-assign]
    with producer_of(broker, clock=lambda: passed_s) as producer:
        with pytest.raises(SendFailed, match="FLUSH_SLAVE_TIMEOUT"), producer.transaction() as transaction:
            transaction.send(Message("T", b"1"))
    assert transaction.status is None


def test_a_transaction_may_be_ended_in_its_block_and_by_hand(broker: BrokerThread) -> None:
    with producer_of(broker) as producer:
        with producer.transaction() as transaction:
            transaction.send(Message("T", b"a"))
            transaction.rollback()
        by_hand = producer.transaction()
        queue = producer.publish_queues("T")[1]
        assert by_hand.send(Message("T", b"b"), queue=queue).message_queue == queue
        by_hand.commit()
        with producer.transaction():
            pass  # without a message there is nothing to commit
    assert received(broker) == [b"b"]


def test_what_cannot_be_in_a_transaction_is_refused(broker: BrokerThread) -> None:
    with producer_of(broker) as producer:
        with producer.transaction() as transaction:
            transaction.send(Message("T", b"one"))
            with pytest.raises(InvalidParameter, match="one message"):
                transaction.send(Message("T", b"two"))
        with transaction:
            pass  # a second block has nothing to end
        with producer.transaction() as transaction:
            with pytest.raises(MessageIllegal, match="the body is empty"):
                transaction.send(Message("T", b""))
            transaction.send(Message("T", b"nothing was sent before"))
        with pytest.raises(MessageIllegal, match="cannot be delayed"):
            producer.transaction().send(Message("T", b"x", delay_level=1))
        with pytest.raises(MessageIllegal, match="leave out deliver_at"):
            producer.transaction().send(Message("T", b"x", deliver_at=4e9))
        with pytest.raises(MessageIllegal, match="the body is empty"):
            producer.transaction().send(Message("T", b""))
        with pytest.raises(InvalidParameter, match="no message"):
            producer.transaction().commit()
        with pytest.raises(InvalidParameter, match="checker"):
            producer.check_transactions("T")
    with pytest.raises(ClientClosed):
        producer.transaction()


def test_transactions_within_others_end_by_themselves(broker: BrokerThread) -> None:
    with producer_of(broker) as producer:
        with producer.transaction() as outer:
            outer.send(Message("T", b"outer"))
            with producer.transaction() as inner:
                inner.send(Message("T", b"inner"))
            with pytest.raises(ZeroDivisionError), producer.transaction() as failed:
                failed.send(Message("T", b"failed"))
                raise ZeroDivisionError
            assert received(broker) == [b"inner"] and list(open_ones(broker)) == [outer.transaction_id]
        assert received(broker) == [b"outer"] and open_ones(broker) == {}


def test_a_producer_that_is_closed_in_the_block_leaves_its_transaction_open_and_says_so(broker: BrokerThread) -> None:
    producer = Producer(brokers=broker.brokers, timeout_s=PATIENCE_S)
    with pytest.raises(ClientClosed, match=r"topic 'T' is not committed: its producer .* the broker asks"):
        with producer.transaction() as transaction:
            transaction.send(Message("T", b"1"))
            producer.close()
    assert list(open_ones(broker)) == [transaction.transaction_id]


def test_the_transactions_of_a_topic_that_is_deleted_are_over(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    def delete() -> None:
        broker.run(Operations(broker.node.broker, broker.node.leadership).delete_topic("T"))
        broker.make_topic("T")

    with producer_of(broker) as producer:
        with pytest.raises(NotFound, match="topic T"), producer.transaction() as transaction:
            transaction.send(Message("T", b"1"))
            delete()
        with pytest.raises(ZeroDivisionError), producer.transaction() as transaction:
            transaction.send(Message("T", b"2"))
            delete()
            raise ZeroDivisionError
    assert received(broker) == []
    (said,) = [one for one in caplog.records if one.name.endswith("sending.transactions")]
    assert said.levelno == logging.WARNING and "was not open any more" in said.getMessage()


def test_a_commit_that_a_broker_refuses_for_a_moment_is_tried_again(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = broker.node.consumption.transactions.end, []

    async def refuses_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise ServiceNotAvailable("a moment, please")
        return await real(*arguments)

    monkeypatch.setattr(broker.node.consumption.transactions, "end", refuses_once)
    with producer_of(broker) as producer, producer.transaction() as transaction:
        transaction.send(Message("T", b"1"))
    assert len(calls) == 2 and received(broker) == [b"1"]


def test_a_commit_without_an_answer_says_that_nothing_is_known(broker: BrokerThread, tmp_path: Path) -> None:
    passed_s = 0.0

    async def refuses(*_: Any) -> Any:
        nonlocal passed_s
        passed_s += PATIENCE_S
        raise ServiceNotAvailable("not now")

    broker.node.consumption.transactions.end = refuses  # type: ignore[method-assign]
    with producer_of(broker, clock=lambda: passed_s) as producer:
        with pytest.raises(SendFailed, match="it is not known whether it is committed") as caught:
            with producer.transaction() as transaction:
                transaction.send(Message("T", b"1"))
        assert caught.value.maybe_stored and list(open_ones(broker)) == [transaction.transaction_id]
        with pytest.raises(ZeroDivisionError), producer.transaction() as transaction:
            transaction.send(Message("T", b"2"))
            raise ZeroDivisionError  # a rollback that fails does not hide this error


def test_a_transaction_is_never_spooled(tmp_path: Path) -> None:
    with broker_thread(tmp_path / "broker") as broker:
        broker.make_topic("T")
        cluster = Cluster("", brokers=broker.brokers, timeout_s=PATIENCE_S)
        producer = Producer(cluster=cluster, spool=tmp_path / "spool", timeout_s=0.3)
        with producer.transaction(timeout_s=PATIENCE_S) as transaction:
            transaction.send(Message("T", b"1"))
        assert received(broker) == [b"1"]
    with cluster, producer:
        with pytest.raises(SendFailed), producer.transaction() as transaction:
            transaction.send(Message("T", b"2"))
        assert producer.spool_status().records == 0


def test_what_a_dead_producer_has_left_open_is_answered_by_another_ones_checker(asking_broker: BrokerThread) -> None:
    with producer_of(asking_broker) as dead:
        ids = {body: dead.transaction().send(Message("T", body, tags="A")).msg_id for body in (b"yes", b"no")}
    asked: list[bytes] = []

    def checker(message: Any) -> bool | None:
        assert (message.topic, message.tags, message.msg_id) == ("T", "A", ids[message.body])
        asked.append(message.body)
        if asked.count(message.body) == 1:
            return None  # asked again
        if asked.count(message.body) == 2:
            raise ZeroDivisionError  # asked again, too
        return bool(message.body == b"yes")

    with producer_of(asking_broker, checker=checker) as other:
        other.check_transactions("T")
        wait_until(lambda: not open_ones(asking_broker), "the end of both transactions")
    assert received(asking_broker) == [b"yes"]
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("rocketsim-check")]


def test_a_transaction_that_is_not_over_is_not_answered_for(asking_broker: BrokerThread) -> None:
    asked: list[str] = []
    with producer_of(asking_broker, checker=lambda message: asked.append(message.msg_id)) as producer:
        with producer.transaction() as transaction:
            transaction.send(Message("T", b"1"))
            name = transaction.transaction_id
            first = open_ones(asking_broker)[name]
            wait_until(lambda: open_ones(asking_broker)[name] > first + 3, "some questions")
            # checked before the block ends, because a question that is under way at its end may still be asked
            assert asked == []
        held = producer.transaction()
        held.send(Message("T", b"2"))
        wait_until(lambda: open_ones(asking_broker)[held.transaction_id] > 3, "some questions")
        assert held.transaction_id not in asked
    assert received(asking_broker) == [b"1"]


def test_what_nobody_can_end_any_more_is_answered_for(asking_broker: BrokerThread) -> None:
    def fails(producer: Producer) -> None:
        producer.transaction().send(Message("T", b"1"))  # this transaction is neither used as a block nor ended

    with producer_of(asking_broker, checker=lambda message: True) as producer:
        fails(producer)
        wait_until(lambda: not open_ones(asking_broker), "the answer of this producer's own checker")
    assert received(asking_broker) == [b"1"]


def with_lost_answers(monkeypatch: pytest.MonkeyPatch, producer: Producer, lost: Callable[[str], bool]) -> None:
    """Loses the answers to half messages at the addresses for which `lost` is true."""
    calls = producer.cluster.transport.transactions
    prepare = calls.prepare

    def prepare_and_lose(address: str, *arguments: Any) -> Any:
        answer = prepare(address, *arguments)
        if lost(address):
            raise CallTimeout("the answer was lost")
        return answer

    monkeypatch.setattr(calls, "prepare", prepare_and_lose)


def test_a_half_message_whose_answer_was_lost_is_answered_for(
    asking_broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    def checker(message: Any) -> bool:
        asked.append(message.body)
        return False

    with producer_of(asking_broker, checker=checker, retry_times_when_send_failed=0) as producer:
        with_lost_answers(monkeypatch, producer, lambda address: True)
        with pytest.raises(SendFailed) as caught, producer.transaction() as transaction:
            transaction.send(Message("T", b"lost"))
        assert caught.value.maybe_stored
        wait_until(lambda: asked and not open_ones(asking_broker), "the answer to the question")
    assert set(asked) == {b"lost"} and received(asking_broker) == []


def test_the_copy_at_the_broker_whose_answer_was_lost_is_answered_for(
    asking_broker: BrokerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"transaction_time_out": 1, "transaction_check_interval": 20, "transaction_check_max": 65_535}
    with broker_thread(tmp_path / "b", broker_name="broker-b", **times) as other:
        other.make_topic("T", 2)
        brokers = asking_broker.brokers | {"broker-b": {0: other.node.address}}
        lost: list[str] = []

        def first(address: str) -> bool:
            lost.append(address)
            return len(lost) == 1

        with Producer(brokers=brokers, timeout_s=PATIENCE_S, checker=lambda message: True) as producer:
            with_lost_answers(monkeypatch, producer, first)
            with producer.transaction() as transaction:
                transaction.send(Message("T", b"1"))
            wait_until(lambda: not open_ones(asking_broker) and not open_ones(other), "the end of the other copy")
        ids = []
        for name, address in brokers.items():
            with Consumer("", "g", "T", brokers={name: address}, timeout_s=PATIENCE_S) as consumer:
                ids += [message.msg_id for message in consumer.receive(timeout_s=PATIENCE_S)]
    assert len(set(lost)) == 2 and ids == [transaction.transaction_id] * 2


def test_without_a_checker_the_broker_gives_up_in_the_end(tmp_path: Path) -> None:
    with broker_thread(
        tmp_path, transaction_time_out=1, transaction_check_interval=1, transaction_check_max=2
    ) as broker:
        broker.make_topic("T")
        with producer_of(broker) as producer:
            transaction = producer.transaction()
            transaction.send(Message("T", b"1"))
            wait_until(lambda: not open_ones(broker), "that the broker has given up")
            with pytest.raises(NotFound):
                transaction.commit()
        assert received(broker) == []


def test_a_child_has_no_part_in_its_parents_transactions(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    with producer_of(broker) as producer:
        transaction = producer.transaction()
        with monkeypatch.context() as child:
            with transaction:
                transaction.send(Message("T", b"1"))
                child.setattr("os.getpid", lambda: -1)
        assert len(open_ones(broker)) == 1
        transaction.commit()
        producer.forget_parent()
        with producer.transaction() as own:
            own.send(Message("T", b"2"))
    assert received(broker) == [b"1", b"2"]
