"""Every call of the broker over real gRPC: refusals, deadlines, reflection and health."""

import zlib
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto.message_pb2 import QueueId, ResponseCode

from broker_service import errors
from broker_service.broker.metadata.topics import TopicConfig
from broker_service.modes import BrokerRole
from broker_service.runtime.rpc_errors import status_of
from broker_service.store.json_file import JsonFile
from testbed.polling import until
from tests.support.brokers import answers_early, bodies_in, message, put, running, stub_of


def send_request(*records: bytes, topic: str = "t", **fields: Any) -> pb.SendRequest:
    data = b"".join(records)
    return pb.SendRequest(
        **({"topic": topic, "records": data, "count": len(records), "crc32": zlib.crc32(data)} | fields)
    )


def code_of(error: grpc.aio.AioRpcError) -> int:
    return int(dict(error.trailing_metadata() or ())["rocketsim-code"])


async def test_every_call_of_a_producer_and_a_consumer(tmp_path: Path) -> None:
    async with running(tmp_path) as node, stub_of(node) as stub:
        sent = await stub.Send(send_request(message("t", b"a"), message("t", b"b", 1), message("t", b"c")), timeout=60)
        assert sent.status == pb.SendResponse.PUT_OK
        assert [(queue.queue_id, queue.first_queue_offset, queue.count) for queue in sent.queues] == [
            (0, 0, 2),
            (1, 0, 1),
        ]
        assert (sent.runs[0].commit_log_offset, sent.runs[0].count) == (0, 3)
        assert (sent.store_host, sent.epoch) == (node.broker.store_host, node.broker.epoch)

        pulled = await stub.Pull(pb.PullRequest(consumer_group="g", topic="t"), timeout=60)
        assert (pulled.code, pulled.status, pulled.count, pulled.next_begin_offset) == (0, pb.PullResponse.FOUND, 2, 2)
        assert bodies_in(pulled.records) == [b"a", b"c"]
        assert len(pulled.sizes) == 8

        ranges = [pb.PullRangeRequest.Range(topic="t", queue_id=queue, until_offset=2) for queue in (0, 1)]
        frames = [frame async for frame in stub.PullRange(pb.PullRangeRequest(ranges=ranges), timeout=60)]
        assert [body for frame in frames for body in bodies_in(frame.records)] == [b"a", b"c", b"b"]
        assert frames[-1].segments[-1].status == pb.PullResponse.OFFSET_OVERFLOW_ONE

        entry = pb.CommitOffsetsRequest.Entry(topic="t", queue_id=0, offset=2)
        assert (await stub.CommitOffsets(pb.CommitOffsetsRequest(consumer_group="g", entries=[entry]))).offsets == [2]
        asked = pb.QueryOffsetsRequest(
            consumer_group="g", queues=[QueueId(topic="t", queue_id=0), QueueId(topic="t", queue_id=1)]
        )
        assert [found.offset for found in (await stub.QueryOffsets(asked)).entries] == [2, -1]

        bounds = await stub.QueueBounds(pb.QueueBoundsRequest(topic="t", queue_ids=[0]))
        assert (bounds.entries[0].max_offset, bounds.is_master) == (2, True)
        node.broker.topics.update(TopicConfig("t", read_queue_nums=4, write_queue_nums=2), 0)
        bounds = await stub.QueueBounds(pb.QueueBoundsRequest(topic="t"))
        assert (len(bounds.entries), bounds.read_queue_nums, bounds.write_queue_nums) == (4, 4, 2)
        since = pb.SearchOffsetsRequest(topic="t", entries=[pb.SearchOffsetsRequest.Entry(queue_id=0, timestamp=0)])
        assert (await stub.SearchOffsets(since)).offsets == [0]
        wait = pb.WaitForRecordsRequest(topic="t", queue_ids=[0], ends=[0], hold_ms=60_000)
        assert (await stub.WaitForRecords(wait)).arrived
        for ids, ends in ([], []), ([0], []), ([0], [0, 1]):
            with pytest.raises(grpc.aio.AioRpcError, match="an end for each"):
                await stub.WaitForRecords(pb.WaitForRecordsRequest(topic="t", queue_ids=ids, ends=ends))


