"""Peers that disconnect, stop answering or send invalid data, at every step.  Afterwards the broker still takes
messages, and its tasks still run.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocketsim_proto import broker_pb2, metadata_pb2, namesrv_pb2, replication_pb2
from rocketsim_proto.broker_pb2_grpc import BrokerStub
from rocketsim_proto.namesrv_pb2_grpc import NameServerStub

from broker_service.errors import InvalidParameter, RocketSimError
from broker_service.leadership import roll_call
from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.epochs import NO_EPOCH, EpochList
from broker_service.replication.follower import Follower
from broker_service.replication.handshake import Identity
from broker_service.replication.slave import SlaveSettings
from testbed.polling import until
from tests.support.asyncio_servers import stop_accepting
from tests.support.brokers import name_server, put, running
from tests.support.memory_log import MemoryLog, record

GARBAGE = b"\x0f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"  # no protobuf message
SETTINGS_FRAME = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # an empty HTTP/2 SETTINGS frame, which a server sends first


IDENTITY = Identity(
    cluster_name="c",
    broker_name="b",
    broker_id=1,
    address="host:1",
    mapped_file_size_commit_log=10,
    mapped_file_size_consume_queue=20,
)


CANDIDATE: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "broker_id": 1, "ha_master_address": "127.0.0.1:1"}


class Calls:
    """How often the bad peer was called."""

    def __init__(self) -> None:
        self.count = 0


# --- peers that a broker dials ----------------------------------------------------------------------------------------

Socket = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def closes_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    pass


async def resets_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(1, 13, linger)  # SO_LINGER 0: the other side hears a reset


async def closes_in_the_handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(24)
    writer.write(SETTINGS_FRAME[:5])
    await writer.drain()


async def closes_after_the_handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(SETTINGS_FRAME)
    await reader.read(4096)


async def answers_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(24)
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n" + bytes(range(256)))
    await writer.drain()


async def never_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(4096):
        pass


SOCKETS: list[Socket] = [
    closes_at_once,
    resets_at_once,
    closes_in_the_handshake,
    closes_after_the_handshake,
    answers_garbage,
    never_answers,
]


@asynccontextmanager
async def socket_peer(behaves: Socket) -> AsyncIterator[tuple[str, Calls]]:
    calls = Calls()
    connections: list[tuple[asyncio.StreamWriter, asyncio.Task[None]]] = []

    # `connected` is a plain function, so that a connection is closed even if its task never begins.
    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.count += 1
        connections.append((writer, asyncio.ensure_future(serve(reader, writer))))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await behaves(reader, writer)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", calls
    finally:
        await stop_accepting(server)
        for writer, task in connections:
            task.cancel()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


Stream = Callable[[AsyncIterator[bytes], Any, list[bytes]], Awaitable[None]]


async def refuses(requests: AsyncIterator[bytes], context: Any, answers: list[bytes]) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")


async def ends_at_once(requests: AsyncIterator[bytes], context: Any, answers: list[bytes]) -> None:
    pass


async def ends_after_the_question(requests: AsyncIterator[bytes], context: Any, answers: list[bytes]) -> None:
    await anext(requests)


async def ends_after_the_first_answer(requests: AsyncIterator[bytes], context: Any, answers: list[bytes]) -> None:
    await anext(requests)
    await context.write(answers[0])


async def fails_after_the_last_answer(requests: AsyncIterator[bytes], context: Any, answers: list[bytes]) -> None:
    await anext(requests)
    for answer in answers:
        await context.write(answer)
    await context.abort(grpc.StatusCode.DATA_LOSS, "no more")


async def says_what_cannot_be_decoded(requests: AsyncIterator[bytes], context: Any, answers: list[bytes]) -> None:
    await anext(requests)
    await context.write(GARBAGE)
    async for _ in requests:
        pass


async def says_it_after_the_answers(requests: AsyncIterator[bytes], context: Any, answers: list[bytes]) -> None:
    await anext(requests)
    for answer in answers:
        await context.write(answer)
    await context.write(GARBAGE)
    async for _ in requests:
        pass


async def hears_and_is_silent(requests: AsyncIterator[bytes], context: Any, answers: list[bytes]) -> None:
    async for _ in requests:
        pass


STREAMS: list[Stream] = [
    refuses,
    ends_at_once,
    ends_after_the_question,
    ends_after_the_first_answer,
    fails_after_the_last_answer,
    says_what_cannot_be_decoded,
    says_it_after_the_answers,
    hears_and_is_silent,
]


@asynccontextmanager
async def grpc_peer(
    behaves: Stream, *answers: Any, others: Mapping[str, Stream] | None = None
) -> AsyncIterator[tuple[str, Calls]]:
    """Serves every method of every service with the handler `behaves`, except those named in `others`.  Bytes are sent
    unchanged.
    """
    calls = Calls()

    class Handler(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            method = str(handler_call_details.method).rpartition("/")[2]
            handler = (others or {}).get(method, behaves)

            async def serve(requests: AsyncIterator[bytes], context: Any) -> None:
                calls.count += 1
                await handler(requests, context, [answer.SerializeToString() for answer in answers])

            return grpc.stream_stream_rpc_method_handler(serve)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", calls
    finally:
        await server.stop(0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the broker's time-outs and pauses short."""
    monkeypatch.setattr("broker_service.leadership.registration.ANSWER_WITHIN_S", 0.1)
    monkeypatch.setattr("broker_service.leadership.registration.RETRY_S", (0.01,))
    monkeypatch.setattr("broker_service.leadership.roll_call.ANSWER_WITHIN_S", 0.1)
    monkeypatch.setattr("broker_service.leadership.membership.ASK_AGAIN_S", 0.01)

    def quick(**keys: Any) -> SlaveSettings:
        return SlaveSettings(
            **(keys | {"housekeeping_s": 0.2, "metadata_timeout_s": 0.1, "retry_first_s": 0.01, "retry_last_s": 0.01})
        )

    monkeypatch.setattr("broker_service.node.replication.SlaveSettings", quick)


