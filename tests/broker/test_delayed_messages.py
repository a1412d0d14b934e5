"""Delayed messages are delivered in order, on time and exactly once, through restarts and failures."""

import asyncio
import errno
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record, RecordError

from broker_service.broker.core.broker import Queue
from broker_service.broker.reads.pull import Pull
from broker_service.delayed.schedule import DelayPosition, delivered_record, due_in_ms, replayed_positions
from broker_service.delayed.schedule_service import ScheduleService
from broker_service.errors import MessageIllegal, ReadFailed, StoreCorrupt
from broker_service.leadership.slave_link import SlaveLink
from broker_service.node.node import BrokerNode
from broker_service.store.commit_log import CommitLog
from broker_service.store.json_file import JsonFile
from broker_service.store.pull import GetMessageResult
from testbed.polling import until
from tests.support.brokers import (
    goes_by,
    message,
    put,
    put_send,
    running,
    send_of,
    time_of_trouble_passes,
)

SOON = {"message_delay_level": "1s 2s"}
LEVEL_1 = "SCHEDULE_TOPIC_XXXX"


class Log:
    """A log of these whole files."""

    def __init__(self, *files: bytes) -> None:
        self.files = files
        self.min_offset = 0
        self.end_offset = sum(map(len, files))

    def read(self, offset: int, size: int) -> bytes:
        start = 0
        for file in self.files:
            if offset < start + len(file):
                return file[offset - start :][:size]
            start += len(file)
        return b""

    @contextmanager
    def decoding(self, records: bytes, offset: int) -> Iterator[None]:
        try:
            yield
        except RecordError as error:
            raise self.damaged(offset + error.at, error.reason) from error

    def damaged(self, offset: int, reason: str) -> StoreCorrupt:
        return StoreCorrupt(f"damaged at log offset {offset}: {reason}")


def delivered(level: int, offset: int, body: bytes = b"x") -> bytes:
    return message("t", body, __DELAY_LEVEL=str(level), __DELAY_OFFSET=str(offset))


def at_the_end(position: DelayPosition, log: Log) -> DelayPosition:
    return [position, *replayed_positions(position, log)][-1]


def test_the_log_tells_how_far_each_level_is_delivered() -> None:
    log = Log(message("t", b"a") + delivered(1, 0) + delivered(3, 7) + delivered(1, 1) + message("t", b"b"))
    assert at_the_end(DelayPosition(), log) == DelayPosition(log.end_offset, {1: 2, 3: 8})


def test_a_mark_that_is_damaged_is_none() -> None:
    damaged = message("t", b"x", __DELAY_LEVEL="\x12", __DELAY_OFFSET="1"), message("t", b"x", __DELAY_LEVEL="1")
    log = Log(delivered(1, 0) + b"".join(damaged) + delivered(1, 2))
    assert at_the_end(DelayPosition(), log).offsets == {1: 3}


def test_what_is_known_already_is_not_read_again_and_never_taken_back() -> None:
    log = Log(b"garbage before the position" + delivered(1, 4))
    start = DelayPosition(len(b"garbage before the position"), {1: 2, 2: 9})
    assert at_the_end(start, log) == DelayPosition(log.end_offset, {1: 5, 2: 9})


def test_blank_records_end_files() -> None:
    first = delivered(1, 0)
    blank = record.BLANK.pack(20, record.BLANK_MAGIC) + bytes(12)
    log = Log(first + blank, delivered(1, 1))
    assert at_the_end(DelayPosition(), log).offsets == {1: 2}


def test_a_record_longer_than_a_read_is_read_too(monkeypatch: Any) -> None:
    monkeypatch.setattr("broker_service.delayed.schedule.READ_BYTES", 100)
    log = Log(delivered(1, 0) + delivered(1, 1, b"x" * 1000) + delivered(1, 2))
    assert at_the_end(DelayPosition(), log).offsets == {1: 3}


