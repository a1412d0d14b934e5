"""Our broker takes over the deliveries that a real RocketMQ's pops left open in its store."""

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record
from rocketsim_proto.reserved import TIMER_TOPIC

from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.errors import ReadFailed, ServiceNotAvailable, StoreTooNew
from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from broker_service.pop.deliveries import HandleStatus, Pop
from broker_service.rocketmq_handover import take_over
from broker_service.rocketmq_handover.rocketmq_pops import Checkpoints, Held, takes
from broker_service.state.state import State
from broker_service.state.transitions import Place, Take, Transition, decode, encode
from broker_service.store.commit_log import CommitLog
from broker_service.store.message_store import MessageStore
from broker_service.store.queue_reader import QueueReader
from broker_service.store.ranges import RangesResult
from testbed.polling import until
from tests.consumption.rocketmq_store import REVIVE_TOPIC, RocketMQStore
from tests.consumption.test_pair import end_master, pair
from tests.support.brokers import goes_by, running, small_config

HOUR_MS = 3_600_000
POPPED = 1_795_478_404_554

# Bodies that RocketMQ 5.5.0 has written: five messages of a queue, two acked, one changed to 15 min.
SAMPLE = [
    (
        "ck",
        '{"bm":0,"bn":"interop","c":"crew","d":[0,1,2,3,4],"it":600000,"n":5,"pt":1795478404554,"q":0,'
        '"reviveTime":1795479004554,"ro":0,"so":0,"sp":false,"t":"orders"}',
    ),
    ("ack", '{"ao":0,"bn":"interop","c":"crew","pt":1795478404554,"q":0,"so":0,"t":"orders"}'),
    ("ack", '{"ao":2,"bn":"interop","c":"crew","pt":1795478404554,"q":0,"so":0,"t":"orders"}'),
    (
        "ck",
        '{"bm":0,"bn":"interop","c":"crew","d":[0],"it":900000,"n":1,"pt":1795478405948,"q":0,'
        '"reviveTime":1795479305948,"ro":0,"so":1,"sp":false,"t":"orders"}',
    ),
    ("ack", '{"ao":1,"bn":"interop","c":"crew","pt":1795478404554,"q":0,"so":0,"t":"orders"}'),
]
ORDERS = Place("crew", "orders", 0)


def checkpoints(*records: tuple[str, str]) -> Checkpoints:
    found = Checkpoints()
    for tag, body in records:
        found.add(Record(REVIVE_TOPIC, body.encode(), properties={"TAGS": tag}))
    return found


# --- pure ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [lambda them: them, lambda them: them[::-1], lambda them: them * 2])
def test_what_is_not_acknowledged_of_a_real_rocketmqs_records(
    order: Callable[[list[tuple[str, str]]], list[tuple[str, str]]],
) -> None:
    found = checkpoints(*order(SAMPLE)).unacknowledged()
    first, changed = Held(POPPED, 1795479004554, True), Held(1795478405948, 1795479305948, True)
    assert found == {ORDERS: {1: changed, 3: first, 4: first}}


def test_other_forms_of_checkpoints_and_acks() -> None:
    of = {"c": "g", "t": "t", "q": 2, "so": 10, "pt": 5}
    long = {"consumerGroup": "g", "topic": "t", "queueId": 2, "startOffset": 10, "popTime": 5}
    found = checkpoints(
        ("ck", json.dumps(of | {"it": 7, "n": 6, "bm": 0b000100})),  # without "d": RocketMQ's older one
        ("bAck", json.dumps(of | {"ao": -1, "aol": [13, 15]})),
        ("ack", json.dumps(long | {"ackOffset": 10})),  # RocketMQ 5.0
        ("ck", json.dumps(of | {"so": 20, "it": 7, "n": 2, "bm": 0, "d": [0, 3], "sp": True})),
    ).unacknowledged()
    held = Held(5, 12, True)
    assert found == {Place("g", "t", 2): {11: held, 14: held, 20: Held(5, 12, False), 23: Held(5, 12, False)}}


@pytest.mark.parametrize(
    ("tag", "body"), [("ck", "{}"), ("ck", "no JSON"), ("ack", '{"c":"g"}'), ("other", "{}"), ("ck", "[]")]
)
def test_a_damaged_record_is_a_value_error(tag: str, body: str) -> None:
    with pytest.raises(ValueError):
        checkpoints((tag, body))