async def lives(node: BrokerNode) -> None:
    """Checks that none of the broker's tasks has failed."""
    ended = asyncio.Event()
    ended.set()
    await node.tasks.run_until(ended)  # raises the error of a task that failed


async def met(calls: Calls, node: BrokerNode, times: int = 3) -> None:
    before, is_over = calls.count, asyncio.Event()

    async def enough() -> None:
        try:
            await until(lambda: calls.count >= before + times, "the bad peer is met again")
        finally:
            is_over.set()

    meeting = asyncio.ensure_future(enough())
    try:
        await node.tasks.run_until(is_over)  # raises the error of a task that failed
    except BaseException:
        meeting.cancel()
        raise
    await meeting


ANSWER = namesrv_pb2.RegistrationReply(members=[namesrv_pb2.BrokerMember(broker_id=3, address="127.0.0.1:1")])


@asynccontextmanager
async def bad_peer(behaves: Any, *answers: Any) -> AsyncIterator[tuple[str, Calls]]:
    peer = socket_peer(behaves) if behaves in SOCKETS else grpc_peer(behaves, *answers)
    async with peer as found:
        yield found


def times(behaves: Any) -> int:
    """gRPC itself waits long for a peer that never sends its HTTP/2 settings."""
    return 1 if behaves is never_answers else 2


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("behaves", [*SOCKETS, *STREAMS])
async def test_no_name_server_ends_a_broker(tmp_path: Path, behaves: Any) -> None:
    async with bad_peer(behaves, ANSWER, ANSWER) as (bad, calls), name_server() as good:
        async with running(tmp_path, namesrv_addr=f"{bad};{good.address}", slave_wait_time_ms=0) as node:
            await met(calls, node, times(behaves))
            await put(node, "t", b"x")
            await until(lambda: "t" in good.table.topics(), "the good one hears of it")
            await lives(node)