def test_files_that_expire_while_the_log_is_read_are_passed_over(monkeypatch: Any) -> None:
    monkeypatch.setattr("broker_service.delayed.schedule.READ_BYTES", 400)
    log = Log(*(delivered(1, offset) for offset in range(4)))
    read = log.read

    def outside_is_not_found(offset: int, max_bytes: int) -> bytes:
        assert offset >= log.min_offset
        return read(offset, max_bytes)

    monkeypatch.setattr(log, "read", outside_is_not_found)
    positions = replayed_positions(DelayPosition(), log)
    assert next(positions).offsets == {1: 1}
    log.min_offset = len(log.files[0]) * 3
    assert [position.offsets for position in positions] == [{1: 4}]


def test_a_damaged_log_is_noticed() -> None:
    with pytest.raises(StoreCorrupt, match="at log offset 0"):
        at_the_end(DelayPosition(), Log(bytes(500)))
    damaged = bytearray(delivered(1, 1))
    damaged[84:88] = b"\xff\xff\xff\xff"  # the body's size
    log = Log(delivered(1, 0) + damaged)
    with pytest.raises(StoreCorrupt, match=f"at log offset {len(damaged)}"):
        at_the_end(DelayPosition(), log)


def test_a_delivered_message_is_the_one_that_was_sent_and_says_where_it_waited() -> None:
    waiting = Record(
        topic=LEVEL_1,
        body=b"body",
        queue_id=2,
        flag=5,
        born_timestamp=9,
        reconsume_times=1,
        properties={"TAGS": "a", "UNIQ_KEY": "id", "DELAY": "3", "REAL_TOPIC": "t", "REAL_QID": "1"},
    )
    assert delivered_record(waiting, 3, 17) == replace(
        waiting,
        topic="t",
        queue_id=1,
        properties={
            "TAGS": "a",
            "UNIQ_KEY": "id",
            "REAL_TOPIC": "t",
            "REAL_QID": "1",
            "__DELAY_LEVEL": "3",
            "__DELAY_OFFSET": "17",
        },
    )


@pytest.mark.parametrize("lost", ["REAL_TOPIC", "REAL_QID"])
def test_a_message_that_does_not_say_where_it_belongs_cannot_be_delivered(lost: str) -> None:
    properties = {"REAL_TOPIC": "t", "REAL_QID": "1"}
    del properties[lost]
    with pytest.raises(ValueError, match="belongs"):
        delivered_record(Record(topic=LEVEL_1, body=b"", properties=properties), 1, 0)


@pytest.mark.parametrize(
    ("now_ms", "expected"),
    [
        (10_000, 1000),
        (10_999, 1),
        (11_000, 0),
        (90_000, 0),
        pytest.param(9_999, 0, id="stored in the future"),
        pytest.param(0, 0, id="stored long in the future"),
    ],
)
def test_a_message_is_due_after_its_delay_and_at_once_if_the_clock_went_back(now_ms: int, expected: int) -> None:
    assert due_in_ms(10_000, 1000, now_ms) == expected


# --- a whole broker ---------------------------------------------------------------------------------------------------


async def send_delayed(node: BrokerNode, *bodies: bytes, level: int = 1) -> None:
    for body in bodies:
        await put_send(node, send_of("t", message("t", body, 1, DELAY=str(level), UNIQ_KEY=body.decode())))


async def received(node: BrokerNode, queue_id: int = 1) -> list[bytes]:
    pulled = await node.wire.pulls.pull(Pull(group="g", topic="t", queue_id=queue_id, queue_offset=0))
    bodies, at = [], 0
    while at < len(pulled.records):
        bodies.append(record.decode(pulled.records, at).body)
        at += int.from_bytes(pulled.records[at : at + 4], "big")
    return bodies


async def until_received(node: BrokerNode, count: int) -> list[bytes]:
    await until(lambda: node.store.queues.bounds("t", 1)[1] >= count, f"{count} delivered")
    return await received(node)


def clock_of(node: BrokerNode) -> list[int]:
    """Replaces the broker's clock by a number that the test changes."""
    now = [node.broker.now_ms()]
    goes_by(node.broker, lambda: now[0])
    return now


async def test_messages_wait_for_their_level_and_arrive_in_order(tmp_path: Path) -> None:
    async with running(tmp_path, **SOON) as node:
        now = clock_of(node)
        await send_delayed(node, b"a", b"b")
        await send_delayed(node, b"later", level=2)
        now[0] += 999
        await node.schedule.deliver_due()
        assert node.store.queues.bounds("t", 1)[1] == 0
        now[0] += 1
        assert await until_received(node, 2) == [b"a", b"b"]
        now[0] += 1000
        assert await until_received(node, 3) == [b"a", b"b", b"later"]
        assert node.schedule.position().offsets == {1: 2, 2: 1}


