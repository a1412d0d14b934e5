"""Tests what RocketMQ's dashboard, unmodified, answers to its own pages about our pair, and what its buttons change.

The dashboard is not on Maven Central.  `./run test --interop` runs this test if the environment variable
ROCKETMQ_DASHBOARD_JAR has the path of the dashboard's jar, version 2.1 or newer.
"""

import json
import os
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.cookiejar import CookieJar
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, ProxyHandler, Request, build_opener

import pytest

from rocketsim_client import Admin, Consumer, MessageQueue, PullConsumer
from rocketsim_client.admin_model import SubscriptionGroupConfig, TopicConfig
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.real_rocketmq import NEWEST, JavaServer, Jvms, free_port, java
from tests.interop.dashboard_cluster import QUEUES, RETRY_DELAYS_MS, DashboardCluster, pop, running
from tests.interop.marks import INTEROP
from tests.interop.programs import asked_consumer, client_id_in, consumed

JAR = "ROCKETMQ_DASHBOARD_JAR"
pytestmark = [
    *INTEROP,
    pytest.mark.skipif(
        not os.environ.get(JAR),
        reason=f"set {JAR} to the path of the jar of RocketMQ's dashboard, version 2.1 or newer",
    ),
]
# In this group, a push consumer of RocketMQ's Java client consumes all messages but one, which becomes a dead letter.
WORKERS, REFUSED = "workers", "body4"
ADDED = "added-by-a-form"
SENT = [f"tag key{number} body{number}" for number in range(len(QUEUES))]
TRACES = "RMQ_SYS_TRACE_TOPIC"