@pytest.mark.usefixtures("impatient")
async def test_no_name_server_ends_a_broker_that_tells_it_of_a_change_meanwhile(tmp_path: Path) -> None:
    async with bad_peer(ends_after_the_first_answer, ANSWER) as (bad, calls):
        async with running(tmp_path, namesrv_addr=bad) as node:

            async def change() -> None:
                while True:
                    node.broker.description_changed.notify()
                    await asyncio.sleep(0)

            changing = asyncio.create_task(change())
            try:
                await met(calls, node, 50)
            finally:
                changing.cancel()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("behaves", [*SOCKETS, *STREAMS])
async def test_no_configured_slave_ends_its_master(tmp_path: Path, behaves: Any) -> None:
    answer = replication_pb2.GetMemberResponse(broker_id=1)
    async with bad_peer(behaves, answer, answer) as (bad, calls), name_server() as good:
        keys = {"ha_slave_addresses": bad, "namesrv_addr": good.address, "register_name_server_period": 100}
        async with running(tmp_path, **keys, slave_wait_time_ms=0) as node:
            await met(calls, node, times(behaves))
            await put(node, "t", b"x")
            await lives(node)


def master_says(**metadata: Any) -> tuple[Any, ...]:
    """Returns what a master sends to a new slave: handshake, heartbeat, metadata, bytes."""
    message, epochs = replication_pb2.MasterMessage, [replication_pb2.Epoch(epoch=1)]
    return (
        message(handshake=replication_pb2.HandshakeReply(epochs=epochs)),
        message(log=replication_pb2.LogData(epoch=1)),
        message(metadata=metadata_pb2.Metadata(**metadata)),
        message(log=replication_pb2.LogData(epoch=1, data=b"?" * 100, crc32=1)),
    )


NONSENSE: list[dict[str, Any]] = [
    {"topics": [metadata_pb2.TopicConfig(topic_name="no topic")]},
    {"groups": [metadata_pb2.SubscriptionGroupConfig(group_name="")]},
    {"consumer_offsets": [metadata_pb2.ConsumerOffset(group="g", topic="t", offset=-7)]},
]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("behaves", "says"),
    [
        *(pytest.param(behaves, master_says(), id=behaves.__name__) for behaves in [*SOCKETS, *STREAMS]),
        *(
            pytest.param(fails_after_the_last_answer, master_says(**nonsense), id=f"nonsense of {next(iter(nonsense))}")
            for nonsense in NONSENSE
        ),
    ],
)
async def test_no_master_ends_its_slave(tmp_path: Path, behaves: Any, says: tuple[Any, ...]) -> None:
    async with bad_peer(behaves, *says) as (bad, calls):
        async with running(
            tmp_path, broker_role=BrokerRole.SLAVE, broker_id=1, ha_master_address=bad, namesrv_addr=""
        ) as node:
            await met(calls, node, times(behaves))
            assert await pulls(node)


EPOCHS = st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 40)), max_size=3)
NUMBERS = st.integers(-1, 50)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(
    epochs=EPOCHS,
    numbers=st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    flags=st.tuples(st.booleans(), st.booleans()),
    size=st.integers(0, 4),
)
def test_whatever_a_master_answers_to_a_handshake_is_taken_or_refused(
    tmp_path: Path, epochs: list[tuple[int, int]], numbers: tuple[int, ...], flags: tuple[bool, bool], size: int
) -> None:
    first, end, resume, refill_from, floor = numbers
    log = MemoryLog(record(b"123456") * size)
    file = EpochFile(tmp_path / "epochs.json", 0)
    file.save(EpochList.of((1, 0), (2, 20)))
    slave = Follower(log, file, IDENTITY, tmp_path / "diverged")
    reply = replication_pb2.HandshakeReply(
        epochs=[replication_pb2.Epoch(epoch=epoch, start_offset=start) for epoch, start in epochs],
        min_offset=first,
        end_offset=end,
        resume_offset=resume,
        refill=flags[0],
        refill_from=refill_from,
        queue_floors=[metadata_pb2.QueueFloor(topic="t", next_offset=floor)] if flags[1] else (),
    )
    try:
        slave.welcome(reply)
        while slave.next_refill(7) is not None:
            pass
    except RocketSimError:
        pass


