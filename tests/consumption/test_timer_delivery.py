"""Each message with a delivery time reaches its topic once, and never early, through restarts and failures."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.reserved import STATE_TOPIC, TIMER_TOPIC

from broker_service.broker.core import master_loop
from broker_service.broker.core.broker import Queue
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.delayed import timer_delivery
from broker_service.errors import DiskFull, MessageIllegal, NotFound, ReadFailed, ServiceNotAvailable, SystemBusy
from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from broker_service.put_result import PutStatus
from broker_service.replication.catch_up import Cut
from broker_service.rocketmq_handover import timer_check
from broker_service.rocketmq_handover.timer_check import TimerCheck
from broker_service.state import timer_record
from broker_service.state.timers import Timers
from broker_service.state.transitions import Copied, Copying, Transition
from broker_service.store.commit_log import CommitLog
from broker_service.store.files import DiskUsage
from testbed.polling import until
from tests.consumption.test_pair import pair
from tests.support.brokers import (
    bodies_in,
    goes_by,
    message,
    metrics_of,
    put_send,
    running,
    send_of,
    slave_link,
    time_of_trouble_passes,
)

BAD_SECTOR = ReadFailed.of("commitlog/0", 4096, OSError(errno.EIO, os.strerror(errno.EIO)))


def forget_snapshots(root: Path) -> None:
    for path in (root / "rocketsim").glob("consumption.snapshot*"):
        path.unlink()


class Timed:
    """A broker whose clock is a number that the test moves."""

    def __init__(self, node: BrokerNode, now_ms: int) -> None:
        self.node = node
        self.now_ms = now_ms
        goes_by(node.broker, lambda: self.now_ms)

    @property
    def timers(self) -> Timers:
        self.node.consumption.writer.catch_up()
        return self.node.consumption.state.timers

    async def send(self, *bodies: bytes, in_ms: int = 5000, topic: str = "t") -> None:
        for body in bodies:
            await put_send(self.node, self.send_of(body, in_ms, topic))

    def send_of(self, body: bytes, in_ms: int = 5000, topic: str = "t") -> Any:
        deliver_ms = str(self.now_ms + in_ms)
        return send_of(topic, message(topic, body, 1, UNIQ_KEY=body.decode(), TIMER_DELIVER_MS=deliver_ms))

    async def recall(self, message_id: str, in_ms: int = 5000) -> None:
        recalled = timer_record.recall_record("t", message_id, self.now_ms + in_ms, self.now_ms)
        puts = self.node.puts
        assert await puts.safe(puts.append_own(recalled), 60) is PutStatus.PUT_OK

    async def later(self, ms: int) -> None:
        """Moves the clock by `ms`, and waits until the broker's own task has delivered everything that is due."""
        self.now_ms += ms
        self.node.consumption.timer_delivery.loop.wake()
        await until(self.nothing_is_due, "all that is due is delivered")

    def nothing_is_due(self) -> bool:
        return not self.timers.due(self.now_ms)

    def received(self, topic: str = "t", queue_id: int = 1) -> list[bytes]:
        store = self.node.store
        end = store.queues.end(topic, queue_id)
        found = store.queues.read_ranges([(topic, queue_id, 0, end)], 1 << 20) if end else None
        return bodies_in(b"".join(found.records)) if found else []


START = 2_000_000_000_000  # in the future, because a broker that has just started still uses the real clock


@asynccontextmanager
async def timed(root: Path, now_ms: int = START, **keys: Any) -> AsyncIterator[Timed]:
    async with running(root, **keys) as node:
        one = Timed(node, now_ms)
        if "t" not in node.topics.entries:
            node.topics.put(TopicConfig("t", 2, 2), 0)
        yield one