class Browser:
    """Sends the requests of the dashboard's pages, with the cookies and the token that the dashboard asks for."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._cookies = CookieJar()
        self._opener = build_opener(ProxyHandler({}), HTTPCookieProcessor(self._cookies))

    def load(self, path: str, body: object = None, *, post: bool = False, **arguments: object) -> bytes:
        """Returns the content of an answer.  A request with a body is a POST, as is a request with `post`."""
        query = f"?{urlencode(arguments)}" if arguments else ""
        data = None if body is None else json.dumps(body).encode()
        cookies = {one.name: one.value or "" for one in self._cookies}
        tokens = {"X-XSRF-TOKEN": cookies["XSRF-TOKEN"]} if "XSRF-TOKEN" in cookies else {}
        request = Request(
            f"http://{self._address}/{path}{query}",
            data=data,
            headers={"Content-Type": "application/json", **tokens},
            method="POST" if post or body is not None else "GET",
        )
        try:
            with self._opener.open(request, timeout=PROCESS_PATIENCE_S) as answer:
                content: bytes = answer.read()
        except HTTPError as error:
            raise AssertionError(f"{path}{query}: {error.code} {error.read()!r}") from None
        return content

    def answer(self, path: str, body: object = None, *, post: bool = False, **arguments: object) -> dict[str, Any]:
        """Returns an answer as an object with `status` (0 without an error), `data` and `errMsg`."""
        found: dict[str, Any] = json.loads(self.load(path, body, post=post, **arguments))
        return found

    def ask(self, path: str, body: object = None, *, post: bool = False, **arguments: object) -> Any:
        """Returns the data of an answer that is no error."""
        found = self.answer(path, body, post=post, **arguments)
        assert found["status"] == 0, f"{path} {arguments} {body}: {found}"
        return found["data"]


@contextmanager
def dashboard(folder: Path, name_server: str) -> Iterator[Browser]:
    """Runs the dashboard with the settings of its jar, except for its name server, its port and its files."""
    jar = Path(os.environ[JAR]).resolve()
    assert jar.is_file(), f"{JAR} is {jar}, which is not a file"
    port = free_port()
    settings = {
        "server.port": port,
        "rocketmq.config.namesrvAddrs": name_server,
        "rocketmq.config.dataPath": folder / "dashboard-data",
    }
    # Java ignores the class path of a command that names a jar.
    words = ("-jar", str(jar), *(f"--{key}={value}" for key, value in settings.items()))
    command = java(jar.parent, folder, "256m", *words)
    server = JavaServer("dashboard", port, folder, command, Jvms(stops_cleanly=False))
    browser = Browser(server.address)

    def serves() -> bool:
        with suppress(OSError):
            return "token" in browser.ask("rocketmq-dashboard/csrf-token")
        return False

    try:
        server.start()
        wait_until(serves, "the dashboard answers")
        yield browser
    finally:
        server.end()


@contextmanager
def consuming(consumer: Consumer) -> Iterator[None]:
    """Goes on popping beside the test, because a broker forgets a consumer that has not popped for a minute."""
    ended = threading.Event()

    def consume() -> None:
        while not ended.is_set():
            if (message := consumer.poll(5.0)) is not None:
                consumer.ack(message)

    with ThreadPoolExecutor(1) as beside:
        consumes = beside.submit(consume)
        try:
            yield
        finally:
            ended.set()
        consumes.result()


def test_the_dashboard_itself_answers_each_of_its_pages_about_our_pair(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(running(tmp_path))
        admin = cluster.admin
        consumer = stack.enter_context(Consumer(cluster.name_server, "poppers", "orders"))
        pop(admin, consumer)
        stack.enter_context(consuming(consumer))
        (popper,) = admin.consumer_connection("poppers")
        printed = stack.enter_context(asked_consumer(tmp_path, cluster.remoting, "orders", WORKERS, NEWEST, REFUSED))

        def works() -> bool:
            once = {f"body{number}": 1 for number in range(len(QUEUES))}
            is_started = consumed(printed) == once and "client " in printed.read_text()
            return is_started and f"%DLQ%{WORKERS}" in admin.topic_list() and lags(admin, WORKERS) == [0, 0]

        wait_until(works, "the push consumer has committed all messages, and one is a dead letter")
        worker = client_id_in(printed)
        browser = stack.enter_context(dashboard(tmp_path, cluster.remoting))
        addresses = check_cluster(browser)
        check_topics(browser, addresses)
        check_messages(browser, printed)
        check_consumers(browser, admin, addresses["0"])
        check_clients(browser, {"poppers": popper.client_id, WORKERS: worker}, addresses["0"])
        check_producers(browser, worker)
        check_dead_letters(browser, printed)
        check_changes_of_topics(browser, cluster)
        check_changes_of_groups(browser, admin)
        check_changes_of_offsets(browser, admin)
        check_monitor_and_access(browser)
        check_charts(browser)
        check_operations(browser, cluster.remoting, addresses)


def lags(admin: Admin, group: str) -> list[int]:
    return [one.diff for one in admin.consumer_progress(group, "orders")]


def offsets(admin: Admin, group: str) -> dict[int, list[int]]:
    """Returns, by queue, the end of the queue and the group's offset."""
    return {
        one.queue.queue_id: [one.broker_offset, one.consumer_offset] for one in admin.consumer_progress(group, "orders")
    }


def offsets_shown(row: Mapping[str, Any]) -> dict[int, list[int]]:
    """Returns the same as `offsets` from what a page shows."""
    return {one["queueId"]: [one["brokerOffset"], one["consumerOffset"]] for one in row["queueStatInfoList"]}


def master_of(admin: Admin) -> str:
    (address,) = admin.masters()
    return address


def topic_of(admin: Admin, name: str) -> TopicConfig | None:
    return next((one for one in admin.topic_configs(master_of(admin)) if one.topic_name == name), None)


def group_of(admin: Admin, name: str) -> SubscriptionGroupConfig | None:
    return next((one for one in admin.sub_groups(master_of(admin)) if one.group_name == name), None)


def now_ms() -> int:
    return int(time.time() * 1000)


def view(message: Mapping[str, Any]) -> str:
    return f"{message['properties']['TAGS']} {message['properties']['KEYS']} {message['messageBody']}"


