"""RocketMQ's servers that lack calls, refuse them, or are not reachable, and what the client does there."""

import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from rocketsim_proto.remoting import frame
from rocketsim_proto.remoting.codes import RequestCode, ResponseCode
from rocketsim_proto.remoting.frame import Header

from rocketsim_client.admin import Admin
from rocketsim_client.cluster import Cluster
from rocketsim_client.connection import Connection
from rocketsim_client.errors import (
    AccessDenied,
    BadAnswer,
    BrokerUnavailable,
    CallTimeout,
    ClientClosed,
    CommitFailed,
    GroupNotExist,
    MessageIllegal,
    NameServerUnavailable,
    NotSupported,
    RocketSimError,
    TlsFailed,
    TopicNotExist,
)
from rocketsim_client.model import MessageQueue, QueueRange
from rocketsim_client.route import BrokerData, TopicRoute
from rocketsim_client.transport.name_servers import NameServers
from rocketsim_client.transport.remoting import connections as remoting_connections
from rocketsim_client.transport.remoting.connection import Connection as OneConnection
from rocketsim_client.transport.remoting.connection import Inbox
from rocketsim_client.transport.remoting.connections import Connections, Request
from rocketsim_client.transport.remoting.members import KnownMembers
from rocketsim_client.transport.remoting.wire import Wire
from testbed.polling import PATIENCE_S
from tests.support.remoting_peer import TOPIC, RemotingPeer, answer_to, readers, replaying
from tests.support.threads import result_in_a_thread

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


# --- several name servers ---------------------------------------------------------------------------------------------

Kind = type[RocketSimError]


def asked_of(*kinds: Kind | None) -> Callable[[], str]:
    """Returns the call to name servers of which each raises this error, or answers with its address."""
    answers = {f"{number}:1": kind for number, kind in enumerate(kinds)}

    def ask(address: str) -> str:
        kind = answers[address]
        if kind is not None:
            raise kind(f"{address} {kind.__name__}")
        return address

    return lambda: NameServers(list(answers)).ask(ask)


@pytest.mark.parametrize("kind", [BrokerUnavailable, CallTimeout, TlsFailed, BadAnswer, TopicNotExist])
def test_a_name_server_that_cannot_answer_leaves_the_question_to_the_next(kind: Kind) -> None:
    assert asked_of(kind, None)() == "1:1"


@pytest.mark.parametrize(
    ("kinds", "error", "says"),
    [
        ((CallTimeout, BrokerUnavailable), NameServerUnavailable, "0:1 CallTimeout; 1:1 BrokerUnavailable"),
        ((TlsFailed, CallTimeout), NameServerUnavailable, "0:1 TlsFailed; 1:1 CallTimeout"),
        ((TlsFailed, TlsFailed), TlsFailed, "^0:1 TlsFailed; 1:1 TlsFailed$"),
        ((TlsFailed,), TlsFailed, "^0:1 TlsFailed$"),
        ((TopicNotExist, CallTimeout), TopicNotExist, "0:1 TopicNotExist"),
        ((TopicNotExist, BadAnswer), BadAnswer, "1:1 BadAnswer"),
        ((TlsFailed, TopicNotExist), TlsFailed, "0:1 TlsFailed"),
    ],
)
def test_only_answers_say_that_a_topic_does_not_exist_and_each_failure_is_named(
    kinds: tuple[Kind, ...], error: Kind, says: str
) -> None:
    with pytest.raises(error, match=says) as raised:
        asked_of(*kinds)()
    assert type(raised.value) is error


def test_a_name_server_that_speaks_tls_does_not_keep_the_next_one_from_being_asked() -> None:
    with RemotingPeer(lambda *_: None, greeting=b"\x15\x03\x03\x00\x02\x02\x28") as wrong, replaying("5.5.0") as right:
        where = Connection.of([wrong.address, right.address], protocol="remoting", timeout_s=60.0)
        with Cluster(where) as cluster:
            assert cluster.queues(TOPIC)


# --- threads, and calls that interrupt others -------------------------------------------------------------------------


