"""RocketMQ's tools ask a running consumer through the broker: its state, and to consume a message again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto.records import record
from rocketsim_proto.remoting import frame
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.remoting.frame import Form, Header

from broker_service.access.policies import Policy
from broker_service.node.node import BrokerNode
from broker_service.runtime.remoting import server
from broker_service.wire.remoting import questions
from broker_service.wire.remoting.members import Member
from testbed.polling import PATIENCE_S
from tests.remoting.test_access import READER, make_reader
from tests.remoting.test_push_groups import GROUP, heartbeat
from tests.support.access import ADMIN, KEYS
from tests.support.brokers import running
from tests.support.remoting import Client, Refused, port_of, remoting_broker

INFO, CONSUME = RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY
ONE = {"consumerGroup": GROUP, "clientId": "one"}


@asynccontextmanager
async def consumer(node: BrokerNode, client_id: str = "one") -> AsyncIterator[Client]:
    """Connects a push consumer, which has read the notice that it has joined its group."""
    async with await Client.connect(port_of(node)) as connected:
        await connected.call(RequestCode.HEART_BEAT, heartbeat(client_id, GROUP))
        assert (await question(connected))[0].code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        yield connected


async def question(client: Client) -> tuple[Header, bytes]:
    async with asyncio.timeout(PATIENCE_S):
        return await client.told.get()


async def refusal(asking: "asyncio.Future[tuple[Header, bytes]]") -> tuple[int, str]:
    async with asyncio.timeout(PATIENCE_S):
        header, body = await asking
    assert not body
    return header.code, header.remark


@pytest.mark.parametrize("form", Form)
async def test_a_consumer_is_asked_for_its_state_and_its_answer_is_handed_back(tmp_path: Path, form: Form) -> None:
    async with remoting_broker(tmp_path) as (node, tool), consumer(node) as one:
        asking = tool.ask(INFO, ONE | {"jstackEnable": True}, b"", form)
        header, body = await question(one)
        assert (header.code, header.is_answer, header.is_one_way, body) == (INFO, False, False, b"")
        assert header.fields == ONE | {"jstackEnable": "true"}
        one.reply(header, b'{"jstack":"main"}', form=form)
        answer, state = await asking
        assert (answer.code, state) == (0, b'{"jstack":"main"}')


async def test_a_message_is_consumed_by_the_consumer_that_the_tool_names(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, tool), consumer(node) as one, consumer(node, "two") as two:
        sent = await tool.send("orders", b"work", KEYS="k", UNIQ_KEY="U1")
        for message in ({"msgId": sent["msgId"]}, {"msgId": sent["msgId"], "topic": "orders"}):
            asking = tool.ask(CONSUME, ONE | message)
            while (asked := await question(one))[0].code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                pass  # the second consumer has joined
            header, body = asked
            assert record.decode(body).body == b"work" and not header.is_one_way
            assert header.fields.items() >= (ONE | message | {"brokerName": "broker-a", "groupSysFlag": "0"}).items()
            one.reply(header, b"", 1, "The Consumer Group not exist in this consumer")
            assert await refusal(asking) == (1, "The Consumer Group not exist in this consumer")
        assert two.told.empty()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"msgId": "00" * 16}, ResponseCode.QUERY_NOT_FOUND),
        ({"msgId": "U1", "topic": "others"}, ResponseCode.QUERY_NOT_FOUND),
        ({}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_a_message_that_is_not_here_is_not_consumed(tmp_path: Path, message: dict[str, str], code: int) -> None:
    async with remoting_broker(tmp_path) as (node, tool), consumer(node) as one:
        await tool.send("orders", b"work", UNIQ_KEY="U1")
        await tool.send("others", b"work")
        assert await tool.refused(CONSUME, **ONE, **message) == code
        assert one.told.empty()


async def test_a_message_that_is_too_long_for_a_frame_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with remoting_broker(tmp_path) as (node, tool), consumer(node) as one:
        sent = await tool.send("orders", bytes(2_000))
        monkeypatch.setattr(frame, "MAX_FRAME_BYTES", 2_000)
        code, remark = await refusal(tool.ask(CONSUME, ONE | {"msgId": sent["msgId"]}))
        assert code == ResponseCode.MESSAGE_ILLEGAL and "too long for RocketMQ's remoting protocol" in remark
        asking = tool.ask(INFO, ONE)
        one.reply((await question(one))[0])
        await asking


async def test_each_of_several_tools_gets_its_own_answer_whatever_else_the_consumer_sends(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, tool), await Client.connect(port_of(node)) as other:
        async with consumer(node) as one:
            asking = {
                "true": tool.ask(INFO, ONE | {"jstackEnable": True}),
                "false": other.ask(INFO, ONE | {"jstackEnable": False}),
            }
            first, second = [(await question(one))[0] for _ in asking]
            one.reply(Header(0, second.opaque + 1_000), b"to no question")
            for asked, body in ((second, b"second"), (second, b"again"), (first, b"first")):
                one.reply(asked, body)
            async with asyncio.timeout(PATIENCE_S):
                assert (await asking[first.fields["jstackEnable"]])[1] == b"first"
                assert (await asking[second.fields["jstackEnable"]])[1] == b"second"


async def test_a_late_answer_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with remoting_broker(tmp_path) as (node, tool), consumer(node) as one:
        sent = await tool.send("orders", b"work")
        monkeypatch.setattr(questions, "ANSWER_WITHIN_S", 0.01)
        assert await refusal(tool.ask(INFO, ONE)) == (
            ResponseCode.CONSUME_MSG_TIMEOUT,
            f"consumer <{GROUP}> <one> Timeout: no answer within 0.01 s",
        )
        code, remark = await refusal(tool.ask(CONSUME, ONE | {"msgId": sent["msgId"]}))
        assert code == ResponseCode.CONSUME_MSG_TIMEOUT and remark.endswith("may have consumed the message")
        monkeypatch.setattr(questions, "ANSWER_WITHIN_S", PATIENCE_S)
        asking = tool.ask(INFO, ONE)
        for late in (await question(one), await question(one)):
            one.reply(late[0], b"late")
        one.reply((await question(one))[0], b"in time")
        assert (await asking)[1] == b"in time"


async def test_a_consumer_that_goes_away_leaves_no_tool_waiting(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, tool):
        async with consumer(node) as one:
            asking = [tool.ask(INFO, ONE) for _ in range(2)]
            await question(one)
        for refused in asking:
            code, remark = await refusal(refused)
            assert code == ResponseCode.SYSTEM_ERROR and "ended its connection before it answered" in remark
        code, remark = await refusal(tool.ask(INFO, ONE))
        assert code == ResponseCode.SYSTEM_ERROR and "not online; no client of the group" in remark


async def test_a_broker_that_stops_leaves_no_tool_waiting(tmp_path: Path) -> None:
    async with running(tmp_path, remoting_port=0) as node:
        async with await Client.connect(port_of(node)) as tool, consumer(node) as one:
            asking = tool.ask(INFO, ONE)
            await question(one)
            assert node.remoting is not None
            await node.remoting.server.stop(PATIENCE_S)
            assert (await refusal(asking))[0] == ResponseCode.SYSTEM_ERROR


async def test_questions_to_a_consumer_that_answers_none_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = ResponseCode.SYSTEM_BUSY
    async with remoting_broker(tmp_path) as (node, tool), consumer(node) as one, consumer(node, "two") as two:
        monkeypatch.setattr(server, "MAX_UNANSWERED", 1)
        asking = tool.ask(INFO, ONE)
        while (asked := (await question(one))[0]).code != INFO:
            pass
        assert (await refusal(tool.ask(INFO, ONE)))[0] == busy
        beside = tool.ask(INFO, ONE | {"clientId": "two"})
        (header, _) = await question(two)
        monkeypatch.setattr(questions, "MAX_AT_ONCE", 2)
        monkeypatch.setattr(server, "MAX_UNANSWERED", 2)
        assert await refusal(tool.ask(INFO, ONE | {"clientId": "two"})) == (
            busy,
            "2 questions to consumers wait for answers already; ask again later",
        )
        monkeypatch.setattr(server, "MAX_UNANSWERED", 1)
        one.reply(asked, b"one")
        two.reply(header, b"two")
        assert [(await asking)[1], (await beside)[1]] == [b"one", b"two"]
        async with await Client.connect(port_of(node)) as impatient:
            impatient.ask(INFO, ONE)
            await question(one)
        asking = tool.ask(INFO, ONE | {"clientId": "two"})
        two.reply((await question(two))[0])
        await asking

        async def has_room() -> bool:
            """Returns True if the consumer can be asked again, since the tool that has left waits no more."""
            asking = tool.ask(INFO, ONE)
            asked = asyncio.ensure_future(one.told.get())
            await asyncio.wait([asking, asked], return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                asked.cancel()
                return False
            one.reply(asked.result()[0], b"here")
            return (await asking)[1] == b"here"

        async with asyncio.timeout(PATIENCE_S):
            while not await has_room():
                pass


async def test_who_cannot_be_asked_is_refused_by_name(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, tool), consumer(node):
        code, remark = await refusal(tool.ask(INFO, ONE | {"clientId": "other"}))
        assert code == ResponseCode.SYSTEM_ERROR and remark.endswith("<other> not online; its clients are one")
        node.broker.consumers.popped(GROUP, "popper", node.broker.clock())
        for asked in (INFO, CONSUME):
            code, remark = await refusal(tool.ask(asked, ONE | {"clientId": "popper"}))
            assert code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert f"<{GROUP}> <popper> uses RocketSim's protocol or that of RocketMQ 5" in remark
            assert "`rocketsim admin consumerConnection`" in remark


def test_clients_that_do_not_know_the_questions_are_refused() -> None:
    def found(version: int) -> Any:
        member = Member(None, "", "JAVA", version, 0.0)  # type: ignore[arg-type]
        return questions.chosen(GROUP, "one", {"one": member}, ())

    assert "<one> Version <61> too low" in found(61).remark
    assert found(62).version == 62


async def test_access_is_needed_and_signatures_are_not_passed_on(tmp_path: Path) -> None:
    async with running(tmp_path, remoting_port=0, **KEYS) as node:
        await make_reader(node, Policy.parse("Topic:orders", ["Sub"]), Policy.parse(f"Group:{GROUP}", ["Sub"]))
        async with (
            await Client.connect(port_of(node), ADMIN) as admin,
            await Client.connect(port_of(node), READER) as reader,
        ):
            sent = await admin.send("orders", b"work")
            await reader.call(RequestCode.HEART_BEAT, heartbeat("one", GROUP))
            await question(reader)
            asked_for = ONE | {"clientId": "reader/one"}
            with pytest.raises(Refused) as refused:
                await reader.call(INFO, **asked_for)
            assert refused.value.code == ResponseCode.NO_PERMISSION, "Sub is no Get"
            assert await reader.refused(CONSUME, msgId=sent["msgId"], **asked_for) == ResponseCode.NO_PERMISSION
            for tool, code, more in ((admin, INFO, {}), (reader, CONSUME, {"msgId": sent["msgId"], "topic": "orders"})):
                asking = tool.ask(code, asked_for | more)
                header, _ = await question(reader)
                assert header.fields["clientId"] == "one", "the id that the client gave itself"
                assert not header.fields.keys() & {"AccessKey", "Signature"}
                reader.reply(header, b"{}")
                assert (await asking)[1] == b"{}"