def check_cluster(browser: Browser) -> dict[str, str]:
    """Returns the address of each broker by its id."""
    shown = browser.ask("cluster/list.query")
    assert shown["clusterInfo"]["clusterAddrTable"] == {"north": ["broker-a"]}, shown
    addresses: dict[str, str] = shown["clusterInfo"]["brokerAddrTable"]["broker-a"]["brokerAddrs"]
    figures = shown["brokerServer"]["broker-a"]
    assert sorted(addresses) == sorted(figures) == ["0", "1"], shown
    assert all(row["brokerVersionDesc"] and row["putTps"] and row["getTotalTps"] for row in figures.values()), shown
    for name in ("msgPutTotalToday", "msgGetTotalToday"):
        assert int(figures["0"][f"{name}Now"]) - int(figures["0"][f"{name}Morning"]) >= len(QUEUES), shown
    for broker_id, role in (("0", "SYNC_MASTER"), ("1", "SLAVE")):
        config = browser.ask("cluster/brokerConfig.query", brokerAddr=addresses[broker_id])
        assert (config["brokerName"], config["brokerId"], config["brokerRole"]) == ("broker-a", broker_id, role), config
    return addresses


def check_topics(browser: Browser, addresses: Mapping[str, str]) -> None:
    shown = browser.ask("topic/list.queryTopicType")
    types = dict(zip(shown["topicNameList"], shown["messageTypeList"], strict=True))
    assert (types["orders"], types["%DLQ%poppers"], types["%SYS%TBW102"]) == ("UNSPECIFIED", "DLQ", "SYSTEM"), types
    assert {"orders", "%DLQ%poppers", "%SYS%TBW102"} <= {*browser.ask("topic/list.query")["topicList"]}
    few = browser.ask("topic/list.query", skipSysProcess="true", skipRetryAndDlq="true")["topicList"]
    assert "orders" in few and not any(name.startswith(("%DLQ%", "%RETRY%", "%SYS%")) for name in few), few

    status = browser.ask("topic/stats.query", topic="orders")
    rows = {
        queue_id: (row["minOffset"], row["maxOffset"], row["lastUpdateTimestamp"] > 0)
        for queue_id in (0, 1)
        for name, row in status["offsetTable"].items()
        if "topic=orders" in name and "brokerName=broker-a" in name and f"queueId={queue_id}" in name
    }
    assert rows == {0: (0, 4, True), 1: (0, 2, True)}, status

    route = browser.ask("topic/route.query", topic="orders")
    assert [one["brokerAddrs"] for one in route["brokerDatas"]] == [addresses], route
    queues = [
        [one[key] for key in ("brokerName", "readQueueNums", "writeQueueNums", "perm")] for one in route["queueDatas"]
    ]
    assert queues == [["broker-a", 2, 2, 6]], route

    (config,) = browser.ask("topic/examineTopicConfig.query", topic="orders")
    keys = ("topicName", "brokerNameList", "readQueueNums", "writeQueueNums", "perm", "messageType")
    assert [config[key] for key in keys] == ["orders", ["broker-a"], 2, 2, 6, "UNSPECIFIED"], config

    groups = browser.ask("topic/queryTopicConsumerInfo.query", topic="orders")
    assert {"poppers", "readers", WORKERS} <= {*groups["groupList"]}, groups
    consumers = browser.ask("topic/queryConsumerByTopic.query", topic="orders")
    assert {group: consumers[group]["diffTotal"] for group in ("poppers", "readers", WORKERS)} == {
        "poppers": 0,
        "readers": 3,
        WORKERS: 0,
    }, consumers
    assert offsets_shown(consumers["readers"]) == {0: [4, 3], 1: [2, 0]}, consumers


