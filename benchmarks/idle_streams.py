"""P18 measures what it costs a broker if RocketMQ 5's clients keep 10,000 idle Telemetry streams open, each on its own
connection.  If the limit of open files does not allow as many, it measures as many as the broker takes.
"""

import asyncio
from typing import Any

import grpc
from rocketmq_v2 import definition_pb2, service_pb2
from rocketmq_v2.service_pb2_grpc import MessagingServiceStub

from benchmarks import cluster, targets
from benchmarks.bench import Bench, WrongResult
from benchmarks.cluster import OurCluster
from benchmarks.figures import Series
from benchmarks.memory import anonymous_mib
from broker_service.__main__ import allow_many_files
from broker_service.runtime.server import most_connections
from broker_service.store.files import open_file_limit
from testbed.real_rocketmq import free_port

FIRST = 10  # streams that are opened before memory is first measured, so that what all streams share is not counted
SPARE_CONNECTIONS = 100  # connections of the broker that the streams leave to other clients
AT_ONCE = 64  # how many streams are being opened at the same time
RATE = 200  # puts a second
SETTLED_S = 5.0
ANSWER_TIMEOUT_S = 60.0  # much more than a busy machine needs, so that a stream without an answer ends the benchmark
SETTINGS = service_pb2.TelemetryCommand(
    settings=definition_pb2.Settings(
        client_type=definition_pb2.PUSH_CONSUMER,
        subscription=definition_pb2.Subscription(
            group=definition_pb2.Resource(name="idle"),
            subscriptions=[definition_pb2.SubscriptionEntry(topic=definition_pb2.Resource(name="puts"))],
        ),
    )
)


def run(bench: Bench) -> None:
    number = bench.plan.pick(10_000, 2_000, 20)
    seconds = bench.plan.pick(20, 5, 1)
    allow_many_files()
    if (possible := most_connections(open_file_limit()) - SPARE_CONNECTIONS) < FIRST:
        raise WrongResult(
            f"a broker takes too few connections with {open_file_limit()} open files; raise the hard limit "
            "(ulimit -n 65536)"
        )
    number = min(number, possible)
    one = bench.enter(
        cluster.running(bench, "master", keys={"grpcServerPort": free_port(), "tlsTestModeEnable": False})
    )
    one.topic("puts")
    address = f"127.0.0.1:{one.master.keys['grpcServerPort']}"

    def puts() -> dict[str, float]:
        answer = one.load.ask("paced", topic="puts", size=100, rate=RATE, seconds=seconds, latencies=1)
        one.stored_at_least("puts", answer["messages"])
        return answer

    puts()  # without measuring, because the first sends must connect
    alone = puts()
    added, beside = asyncio.run(_idle(bench, one, address, number, puts))
    bench.report(
        f"{number} idle Telemetry streams: memory of the broker for one",
        "KiB",
        Series.of([added * 1024 / number]),
        target=targets.IDLE_STREAMS,
        by_amount=True,
    )
    for key in ("p50_ms", "p99_ms"):
        bench.report(
            f"put, {RATE} a second, beside {number} idle streams: {key[:3]}",
            "ms",
            Series.of([beside[key]]),
            "without them",
            Series.of([alone[key]]),
            by_amount=True,
        )


async def _idle(bench: Bench, one: OurCluster, address: str, number: int, puts: Any) -> tuple[float, dict[str, float]]:
    """Returns the memory that the open streams add to the broker, in MiB, and the latencies of puts while they are
    open.
    """
    streams: list[Any] = []
    channels: list[grpc.aio.Channel] = []
    turn = asyncio.Semaphore(AT_ONCE)

    async def open_one(client: int) -> None:
        async with turn:
            channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            channels.append(channel)
            calls: Any = MessagingServiceStub(channel)
            stream = calls.Telemetry(metadata=(("x-mq-client-id", f"idle@{client}"),), wait_for_ready=True)
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await stream.write(SETTINGS)
                    answer = await stream.read()
            except TimeoutError as error:
                raise WrongResult(f"stream {client} got no answer within {ANSWER_TIMEOUT_S:g} s") from error
            if answer is grpc.aio.EOF or answer.status.code != definition_pb2.OK:
                raise WrongResult(f"stream {client} was answered with {answer}")
            streams.append(stream)

    try:
        await asyncio.gather(*map(open_one, range(FIRST)))
        await asyncio.sleep(1)
        before = anonymous_mib(one.master.pid)
        for begin in range(0, number, 500):
            bench.doing(f"{begin} of {number} streams are open")
            await asyncio.gather(*(open_one(FIRST + client) for client in range(begin, min(begin + 500, number))))
        await asyncio.sleep(bench.plan.pick(SETTLED_S, SETTLED_S, 0.1))
        added = anonymous_mib(one.master.pid) - before
        beside = await asyncio.to_thread(puts)
        if ended := sum(stream.done() for stream in streams):
            raise WrongResult(f"{ended} of {len(streams)} streams have ended")
        return added, beside
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*(channel.close() for channel in channels))