async def test_a_clock_that_went_back_does_not_hold_up_a_level(tmp_path: Path) -> None:
    """RocketMQ's correctDeliverTimestamp: a message that was stored later than it is now is delivered at once."""
    async with running(tmp_path, **SOON) as node:
        now = clock_of(node)
        await send_delayed(node, b"before")
        now[0] -= 3_600_000
        await send_delayed(node, b"after")
        node.schedule.loop.wake()
        assert await until_received(node, 1) == [b"before"]
        await node.schedule.deliver_due()
        assert await received(node) == [b"before"]
        now[0] += 1000
        assert await until_received(node, 2) == [b"before", b"after"]


async def test_a_level_beyond_the_last_is_the_last(tmp_path: Path) -> None:
    async with running(tmp_path, **SOON) as node:
        await send_delayed(node, b"x", level=99)
        assert node.store.queues.bounds(LEVEL_1, 1) == (0, 1)


async def test_a_delayed_message_is_refused_in_a_batch(tmp_path: Path) -> None:
    async with running(tmp_path, **SOON) as node:
        with pytest.raises(MessageIllegal, match="batch"):
            await put(node, "t", b"a", b"b", DELAY="1")


async def deliver_all(node: BrokerNode, count: int) -> list[bytes]:
    clock_of(node)[0] += 100_000 * count
    node.schedule.loop.wake()
    return await until_received(node, count)


def forget_deliveries(folder: Path) -> None:
    """Removes the files of delivered positions, so that only the log knows what was delivered."""
    for name in ("config/delayOffset.json", "rocketsim/delay_position.json"):
        JsonFile(folder / name).remove()


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "not saved: SIGKILL"])
async def test_a_restart_neither_loses_nor_doubles(tmp_path: Path, saved: bool) -> None:
    async with running(tmp_path, **SOON) as node:
        await send_delayed(node, b"a", b"b")
        assert await deliver_all(node, 2) == [b"a", b"b"]
        await send_delayed(node, b"c")
        position = node.schedule.position()
    if not saved:
        forget_deliveries(tmp_path)
    async with running(tmp_path, **SOON) as node:
        assert await deliver_all(node, 3) == [b"a", b"b", b"c"]
        assert position.offsets == {1: 2}


async def test_an_older_position_is_brought_up_to_date_from_the_log(tmp_path: Path) -> None:
    async with running(tmp_path, **SOON) as node:
        await send_delayed(node, b"a")
        await deliver_all(node, 1)
        node.schedule.save()
        saved = (tmp_path / "rocketsim/delay_position.json").read_bytes()
        await send_delayed(node, b"b")
        await deliver_all(node, 2)
    (tmp_path / "rocketsim/delay_position.json").write_bytes(saved)
    JsonFile(tmp_path / "config/delayOffset.json").remove()
    async with running(tmp_path, **SOON) as node:
        await send_delayed(node, b"c")
        assert await deliver_all(node, 3) == [b"a", b"b", b"c"]


async def test_the_file_is_rocketmqs(tmp_path: Path) -> None:
    async with running(tmp_path, **SOON) as node:
        await send_delayed(node, b"a")
        await deliver_all(node, 1)
    written = JsonFile(tmp_path / "config/delayOffset.json").load()
    assert written is not None
    assert written["offsetTable"] == {"1": 1}
    assert written["dataVersion"]["counter"] == 1


async def test_rocketmqs_own_progress_is_taken_over(tmp_path: Path) -> None:
    async with running(tmp_path, **SOON) as node:
        await send_delayed(node, b"a", b"b")
    forget_deliveries(tmp_path)
    JsonFile(tmp_path / "config/delayOffset.json").save({"offsetTable": {"1": 1}})
    async with running(tmp_path, **SOON) as node:
        assert await deliver_all(node, 1) == [b"b"]