def check_messages(browser: Browser, printed: Path) -> None:
    span: dict[str, Any] = {"begin": now_ms() - 3_600_000, "end": now_ms()}
    query = {"topic": "orders", "pageSize": 20, "taskId": "", **span}
    shown = browser.ask("message/queryMessagePageByTopic.query", query | {"pageNum": 1})
    assert sorted(map(view, shown["page"]["content"])) == SENT and shown["page"]["totalElements"] == len(SENT), shown

    first = browser.ask("message/queryMessagePageByTopic.query", query | {"pageNum": 1, "pageSize": 4})
    assert (len(first["page"]["content"]), first["page"]["totalElements"]) == (4, len(SENT)), first
    rest = query | {"pageNum": 2, "pageSize": 4, "taskId": first["taskId"]}
    second = browser.ask("message/queryMessagePageByTopic.query", rest)
    assert sorted(map(view, first["page"]["content"] + second["page"]["content"])) == SENT, (first, second)

    by_time = browser.ask("message/queryMessageByTopic.query", topic="orders", **span)
    assert sorted(one["properties"]["KEYS"] for one in by_time) == [one.split()[1] for one in SENT], by_time
    by_key = browser.ask("message/queryMessageByTopicAndKey.query", topic="orders", key="key0")
    assert list(map(view, by_key)) == SENT[:1], by_key

    msg_id = by_key[0]["msgId"]
    shown = browser.ask("message/viewMessage.query", topic="orders", msgId=msg_id)
    message = shown["messageView"]
    assert view(message) == SENT[0] and message["properties"]["UNIQ_KEY"] == message["msgId"] == msg_id, shown
    assert [message[key] for key in ("topic", "queueId", "queueOffset", "reconsumeTimes")] == ["orders", 0, 0, 0], shown
    tracks = {one["consumerGroup"]: one["trackType"] for one in shown["messageTrackList"]}
    assert (tracks["poppers"], tracks[WORKERS]) == ("CONSUMED", "CONSUMED"), shown
    traced = browser.ask("messageTrace/viewMessage.query", topic="orders", msgId=msg_id)
    assert view(traced["messageView"]) == SENT[0], traced
    missing = browser.answer("message/viewMessage.query", topic="orders", msgId="0" * 32)
    assert missing["status"] == -1 and "0" * 32 in missing["errMsg"], missing

    again = {"topic": "orders", "consumerGroup": WORKERS, "msgId": msg_id}
    result = browser.ask("message/consumeMessageDirectly.do", post=True, **again)
    assert result["consumeResult"] == "CR_SUCCESS", result
    wait_until(lambda: consumed(printed)["body0"] == 2, "the push consumer has consumed the message again")


def check_consumers(browser: Browser, admin: Admin, master: str) -> None:
    rows = {row["group"]: row for row in browser.ask("consumer/groupList.query", skipSysGroup="false", address="")}
    assert rows["%SYS%TOOLS_CONSUMER"]["subGroupType"] == "SYSTEM", rows
    for group, lag in (("poppers", 0), ("readers", 3), (WORKERS, 0)):
        row = rows[group]
        assert (row["subGroupType"], row["diffTotal"], row["address"]) == ("NORMAL", lag, [master]), row
        assert sum(lags(admin, group)) == lag
    for group in ("poppers", WORKERS):
        row = browser.ask("consumer/group.refresh", consumerGroup=group)
        assert (row["count"], row["diffTotal"], row["messageModel"]) == (1, 0, "CLUSTERING"), row
        assert row["consumeType"] == "CONSUME_PASSIVELY" and row["version"], row
    shown = browser.ask("consumer/group.query", consumerGroup="readers", address="")
    assert (shown["group"], shown["diffTotal"]) == ("readers", 3), shown

    # A broker can be asked in place of a proxy.
    rows = {row["group"]: row for row in browser.ask("consumer/group.refresh.all", address=master)}
    assert rows["poppers"]["count"] == rows[WORKERS]["count"] == 1, rows

    assert browser.ask("consumer/fetchBrokerNameList.query", consumerGroup="poppers") == ["broker-a"]
    for group in ("readers", WORKERS):
        topics = browser.ask("consumer/queryTopicByConsumer.query", consumerGroup=group, address=master)
        (orders,) = (one for one in topics if one["topic"] == "orders")
        assert offsets_shown(orders) == offsets(admin, group), topics
        assert orders["diffTotal"] == sum(lags(admin, group)), topics


