"""Real processes whose disk fails under pops, transactions and delivery times.  A failed read delays only the calls
that need its bytes; a failed write is refused and has no effect.
"""

import time
import zlib

import pytest
from rocketsim_proto import consumption_pb2 as pb
from rocketsim_proto import transactions_pb2 as transactions
from rocketsim_proto.consumption_pb2_grpc import ConsumptionStub
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record
from rocketsim_proto.transactions_pb2_grpc import TransactionsStub

from rocketsim_client.errors import RocketSimError, ServiceNotAvailable
from rocketsim_client.model import SendStatus
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from tests.cluster.one_broker import OneBroker
from tests.support.disk_faults import FaultyDisk

pytestmark = pytest.mark.cluster

HOUR_MS = 3_600_000
TIMES_S = (5, 20, 80)  # delivery times of messages: a slow machine may deliver the first ones before the disk fails


class Popping(OneBroker):
    """One broker's answers to pops of group g, and to transactions."""

    def pop(self, topic: str = "T", poll_ms: int = 0) -> dict[bytes, tuple[str, int]]:
        """Pops messages; returns the handle and the attempt of each, by its body."""
        request = pb.PopRequest(
            consumer_group="g", topic=topic, max_messages=32, invisible_ms=HOUR_MS, poll_ms=poll_ms, client_id="c"
        )
        popped = self._call(ConsumptionStub, "Pop", request)
        found, at = {}, 0
        for delivery in popped.deliveries:
            message = record.decode(popped.records, at)
            at += record.locate(popped.records, at).size
            found[message.body] = delivery.receipt_handle, delivery.attempt
        return found

    def ack(self, *handles: str) -> pb.SettleResponse:
        request = pb.AckRequest(consumer_group="g", topic="T", receipt_handles=handles)
        return self._call(ConsumptionStub, "Ack", request)

    def give_back(self, *handles: str) -> list[bool]:
        entries = [pb.ChangeInvisibleRequest.Entry(receipt_handle=handle, invisible_ms=0) for handle in handles]
        request = pb.ChangeInvisibleRequest(consumer_group="g", topic="T", entries=entries)
        return [*self._call(ConsumptionStub, "ChangeInvisible", request).valid]

    def prepare(self, name: str, topic: str = "X") -> None:
        data = record.encode(Record(topic, name.encode(), properties={record.PROPERTY_UNIQ_KEY: name}))
        request = transactions.PrepareRequest(topic=topic, record=data, crc32=zlib.crc32(data), producer_group="p")
        self._call(TransactionsStub, "Prepare", request)

    def commit_half(self, name: str, topic: str = "X") -> None:
        request = transactions.EndRequest(topic=topic, transaction_id=name, resolution="COMMIT")
        self._call(TransactionsStub, "End", request)

    def fill_a_file(self) -> None:
        """Appends so much that the next record is in another log file."""
        for _ in range(2):
            self.put("Filling", *[b"x" * 60_000] * 16)

    def _call(self, stub, method, request):  # type: ignore[no-untyped-def]
        return self.transport.channels.call(self.address, stub, method, request, PROCESS_PATIENCE_S)


@pytest.fixture
def started(processes, namesrv, alone):
    """`started(name, **keys)` starts a master with topics T, X and Late, and returns the process, its disk and its
    calls.
    """

    def start(name="broker-a", **keys):
        process = processes.broker(name, 0, namesrv, mappedFileSizeCommitLog=1 << 20, **keys)
        disk = FaultyDisk(process)
        process.start()
        broker = Popping(process, alone(process).transport)
        for topic in ("T", "X", "Late"):
            broker.update_topic(topic, 1)
        return process, disk, broker

    return start


def restarts_before_a_bad_file(process, disk, broker) -> str:
    """Restarts the broker, and makes the first file of the log unreadable; returns the text that an error then has."""
    assert process.stop() == 0
    process.start()
    broker.update_topic("T", 1)
    first = process.store / "commitlog" / f"{0:020d}"
    disk.fails(f"read EIO commitlog/{first.name}")
    return f"{first} cannot be read at "