def test_the_transitions_say_the_same_as_the_records_and_each_of_them_alone_loses_nothing() -> None:
    soon, late, uncounted = Held(5, 12, True), Held(6, 20, True), Held(5, 12, False)
    held = {3: soon, 4: soon, 6: late, 7: uncounted}
    changes = [*takes(ORDERS, held, 10, {6: 3}, pop=99)]
    assert decode(encode(changes)) == changes
    state = State()
    for number, change in enumerate(changes):
        state.apply(change)
        queue = state.queues[ORDERS]
        left = {offset for offset in held if offset >= queue.next}
        assert queue.under_way.keys() | left == held.keys(), f"after {number + 1} transitions"
    assert (queue.committed, queue.next) == (3, 10)
    shown = {at: (one.attempt, one.popped_ms, one.deadline_ms, one.counted) for at, one in queue.under_way.items()}
    assert shown == {3: (1, 5, 12, True), 4: (1, 5, 12, True), 6: (3, 6, 20, True), 7: (1, 5, 12, False)}


def test_many_deliveries_of_a_queue_are_several_transitions() -> None:
    held = dict.fromkeys(range(2500), Held(5, 12, True))
    changes = [one for one in takes(ORDERS, held, 3000, {}, pop=1) if isinstance(one, Take)]
    assert [(one.start, one.next, len(one.offsets)) for one in changes] == [
        (0, 1000, 1000),
        (1000, 2000, 1000),
        (2000, 3000, 500),
    ]


# --- a broker opens the store ----------------------------------------------------------------------------------------


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def make(root: Path, now_ms: int) -> None:
    """The group crew has popped o-0 to o-5: o-0 and o-4 are acked, o-1 is invisible for an hour, and o-2, o-3 and o-5
    may come again.

    RocketMQ has moved the checkpoint of o-4 and o-5 to the revive topic, after a checkpoint that it has handled
    already.
    """
    old = now_ms - 2 * HOUR_MS
    with RocketMQStore(root, now_ms) as rocketmq:
        rocketmq.send("orders", *(f"o-{number}" for number in range(8)))
        # a checkpoint that RocketMQ has handled, by the offset of its revive group
        rocketmq.popped("crew", "orders", 6, at=old, invisible=1000, waits=False)
        rocketmq.popped("crew", "orders", 4, 5, at=old, waits=False)
        rocketmq.acked("crew", "orders", 4, 4, at=old, waits=False)
        # the same checkpoint in the timer topic, from which RocketMQ has delivered it to the revive topic
        rocketmq.popped("crew", "orders", 4, 5, at=old)
        rocketmq.delivered_to = old + HOUR_MS
        now = old + 2 * HOUR_MS
        rocketmq.popped("crew", "orders", 0, 1, 2, 3, at=now, invisible=HOUR_MS)
        rocketmq.acked("crew", "orders", 0, 0, at=now, invisible=HOUR_MS)
        for offset in (2, 3):  # given back at once
            rocketmq.popped("crew", "orders", offset, at=now, invisible=0, waits=offset == 3)
            rocketmq.acked("crew", "orders", 0, offset, at=now, invisible=HOUR_MS)
        rocketmq.waits("orders", "o-later", now + 2 * HOUR_MS)
        rocketmq.offsets = {("crew", "orders"): {0: 6}, ("CID_RMQ_SYS_REVIVE_GROUP", REVIVE_TOPIC): {0: 0}}


async def pop(node: BrokerNode, group: str = "crew", topic: str = "orders") -> dict[str, tuple[int, str]]:
    """Pops all messages that there are now; returns body -> attempt and handle."""
    request = Pop(group=group, topic=topic, client_id="me", invisible_ms=HOUR_MS, max_messages=32)
    got: dict[str, tuple[int, str]] = {}
    while popped := (await node.consumption.pop(request)).deliveries:
        for one in popped:
            body = record.decode(one.record).body.decode()
            assert body not in got
            got[body] = one.attempt, one.receipt_handle
    return got


