"""Put, pull, commit and look-up on a broker with a real store: the answers and the order of checks are RocketMQ's."""

import asyncio
import errno
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.model import GetMessageStatus
from rocketsim_proto.records.record import encode_host, offset_message_id

from broker_service.admin.operations import Operations
from broker_service.broker import put as put_path
from broker_service.broker.core.long_polling import Queue
from broker_service.broker.frame import check_frame
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.broker.reads.commits import CommitEntry, Commits, Committed
from broker_service.broker.reads.pull import Pull, Pulled
from broker_service.broker.reads.pull_range import Frame, Range
from broker_service.broker.reads.queue_lookup import QueueLookup
from broker_service.broker.reads.suggestion import PullCode
from broker_service.errors import (
    DiskFull,
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    ReadFailed,
    RocketSimError,
    ServiceNotAvailable,
    StaleEpoch,
    SubscriptionGroupNotExist,
    SubscriptionParseFailed,
    SystemBusy,
    TopicNotExist,
)
from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from broker_service.put_result import PutStatus
from broker_service.store.batch import Batch
from broker_service.store.files import Files
from broker_service.store.json_file import JsonFile
from broker_service.store.open_files import OpenFiles
from testbed.polling import PATIENCE_S, until
from tests.support.access import allowed
from tests.support.brokers import bodies_in, message, put, put_send, running, send_of, while_reading
from tests.support.tcp_proxy import TcpProxy

SLAVE = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}


async def pull(node: BrokerNode, offset: int = 0, **fields: Any) -> Pulled:
    return await node.wire.pulls.pull(
        Pull(**({"group": "g", "topic": "t", "queue_id": 0, "queue_offset": offset} | fields))
    )


async def frames(
    node: BrokerNode, *ranges: tuple[str, int, int, int], max_bytes: int = 0, **fields: Any
) -> list[Frame]:
    found = node.wire.ranges.pull_range(
        fields.get("group", "g"), [Range(*item) for item in ranges], fields.get("tags", "*"), "TAG", max_bytes
    )
    return [frame async for frame in found]


def bodies_of(frame: Frame) -> list[bytes]:
    return bodies_in(b"".join(frame.records))


async def slave_of_a_store(root: Path, bodies: list[bytes], **keys: Any) -> Any:
    """Fills queue 0 of topic t with these messages; returns a slave's broker over the same store."""
    async with running(root) as node:
        await put(node, "t", *bodies)
    return running(root, **SLAVE, **keys)


# --- put --------------------------------------------------------------------------------------------------------------


