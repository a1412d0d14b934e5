"""RocketMQ's official clients, while the master dies and the slave is promoted: `./run test --clients`.

One program a language.  It is given the endpoints.  Until its input has a line it sends to the topics N (NORMAL),
F (FIFO, message groups a and b), D (DELAY) and X (TRANSACTION); until its input ends it consumes N (group push) and
F (group ordered, in order) by push, D and X (group simple) with a simple consumer.  What it prints, a line for each:

    sent TOPIC BODY          the answer was OK; it has to be received
    rolled-back X BODY       it must not be received
    recalled D BODY          it must not be received; a message that is due later is sent behind it
    asked X BODY             the broker asked how this transaction ended
    got TOPIC BODY           it was received; `early` instead if before its delivery time

A body of F is f-GROUP-NUMBER, with a growing number.  Calls that fail are tried no more: the program goes on.
"""

import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketsim_client import Admin, SubscriptionGroupConfig
from tests.cluster.test_promotion import promote_after_the_masters_death
from tests.support.jars import fetch_jars
from tests.support.polling import wait_until
from tests.support.processes import ROOT
from tests.support.programs import Program, free_ports

pytestmark = [pytest.mark.clients, pytest.mark.long, pytest.mark.cluster]

CLIENTS = ROOT / "tests" / "clients"
TYPES = {"N": "NORMAL", "F": "FIFO", "D": "DELAY", "X": "TRANSACTION"}
MESSAGES = 20  # of each topic, at the first master and at the promoted slave
PATIENCE_S = 180.0  # Java's client finds the promoted slave within half a minute


def java(home: Path) -> list[str]:
    jars = fetch_jars(CLIENTS / "java" / "pom.xml", "rocketmq-client-java-5.2.0")
    return ["java", "-Xmx256m", f"-Duser.home={home}", "-cp", f"{jars}/*", str(CLIENTS / "java" / "Client.java")]


LANGUAGES: dict[str, tuple[Callable[[Path], list[str]], list[str]]] = {
    "java": (java, ["mvn", "java"]),
}


class Said:
    """What a program has printed."""

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
    """The bodies that are missing; true if none is, and shown by `wait_until` if some are."""

    def __bool__(self) -> bool:
        return len(self) == 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_sends_and_consumes_while_the_master_dies(language, processes, namesrv, alone, tmp_path):
    command, tools = LANGUAGES[language]
    if absent := [tool for tool in tools if not shutil.which(tool)]:
        pytest.skip(f"{language}: {', '.join(absent)} is not installed")
    ports = free_ports(2)
    keys = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000, "transactionCheckMax": 1000}
    master = processes.broker("broker-a", 0, namesrv, brokerRole="SYNC_MASTER", grpcServerPort=ports[0], **keys)
    slave = processes.broker("broker-a", 1, namesrv, grpcServerPort=ports[1], **keys)
    for process in (master, slave):
        process.launch()
    for process in (master, slave):
        process.wait_until_ready()
    with Admin(namesrv.address) as admin:
        for topic, message_type in TYPES.items():
            admin.update_topic(topic, attributes={"message.type": message_type}, broker_addr=master.address)
        ordered = SubscriptionGroupConfig(group_name="ordered", consume_message_orderly=True)
        admin.update_sub_group(ordered, broker_addr=master.address)
    alone(master).wait_for_slaves()
    for topic in TYPES:
        alone(slave).wait_for_topic(topic)

    endpoints = ";".join(f"127.0.0.1:{port}" for port in ports)
    with Program(tmp_path, [*command(tmp_path), endpoints]) as program:

        def has_sent(count: int) -> Callable[[], bool]:
            before = Said(list(program.lines))

            def has() -> bool:
                assert program.process.poll() is None, program.errors()
                now = Said(list(program.lines))
                return all(len(now.bodies("sent", t)) >= len(before.bodies("sent", t)) + count for t in TYPES)

            return has

        wait_until(has_sent(MESSAGES), "the first messages", PATIENCE_S)
        master.kill()
        promote_after_the_masters_death(alone, slave)
        wait_until(has_sent(MESSAGES), "messages at the promoted slave", PATIENCE_S)
        program.say("")
        wait_until(lambda: any(line.startswith("sent D d-last") for line in program.lines), "the last", PATIENCE_S)
        wait_until(lambda: Said(list(program.lines)).has_got_all(), "all that was sent is received", PATIENCE_S)
        said = Said(program.end())

    assert said.bodies("early", "D") == []
    assert len(said.bodies("recalled", "D")) >= MESSAGES
    assert set(said.bodies("recalled", "D")).isdisjoint(said.bodies("got", "D"))
    assert len(said.bodies("rolled-back", "X")) >= MESSAGES // 2
    assert set(said.bodies("rolled-back", "X")).isdisjoint(said.bodies("got", "X"))
    assert any("-open-" in body for body in said.bodies("asked", "X"))
    for group in "ab":
        first = list(dict.fromkeys(body for body in said.bodies("got", "F") if body.startswith(f"f-{group}-")))
        assert first == sorted(first, key=lambda body: int(body.rpartition("-")[2]))
