"""What users may change in the console: the actions on real brokers, and which requests are refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from rocketsim_client import Admin, Message, Producer, RocketSimError
from rocketsim_console.actions import OPERATORS
from rocketsim_console.app import Console
from rocketsim_console.changes import MAX_BODY, TOKEN, Changes
from rocketsim_console.sessions import IDLE_S, MAX_SESSIONS, NoSession, Sessions
from testbed.polling import wait_until
from testbed.processes import Processes, ServerProcess

pytestmark = pytest.mark.cluster

HOME = "http://localhost"
ADMIN = {"username": "admin", "password": "4dm1n-s3cr3t"}
INNER = {"accessKey": "broker", "secretKey": "1nn3r-s3cr3t"}
ACCESS_CONTROL = {
    "authenticationEnabled": "true",
    "initAuthenticationUser": json.dumps(ADMIN),
    "innerClientAuthenticationCredentials": json.dumps(INNER),
}


class Browser:
    """A browser with a page of the console."""

    def __init__(self, client: TestClient) -> None:
        self.client = client
        self.page: dict[str, Any] = {}
        self.load()

    def load(self) -> None:
        self.page = self.client.get("/api/actions").json()

    def post(self, address: str, values: Any, **headers: str) -> Any:
        own = {"Origin": HOME, TOKEN: self.page["token"]} | headers
        return self.client.post(f"/api/{address}", json=values, headers=own)

    def does(self, action: str, **values: str) -> str:
        answer = self.post(f"actions/{action}", values)
        assert answer.status_code == 200, answer.text
        return answer.json()["done"]


class Pair:
    def __init__(self, name_server: str, master: ServerProcess, slave: ServerProcess, keys: dict[str, str]) -> None:
        self.name_server = name_server
        self.master = master
        self.slave = slave
        self.keys = keys


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A pair with access control."""
    with Processes(tmp_path_factory.mktemp("pair")) as processes:
        name_server = processes.start_namesrv(**ACCESS_CONTROL)
        keys = {**ACCESS_CONTROL, "authorizationEnabled": "true", "brokerRole": "SYNC_MASTER"}
        master, slave = processes.start_pair("broker-a", name_server, **keys)
        user = {"access_key": ADMIN["username"], "secret_key": ADMIN["password"]}
        with Admin(name_server.address, timeout_s=10, **user) as admin:
            wait_until(lambda: know_the_user(admin), "master and slave know the first user")
        yield Pair(name_server.address, master, slave, user)


def know_the_user(admin: Admin) -> bool:
    try:
        return len(admin.broker_status()) == 2
    except RocketSimError:
        return False


@pytest.fixture
def browser(pair: Pair) -> Iterator[Browser]:
    with Admin(pair.name_server, timeout_s=10, **pair.keys) as admin:
        changes = Changes(OPERATORS, lambda access_key, secret_key: connected(pair, access_key, secret_key))
        with TestClient(Console(admin, changes=changes).app, base_url=HOME) as client:
            yield Browser(client)


def connected(pair: Pair, access_key: str, secret_key: str) -> Admin:
    return Admin(pair.name_server, timeout_s=10, access_key=access_key, secret_key=secret_key)


def test_a_user_creates_and_changes_topics_and_groups_and_resets_offsets_with_their_own_keys(
    pair: Pair, browser: Browser
) -> None:
    refusal = browser.post("actions/create-topic", {"topic": "T", "queues": "2", "message_type": "NORMAL"})
    assert (refusal.status_code, refusal.json()["error"]) == (403, "AccessDenied")
    first = browser.page
    answer = browser.post("keys", pair.keys)
    assert answer.status_code == 200 and answer.json()["user"] == "admin"
    assert pair.keys["secret_key"] not in answer.text + str(answer.headers)
    browser.load()
    assert browser.page["user"] == "admin" and browser.page["token"] != first["token"]

    said = browser.does("create-topic", topic="T", queues="2", message_type="FIFO")
    assert said == f"Topic T has 2 queues on each of {pair.master.address}."
    with connected(pair, **pair.keys) as admin:
        wait_until(lambda: "T" in admin.topic_list(), "the name server knows the topic")
    again = browser.post("actions/create-topic", {"topic": "T", "queues": "2", "message_type": "FIFO"})
    assert again.status_code == 400 and "exists already" in again.json()["message"]
    browser.does("change-topic", topic="T", write_queue_nums="1")
    browser.does("create-group", group="G", retry_max_times="3", consume_message_orderly="true")
    browser.does("change-group", group="G", consume_enable="false")
    with connected(pair, **pair.keys) as admin:
        (topic,) = [one for one in admin.topic_configs(pair.master.address) if one.topic_name == "T"]
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (2, 1, 6)
        assert topic.attributes == {"message.type": "FIFO"}
        (group,) = [one for one in admin.sub_groups(pair.master.address) if one.group_name == "G"]
        assert (group.retry_max_times, group.consume_message_orderly, group.consume_enable) == (3, True, False)

        browser.does("change-group", group="G", consume_enable="true")
        browser.does("create-topic", topic="R", queues="1", message_type="NORMAL")
        with Producer(pair.name_server, **pair.keys) as producer:
            for number in range(3):
                producer.send(Message("R", b"%d" % number))
        (queue,) = admin.cluster.queues("R")
        admin.cluster.commit("G", {queue: 3})
        said = browser.does("reset-offsets", group="G", topic="R", timestamp="0")
        assert said == "Consumer group G is moved in 1 queues of topic R: 3 messages are delivered again."
        assert admin.cluster.committed("G", [queue]) == {queue: 0}


