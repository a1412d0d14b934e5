"""The console over HTTP: what it shows of a real broker, and which requests it refuses."""

import json
import os
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.testclient import TestClient

from rocketsim_client import Admin, Message, Producer
from rocketsim_client.errors import NoRoute
from rocketsim_console import feeds
from rocketsim_console.app import STATIC, Console
from rocketsim_console.guard import is_ours
from rocketsim_console.server import Listen, serving
from rocketsim_console.views import PAGE, kind_of, page_of
from testbed.polling import PROCESS_PATIENCE_S
from testbed.processes import Processes

HOSTILE = "<img src=x onerror=alert(1)>\u202e</script>"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Starts a name server and a broker with two messages of topic T.  Group G has consumed one of these messages."""
    with Processes(tmp_path_factory.mktemp("console")) as processes:
        name_server = processes.start_namesrv()
        broker = processes.start_broker("broker-a", 0, name_server)
        with Admin(name_server.address) as admin:
            admin.update_topic("T", read_queue_nums=1, write_queue_nums=1, broker_addr=broker.address)
            with Producer(name_server.address) as producer:
                producer.send(Message("T", json.dumps({"name": HOSTILE}).encode(), keys="k1", tags="a"))
                producer.send(Message("T", bytes(range(256)), keys="k2"))
            queue = admin.cluster.queues("T")[0]
            admin.cluster.commit("G", {queue: 1})
        yield name_server


@pytest.fixture(scope="module")
def console(cluster):
    with Admin(cluster.address, timeout_s=5) as admin:
        made = Console(admin)
        made.watch.look()
        with TestClient(made.app, base_url="http://localhost") as client:
            yield client


def test_the_overview_says_who_is_master_and_takes_sends(console):
    (pair,) = console.get("/api/overview").json()["pairs"]
    (broker,) = pair["brokers"]
    assert (pair["name"], pair["level"], pair["master"]) == ("broker-a", "warning", broker["address"])
    assert pair["summary"] == "The master has no slave."
    assert (broker["state"], broker["writable"], broker["epoch"]) == ("master", True, 1)
    assert console.get("/api/history").json()["points"]
    (epoch,) = console.get("/api/failovers").json()["epochs"]
    assert (epoch["epoch"], epoch["start"], epoch["end"]) == ("1", 0, broker["log_end"])


def test_topics_and_one_topic_with_its_queues_and_groups(console):
    (row,) = console.get("/api/topics").json()["rows"]
    assert (row["topic"], row["messages"], row["queues"]) == ("T", 2, 1)
    assert {"T", "TBW102"} <= {row["topic"] for row in console.get("/api/topics?kind=all").json()["rows"]}
    assert console.get("/api/topics?q=nothing").json()["total"] == 0
    topic = console.get("/api/topic?name=T").json()
    assert [(one["min"], one["max"]) for one in topic["queues"]] == [(0, 2)]
    assert [(one["group"], one["lag"]) for one in topic["groups"]] == [("G", 1)]
    assert topic["settings"][0]["perm"] == 6


def test_groups_and_one_group_with_its_lag_and_age(console):
    rows = {row["group"]: row for row in console.get("/api/groups").json()["rows"]}
    assert rows["G"]["lag"] == 1 and rows["G"]["topics"] == ["T"]
    group = console.get("/api/group?name=G").json()
    (row,) = group["rows"]
    assert (row["topic"], row["end"], row["committed"], row["lag"]) == ("T", 2, 1, 1)
    assert row["age_ms"] > 0 and group["dead_letters"] is None
    (client,) = group["clients"]["rows"]
    assert (client["way"], client["messages"], client["broker_name"]) == ("commit", 1, "broker-a")
    assert client["client_id"] == f"{socket.gethostname()[:64]}@{os.getpid()}"
    assert console.get("/api/group?name=unknown").status_code == 404


@pytest.mark.parametrize(
    ("query", "offsets"),
    [
        ("by=newest", [1, 0]),
        ("", [1, 0]),
        ("by=key&value=k1", [0]),
        ("by=offset&queue=broker-a:0&value=1", [1]),
        ("by=time&value=0", [0, 1]),
        ("by=time&value=99999999999999", []),
    ],
)
def test_messages_are_found(console, query, offsets):
    found = console.get(f"/api/messages?topic=T&{query}").json()
    assert [row["offset"] for row in found["rows"]] == offsets and not found["more"]


def test_a_message_by_its_id_is_shown_as_text_json_and_hex(console):
    first = console.get("/api/messages?topic=T&by=key&value=k1").json()["rows"][0]
    (row,) = console.get("/api/messages", params={"topic": "T", "by": "id", "value": first["msg_id"]}).json()["rows"]
    place = {"topic": "T", "broker": row["broker"], "queue": row["queue"], "offset": row["offset"]}
    message = console.get("/api/message", params=place).json()
    assert message["properties"]["KEYS"] == "k1"
    assert json.loads(message["body"]["text"])["name"] == HOSTILE
    assert "\u202e" not in message["body"]["json"] and "<img" in message["body"]["json"]
    assert message["body"]["hex"].startswith("00000000  7b 22 6e")
    raw = console.get("/api/body", params=place)
    assert json.loads(raw.content)["name"] == HOSTILE
    assert raw.headers["content-disposition"].startswith("attachment")
    assert raw.headers["content-type"] == "application/octet-stream"


def test_a_body_that_is_no_text_is_shown_as_hex_only(console):
    message = console.get("/api/message?topic=T&broker=broker-a&queue=0&offset=1").json()
    assert (message["body"]["text"], message["body"]["json"]) == (None, None)
    assert message["body"]["bytes"] == 256


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/api/nothing", 404),
        ("/api/topics?kind=odd", 400),
        ("/api/topic?name=absent", 404),
        ("/api/messages", 400),
        ("/api/messages?topic=T&by=odd", 400),
        ("/api/messages?topic=T&by=key", 400),
        ("/api/messages?topic=T&by=offset&queue=broker-a:0&value=-1", 400),
        ("/api/messages?topic=T&by=offset&queue=broker-a:0&value=9", 404),
        ("/api/messages?topic=T&queue=broker-a:7", 404),
        ("/api/message?topic=T&broker=broker-a&queue=0&offset=9", 404),
        ("/live/nothing", 404),
    ],
)
def test_what_cannot_be_answered_says_why(console, address, status):
    answer = console.get(address)
    assert answer.status_code == status, answer.text
    assert answer.json()["message"]


@pytest.mark.parametrize(
    "address", ["/", "/topics", "/topics/%25RETRY%25g", "/groups/a%2Fb", "/messages", "/failovers"]
)
def test_each_page_has_an_address_and_the_headers_that_keep_browsers_safe(console, address):
    answer = console.get(address)
    assert answer.status_code == 200 and "/static/app.js" in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_another_sites_name_for_this_machine_is_refused(console):
    answer = console.get("/api/overview", headers={"Host": "evil.example"})
    assert answer.status_code == 421 and "evil.example" in answer.json()["message"]


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("localhost:8088", True),
        ("127.0.0.1", True),
        ("[::1]:8088", True),
        ("Console.Example:443", True),
        ("console.example.evil.org", False),
        ("", False),
        ("[::1", False),
    ],
)
def test_which_hosts_are_ours(host, ours):
    assert is_ours(host, ["console.example"]) is ours


def test_a_cluster_that_nobody_reaches_is_said_and_not_shown_as_empty():
    with Admin("127.0.0.1:1", timeout_s=0.5) as admin:
        made = Console(admin)
        made.watch.look()
        with TestClient(made.app, base_url="http://localhost") as client:
            assert "127.0.0.1:1" in client.get("/api/overview").json()["trouble"]
            answer = client.get("/api/topics")
            assert (answer.status_code, answer.json()["error"]) == (502, "NameServerUnavailable")


def test_a_server_that_stops_ends_the_streams_of_its_viewers():
    """Without that, the server would wait for open pages, cut them off, and log an error for each."""
    with Admin("127.0.0.1:1", timeout_s=0.5) as admin:
        with serving(Console(admin), Listen()) as url:
            stream = urllib.request.urlopen(f"{url}live/overview", timeout=PROCESS_PATIENCE_S)
            assert stream.readline() == b"event: view\n"
        with stream:
            assert b"data: " in stream.read()  # raises an error if the server has cut the answer off


def test_pages_never_make_html_of_text():
    scripts = list(STATIC.rglob("*.js"))
    assert len(scripts) > 10
    for path in scripts:
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"):
            text = path.read_text().replace("http://www.w3.org/2000/svg", "")
            assert word not in text, (path.name, word)


def test_a_page_of_names():
    names = [f"topic-{number:03}" for number in range(60)]
    assert page_of(names, "", 3) == (names[50:], {"page": 3, "pages": 3, "total": 60})
    assert page_of(names, "", 99)[1]["page"] == 3
    assert page_of(names, "TOPIC-00", 0) == (names[:10], {"page": 1, "pages": 1, "total": 10})
    assert len(page_of(names, "", 1)[0]) == PAGE
    assert [kind_of(name) for name in ("T", "%RETRY%g", "%DLQ%g", "TBW102", "rmq_sys_x")] == [
        *("users", "retry", "dead letters", "system", "system"),
    ]


class Counting:
    """A view that counts how often it is asked."""

    every_s = 0.001

    def __init__(self):
        self.asked = 0
        self.error = None

    def ask(self):
        self.asked += 1
        if self.error:
            raise self.error
        return {"asked": self.asked}


async def test_one_task_asks_for_all_who_look_and_none_for_nobody():
    with ThreadPoolExecutor(1) as threads:
        made = feeds.Feeds(threads)
        views = []

        def make():
            views.append(Counting())
            return views[-1]

        viewers = [made.follow("same", make) for _ in range(5)]
        for viewer in viewers:
            assert (await anext(viewer)).startswith('event: view\ndata: {"asked":')
        assert len(views) == 1 and len(made) == 1 and made.viewers == 5
        views[0].error = NoRoute("topic 'T' is gone\n\nevent: view")
        while "trouble" not in (text := await anext(viewers[0])):
            pass
        assert json.loads(text.split("data: ")[1]) == {"error": "NoRoute", "message": str(views[0].error)}
        for viewer in viewers:
            await viewer.aclose()
        assert len(made) == 0 and made.viewers == 0


async def test_a_bug_of_a_view_ends_its_streams_and_no_others():
    with ThreadPoolExecutor(1) as threads:
        made = feeds.Feeds(threads)
        broken, sound = Counting(), Counting()
        broken.error = KeyError("a bug")
        with pytest.raises(KeyError):
            await anext(made.follow("broken", lambda: broken))
        viewer = made.follow("sound", lambda: sound)
        assert "asked" in await anext(viewer)
        await viewer.aclose()


async def test_too_many_views_are_refused(monkeypatch):
    monkeypatch.setattr(feeds, "MAX_FEEDS", 1)
    with ThreadPoolExecutor(1) as threads:
        made = feeds.Feeds(threads)
        viewer = made.follow("one", Counting)
        await anext(viewer)
        made.check_room("one")
        with pytest.raises(feeds.TooManyViewers, match="1 different live pages"):
            made.check_room("another")
        await viewer.aclose()
        made.check_room("another")