def attempts(got: Mapping[str, tuple[int, str]]) -> dict[str, int]:
    return {body: attempt for body, (attempt, _) in got.items()}


async def acknowledge(node: BrokerNode, got: Mapping[str, tuple[int, str]]) -> set[HandleStatus]:
    settled = await node.consumption.ack("crew", "orders", [handle for _, handle in got.values()])
    return {one.status for one in settled}


async def is_taken_over(node: BrokerNode) -> None:
    await until(lambda: node.consumption.take_over.done.is_set(), "what RocketMQ had under way is taken over")


def under_way(node: BrokerNode, place: Place = ORDERS) -> dict[int, int]:
    return {offset: one.deadline_ms for offset, one in node.consumption.state.queues[place].under_way.items()}


async def test_what_was_not_acknowledged_comes_at_its_deadline_and_nothing_else(tmp_path: Path) -> None:
    now_ms = wall_clock_ms()
    make(tmp_path, now_ms)
    async with running(tmp_path) as node:
        await is_taken_over(node)
        state = node.consumption.state
        await until(lambda: under_way(node).keys() == {1}, "those whose deadline has passed are retried")
        assert under_way(node) == {1: now_ms + HOUR_MS}
        got = await pop(node)
        assert attempts(got) == {"o-6": 1, "o-7": 1, "o-2": 2, "o-3": 2, "o-5": 2}
        assert await acknowledge(node, got) == {HandleStatus.OK}
        assert state.timers.count == 1, "of the timers only the user's own waits"
        goes_by(node.broker, lambda: now_ms + HOUR_MS + 1)
        await until(lambda: not state.under_way_count, "the last deadline has passed")
        assert attempts(await pop(node)) == {"o-1": 2}


async def test_checkpoints_are_taken_over_once(tmp_path: Path) -> None:
    make(tmp_path, wall_clock_ms())
    for number in range(3):
        async with running(tmp_path) as node:
            await is_taken_over(node)
            if not number:
                await until(lambda: under_way(node).keys() == {1}, "the others are retried")
                await acknowledge(node, await pop(node))
            end = node.store.end_offset
            assert await take_over.transitions(node.broker, node.consumption.state, random.Random(1)) == []
            assert under_way(node).keys() == {1}
            assert await pop(node) == {}
            assert node.store.end_offset == end
        if number:
            continue
        for file in (tmp_path / "rocketsim").glob("consumption.snapshot*"):
            file.unlink()  # without its snapshot the broker reads the same from the log
    offsets = json.loads((tmp_path / "config" / "consumerOffset.json").read_text())["offsetTable"]
    assert offsets["orders@crew"] == {"0": 1}
    assert offsets[f"{REVIVE_TOPIC}@CID_RMQ_SYS_REVIVE_GROUP"] == {"0": 3}, "RocketMQ goes on behind the last one"


async def test_a_crash_half_way_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, wall_clock_ms())
    all_of_it = take_over.transitions

    async def cut_off(*arguments: Any) -> list[Transition]:
        changes = await all_of_it(*arguments)
        assert isinstance(changes[0], Take) and changes[0].offsets == (1,)
        return changes[:1]

    with monkeypatch.context() as patch:
        patch.setattr(take_over, "transitions", cut_off)
        async with running(tmp_path) as node:
            await is_taken_over(node)
    async with running(tmp_path) as node:
        await is_taken_over(node)
        got = await pop(node)
        assert under_way(node).keys() >= {1}, "still under way"
        assert got.keys() == {f"o-{number}" for number in range(2, 8)}, "o-4 comes again"


async def test_what_came_after_the_groups_offset_was_written_comes_as_new(tmp_path: Path) -> None:
    """A RocketMQ that was killed leaves committed offsets that are some seconds old."""
    now_ms = wall_clock_ms()
    with RocketMQStore(tmp_path, now_ms) as rocketmq:
        rocketmq.send("orders", *(f"o-{number}" for number in range(4)))
        rocketmq.popped("crew", "orders", 0, 1, 2, 3, at=now_ms, invisible=HOUR_MS)
        rocketmq.acked("crew", "orders", 0, 0, at=now_ms, invisible=HOUR_MS)
        rocketmq.popped("other", "orders", 0, 1, at=now_ms, invisible=HOUR_MS)
        rocketmq.offsets = {("crew", "orders"): {0: 2}}
    async with running(tmp_path) as node:
        await is_taken_over(node)
        assert attempts(await pop(node)) == {"o-2": 1, "o-3": 1}
        assert under_way(node).keys() == {1, 2, 3}
        assert attempts(await pop(node, "other")) == dict.fromkeys(("o-0", "o-1", "o-2", "o-3"), 1)


