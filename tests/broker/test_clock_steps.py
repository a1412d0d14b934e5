"""A running broker whose wall clock steps: messages are due at their time, and searches by time miss no message."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rocketsim_proto.records import record

from broker_service.broker.core.mastership import Standing
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.node.app import broker
from broker_service.node.node import BrokerNode
from broker_service.pop.deliveries import Pop
from broker_service.runtime.machine import Machine
from testbed.polling import until
from tests.support.brokers import (
    message,
    metrics_of,
    put,
    put_send,
    send_of,
    small_config,
)

NOON = 1_795_176_000_000
HOUR = 3_600_000
STEPS = pytest.mark.parametrize("step_ms", [-HOUR, 80 * HOUR])


class Clocks:
    """The clocks of a machine on which time passes only when the test says so."""

    def __init__(self) -> None:
        self.passed_ms = self.off_ms = 0

    @property
    def machine(self) -> Machine:
        return Machine(now_ms=self.wall_ms, since_boot=lambda: self.passed_ms / 1000)

    def wall_ms(self) -> int:
        return self.real_ms + self.off_ms

    @property
    def real_ms(self) -> int:
        return NOON + self.passed_ms


@asynccontextmanager
async def running_by(clocks: Clocks, root: Path, **keys: object) -> AsyncIterator[BrokerNode]:
    hours = ";".join(f"{hour:02}" for hour in range(24))
    config = small_config(
        root, message_delay_level="10s", file_reserved_time=72, delete_when=hours, flush_interval_commit_log=10, **keys
    )
    async with broker(config, clocks.machine) as node:
        await until(lambda: node.mastership.standing is Standing.WRITABLE, "the master takes writes")
        if "t" not in node.topics.entries:
            node.topics.put(TopicConfig("t", 1, 1), 0)
        yield node


def bodies(node: BrokerNode) -> list[bytes]:
    end = node.store.queues.end("t", 0)
    data = b"".join(node.store.queues.read_ranges([("t", 0, 0, end)], 1 << 20).records) if end else b""
    found, at = [], 0
    while at < len(data):
        one = record.decode(data, at)
        found.append(one.body)
        at += int.from_bytes(data[at : at + 4], "big")
    return found


@STEPS
async def test_what_waits_comes_at_its_time_when_the_wall_clock_steps(tmp_path: Path, step_ms: int) -> None:
    clocks = Clocks()
    async with running_by(clocks, tmp_path) as node:
        due = str(clocks.real_ms + 10_000)
        await put_send(node, send_of("t", message("t", b"timer", UNIQ_KEY="u", TIMER_DELIVER_MS=due)))
        await put(node, "t", b"level", DELAY="1")
        clocks.off_ms = step_ms
        clocks.passed_ms += 9_000
        await node.schedule.deliver_due()
        await node.consumption.timer_delivery.deliver_due()
        assert bodies(node) == []
        clocks.passed_ms += 2_000
        await until(lambda: len(bodies(node)) == 2, "both are delivered")
        assert sorted(bodies(node)) == [b"level", b"timer"]


@STEPS
async def test_a_delivery_comes_again_at_its_deadline_when_the_wall_clock_steps(tmp_path: Path, step_ms: int) -> None:
    pop = Pop(group="g", topic="t", invisible_ms=12_000, client_id="c")
    clocks = Clocks()
    async with running_by(clocks, tmp_path) as node:
        await put(node, "t", b"a")
        assert len((await node.consumption.pop(pop)).deliveries) == 1
        clocks.off_ms = step_ms
        clocks.passed_ms += 11_000
        await node.consumption.expiry.expire()
        assert not (await node.consumption.pop(pop)).deliveries
        clocks.passed_ms += 1_000
        await node.consumption.expiry.expire()
        assert len((await node.consumption.pop(pop)).deliveries) == 1


@pytest.mark.parametrize("step_ms", [-500, -5_000, -HOUR, HOUR])
async def test_a_search_by_time_passes_over_nothing_when_the_wall_clock_steps(tmp_path: Path, step_ms: int) -> None:
    """A search finds all messages, also after a restart, when the broker believes the wall clock at once."""
    clocks = Clocks()

    async def send(node: BrokerNode) -> None:
        for _ in range(20):
            await put(node, "t", b"x")
            clocks.passed_ms += 300

    async with running_by(clocks, tmp_path) as node:
        await send(node)
        clocks.off_ms = step_ms
        await send(node)
    async with running_by(clocks, tmp_path) as node:
        await send(node)
        times = [node.store.queues.store_timestamp_of("t", 0, offset) for offset in range(60)]
        assert times == sorted(times)
        for time_ms in range(times[0] - 50, times[-1] + 50, 150):
            first = next((offset for offset, one in enumerate(times) if one >= time_ms), len(times))
            assert node.store.queues.search_offset_by_time("t", 0, time_ms) == first


async def test_store_times_go_on_behind_the_log_after_a_kill(tmp_path: Path) -> None:
    """The checkpoint is a minute old at the kill, so store times continue from the end of the log."""
    clocks = Clocks()
    async with running_by(clocks, tmp_path) as node:
        await put(node, "t", b"a")
        clocks.passed_ms += 50_000
        await put(node, "t", b"b")
        node.store.flush()
        node.store.close = node.store.abandon  # type: ignore[method-assign]
    clocks.off_ms = -HOUR
    async with running_by(clocks, tmp_path) as node:
        assert not node.store.recovery.clean
        await put(node, "t", b"c")
        times = [node.store.queues.store_timestamp_of("t", 0, offset) for offset in range(3)]
        assert times == sorted(times)


@pytest.mark.parametrize("seconds", [25, 500])
async def test_a_clock_that_is_ahead_for_a_while_deletes_no_log_file(tmp_path: Path, seconds: int) -> None:
    clocks = Clocks()
    async with running_by(clocks, tmp_path, mapped_file_size_commit_log=16 << 10) as node:
        for _ in range(9):
            await put(node, "t", b"x" * 8000)
        await until(lambda: node.store.flushed_offset == node.store.end_offset, "the log is flushed")
        clocks.off_ms = 80 * HOUR
        for _ in range(seconds):
            clocks.passed_ms += 1000
            node.broker.now_ms()
        await node.retention.delete_expired()
        assert node.store.min_offset == 0
        assert node.status.values()["clockDoubtedBy"] == f"{80 * 3600} s"
        metrics = metrics_of(node)
        assert metrics["rocketsim_clock_doubted_seconds"] == 80 * 3600
        assert metrics["rocketsim_clock_steps_total"] == 1
        clocks.off_ms = 0
        clocks.passed_ms += 73 * HOUR  # The machine was suspended for 73 hours.
        await node.retention.delete_expired()
        assert node.store.min_offset > 0