REFUSALS = [
    pytest.param("Send", send_request(message("t", b"x"), crc32=1), "INVALID_ARGUMENT", 13, id="MESSAGE_ILLEGAL"),
    pytest.param(
        "Send", send_request(message("TBW102", b"x"), topic="TBW102"), "PERMISSION_DENIED", 16, id="NO_PERMISSION"
    ),
    pytest.param(
        "Send", send_request(message("t", b"x"), epoch=5), "FAILED_PRECONDITION", 14, id="SERVICE_NOT_AVAILABLE"
    ),
    pytest.param("Pull", pb.PullRequest(consumer_group="g", topic="absent"), "NOT_FOUND", 17, id="TOPIC_NOT_EXIST"),
    pytest.param("Pull", pb.PullRequest(consumer_group="", topic="t"), "INVALID_ARGUMENT", 29, id="INVALID_PARAMETER"),
    pytest.param(
        "Pull", pb.PullRequest(consumer_group="g", topic="t", queue_id=-1), "INVALID_ARGUMENT", 1, id="SYSTEM_ERROR"
    ),
    pytest.param(
        "Pull",
        pb.PullRequest(consumer_group="g", topic="t", sub_expression="||"),
        "INVALID_ARGUMENT",
        23,
        id="SUBSCRIPTION_PARSE_FAILED",
    ),
    pytest.param("QueueBounds", pb.QueueBoundsRequest(topic="absent"), "NOT_FOUND", 17, id="bounds of no topic"),
]


@pytest.mark.parametrize(("call", "request_", "status", "code"), REFUSALS)
async def test_a_refusal_has_a_status_a_reason_and_rocketmqs_number(
    tmp_path: Path, call: str, request_: Any, status: str, code: int
) -> None:
    async with running(tmp_path) as node, stub_of(node) as stub:
        await put(node, "t", b"x")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await getattr(stub, call)(request_, timeout=60)
        assert (refused.value.code().name, code_of(refused.value)) == (status, code)
        assert len(refused.value.details() or "") > 10


async def test_only_a_master_that_may_write_says_that_a_topic_does_not_exist(tmp_path: Path) -> None:
    """A fenced (replaced) master does not know the topics that were created since; readers must not take them for
    deleted.
    """
    async with running(tmp_path) as node, stub_of(node) as stub:
        await put(node, "t", b"x")
        node.mastership.newer_epoch(10_000, "a newer master")
        search = pb.SearchOffsetsRequest(topic="absent", entries=[pb.SearchOffsetsRequest.Entry(queue_id=0)])
        for call in (stub.QueueBounds(pb.QueueBoundsRequest(topic="absent")), stub.SearchOffsets(search)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert code_of(refused.value) == 14
        bounds = await stub.QueueBounds(pb.QueueBoundsRequest(topic="t"))
        assert bounds.entries[0].max_offset == 1


async def test_a_refused_stream_says_so_too(tmp_path: Path) -> None:
    async with running(tmp_path) as node, stub_of(node) as stub:
        wanted = pb.PullRangeRequest(ranges=[pb.PullRangeRequest.Range(topic="absent", until_offset=1)])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            [frame async for frame in stub.PullRange(wanted, timeout=60)]
        assert (refused.value.code(), code_of(refused.value)) == (grpc.StatusCode.NOT_FOUND, 17)


def test_every_error_of_ours_has_a_status_and_a_code_of_rocketmqs() -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RocketSimError)
    ]
    assert len(kinds) > 10
    for kind in kinds:
        assert isinstance(status_of(kind("x")), grpc.StatusCode)
        assert kind.code in ResponseCode.values()
    assert status_of(errors.DiskFull("x")) is grpc.StatusCode.FAILED_PRECONDITION
    assert status_of(errors.StoreCorrupt("x")) is grpc.StatusCode.DATA_LOSS
    assert status_of(errors.ReadFailed("x")) is grpc.StatusCode.DATA_LOSS
    assert status_of(errors.SystemBusy("x")) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert status_of(errors.RocketSimError("x")) is grpc.StatusCode.INTERNAL


