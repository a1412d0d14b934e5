"""Open calls end when their user loses the right to them, and requests without a valid signature are not parsed."""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from rocketmq_v2 import definition_pb2 as d
from rocketmq_v2 import service_pb2 as s
from rocketsim_proto import broker_pb2, consumption_pb2, transactions_pb2
from rocketsim_proto.broker_pb2_grpc import BrokerStub
from rocketsim_proto.consumption_pb2_grpc import ConsumptionStub
from rocketsim_proto.records.record import Record
from rocketsim_proto.signature import Credentials
from rocketsim_proto.transactions_pb2_grpc import TransactionsStub

from broker_service.access.interceptor import AccessInterceptor, OpenCall
from broker_service.access.policies import Acl, Policy
from broker_service.access.users import User
from broker_service.node.node import BrokerNode
from broker_service.state.transaction_changes import TransactionId
from broker_service.transactions.transactions import Check
from testbed.polling import until
from tests.support.access import KEYS, first_user, signed, v2_headers, v2_stub
from tests.support.brokers import put, running
from tests.support.v2 import make_topics, message, receive, resource

WHO, OTHER = Credentials("n", "n0rm4l-s3cr3t"), Credentials("m", "0th3r-s3cr3t")
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


def allow(node: BrokerNode, who: Credentials, *policies: str) -> None:
    assert node.access is not None
    parsed = [Policy.parse(name, actions.split(",")) for name, actions in map(str.split, policies)]
    node.access.acls.put(Acl(f"User:{who.access_key}").with_policies(parsed), 0)


async def two_users(node: BrokerNode) -> None:
    await first_user(node)
    assert node.access is not None
    await node.access.users.settled()
    make_topics(node)
    for who in (WHO, OTHER):
        node.access.users.put(User(who.access_key, who.secret_key), 0)
        allow(node, who, "Topic:* Pub,Sub", "Group:* Sub")


def change_user(node: BrokerNode, **fields: str) -> None:
    assert node.access is not None
    node.access.users.put(User(**{"username": "n", "password": WHO.secret_key} | fields), 0)


def calls_of(node: BrokerNode, username: str) -> list[Any]:
    """Returns the calls of the user that stay open, on both ports."""
    assert node.access is not None
    guards = [getattr(listener, "__self__", None) for listener in node.access.users.changed]
    return [call for guard in guards if isinstance(guard, AccessInterceptor) for call in guard._open.get(username, ())]


def open_calls(node: BrokerNode, username: str) -> int:
    return len(calls_of(node, username))


async def telemetry(v2: Any, who: Credentials, client_id: str) -> Any:
    stream = v2.Telemetry(metadata=v2_headers(who, client_id))
    publishing = d.Publishing(topics=[resource("T")])
    await stream.write(s.TelemetryCommand(settings=d.Settings(client_type=d.PRODUCER, publishing=publishing)))
    assert (await stream.read()).status.code == d.OK
    return stream


async def is_refused(stream: Any) -> None:
    """Checks that the broker has refused a stream, whether or not the broker's last write to the stream had ended."""
    try:
        assert (await asyncio.wait_for(stream.read(), 60)).status.code == d.UNAUTHORIZED
        assert await asyncio.wait_for(stream.read(), 60) is grpc.aio.EOF
    except grpc.aio.AioRpcError as error:  # the broker could not write its answer beside a write that had not ended
        assert error.code() is UNAUTHENTICATED


