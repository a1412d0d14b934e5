"""RocketMQ's official clients, while the master dies and the slave is promoted: `./run test --clients`.

Each language has a program (tests/clients), whose arguments are in tests/support/official_clients.py.  Each program
sends to the topics N (NORMAL), F (FIFO, message groups a and b), D (DELAY) and X (TRANSACTION) until its input has a
line.  Until its input ends, the program consumes N (group push) and F (group ordered, in order) by push, and D and X
(group simple) with a simple consumer; a client without push uses simple consumers for all.  Each program prints these
lines:

    sent TOPIC BODY          the answer was OK; the message must be received
    rolled-back X BODY       the message must not be received
    recalled D BODY          the message must not be received; a message that is due later is sent after it
    asked X BODY             the broker asked how this transaction ended
    got TOPIC BODY           the message was received; `early` in place of `got` if before its delivery time

A body of F is f-GROUP-NUMBER, with a growing number.  The program does not repeat calls that fail, and continues.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing

import pytest

from broker_service.broker.metadata.groups import SubscriptionGroup
from broker_service.broker.metadata.topics import TopicConfig
from rocketsim_client import Admin, SubscriptionGroupConfig
from rocketsim_client.admin_model import AclPolicy
from rocketsim_client.connection import Connection
from rocketsim_client.errors import RocketSimError
from rocketsim_client.tls import Tls
from rocketsim_client.transport.own.transport import GrpcTransport
from testbed.polling import PROCESS_PATIENCE_S, until, wait_until
from tests.cluster.one_broker import OneBroker
from tests.cluster.test_promotion import promote_after_the_masters_death
from tests.support.access import ADMIN, CONTROLLED, SIGNED
from tests.support.official_clients import OFFICIAL_CLIENTS, OfficialClient
from tests.support.programs import Program, free_ports
from tests.support.quick_starts import QUICK_STARTS
from tests.support.tcp_proxy import TcpProxy
from tests.support.tls import CA, SERVER_TLS
from tests.support.v2 import v2_broker

pytestmark = [pytest.mark.clients, pytest.mark.long, pytest.mark.cluster]

TYPES = {"N": "NORMAL", "F": "FIFO", "D": "DELAY", "X": "TRANSACTION"}
MESSAGES = 20  # messages of each topic that are sent to the first master, and again to the promoted slave
CHECKS = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000, "transactionCheckMax": 1000}
AS_ADMIN = {"access_key": ADMIN.access_key, "secret_key": ADMIN.secret_key, "tls": True, "tls_ca": CA}


@pytest.fixture(params=OFFICIAL_CLIENTS)
def client(request: pytest.FixtureRequest) -> OfficialClient:
    found = OFFICIAL_CLIENTS[request.param]
    if absent := found.absent_tools():
        pytest.skip(f"{request.param}: {', '.join(absent)} is not installed")
    return found


class Said:
    """The lines that a program has printed."""

    def __init__(self, lines: list[str]) -> None:
        self._bodies: dict[tuple[str, str], list[str]] = defaultdict(list)
        for line in lines:
            word, topic, body = line.split()
            self._bodies[word, topic].append(body)

    def bodies(self, word: str, topic: str) -> list[str]:
        return self._bodies[word, topic]

    def has_got_all(self) -> "NoneMissing":
        return NoneMissing(
            body for topic in TYPES for body in {*self.bodies("sent", topic)} - {*self.bodies("got", topic)}
        )


class NoneMissing(frozenset[str]):
    """The missing bodies; true if no body is missing, so that `wait_until` shows them while some are."""

    def __bool__(self) -> bool:
        return len(self) == 0


class Conversation:
    """What a program has said so far, and what it still has to say."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def said(self) -> Said:
        return Said(list(self._program.lines))

    def has_sent(self, count: int) -> Callable[[], bool]:
        """Returns a function that says whether `count` further messages to each topic were sent."""
        before = self.said()

        def has() -> bool:
            assert self._program.process.poll() is None, self._program.errors()
            now = self.said()
            return all(len(now.bodies("sent", t)) >= len(before.bodies("sent", t)) + count for t in TYPES)

        return has

    def has_sent_its_last(self) -> bool:
        return any(body.startswith("d-last") for body in self.said().bodies("sent", "D"))

    def has_got_all(self) -> "NoneMissing":
        return self.said().has_got_all()


def every_promise_is_kept(said: Said, client: OfficialClient) -> None:
    assert said.has_got_all()
    assert said.bodies("early", "D") == []
    assert len(said.bodies("recalled", "D")) >= (MESSAGES if client.recalls else 0)
    assert set(said.bodies("recalled", "D")).isdisjoint(said.bodies("got", "D"))
    assert len(said.bodies("rolled-back", "X")) >= MESSAGES // 4
    assert set(said.bodies("rolled-back", "X")).isdisjoint(said.bodies("got", "X"))
    assert any("-open-" in body for body in said.bodies("asked", "X"))
    for group in "ab":
        first = list(dict.fromkeys(body for body in said.bodies("got", "F") if body.startswith(f"f-{group}-")))
        assert first == sorted(first, key=lambda body: int(body.rpartition("-")[2]))