class StandingClock:
    """Replaces the module `time`.  The time stands still until a test moves it on."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Interrupting(str):
    """An address that makes a call when a dict or a set looks for it, as a signal handler or the garbage collector may
    do.  `at` says at which of the looks."""

    def __init__(self, _: str) -> None:
        self.call: Callable[[], object] = lambda: None
        self.at = 1
        self.looks = 0

    def __hash__(self) -> int:
        self.looks += 1
        if self.looks == self.at:
            self.call()
        return super().__hash__()


@pytest.mark.parametrize(("at", "is_open"), [(1, True), (1, False), (2, False), (3, False), (4, False)])
def test_a_client_may_be_closed_at_any_moment_by_the_thread_that_makes_a_call(at: int, is_open: bool) -> None:
    with RemotingPeer(lambda request, _: answer_to(request)) as peer:
        connections = Connections(Connection.of(peer.address, protocol="remoting"))
        request = Request(RequestCode.GET_BROKER_CONFIG, "a call", {})
        if is_open:
            connections.call(peer.address, request, PATIENCE_S)
        address = Interrupting(peer.address)
        address.call, address.at = connections.close, at
        found = result_in_a_thread(lambda: connections.call(address, request, PATIENCE_S))
        assert isinstance(found, ClientClosed)
        assert readers() == []


class BusyWire:
    """A wire of which reader and writer need the same lock, as over TLS.  A send is interrupted by `call`."""

    def __init__(self) -> None:
        self.call: Callable[[], object] = lambda: None
        self._busy = threading.Lock()
        self._has_ended = threading.Event()

    def receive_into(self, _: memoryview) -> int:
        assert self._has_ended.wait(PATIENCE_S)
        with self._busy:
            return 0

    def send(self, *_: object) -> None:
        with self._busy:
            self.call()

    def shut(self) -> None:
        self._has_ended.set()

    def close(self) -> None:
        pass


class Interrupted(set[int]):
    """The numbers of an inbox.  A look at them is interrupted by `call`."""

    def __init__(self) -> None:
        super().__init__()
        self.call: Callable[[], object] = lambda: None

    def __iter__(self) -> Any:
        self.call()
        return super().__iter__()

    def pop(self) -> int:
        self.call()
        return super().pop()


@pytest.mark.parametrize("during", ["a send", "the end of a call"])
def test_a_connection_may_be_ended_at_any_moment_by_the_thread_that_uses_it(during: str) -> None:
    wire = BusyWire()
    one = OneConnection("a:1", cast(Any, wire), None)

    def end() -> None:
        one.fail(ClientClosed("closed"))
        one.join()

    inbox = Inbox()
    inbox.waiting = waiting = Interrupted()
    one.numbers(inbox, 2)
    if during == "a send":
        wire.call = end
        result_in_a_thread(lambda: one.send([b"a request"], PATIENCE_S))
    else:
        waiting.call = end
        result_in_a_thread(lambda: one.forget(inbox))
    assert not one.is_open
    with pytest.raises(ClientClosed):
        one.numbers(Inbox(), 1)
    one.join()
    assert one.is_idle


def test_an_answer_that_comes_while_its_call_ends_is_no_error() -> None:
    """The reader removes the number of the answer while the call goes over its numbers."""

    class Answered(set[int]):
        def __iter__(self) -> Any:
            for number in super().__iter__():
                yield number
                self.discard(last)

    one = OneConnection("a:1", cast(Any, BusyWire()), None)
    inbox = Inbox()
    inbox.waiting = Answered()
    last = one.numbers(inbox, 3)[-1]
    one.forget(inbox)
    assert one.is_idle and not inbox.waiting
    one.fail(ClientClosed("closed"))
    one.join()


def test_a_slave_that_refuses_reads_is_noted_while_another_thread_asks_about_slaves() -> None:
    known = KnownMembers()
    known.learn([BrokerData("c", "a", {0: "h:1", 1: "h:2", 2: "h:3"})])
    slave = Interrupting("h:2")
    known.note_refused_reads(slave)
    slave.call, slave.at = lambda: known.note_refused_reads("h:3"), slave.looks + 1
    assert known.suggestion("h:1", 2) == 2
    assert known.suggestion("h:1", 2) == 0


def test_a_call_does_not_wait_longer_than_its_timeout_for_another_that_connects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connecting, may_end = threading.Event(), threading.Event()

    def silent(*_: object) -> Wire:
        connecting.set()
        assert may_end.wait(PATIENCE_S)
        raise TimeoutError

    monkeypatch.setattr(Wire, "to", silent)
    connections = Connections(Connection.of("a:1", protocol="remoting"))
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(connections.to, "a:1", PATIENCE_S)
        assert connecting.wait(PATIENCE_S)
        try:
            with pytest.raises(CallTimeout, match=r"a:1: no connection within 0\.01 s"):
                connections.to("a:1", 0.01)
            assert not first.done()
        finally:
            may_end.set()
        assert isinstance(first.exception(PATIENCE_S), CallTimeout)
    connections.close()


def test_connecting_gets_the_time_that_is_left_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here two of the five seconds pass while the certificates are read."""
    clock = StandingClock()
    lefts: list[float] = []

    def read(*_: object) -> None:
        clock.now_s += 2.0

    def silent(_: str, timeout_s: float, __: object) -> Wire:
        lefts.append(timeout_s)
        raise TimeoutError

    monkeypatch.setattr(remoting_connections, "time", clock)
    monkeypatch.setattr(remoting_connections, "tls_context", read)
    monkeypatch.setattr(Wire, "to", silent)
    connections = Connections(Connection.of("a:1", protocol="remoting"))
    with pytest.raises(CallTimeout, match=r"no connection within 5 s"):
        connections.to("a:1", 5.0)
    assert lefts == [3.0]
    connections.close()