def check_clients(browser: Browser, client_ids: Mapping[str, str], master: str) -> None:
    for group, language in (("poppers", "OTHER"), (WORKERS, "JAVA")):
        shown = browser.ask("consumer/consumerConnection.query", consumerGroup=group, address=master)
        (client,) = shown["connectionSet"]
        assert (client["clientId"], client["language"]) == (client_ids[group], language), shown
        assert client["versionDesc"] and shown["messageModel"] == "CLUSTERING", shown
    assert shown["subscriptionTable"]["orders"]["subString"] == "*", shown

    about: dict[str, Any] = {"consumerGroup": WORKERS, "clientId": client_ids[WORKERS]}
    shown = browser.ask("consumer/consumerRunningInfo.query", jstack="true", **about)
    assert shown["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY", shown
    assert sum("topic=orders" in queue for queue in shown["mqTable"]) == 2, shown
    assert "ConsumeMessageThread" in shown["jstack"], shown
    topics = browser.ask("consumer/queryTopicByConsumer.query", consumerGroup=WORKERS, address=master)
    (orders,) = (one for one in topics if one["topic"] == "orders")
    assert {row["clientInfo"] for row in orders["queueStatInfoList"]} == {client_ids[WORKERS]}, topics


def check_producers(browser: Browser, worker: str) -> None:
    # RocketMQ's consumers give back messages with a producer of this group, which their heartbeats name.
    shown = browser.ask("producer/producerConnection.query", producerGroup="CLIENT_INNER_PRODUCER", topic="orders")
    languages = {one["clientId"]: one["language"] for one in shown["connectionSet"]}
    assert languages[worker] == "JAVA", shown
    refused = browser.answer("producer/producerConnection.query", producerGroup="nobody", topic="orders")
    assert refused["status"] == -1 and "nobody" in refused["errMsg"], refused


def dead_letters(browser: Browser, group: str) -> list[dict[str, Any]]:
    """Returns the dead letters of the last hour."""
    span = {"begin": now_ms() - 3_600_000, "end": now_ms()}
    query = {"topic": f"%DLQ%{group}", "pageNum": 1, "pageSize": 20, "taskId": "", **span}
    shown = browser.ask("dlqMessage/queryDlqMessageByConsumerGroup.query", query)
    letters: list[dict[str, Any]] = shown["page"]["content"]
    assert shown["page"]["totalElements"] == len(letters), shown
    return letters


def sheet_of(file: bytes) -> bytes:
    """Returns the text of a file of Excel."""
    assert file, "the dashboard has exported an empty file"
    with zipfile.ZipFile(BytesIO(file)) as archive:
        return b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".xml"))


def check_dead_letters(browser: Browser, printed: Path) -> None:
    assert dead_letters(browser, "readers") == []
    (letter,) = dead_letters(browser, "poppers")
    assert view(letter) == SENT[5], letter
    shown = browser.ask("message/viewMessage.query", topic="%DLQ%poppers", msgId=letter["msgId"])
    assert view(shown["messageView"]) == SENT[5], shown
    exported = browser.load("dlqMessage/exportDlqMessage.do", consumerGroup="poppers", msgId=letter["msgId"])
    assert b"body5" in sheet_of(exported)
    wanted = [{"topicName": "%DLQ%poppers", "consumerGroup": "poppers", "msgId": letter["msgId"]}]
    assert b"body5" in sheet_of(browser.load("dlqMessage/batchExportDlqMessage.do", wanted))

    (letter,) = dead_letters(browser, WORKERS)
    assert view(letter) == SENT[4] and letter["properties"]["RETRY_TOPIC"] == "orders", letter
    origin = letter["properties"]["ORIGIN_MESSAGE_ID"]
    # The page names the topic in a field that the dashboard does not read, so the id alone finds the message.
    wanted = [{"topic": "orders", "consumerGroup": WORKERS, "msgId": origin}]
    (result,) = browser.ask("dlqMessage/batchResendDlqMessage.do", wanted)
    assert (result["msgId"], result["consumeResult"]) == (origin, "CR_LATER"), result
    wait_until(lambda: consumed(printed)[REFUSED] == 2, "the push consumer was given its dead letter")