# --- peers of a promotion ---------------------------------------------------------------------------------------------

# Ways to answer a unary call: a peer that ends the call after its answer is a good one.
ONE_ANSWER: list[Stream] = [
    refuses,
    ends_at_once,
    ends_after_the_question,
    fails_after_the_last_answer,
    says_what_cannot_be_decoded,
    hears_and_is_silent,
]


async def promoted_only_by_force(node: BrokerNode, peer: str, why: str) -> None:
    with pytest.raises(InvalidParameter) as refusal:
        await node.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=False)
    assert f"slave 2 at {peer}" in str(refusal.value) and why in str(refusal.value)
    assert node.broker.is_slave and node.broker.mastership.candidate_epoch == NO_EPOCH
    await lives(node)
    await node.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
    await put(node, "t", b"x")
    await lives(node)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("behaves", [*SOCKETS, *ONE_ANSWER])
async def test_no_other_slave_ends_one_that_calls_the_roll_for_its_promotion(tmp_path: Path, behaves: Any) -> None:
    answer = replication_pb2.GetMemberResponse(broker_id=2)
    async with bad_peer(behaves, answer) as (bad, calls), running(tmp_path, **CANDIDATE) as node:
        node.known_slaves.joined(2, bad)
        await promoted_only_by_force(node, bad, "does not answer")
        assert calls.count


@pytest.mark.parametrize("behaves", ONE_ANSWER)
async def test_no_other_slave_ends_one_that_asks_it_for_a_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaves: Stream
) -> None:
    """The other slave answers the roll call correctly, and misbehaves only when the candidate asks for a promise."""
    monkeypatch.setattr(roll_call, "ANSWER_WITHIN_S", 60.0)
    member = replication_pb2.GetMemberResponse(broker_id=2)
    enough = 0.1 if behaves is hears_and_is_silent else 60.0

    async def until_a_promise(requests: AsyncIterator[bytes], context: Any, answers: list[bytes]) -> None:
        await anext(requests)
        await context.write(answers[0])
        monkeypatch.setattr(roll_call, "ANSWER_WITHIN_S", enough)

    async def asked_for_a_promise(requests: AsyncIterator[bytes], context: Any, answers: list[bytes]) -> None:
        await behaves(requests, context, [replication_pb2.PromiseEpochResponse(member=member).SerializeToString()])

    peer = grpc_peer(until_a_promise, member, others={"PromiseEpoch": asked_for_a_promise})
    async with peer as (bad, _), running(tmp_path, **CANDIDATE) as node:
        node.known_slaves.joined(2, bad)
        await promoted_only_by_force(node, bad, "does not promise to follow no older master")


async def test_an_empty_answer_of_another_slave_is_no_promise(tmp_path: Path) -> None:
    async def promises_nothing(requests: AsyncIterator[bytes], context: Any, answers: list[bytes]) -> None:
        await anext(requests)
        await context.write(b"")

    member = replication_pb2.GetMemberResponse(broker_id=2)
    peer = grpc_peer(ends_after_the_first_answer, member, others={"PromiseEpoch": promises_nothing})
    async with peer as (bad, _), running(tmp_path, **CANDIDATE) as node:
        node.known_slaves.joined(2, bad)
        await promoted_only_by_force(node, bad, "has not promised epoch")


# --- peers that dial a broker -----------------------------------------------------------------------------------------