async def code_of(call: Awaitable[Any]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await asyncio.wait_for(call, 60)
    return error.value.code()


Change = Callable[[BrokerNode], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.access.users.delete("n", 0),
        lambda node: change_user(node, user_status="disable"),
        lambda node: change_user(node, password="another"),
        lambda node: allow(node, WHO, "Topic:M Pub,Sub"),
        lambda node: node.access.acls.delete("User:n", 0),
    ],
    ids=["deleted", "disabled", "new password", "policy changed", "policies deleted"],
)
async def test_streams_and_long_polls_of_a_user_end_when_he_may_not_make_them_any_more(
    tmp_path: Path, change: Change
) -> None:
    """The calls end with the error that a new call would get, and deliver nothing that arrives later; calls of other
    users go on.
    """
    async with (
        running(tmp_path, grpc_server_port=0, **KEYS) as node,
        v2_stub(node) as v2,
        signed(node, WHO, BrokerStub) as broker,
        signed(node, WHO, ConsumptionStub) as consumption,
        signed(node, WHO, TransactionsStub) as transactions,
    ):
        await two_users(node)
        mine, others = await telemetry(v2, WHO, "mine"), await telemetry(v2, OTHER, "others")
        receiving = v2.ReceiveMessage(receive(), metadata=v2_headers(WHO), timeout=55)
        pull = broker.Pull(
            broker_pb2.PullRequest(consumer_group="g2", topic="T", max_msg_nums=1, suspend_timeout_ms=50_000),
            timeout=55,
        )
        pop = consumption.Pop(
            consumption_pb2.PopRequest(
                consumer_group="g3", topic="T", client_id="c", max_messages=1, invisible_ms=60_000, poll_ms=50_000
            ),
            timeout=55,
        )
        check = transactions.Check(transactions_pb2.CheckRequest(client_id="c", topics=["T"]), timeout=55)
        await until(lambda: open_calls(node, "n") == 5, "all calls are open")
        await until(lambda: node.consumption.polls_held == 2 and node.broker.long_polling.held == 1, "they wait")
        change_user(node)  # nothing has changed
        allow(node, WHO, "Topic:* All", "Group:* All", "Topic:M Pub")  # removes only rights that the calls do not need
        assert open_calls(node, "n") == 5 and node.access_control.refusals.counts == {}

        change(node)
        await put(node, "T", b"not for n")
        assert (await asyncio.wait_for(mine.read(), 60)).status.code == d.UNAUTHORIZED
        assert await asyncio.wait_for(mine.read(), 60) is grpc.aio.EOF
        assert await mine.code() is grpc.StatusCode.OK
        assert [answer.status.code async for answer in receiving] == [d.UNAUTHORIZED]
        for call in (pull, pop):
            assert await code_of(call) is UNAUTHENTICATED
        assert await code_of(check.read()) is UNAUTHENTICATED
        await until(lambda: open_calls(node, "n") == 0, "none is left")
        assert node.consumption.polls_held == node.broker.long_polling.held == 0
        assert sum(node.access_control.refusals.counts.values()) == 5
        assert open_calls(node, "m") == 1 and not others.done()
        others.cancel()


async def test_a_user_who_is_no_longer_a_super_user_needs_policies_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, grpc_server_port=0, **KEYS) as node, v2_stub(node) as v2:
        await two_users(node)
        change_user(node, user_type="Super")
        allow(node, WHO, "Topic:M Pub")
        stream = await telemetry(v2, WHO, "mine")
        change_user(node, user_type="Super", password=WHO.secret_key)  # nothing has changed
        assert open_calls(node, "n") == 1 and node.access_control.refusals.counts == {}
        change_user(node, user_type="Normal")
        await is_refused(stream)


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8])
async def test_a_user_may_lose_his_rights_while_his_stream_gets_its_first_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """The rights go after that number of event loop `turns` from the start of the first message's write."""

    async def lose() -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        change_user(node, user_status="disable")

    losing: list[asyncio.Task[None]] = []
    write = OpenCall.write

    async def write_meanwhile(self: OpenCall, command: Any) -> None:
        losing.append(asyncio.create_task(lose()))
        await write(self, command)

    monkeypatch.setattr(OpenCall, "write", write_meanwhile)
    async with running(tmp_path, grpc_server_port=0, **KEYS) as node, v2_stub(node) as v2:
        await two_users(node)
        await is_refused(await telemetry(v2, WHO, "mine"))
        await asyncio.gather(*losing)


async def test_a_stream_that_is_not_read_ends_and_gets_no_more(tmp_path: Path) -> None:
    """The messages that were under way to the ended stream are given back."""
    async with (
        running(tmp_path, grpc_server_port=0, mapped_file_size_commit_log=64 << 20, **KEYS) as node,
        v2_stub(node) as v2,
    ):
        await two_users(node)
        for _ in range(8):
            sent = s.SendMessageRequest(messages=[message(body=bytes(1 << 20))])
            assert (await v2.SendMessage(sent, metadata=v2_headers(WHO))).status.code == d.OK
        call = v2.ReceiveMessage(receive(size=8), metadata=v2_headers(WHO), timeout=55)
        assert (await call.read()).status.code == d.OK
        taken = node.consumption.state.under_way_count
        assert taken > 1  # less than one of them is in transit, because a client's window is 64 KiB
        assert node.access is not None
        node.access.users.delete("n", 0)
        read = 0
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            while (answer := await call.read()) is not grpc.aio.EOF:
                read += answer.HasField("message")
        assert refused.value.code() is UNAUTHENTICATED and read < taken
        await until(lambda: open_calls(node, "n") == 0, "it is over")
        await until(lambda: node.consumption.state.under_way_count == 0, "they are given back")