async def test_messages_arrive_at_their_time_in_the_order_of_their_times(tmp_path: Path) -> None:
    async with timed(tmp_path) as one:
        await one.send(b"c", in_ms=9001)
        await one.send(b"a", b"b")
        assert one.node.store.queues.bounds(TIMER_TOPIC, 0) == (0, 3)
        await one.later(4999)
        assert (one.received(), one.timers.count) == ([], 3)
        metrics = metrics_of(one.node)
        assert metrics["rocketsim_timers"] == 3.0
        await one.later(1)
        assert one.received() == [b"a", b"b"]
        await one.later(4001)  # the time of c has come, but the second that contains it ends in 999 ms
        assert one.received() == [b"a", b"b"]
        await one.later(999)
        assert (one.received(), one.timers.count) == ([b"a", b"b", b"c"], 0)


async def test_a_time_that_has_passed_is_no_delay(tmp_path: Path) -> None:
    async with timed(tmp_path) as one:
        await one.send(b"a", in_ms=0)
        await one.send(b"b", in_ms=-5000)
        assert one.received() == [b"a", b"b"]
        assert one.node.store.queues.end(TIMER_TOPIC, 0) == 0


async def test_a_clock_that_goes_back_delivers_nothing_before_its_time_and_nothing_twice(tmp_path: Path) -> None:
    async with timed(tmp_path) as one:
        await one.send(b"a")
        await one.later(5000)
        await one.send(b"b")
        await one.later(-3_600_000)
        assert one.received() == [b"a"]
        await one.later(3_605_000)
        assert one.received() == [b"a", b"b"]


async def test_a_message_comes_by_the_real_clock(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.topics.put(TopicConfig("t", 2, 2), 0)
        deliver_ms = str(node.broker.now_ms() + 300)
        await put_send(node, send_of("t", message("t", b"a", 1, TIMER_DELIVER_MS=deliver_ms)))
        await until(lambda: node.store.queues.end("t", 1), "delivered")
        assert node.broker.now_ms() >= int(deliver_ms)


async def test_a_recalled_message_does_not_come(tmp_path: Path) -> None:
    async with timed(tmp_path) as one:
        await one.send(b"a", b"b", b"c")
        for _ in range(2):
            await one.recall("b")
        await one.recall("never sent")
        await one.recall("c", in_ms=9000)  # a recall with another time means another message
        await one.later(9000)
        assert (one.received(), one.timers.count) == ([b"a", b"c"], 0)


async def test_what_a_client_may_not_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with timed(tmp_path) as one:
        soon = str(START + 5000)
        two = message("t", b"a", TIMER_DELIVER_MS=soon), message("t", b"b")
        with pytest.raises(MessageIllegal, match="batch"):
            await put_send(one.node, send_of("t", *two))
        with pytest.raises(MessageIllegal, match="259200"):
            await one.send(b"a", in_ms=timer_record.MAX_TIMER_DELAY_MS + 1)
        with pytest.raises(MessageIllegal, match="milliseconds since 1970"):
            await put_send(one.node, send_of("t", message("t", b"a", TIMER_DELIVER_MS="soon")))
        for forged in ({"__TIMER_SOURCE": "1 2"}, {"TIMER_DEL_UNIQKEY": "t+a"}):
            with pytest.raises(MessageIllegal, match="belongs to the broker"):
                await put_send(one.node, send_of("t", message("t", b"a", **forged)))
        monkeypatch.setattr("broker_service.broker.put.MAX_TIMERS", 1)
        await one.send(b"a")
        one.node.consumption.writer.catch_up()
        with pytest.raises(SystemBusy):
            await one.send(b"b")


async def test_a_delay_level_goes_before_a_time(tmp_path: Path) -> None:
    async with timed(tmp_path) as one:
        await put_send(one.node, send_of("t", message("t", b"a", DELAY="2", TIMER_DELIVER_MS=str(START + 90_000))))
        assert one.node.store.queues.end("SCHEDULE_TOPIC_XXXX", 1) == 1
        assert one.node.store.queues.end(TIMER_TOPIC, 0) == 0


async def test_a_delivered_message_is_in_a_queue_that_its_topic_has(tmp_path: Path) -> None:
    async with timed(tmp_path) as one:
        await one.send(b"a")
        one.node.topics.put(TopicConfig("t", 1, 1), 0)
        await one.later(5000)
        assert one.received(queue_id=0) == [b"a"]


async def test_above_the_warning_level_of_the_disk_what_is_due_comes_and_can_be_recalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with timed(tmp_path, disk_space_warning_level_ratio=90) as one:
        await one.send(b"a", b"b")
        monkeypatch.setattr(one.node.store.disk, "disk_usage", lambda _: DiskUsage(100, 5))
        one.node.store.retention.delete_expired(one.now_ms)
        with pytest.raises(DiskFull):
            await one.send(b"c")
        await one.recall("b")
        await one.later(5000)
        assert one.received() == [b"a"]


async def test_a_message_of_a_deleted_topic_is_dropped_and_the_next_one_comes(tmp_path: Path, caplog: Any) -> None:
    async with timed(tmp_path) as one:
        await one.send(b"x", topic="gone")
        await one.send(b"a")
        one.node.topics.remove("gone", 1, {})
        await one.later(5000)
        assert (one.received(), one.timers.count) == ([b"a"], 0)
        assert "topic gone does not exist any more" in caplog.text


async def test_more_messages_than_a_batch_and_larger_ones_come_too(tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(2 * timer_delivery.BATCH + 7)]
    async with timed(tmp_path, mapped_file_size_commit_log=8 << 20, max_message_size=4 << 20) as one:
        await one.send(*bodies)
        await put_send(one.node, send_of("t", message("t", bytes(3 << 20), 0, TIMER_DELIVER_MS=str(START + 5000))))
        await one.later(5000)
        assert one.received() == bodies
        assert one.node.store.queues.end("t", 0) == 1


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False], ids=["snapshot", "no snapshot: the whole log"])
async def test_a_restart_neither_loses_nor_doubles(tmp_path: Path, kept: bool) -> None:
    async with timed(tmp_path) as one:
        await one.send(b"a", b"b")
        await one.send(b"c", b"recalled", in_ms=8000)
        await one.recall("recalled", in_ms=8000)
        await one.later(5000)
        now_ms = one.now_ms
    if not kept:
        forget_snapshots(tmp_path)
    async with timed(tmp_path, now_ms) as one:
        assert (one.received(), one.timers.count) == ([b"a", b"b"], 3)
        await one.later(3000)
        assert (one.received(), one.timers.count) == ([b"a", b"b", b"c"], 0)


