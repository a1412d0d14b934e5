"""Transactions over the remoting protocol: half messages, their commit and rollback, and questions to producers."""

import json
from pathlib import Path

import pytest
from rocketsim_proto.records import record
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.reserved import HALF_TOPIC

from broker_service.node.node import BrokerNode
from testbed.polling import until
from tests.support.brokers import bodies_in
from tests.support.remoting import Client, port_of, remoting_broker

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALF = {"TRAN_MSG": "true", "PGROUP": "bank", "UNIQ_KEY": "AC11000100002A9F0000000000000001"}


def outcome(sent: dict[str, str], what: int, log_offset: int, **others: object) -> dict[str, object]:
    return {
        "producerGroup": "bank",
        "tranStateTableOffset": sent["queueOffset"],
        "commitLogOffset": log_offset,
        "commitOrRollback": what,
        "fromTransactionCheck": "false",
        "msgId": HALF["UNIQ_KEY"],
        "transactionId": sent["transactionId"],
        "topic": "orders",
    } | others


def offset_in(sent: dict[str, str]) -> int:
    return int(sent["msgId"][-16:], 16)


async def visible(client: Client) -> list[bytes]:
    header, records = await client.pull("orders", 0)
    return bodies_in(records) if header.code == ResponseCode.SUCCESS else []


def beat(client_id: str, *groups: str) -> bytes:
    return json.dumps({"clientID": client_id, "producerDataSet": [{"groupName": name} for name in groups]}).encode()


def open_transactions(node: BrokerNode) -> int:
    node.consumption.writer.catch_up()
    return len(node.consumption.transactions.state.open)


async def test_a_message_is_seen_when_its_producer_commits(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        sent = await client.send("orders", b"half", **HALF)
        assert sent["transactionId"] == HALF["UNIQ_KEY"] and open_transactions(node) == 1
        assert await visible(client) == []
        await client.call(RequestCode.END_TRANSACTION, **outcome(sent, UNKNOWN, offset_in(sent)))
        assert open_transactions(node) == 1, "its producer does not know yet"
        for _ in range(2):  # the second call finds the transaction ended in the same way
            await client.call(RequestCode.END_TRANSACTION, **outcome(sent, COMMIT, offset_in(sent)))
        assert await visible(client) == [b"half"]
        late = outcome(sent, ROLLBACK, offset_in(sent))
        assert await client.refused(RequestCode.END_TRANSACTION, **late) != ResponseCode.SUCCESS


async def test_a_message_is_never_seen_when_its_producer_rolls_back(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        sent = await client.send("orders", b"half", **HALF)
        await client.call(RequestCode.END_TRANSACTION, **outcome(sent, ROLLBACK, offset_in(sent)))
        assert open_transactions(node) == 0 and await visible(client) == []


async def test_a_message_that_is_sent_again_begins_no_second_transaction(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        sent, again = [await client.send("orders", b"half", **HALF) for _ in range(2)]
        assert (sent["msgId"], sent["queueOffset"]) == (again["msgId"], again["queueOffset"])
        assert node.store.queues.end(HALF_TOPIC, 0) == 1


@pytest.mark.parametrize(
    "wrong", [{"topic": "others"}, {"producerGroup": "thieves"}, {"tranStateTableOffset": 7}, {"commitLogOffset": 1}]
)
async def test_an_outcome_that_names_something_else_changes_nothing(tmp_path: Path, wrong: dict[str, object]) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        sent = await client.send("orders", b"half", **HALF)
        assert await client.refused(RequestCode.END_TRANSACTION, **outcome(sent, COMMIT, offset_in(sent)) | wrong)
        assert open_transactions(node) == 1 and await visible(client) == []


async def test_an_outcome_for_an_ordinary_message_is_refused(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (_, client):
        sent = await client.send("orders", b"ordinary", PGROUP="bank", UNIQ_KEY=HALF["UNIQ_KEY"])
        refused = await client.refused(RequestCode.END_TRANSACTION, **outcome(sent, COMMIT, offset_in(sent)))
        assert refused == ResponseCode.QUERY_NOT_FOUND


async def test_batches_begin_no_transaction_and_neither_do_messages_without_an_id(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path) as (node, client):
        with pytest.raises(Exception, match="a batch cannot begin a transaction"):
            await client.send("orders", b"a", b"b", **HALF)
        with pytest.raises(Exception, match="must have an id"):
            await client.send("orders", b"a", TRAN_MSG="true", PGROUP="bank")
        assert node.store.end_offset == 0


async def test_a_producer_that_says_nothing_is_asked_and_answers(tmp_path: Path) -> None:
    async with remoting_broker(tmp_path, transaction_time_out=1, transaction_check_interval=1) as (node, client):
        async with await Client.connect(port_of(node)) as other:
            await other.call(RequestCode.HEART_BEAT, beat("two", "shop"))
            await client.call(RequestCode.HEART_BEAT, beat("one", "bank"))
            sent = await client.send("orders", b"half", **HALF)
            header, body = await client.told.get()
            assert header.code == RequestCode.CHECK_TRANSACTION_STATE and header.is_one_way
            assert (
                header.fields.items()
                >= {
                    "transactionId": HALF["UNIQ_KEY"],
                    "tranStateTableOffset": sent["queueOffset"],
                    "commitLogOffset": str(offset_in(sent)),
                    "topic": "orders",
                }.items()
            )
            asked = record.decode(body)
            assert (asked.topic, asked.body, asked.properties["PGROUP"]) == ("orders", b"half", "bank")
            answer = outcome(sent, COMMIT, int(header.fields["commitLogOffset"]), fromTransactionCheck="true")
            await client.call(RequestCode.END_TRANSACTION, **answer)
            assert await visible(client) == [b"half"]
            assert other.told.empty(), "it is not of the group"


async def test_nobody_else_is_asked_about_a_transaction_of_a_group_that_is_away(tmp_path: Path) -> None:
    """Another producer of the topic knows nothing of the transaction, and might have it rolled back."""
    keys = {"transaction_time_out": 1, "transaction_check_interval": 1, "transaction_check_max": 2}
    async with remoting_broker(tmp_path, **keys) as (node, client):
        await client.call(RequestCode.HEART_BEAT, beat("one", "shop"))
        node.clients.publishes("grpc-client", "orders")
        await client.send("orders", b"half", **HALF)
        await until(lambda: not open_transactions(node), "the transaction to be given up")
        assert client.told.empty() and await visible(client) == []