async def test_a_client_that_ends_its_call_at_the_same_time_disturbs_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, grpc_server_port=0, **KEYS) as node, v2_stub(node) as v2:
        await two_users(node)
        call = v2.ReceiveMessage(receive(), metadata=v2_headers(WHO), timeout=55)
        await until(lambda: node.consumption.polls_held == 1, "it waits")
        (opened,) = calls_of(node, "n")
        opened.task.cancel()  # as gRPC does it then
        node.access.users.delete("n", 0)
        await until(lambda: open_calls(node, "n") == 0, "it is over")
        call.cancel()
        answer = await v2.Heartbeat(s.HeartbeatRequest(), metadata=v2_headers(OTHER))
        assert answer.status.code == d.OK
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# --- what a refused caller costs, and what is told of it --------------------------------------------------------------


async def test_a_request_is_parsed_once_it_is_known_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A request is parsed only after its signature was checked: unsigned bytes that are no message are refused as
    unsigned.
    """
    async with running(tmp_path, grpc_server_port=0, **KEYS) as node:
        await two_users(node)
        await until(lambda: bool(node.v2_port.address), "the port for RocketMQ 5's clients is open")
        garbage = b"\xff" * 64
        v2 = "/apache.rocketmq.v2.MessagingService/"
        async with grpc.aio.insecure_channel(node.v2_port.address) as channel:
            unary = channel.unary_unary(v2 + "SendMessage", None, s.SendMessageResponse.FromString)
            assert (await unary(garbage)).status.code == d.UNAUTHORIZED
            change = channel.unary_unary(
                v2 + "ChangeInvisibleDuration", None, s.ChangeInvisibleDurationResponse.FromString
            )
            assert (await change(garbage)).status.code == d.UNAUTHORIZED
            request = s.ChangeInvisibleDurationRequest(receipt_handle="h").SerializeToString()
            assert (await change(request)).receipt_handle == "h"
            answers = channel.unary_stream(v2 + "ReceiveMessage", None, s.ReceiveMessageResponse.FromString)
            assert [one.status.code async for one in answers(garbage)] == [d.UNAUTHORIZED]
            # The message goes with the headers, because a write to a call that is refused already is another error.
            stream = channel.unary_stream(v2 + "Telemetry", None, s.TelemetryCommand.FromString)(garbage)
            assert [one.status.code async for one in stream] == [d.UNAUTHORIZED]
        async with grpc.aio.insecure_channel(node.address) as channel:
            for method in ("Broker/Send", "Broker/Pull", "Admin/CreateUser"):
                assert await code_of(channel.unary_unary(f"/rocketsim.{method}")(garbage)) is UNAUTHENTICATED
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]  # no traceback
        assert node.access_control.refusals.counts["unauthenticated", "MessagingService"] == 5


@pytest.mark.parametrize("keys", [{}, KEYS], ids=["open", "access control"])
async def test_an_idle_telemetry_stream_holds_none_of_its_commands(tmp_path: Path, keys: dict[str, Any]) -> None:
    """Ten thousand streams may be idle, and their clients choose how large their settings are.  With access control a
    stream keeps its last command that needs rights, as bytes, to check it again when the rights change.
    """
    mark = "the one that is looked for"
    settings = d.Settings(publishing=d.Publishing(topics=[resource("T")]), user_agent=d.UA(version=mark))
    command = s.TelemetryCommand(settings=settings).SerializeToString()
    headers = [("x-mq-client-id", "c")]

    def held() -> list[Any]:
        commands = (one for one in gc.get_objects() if type(one) is s.TelemetryCommand)
        return [one for one in commands if one.settings.user_agent.version == mark]

    async with running(tmp_path, grpc_server_port=0, **keys) as node:
        if keys:
            await two_users(node)
            headers = v2_headers(WHO)
        else:
            make_topics(node)
        await until(lambda: bool(node.v2_port.address), "the port for RocketMQ 5's clients is open")
        async with grpc.aio.insecure_channel(node.v2_port.address) as channel:
            # The test sends and receives bytes, so every message object in memory is the broker's.
            stream: Any = channel.stream_stream("/apache.rocketmq.v2.MessagingService/Telemetry")(metadata=headers)
            for _ in range(2):
                await stream.write(command)
                assert s.TelemetryCommand.FromString(await stream.read()).status.code == d.OK
            await until(lambda: not held(), "the broker holds no command", 10)
            assert node.clients.stream_count == 1
            stream.cancel()


async def test_refusals_are_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, grpc_server_port=0, **KEYS) as node, v2_stub(node) as v2:
        await two_users(node)
        allow(node, WHO, "Topic:T Pub")
        request = s.SendMessageRequest(messages=[message("M")])
        for who in (WHO, WHO, Credentials("n", "wr0ng"), Credentials("s3cr3t-by-mistake", "x")):
            answer = await v2.SendMessage(request, metadata=v2_headers(who))
            assert answer.status.code == d.UNAUTHORIZED
        lines = [found.getMessage() for found in caplog.records if "refuses" in found.getMessage()]
        assert len(lines) == 3, lines
        assert "MessagingService/SendMessage by User:n from 127.0.0.1 (forbidden)" in lines[0]
        assert "by User:n from 127.0.0.1 (bad_signature)" in lines[1] and "an unknown user" in lines[2]
        assert not any(word in caplog.text for word in (WHO.secret_key, "wr0ng", "by-mistake"))
        node.metrics.take_snapshot()
        (family,) = [found for found in node.metrics.collect() if found.name == "rocketsim_calls_refused"]
        assert {(*one.labels.values(), one.value) for one in family.samples} == {
            ("forbidden", "MessagingService", 2.0),
            ("bad_signature", "MessagingService", 1.0),
            ("unknown_user", "MessagingService", 1.0),
        }


async def test_a_user_who_may_no_longer_send_to_a_topic_is_asked_about_no_transaction_of_it(tmp_path: Path) -> None:
    """The user's stream stays open, because it has declared no topic.  A question about a transaction contains its
    message, which may come from another producer.
    """
    async with running(tmp_path, grpc_server_port=0, **KEYS) as node, v2_stub(node) as v2:
        await two_users(node)
        stream = v2.Telemetry(metadata=v2_headers(WHO, "mine"))
        await stream.write(
            s.TelemetryCommand(settings=d.Settings(client_type=d.PRODUCER, publishing=d.Publishing(topics=[])))
        )
        assert (await stream.read()).status.code == d.OK
        sent = await v2.SendMessage(s.SendMessageRequest(messages=[message("M")]), metadata=v2_headers(WHO, "mine"))
        assert sent.status.code == d.OK
        check = Check(TransactionId("M", "1"), "m/others", Record("M", b"not for n"), 0, 1)
        assert await node.consumption.transactions.producers.ask(check)
        question = await asyncio.wait_for(stream.read(), 60)
        assert question.recover_orphaned_transaction_command.message.body == b"not for n"

        allow(node, WHO, "Topic:T Pub")
        assert not await node.consumption.transactions.producers.ask(check)
        assert not await node.consumption.transactions.producers.ask(replace(check, client_id="n/mine"))
        assert open_calls(node, "n") == 1 and not stream.done()
        allow(node, WHO, "Topic:M Pub")
        assert await node.consumption.transactions.producers.ask(check)
        stream.cancel()


@pytest.mark.parametrize("says_group", [True, False])
async def test_messages_renewed_for_a_user_who_lost_the_topic_are_delivered_to_the_rest_of_the_group(
    tmp_path: Path, says_group: bool
) -> None:
    """A push consumer stays connected by its heartbeats because it still has the right to the group, but its acks are
    refused.
    """

    async def taken(v2: Any, who: Credentials, client_id: str) -> list[d.Message]:
        request = receive()
        request.ClearField("invisible_duration")
        request.auto_renew = True
        answers = v2.ReceiveMessage(request, metadata=v2_headers(who, client_id), timeout=55)
        return [answer.message async for answer in answers if answer.HasField("message")]

    async with running(tmp_path, grpc_server_port=0, **KEYS) as node, v2_stub(node) as v2:
        await two_users(node)
        heartbeat = s.HeartbeatRequest(client_type=d.PUSH_CONSUMER, group=resource("g") if says_group else None)
        stream = v2.Telemetry(metadata=v2_headers(WHO, "mine"))
        await stream.write(s.TelemetryCommand())
        await until(lambda: node.clients.is_connected("n/mine"), "it is connected")
        await put(node, "T", b"work")
        (mine,) = await taken(v2, WHO, "mine")

        # removes only rights that the heartbeat does not need
        allow(node, WHO, "Topic:M Sub", "Topic:T Sub", "Group:g Sub")
        assert (await v2.Heartbeat(heartbeat, metadata=v2_headers(WHO, "mine"))).status.code == d.OK
        assert len(node.consumption.state.renewed_for("n/mine")) == 1
        allow(node, WHO, "Topic:M Sub", "Group:g Sub")
        alive = await v2.Heartbeat(heartbeat, metadata=v2_headers(WHO, "mine"))
        assert alive.status.code == d.OK and node.clients.is_connected("n/mine")
        ack = s.AckMessageRequest(group=resource("g"), topic=resource("T"))
        ack.entries.add(message_id="1", receipt_handle=mine.system_properties.receipt_handle)
        assert (await v2.AckMessage(ack, metadata=v2_headers(WHO, "mine"))).status.code == d.UNAUTHORIZED
        (again,) = await taken(v2, OTHER, "others")
        assert (again.body, again.system_properties.delivery_attempt) == (b"work", 2)
        assert not stream.done()
        stream.cancel()
