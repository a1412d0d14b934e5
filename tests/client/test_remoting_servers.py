"""RocketMQ's servers that lack calls, refuse them, or are not reachable, and what the client does there."""

import json
import socket
from typing import Any

import pytest
from rocketsim_proto.remoting import frame
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.remoting.frame import Header

from rocketsim_client.admin import Admin
from rocketsim_client.cluster import Cluster
from rocketsim_client.connection import Connection
from rocketsim_client.errors import (
    AccessDenied,
    CommitFailed,
    GroupNotExist,
    MessageIllegal,
    NotSupported,
    RocketSimError,
)
from rocketsim_client.model import MessageQueue, QueueRange
from rocketsim_client.route import BrokerData, TopicRoute
from rocketsim_client.transport.remoting.connections import Connections, Request
from rocketsim_client.transport.remoting.members import KnownMembers
from tests.support.remoting_peer import RemotingPeer, answer_to

QUEUE = MessageQueue("t", "a", 0)
END = 40
OFFSETS = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)


class Server:
    """A name server and broker of 5.x in one.  Its address is that of all broker names and ids, as a proxy's address
    is.  `instead` has the answers to requests with these codes.
    """

    def __init__(
        self, *, broker_at: str = "", names: tuple[str, ...] = ("a",), ids: tuple[int, ...] = (0,), **route: Any
    ) -> None:
        self.peer = RemotingPeer(self._answer)
        self.committed = -1
        self.has_group = True
        self.makes_groups = True
        self.instead: dict[int, tuple[int, str]] = {}
        self._broker_at = broker_at
        self._names = names
        self._ids = ids
        self._route = route

    def _answer(self, request: Header, _: bytes) -> bytes:
        code, fields = request.code, request.fields
        if code in self.instead:
            return answer_to(request, *self.instead[code])
        absent = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        match code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                at = {str(broker_id): self._broker_at or self.peer.address for broker_id in self._ids}
                brokers = [{"brokerAddrs": at, "brokerName": name, "cluster": "c"} for name in self._names]
                numbers = {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
                queues = [{"brokerName": name, **numbers} for name in self._names]
                route = {"brokerDatas": brokers, "queueDatas": queues, **self._route}
                return answer_to(request, body=json.dumps(route).encode())
            case RequestCode.GET_TOPIC_STATS_INFO:
                if fields["topic"].startswith("%RETRY%"):
                    return answer_to(request, ResponseCode.TOPIC_NOT_EXIST, "no such topic")
                key, value = '{"brokerName":"a","queueId":0,"topic":"t"}', {"maxOffset": END, "minOffset": 0}
                bounds = json.dumps(value | {"lastUpdateTimestamp": 1})
                return answer_to(request, body=f'{{"offsetTable":{{{key}:{bounds}}}}}'.encode())
            case RequestCode.GET_TOPIC_CONFIG:
                return answer_to(request, body=b'{"attributes":{}}')
            case RequestCode.GET_MIN_OFFSET:
                return answer_to(request, offset=0)
            case RequestCode.GET_MAX_OFFSET:
                return answer_to(request, offset=END)
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                return answer_to(request, offset=7)
            case RequestCode.QUERY_CONSUMER_OFFSET if self.committed < 0:
                return answer_to(request, ResponseCode.QUERY_NOT_FOUND, "not found")
            case RequestCode.QUERY_CONSUMER_OFFSET:
                return answer_to(request, offset=self.committed)
            case RequestCode.PULL_MESSAGE:
                self.has_group |= self.makes_groups
                if not self.has_group:
                    return answer_to(request, absent, "no such group")
                ends = {"minOffset": 0, "maxOffset": END, "nextBeginOffset": 0, "suggestWhichBrokerId": 0}
                return answer_to(request, ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", **ends)
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                if not self.has_group:
                    return answer_to(request, absent, "Group not exist!")
                self.committed = int(fields["commitOffset"])
        return answer_to(request)

    def asked(self, code: int) -> int:
        """Returns how many requests with this code have come."""
        return [one.code for one in self.peer.requests].count(code)

    def where(self, **settings: Any) -> Connection:
        return Connection.of(self.peer.address, protocol="remoting", timeout_s=60.0, **settings)


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_lower_offset_is_never_sent() -> None:
    server = Server()
    server.committed = 30
    with server.peer, Cluster(server.where()) as cluster:
        assert cluster.commit("g", {QUEUE: 20}).offsets == {QUEUE: 30}
        assert cluster.commit("g", {QUEUE: 30}).offsets == {QUEUE: 30}
        assert server.asked(RequestCode.UPDATE_CONSUMER_OFFSET) == 0
        assert cluster.commit("g", {QUEUE: 31}).offsets == {QUEUE: 31}
    assert server.committed == 31


def test_a_group_that_the_broker_does_not_know_pulls_before_its_first_commit() -> None:
    server = Server()
    server.has_group = False
    with server.peer, Cluster(server.where()) as cluster:
        assert cluster.commit("g", {QUEUE: 3}).offsets == {QUEUE: 3}
    pulls = [one.fields["consumerGroup"] for one in server.peer.requests if one.code == RequestCode.PULL_MESSAGE]
    assert (server.committed, pulls) == (3, ["g"])


def test_a_group_that_the_broker_does_not_make_is_to_be_made_by_its_operator() -> None:
    server = Server()
    server.has_group = server.makes_groups = False
    with server.peer, Cluster(server.where()) as cluster, pytest.raises(CommitFailed) as failed:
        cluster.commit("g", {QUEUE: 3})
    assert isinstance(failed.value.__cause__, GroupNotExist) and "updateSubGroup -g g" in str(failed.value)


@pytest.mark.parametrize(("register", "tries"), [("auto", 1), ("true", 1), ("false", 0)])
def test_a_group_is_registered_as_the_option_says(register: str, tries: int) -> None:
    server = Server()
    with server.peer, Cluster(server.where(register_group=register)) as cluster:
        for offset in (1, 2):
            cluster.commit("g", {QUEUE: offset})
    assert server.asked(RequestCode.UPDATE_AND_CREATE_TOPIC) == tries


@pytest.mark.parametrize("register", ["auto", "true"])
def test_a_refused_registration_is_an_error_only_if_it_was_asked_for(register: str) -> None:
    server = Server()
    server.instead[RequestCode.UPDATE_AND_CREATE_TOPIC] = 16, "User:u has no permission to access Topic"
    with server.peer, Cluster(server.where(register_group=register)) as cluster:
        if register == "auto":
            assert cluster.commit("g", {QUEUE: 3}).offsets == {QUEUE: 3}
        else:
            with pytest.raises(CommitFailed) as failed:
                cluster.commit("g", {QUEUE: 3})
            assert isinstance(failed.value.__cause__, AccessDenied)
    assert server.committed == 3


@pytest.mark.parametrize(("time_ms", "offset"), [(1000, 7), (-1, END)], ids=["to a time", "to the end"])
def test_a_group_is_reset_by_time(time_ms: int, offset: int) -> None:
    server = Server()
    server.committed = 30
    with server.peer, Admin(server.where()) as admin:
        (reset,) = admin.reset_offset_by_time("g", "t", time_ms, force=True)
    assert (reset.previous, reset.offset, server.committed) == (30, offset, offset)


# --- proxies, and topics that cannot be read --------------------------------------------------------------------------


def test_a_proxy_is_asked_for_the_bounds_of_each_queue_and_has_no_lists() -> None:
    server = Server()
    lists = (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_BROKER_CLUSTER_INFO)
    for code in (RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_CONSUME_STATS, *lists):
        server.instead[code] = 3, " request type not supported"
    with server.peer, Cluster(server.where()) as cluster:
        (found,) = cluster.bounds("t").values()
        assert (found.min_offset, found.max_offset, found.readable) == (0, END, True)
        for call in (cluster.topics, cluster.members):
            with pytest.raises(NotSupported, match=r"the port of a broker or a proxy.*9876"):
                call()
    named = [one.fields["bname"] for one in server.peer.requests if one.code in OFFSETS]
    assert set(named) == {"a"}  # a proxy refuses requests that do not name the broker


def test_a_proxy_that_names_itself_for_master_and_slave_is_asked_as_the_master() -> None:
    server = Server(ids=(0, 1))
    with server.peer, Cluster(server.where()) as cluster:
        assert dict(cluster.addresses("t", "a")) == {0: server.peer.address}
        (found,) = cluster.bounds("t").values()
        assert found.is_master
        assert cluster.commit("g", {QUEUE: 3}).offsets == {QUEUE: 3}
        assert cluster.committed("g", [QUEUE]) == {QUEUE: 3}


def test_a_proxy_in_front_of_two_broker_names_is_not_read() -> None:
    """The requests name a broker, and the client knows brokers by their addresses."""
    server = Server(names=("a", "b"))
    with server.peer, Cluster(server.where()) as cluster:
        for call in (
            lambda: cluster.bounds("t"),
            lambda: list(cluster.pull_range("a", [QueueRange("t", 0, 0, END)])),
            lambda: cluster.committed("g", [QUEUE]),
        ):
            with pytest.raises(NotSupported, match=r"is on the brokers a and b, and .*, as that of a proxy.*9876"):
                call()
    assert server.asked(RequestCode.PULL_MESSAGE) == 0


def test_the_broker_of_an_address_is_the_one_in_the_newest_route_of_the_topic() -> None:
    """A broker comes back with another name, or gets the address of another broker.  Other routes may be older."""
    known = KnownMembers()

    def learn(topic: str, *names: str) -> None:
        route = TopicRoute(topic, (), {name: BrokerData("c", name, {0: "h:1"}) for name in names})
        known.learn_route(route)

    learn("t", "a")
    learn("u", "a")
    learn("t", "b")
    assert [known.broker_name("h:1", topic) for topic in ("t", "u")] == ["b", "a"]
    learn("u", "a", "b")
    with pytest.raises(NotSupported, match="'u' is on the brokers a and b"):
        known.broker_name("h:1", "u")
    learn("u", "b")
    assert known.broker_name("h:1", "u") == known.broker_name("h:1", "another topic") == "b"


def test_a_static_topic_is_refused_by_name() -> None:
    server = Server(topicQueueMappingByBroker={"a": {"topic": "t", "totalQueues": 2}})
    with server.peer, Cluster(server.where()) as cluster, pytest.raises(NotSupported, match="'t' is a static topic"):
        cluster.queues("t")


# --- what is never sent, and addresses --------------------------------------------------------------------------------


def test_a_request_of_more_than_16_mib_is_refused_before_it_is_sent() -> None:
    connections = Connections(Connection.of("a:1"))
    with pytest.raises(MessageIllegal, match=r"a send: a frame of \d+ bytes.*at most 16777216"):
        connections.encoded(Request(RequestCode.SEND_MESSAGE_V2, "a send", {}, bytes(frame.MAX_FRAME_BYTES)), 1)
    connections.close()


@pytest.mark.parametrize(
    ("address_map", "says"),
    [
        ("", r"brokerIP1.*set addressMap \(address_map in Python, --address-map before a command of rocketsim\)"),
        ("10.9.8.7=127.0.0.1", r"addressMap=10\.9\.8\.7=127\.0\.0\.1 makes of"),
    ],
    ids=["no map", "a map"],
)
def test_an_address_that_is_not_reachable_names_the_option_for_it(address_map: str, says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    server = Server(broker_at=f"{'10.9.8.7' if address_map else '127.0.0.1'}:{port}")
    with server.peer, Cluster(server.where(address_map=address_map)) as cluster:
        with pytest.raises(RocketSimError, match=rf"127\.0\.0\.1:{port}: not reachable.*{says}"):
            cluster.bounds("t")