async def test_a_frame_of_several_queues_gets_consecutive_offsets_in_each(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        records = [message("t", b"%d" % number, number % 3) for number in range(7)]
        appended, status = await put_send(node, send_of("t", *records))
        assert status is PutStatus.PUT_OK
        assert {queue.queue_id: (queue.first_queue_offset, queue.count) for queue in appended.queues} == {
            0: (0, 3),
            1: (0, 2),
            2: (0, 2),
        }
        assert appended.extents == [(0, 7)]
        assert bodies_in((await pull(node, queue_id=1)).records) == [b"1", b"4"]


REFUSED: list[Any] = [
    pytest.param({"broker_name": "broker-b"}, InvalidParameter, "broker-b", id="another broker"),
    pytest.param({"epoch": 99}, StaleEpoch, "99", id="an older epoch"),
    pytest.param({"epoch": 10_000}, StaleEpoch, "10000", id="a newer epoch"),
    pytest.param({"crc32": 5}, MessageIllegal, "CRC", id="a bad frame"),
]


@pytest.mark.parametrize(("fields", "error", "reason"), REFUSED)
async def test_a_refused_frame_leaves_nothing(
    tmp_path: Path, fields: dict[str, Any], error: type[RocketSimError], reason: str
) -> None:
    async with running(tmp_path) as node:
        with pytest.raises(error, match=reason):
            await put_send(node, send_of("t", message("t", b"x"), **fields))
        assert node.store.end_offset == 0
        assert node.topics.of_users() == []


@pytest.mark.parametrize("topic", ["", "../x", "a/b", "x" * 128, "t\n"], ids=repr)
async def test_illegal_topics_are_refused(tmp_path: Path, topic: str) -> None:
    async with running(tmp_path) as node:
        with pytest.raises(MessageIllegal, match="topic"):
            await put_send(node, send_of(topic, message("t", b"x")))


async def test_queue_ids_must_be_the_topics(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.topics.update(TopicConfig("t", 4, 2), 1)
        for queue_id in (-1, 2, 2**31 - 1):
            with pytest.raises(MessageIllegal, match="2 write queues"):
                await put(node, "t", b"x", queue_id=queue_id)
        await put(node, "t", b"x", queue_id=1)


async def test_a_first_message_makes_its_topic_only_if_it_may(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put_send(node, send_of("t", message("t", b"x"), default_queue_nums=3))
        assert node.topics.entries["t"].write_queue_nums == 3
        node.broker.update_config({"autoCreateTopicEnable": "false"})
        with pytest.raises(TopicNotExist, match="autoCreateTopicEnable"):
            await put(node, "u", b"x")


async def test_while_the_disk_writes_a_new_topic_its_frames_wait_in_order_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as node:
        await put(node, "other", b"x")
        begun, goes_on = threading.Event(), threading.Event()
        save = JsonFile.save

        def slowly(file: JsonFile, value: dict[str, Any]) -> None:
            if str(file).endswith("topics.json"):
                begun.set()
                assert goes_on.wait(60)
            save(file, value)

        monkeypatch.setattr(JsonFile, "save", slowly)
        puts = [asyncio.create_task(put(node, "t", b"%d" % number)) for number in range(5)]
        await until(begun.is_set, "the disk writes")
        assert await put(node, "other", b"y") is PutStatus.PUT_OK
        assert (await pull(node, topic="other")).count == 2
        puts[1].cancel()
        puts += [asyncio.create_task(put(node, "t", b"%d" % number)) for number in range(5, 8)]
        drained = asyncio.create_task(node.puts.drained())
        await asyncio.sleep(0)
        assert not drained.done() and "t" not in node.topics.entries
        goes_on.set()
        await asyncio.gather(*puts, return_exceptions=True)
        await drained
        assert bodies_in((await pull(node)).records) == [b"0", b"2", b"3", b"4", b"5", b"6", b"7"]
        begun.clear()
        goes_on.clear()
        another = asyncio.create_task(put(node, "u", b"x"))
        await until(begun.is_set, "the disk writes another topic")
        assert await asyncio.wait_for(put(node, "t", b"8"), PATIENCE_S) is PutStatus.PUT_OK, "t has no turns any more"
        goes_on.set()
        await another


async def test_a_frame_behind_those_that_wait_for_their_topic_waits_too(tmp_path: Path) -> None:
    """The topic exists when the third frame arrives, but earlier frames still wait, so the third one is stored after
    them.
    """
    async with running(tmp_path) as node:
        first = asyncio.create_task(put(node, "t", b"0"))
        second = asyncio.create_task(put(node, "t", b"1"))
        third: list[asyncio.Task[PutStatus]] = []
        node.topics.changed.append(lambda name: third.append(asyncio.create_task(put(node, "t", b"2"))))
        await asyncio.gather(first, second)
        await asyncio.gather(*third)
        assert bodies_in((await pull(node)).records) == [b"0", b"1", b"2"]


async def test_frames_that_wait_for_a_topic_that_cannot_be_made_are_refused_and_later_ones_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as node:

        def full(file: JsonFile, value: dict[str, Any]) -> None:
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(JsonFile, "save", full)
        refused = await asyncio.gather(*(put(node, "t", b"x") for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in refused] == [DiskFull] * 3
        monkeypatch.undo()
        assert await put(node, "t", b"y") is PutStatus.PUT_OK


async def test_a_frame_for_a_topic_that_is_being_deleted_makes_it_again(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"old")
        deleting = asyncio.create_task(Operations(node.broker, node.leadership).delete_topic("t"))
        await until(lambda: "t" in node.topics.changing or deleting.done(), "it is being deleted")
        await put(node, "t", b"new")
        await deleting
        assert node.store.queues.bounds("t", 0) == (1, 2)


async def test_permissions_and_system_topics(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.topics.update(TopicConfig("read-only", perm=4), 1)
        for topic in ("read-only", "TBW102", "SCHEDULE_TOPIC_XXXX"):
            with pytest.raises(NoPermission, match=topic):
                await put(node, topic, b"x")
        node.broker.update_config({"brokerPermission": "4"})
        with pytest.raises(NoPermission, match="brokerPermission"):
            await put(node, "t", b"x")


async def test_a_body_limit_is_the_configurations(tmp_path: Path) -> None:
    async with running(tmp_path, max_message_size=100) as node:
        await put(node, "t", b"x" * 100)
        with pytest.raises(MessageIllegal, match="101 bytes; this broker's maxMessageSize is 100"):
            await put(node, "t", b"x" * 101)


async def test_a_slave_takes_no_messages(tmp_path: Path) -> None:
    async with running(tmp_path, **SLAVE) as node:
        with pytest.raises(ServiceNotAvailable, match="slave"):
            await put(node, "t", b"x")


async def test_a_synchronous_master_without_a_slave_stores_and_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, broker_role=BrokerRole.SYNC_MASTER) as node:
        assert (await put_send(node, send_of("t", message("t", b"x"))))[1] is PutStatus.SLAVE_NOT_AVAILABLE
        assert (await put_send(node, send_of("t", message("t", b"y", WAIT="false"))))[1] is PutStatus.PUT_OK
        assert (await pull(node)).count == 2


async def test_while_too_many_puts_wait_the_next_is_told_to_come_back_and_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"first")
        end = node.store.end_offset
        acknowledgements = node.broker.acknowledgements
        acknowledgements.levels = replace(acknowledgements.levels, max_pending=0)
        with pytest.raises(SystemBusy, match="send again in a moment"):
            await put(node, "t", b"one too many")
        assert node.store.end_offset == end


async def test_what_waits_is_bounded_in_bytes_and_one_put_always_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(put_path, "MAX_PENDING_BYTES", 1000)
    async with running(tmp_path) as node:
        waiting: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(node.broker.acknowledgements, "wait", lambda *_: waiting)
        large = asyncio.create_task(put_send(node, send_of("t", message("t", b"x" * 2000))))
        await until(lambda: node.store.end_offset > 2000, "appended")
        end = node.store.end_offset
        with pytest.raises(SystemBusy, match="wait for a disk or a slave already"):
            await put_send(node, send_of("t", message("t", b"small")))
        assert node.store.end_offset == end
        waiting.set_result(PutStatus.PUT_OK)
        await large
        await put_send(node, send_of("t", message("t", b"small")))


async def test_a_put_that_waits_does_not_keep_its_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[weakref.ref[Batch]] = []

    def checked(*args: Any) -> Any:
        frame = check_frame(*args)
        kept.append(weakref.ref(frame.batch))
        return frame

    monkeypatch.setattr(put_path, "check_frame", checked)
    async with running(tmp_path, message_index_enable=False) as node:
        waiting: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(node.broker.acknowledgements, "wait", lambda *_: waiting)
        one = asyncio.create_task(put_send(node, send_of("t", *[message("t", b"x" * 2000)] * 100)))
        await until(lambda: node.store.end_offset > 200_000, "appended")
        assert kept[0]() is None
        waiting.set_result(PutStatus.PUT_OK)
        await one


async def test_a_clean_stop_waits_until_the_slave_has_all(tmp_path: Path) -> None:
    async with AsyncExitStack() as masters_life, AsyncExitStack() as slaves_life:
        master = await masters_life.enter_async_context(running(tmp_path / "m"))
        network = slaves_life.enter_context(TcpProxy(master.address))
        slave = await slaves_life.enter_async_context(
            running(tmp_path / "s", **SLAVE, ha_master_address=network.address)
        )
        await until(lambda: master.status.slaves() and master.status.slaves()[0].in_sync, "the slave is in sync")
        network.delay(0.5)
        await put(master, "t", b"x")
        await masters_life.aclose()
        assert slave.store.end_offset == master.store.end_offset


async def test_after_a_failed_flush_nothing_is_taken_and_reads_go_on(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"x")
        node.core.flush_failed(OSError("the disk is gone"))
        with pytest.raises(ServiceNotAvailable, match="the disk is gone"):
            await put(node, "t", b"y")
        assert not node.broker.takes_clients_writes
        assert (await pull(node)).count == 1


# --- pull: the checks, in RocketMQ's order ----------------------------------------------------------------------------


async def test_the_checks_come_in_rocketmqs_order(tmp_path: Path) -> None:
    # "broker readable → group exists (26) → consumeEnable (16) → topic exists (17) → topic readable (16) → queueId →
    # subscription: inline parse (23)"; each step is repaired in turn, and the next one refuses.
    async with running(tmp_path, auto_create_subscription_group=False) as node:
        bad = {"topic": "t", "queue_id": 9, "sub_expression": "||"}
        refusals: list[tuple[type[RocketSimError], int]] = []

        async def refused() -> None:
            with pytest.raises(RocketSimError) as error:
                await pull(node, **bad)
            refusals.append((error.type, error.value.code))

        node.broker.update_config({"brokerPermission": "2"})
        await refused()
        node.broker.update_config({"brokerPermission": "6"})
        await refused()
        node.groups.put(SubscriptionGroup("g", consume_enable=False), 1)
        await refused()
        node.groups.put(SubscriptionGroup("g"), 1)
        await refused()
        node.topics.put(TopicConfig("t", perm=2), 1)
        await refused()
        node.topics.put(TopicConfig("t"), 1)
        await refused()
        bad["queue_id"] = 0
        await refused()
        assert [code for _, code in refusals] == [16, 26, 16, 17, 16, 1, 23]
        assert refusals[1][0] is SubscriptionGroupNotExist
        assert refusals[-1][0] is SubscriptionParseFailed
        bad["sub_expression"] = "a"
        assert (await pull(node, **bad)).code is PullCode.PULL_NOT_FOUND


# --- pull: table D3 ---------------------------------------------------------------------------------------------------

D3_MASTER = [
    pytest.param(5, 1, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 3, 21, id="request > max | corr(max) | 21"),
    pytest.param(3, 1, GetMessageStatus.OFFSET_OVERFLOW_ONE, 3, 19, id="request = max | request | 19"),
    pytest.param(-1, 1, GetMessageStatus.OFFSET_TOO_SMALL, 0, 21, id="request < min | corr(min) | 21"),
    pytest.param(1, 1, GetMessageStatus.FOUND, 3, 0, id="≥1 message | request + entries consumed | 0"),
    pytest.param(0, 2, GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 19, id="queue absent | corr(0) | 19"),
    pytest.param(4, 2, GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 21, id="queue absent | corr(0) | 21 if request≠0"),
]


@pytest.mark.parametrize(("request_offset", "queue_id", "status", "next_offset", "code"), D3_MASTER)
async def test_a_master_answers_as_table_d3(
    tmp_path: Path, request_offset: int, queue_id: int, status: GetMessageStatus, next_offset: int, code: int
) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"0", b"1", b"2", queue_id=1)
        pulled = await pull(node, request_offset, queue_id=queue_id)
        assert (pulled.status, pulled.next_begin_offset, pulled.code) == (status, next_offset, code)


async def test_filtered_messages_advance_the_offset_and_are_asked_for_again(tmp_path: Path) -> None:
    # | NO_MATCHED_MESSAGE | entries exist, all filtered | request + entries scanned | PULL_RETRY_IMMEDIATELY 20 |
    async with running(tmp_path) as node:
        await put(node, "t", b"a", b"b", TAGS="other")
        pulled = await pull(node, 0, sub_expression="wanted", suspend_s=60.0)  # not held: "pull again at once"
        assert (pulled.status, pulled.next_begin_offset, pulled.code) == (
            GetMessageStatus.NO_MATCHED_MESSAGE,
            2,
            PullCode.PULL_RETRY_IMMEDIATELY,
        )


@pytest.mark.parametrize(
    ("request_offset", "check", "next_offset", "code"),
    [
        pytest.param(9, False, 9, 20, id="offsetCheckInSlave=false: unchanged, code 20"),
        pytest.param(9, True, 3, 21, id="offsetCheckInSlave=true: corr(max), code 21"),
    ],
)
async def test_a_slave_leaves_illegal_offsets_to_the_master(
    tmp_path: Path, request_offset: int, check: bool, next_offset: int, code: int
) -> None:
    async with await slave_of_a_store(tmp_path, [b"0", b"1", b"2"], offset_check_in_slave=check) as node:
        pulled = await pull(node, request_offset)
        assert (pulled.next_begin_offset, pulled.code, pulled.suggested_broker_id) == (next_offset, code, 0)


# --- pull: table D1 on a whole broker ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slave_read", "behind", "suggestion"),
    [
        pytest.param(False, True, 0, id="| slave | false | true | 0 | data is still returned"),
        pytest.param(True, False, 5, id="| slave | true | false | G.brokerId |"),
        pytest.param(True, True, 6, id="| slave | true | true | G.slow |"),
    ],
)
async def test_a_slave_suggests_as_table_d1(tmp_path: Path, slave_read: bool, behind: bool, suggestion: int) -> None:
    memory = 100 if behind else 1 << 30  # a reader that is more than 40 % of this behind counts as slow
    async with running(tmp_path) as node:
        await put(node, "t", b"0", b"1", b"2")
        node.groups.put(SubscriptionGroup("g", broker_id=5, which_broker_when_consume_slowly=6), 1)
    async with running(tmp_path, **SLAVE, slave_read_enable=slave_read, physical_memory=memory) as node:
        pulled = await pull(node)
        assert (bodies_in(pulled.records)[0], pulled.suggested_broker_id) == (b"0", suggestion)
        ranged = await frames(node, ("t", 0, 0, 3))
        assert [frame.suggested_broker_id for frame in ranged] == [suggestion]


async def test_a_strict_slave_refuses_and_names_the_master(tmp_path: Path) -> None:
    async with await slave_of_a_store(tmp_path, [b"0"], strict_slave_read=True) as node:
        pulled = await pull(node)
        assert (pulled.code, pulled.suggested_broker_id, pulled.count) == (PullCode.PULL_RETRY_IMMEDIATELY, 0, 0)
        assert pulled.next_begin_offset == 0
        (frame,) = await frames(node, ("t", 0, 0, 1))
        assert (frame.records, frame.suggested_broker_id, frame.segments[0].next_offset) == ([], 0, 0)
        node.broker.update_config({"slaveReadEnable": "true"})
        assert (await pull(node)).count == 1


async def test_the_run_time_ratio_decides_who_is_slow(tmp_path: Path) -> None:
    async with running(tmp_path, slave_read_enable=True, physical_memory=10_000) as node:
        await put(node, "t", *[b"x" * 100] * 10)
        assert (await pull(node)).suggested_broker_id == 0
        node.broker.update_config({"accessMessageInMemoryMaxRatio": "1"})
        assert (await pull(node)).suggested_broker_id == 1


# --- long polling -----------------------------------------------------------------------------------------------------


async def held_pull(node: BrokerNode, **request: Any) -> asyncio.Task[Any]:
    """Starts a pull, and waits until the broker holds it."""
    waiting = asyncio.create_task(pull(node, suspend_s=60.0, **request))
    while not node.broker.long_polling.held:  # noqa: ASYNC110 - the task needs its turn
        await asyncio.sleep(0)
    return waiting


async def test_a_held_pull_ends_with_the_message_that_arrives(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.topics.put(TopicConfig("t"), 1)
        waiting = await held_pull(node)
        await put(node, "t", b"new", queue_id=1)
        assert node.broker.long_polling.held == 1
        await put(node, "t", b"new")
        assert bodies_in((await waiting).records) == [b"new"]


async def test_a_held_pull_is_not_ended_by_what_it_filters_out_but_remembers_it(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.topics.put(TopicConfig("t"), 1)
        waiting = await held_pull(node, sub_expression="wanted")
        await put(node, "t", b"no", TAGS="other")
        await asyncio.sleep(0)
        assert not waiting.done()
        await put(node, "t", b"yes", TAGS="wanted")
        pulled = await waiting
        assert (bodies_in(pulled.records), pulled.next_begin_offset) == ([b"yes"], 2)


async def test_a_held_pull_ends_with_not_found_when_its_time_is_over(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.topics.put(TopicConfig("t"), 1)
        assert (await pull(node, suspend_s=0.02)).code is PullCode.PULL_NOT_FOUND


async def test_without_long_polling_the_hold_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, long_polling_enable=False, short_polling_time_mills=10) as node:
        node.topics.put(TopicConfig("t"), 1)
        waited: list[float] = []
        wait = node.broker.long_polling.wait

        async def noted(ends: Mapping[Queue, int], timeout_s: float) -> bool:
            waited.append(timeout_s)
            return await wait(ends, timeout_s)

        monkeypatch.setattr(node.broker.long_polling, "wait", noted)
        assert (await pull(node, suspend_s=60.0)).code is PullCode.PULL_NOT_FOUND
        assert not await QueueLookup(node.broker).wait_for_records("t", {0: 0}, 60)
        assert len(waited) == 2 and max(waited) < 0.02


async def test_holds_are_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, max_long_polls=0) as node:
        node.topics.put(TopicConfig("t"), 1)
        with pytest.raises(SystemBusy):
            await pull(node, suspend_s=60.0)


async def test_stopping_ends_held_pulls_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.topics.put(TopicConfig("t"), 1)
        waiting = await held_pull(node)
    assert (await waiting).code is PullCode.PULL_NOT_FOUND


async def test_what_is_not_confirmed_is_not_visible_and_notifies_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.topics.put(TopicConfig("t"), 1)
        node.broker.visibility.changed(0)
        waiting = await held_pull(node)
        await put(node, "t", b"x")
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert (await pull(node)).count == 0
        node.broker.visibility.changed(node.store.end_offset)
        assert bodies_in((await waiting).records) == [b"x"]


# --- commit on pull ---------------------------------------------------------------------------------------------------


async def test_a_master_commits_on_pull_and_a_slave_does_not(tmp_path: Path) -> None:
    # "first pass only (not the long-poll re-run) and flag set and role ≠ SLAVE"
    async with running(tmp_path) as node:
        await put(node, "t", b"0", b"1")
        await pull(node, 1, commit_offset=1)
        assert node.offsets.get("g", "t", 0).offset == 1
        assert (await pull(node, 1, commit_offset=99)).count == 1  # the pull succeeds, but its commit is ignored
        assert node.offsets.get("g", "t", 0).offset == 1
    async with running(tmp_path, **SLAVE) as node:
        await pull(node, 1, commit_offset=2)
        assert node.offsets.get("g", "t", 0).offset == 1


# --- ranges -----------------------------------------------------------------------------------------------------------


async def test_small_ranges_of_many_queues_share_a_frame(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        for queue_id in range(8):
            await put(node, "t", b"%d" % queue_id, b"x", queue_id=queue_id)
        (frame,) = await frames(node, *[("t", queue_id, 0, 2) for queue_id in range(8)])
        assert [(segment.range_index, segment.count, segment.next_offset) for segment in frame.segments] == [
            (queue_id, 2, 2) for queue_id in range(8)
        ]
        assert len(bodies_of(frame)) == 16
        assert len(frame.sizes) == 4 * 16


async def test_a_large_range_comes_in_frames_that_join(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        bodies = [b"%04d" % number * 20 for number in range(100)]
        await put(node, "t", *bodies)
        found = await frames(node, ("t", 0, 10, 90), max_bytes=2000)
        assert len(found) > 5
        assert [body for frame in found for body in bodies_of(frame)] == bodies[10:90]
        assert found[-1].segments[-1].next_offset == 90
        assert all(sum(map(len, frame.records)) < 2300 for frame in found)


@pytest.mark.parametrize("asked", [0, 1 << 20])
async def test_no_frame_is_larger_than_the_configuration_says_whatever_is_asked_for(tmp_path: Path, asked: int) -> None:
    async with running(tmp_path, pull_range_max_frame_bytes=2000) as node:
        bodies = [b"%04d" % number * 20 for number in range(100)]
        await put(node, "t", *bodies)
        found = await frames(node, ("t", 0, 0, 100), max_bytes=asked)
        assert [body for frame in found for body in bodies_of(frame)] == bodies
        assert 1000 < max(sum(map(len, frame.records)) for frame in found) <= 2000


async def test_a_frame_holds_at_least_one_record(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"x" * 5000, b"y" * 5000)
        found = await frames(node, ("t", 0, 0, 2), max_bytes=1)
        assert [len(bodies_of(frame)) for frame in found] == [1, 1]


async def test_a_range_beyond_the_end_says_why_it_is_unfinished_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"0", b"1")
        await put(node, "t", b"2", queue_id=1)
        (frame,) = await frames(node, ("t", 0, 1, 5), ("t", 1, 0, 1), ("t", 2, 0, 1), ("t", 0, 7, 8))
        assert [(segment.range_index, segment.count, segment.status.name) for segment in frame.segments] == [
            (0, 1, "FOUND"),
            (0, 0, "OFFSET_OVERFLOW_ONE"),
            (1, 1, "FOUND"),
            (2, 0, "NO_MATCHED_LOGIC_QUEUE"),
            (3, 0, "OFFSET_OVERFLOW_BADLY"),
        ]


async def test_ranges_are_filtered_by_tag(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"a", TAGS="A")
        await put(node, "t", b"b", TAGS="B")
        (frame,) = await frames(node, ("t", 0, 0, 2), tags="B")
        assert bodies_of(frame) == [b"b"]
        assert frame.segments[-1].next_offset == 2


@pytest.mark.parametrize("wrong", [("t", 0, -1, 5), ("t", 0, 5, 4), ("t", 99, 0, 1), ("absent", 0, 0, 1)], ids=str)
async def test_impossible_ranges_are_refused_before_anything_is_read(tmp_path: Path, wrong: Any) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"x")
        with pytest.raises(RocketSimError):
            await frames(node, ("t", 0, 0, 1), wrong)


async def test_a_reader_without_a_group_is_served(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"x")
        assert bodies_of((await frames(node, ("t", 0, 0, 1), group=""))[0]) == [b"x"]
        assert node.groups.entries == {}


# --- offsets ----------------------------------------------------------------------------------------------------------


async def test_a_master_checks_commits_against_the_end_of_the_queue_and_a_slave_does_not(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"0", b"1")
        commits = Commits(node.broker)
        assert commits.commit("g", [CommitEntry("t", 0, 2), CommitEntry("t", 1, 0)]) == [2, 0]
        with pytest.raises(InvalidParameter, match="beyond the end 2"):
            commits.commit("g", [CommitEntry("t", 1, 0), CommitEntry("t", 0, 3)])
        # a consumer may have read messages from a slave that are not confirmed here yet
        node.broker.visibility.changed(0)
        assert commits.commit("g", [CommitEntry("t", 0, 2)]) == [2]
    async with running(tmp_path, **SLAVE) as node:
        assert Commits(node.broker).commit("g", [CommitEntry("t", 0, 9)]) == [9]


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        (CommitEntry("t", 0, -1), InvalidParameter),
        (CommitEntry("t", -1, 0), InvalidParameter),
        (CommitEntry("t", 99, 0), InvalidParameter),
        (CommitEntry("absent", 0, 0), TopicNotExist),
    ],
    ids=str,
)
async def test_a_commit_is_refused_as_a_whole(tmp_path: Path, entry: CommitEntry, error: type[RocketSimError]) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"0")
        with pytest.raises(error):
            Commits(node.broker).commit("g", [CommitEntry("t", 0, 1), entry])
        assert list(node.offsets.of_group("g")) == []