def check_changes_of_topics(browser: Browser, cluster: DashboardCluster) -> None:
    admin = cluster.admin
    form: dict[str, Any] = {
        "topicName": ADDED,
        "messageType": "NORMAL",
        "clusterNameList": ["north"],
        "brokerNameList": [],
    }
    queues = {"readQueueNums": 3, "writeQueueNums": 3, "perm": 7}
    assert browser.ask("topic/createOrUpdate.do", form | queues) is True
    made = topic_of(admin, ADDED)
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (3, 3, 6), f"the form has perm 7: {made}"
    wait_until(lambda: ADDED in browser.ask("topic/list.query")["topicList"], "the name server knows the topic")
    (config,) = browser.ask("topic/examineTopicConfig.query", topic=ADDED)
    assert (config["readQueueNums"], config["messageType"]) == (3, "NORMAL"), config

    message = {"tag": "sent", "key": "sent-key", "messageBody": "from the page", "traceEnabled": True}
    sent = browser.ask("topic/sendTopicMessage.do", {"topic": ADDED, **message})
    assert sent["sendStatus"] == "SEND_OK" and sent["messageQueue"]["topic"] == ADDED, sent
    queue = MessageQueue(ADDED, sent["messageQueue"]["brokerName"], sent["messageQueue"]["queueId"])
    with PullConsumer(cluster.name_server, "readers") as reader:
        (found,) = reader.pull(queue, sent["queueOffset"]).messages
    assert (found.body, found.tags, found.keys) == (b"from the page", "sent", "sent-key")
    check_trace(browser, sent["msgId"])

    changed = {"readQueueNums": 4, "writeQueueNums": 3, "perm": 6, "brokerNameList": ["broker-a"]}
    assert browser.ask("topic/createOrUpdate.do", form | changed) is True
    made = topic_of(admin, ADDED)
    assert made is not None and (made.read_queue_nums, made.write_queue_nums) == (4, 3), made
    assert browser.ask("topic/deleteTopic.do", post=True, topic=ADDED) is True
    assert topic_of(admin, ADDED) is None
    wait_until(lambda: ADDED not in browser.ask("topic/list.query")["topicList"], "the name server forgets the topic")


def check_trace(browser: Browser, msg_id: str) -> None:
    """Checks the trace of the message from `check_changes_of_topics`, which the dashboard sends in the background."""

    def graph() -> Any:
        answer = browser.answer("messageTrace/viewMessageTraceGraph.query", msgId=msg_id, traceTopic=TRACES)
        return answer["data"] if answer["status"] == 0 and answer["data"]["producerNode"] else None

    shown = wait_until(graph, "the dashboard shows the trace of its message")
    node = shown["producerNode"]
    assert [node[key] for key in ("msgId", "topic", "tags", "keys")] == [msg_id, ADDED, "sent", "sent-key"], shown
    assert (node["groupName"], node["traceNode"]["status"]) == ("SELF_TEST_P_GROUP", "success"), shown
    views = browser.ask("messageTrace/viewMessageTraceDetail.query", msgId=msg_id)
    assert [(one["traceType"], one["msgId"]) for one in views] == [("Pub", msg_id)], views


