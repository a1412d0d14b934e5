"""The flush thread, with a log whose flush waits until the test lets it go."""

import asyncio
import threading

import pytest

from broker_service.errors import ServiceNotAvailable
from broker_service.replication.flusher import Flusher


class SlowLog:
    def __init__(self):
        self.end_offset = 0
        self.flushed_offset = 0
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def flush(self):
        end = self.end_offset
        self.begun.set()
        assert self.go_on.wait(10)
        self.flushed_offset = end
        return end


class Flushing:
    def __init__(self, log):
        self.log = log
        self.told = []
        self.failures = []
        self.flusher = Flusher(log, interval_s=60, on_flushed=self.told.append, on_failure=self.failures.append)

    async def __aenter__(self):
        self.flusher.start()
        return self.flusher

    async def __aexit__(self, *_):
        self.log.go_on.set()
        await self.flusher.close()


async def begun(log):
    await asyncio.to_thread(log.begun.wait, 10)
    log.begun.clear()


async def test_bytes_that_come_while_a_flush_runs_are_for_the_next_one():
    log = SlowLog()
    async with Flushing(log) as flusher:
        log.end_offset = 100
        first = asyncio.create_task(flusher.wait(100))
        await begun(log)
        log.end_offset = 200
        second = asyncio.create_task(flusher.wait(200))
        await asyncio.sleep(0)
        log.go_on.set()
        await first
        await second
        assert flusher.flushed_offset == 200


async def test_a_cut_waits_for_the_flush_that_runs_and_its_result_counts_for_nothing():
    log = SlowLog()
    async with Flushing(log) as flusher:
        log.end_offset = 100
        flusher.request(100)
        await begun(log)
        threading.Timer(0.05, log.go_on.set).start()
        with flusher.halted():
            assert log.flushed_offset == 100  # it did wait
            log.end_offset = log.flushed_offset = 40
        assert flusher.flushed_offset == 40
        log.end_offset = 90
        waits = asyncio.create_task(flusher.wait(90))
        await waits
        assert log.flushed_offset == 90


async def test_close_flushes_what_is_there():
    log = SlowLog()
    log.go_on.set()
    flushing = Flushing(log)
    async with flushing:
        log.end_offset = 100
    assert log.flushed_offset == 100


async def test_after_a_failure_nobody_waits_and_nothing_is_tried_again():
    log = SlowLog()
    flushing = Flushing(log)

    def fails():
        log.begun.set()
        raise OSError(5, "no disk")

    log.flush = fails
    async with flushing as flusher:
        log.end_offset = 100
        with pytest.raises(ServiceNotAvailable, match="no disk"):
            await flusher.wait(100)
        with pytest.raises(ServiceNotAvailable, match="no disk"):
            await flusher.wait(100)
        assert [str(failure) for failure in flushing.failures] == ["[Errno 5] no disk"]
        assert flushing.told == []