async def test_a_fenced_master_takes_no_commits(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"0")
        node.mastership.newer_epoch(10_000, "a newer master")
        with pytest.raises(StaleEpoch):
            Commits(node.broker).commit("g", [CommitEntry("t", 0, 1)])


D7 = [
    pytest.param(0, {}, 0, id="min offset ≤ 0 and offset 0 is not on disk → SUCCESS with 0"),
    pytest.param(7, {}, 0, id="also true for an empty or absent queue"),
    pytest.param(0, {"physical_memory": 100}, -1, id="offset 0 on disk by the 40 % rule → QUERY_NOT_FOUND"),
]


@pytest.mark.parametrize(("queue_id", "keys", "offset"), D7)
async def test_a_new_group_starts_as_table_d7(tmp_path: Path, queue_id: int, keys: dict[str, Any], offset: int) -> None:
    async with running(tmp_path, **keys) as node:
        await put(node, "t", b"x" * 100, b"y")
        commits = Commits(node.broker)
        assert await commits.query("g", [("t", queue_id)], zero_for_new_group=True) == [
            Committed("t", queue_id, offset)
        ]
        assert await commits.query("g", [("t", queue_id)], zero_for_new_group=False) == [Committed("t", queue_id, -1)]
        commits.commit("g", [CommitEntry("t", 0, 1)])
        assert await commits.query("g", [("t", 0)], zero_for_new_group=True) == [Committed("t", 0, 1)]