async def test_a_message_of_a_deleted_topic_is_dropped_and_the_next_one_comes(tmp_path: Path, caplog: Any) -> None:
    async with running(tmp_path, **SOON) as node:
        await put_send(node, send_of("gone", message("gone", b"x", DELAY="1")))
        node.topics.remove("gone", 1, {})
        await send_delayed(node, b"y")
        assert await deliver_all(node, 1) == [b"y"]
        assert "topic gone does not exist any more" in caplog.text


BAD_SECTOR = ReadFailed.of("commitlog/0", 4096, OSError(errno.EIO, os.strerror(errno.EIO)))


async def test_a_bad_sector_under_a_level_stops_that_level_alone_until_it_can_be_read(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **SOON) as node:
        await send_delayed(node, b"bad sector")
        await send_delayed(node, b"a", level=2)
        real = node.store.queues.get_message
        is_bad = True

        def failing(topic: str, queue_id: int, *rest: Any, **options: Any) -> GetMessageResult:
            if (topic, queue_id) == (LEVEL_1, 0) and is_bad:
                raise BAD_SECTOR
            return real(topic, queue_id, *rest, **options)

        monkeypatch.setattr(node.store.queues, "get_message", failing)
        assert await deliver_all(node, 1) == [b"a"]
        await send_delayed(node, b"b", level=2)
        assert await deliver_all(node, 2) == [b"a", b"b"]
        assert caplog.text.count(f"level 1 waits: {BAD_SECTOR}") == 1, "it is not asked all the time"
        is_bad = False
        time_of_trouble_passes(node.broker)
        assert await deliver_all(node, 3) == [b"a", b"b", b"bad sector"]


async def test_nothing_is_delivered_before_the_log_can_be_read_that_tells_what_was(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **SOON) as node:
        await send_delayed(node, b"a")
        await deliver_all(node, 1)
    forget_deliveries(tmp_path)
    monkeypatch.setattr("broker_service.broker.core.master_loop.AFTER_TROUBLE_S", 0.01)
    real, tries = CommitLog.read, []

    def failing(log: CommitLog, *where: int) -> bytes:
        tries.append(where)
        if len(tries) < 3:
            raise BAD_SECTOR
        return real(log, *where)

    monkeypatch.setattr(CommitLog, "read", failing)
    async with running(tmp_path, **SOON) as node:
        await send_delayed(node, b"b")
        assert await deliver_all(node, 2) == [b"a", b"b"]
    assert "delayed messages wait" in caplog.text


@pytest.mark.parametrize("end", ["fenced", "stopping"])
async def test_a_broker_that_takes_no_more_writes_delivers_no_more_of_what_is_due(tmp_path: Path, end: str) -> None:
    async with running(tmp_path, **SOON) as node:
        # more messages than are delivered in one step
        await send_delayed(node, *(b"%d" % number for number in range(100)))
        seen: list[int] = []

        def then_the_end_comes(queues: Iterable[Queue]) -> None:
            if ("t", 1) not in queues:
                return
            seen.append(node.store.queues.end("t", 1))
            if end == "fenced":
                node.mastership.newer_epoch(999, "a promoted slave")
            else:
                node.broker.stopping = True

        node.broker.visibility.arrived.append(then_the_end_comes)
        clock_of(node)[0] += 100_000
        node.schedule.loop.wake()
        await until(lambda: seen, "the first is delivered")
        for _ in range(100):
            await asyncio.sleep(0)
        assert node.store.queues.end("t", 1) == 1


async def test_saving_the_position_does_not_hold_up_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, threading.Thread] = {}
    save = JsonFile.save

    def noted(file: JsonFile, value: dict[str, Any]) -> None:
        threads[file.path.name] = threading.current_thread()
        save(file, value)

    async with running(tmp_path, **SOON, flush_delay_offset_interval=10) as node:
        await put(node, "t", b"x")  # makes the topic
        monkeypatch.setattr(JsonFile, "save", noted)
        await send_delayed(node, b"a")
        saved = {"delay_position.json", "delayOffset.json"}
        await until(lambda: saved <= threads.keys(), "saved")
        assert threading.main_thread() not in {threads[name] for name in saved}
        monkeypatch.undo()


