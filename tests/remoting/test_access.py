"""Access control and TLS of the remoting port."""

import ssl
from pathlib import Path

import grpc
import pytest
from rocketsim_proto import admin_pb2 as pb
from rocketsim_proto.records import record
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.signature import Credentials

from broker_service.access.policies import Acl, Policy
from broker_service.access.remoting import REMOTING_RIGHTS, method_of
from broker_service.access.users import User
from broker_service.node.node import BrokerNode
from testbed.polling import until
from tests.remoting.test_clients import a_send, heartbeat
from tests.remoting.test_push_groups import heartbeat as push_heartbeat
from tests.remoting.test_transactions import COMMIT, HALF, offset_in, open_transactions, outcome
from tests.support.access import ADMIN, KEYS, first_user, signed
from tests.support.brokers import running
from tests.support.remoting import Client, port_of
from tests.support.tls import CA, DATA, keys_of

READER = Credentials("reader", "r34der-s3cr3t")
NO = ResponseCode.NO_PERMISSION
# A user with the rights to all topics except one.
ALL_BUT_SECRETS = (
    Policy.parse("Topic:*", ["Pub", "Sub"]),
    Policy.parse("Topic:secrets", ["All"], [], "Deny"),
    Policy.parse("Group:readers", ["Sub"]),
)


async def give(node: BrokerNode, *policies: Policy) -> None:
    assert node.access is not None
    acls = node.access.acls
    subject = f"User:{READER.access_key}"
    await acls.apply(lambda: acls.putting(Acl(subject).with_policies(policies), node.broker.now_ms()))


async def make_reader(node: BrokerNode, *policies: Policy) -> None:
    await first_user(node)
    assert node.access is not None
    users = node.access.users
    made = User(READER.access_key, READER.secret_key)
    await users.apply(lambda: users.putting(made, node.broker.now_ms()))
    await give(node, *policies)


async def test_every_request_has_a_right_and_every_right_a_request(tmp_path: Path) -> None:
    async with running(tmp_path, remoting_port=0) as node:
        assert node.remoting is not None
        assert node.remoting.handlers.keys() == REMOTING_RIGHTS.keys()


async def test_who_has_not_signed_or_signs_wrong_gets_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, remoting_port=0, **KEYS) as node:
        await first_user(node)
        for user in (None, Credentials(ADMIN.access_key, "wrong"), Credentials("nobody", "x")):
            async with await Client.connect(port_of(node), user) as client:
                for code in REMOTING_RIGHTS:
                    assert await client.refused(code) == NO
        async with await Client.connect(port_of(node), ADMIN) as client:
            await client.send("orders", b"\xff", KEYS="ü")
            assert (await client.pull("orders", 0))[0].code == 0
        counts = node.access_control.refusals.counts
        assert {service for _, service in counts} == {"Remoting"}
        assert {reason for reason, _ in counts} == {"unauthenticated", "bad_signature", "unknown_user"}


async def test_each_of_the_requests_that_come_together_needs_its_right(tmp_path: Path) -> None:
    async with running(tmp_path, remoting_port=0, **KEYS) as node:
        await make_reader(node, Policy.parse("Topic:orders", ["Pub"]))
        async with await Client.connect(port_of(node), ADMIN) as admin:
            await admin.send("orders", b"0")
            await admin.send("secrets", b"0")
        async with await Client.connect(port_of(node), READER) as client:
            sends = [a_send(topic, b"x") for topic in ("orders", "secrets", "orders")]
            assert [one.code for one in await client.together(*sends)] == [0, NO, 0]
        assert node.store.queues.end("orders", 0) == 3 and node.store.queues.end("secrets", 0) == 1