def dying(one: Timed, dies: Callable[[Transition], bool]) -> None:
    """From the first change for which `dies` is true, the state topic accepts no more records."""
    writer = one.node.consumption.writer
    append, dead = writer.append, []

    def appending(*changes: Transition) -> None:
        if dead or any(dies(change) for change in changes):
            dead.append(changes)
            raise DiskFull("the power is off")
        append(*changes)

    writer.append = appending  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("of", "delivered"), [(Copying, 0), (Copied, 3)], ids=["before the copies", "after the copies"]
)
@pytest.mark.parametrize("kept", [True, False], ids=["snapshot", "whole log"])
async def test_a_crash_within_a_batch_neither_loses_nor_doubles(
    tmp_path: Path, of: type[Transition], delivered: int, kept: bool
) -> None:
    """The log is left as by a kill: without the record COPYING and the copies, or with both but without the record
    COPIED.
    """
    async with timed(tmp_path) as one:
        dying(one, lambda change: isinstance(change, of))
        await one.send(b"a", b"b", b"c")
        one.now_ms += 5000
        with pytest.raises(DiskFull):
            await one.node.consumption.timer_delivery.deliver_due()
        assert (len(one.received()), one.timers.count) == (delivered, 3)
        now_ms = one.now_ms
    if not kept:
        forget_snapshots(tmp_path)
    async with timed(tmp_path, now_ms) as one:
        await one.later(0)
        assert (one.received(), one.timers.count, one.timers.copying) == ([b"a", b"b", b"c"], 0, None)


