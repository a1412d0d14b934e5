"""The flush thread with a log whose flush the test releases."""

import asyncio
import threading

import pytest

from broker_service.errors import ServiceNotAvailable
from broker_service.replication.flusher import Flusher
from testbed.polling import until


class SlowLog:
    def __init__(self):
        self.end_offset = 0
        self.flushed_offset = 0
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def flush(self):
        end = self.end_offset
        self.begun.set()
        assert self.go_on.wait(60)
        self.flushed_offset = end
        return end


class Flushing:
    def __init__(self, log):
        self.log = log
        self.told = []
        self.failures = []
        self.flusher = Flusher(log, interval_s=60)
        self.flusher.flushed.append(self.told.append)
        self.flusher.failed.append(self.failures.append)

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


async def test_a_flush_from_before_a_cut_counts_for_nothing():
    log = SlowLog()
    flushing = Flushing(log)
    async with flushing as flusher:
        log.end_offset = 100
        waits = asyncio.create_task(flusher.wait(100))
        await begun(log)
        log.go_on.set()
        while log.flushed_offset < 100:  # the thread has flushed, but the event loop does not know yet
            threading.Event().wait(0.001)
        log.end_offset = log.flushed_offset = 40
        assert flusher.flushed_offset == 40
        await until(lambda: flushing.told, "the loop hears of the flush")
        assert flushing.told == [40] and not waits.done()
        log.end_offset = 110
        flusher.request(110)
        await waits
        assert log.flushed_offset == 110


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