async def test_a_user_may_do_what_its_policies_say(tmp_path: Path) -> None:
    keys = {"topic": "orders", "queueId": 0}
    async with running(tmp_path, remoting_port=0, **KEYS) as node:
        policies = Policy.parse("Topic:orders", ["Sub"]), Policy.parse("Group:readers", ["Sub"])
        await make_reader(node, *policies)
        async with await Client.connect(port_of(node), ADMIN) as admin:
            await admin.send("orders", b"0")
            await admin.send("secrets", b"0")
        async with await Client.connect(port_of(node), READER) as client:
            assert (await client.pull("orders", 0))[0].code == 0
            assert (await client.pull("secrets", 0))[0].code == NO
            assert (await client.pull("orders", 0, consumerGroup="others"))[0].code == NO
            await client.call(RequestCode.GET_MAX_OFFSET, **keys)
            await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="readers", commitOffset=1, **keys)
            await client.call(RequestCode.HEART_BEAT, heartbeat("one"))
            assert await client.refused(RequestCode.HEART_BEAT, heartbeat("one", "others")) == NO
            send = {"a": "p", "b": "orders", "c": "", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
            assert await client.refused(RequestCode.SEND_MESSAGE_V2, b"x", **send) == NO
            assert await client.refused(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="orders") == NO
            group = b'{"groupName":"readers"}'
            assert await client.refused(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group) == NO
            assert await client.refused(RequestCode.GET_BROKER_CONFIG) == NO
            assert await client.refused(RequestCode.VIEW_MESSAGE_BY_ID, offset=0) == NO, "of any topic"
            await client.call(RequestCode.VIEW_MESSAGE_BY_ID, offset=0, topic="orders")


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
async def test_a_send_needs_the_right_to_the_topic_that_it_writes(tmp_path: Path, code: RequestCode) -> None:
    async with running(tmp_path, remoting_port=0, **KEYS) as node:
        await make_reader(node, Policy.parse("Topic:orders", ["Pub"]))
        async with await Client.connect(port_of(node), ADMIN) as admin:
            await admin.send("secrets", b"0")
        rest: dict[str, object] = {"a": "p", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0}
        async with await Client.connect(port_of(node), READER) as client:
            assert await client.refused(code, b"x", b="secrets", **rest, topic="orders") == NO
            assert await client.refused(code, b"x", topic="orders", b="secrets", **rest) == NO
            await client.call(code, b"x", b="orders", **rest, topic="secrets")
        assert node.store.queues.end("secrets", 0) == 1 and node.store.queues.end("orders", 0) == 1


async def test_a_heartbeat_without_the_right_to_one_of_its_groups_creates_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, remoting_port=0, **KEYS) as node:
        await make_reader(node, Policy.parse("Topic:orders", ["Sub"]), Policy.parse("Group:readers", ["Sub"]))
        async with await Client.connect(port_of(node), READER) as client:
            beat = push_heartbeat("one", "readers", "others")
            assert await client.refused(RequestCode.HEART_BEAT, beat) == NO
            assert not {"readers", "others"} & node.groups.entries.keys()
            assert not {"%RETRY%readers", "%RETRY%others"} & node.topics.entries.keys()
            await client.call(RequestCode.HEART_BEAT, push_heartbeat("one", "readers"))
            assert "%RETRY%readers" in node.topics.entries