async def test_a_slave_takes_the_masters_word_only_for_a_log_it_has(tmp_path: Path) -> None:
    async with running(tmp_path, **SOON) as node:
        await put(node, "t", b"x")
        end = node.store.end_offset
        files = JsonFile(tmp_path / "d.json"), JsonFile(tmp_path / "p.json")
        slave = ScheduleService(node.broker, *files)
        slave.take_masters_position(DelayPosition(end + 1, {1: 9}))  # the position lies beyond the end of this log
        assert slave.position().offsets == {}
        slave.take_masters_position(DelayPosition(end, {1: 5}))
        assert slave.position() == DelayPosition(end, {1: 5})
        slave.save()
        assert ScheduleService(node.broker, *files).position() == DelayPosition(end, {1: 5})
        slave.log_cut(end - 1)
        assert slave.position() == DelayPosition()


async def test_a_position_beyond_the_end_of_a_cut_leaves_the_disk_before_the_log_is_cut(tmp_path: Path) -> None:
    """A start after a crash could not tell that the log was cut and has other records since."""
    async with running(tmp_path, **SOON) as node:
        await put(node, "t", b"x")
        end = node.store.end_offset
        files = JsonFile(tmp_path / "d.json"), JsonFile(tmp_path / "p.json")
        slave = ScheduleService(node.broker, *files)
        slave.take_masters_position(DelayPosition(end, {1: 5}))
        slave.save()
        link = SlaveLink(
            node.broker, node.replication.metadata, slave, node.consumption.writer, node.storage.master_file
        )
        link.log_will_be_cut(end)
        assert ScheduleService(node.broker, *files).position() == DelayPosition(end, {1: 5})

        slave.take_masters_position(DelayPosition(end, {1: 6}))
        late = slave.saving()
        assert late is not None
        link.log_will_be_cut(end - 1)
        late()  # a thread began to save before the cut
        assert ScheduleService(node.broker, *files).position() == slave.position() == DelayPosition()


async def test_an_offset_that_goes_back_is_never_only_in_rocketmqs_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start takes the higher one of the two files' offsets, and a crash may come between the two writes."""
    async with running(tmp_path, **SOON) as node:
        await put(node, "t", b"x")
        end = node.store.end_offset
        files = JsonFile(tmp_path / "d.json"), JsonFile(tmp_path / "p.json")
        slave = ScheduleService(node.broker, *files)
        slave.take_masters_position(DelayPosition(end, {1: 5, 2: 1}))
        slave.save()
        slave.take_masters_position(DelayPosition(end, {1: 3, 2: 2}))
        states = []
        save = JsonFile.save

        def crashing(file: JsonFile, value: dict[str, Any]) -> None:
            save(file, value)
            states.append(ScheduleService(node.broker, *files).position().offsets)

        monkeypatch.setattr(JsonFile, "save", crashing)
        slave.save()
        assert states == [{1: 5, 2: 1}, {1: 3, 2: 2}, {1: 3, 2: 2}]


async def test_a_promoted_slave_forgets_its_masters_position_that_lay_beyond_its_log(tmp_path: Path) -> None:
    """Otherwise a clean stop would save it once the log has grown, and the next start would skip messages."""
    async with running(tmp_path, **SOON) as node:
        await put(node, "t", b"x")
        promoted = ScheduleService(node.broker, JsonFile(tmp_path / "d.json"), JsonFile(tmp_path / "p.json"))
        promoted.take_masters_position(DelayPosition(node.store.end_offset + 1, {1: 9}))
        promoted.begin()
        await put(node, "t", b"the log grows")
        delivering = asyncio.create_task(promoted.run())
        await asyncio.sleep(0)
        delivering.cancel()
        await asyncio.gather(delivering, return_exceptions=True)
        assert promoted.position() == DelayPosition(node.store.end_offset, {})


async def test_a_position_beyond_the_end_of_what_is_left_of_the_log_is_not_believed(tmp_path: Path) -> None:
    async with running(tmp_path, **SOON) as node:
        JsonFile(tmp_path / "p.json").save({"commitLogOffset": 10**9, "offsets": {"1": 9}})
        JsonFile(tmp_path / "d.json").save({"offsetTable": {"1": 9}})
        delivery_again = ScheduleService(node.broker, JsonFile(tmp_path / "d.json"), JsonFile(tmp_path / "p.json"))
        assert delivery_again.position() == DelayPosition()