def test_a_promotion_is_refused_while_the_master_lives(pair: Pair, browser: Browser) -> None:
    browser.page |= browser.post("keys", pair.keys).json()
    answer = browser.post("actions/promote", {"broker": pair.slave.address, "force": "false"})
    assert answer.status_code == 400 and "answers" in answer.json()["message"]


@pytest.mark.parametrize(
    ("action", "values", "text"),
    [
        ("create-topic", {"topic": "", "queues": "1"}, "topic: give a name"),
        ("create-topic", {"topic": "N", "queues": "-1"}, "queues '-1' is not a number from 1 to 1024"),
        ("create-topic", {"topic": "N", "queues": "1", "message_type": "ODD"}, "message_type 'ODD' is not one of"),
        ("change-topic", {"topic": "TBW102"}, "nothing was changed in the form"),
        ("change-topic", {"topic": "absent", "perm": "4"}, "no master has topic 'absent'"),
        ("change-group", {"group": "absent", "retry_max_times": "1"}, "no master has settings of consumer group"),
        ("reset-offsets", {"group": "G", "topic": "T", "timestamp": "NaN"}, "timestamp 'NaN' is not a number"),
        ("absent", {}, "action 'absent' does not exist"),
    ],
)
def test_a_wrong_value_is_named(pair: Pair, browser: Browser, action: str, values: dict[str, str], text: str) -> None:
    browser.page |= browser.post("keys", pair.keys).json()
    answer = browser.post(f"actions/{action}", values)
    assert answer.status_code in (400, 404) and text in answer.json()["message"]


def test_requests_of_other_sites_and_ended_sessions_change_nothing(browser: Browser) -> None:
    values = {"topic": "N", "queues": "1", "message_type": "NORMAL"}
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {TOKEN: "guessed"}, {TOKEN: ""}):
        answer = browser.post("actions/create-topic", values, **headers)
        assert (answer.status_code, answer.json()["error"]) == (403, "NoSession")
    cookie = browser.client.get("/api/actions").headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert browser.client.get("/api/actions/create-topic").status_code == 405
    browser.client.cookies.clear()
    assert browser.post("actions/create-topic", values).status_code == 403


def test_a_body_that_is_too_long_or_no_object_of_texts_is_refused(browser: Browser) -> None:
    for values in ({"topic": "x" * MAX_BODY}, [], {"topic": 1}, "text"):
        answer = browser.post("actions/create-topic", values)
        assert answer.status_code == 400 and "the request's body" in answer.json()["message"]
    assert browser.post("keys", {"access_key": "admin"}).status_code == 400


def test_without_actions_the_console_only_reads() -> None:
    with Admin("127.0.0.1:1", timeout_s=0.5) as admin, TestClient(Console(admin).app, base_url=HOME) as client:
        answer = client.get("/api/actions")
        assert answer.json()["actions"] == [] and "set-cookie" not in answer.headers
        headers = {"Origin": HOME, TOKEN: ""}
        assert client.post("/api/actions/create-topic", json={}, headers=headers).status_code in (404, 405)
        assert client.post("/api/keys", json={}, headers=headers).status_code in (404, 405)


class Connected:
    """Stands for an Admin."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_sessions_end_when_they_are_not_used_and_when_too_many_are_open() -> None:
    now_s = 0.0
    opened: list[Connected] = []

    def connect(access_key: str, secret_key: str) -> Any:
        opened.append(Connected())
        return opened[-1]

    sessions = Sessions(connect, lambda: now_s)
    first = sessions.open("user", "a-s3cr3t")
    assert "a-s3cr3t" not in repr(first) and first.token not in repr(first)
    now_s = IDLE_S - 1
    assert sessions.check(first.id, first.token) is first
    now_s += IDLE_S - 1
    assert sessions.find(first.id) is first
    now_s += IDLE_S
    assert sessions.find(first.id) is None and opened[0].is_closed
    with pytest.raises(NoSession):
        sessions.check(first.id, first.token)

    many = [sessions.open() for _ in range(MAX_SESSIONS)]
    assert sessions.find(many[0].id) is many[0]  # now the second one was used least recently
    sessions.open()
    assert len(sessions) == MAX_SESSIONS and opened[2].is_closed and not opened[1].is_closed
    instead = sessions.open("other", "key", instead_of=many[0])
    assert sessions.find(many[0].id) is None and sessions.find(instead.id) is instead
    sessions.close()
    assert all(one.is_closed for one in opened)


def test_a_console_that_others_reach_takes_keys_over_tls_only() -> None:
    from rocketsim_cli.main import app

    with pytest.raises(Exception, match=r"--write with --bind 0\.0\.0\.0: .* give --cert and --key"):
        app(["console", "-n", "127.0.0.1:1", "--bind", "0.0.0.0", "--write"], standalone_mode=False)
