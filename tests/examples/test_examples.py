"""The examples run unchanged, each as a program, on one pair."""

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import rocketsim_testing
from rocketsim_client import Consumer, Message, Producer, ReceivedMessage
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import ROOT
from tests.support.command_line import CommandLine
from tests.support.programs import Program

EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def pair() -> Iterator[rocketsim_testing.Pair]:
    with rocketsim_testing.pair() as started:
        yield started


@pytest.fixture
def topic(pair: rocketsim_testing.Pair) -> str:
    return pair.make_topic()


def command(name: str, *words: object) -> list[str]:
    return [sys.executable, str(EXAMPLES / name), *map(str, words)]


def says(name: str, *words: object) -> list[str]:
    done = subprocess.run(command(name, *words), capture_output=True, text=True, timeout=PROCESS_PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def ended(program: Program) -> list[str]:
    """Ends the example with SIGTERM, and returns what the example has printed, without lines about a broker of a busy
    machine that did not answer within a second.
    """
    program.process.terminate()
    return [line for line in program.end() if not line.startswith("no order can be read")]


def received(pair: rocketsim_testing.Pair, topic: str, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    with Consumer(pair.name_server, "test", topic, timeout_s=PROCESS_PATIENCE_S) as consumer:
        while len(found) < count:
            found += (some := consumer.receive(timeout_s=PROCESS_PATIENCE_S))
            assert some
            consumer.ack(some)
    return found


def send(pair: rocketsim_testing.Pair, topic: str, *values: Any) -> None:
    with Producer(pair.name_server, timeout_s=PROCESS_PATIENCE_S) as producer:
        for value in values:
            producer.send(Message.json(topic, value))


def test_the_commands_before_the_examples_make_their_topics(
    pair: rocketsim_testing.Pair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (commands,) = re.findall(r"^```sh\n(.*?)^```", (EXAMPLES / "README.md").read_text(), re.M | re.S)
    CommandLine(capsys, monkeypatch, **{"127.0.0.1:9876": pair.name_server}).run(commands)
    used = {word for path in EXAMPLES.glob("*.py") for word in re.findall(r":9876 ([A-Z]\w+)", path.read_text())}
    wait_until(lambda: used - {"TopicTest", "Alarms"} <= set(pair.admin.topic_list()), "the topics")


def test_a_worker_acknowledges_what_it_has_done_and_gives_back_the_rest(
    pair: rocketsim_testing.Pair, topic: str, tmp_path: Path
) -> None:
    send(pair, topic, {"id": 1}, {"no": "id"}, {"id": 2})
    with Program(tmp_path, command("worker.py", pair.name_server, topic)) as program:
        wait_until(lambda: len(program.lines) >= 3, "all orders")
        pair.wait_for_lag("workers", topic, 1)  # the failed message waits for its next delivery
        lines = ended(program)
    assert {"order 1 is packed", "order 2 is packed"} <= set(lines)
    assert any("has failed: KeyError('id')" in line for line in lines)


def test_what_no_broker_takes_waits_in_the_outbox_for_the_next_process(
    pair: rocketsim_testing.Pair, topic: str, tmp_path: Path
) -> None:
    folder = tmp_path / "outbox"
    nobody = "127.0.0.1:1"
    assert says("outbox.py", nobody, topic, folder, "7") == ["order 7 SPOOLED", f"1 orders wait in {folder}"]
    says("outbox.py", pair.name_server, topic, folder, "8")
    assert {message.json()["id"] for message in received(pair, topic, 2)} == {"7", "8"}


def test_readers_see_what_the_database_has_committed(pair: rocketsim_testing.Pair, topic: str, tmp_path: Path) -> None:
    database = tmp_path / "payments.db"
    assert says("transaction.py", pair.name_server, topic, database, "7") == ["order 7 is paid: COMMIT_OK"]
    twice = subprocess.run(command("transaction.py", pair.name_server, topic, database, "7"), capture_output=True)
    assert b"IntegrityError" in twice.stderr
    says("transaction.py", pair.name_server, topic, database, "8")
    assert sorted(message.json()["id"] for message in received(pair, topic, 2)) == ["7", "8"]
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT id FROM paid ORDER BY id").fetchall() == [("7",), ("8",)]


def test_delayed_jobs_come_when_they_are_due(pair: rocketsim_testing.Pair, topic: str) -> None:
    assert sorted(says("delayed_jobs.py", pair.name_server, topic, 2)) == ["after a delay due", "at a time due"]


def test_a_service_writes_an_invoice_for_each_order(pair: rocketsim_testing.Pair, tmp_path: Path) -> None:
    orders, invoices = pair.make_topic(), pair.make_topic()
    send(pair, orders, *({"id": number, "price": 2 * number} for number in range(50)))
    with Program(tmp_path, command("async_service.py", pair.name_server, orders, invoices)) as program:
        pair.wait_for_lag("invoices", orders, timeout_s=PROCESS_PATIENCE_S)
        assert ended(program) == []
    found = {message.json()["order"]: message.json()["total"] for message in received(pair, invoices, 50)}
    assert found == {number: 2 * number for number in range(50)}


def test_an_http_service_sends_and_packs_orders_and_says_if_it_cannot(
    pair: rocketsim_testing.Pair, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi")
    from starlette.testclient import TestClient

    from examples import fastapi_service

    monkeypatch.setenv("NAMESRV_ADDR", pair.name_server)
    monkeypatch.setenv("TOPIC", topic)
    with TestClient(fastapi_service.app) as http:
        answer = http.post("/orders", json={"id": "7", "price": 2})
        assert (answer.status_code, answer.json()) == (202, {"status": "SEND_OK"})
        assert http.post("/orders", json={"id": "8"}).status_code == 422
        wait_until(lambda: http.get("/packed").json() == ["7"], "the order")
        http.portal.call(fastapi_service.app.state.producer.close)
        refused = http.post("/orders", json={"id": "9", "price": 2})
        assert refused.status_code == 503 and "order 9 may not be stored" in refused.json()["detail"]
    assert pair.lag("packers", topic) == 0


def test_a_test_with_the_official_client_passes(tmp_path: Path) -> None:
    if find_spec("rocketmq") is None:  # this client and our broker cannot be imported in one process
        pytest.skip("no official Python client here: pip install rocketmq-python-client")
    words = ["-q", "-c", os.devnull, "-p", "no:cacheprovider", str(EXAMPLES / "test_official_client.py")]
    # The client writes a log into its user's home.
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_sigterm_ends_workers_in_the_middle_of_their_work(
    pair: rocketsim_testing.Pair, topic: str, tmp_path: Path
) -> None:
    """Each message that was worked on is acknowledged, and the rest goes to the next worker without counting an
    attempt.
    """
    orders = 5_000  # more than a worker packs while the test does not run for some seconds
    with Producer(pair.name_server, timeout_s=PROCESS_PATIENCE_S) as producer:
        producer.send_batch([Message.json(topic, {"id": number, "price": 1}) for number in range(orders)])
    with Program(tmp_path, command("worker.py", pair.name_server, topic)) as program:
        wait_until(lambda: len(program.lines) >= 10, "the first orders")
        packed = ended(program)
    assert 0 < len(packed) < orders
    # If the worker's last call fails on a busy machine, the broker itself gives back the messages after five seconds.
    wait_until(lambda: pair.lag("workers", topic) == orders - len(packed), "the worker's other messages are given back")
    assert not [line for line in packed if "failed" in line]
    invoices = pair.make_topic()
    with Program(tmp_path, command("async_service.py", pair.name_server, topic, invoices), "service") as service:
        wait_until(lambda: (pair.lag("invoices", topic) or orders) < orders, "the first invoices")
        assert ended(service) == []
    made = sum(status.max_offset for status in pair.admin.topic_status(invoices))
    assert 0 < made < orders
    wait_until(lambda: pair.lag("invoices", topic) == orders - made, "the service's other messages are given back")


def test_every_example_is_small_listed_and_run_by_a_test() -> None:
    files = sorted(path.name for path in EXAMPLES.glob("*.py"))
    listed = re.findall(r"^\| \[(\w+\.py)\]\(\1\)", (EXAMPLES / "README.md").read_text(), re.M)
    assert sorted(listed) == files
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*examples.py"))
    for name in files:
        assert len((EXAMPLES / name).read_text().splitlines()) <= 64, name
        assert f'"{name}"' in tests or f"{name.removesuffix('.py')}." in tests, name