OLD_RETRIES = "%RETRY%crew_orders"


def make_retries(root: Path, now_ms: int) -> None:
    """Writes r-0 to r-3 to RocketMQ's retry topic; the first three were popped, and r-1 is acked."""
    with RocketMQStore(root, now_ms) as rocketmq:
        rocketmq.send("orders", "o-0")
        rocketmq.send(OLD_RETRIES, "r-0", "r-1", reconsume_times=1)
        rocketmq.send(OLD_RETRIES, "r-2", reconsume_times=2)
        rocketmq.send(OLD_RETRIES, "r-3", reconsume_times=1)
        rocketmq.popped("crew", OLD_RETRIES, 0, 1, 2, at=now_ms, invisible=HOUR_MS)
        rocketmq.acked("crew", OLD_RETRIES, 0, 1, at=now_ms, invisible=HOUR_MS)
        rocketmq.offsets = {("crew", "orders"): {0: 1}, ("crew", OLD_RETRIES): {0: 3}}


async def test_rocketmqs_retries_count_as_attempts(tmp_path: Path) -> None:
    now_ms = wall_clock_ms()
    make_retries(tmp_path, now_ms)
    retries = Place("crew", OLD_RETRIES, 0)
    async with running(tmp_path) as node:
        node.groups.put(SubscriptionGroup("crew", retry_max_times=2), 0)
        await is_taken_over(node)
        assert under_way(node, retries).keys() == {0, 2}
        goes_by(node.broker, lambda: now_ms + HOUR_MS + 1)
        await until(lambda: not node.consumption.state.under_way_count, "r-0 is retried, r-2 a dead letter")
        got = await pop(node)
        assert attempts(got) == {"r-0": 3, "r-3": 2}
        assert node.store.queues.end("%DLQ%crew", 0) == 1
        assert await acknowledge(node, {"r-3": got["r-3"]}) == {HandleStatus.OK}
        assert node.consumption.state.queues[retries].committed == 4
        node.broker.topics.delete_all({"orders": {}}, 0)
        assert "%RETRY%crew+orders" not in node.topics.entries
        assert OLD_RETRIES not in node.topics.entries, "a new topic of its name does not get these"


async def test_a_retry_topic_of_another_group_is_not_read(tmp_path: Path) -> None:
    """RocketMQ 4's retries of crew_orders have the same topic as RocketMQ 5's of crew in orders."""
    with RocketMQStore(tmp_path, wall_clock_ms()) as rocketmq:
        rocketmq.send("orders", "o-0")
        rocketmq.send(OLD_RETRIES, "of another group", reconsume_times=1)
    async with running(tmp_path) as node:
        node.groups.put(SubscriptionGroup("crew_orders"), 0)
        await is_taken_over(node)
        assert attempts(await pop(node)) == {"o-0": 1}
        assert attempts(await pop(node, "crew", "orders")) == {}


async def test_a_group_that_pops_here_already_goes_on_by_itself(tmp_path: Path) -> None:
    """In between, a RocketMQ broker used the store.  Our broker does not take over RocketMQ's deliveries again: the
    messages that RocketMQ delivered come again, even those acknowledged there.
    """
    now_ms = wall_clock_ms()
    with RocketMQStore(tmp_path, now_ms) as rocketmq:
        rocketmq.send("orders", "o-0", "o-1")
    async with running(tmp_path) as node:
        got = await pop(node)
        await acknowledge(node, {"o-0": got["o-0"]})
    with RocketMQStore(tmp_path, now_ms) as rocketmq:
        rocketmq.send("orders", "o-2", "o-3", "o-4")
        rocketmq.popped("crew", "orders", 1, 2, 3, at=now_ms, invisible=HOUR_MS)
        rocketmq.acked("crew", "orders", 1, 3, at=now_ms, invisible=HOUR_MS)
        rocketmq.offsets = {("crew", "orders"): {0: 4}}
    async with running(tmp_path) as node:
        await is_taken_over(node)
        assert attempts(await pop(node)) == {"o-2": 1, "o-3": 1, "o-4": 1}
        assert under_way(node).keys() == {1, 2, 3, 4}