async def test_copies_that_a_full_disk_cut_off_are_made_up_for_and_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with timed(tmp_path) as one:
        delivery = one.node.consumption.timer_delivery
        await one.send(b"a")
        await one.send(b"u", topic="u")
        real = one.node.store.append

        def full(batch: Any, topic: str, *rest: Any) -> Any:
            if topic == "u":
                raise DiskFull("full")
            return real(batch, topic, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(one.node.store, "append", full)
            one.now_ms += 5000
            with pytest.raises(DiskFull):
                await delivery.deliver_due()
        assert (one.received(), one.received("u")) == ([b"a"], [])
        with pytest.raises(ServiceNotAvailable, match="found first"):
            delivery._settle(START // 1000 + 4, [(one.timers.oldest() or 0, None)])
        await delivery.deliver_due()
        assert (one.received(), one.received("u"), one.timers.count) == ([b"a"], [b"u"], 0)


async def test_a_bad_sector_holds_up_that_message_alone_until_it_can_be_read(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with timed(tmp_path) as one:
        await one.send(b"bad sector", b"a", b"recalled")
        await one.recall("recalled")
        bad = one.timers.first(START // 1000 + 4, 3)[::2]
        real = one.node.store.log.record_at

        def failing(log_offset: int) -> bytes:
            if log_offset in bad:
                raise BAD_SECTOR
            return real(log_offset)

        monkeypatch.setattr(one.node.store.log, "record_at", failing)
        one.now_ms += 5000
        one.node.consumption.timer_delivery.loop.wake()
        await until(lambda: one.received() == [b"a"], "the one that can be read")
        await one.send(b"b", in_ms=1000)
        one.now_ms += 1000
        one.node.consumption.timer_delivery.loop.wake()
        await until(lambda: one.received() == [b"a", b"b"], "and the next second")
        assert caplog.text.count("waits: commitlog/0 cannot be read at 4096") == 2, "they are not asked all the time"
        bad.clear()
        time_of_trouble_passes(one.node.broker)
        await one.later(0)
        assert one.received() == [b"a", b"b", b"bad sector"], "the recall that could be read counts"


async def test_nothing_is_delivered_before_the_log_can_be_read_that_tells_what_was(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with timed(tmp_path) as one:
        dying(one, lambda change: isinstance(change, Copied))
        await one.send(b"a", b"b")
        one.now_ms += 5000
        with pytest.raises(DiskFull):
            await one.node.consumption.timer_delivery.deliver_due()
        now_ms = one.now_ms
    monkeypatch.setattr(master_loop, "AFTER_TROUBLE_S", 0.01)
    real, tries = CommitLog.read, []

    def failing(log: CommitLog, *where: int) -> bytes:
        tries.append(where)
        if len(tries) < 3:
            raise BAD_SECTOR
        return real(log, *where)

    monkeypatch.setattr(CommitLog, "read", failing)
    async with timed(tmp_path, now_ms) as one:
        await one.later(0)
        assert one.received() == [b"a", b"b"]
    assert "messages with a delivery time wait" in caplog.text


@pytest.mark.parametrize("bad", ["behind the copies", "in the second copy"])
async def test_a_bad_sector_behind_copying_keeps_messages_waiting_for_a_minute_at_most(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    monkeypatch.setattr(timer_delivery, "READ_BYTES", 100)  # a record at a time
    # The broker's own task sleeps for an hour, so only the test delivers.
    for pause in ("LONGEST_SLEEP_S", "AFTER_TROUBLE_S"):
        monkeypatch.setattr(master_loop, pause, 3600.0)
    real = CommitLog.read
    async with timed(tmp_path) as one:
        delivery, store, broker = one.node.consumption.timer_delivery, one.node.store, one.node.broker
        dying(one, lambda change: isinstance(change, Copied))
        await one.send(b"a", b"b", b"c")
        await one.send(b"d", in_ms=9000)
        one.now_ms += 5000
        with pytest.raises(DiskFull):
            await delivery.deliver_due()
        for _ in range(2):
            await put_send(one.node, send_of("t", message("t", bytes(200), 0)))
        bad_at = store.queues.log_offsets("t", 1, 1)[0] if bad == "in the second copy" else store.end_offset - 1
        for _ in range(100):
            await asyncio.sleep(0)  # the broker's own task fails, too
        del one.node.consumption.writer.append  # from now on records of the state are written again
        started_s, later_s = broker.clock(), 0.0
        monkeypatch.setattr(broker, "clock", lambda: started_s + later_s)

        def failing(log: CommitLog, at: int, size: int) -> bytes:
            if at <= bad_at < at + size:
                raise BAD_SECTOR
            return real(log, at, size)

        monkeypatch.setattr(CommitLog, "read", failing)
        if bad == "in the second copy":
            with pytest.raises(ReadFailed):
                await delivery.deliver_due()
            later_s = 59.0
            with pytest.raises(ReadFailed):
                await delivery.deliver_due()
            assert one.received() == [b"a", b"b", b"c"]
            later_s = 60.0
        await delivery.deliver_due()
        twice = [b"b", b"c"] if bad == "in the second copy" else []
        assert one.received() == [b"a", b"b", b"c", *twice]
        assert ("may be delivered twice" in caplog.text) is bool(twice)
        one.now_ms += 4000
        await delivery.deliver_due()
        assert (one.received()[-1], one.timers.count, one.timers.copying) == (b"d", 0, None)


@pytest.mark.parametrize("end", ["fenced", "stopping"])
async def test_a_broker_that_takes_no_more_writes_delivers_no_more_of_what_is_due(tmp_path: Path, end: str) -> None:
    async with timed(tmp_path) as one:
        await one.send(*(b"%d" % number for number in range(2 * timer_delivery.BATCH)))
        seen: list[int] = []

        def then_the_end_comes(queues: Iterable[Queue]) -> None:
            if not one.received() or (STATE_TOPIC, 0) not in queues:
                return  # a batch is complete only once its record of the state is written
            seen.append(len(one.received()))
            if end == "fenced":
                one.node.mastership.newer_epoch(999, "a promoted slave")
            else:
                one.node.broker.stopping = True

        one.node.broker.visibility.arrived.append(then_the_end_comes)
        one.now_ms += 5000
        one.node.consumption.timer_delivery.loop.wake()
        await until(lambda: seen, "the first batch is delivered")
        for _ in range(100):
            await asyncio.sleep(0)
        assert one.node.store.queues.end("t", 1) == timer_delivery.BATCH


async def test_a_promoted_slave_delivers_what_its_master_has_not(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave, masters):
        master.topics.put(TopicConfig("t", 2, 2), 0)
        one = Timed(master, START)
        await one.send(b"a", b"b")
        await one.send(b"recalled", b"c", in_ms=9000)
        await one.recall("recalled", in_ms=9000)
        await one.later(5000)
        dying(one, lambda change: isinstance(change, Copied))
        await one.send(b"d", in_ms=1000)
        one.now_ms += 1000
        with pytest.raises(DiskFull):
            await master.consumption.timer_delivery.deliver_due()  # appends the copy of d, but no record after it
        await until(lambda: slave.store.end_offset == master.store.end_offset, "the slave has it")
        other = Timed(slave, one.now_ms)
        await until(lambda: other.timers.rebuilding() == one.timers.rebuilding(), "the slave knows it")
        await masters.aclose()
        await until(lambda: not slave.replication.slave.is_following(), "the slave is alone")
        other.now_ms += 3000
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        await until(other.nothing_is_due, "all is delivered")
        assert other.received() == [b"a", b"b", b"d", b"c"]
        assert (other.timers.count, other.timers.copying) == (0, None)


# --- retention --------------------------------------------------------------------------------------------------------


async def fill(one: Timed, files: int) -> None:
    """Fills log files with messages that are as old as the broker's clock says."""
    size = one.node.store.config.mapped_file_size_commit_log
    end = one.node.store.end_offset + files * size
    while one.node.store.end_offset < end:
        await put_send(one.node, send_of("t", message("t", bytes(size // 8), 0)))
    one.node.store.flush()


HOURS = {"delete_when": ";".join(map(str, range(24))), "file_reserved_time": 1, "mapped_file_size_commit_log": 1 << 16}


async def expire(one: Timed) -> None:
    """Expires log files several times, because a file is deleted only once the messages that were moved out of it are
    known to be on disk.
    """
    for _ in range(3):
        await one.node.retention.delete_expired()
        one.node.store.flush()


@pytest.mark.parametrize("kept", [True, False], ids=["snapshot", "whole log"])
async def test_what_waits_is_moved_before_its_log_file_expires(tmp_path: Path, kept: bool) -> None:
    async with timed(tmp_path, **HOURS) as one:
        await one.send(b"a", b"b", b"recalled", in_ms=8_000_000)
        await one.recall("recalled", in_ms=8_000_000)
        await fill(one, 2)
        one.now_ms += 7_200_000
        await expire(one)
        assert one.node.store.min_offset > 0
        assert (one.timers.oldest() or 0) >= one.node.store.min_offset
        assert one.timers.count == 2
        now_ms = one.now_ms
    if not kept:
        forget_snapshots(tmp_path)
    async with timed(tmp_path, now_ms, **HOURS) as one:
        assert one.timers.count == 2
        await one.later(800_000)
        assert (one.received(), one.timers.count) == ([b"a", b"b"], 0)


async def test_a_log_file_with_what_waits_stays_while_it_cannot_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    async with timed(tmp_path, **HOURS) as one:
        await one.send(b"a", in_ms=8_000_000)
        await fill(one, 2)
        one.now_ms += 7_200_000

        def full(*_: Any) -> None:
            raise DiskFull("full")

        with monkeypatch.context() as patch:
            patch.setattr(one.node.store, "append", full)
            await expire(one)
            assert one.node.store.min_offset == 0
            assert "log files stay because the messages" in caplog.text
        await expire(one)
        assert one.node.store.min_offset > 0
        await one.later(800_000)
        assert one.received() == [b"a"]


async def test_a_message_that_cannot_be_read_keeps_its_log_file_for_an_hour_and_is_settled_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    async with timed(tmp_path, **HOURS) as one:
        broker, store = one.node.broker, one.node.store
        await one.send(b"bad sector", b"a", in_ms=8_000_000)
        await fill(one, 2)
        assert one.timers.count == 2
        one.now_ms += 7_200_000
        real, started_s, later_s = store.log.record_at, broker.clock(), 0.0

        def failing(log_offset: int) -> bytes:
            if log_offset == 0:
                raise NotFound("expired") if store.min_offset else BAD_SECTOR
            return real(log_offset)

        monkeypatch.setattr(store.log, "record_at", failing)
        monkeypatch.setattr(broker, "clock", lambda: started_s + later_s)
        await expire(one)
        assert (store.min_offset, one.timers.count) == (0, 2), "it may be over in a moment"
        later_s = 3599.0
        await expire(one)
        assert store.min_offset == 0
        later_s = 3601.0
        await expire(one)
        assert store.min_offset > 0
        later_s = 3620.0
        await one.later(800_000)
        assert (one.received(), one.timers.count) == ([b"a"], 0)
        assert caplog.text.count("a message with a delivery time waits") == 1
        assert "is lost: its log file has expired" in caplog.text


async def test_nothing_expires_behind_a_record_of_the_state_that_cannot_be_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with timed(tmp_path, **HOURS) as one:
        await one.send(b"a", in_ms=8_000_000)
        await fill(one, 2)
        one.now_ms += 7_200_000

        def failing(log_offset: int) -> bytes:
            raise BAD_SECTOR

        with monkeypatch.context() as patch:
            patch.setattr(one.node.store.log, "record_at", failing)
            await expire(one)
            assert one.node.store.min_offset == 0
        await expire(one)
        assert one.node.store.min_offset > 0
        await one.later(800_000)
        assert one.received() == [b"a"]


async def test_nothing_expires_that_only_unflushed_records_have_moved(tmp_path: Path) -> None:
    async with timed(tmp_path, flush_interval_commit_log=3_600_000, **HOURS) as one:
        await one.send(b"a", in_ms=8_000_000)
        await fill(one, 2)
        one.now_ms += 7_200_000
        one.node.store.flush()
        for _ in range(5):
            await one.node.retention.delete_expired()
        assert one.timers.oldest() != 0, "it is moved"
        assert one.node.store.min_offset == 0
        await expire(one)
        assert one.node.store.min_offset > 0


# --- a real RocketMQ's file -------------------------------------------------------------------------------------------


async def test_a_clean_stop_says_where_a_real_rocketmq_goes_on(tmp_path: Path) -> None:
    """The stop writes the position at which RocketMQ goes on, even if the disk cannot read the message at this
    position.
    """

    def unreadable(log_offset: int) -> bytes:
        raise BAD_SECTOR

    async with timed(tmp_path) as one:
        await one.send(b"a", b"b")
        await one.send(b"c", b"d", in_ms=9000)
        await one.later(5000)
        one.node.store.log.record_at = unreadable
    path = tmp_path / "config/timercheck"
    data = path.read_bytes()
    assert len(data) == 4096
    numbers = [int.from_bytes(data[at : at + 8], "big") for at in range(0, 64, 8)]
    assert numbers == [START + 5000, 0, 2, 2, 0, START + 5000, 1, 0]
    assert timer_check.is_ours(data)
    async with timed(tmp_path, START + 5000) as one:
        await one.later(4000)
    with_none = timer_check.FIELDS.unpack_from(path.read_bytes())
    assert (with_none[2], with_none[3], with_none[6]) == (4, 4, 2)


async def test_no_file_is_made_without_messages_that_have_waited(tmp_path: Path) -> None:
    async with timed(tmp_path):
        pass
    assert not (tmp_path / "config/timercheck").exists()


@pytest.mark.parametrize("stopped_before", [False, True])
async def test_what_a_real_rocketmq_has_delivered_does_not_come_again(tmp_path: Path, stopped_before: bool) -> None:
    """RocketMQ has put the first three messages into its timer wheel, and has delivered two of these, which were due.
    Our broker must deliver only the one that is still in the wheel, and the message that is not in the wheel.

    If our broker stops before it has read RocketMQ's position, its next start reads the position.
    """
    async with timed(tmp_path) as one:
        await one.send(b"delivered")
        await one.send(b"in the wheel", in_ms=6000)
        await one.send(b"delivered, too")
        await one.send(b"not in the wheel")
    check = TimerCheck(START + 5000, 52, 3, 3, 0, START, 7)
    (tmp_path / "config/timercheck").write_bytes(timer_check.FIELDS.pack(*check).ljust(4096, b"\0"))
    forget_snapshots(tmp_path)
    if stopped_before:
        async with timed(tmp_path, START + 5000, broker_role=BrokerRole.SLAVE, broker_id=1):
            pass
    async with timed(tmp_path, START + 5000) as one:
        await until(lambda: one.timers.count <= 2, "it is read when the broker takes writes")
        await one.later(1000)
        assert one.received() == [b"not in the wheel", b"in the wheel"]
    again = timer_check.FIELDS.unpack_from((tmp_path / "config/timercheck").read_bytes())
    assert (again[1], again[6]) == (52, 8), "what is RocketMQ's own stays"


async def test_what_was_delivered_before_a_clean_stop_comes_again_if_that_was_cut_off_the_log(tmp_path: Path) -> None:
    """The slave that was promoted meanwhile had not heard of the delivery, and has not delivered the message itself."""
    async with timed(tmp_path) as one:
        await one.send(b"a")
        end = one.node.store.end_offset
        await one.later(8000)
        assert one.received() == [b"a"]
    async with timed(tmp_path, START + 8000, broker_role=BrokerRole.SLAVE, broker_id=1) as one:
        store = one.node.store
        store.truncate(end, None)
        slave_link(one.node).log_cut(Cut(end, end, end, None))
        assert one.received() == []
        await one.node.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        await one.later(0)
        assert one.received() == [b"a"]