async def pulls(node: BrokerNode) -> bool:
    """Returns whether the broker answers a call."""
    async with grpc.aio.insecure_channel(node.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        request = broker_pb2.QueueBoundsRequest(topic="TBW102")
        return bool(await BrokerStub(channel).QueueBounds(request, timeout=60))


def handshake(node: BrokerNode, **fields: Any) -> replication_pb2.SlaveMessage:
    identity = node.replication_master.identity
    values = {
        "cluster_name": identity.cluster_name,
        "broker_name": identity.broker_name,
        "broker_id": 1,
        "address": "127.0.0.1:1",
        "epochs": [replication_pb2.Epoch(epoch=1)],
        "mapped_file_size_commit_log": identity.mapped_file_size_commit_log,
        "mapped_file_size_consume_queue": identity.mapped_file_size_consume_queue,
    }
    return replication_pb2.SlaveMessage(handshake=replication_pb2.Handshake(**(values | fields)))


def slave_says(node: BrokerNode) -> list[Any]:
    message, end = replication_pb2.SlaveMessage, node.store.end_offset
    nonsense = metadata_pb2.ConsumerOffset(group="g", topic="t", offset=-7)
    return [
        handshake(node),
        message(ack=replication_pb2.Ack(ack_offset=0, epoch=1)),
        message(ack=replication_pb2.Ack(ack_offset=end, epoch=1)),
        message(offsets=metadata_pb2.Metadata(consumer_offsets=[nonsense])),
    ]


ENDS = ("cancels", "half-closes", "garbage", "breaks the connection")


async def end(stream: Any, how: str) -> None:
    """Ends the call in one of the ways of ENDS; the connection breaks when its channel is closed."""
    if how == "cancels":
        stream.cancel()
    elif how == "half-closes":
        await stream.done_writing()
    elif how == "garbage":
        await stream.write(GARBAGE)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("steps", range(5))
async def test_no_slave_ends_its_master(tmp_path: Path, steps: int, how: str) -> None:
    async with running(tmp_path) as node:
        await put(node, "t", b"x")
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(node.address, options) as channel:
            stream = channel.stream_stream("/rocketsim.Replication/Replicate")()
            try:
                for message in slave_says(node)[:steps]:
                    await stream.write(message.SerializeToString())
                    if message.HasField("handshake"):
                        await stream.read()
                await end(stream, how)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                assert steps > 2  # the broker had already refused its ack of bytes that were never sent
        await until(lambda: not node.replication_master.streams, "the stream is over")
        assert not node.replication_master.greeting.locked()
        await put(node, "t", b"y")
        await lives(node)


async def test_no_reader_ends_a_broker(tmp_path: Path) -> None:
    wanted = [broker_pb2.PullRangeRequest.Range(topic="t", queue_id=0, from_offset=0, until_offset=500)]
    request = broker_pb2.PullRangeRequest(ranges=wanted, max_frame_bytes=1)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with running(tmp_path) as node:
        await put(node, "t", *[b"x" * 1000] * 500)
        for frames in range(4):
            async with grpc.aio.insecure_channel(node.address, options) as channel:
                call = BrokerStub(channel).PullRange(request)
                for _ in range(frames):
                    await call.read()
                if frames % 2:
                    call.cancel()
        async with grpc.aio.insecure_channel(node.address, options) as channel:
            held = BrokerStub(channel).Pull(
                broker_pb2.PullRequest(
                    consumer_group="g", topic="t", queue_id=0, queue_offset=500, suspend_timeout_ms=60_000
                )
            )
            await until(lambda: node.broker.long_polling.held, "the pull is held")
        await until(lambda: not node.broker.long_polling.held, "its caller is gone")
        assert held.done()
        await put(node, "t", b"y")
        await lives(node)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("steps", range(3))
async def test_no_broker_ends_a_name_server(steps: int, how: str) -> None:
    told = namesrv_pb2.BrokerRegistration(broker_name="b", address="127.0.0.1:1")
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with name_server() as names:
        async with grpc.aio.insecure_channel(names.address, options) as channel:
            stream = channel.stream_stream("/rocketsim.NameServer/RegisterBroker")()
            for step in range(steps):
                await stream.write(told.SerializeToString())
                if step:
                    await stream.read()
            await end(stream, how)
        await until(lambda: not names.table.live(), "it is gone")
        async with grpc.aio.insecure_channel(names.address, options) as channel:
            good = NameServerStub(channel).RegisterBroker()
            await good.write(told)
            assert len((await good.read()).members) == 1
