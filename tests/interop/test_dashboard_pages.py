"""Tests what RocketMQ's dashboard shows of our pair: RocketMQ's own admin client, pull consumer and producer send the
requests of each page in the dashboard's order and with its defaults.

The dashboard itself is not on Maven Central.  `./run test --interop` runs this test.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from rocketsim_client import Consumer
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import Processes
from testbed.real_rocketmq import NEWEST, free_port, rocketmq_jars, run_java
from tests.interop.dashboard_cluster import RETRY_DELAYS_MS, pop, running
from tests.interop.marks import INTEROP
from tests.interop.programs import MqAdmin

pytestmark = INTEROP
PROGRAM = Path(__file__).parent / "Pages.java"
KEYS = {
    "authenticationEnabled": True,
    "initAuthenticationUser": '{"username":"admin","password":"4dm1n"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"broker","secretKey":"1nner"}',
}


def test_each_page_of_the_dashboard_shows_what_is_on_our_pair(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        admin = cluster.admin
        with ThreadPoolExecutor(1) as beside, Consumer(cluster.name_server, "poppers", "orders") as consumer:
            pop(admin, consumer)
            (client,) = admin.consumer_connection("poppers")
            # The consumer goes on popping, because a broker forgets a consumer that has not popped for a minute.
            popped = beside.submit(lambda: [consumer.poll(PROCESS_PATIENCE_S) for _ in range(2)])
            words = [cluster.remoting, "orders", "poppers", "readers"]
            printed = run_java(rocketmq_jars(NEWEST), tmp_path, "256m", str(PROGRAM), *words)
            found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
            pages = {page.pop("page"): page for page in found}
            assert not {name: page["error"] for name, page in pages.items() if "error" in page}
            assert [one and one.body for one in popped.result()] == [b"from the page", b"from the shop"]
    check_cluster_and_topics(pages)
    check_consumers(pages, client.client_id)
    check_messages(pages)


def test_mqadmin_and_so_the_dashboard_change_users_and_permissions_of_our_pair(tmp_path: Path) -> None:
    name_server = f"127.0.0.1:{free_port()}"
    user = json.loads(KEYS["initAuthenticationUser"])

    def run(command: str) -> list[list[str]]:
        printed = tools.run(f"{command} -n {name_server} -c DefaultCluster")
        return [line.split() for line in printed.splitlines() if line.split() and line[0] != "#"]

    with Processes(tmp_path) as processes, closing(MqAdmin(NEWEST, tmp_path / "mqadmin")) as tools:
        (tmp_path / "mqadmin" / "conf").mkdir()
        keys = f"accessKey: {user['username']}\nsecretKey: {user['password']}\n"
        (tmp_path / "mqadmin" / "conf" / "tools.yml").write_text(keys)
        namesrv = processes.start_namesrv(remotingPort=name_server.rpartition(":")[2], **KEYS)
        master, _ = processes.start_pair("broker-a", namesrv, remotingPort=0, authorizationEnabled=True, **KEYS)
        wait_until(lambda: "writable" in master.log(), "the master takes writes")
        wait_until(lambda: len(run("clusterList")) == 2, "both brokers are registered")
        assert len(run("createUser -u reader -p r34der -t Normal")) == 2, "mqadmin asks master and slave"
        run("updateUser -u reader -s disable")
        assert ["reader", "null", "Normal", "disable"] in run("listUser")
        run("createAcl -s User:reader -r Topic:orders*,Group:readers -a Pub,Sub -i 10.0.0.0/8 -d Allow")
        run("updateAcl -s User:reader -r Group:readers -a Sub -d Deny")
        assert run("listAcl -s reader")[:2] == [
            ["User:reader", "Custom", "Topic:orders*", "[Pub,", "Sub]", "[10.0.0.0/8]", "Allow"],
            ["User:reader", "Custom", "Group:readers", "[Sub]", "[]", "Deny"],
        ]
        run("deleteAcl -s User:reader -r Group:readers")
        assert [row[2] for row in run("getAcl -s User:reader") if row[0] == "User:reader"] == ["Topic:orders*"]
        run("deleteUser -u reader")
        assert [row[0] for row in run("listUser") if "null" in row] == [user["username"]]


def check_cluster_and_topics(pages: dict[str, Any]) -> None:
    assert pages["cluster"]["clusters"] == {"north": ["broker-a"]}
    brokers = pages["cluster"]["brokers"]
    assert {name: row["role"] for name, row in brokers.items()} == {
        "broker-a 0": "SYNC_MASTER",
        "broker-a 1": "SLAVE",
    }
    assert all(row["version"] and row["rates"] for row in brokers.values())
    assert brokers["broker-a 0"]["received"] >= 6 and brokers["broker-a 0"]["given"] >= 6
    types = pages["topics"]["types"]
    assert (types["orders"], types["%DLQ%poppers"], types["TBW102"]) == ("UNSPECIFIED", "DLQ", "SYSTEM")
    queues = {"read queues": 8, "write queues": 8}
    assert pages["topic add"] == queues | {"perm": 6, "type": "NORMAL"}, "the form has perm 7"
    bounds = {name: row[:2] for name, row in pages["topic status"].items()}
    assert bounds == {"broker-a 0": [0, 4], "broker-a 1": [0, 2]}
    assert all(last > 0 for _, _, last in pages["topic status"].values())
    assert pages["topic route"] == {
        "brokers": {name: row["address"] for name, row in brokers.items()},
        "queues": {"broker-a": [2, 2, 6]},
    }
    queues = {"read queues": 3, "write queues": 2}
    assert pages["topic config"] == queues | {"perm": 6, "type": "UNSPECIFIED"}
    assert pages["topic send"] == {"status": "SEND_OK"}
    assert pages["topic delete"] == {"is there": False}


def check_consumers(pages: dict[str, Any], client_id: str) -> None:
    """Checks offsets and clients of groups.  One more message comes from the page `topic send`."""
    assert pages["topic consumers"] == {
        "poppers": {"broker-a 0": [4, 4], "broker-a 1": [2, 2]},
        "readers": {"broker-a 0": [4, 3], "broker-a 1": [2, 0]},
    }
    assert {*pages["topic reset"]["offsets"].values()} == {0} and pages["topic reset"]["lag"] == 7
    assert sum(pages["topic skip"]["offsets"].values()) == 7 and pages["topic skip"]["lag"] == 0
    online = {"quantity": 1, "mode": "CLUSTERING", "consume type": "CONSUME_PASSIVELY"}
    for group, lag in (("poppers", 1), ("readers", 0)):
        row = pages["consumers"][group]
        assert row.pop("version")
        assert row == {"type": "NORMAL", "lag": lag} | online
    assert pages["consumers"]["TOOLS_CONSUMER"]["type"] == "SYSTEM"
    clients = pages["consumer clients"]["clients"]
    assert [client.split()[:2] for client in clients] == [[client_id, "OTHER"]]
    assert pages["consumer clients"]["mode"] == "CLUSTERING"
    assert pages["consumer config"] == {"retries": 7, "delays": RETRY_DELAYS_MS}
    assert pages["consumer delete"] == {"is there": False}
    ((client,),) = pages["producers"].values()
    assert client.endswith(f"@shop JAVA V{NEWEST.replace('.', '_')}")


def check_messages(pages: dict[str, Any]) -> None:
    sent = [f"tag key{number} body{number}" for number in range(6)]
    page = "sent sent-key from the page"
    assert pages["messages by time"] == {"messages": sorted([*sent, page])}
    assert pages["messages by key"] == {"messages": [sent[0]]}
    consumed = {"poppers": "CONSUMED", "readers": "CONSUMED"}
    assert pages["message by id"] == {sent[0]: consumed, page: consumed | {"poppers": "NOT_CONSUME_YET"}}
    assert pages["message trace"] == {"traces": ["Pub SELF_TEST_P_GROUP sent-key"]}
    assert pages["retry topic"] == {"is listed": True, "messages": [], "status": "NO_NEW_MSG"}
    assert pages["dead letters"] == {"messages": [sent[5]]}
    assert pages["no dead letters"] == {"messages": []}
