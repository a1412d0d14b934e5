"""Records that are damaged on the disk below the flushed offset: readers skip them or fail, and say where the damage
is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record, RecordError
from rocketsim_proto.reserved import HALF_TOPIC, OP_TOPIC, STATE_TOPIC, TIMER_TOPIC

from broker_service.admin.operations import Operations
from broker_service.broker.core import master_loop
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.delayed import timer_delivery
from broker_service.errors import DiskFull, StoreCorrupt
from broker_service.pop.expiry import DEFERRED_MS
from broker_service.state import half_messages, state_log
from broker_service.state.state_log import StateLog
from broker_service.state.transitions import Copied
from broker_service.store.message_store import MessageStore
from broker_service.transactions import copies
from broker_service.transactions.copies import find_copies
from testbed.polling import until
from tests.broker.test_delayed_messages import LEVEL_1, SOON, deliver_all, forget_deliveries, send_delayed
from tests.consumption import test_state_log
from tests.consumption.test_consumption import INVISIBLE_MS, Consumer, body_of, consumer
from tests.consumption.test_order import in_order, said
from tests.consumption.test_timer_delivery import HOURS, START, dying, expire, fill, forget_snapshots, timed
from tests.support.access import allowed
from tests.support.brokers import (
    put,
    running,
    time_of_trouble_passes,
)
from tests.support.memory_files import MemoryFiles
from tests.support.v2 import v2_broker
from tests.v2.test_transactions import QUIET, bodies, d, end, half, opened, prepare, records

# overwrites the length of the body; the queue's entry and the record's head stay right
LENGTHS = (84, b"\xff\xff\xff\xff")
BODY = (88, b"\0")
HOSTS = (36, (0x30).to_bytes(4, "big"))  # the flags say that the hosts are IPv6 addresses
BOTH = pytest.mark.parametrize("wrong", [LENGTHS, BODY], ids=["lengths", "body"])

Mend = Callable[..., object]  # mends the damaged store, or the store in its argument


def damage(store: MessageStore, log_offset: int, wrong: tuple[int, bytes] = LENGTHS) -> Mend:
    """Overwrites a part of the record at this log offset; returns a function that restores it."""
    start = store.log.start_of(log_offset)
    place, data = log_offset - start + wrong[0], wrong[1]

    def exchange(store: MessageStore, data: bytes) -> bytes:
        handle = store.disk.open(store.log.path(start))
        try:
            before = store.disk.pread(handle, len(data), place)
            store.disk.pwrite(handle, data, place)
        finally:
            store.disk.close(handle)
        return before

    right = exchange(store, data)
    return lambda now=store: exchange(now, right)


def at(store: MessageStore, topic: str, queue_offset: int = 0, queue_id: int = 0) -> int:
    return store.queues.log_offsets(topic, queue_id, queue_offset)[0]


def says(log_offset: int) -> str:
    """Returns a pattern that every error and every log line about a record damaged at this log offset matches."""
    return rf"commitlog/0+ is damaged at log offset {log_offset} \("


# --- by log offset, id and key ----------------------------------------------------------------------------------------


@BOTH
async def test_a_damaged_record_is_not_one_that_is_gone(tmp_path: Path, wrong: tuple[int, bytes]) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"a", b"bad", UNIQ_KEY="00FF", KEYS="k")
        store, bad = node.store, at(node.store, "t", 1)
        operations = Operations(node.broker, node.leadership)
        message_id = record.offset_message_id(node.broker.store_host, bad)
        mend = damage(store, bad, wrong)
        for read in (store.log.record_at, store.log.find_record):
            with pytest.raises(StoreCorrupt, match=says(bad)):
                read(bad)
        for query in (
            operations.message_by_id("t", message_id, allowed),
            operations.message_by_id("", message_id, allowed),
            operations.message_by_id("t", "00FF", allowed),
            operations.messages_by_key("t", "k", 32, 0, None, None),
        ):
            with pytest.raises(StoreCorrupt, match=says(bad)):
                await query
        assert len((await operations.messages_by_key("t", "k", 32, 0, None, bad))[0]) == 1, "what lies before it"
        mend()
        assert len((await operations.messages_by_key("t", "k", 32, 0, None, None))[0]) == 2
        assert store.log.find_record(bad + 1) is None


# --- consumers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "filtered", [{}, {"sub_expression": "TAGS = 'A'", "expression_type": "SQL92"}], ids=["", "sql"]
)
async def test_a_pop_stops_before_a_damaged_message_and_other_queues_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, filtered: dict[str, str]
) -> None:
    async with consumer(tmp_path, enable_property_filter=True) as one:
        broker = one.node.broker
        one.node.topics.put(TopicConfig("t", 2, 2), 0)
        await put(one.node, "t", b"a", b"bad", b"c", TAGS="A")
        await put(one.node, "t", b"x", b"y", queue_id=1, TAGS="A")
        bad = at(one.node.store, "t", 1)
        mend = damage(one.node.store, bad)
        started_s, later_s = broker.clock(), 0.0
        monkeypatch.setattr(broker, "clock", lambda: started_s + later_s)
        assert await one.bodies(**filtered) == [b"a", b"x", b"y"]
        with pytest.raises(StoreCorrupt, match=says(bad)):
            await one.pop(**filtered)
        assert "queue 0 of topic t cannot be read at offset 1, so group g gets no more of it for now" in caplog.text
        mend()
        later_s = 10.0
        assert await one.bodies(**filtered) == [b"bad", b"c"]


async def test_a_damaged_body_goes_as_it_is_to_the_client_which_checks_it(tmp_path: Path) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"bad")
        damage(one.node.store, at(one.node.store, "t", 1), BODY)
        pulled = one.node.store.queues.get_message("t", 0, 0, 32, 1 << 20, None)
        _, popped = (await one.pop()).deliveries
        assert pulled.records.endswith(popped.record)
        with pytest.raises(RecordError, match="CRC"):
            record.decode(popped.record)


async def test_a_damaged_message_that_waits_in_order_holds_up_its_message_group_only(tmp_path: Path) -> None:
    async with in_order(tmp_path) as one:
        await one.send("a1 b1 a2 b2")
        taken = await one.take(max_messages=2)
        assert (said(taken), await one.texts()) == ("a1 b1", "")
        await one.ack(*taken)
        mend = damage(one.node.store, at(one.node.store, "t", 2))
        await one.send("a3 c1")
        assert await one.texts(max_messages=1) == "b2"
        assert await one.texts() == "c1"
        mend()
        assert await one.texts() == "a2 a3"


@BOTH
async def test_a_damaged_message_that_is_due_again_waits_and_others_go_on(
    tmp_path: Path, caplog: Any, wrong: tuple[int, bytes]
) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"bad", b"c")
        assert await one.bodies() == [b"a", b"bad", b"c"]
        bad = at(one.node.store, "t", 1)
        mend = damage(one.node.store, bad, wrong)
        await one.later(INVISIBLE_MS)
        assert sorted((body_of(it), it.attempt) for it in (await one.pop()).deliveries) == [(b"a", 2), (b"c", 2)]
        assert f"message 1 of topic t cannot be delivered again to group g: {tmp_path}" in caplog.text
        mend()
        await one.later(DEFERRED_MS)
        assert await one.bodies() == [b"bad"]


@BOTH
def test_a_damaged_record_of_the_state_is_not_passed_over(wrong: tuple[int, bytes]) -> None:
    store = test_state_log.store_on(MemoryFiles())
    log = StateLog(store, test_state_log.SNAPSHOT)
    for number in range(3):
        test_state_log.append(store, number)
    bad = at(store, STATE_TOPIC, 1)
    mend = damage(store, bad, wrong)
    again = StateLog(store, test_state_log.SNAPSHOT)
    for apply in (log.catch_up, again.reload, again.catch_up):
        with pytest.raises(StoreCorrupt, match=says(bad)):
            apply()
    assert log.unapplied_from == bad
    mend()
    log.catch_up()
    again.catch_up()
    assert len(log.state.queues) == len(again.state.queues) == 3


@pytest.mark.parametrize("many", [1, 1000], ids=["as columns", "one by one"])
@BOTH
def test_a_damaged_timer_is_known_without_its_time_and_the_others_with_theirs(
    wrong: tuple[int, bytes], many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_log, "MANY", many)
    store = test_state_log.store_on(MemoryFiles())
    log = StateLog(store, test_state_log.SNAPSHOT)
    test_state_log.append_timers(store, 3)
    bad = at(store, TIMER_TOPIC, 1)
    damage(store, bad, wrong)
    again = StateLog(store, test_state_log.SNAPSHOT)
    log.catch_up()
    again.reload()
    for one in (log, again):
        assert (one.state.timers.count, one.state.timers.unread, one.unapplied_from) == (2, {bad}, None)


async def test_a_start_without_the_state_refuses_what_needs_it_and_nothing_else(tmp_path: Path, caplog: Any) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        (delivery,) = (await one.pop()).deliveries
        bad = at(one.node.store, STATE_TOPIC)
        mend = damage(one.node.store, bad)
    forget_snapshots(tmp_path)
    async with consumer(tmp_path) as one:
        assert (
            "pops, acks, transactions and messages with a delivery time wait, as the state cannot be read: "
            in caplog.text
        )
        operations = Operations(one.node.broker, one.node.leadership)
        refused: tuple[Callable[[], Awaitable[object]], ...] = (
            one.pop,
            lambda: one.ack(delivery),
            lambda: operations.reset_offset_by_time("g", "t", 0, (), force=True),
        )
        for call in refused:
            with pytest.raises(StoreCorrupt, match=says(bad)):
                await call()
        await put(one.node, "t", b"b")
        assert len(one.node.store.queues.get_message("t", 0, 0, 32, 1 << 20, None).sizes) == 8, (
            "both messages can be pulled"
        )
    async with consumer(tmp_path) as one:
        with pytest.raises(StoreCorrupt, match=says(bad)):
            await one.pop()
        mend(one.node.store)
        assert await one.bodies() == [b"b"], "a is under way"


@BOTH
async def test_a_damaged_copy_for_a_retry_settles_nothing_after_a_start(
    tmp_path: Path, caplog: Any, wrong: tuple[int, bytes]
) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a", b"b")
        assert await one.bodies() == [b"a", b"b"]
        await one.later(INVISIBLE_MS)
        bad = at(one.node.store, "%RETRY%g+t")
        damage(one.node.store, bad, wrong)
    forget_snapshots(tmp_path)
    async with consumer(tmp_path) as one:
        assert f"the record of topic %RETRY%g+t at log offset {bad} cannot be read" in caplog.text
        assert one.consumption.state.under_way_count + one.consumption.counts.retried.messages == 1, (
            "or it has expired by now"
        )
        await one.later(2 * INVISIBLE_MS)
        assert len(one.node.store.queues.log_offsets("%RETRY%g+t", 0, 0)) == 3, "its message comes again"


@BOTH
async def test_pops_are_refused_while_a_record_of_the_state_is_damaged_and_go_on_when_it_is_mended(
    tmp_path: Path, wrong: tuple[int, bytes]
) -> None:
    async with consumer(tmp_path) as one:
        await put(one.node, "t", b"a")
        assert await one.bodies() == [b"a"]
        bad = at(one.node.store, "rmq_sys_rocketsim_state")
        mend = damage(one.node.store, bad, wrong)
        forget_snapshots(tmp_path)
        with pytest.raises(StoreCorrupt, match=says(bad)):
            one.consumption.writer.reload()
        with pytest.raises(StoreCorrupt, match=says(bad)):
            await one.pop()
        mend()
        assert await one.bodies() == [], "it is under way"


# --- messages with a delivery time ------------------------------------------------------------------------------------


@BOTH
async def test_a_damaged_message_with_a_delivery_time_waits_alone_after_a_start_too(
    tmp_path: Path, caplog: Any, wrong: tuple[int, bytes]
) -> None:
    async with timed(tmp_path) as one:
        await one.send(b"bad", b"a")
        bad, _ = one.timers.first(START // 1000 + 4, 2)
        mend = damage(one.node.store, bad, wrong)
    forget_snapshots(tmp_path)
    async with timed(tmp_path) as one:
        assert f"the record of topic rmq_sys_wheel_timer at log offset {bad} cannot be read" in caplog.text
        await put(one.node, "t", b"elsewhere")
        popped = await Consumer(one.node).bodies()
        assert popped == [b"elsewhere"]
        one.now_ms += 5000
        one.node.consumption.timer_delivery.loop.wake()
        await until(lambda: one.received() == [b"a"], "the one that can be read")
    async with timed(tmp_path) as one:  # from a snapshot
        assert one.timers.unread == {bad}
        mend(one.node.store)
        time_of_trouble_passes(one.node.broker)
        one.node.consumption.timer_delivery.loop.wake()
        await until(lambda: not one.timers.unread, "it is read")
        await one.later(4000)
        assert one.received() == [b"a"], "its time has not come by this clock"
        await one.later(1000)
        assert one.received() == [b"a", b"bad"]
    forget_snapshots(tmp_path)
    async with timed(tmp_path) as one:
        await one.later(9000)
        assert one.received() == [b"a", b"bad"]


async def test_a_damaged_message_with_a_delivery_time_keeps_its_log_file_for_an_hour_after_a_start(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with timed(tmp_path, **HOURS) as one:
        await one.send(b"bad", in_ms=8_000_000)
        await fill(one, 2)
        damage(one.node.store, at(one.node.store, TIMER_TOPIC))
    forget_snapshots(tmp_path)
    async with timed(tmp_path, START + 7_200_000, **HOURS) as one:
        broker = one.node.broker
        started_s, later_s = broker.clock(), 0.0
        monkeypatch.setattr(broker, "clock", lambda: started_s + later_s)
        await expire(one)
        assert one.node.store.min_offset == 0
        later_s = 3601.0
        await expire(one)
        assert one.node.store.min_offset > 0
        later_s = 3620.0
        await one.node.consumption.timer_delivery.deliver_due()
        assert not one.timers.unread
        assert "is lost: its log file has expired" in caplog.text


@BOTH
async def test_a_damaged_message_with_a_delivery_time_waits_alone(
    tmp_path: Path, caplog: Any, wrong: tuple[int, bytes]
) -> None:
    async with timed(tmp_path) as one:
        await one.send(b"bad", b"a")
        bad, _ = one.timers.first(START // 1000 + 4, 2)
        mend = damage(one.node.store, bad, wrong)
        one.now_ms += 5000
        one.node.consumption.timer_delivery.loop.wake()
        await until(lambda: one.received() == [b"a"], "the one that can be read")
        assert caplog.text.count(f"a message with a delivery time waits: {tmp_path}") == 1
        mend()
        time_of_trouble_passes(one.node.broker)
        await one.later(0)
        assert one.received() == [b"a", b"bad"]


async def test_a_message_that_cannot_be_read_is_read_again_after_a_pause_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The broker's own task sleeps for an hour, so only the test delivers.
    monkeypatch.setattr(master_loop, "LONGEST_SLEEP_S", 3600.0)
    async with timed(tmp_path) as one:
        delivery, broker, log = one.node.consumption.timer_delivery, one.node.broker, one.node.store.log
        await one.send(b"bad", in_ms=3_600_000)
        assert one.timers.count == 1
        for _ in range(5):
            await asyncio.sleep(0)  # the broker's own task has seen the new timer, and sleeps
        bad, reads, read = at(one.node.store, TIMER_TOPIC), 0, log.record_at

        def counted(log_offset: int) -> bytes:
            nonlocal reads
            reads += log_offset == bad
            if reads > 2:
                pytest.fail("the record is read again without a pause")
            return read(log_offset)

        monkeypatch.setattr(log, "record_at", counted)
        mend = damage(one.node.store, bad)
        started_s, later_s = broker.clock(), 0.0
        monkeypatch.setattr(broker, "clock", lambda: started_s + later_s)
        one.now_ms += 3_600_000
        await delivery.deliver_due()
        later_s = master_loop.AFTER_TROUBLE_S - 0.1
        await delivery.deliver_due()
        assert (reads, one.received()) == (1, [])
        mend()
        later_s = master_loop.AFTER_TROUBLE_S
        await delivery.deliver_due()
        assert (reads, one.received()) == (2, [b"bad"])


async def test_a_damaged_copy_behind_copying_keeps_messages_waiting_for_a_minute_at_most(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_delivery, "READ_BYTES", 100)  # a record at a time
    # The broker's own task sleeps for an hour, so only the test delivers.
    for pause in ("LONGEST_SLEEP_S", "AFTER_TROUBLE_S"):
        monkeypatch.setattr(master_loop, pause, 3600.0)
    async with timed(tmp_path) as one:
        delivery, broker = one.node.consumption.timer_delivery, one.node.broker
        dying(one, lambda change: isinstance(change, Copied))
        await one.send(b"a", b"b", b"c")
        one.now_ms += 5000
        with pytest.raises(DiskFull):
            await delivery.deliver_due()
        bad = at(one.node.store, "t", 1, queue_id=1)
        damage(one.node.store, bad)
        del one.node.consumption.writer.append  # from now on records of the state are written again
        started_s, later_s = broker.clock(), 0.0
        monkeypatch.setattr(broker, "clock", lambda: started_s + later_s)
        with pytest.raises(StoreCorrupt, match=says(bad)):
            await delivery.deliver_due()
        later_s = 60.0
        await delivery.deliver_due()
        assert one.node.store.queues.end("t", 1) == 5, "b and c come again"
        assert "may be delivered twice" in caplog.text


async def test_a_timer_whose_time_is_damaged_does_not_end_the_retention_of_the_broker(
    tmp_path: Path, caplog: Any
) -> None:
    """Properties have no checksum."""
    async with timed(tmp_path, **HOURS) as one:
        await one.send(b"bad", b"a", in_ms=8_000_000)
        await fill(one, 2)
        second = one.timers.next_second()
        assert second is not None
        bad, _ = one.timers.first(second, 2)
        where = one.node.store.log.record_at(bad).index(b"TIMER_OUT_MS\x01") + len(b"TIMER_OUT_MS\x01")
        damage(one.node.store, bad, (where, b"x"))
        one.now_ms += 7_200_000
        await expire(one)
        assert "a message with a delivery time waits" in caplog.text
        assert one.node.store.min_offset == 0, "it may be mended"
        await one.later(0)
        one.now_ms += 800_000
        one.node.consumption.timer_delivery.loop.wake()
        await until(lambda: one.received() == [b"a"], "the other one")


# --- delay levels -----------------------------------------------------------------------------------------------------


@BOTH
async def test_a_damaged_message_of_a_level_stops_that_level_alone(
    tmp_path: Path, caplog: Any, wrong: tuple[int, bytes]
) -> None:
    async with running(tmp_path, **SOON) as node:
        await send_delayed(node, b"first", b"bad")
        await send_delayed(node, b"a", level=2)
        mend = damage(node.store, at(node.store, LEVEL_1, 1), wrong)
        assert sorted(await deliver_all(node, 2)) == [b"a", b"first"]
        assert f"delay level 1 waits: {tmp_path}" in caplog.text
        mend()
        time_of_trouble_passes(node.broker)
        assert (await deliver_all(node, 3))[2:] == [b"bad"]


async def test_nothing_is_delivered_before_the_damage_is_mended_in_what_was(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **SOON) as node:
        await send_delayed(node, b"a")
        await deliver_all(node, 1)
    forget_deliveries(tmp_path)
    monkeypatch.setattr(master_loop, "AFTER_TROUBLE_S", 0.01)
    mends: list[Mend] = []
    real = MessageStore.open

    def opening(*arguments: Any, **keys: Any) -> MessageStore:
        store = real(*arguments, **keys)
        mends.append(damage(store, at(store, "t", 0, queue_id=1)))
        return store

    monkeypatch.setattr(MessageStore, "open", opening)
    async with running(tmp_path, **SOON) as node:
        await until(lambda: "it is not known which were delivered" in caplog.text, "it is noticed")
        mends[0]()
        await send_delayed(node, b"b")
        assert await deliver_all(node, 2) == [b"a", b"b"]


# --- transactions -----------------------------------------------------------------------------------------------------


async def test_copies_are_found_past_a_damaged_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(copies, "FRAME_BYTES", 4096)
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a", "b")
        (first, _), store = records(node, HALF_TOPIC), node.store
        for one in (*(Record("X", b"%d" % number) for number in range(3)), half_messages.committed_copy(first, 0)):
            store.append_one(one, node.broker.now_ms(), node.broker.store_host)
        bad = at(store, "X", 1)
        damage(store, bad, HOSTS)
        await find_copies(node.store, node.consumption.transactions.state)
        assert opened(node) == ["b"]
        assert "if it was a commit, its producer is asked again" in caplog.text


@BOTH
async def test_a_damaged_half_message_is_not_committed(tmp_path: Path, wrong: tuple[int, bytes]) -> None:
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a", "b")
        bad = at(node.store, HALF_TOPIC)
        mend = damage(node.store, bad, wrong)
        assert (await end(client, "a")).code == d.INTERNAL_SERVER_ERROR
        assert (await end(client, "b")).code == d.OK
        assert opened(node) == ["a"]
        (prepared,) = node.consumption.state.transactions.open.values()
        await node.consumption.transactions._ask(prepared)
        assert opened(node) == ["a"], "nobody is asked this time"
        mend()
        assert (await end(client, "a")).code == d.OK
        assert bodies(node) == ["a", "b"]


@pytest.mark.parametrize("topic", [HALF_TOPIC, OP_TOPIC])
@BOTH
async def test_transactions_wait_for_a_damaged_record_of_theirs_after_a_start_and_pops_do_not(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch, topic: str, wrong: tuple[int, bytes]
) -> None:
    monkeypatch.setattr(master_loop, "AFTER_TROUBLE_S", 0.01)
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        await prepare(client, "a", "b", "c")
        assert (await end(client, "a")).code == d.OK
        bad = at(node.store, topic)
        mend = damage(node.store, bad, wrong)
    forget_snapshots(tmp_path)
    async with v2_broker(tmp_path, **QUIET) as (node, client):
        assert f"the record of topic {topic} at log offset {bad} cannot be read, so transactions wait" in caplog.text
        assert (await end(client, "b")).code == d.INTERNAL_SERVER_ERROR
        sent = await client.send(half("d"))
        assert sent.status.code == d.INTERNAL_SERVER_ERROR
        assert await Consumer(node, topic="X").bodies() == [b"a"]
        for _ in range(3):
            await node.retention.delete_expired()
        assert node.consumption.saving() is None, "no snapshot has less"
        mend(node.store)
        await until(lambda: node.consumption.log.unapplied_from is None, "it is read")
        assert opened(node) == ["b", "c"]
        assert (await end(client, "b")).code == d.OK
        assert (await end(client, "a")).code == d.OK
        assert bodies(node) == ["a", "b"]
