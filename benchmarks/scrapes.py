"""P19 measures how much a scrape of the metrics costs a broker's event loop, if it has 10,000 queues and a group is
behind on each.

The broker runs in the process of the benchmark, and another process scrapes it.  The cost is the CPU time that the
event loop's thread uses.
"""

import asyncio
import sys
import time
import zlib
from pathlib import Path
from typing import Any

from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record

from benchmarks import targets
from benchmarks.bench import Bench, WrongResult
from benchmarks.figures import Series
from broker_service.admin import sampling
from broker_service.broker.core.mastership import Standing
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.broker.put import FrameSend
from broker_service.config.broker_config import BrokerConfig
from broker_service.node.app import broker
from broker_service.node.node import BrokerNode
from broker_service.runtime.garbage import collect_what_follows
from testbed.polling import until
from testbed.real_rocketmq import free_port

QUEUES_A_TOPIC = 8
TICK_S = 0.001
IDLE_S = 2.0
SCRAPER = "import sys, urllib.request; print(len(urllib.request.urlopen(sys.argv[1], timeout=60).read()))"


def run(bench: Bench) -> None:
    queues = bench.plan.pick(10_000, 10_000, 80)
    rounds = bench.plan.pick(5, 3, 1)
    root = bench.folder / "scraped"
    asyncio.run(_measured(bench, root, queues, rounds))


async def _measured(bench: Bench, root: Path, queues: int, rounds: int) -> None:
    port = free_port()
    config = BrokerConfig(
        broker_name="scraped", listen_port=0, grpc_server_port=-1, metrics_port=port, store_path_root_dir=root
    )
    # Only `_passes` computes lags, so that no other computation disturbs the measurement.
    sampling.LAGS_EVERY_S = 3600.0
    async with broker(config) as node:
        await until(lambda: node.mastership.standing is Standing.WRITABLE, "the broker takes writes")
        await _fill(node, queues // QUEUES_A_TOPIC)
        busy, delays, alone = [], [], []
        await _passes(node)  # not counted, because the first pass reads the store times of all messages
        collect_what_follows()  # a broker's own process does this after its start, too
        for _ in range(rounds):
            idle_s, idle_delay = await _watched(asyncio.create_task(asyncio.sleep(IDLE_S)))
            scrape = asyncio.create_task(_scrape(f"http://127.0.0.1:{port}/metrics", queues // QUEUES_A_TOPIC))
            scraped_s, delay = await _watched(scrape)
            busy.append(max(0.0, scraped_s - idle_s * scrape.result() / IDLE_S) * 1000)
            delays.append(delay * 1000)
            alone.append(idle_delay * 1000)
        unchanged = [await _passes(node) for _ in range(rounds)]
        everything = []
        for _ in range(rounds):
            node.administration.lags.skip()
            everything.append(await _passes(node))
    bench.report(f"{queues} queues: a scrape, CPU time of the event loop", "ms", Series.of(busy), target=targets.SCRAPE)
    bench.report(
        f"{queues} queues: the longest that a scrape keeps the event loop waiting",
        "ms",
        Series.of(delays),
        "without it",
        Series.of(alone),
    )
    for what, passes in (("changed lags (every 15 s), none", unchanged), ("all lags (every 5 min)", everything)):
        total, turns = Series.of([cpu for cpu, _ in passes]), Series.of([turn for _, turn in passes])
        bench.report(f"{queues} queues: {what}, CPU time of the event loop", "ms", total)
        bench.report(f"{queues} queues: {what}, the longest turn of that", "ms", turns)


async def _fill(node: BrokerNode, topics: int) -> None:
    """Stores two messages in each queue, and commits an offset after the first of them for a group."""
    for number in range(topics):
        name = f"topic-{number:05d}"
        node.topics.entries[name] = TopicConfig(
            name, QUEUES_A_TOPIC, QUEUES_A_TOPIC
        )  # makes the topic in memory only, which saves thousands of writes to the disk
        records = [
            record.encode(Record(topic=name, body=b"x", queue_id=queue))
            for queue in range(QUEUES_A_TOPIC)
            for _ in range(2)
        ]
        data = b"".join(records)
        await node.puts.append(
            FrameSend(topic=name, records=memoryview(bytearray(data)), count=len(records), crc32=zlib.crc32(data))
        )
        node.offsets.commit(f"group-{number:05d}", name, dict.fromkeys(range(QUEUES_A_TOPIC), 1))
        node.wire.given.add((name, f"group-{number:05d}"), QUEUES_A_TOPIC, 100)
        await asyncio.sleep(0)


async def _scrape(url: str, topics: int) -> float:
    """Lets another process scrape once, and returns the seconds that this took."""
    began = time.perf_counter()
    scraper = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRAPER, url, stdout=asyncio.subprocess.PIPE, env={}
    )
    out, _ = await scraper.communicate()
    if int(out) < 1000 * topics:
        raise WrongResult(f"the page has {int(out)} bytes, too few for {topics} topics and groups")
    return time.perf_counter() - began


async def _watched(task: asyncio.Task[Any]) -> tuple[float, float]:
    """Returns the CPU seconds that this thread uses until the task is done, and the longest delay of a timer in this
    time.
    """
    began, longest = time.thread_time(), 0.0
    while not task.done():
        before = time.perf_counter()
        await asyncio.sleep(TICK_S)
        longest = max(longest, time.perf_counter() - before - TICK_S)
    return time.thread_time() - began, longest


async def _passes(node: BrokerNode) -> tuple[float, float]:
    """Computes the lags of all groups once.  Returns two times in ms: the CPU time that the event loop's thread has
    used, and the CPU time of its longest single turn.
    """
    began = time.thread_time()
    task = asyncio.create_task(node.administration.lags.take())
    longest = 0.0
    while not task.done():
        before = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - before)
    node.metrics.groups.lags = task.result()
    return (time.thread_time() - began) * 1000, longest * 1000