def test_what_is_due_and_what_is_committed_waits_if_it_cannot_be_read_and_others_go_on(started):
    process, disk, broker = started()
    broker.put("T", b"bad")
    broker.prepare("half bad")
    (bad,) = [handle for handle, _ in broker.pop().values()]
    broker.fill_a_file()
    broker.put("T", b"good")
    broker.prepare("half good")
    (good,) = [handle for handle, _ in broker.pop().values()]
    says = restarts_before_a_bad_file(process, disk, broker)

    assert broker.give_back(bad, good) == [True, True]
    wait_until(
        lambda: f"message 0 of topic T cannot be delivered again to group g: {says}" in process.log(), "it says so"
    )
    assert {body: attempt for body, (_, attempt) in broker.pop(poll_ms=60_000).items()} == {b"good": 2}
    with pytest.raises(RocketSimError, match=says):
        broker.commit_half("half bad")
    broker.commit_half("half good")
    assert broker.bodies("X") == [b"half good"]
    assert broker.put("T", b"more").status == SendStatus.SEND_OK
    assert b"more" in broker.pop()

    disk.is_well()
    again = wait_until(lambda: broker.pop(poll_ms=10_000), "the message comes")
    assert {body: attempt for body, (_, attempt) in again.items()} == {b"bad": 2}
    broker.commit_half("half bad")
    assert broker.bodies("X") == [b"half good", b"half bad"]
    assert process.stop() == 0


def test_a_message_whose_time_has_come_waits_if_it_cannot_be_read_and_others_do_not(started):
    for number, time_s in enumerate(TIMES_S):
        process, disk, broker = started(f"broker-{number}")
        when = {"TIMER_DELIVER_MS": str(int((time.time() + time_s) * 1000))}
        broker.put("Late", b"bad", **when)
        broker.fill_a_file()
        broker.put("Late", b"good", **when)
        says = restarts_before_a_bad_file(process, disk, broker)
        wait_until(lambda broker=broker: b"good" in broker.bodies("Late"), "its time has come")
        if broker.bodies("Late") != [b"bad", b"good"]:
            break
    assert broker.bodies("Late") == [b"good"]
    assert f"a message with a delivery time waits: {says}" in process.log()
    disk.is_well()
    wait_until(lambda: broker.bodies("Late") == [b"good", b"bad"], "it can be read again")


def test_an_ack_that_the_log_does_not_take_is_refused_and_has_not_happened(started):
    process, disk, broker = started()
    broker.put("T", b"a", b"b")
    (a, _), (b, _) = broker.pop().values()
    assert list(broker.ack(a).valid) == [True]
    disk.fails("write EIO commitlog")
    for call in (lambda: broker.ack(b), lambda: broker.give_back(b), lambda: broker.prepare("half")):
        with pytest.raises(ServiceNotAvailable):
            call()
    assert broker.bodies("T") == [b"a", b"b"], "reads go on"
    process.kill()
    disk.is_well()
    process.start()
    broker.update_topic("T", 1)
    assert broker.give_back(a, b) == [False, True]
    assert broker.pop(poll_ms=60_000).keys() == {b"b"}


def test_after_a_sync_that_failed_an_ack_is_in_doubt_and_further_ones_are_refused(started):
    process, disk, broker = started(flushDiskType="SYNC_FLUSH")
    broker.put("T", b"a", b"b", b"c")
    (a, _), (b, _), (c, _) = broker.pop().values()
    answer = broker.ack(a)
    assert (list(answer.valid), answer.again) == ([True], False)
    disk.fails("sync EIO commitlog")
    answer = broker.ack(b)
    assert (list(answer.valid), answer.again) == ([True], True), "it is to be asked again"
    disk.is_well()
    with pytest.raises(ServiceNotAvailable):
        broker.ack(c)
    assert process.stop() == 0
    process.start()
    broker.update_topic("T", 1)
    assert broker.give_back(a, c) == [False, True]


def test_a_snapshot_that_cannot_be_written_keeps_nothing_from_being_stored(started):
    process, disk, broker = started()
    broker.put("T", b"a", b"b")
    (a, _), (b, _) = broker.pop().values()
    disk.fails("write EIO consumption.snapshot")
    assert list(broker.ack(a).valid) == [True]
    assert process.stop() == 0
    assert "the next start reads the journal and the log instead" in process.log()
    disk.is_well()
    process.start()
    broker.update_topic("T", 1)
    assert broker.give_back(a, b) == [False, True]