async def test_damaged_records_are_named_and_the_others_taken_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms = wall_clock_ms()
    with RocketMQStore(tmp_path, now_ms) as rocketmq:
        rocketmq.send("orders", "o-0", "o-1", "o-2")
        for waits in (True, False):
            rocketmq.popped("crew", "orders", 0, at=now_ms, waits=waits, n="?", d=None)
        rocketmq.popped("crew", "orders", 1, at=now_ms, invisible=HOUR_MS)
        rocketmq.popped("crew", "orders", 2, at=now_ms, invisible=HOUR_MS, waits=False)
        rocketmq.offsets = {("crew", "orders"): {0: 3}}
    with caplog.at_level(logging.ERROR):
        async with running(tmp_path) as node:
            await is_taken_over(node)
            assert under_way(node).keys() == {1, 2}
    assert [
        line for line in caplog.messages if "cannot be taken over" in line and "log offset" in line
    ] == caplog.messages
    assert len(caplog.messages) == 2


async def test_a_checkpoint_whose_bytes_have_changed_is_named_and_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms = wall_clock_ms()
    with RocketMQStore(tmp_path, now_ms) as rocketmq:
        rocketmq.send("orders", "o-0", "o-1", "o-2")
        for offset in (0, 1):
            rocketmq.popped("crew", "orders", offset, at=now_ms, invisible=HOUR_MS, waits=False)
        rocketmq.send("orders", *["o" * 1000] * 100)  # a start does not check the log before so many bytes
        rocketmq.offsets = {("crew", "orders"): {0: 3}}
    log = tmp_path / "commitlog" / f"{0:020}"
    data = log.read_bytes()
    assert data.count(b'"so":0') == 1
    log.write_bytes(data.replace(b'"so":0', b'"so":2'))
    with caplog.at_level(logging.ERROR):
        async with running(tmp_path) as node:
            await is_taken_over(node)
            assert under_way(node).keys() == {1}
    (named,) = (line for line in caplog.messages if "cannot be taken over" in line)
    assert "CRC" in named


@pytest.mark.parametrize("waits", [True, False], ids=["in the timer topic", "in the revive topic"])
async def test_a_bad_sector_under_a_checkpoint_is_named_and_those_around_it_are_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, waits: bool
) -> None:
    """Records are read in large blocks, so no block near the bad sector can be read."""
    now_ms = wall_clock_ms()
    topic = TIMER_TOPIC if waits else REVIVE_TOPIC
    with RocketMQStore(tmp_path, now_ms) as rocketmq:
        rocketmq.send("orders", *(f"o-{number}" for number in range(6)))
        for offset in range(6):
            rocketmq.popped("crew", "orders", offset, at=now_ms, invisible=HOUR_MS, waits=waits)
        rocketmq.offsets = {("crew", "orders"): {0: 6}}
    read_record, read_ranges = CommitLog.record_at, QueueReader.read_ranges

    def bad(store: MessageStore) -> int:
        return store.queues.log_offsets(topic, 0, 2)[0]

    def record_at(log: CommitLog, log_offset: int) -> bytes:
        found = record.decode(data := read_record(log, log_offset))
        if (found.topic, found.queue_offset) == (topic, 2):
            raise ReadFailed.of("commitlog/0", log_offset, OSError(5, "Input/output error"))
        return data

    def ranges(queues: QueueReader, asked: Any, *arguments: Any) -> RangesResult:
        if any(name == topic for name, *_ in asked):
            raise ReadFailed.of("commitlog/0", 0, OSError(5, "Input/output error"))
        return read_ranges(queues, asked, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "record_at", record_at)
        patch.setattr(QueueReader, "read_ranges", ranges)
        async with running(tmp_path) as node:
            await is_taken_over(node)
            assert under_way(node).keys() == {0, 1, 3, 4, 5}
            named = (
                f"the record of topic {topic} at log offset {bad(node.store)}"
                if waits
                else f"message 2 of queue 0 of topic {topic} "
            )
            assert named in caplog.text and "Input/output error" in caplog.text
            assert await pop(node) == {}