async def test_a_master_that_is_fenced_while_the_disk_is_read_says_nothing_of_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"0")
        while_reading(monkeypatch, lambda: node.mastership.newer_epoch(10_000, "a newer master"))
        with pytest.raises(StaleEpoch):
            await Commits(node.broker).query("g", [("t", 0)], zero_for_new_group=True)


async def test_all_of_a_groups_offsets_in_one_question(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"0")
        await put(node, "u", b"0", b"1")
        commits = Commits(node.broker)
        commits.commit("g", [CommitEntry("u", 0, 2), CommitEntry("t", 0, 1)])
        assert await commits.query("g", [], zero_for_new_group=False) == [Committed("t", 0, 1), Committed("u", 0, 2)]


# --- where queues begin and end ---------------------------------------------------------------------------------------


async def test_bounds_of_all_queues_and_the_first_offset_of_a_time_also_on_a_slave(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.topics.put(TopicConfig("t", 2, 2), 1)
        await put(node, "t", b"0", b"1")
        stored = node.store.queues.store_timestamp_of("t", 0, 0)
    for keys in ({}, SLAVE):
        async with running(tmp_path, **keys) as node:
            lookup = QueueLookup(node.broker)
            full, empty = await lookup.bounds("t", ())
            assert (full.min_offset, full.max_offset, full.last_store_timestamp) == (0, 2, stored)
            assert full.size_bytes == node.store.end_offset
            assert (empty.min_offset, empty.max_offset, empty.size_bytes) == (0, 0, 0)
            assert await lookup.search("t", [(0, stored), (0, stored + 10**9), (1, 0)]) == [0, 2, 0]
            with pytest.raises(InvalidParameter):
                await lookup.bounds("t", (5,))
            with pytest.raises(TopicNotExist):
                await lookup.search("absent", [(0, 0)])


async def test_a_reader_waits_for_records_of_any_of_its_queues(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.topics.put(TopicConfig("t", 2, 2), 1)
        node.topics.put(TopicConfig("u"), 1)
        lookup = QueueLookup(node.broker)
        await put(node, "t", b"0")
        assert await lookup.wait_for_records("t", {0: 0, 1: 0}, 60)  # there already is one
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(lookup.wait_for_records("t", {0: 1, 1: 0}, 60))
            await until(lambda: node.broker.long_polling.held == 1, "the wait")
            await put(node, "u", b"another topic's")
            assert not waiting.done()
            await put(node, "t", b"1")
        assert waiting.result()
        assert not await lookup.wait_for_records("t", {0: 2, 1: 0}, 0.01)


async def test_a_wait_for_records_ends_with_its_topic_and_needs_queues_that_exist(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.topics.put(TopicConfig("t", 2, 2), 1)
        lookup = QueueLookup(node.broker)
        with pytest.raises(InvalidParameter, match="queue 5 does not exist"):
            await lookup.wait_for_records("t", {5: 0}, 60)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(lookup.wait_for_records("t", {0: 0}, 60))
            await until(lambda: node.broker.long_polling.held == 1, "the wait")
            await Operations(node.broker, node.leadership).delete_topic("t")
        assert waiting.result()  # the reader asks for the bounds next, and is told of the deletion
        with pytest.raises(TopicNotExist):
            await lookup.wait_for_records("t", {0: 0}, 60)


async def test_an_ipv6_broker_stamps_its_address(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        node.broker.store_host = encode_host("::1", 5)
        await put_send(node, send_of("t", message("t", b"x", store_host=bytes(20))))
        with pytest.raises(MessageIllegal, match="20 bytes"):
            await put(node, "t", b"x")
        assert (await pull(node)).count == 1


def test_a_pull_is_a_value() -> None:
    one = Pull(group="g", topic="t", queue_id=0, queue_offset=0)
    assert replace(one, queue_offset=1) != one


async def test_a_bad_sector_under_a_pull_is_an_error_with_file_and_position_and_puts_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"a", b"b")
    real = os.pread

    def failing(handle: int, size: int, at: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{handle}").endswith("commitlog/" + "0" * 20) and at < 4096:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(handle, size, at)

    monkeypatch.setattr(Files, "is_cached", lambda *_: False)  # as after a long time
    async with running(tmp_path) as node:
        monkeypatch.setattr(os, "pread", failing)
        with pytest.raises(ReadFailed, match=r"commitlog/0{20} cannot be read at 0: Input/output error"):
            await pull(node)
        with pytest.raises(ReadFailed, match=r"commitlog/0{20} cannot be read at 0"):
            await frames(node, ("t", 0, 0, 2))
        await put(node, "t", b"c")
        monkeypatch.setattr(os, "pread", real)
        assert (await pull(node)).count == 3


async def _by_key(node: BrokerNode, operations: Operations) -> bool:
    records, _ = await operations.messages_by_key("t", "k", 1, 0, None, None)
    return b"body" in records[0]


async def _by_time(node: BrokerNode, operations: Operations) -> bool:
    Commits(node.broker).commit("g", [CommitEntry("t", 0, 1)])
    (reset,) = await operations.reset_offset_by_time("g", "t", 1, [0], force=True)
    return (reset.offset, reset.previous) == (0, 1)


async def _new_group(node: BrokerNode, operations: Operations) -> bool:
    found = await Commits(node.broker).query("new", [("t", 0)], zero_for_new_group=True)
    return found == [Committed("t", 0, 0)]


async def _by_offset(node: BrokerNode, operations: Operations) -> bool:
    return b"body" in await operations.message_by_offset("t", 0, 0)


async def _by_offset_id(node: BrokerNode, operations: Operations) -> bool:
    (found,) = await operations.message_by_id("", offset_message_id(node.broker.store_host, 0), allowed)
    return b"body" in found


async def _by_unique_id(node: BrokerNode, operations: Operations) -> bool:
    (found,) = await operations.message_by_id("t", "U", allowed)
    return b"body" in found


@pytest.mark.parametrize("ask", [_by_key, _by_time, _new_group, _by_offset, _by_offset_id, _by_unique_id])
async def test_no_question_waits_for_the_disk_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[BrokerNode, Operations], Awaitable[bool]]
) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"body", KEYS="k", UNIQ_KEY="U")
        node.store.tick(node.broker.now_ms())  # indexed
        read, waited = OpenFiles.read, []

        def noted(files: OpenFiles, path: Path, size: int, at: int) -> bytes:
            waited.append(files.waits)
            return read(files, path, size, at)

        monkeypatch.setattr(OpenFiles, "read", noted)
        assert await ask(node, Operations(node.broker, node.leadership))
        assert waited and not any(waited)