async def test_a_message_that_a_request_without_a_topic_finds_needs_the_right_to_its_own_topic(tmp_path: Path) -> None:
    async with running(tmp_path, remoting_port=0, **KEYS) as node:
        await make_reader(node, *ALL_BUT_SECRETS)
        port = port_of(node)
        async with await Client.connect(port, ADMIN) as admin, await Client.connect(port, READER) as client:
            mine, secret = await admin.send("orders", b"0"), await admin.send("secrets", b"1")
            half = await admin.send("orders", b"2", **HALF)
            dead = await admin.send("orders", b"3")
            back = {"group": "others", "offset": offset_in(dead), "delayLevel": -1}
            await admin.call(RequestCode.CONSUMER_SEND_MSG_BACK, **back)
            _, found = await admin.pull("%DLQ%others", 0)
            assert len(found)
            refused = [offset_in(secret), offset_in(half), record.decode(found).commit_log_offset]
            _, shown = await client.call(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset_in(mine))
            assert record.decode(shown).body == b"0"
            for offset in refused:
                assert await client.refused(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset) == NO
                back = {"group": "readers", "offset": offset}
                assert await client.refused(RequestCode.CONSUMER_SEND_MSG_BACK, **back) == NO
            assert "%RETRY%readers" not in node.topics.entries
            await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, group="readers", offset=offset_in(mine))
            await client.call(RequestCode.HEART_BEAT, heartbeat("one"))
            asked = {"consumerGroup": "readers", "clientId": f"{READER.access_key}/one", "msgId": secret["msgId"]}
            assert await client.refused(RequestCode.CONSUME_MESSAGE_DIRECTLY, **asked) == NO
        async with signed(node, READER) as stub:
            found = await stub.QueryMsgById(pb.QueryMsgByIdRequest(message_id=mine["msgId"]))
            assert found.count == 1
            with pytest.raises(grpc.aio.AioRpcError, match=r"Topic:secrets .* the decision is deny") as denied:
                await stub.QueryMsgById(pb.QueryMsgByIdRequest(message_id=secret["msgId"]))
            assert denied.value.code() is grpc.StatusCode.UNAUTHENTICATED
        counts = node.access_control.refusals.counts
        assert sum(count for (_, service), count in counts.items() if service == "Remoting") == 7
        assert sum(count for (_, service), count in counts.items() if service == "Admin") == 1


async def test_a_transaction_is_ended_only_by_a_user_with_the_right_to_its_topic(tmp_path: Path) -> None:
    async with running(tmp_path, remoting_port=0, **KEYS) as node:
        await make_reader(node, *ALL_BUT_SECRETS)
        port = port_of(node)
        async with await Client.connect(port, ADMIN) as admin, await Client.connect(port, READER) as client:
            sent = await admin.send("secrets", b"half", **HALF)
            end = outcome(sent, COMMIT, offset_in(sent), topic="")
            assert await client.refused(RequestCode.END_TRANSACTION, **end) == NO
            assert open_transactions(node) == 1
            await give(node, ALL_BUT_SECRETS[0])
            await client.call(RequestCode.END_TRANSACTION, **end)
            assert open_transactions(node) == 0


async def test_requests_need_the_rights_of_the_same_calls_of_our_own_protocol(tmp_path: Path) -> None:
    async with running(tmp_path, remoting_port=0, **KEYS) as node:
        await make_reader(node, Policy.parse("Topic:orders", ["Pub"]), Policy.parse("Group:readers", ["Sub"]))
        port, group = port_of(node), {"consumerGroup": "readers"}
        async with await Client.connect(port, ADMIN) as admin, await Client.connect(port, READER) as client:
            await admin.send("orders", b"0")
            for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
                await client.call(code, topic="orders", queueId=0)
            assert await client.refused(RequestCode.GET_CONSUMER_CONNECTION_LIST, **group) == NO, "Sub is no Get"
            await give(node, Policy.parse("Group:readers", ["Get"]))
            offline = await client.refused(RequestCode.GET_CONSUMER_CONNECTION_LIST, **group)
            assert offline == ResponseCode.CONSUMER_NOT_ONLINE


async def test_a_lock_of_a_queue_needs_the_right_to_its_topic(tmp_path: Path) -> None:
    async with running(tmp_path, remoting_port=0, **KEYS) as node:
        await make_reader(node, Policy.parse("Topic:orders", ["Sub"]), Policy.parse("Group:readers", ["Sub"]))

        def body(topic: str) -> bytes:
            return b'{"consumerGroup":"readers","clientId":"one","mqSet":[{"topic":"%s","queueId":0}]}' % topic.encode()

        async with await Client.connect(port_of(node), READER) as client:
            await client.call(RequestCode.LOCK_BATCH_MQ, body("orders"))
            await client.call(RequestCode.LOCK_BATCH_MQ, body("%RETRY%readers"))
            assert await client.refused(RequestCode.LOCK_BATCH_MQ, body("secrets")) == NO


