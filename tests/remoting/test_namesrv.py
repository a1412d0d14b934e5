"""A name server's answers over the remoting protocol."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from rocketsim_proto.remoting import loose_json
from rocketsim_proto.remoting.codes import RequestCode
from rocketsim_proto.remoting.frame import Header

from broker_service.access.remoting import NAMESRV_REMOTING_RIGHTS
from broker_service.config.namesrv_config import NamesrvConfig
from broker_service.errors import TopicNotExist
from broker_service.namesrv import server
from broker_service.namesrv.remoting import NamesrvAnswers
from broker_service.namesrv.route_table import Registration, RouteTable, TopicQueues
from broker_service.namesrv.server import run_namesrv
from broker_service.runtime.machine import Machine
from broker_service.runtime.remoting.calls import Answer, Request
from broker_service.runtime.remoting.server import RemotingServer
from testbed.polling import until
from tests.support.brokers import registers_rarely, running
from tests.support.remoting import Client, port_of


class Someone:
    address, peer, is_open = "127.0.0.1:1", "ipv4:127.0.0.1:1", True

    @property
    def gone(self) -> list[Callable[[], None]]:
        return []

    def notify(self, code: int, fields: object, body: bytes = b"") -> bool:
        return False


def table_of(**master: Any) -> RouteTable:
    table = RouteTable()
    given: dict[str, Any] = {
        "cluster_name": "north",
        "broker_name": "a",
        "topics": {"orders": TopicQueues(4, 3, 6)},
        "groups": frozenset({"readers"}),
        "remoting_address": "10.0.0.1:9",
    }
    table.register(Registration(**given | master, broker_id=0, address="10.0.0.1:1"), "m", 0)
    slave = Registration(
        cluster_name="north", broker_name="a", broker_id=1, address="10.0.0.2:1", remoting_address="10.0.0.2:9"
    )
    table.register(slave, "s", 0)
    return table


async def answer(table: RouteTable, code: RequestCode, **fields: str) -> Any:
    found: Answer = await NamesrvAnswers(table).handlers()[code](Request(Header(code, fields=fields), b"", Someone()))
    return loose_json.loads(found.body) if found.body else found


async def test_a_route_has_the_addresses_of_the_remoting_ports() -> None:
    assert await answer(table_of(), RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders") == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "10.0.0.1:9", "1": "10.0.0.2:9"},
                "brokerName": "a",
                "cluster": "north",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [{"brokerName": "a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 3}],
    }


async def test_each_group_has_a_retry_topic_for_tools_that_look_for_groups_by_it() -> None:
    table = table_of()
    found = await answer(table, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert found == {"topicList": ["%RETRY%readers", "orders"]}
    route = await answer(table, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="%RETRY%readers")
    assert route["queueDatas"][0]["readQueueNums"] == 1
    with pytest.raises(TopicNotExist):
        await answer(table, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="%RETRY%others")


async def test_a_master_that_takes_no_writes_has_no_write_permission() -> None:
    for topic in ("orders", "%RETRY%readers"):
        route = await answer(table_of(writable=False), RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
        assert route["queueDatas"][0]["perm"] == 4


async def test_brokers_without_the_port_are_not_listed_and_a_route_says_why() -> None:
    table = RouteTable()
    topics = {"orders": TopicQueues(4, 4, 6)}
    one = Registration(cluster_name="north", broker_name="a", broker_id=0, address="10.0.0.1:1", topics=topics)
    table.register(one, "m", 0)
    with pytest.raises(TopicNotExist, match="its brokers have no remotingPort"):
        await answer(table, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
    found = await answer(table, RequestCode.GET_BROKER_CLUSTER_INFO)
    assert found == {"brokerAddrTable": {}, "clusterAddrTable": {}}


async def test_lists_and_permissions() -> None:
    table = table_of()
    found = await answer(table, RequestCode.GET_BROKER_CLUSTER_INFO)
    assert found["clusterAddrTable"] == {"north": ["a"]}
    assert found["brokerAddrTable"]["a"]["brokerAddrs"] == {"0": "10.0.0.1:9", "1": "10.0.0.2:9"}
    of_north = await answer(table, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="north")
    assert of_north == {"topicList": ["%RETRY%readers", "orders"]}
    assert await answer(table, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="south") == {"topicList": []}
    assert (await answer(table, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)) == {"topicList": []}
    group = await answer(table, RequestCode.GET_BROKER_MEMBER_GROUP, brokerName="a")
    assert group["brokerMemberGroup"]["brokerAddrs"]["1"] == "10.0.0.2:9"
    wiped = await answer(table, RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="a")
    assert wiped.fields == {"wipeTopicCount": "1"}
    assert table.route("orders")["a"].perm == 4
    given = await answer(table, RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="a")
    assert given.fields == {"addTopicCount": "1"} and table.route("orders")["a"].perm == 6


def test_every_request_has_a_right() -> None:
    assert NamesrvAnswers(RouteTable()).handlers().keys() == NAMESRV_REMOTING_RIGHTS.keys()


async def test_a_broker_registers_its_port_and_its_groups_with_a_name_server(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registers_rarely(monkeypatch)
    address, shutdown = tmp_path / "address", asyncio.Event()
    made: list[tuple[RouteTable, int]] = []
    real = server.remoting_server

    def noted(config: NamesrvConfig, table: RouteTable, machine: Machine) -> RemotingServer | None:
        found = real(config, table, machine)
        assert found is not None
        made.append((table, found.port))
        return found

    monkeypatch.setattr(server, "remoting_server", noted)
    config = NamesrvConfig(listen_port=0, remoting_port=0, address_file=address)
    name_server = asyncio.create_task(run_namesrv(config, shutdown))
    await until(address.exists, "the name server listens")
    table, port = made[0]
    keys = {"namesrv_addr": address.read_text().strip(), "remoting_port": 0}
    async with running(tmp_path / "store", **keys) as node, await Client.connect(port) as client:
        route = await client.json(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
        assert route["brokerDatas"][0]["brokerAddrs"] == {"0": f"127.0.0.1:{port_of(node)}"}
        await node.commits.make_group("new")
        await until(lambda: "new" in table.live()["broker-a"].groups, "the group is known at once")
    shutdown.set()
    await name_server