def test_an_official_client_sends_and_consumes_while_the_master_dies(client, processes, tmp_path):
    """The client uses access keys and TLS, and both brokers have the same users, policies and certificates."""
    ports = free_ports(2)
    namesrv = processes.start_namesrv(**SIGNED, **SERVER_TLS)
    keys = {**CONTROLLED, **SERVER_TLS, "grpcServerTlsMode": "ENFORCING", **CHECKS}
    master = processes.broker("broker-a", 0, namesrv, brokerRole="SYNC_MASTER", grpcServerPort=ports[0], **keys)
    slave = processes.broker("broker-a", 1, namesrv, grpcServerPort=ports[1], **keys)
    for process in (master, slave):
        process.launch()
    for process in (master, slave):
        process.wait_until_ready()
    transport = GrpcTransport(Connection(name_servers=("127.0.0.1:1",), credentials=ADMIN, tls=Tls(ca=str(CA))))
    with closing(transport), Admin(namesrv.address, **AS_ADMIN) as admin:

        def alone(process):
            return OneBroker(process, transport)

        def knows_its_first_user():
            try:
                return admin.users(broker_addr=master.address)
            except RocketSimError:
                return False

        wait_until(knows_its_first_user, "the first user")
        for topic, message_type in TYPES.items():
            admin.update_topic(topic, attributes={"message.type": message_type}, broker_addr=master.address)
        ordered = SubscriptionGroupConfig(group_name="ordered", consume_message_orderly=True)
        admin.update_sub_group(ordered, broker_addr=master.address)
        alone(master).wait_for_slaves()
        admin.create_user("app", "s3cr3t", broker_addr=master.address)
        policies = [AclPolicy(f"Topic:{topic}", ("Pub", "Sub")) for topic in TYPES]
        policies += [AclPolicy(f"Group:{group}", ("Sub",)) for group in ("push", "ordered", "simple")]
        admin.create_acl("User:app", policies, broker_addr=master.address)
        for topic in TYPES:
            alone(slave).wait_for_topic(topic)

        addresses = [f"127.0.0.1:{port}" for port in ports]
        command = client.command(tmp_path)
        of_the_master = addresses[0]
        with TcpProxy(lambda: of_the_master) as relay:
            endpoints = relay.address if client.one_address else ";".join(addresses)
            with Program(tmp_path, [*command, endpoints, "app", "wrong", "tls"], "refused") as program:
                wait_until(lambda: "check signature failed" in program.errors(), "the refusal")
                assert program.lines == []
            with Program(tmp_path, [*command, endpoints, "app", "s3cr3t", "tls"]) as program:
                conversation = Conversation(program)
                wait_until(conversation.has_sent(MESSAGES), "the first messages")
                master.kill()
                # These clients treat SLAVE_NOT_AVAILABLE, the answer of a SYNC_MASTER without a slave, as a failed
                # send.
                promote_after_the_masters_death(alone, slave, broker_role="ASYNC_MASTER")
                of_the_master = addresses[1]
                wait_until(conversation.has_sent(MESSAGES), "messages at the promoted slave")
                program.say("")
                wait_until(conversation.has_sent_its_last, "the last")
                wait_until(conversation.has_got_all, "all that was sent is received")
                said = Said(program.end())
    every_promise_is_kept(said, client)


@pytest.mark.parametrize("language", QUICK_STARTS)
async def test_the_ten_lines_of_the_documents_work_with_another_address(language, tmp_path):
    if absent := OFFICIAL_CLIENTS[language].absent_tools():
        pytest.skip(f"{language}: {', '.join(absent)} is not installed")
    home = tmp_path / "home"
    home.mkdir()
    async with v2_broker(tmp_path / "store") as (node, _):
        node.topics.update(TopicConfig("TopicTest", 4, 4), 0)
        command = await asyncio.to_thread(QUICK_STARTS[language], home, node.v2_port.address)
        with Program(home, command) as program:
            lines = await asyncio.to_thread(program.end)
        assert "hello" in lines
        bounds = [(queue, node.store.queues.end("TopicTest", queue)) for queue in range(4)]
        asked = [("TopicTest", queue) for queue, end in bounds if end]
        (committed,) = await node.commits.query("people", asked, zero_for_new_group=False)
        assert committed.offset == 1  # it was acknowledged


async def test_an_official_client_sends_and_consumes_in_plaintext_without_keys(client, tmp_path):
    command = await asyncio.to_thread(client.command, tmp_path)
    keys = {"transaction_time_out": 1000, "transaction_check_interval": 1000, "transaction_check_max": 1000}
    async with v2_broker(tmp_path / "store", mapped_file_size_commit_log=8 << 20, **keys) as (node, _):
        node.topics.update(TopicConfig("N", 4, 4, attributes={"message.type": "NORMAL"}), 0)
        node.groups.update(SubscriptionGroup("ordered", consume_message_orderly=True), 0)
        with Program(tmp_path, [*command, node.v2_port.address, "", "", "plaintext"]) as program:
            conversation = Conversation(program)
            await until(conversation.has_sent(MESSAGES), "the messages", PROCESS_PATIENCE_S)
            program.say("")
            await until(conversation.has_sent_its_last, "the last", PROCESS_PATIENCE_S)
            await until(conversation.has_got_all, "all that was sent is received", PROCESS_PATIENCE_S)
            every_promise_is_kept(Said(await asyncio.to_thread(program.end)), client)