@pytest.mark.parametrize("waits", [True, False], ids=["in the timer topic", "in the revive topic"])
async def test_others_have_their_turns_while_checkpoints_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    now_ms = wall_clock_ms()
    count = 12 * take_over.AT_ONCE
    with RocketMQStore(tmp_path, now_ms) as rocketmq:
        rocketmq.send("orders", *(f"o-{number}" for number in range(count)))
        for offset in range(count):
            rocketmq.popped("crew", "orders", offset, at=now_ms, invisible=HOUR_MS, waits=waits)
        rocketmq.offsets = {("crew", "orders"): {0: count}}
    all_of_it, turns = take_over.transitions, 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def watched(*arguments: Any) -> list[Transition]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(others())
            changes = await all_of_it(*arguments)
            task.cancel()
        return changes

    monkeypatch.setattr(take_over, "transitions", watched)
    async with running(tmp_path) as node:
        await is_taken_over(node)
        assert node.consumption.state.under_way_count == count
    assert turns >= 12


async def test_what_was_taken_over_is_under_way_on_the_slave_that_is_promoted(tmp_path: Path) -> None:
    now_ms = wall_clock_ms()
    make(tmp_path / "m", now_ms)
    async with pair(tmp_path) as (master, slave, masters):
        await is_taken_over(master)
        await until(lambda: under_way(master).keys() == {1}, "the others are retried")
        end = master.store.end_offset
        await until(lambda: slave.store.queues.confirm_offset == end, "the slave has it")
        await end_master(masters, slave)
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        await is_taken_over(slave)
        assert under_way(slave) == {1: now_ms + HOUR_MS}
        assert slave.consumption.state.timers.count == 1, "only the user's own"
        assert slave.store.end_offset - end < 1000, "nothing is taken over again"
        got = await pop(slave)
        assert attempts(got) == {"o-6": 1, "o-7": 1, "o-2": 2, "o-3": 2, "o-5": 2}
        assert await acknowledge(slave, got) == {HandleStatus.OK}
        goes_by(slave.broker, lambda: now_ms + HOUR_MS + 1)
        await until(lambda: not slave.consumption.state.under_way_count, "the last deadline has passed")
        assert attempts(await pop(slave)) == {"o-1": 2}


async def test_nobody_pops_before_all_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, wall_clock_ms())
    all_of_it, fails = take_over.transitions, True

    async def failing(*arguments: Any) -> list[Transition]:
        if fails:
            raise ReadFailed("the disk")
        return await all_of_it(*arguments)

    monkeypatch.setattr(take_over, "transitions", failing)
    monkeypatch.setattr("broker_service.broker.core.master_loop.AFTER_TROUBLE_S", 0.01)
    async with running(tmp_path) as node:
        with pytest.raises(ServiceNotAvailable, match="the deliveries of a RocketMQ"):
            await pop(node)
        fails = False
        await is_taken_over(node)
        assert 1 in under_way(node)


def test_rocksdb_with_deliveries_is_refused_until_it_is_moved_away(tmp_path: Path) -> None:
    folder = tmp_path / "kvStore"
    folder.mkdir()
    for name in ("CURRENT", "LOG", "000004.log"):
        (folder / name).write_bytes(b"LOG" if name == "LOG" else b"")
    BrokerNode.open(small_config(tmp_path)).store.close()  # made, and never used
    for name in ("000008.sst", "000004.log"):
        (folder / name).write_bytes(b"a delivery")
        before = (tmp_path / "checkpoint").read_bytes()
        with pytest.raises(StoreTooNew, match=r"exportPopRecord.*move the folder away"):
            BrokerNode.open(small_config(tmp_path))
        assert (tmp_path / "checkpoint").read_bytes() == before
        (folder / name).unlink()
    (folder / "000008.sst").write_bytes(b"a delivery")
    folder.rename(tmp_path.with_name("kvStore-of-rocketmq"))
    BrokerNode.open(small_config(tmp_path)).store.close()