async def test_a_disk_that_fails_is_said_as_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as node, stub_of(node) as stub:
        for number, words in ((28, "no room"), (5, "[Errno 5] as if; reads go on")):

            def failing(*arguments: Any, number: int = number) -> None:
                raise OSError(number, "as if")

            monkeypatch.setattr(JsonFile, "save", failing)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Send(send_request(message("t", b"x")), timeout=60)
            assert (refused.value.code().name, code_of(refused.value)) == ("FAILED_PRECONDITION", 14)
            assert words in (refused.value.details() or "")


@pytest.mark.parametrize("error", [OSError(28, "as if"), OSError(5, "as if"), errors.DiskFull("x")])
async def test_a_new_group_reads_although_the_disk_takes_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: Any) -> None:
        raise error

    async with running(tmp_path) as node, stub_of(node) as stub:
        await put(node, "t", b"x")
        asked = pb.PullRequest(consumer_group="new", topic="t", max_msg_nums=1)
        with monkeypatch.context() as patch:
            patch.setattr(JsonFile, "save", failing)
            assert (await stub.Pull(asked, timeout=60)).count == 1
            assert "new" not in node.groups.entries
        assert (await stub.Pull(asked, timeout=60)).count == 1
        assert "new" in node.groups.entries


async def test_a_hold_ends_by_an_answer_before_the_callers_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_early(monkeypatch)
    async with running(tmp_path) as node, stub_of(node) as stub:
        await put(node, "t", b"x")
        pulled = await stub.Pull(
            pb.PullRequest(consumer_group="g", topic="t", queue_offset=1, suspend_timeout_ms=60_000), timeout=10
        )
        assert pulled.code == ResponseCode.PULL_NOT_FOUND


async def test_a_slow_disk_reaches_the_caller_as_its_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers_early(monkeypatch)
    keys: dict[str, Any] = {"broker_role": BrokerRole.SYNC_MASTER, "slave_timeout": 60_000}
    async with running(tmp_path, **keys) as node, stub_of(node) as stub:
        slave = node.acknowledgements.on_join(1, "a frozen slave", 0)
        node.acknowledgements.on_ack(slave, 0)
        sent = await stub.Send(send_request(message("t", b"x")), timeout=10)
        assert sent.status == pb.SendResponse.FLUSH_SLAVE_TIMEOUT


async def test_a_frame_above_grpcs_own_limit_is_read_and_refused_by_us(tmp_path: Path) -> None:
    async with running(tmp_path, mapped_file_size_commit_log=16 << 20) as node, stub_of(node) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Send(send_request(message("t", bytes(5 << 20))), timeout=30)
        assert (refused.value.code(), code_of(refused.value)) == (grpc.StatusCode.INVALID_ARGUMENT, 13)
        assert "maxMessageSize is 4194304" in (refused.value.details() or "")
        await stub.Send(send_request(*[message("t", bytes(4 << 20))] * 2), timeout=30)


async def test_a_consumer_that_goes_away_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running(tmp_path) as node, stub_of(node) as stub:
        await put(node, "t", *[bytes(1000)] * 500)
        wanted = [pb.PullRangeRequest.Range(topic="t", until_offset=500)] * 20
        call = stub.PullRange(pb.PullRangeRequest(ranges=wanted, max_frame_bytes=1000), timeout=60)
        await call.read()
        call.cancel()
        held = stub.Pull(pb.PullRequest(consumer_group="g", topic="t", queue_offset=500, suspend_timeout_ms=60_000))
        await until(lambda: node.broker.long_polling.held == 1, "held")
        held.cancel()
        await until(lambda: node.broker.long_polling.held == 0, "let go")
        assert (await stub.Pull(pb.PullRequest(consumer_group="g", topic="t"), timeout=60)).count == 32


async def test_reflection_lists_every_service(tmp_path: Path) -> None:
    async with running(tmp_path) as node, stub_of(node, reflection_pb2_grpc.ServerReflectionStub) as stub:
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {service.name for service in (await call.read()).list_services_response.service}
        await call.done_writing()
        assert {"rocketsim.Broker", "rocketsim.Admin", "rocketsim.Replication", "grpc.health.v1.Health"} <= listed


async def test_health_is_serving_until_the_broker_stops(tmp_path: Path) -> None:
    async with running(tmp_path) as node, stub_of(node, health_pb2_grpc.HealthStub) as stub:
        for service in ("", "rocketsim.Broker"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        await node.health.enter_graceful_shutdown()
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=""))
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