async def test_members_with_keys_find_their_own_ids_in_the_list_of_their_group(tmp_path: Path) -> None:
    """RocketMQ's push consumers take no queue if their id is not in the list."""
    async with running(tmp_path, remoting_port=0, **KEYS) as node:
        await make_reader(node, Policy.parse("Topic:orders", ["Sub"]), Policy.parse("Group:readers", ["Sub"]))
        port = port_of(node)
        async with await Client.connect(port, ADMIN) as admin, await Client.connect(port, READER) as reader:
            for client, client_id in ((admin, "one"), (reader, "two")):
                await client.call(RequestCode.HEART_BEAT, heartbeat(client_id))
            found = await reader.json(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="readers")
            assert found == {"consumerIdList": ["one", "two"]}
            await reader.call(RequestCode.UNREGISTER_CLIENT, clientID="two", consumerGroup="readers")
            found = await admin.json(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="readers")
            assert found == {"consumerIdList": ["one"]}


async def test_clients_of_two_users_with_one_id_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, remoting_port=0, **KEYS) as node:
        await make_reader(node, Policy.parse("Topic:orders", ["Sub"]), Policy.parse("Group:readers", ["Sub"]))
        port = port_of(node)
        async with await Client.connect(port, ADMIN) as admin, await Client.connect(port, READER) as reader:
            for _ in range(2):
                for client in (admin, reader):
                    await client.call(RequestCode.HEART_BEAT, heartbeat("one"))
            (warning,) = (line for line in caplog.messages if "setInstanceName" in line)
            assert f"clients of users {ADMIN.access_key} and {READER.access_key}" in warning and "'one'" in warning
            found = await reader.json(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="readers")
            assert found == {"consumerIdList": ["one"]}


async def test_a_pull_that_is_held_gives_nothing_to_a_user_who_has_lost_the_right(tmp_path: Path) -> None:
    async with running(tmp_path, remoting_port=0, **KEYS) as node:
        await make_reader(node, Policy.parse("Topic:*", ["Sub"]), Policy.parse("Group:*", ["Sub"]))
        port = port_of(node)
        async with await Client.connect(port, ADMIN) as admin, await Client.connect(port, READER) as one:
            await admin.send("orders", b"0")
            held = {"consumerGroup": "readers", "topic": "orders", "queueId": 0, "queueOffset": 1, "maxMsgNums": 1}
            held |= {"sysFlag": 6, "suspendTimeoutMillis": 60_000, "subVersion": 0}
            answer = one.ask(RequestCode.PULL_MESSAGE, held)
            await until(lambda: node.broker.long_polling.held == 1, "the pull is held")
            await give(node, Policy.parse("Topic:*", ["Pub"]))
            await admin.send("orders", b"secret")
            header, body = await answer
            assert (header.code, body) == (NO, b"")


async def test_with_a_certificate_the_port_speaks_tls(tmp_path: Path) -> None:
    async with running(tmp_path, remoting_port=0, **keys_of()) as node:
        context = ssl.create_default_context(cafile=CA)
        async with await Client.connect(port_of(node), context=context) as client:
            await client.send("orders", b"0")
        async with await Client.connect(port_of(node)) as plaintext:
            unanswered = plaintext.ask(RequestCode.GET_BROKER_CONFIG)
            await plaintext.reading
            assert unanswered.exception() is not None


async def test_clients_need_a_certificate_where_the_key_says_so(tmp_path: Path) -> None:
    keys = {"tls_client_auth": "remotingPort", **keys_of()}
    async with running(tmp_path, remoting_port=0, **keys) as node:
        context = ssl.create_default_context(cafile=CA)
        async with await Client.connect(port_of(node), context=context) as client:
            unanswered = client.ask(RequestCode.GET_BROKER_CONFIG)
            await client.reading
            assert unanswered.exception() is not None
        context.load_cert_chain(DATA / "client.pem", DATA / "client.key")
        async with await Client.connect(port_of(node), context=context) as client:
            await client.call(RequestCode.GET_BROKER_CONFIG)


def test_names_of_requests_are_those_of_rocketmq() -> None:
    assert method_of(RequestCode.PULL_MESSAGE) == "/rocketmq.Remoting/PULL_MESSAGE"