def check_changes_of_groups(browser: Browser, admin: Admin) -> None:
    (shown,) = browser.ask("consumer/examineSubscriptionGroupConfig.query", consumerGroup="poppers")
    config = shown["subscriptionGroupConfig"]
    assert (shown["brokerNameList"], config["groupName"], config["retryMaxTimes"]) == (["broker-a"], "poppers", 0), (
        shown
    )
    change = {"subscriptionGroupConfig": config | {"retryMaxTimes": 7}, "brokerNameList": ["broker-a"]}
    assert browser.ask("consumer/createOrUpdate.do", change | {"clusterNameList": None}) is True
    group = group_of(admin, "poppers")
    assert group is not None and group.retry_max_times == 7, group
    assert json.loads(group.group_retry_policy)["customizedRetryPolicy"]["next"] == RETRY_DELAYS_MS, group

    form: dict[str, Any] = {
        "groupName": "added-group",
        "consumeEnable": True,
        "consumeMessageOrderly": True,
        "retryQueueNums": 1,
    }
    form |= {"consumeBroadcastEnable": False, "retryMaxTimes": 5, "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1}
    where = {"clusterNameList": ["north"], "brokerNameList": ["broker-a"]}
    assert browser.ask("consumer/createOrUpdate.do", {"subscriptionGroupConfig": form, **where}) is True
    group = group_of(admin, "added-group")
    assert group is not None and (group.retry_max_times, group.consume_message_orderly) == (5, True), group
    wanted = {"groupName": "added-group", "brokerNameList": ["broker-a"]}
    assert browser.ask("consumer/deleteSubGroup.do", wanted) is True
    assert group_of(admin, "added-group") is None
    assert browser.ask("consumer/fetchBrokerNameList.query", consumerGroup="added-group") == []


def check_changes_of_offsets(browser: Browser, admin: Admin) -> None:
    ends = {0: 4, 1: 2}
    starts = dict.fromkeys(ends, 0)
    for path, time_ms, places in (("resetOffset", 0, starts), ("skipAccumulate", -1, ends)):
        order = {"consumerGroupList": ["readers"], "topic": "orders", "resetTime": time_ms, "force": True}
        shown = browser.ask(f"consumer/{path}.do", order)
        assert shown["readers"]["status"] is True, shown
        assert {row["queueId"]: row["rollbackOffset"] for row in shown["readers"]["rollbackStatsList"]} == places, shown
        assert offsets(admin, "readers") == {queue_id: [ends[queue_id], place] for queue_id, place in places.items()}


def check_monitor_and_access(browser: Browser) -> None:
    limits = {"minCount": 1, "maxDiffTotal": 10}
    assert browser.ask("monitor/createOrUpdateConsumerMonitor.do", post=True, consumeGroupName="poppers", **limits)
    assert browser.ask("monitor/consumerMonitorConfig.query") == {"poppers": limits}
    assert browser.ask("monitor/consumerMonitorConfigByGroupName.query", consumeGroupName="poppers") == limits
    assert browser.ask("monitor/deleteConsumerMonitor.do", post=True, consumeGroupName="poppers") is True
    assert browser.ask("monitor/consumerMonitorConfig.query") == {}
    # A cluster without access control has neither users nor permissions.
    for path, error in (("users", "Failed to list users"), ("acls", "Failed to list ACLs")):
        refused = browser.answer(f"acl/{path}.query", clusterName="north", brokerName="broker-a")
        assert (refused["status"], refused["errMsg"]) == (-1, error), refused


def check_charts(browser: Browser) -> None:
    """Waits for the first points of the charts, which the dashboard collects once a minute."""

    def charts() -> Any:
        day = time.strftime("%Y-%m-%d")
        brokers = browser.answer("dashboard/broker.query", date=day)
        topics = browser.load("dashboard/topic.query", date=day, topicName="orders")
        if not topics:  # the dashboard has no point of this topic yet
            return None
        # The dashboard may be writing its file of one of the charts.
        found = [one["data"] for one in (brokers, json.loads(topics)) if one["status"] == 0]
        return found if len(found) == 2 and len(found[0] or {}) == 2 and found[1] else None

    brokers, orders = wait_until(charts, "the dashboard has collected points of its charts")
    assert {name: len(points[-1].split(",")) for name, points in brokers.items()} == {"broker-a:0": 2, "broker-a:1": 2}
    _, _, received, _, given = orders[-1].split(",")  # after the time, a rate and a count of each
    assert int(received) == len(QUEUES) and int(given) >= len(QUEUES), orders

    def current() -> Any:
        answer = browser.answer("dashboard/topicCurrent.query")
        return answer["data"] if answer["status"] == 0 else None

    rows = dict(row.rsplit(",", 1) for row in wait_until(current, "the dashboard shows today's counts of topics"))
    assert int(rows["orders"]) >= len(QUEUES), rows


def check_operations(browser: Browser, name_server: str, addresses: Mapping[str, str]) -> None:
    assert browser.load("rocketmq/nsaddr.query").decode().strip('"') == name_server
    shown = browser.ask("ops/homePage.query")
    assert (shown["currentNamesrv"], shown["namesvrAddrList"]) == (name_server, [name_server]), shown
    assert (shown["useVIPChannel"], shown["useTLS"]) == (True, False), shown
    assert browser.ask("ops/updateNameSvrAddr.do", post=True, nameSvrAddrList=name_server) is True
    # From here on, the dashboard no longer asks the port two below a broker's `remotingPort`.
    assert browser.ask("ops/updateIsVIPChannel.do", post=True, useVIPChannel="false") is True
    assert browser.ask("ops/homePage.query")["useVIPChannel"] is False
    assert check_cluster(browser) == addresses

    assert browser.ask("proxy/addProxyAddr.do", post=True, newProxyAddr=addresses["0"]) is True
    assert addresses["0"] in browser.ask("proxy/homePage.query")["proxyAddrList"]
