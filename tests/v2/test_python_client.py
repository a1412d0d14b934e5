"""RocketMQ's official Python client against a broker: it produces, receives, acknowledges and consumes by push."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from rocketmq_v2 import definition_pb2 as d

from broker_service.access.policies import Acl, Policy
from broker_service.access.users import User
from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from rocketsim_client import PullConsumer
from testbed.polling import until
from testbed.processes import ROOT
from tests.support.access import KEYS, first_user
from tests.support.brokers import goes_by
from tests.support.tls import CA, keys_of
from tests.support.v2 import message, v2_broker

PROGRAM = Path(__file__).with_name("python_client.py")


async def run(home: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await output_of(home, str(PROGRAM), *arguments, **environment))
    return found


async def output_of(home: Path, *arguments: str, **environment: str) -> str:
    """Runs Python with these arguments, and returns what it prints.  The client writes a log into its user's home when
    it is imported.
    """
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env=os.environ | {"HOME": str(home)} | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await program.communicate()
    assert program.returncode == 0, errors.decode()
    return out.decode()


async def test_the_client_produces_receives_acknowledges_and_consumes_by_push(tmp_path: Path) -> None:
    async with v2_broker(tmp_path / "store", mapped_file_size_commit_log=8 << 20) as (node, _):
        found = await run(tmp_path, "all", node.v2_port.address, "T", "F")
        ids = found["sent"]
        assert len(set(ids)) == 4
        assert found["received"] == [
            [f"m{number}", "A", message_id, ["k"], {"colour": "red"}] for number, message_id in enumerate(ids)
        ]
        assert found["left"] == 0
        # Each message failed once, and was delivered again as attempt 2.
        assert found["came_again"]
        assert sorted(found["pushed"]) == [[f"m{number}", attempt] for number in range(4) for attempt in (1, 2)]

        def read() -> dict[str, list[Any]]:
            with PullConsumer(group="g", brokers={"broker-a": {0: node.address}}) as consumer:
                return {
                    topic: [one for queue in consumer.message_queues(topic) for one in consumer.pull(queue, 0).messages]
                    for topic in ("T", "F")
                }

        messages = await asyncio.to_thread(read)
        assert sorted(one.msg_id for one in messages["T"]) == ids
        assert {(one.tags, one.keys, one.properties["colour"]) for one in messages["T"]} == {("A", "k", "red")}
        assert [one.body for one in messages["F"]] == [b"f0", b"f1", b"f2"]  # the messages of one queue are in order
        assert {one.properties["__SHARDINGKEY"] for one in messages["F"]} == {"g"}


async def test_the_quick_start_of_the_documents_works_with_another_address(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "clients.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    async with v2_broker(tmp_path / "store") as (node, _):
        node.topics.update(TopicConfig("TopicTest", 4, 4), 0)
        code = program.replace("127.0.0.1:8081", node.v2_port.address)
        assert code != program
        out = await output_of(tmp_path, "-c", code)
    message_id, *received = out.splitlines()
    assert (len(message_id), received) == (34, ["hello greeting"])


async def test_the_client_speaks_tls_and_checks_the_servers_certificate(tmp_path: Path) -> None:
    """The client uses TLS on the same port on which other clients use plaintext."""
    async with v2_broker(tmp_path / "store", **keys_of()) as (node, client):
        assert (await client.send(message())).status.code == d.OK
        found = await run(tmp_path, "tls", node.v2_port.address, "T", GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=str(CA))
        assert found["received"] == 2
        assert node.consumption.state.under_way_count == 0


async def test_its_access_keys_open_what_its_user_may_do(tmp_path: Path) -> None:
    async with v2_broker(tmp_path / "store", mapped_file_size_commit_log=8 << 20, **KEYS) as (node, _):
        await first_user(node)
        assert node.access is not None
        users, acls = node.access
        policies = [Policy.parse("Topic:T", ["Pub", "Sub"]), Policy.parse("Group:g", ["Sub"])]
        await users.apply(lambda: users.putting(User("n", "sk"), 1))
        await acls.apply(lambda: acls.putting(Acl("User:n").with_policies(policies), 1))
        found = await run(tmp_path, "keys", node.v2_port.address, "T", "M", "n", "sk")
        assert found["received"] == [found["T"]] and "refused" not in found["T"]
        assert "refused" in found["M"] and not node.store.queues.ends("M")
        assert node.consumption.state.under_way_count == 0  # it was acknowledged
        wrong = await run(tmp_path, "keys", node.v2_port.address, "T", "M", "n", "wrong")
        assert [name for name, said in wrong.items() if "refused" in said] == ["T", "M", "received"]


async def test_the_client_consumes_in_order_and_a_message_that_always_fails_is_a_dead_letter(tmp_path: Path) -> None:
    async with v2_broker(tmp_path / "store", mapped_file_size_commit_log=8 << 20) as (node, _):
        for name in ("simple", "push"):
            node.groups.update(SubscriptionGroup(name, consume_message_orderly=True, retry_max_times=1), 0)
        found = await run(tmp_path, "fifo", node.v2_port.address, "F")

        def of_group(words: list[str], group: str) -> list[str]:
            return [word for word in words if word.startswith(f"f-{group}-")]

        for group in "ab":
            assert of_group(found["received"], group) == [f"f-{group}-{number}" for number in range(3)]
        assert found["done"]
        assert of_group(found["pushed"], "a") == ["f-a-0", "f-a-1", "f-a-1", "f-a-2"]
        assert of_group(found["pushed"], "b") == ["f-b-0", "f-b-0", "f-b-1", "f-b-2"]
        await until(lambda: node.store.queues.end("%DLQ%push", 0) == 1, "the dead letter")
        assert node.topics.get("%RETRY%push+F") is None


async def test_its_transactions_are_committed_rolled_back_and_checked(tmp_path: Path) -> None:
    keys = {"transaction_time_out": 3000, "transaction_check_interval": 500, "transaction_check_max": 1000}
    async with v2_broker(tmp_path / "store", **keys) as (node, _):
        found = await run(tmp_path, "transact", node.v2_port.address, "X")
        assert found["was_asked"]
        assert found["asked"] == ["late commit", "late rollback"]
        assert found["properties"]["colour"] == "red"
        assert found["received"] == [["commit", "A", "red"], ["late commit", "A", "red"]]
        assert found["left"] == 0
        await until(lambda: not node.consumption.state.transactions.open, "all have ended")

        def read() -> list[bytes]:
            with PullConsumer(group="g", brokers={"broker-a": {0: node.address}}) as consumer:
                queues = consumer.message_queues("X")
                return sorted(one.body for queue in queues for one in consumer.pull(queue, 0).messages)

        assert await asyncio.to_thread(read) == [b"commit", b"late commit"]


async def test_its_filters_of_sql_select_by_properties(tmp_path: Path) -> None:
    async with v2_broker(tmp_path / "store", enable_property_filter=True) as (node, _):
        found = await run(tmp_path, "filter", node.v2_port.address, "T")
    assert {text: sorted(bodies) for text, bodies in found["received"].items()} == {
        "price > 3 AND price <= 6": ["m4", "m5", "m6"],
        "TAGS = 'odd' AND price < 4": ["m1", "m3"],
    }
    assert "ILLEGAL_FILTER_EXPRESSION" in found["refused"]
    assert found["came_again"]
    assert found["pushed"] == [[f"m{number}", attempt] for number in (8, 9) for attempt in (1, 2)]


async def test_the_client_sends_messages_with_a_delivery_time_and_recalls_them(tmp_path: Path) -> None:
    async with v2_broker(tmp_path / "store", mapped_file_size_commit_log=8 << 20) as (node, _):
        found = await run(tmp_path, "delay", node.v2_port.address, "D")
        assert (found["recalled"], found["received"]) == (True, [["kept", True]])
        assert found["delivery_timestamp"] == found["due"] <= found["received_at"]
        assert node.consumption.state.timers.count == 2, "the recalled one and its recall"
        in_two_hours = node.broker.now_ms() + 7_200_000
        goes_by(node.broker, lambda: in_two_hours)
        await node.consumption.timer_delivery.deliver_due()
        assert node.consumption.state.timers.count == 0
        assert sum(node.store.queues.ends("D").values()) == 1
