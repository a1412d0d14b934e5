"""`protocol=auto` finds out which protocol the servers speak.  It does so once, and within the call's timeout."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketsim_client import Cluster, Connection, addresses
from rocketsim_client.errors import ClientClosed, InvalidParameter, NameServerUnavailable
from rocketsim_client.retry import is_worth_asking_again
from rocketsim_client.transport import opening
from rocketsim_client.transport.opening import LazyTransport, with_detected_protocol
from rocketsim_client.transport.server_protocol import ServerProtocol
from testbed.polling import PATIENCE_S
from testbed.real_rocketmq import free_port
from tests.support.broker_thread import broker_thread
from tests.support.fake_broker import FakeCluster
from tests.support.remoting_peer import TOPIC, RemotingPeer, replaying
from tests.support.tcp_proxy import TcpProxy
from tests.support.threads import result_in_a_thread
from tests.support.tls import CA, DATA, keys_of

TIMEOUT_S = 2.0
LIMIT_S = 1.6 * TIMEOUT_S  # leaves room for a busy machine, but not for a second search for the protocol
TRIES = 4  # a busy machine may stop this process for a second, but not in each of several tries
TLS: dict[str, Any] = {"tls": True, "tls_ca": CA}
WEB_SERVER = b"HTTP/1.1 400 Bad Request"


def patient(*addresses: str, **settings: Any) -> Connection:
    return Connection.of(addresses, timeout_s=PATIENCE_S, **settings)


@contextmanager
def silent_servers(count: int) -> Iterator[list[str]]:
    """Yields the addresses of servers that accept connections, and neither read nor send."""
    with ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        yield [f"127.0.0.1:{one.getsockname()[1]}" for one in listening]


class StandingClock:
    """Replaces the module `time`.  The time stands still until a test moves it on."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    made = StandingClock()
    monkeypatch.setattr(opening, "time", made)
    return made


# --- how long it takes ------------------------------------------------------------------------------------------------


def seconds_of_two_calls(addresses: list[str], options: dict[str, Any]) -> list[float]:
    took = []
    with Cluster(Connection.of(addresses, timeout_s=TIMEOUT_S, **options)) as cluster:
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(NameServerUnavailable):
                cluster.topics()
            took.append(time.monotonic() - began)
    return took


@pytest.mark.parametrize(("count", "options"), [(1, {}), (4, {}), (4, TLS)], ids=["one", "four", "four with TLS"])
def test_a_call_on_silent_servers_ends_within_its_timeout(count: int, options: dict[str, Any]) -> None:
    """The first call looks for the protocol, too.  The second one follows too soon to look for it again."""
    with silent_servers(count) as addresses:
        assert any(max(seconds_of_two_calls(addresses, options)) < LIMIT_S for _ in range(TRIES))


def test_a_silent_server_leaves_time_for_the_next_one() -> None:
    with silent_servers(1) as silent, replaying("5.5.0") as peer:
        auto = Connection.of([*silent, peer.address], timeout_s=TIMEOUT_S)

        def is_found_in_time() -> bool:
            began = time.monotonic()
            found = with_detected_protocol(auto).protocol
            return found == "remoting" and time.monotonic() - began < LIMIT_S

        assert any(is_found_in_time() for _ in range(TRIES))


def test_each_server_gets_a_share_of_the_time_but_at_least_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first server may be far away.  A server that does not listen takes no time."""
    shares: list[float] = []

    def nobody(address: str, context: object, share_s: float) -> ServerProtocol:
        shares.append(round(share_s, 1))
        return ServerProtocol.NONE

    monkeypatch.setattr(opening, "protocol_at", nobody)
    for timeout_s, expected in ((6.0, [2.0, 3.0, 6.0]), (2.0, [1.0, 1.0, 2.0]), (0.5, [0.5, 0.5, 0.5])):
        shares.clear()
        assert opening.detected(Connection.of(["a:1", "b:1", "c:1"]), timeout_s).protocol == "auto"
        assert shares == expected


def test_a_live_server_after_many_silent_ones_is_found_after_some_attempts(
    monkeypatch: pytest.MonkeyPatch, clock: StandingClock
) -> None:
    """An attempt has time for one silent server, and the next attempt goes on where it has stopped."""
    servers = ["a:1", "b:1", "c:1", "d:1", "e:1"]
    asked: list[str] = []

    def silent_but_the_last(address: str, _: object, share_s: float) -> ServerProtocol:
        if share_s >= opening.LEAST_SHARE_S:
            asked.append(address)
            if address == servers[-1]:
                return ServerProtocol.REMOTING
        clock.now_s += share_s
        return ServerProtocol.NONE

    monkeypatch.setattr(opening, "protocol_at", silent_but_the_last)
    transport = LazyTransport(Connection.of(servers, timeout_s=TIMEOUT_S))
    for _ in servers:
        assert transport.connection.protocol == "auto"
        transport.get()
        clock.now_s += 2 * opening.DETECTION_PAUSE_S
    transport.close()
    assert asked == servers
    assert transport.connection.protocol == "remoting"


def test_a_name_of_which_one_address_is_silent_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one address does not answer and a later one refuses, the error is the timeout and not the refusal."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)) for port in (1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    class FirstIsSilent(socket.socket):
        def connect(self, where: Any) -> None:
            raise TimeoutError("timed out") if where[1] == 1 else ConnectionRefusedError("refused")

    monkeypatch.setattr(socket, "socket", FirstIsSilent)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            addresses.connected("name", 1, 60)
        found.reverse()
    del found[:1]  # the silent one
    with pytest.raises(ConnectionRefusedError):
        addresses.connected("name", 1, 60)


def test_each_address_of_a_name_gets_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with silent_servers(2) as servers:
        ports = [int(address.rpartition(":")[2]) for address in servers]
        closed = free_port()
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)) for port in (closed, *ports)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        shares: list[float | None] = []

        class Noting(socket.socket):
            def connect(self, where: Any) -> None:
                shares.append(self.gettimeout())
                super().connect(where)

        monkeypatch.setattr(socket, "socket", Noting)
        with addresses.connected("name", 1, 60) as made:
            assert made.getpeername() == ("127.0.0.1", ports[0])
            assert shares == [pytest.approx(20, abs=1), pytest.approx(30, abs=1)]
            assert made.gettimeout() == pytest.approx(60, abs=1), "what follows has all the time that is left"
        del found[1:]
        with pytest.raises(ConnectionRefusedError):
            addresses.connected("name", 1, 60)


def test_what_was_seen_once_is_forgotten_when_the_protocol_is_known(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first name server spoke TLS at that time, and is gone now.  The second one answers."""
    gone = f"127.0.0.1:{free_port()}"
    seen = {gone: ServerProtocol.TLS, cluster.address: ServerProtocol.GRPC}
    monkeypatch.setattr(opening, "protocol_at", lambda address, *_: seen[address])
    with Cluster(patient(gone, cluster.address)) as client:
        assert client.topics() == ["T"]


# --- how often --------------------------------------------------------------------------------------------------------


def test_a_client_looks_for_the_protocol_of_rocketsims_servers_once(cluster: FakeCluster) -> None:
    """A client opens one connection to look for the protocol, and one for all its calls."""
    with TcpProxy(cluster.address) as name_server:
        for clients in (1, 2):
            with Cluster(patient(name_server.address)) as client:
                for _ in range(5):
                    assert client.topics() == ["T"]
                assert client.protocol == "grpc"
            assert name_server.accepted == 2 * clients


def test_a_client_looks_for_the_protocol_of_rocketmqs_servers_once() -> None:
    with replaying("5.5.0") as peer:
        for clients in (1, 2):
            with Cluster(patient(peer.address)) as client:
                for _ in range(5):
                    assert client.queues(TOPIC, fresh=True)
                assert client.protocol == "remoting"
            assert peer.accepted == 2 * clients


def test_a_client_looks_for_the_protocol_once_at_each_name_server() -> None:
    with RemotingPeer(lambda *_: None, greeting=WEB_SERVER) as wrong, replaying("5.5.0") as right:
        with Cluster(patient(wrong.address, right.address)) as client:
            for _ in range(5):
                assert client.queues(TOPIC, fresh=True)
                assert (wrong.accepted, right.accepted) == (2, 2)


# --- after a start without an answer ----------------------------------------------------------------------------------


def test_a_change_to_the_remoting_protocol_ends_calls_under_way_with_an_error_that_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, clock: StandingClock
) -> None:
    """The client is not closed, so ClientClosed would be wrong."""
    speaks = [ServerProtocol.NONE]
    monkeypatch.setattr(opening, "protocol_at", lambda *_: speaks[-1])
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as threads:
        silent.settimeout(PATIENCE_S)
        with Cluster(patient(f"127.0.0.1:{silent.getsockname()[1]}")) as client:
            call = threads.submit(client.topics)
            accepted, _ = silent.accept()  # the call is under way
            with accepted:
                speaks.append(ServerProtocol.REMOTING)
                clock.now_s += opening.DETECTION_PAUSE_S
                assert client.protocol == "remoting"
                error = call.exception(PATIENCE_S)
    assert isinstance(error, NameServerUnavailable) and is_worth_asking_again(error)
    assert "the servers speak remoting" in str(error)


@pytest.mark.parametrize("named", ["namespace", "namespace_v2"])
def test_a_namespace_is_refused_also_if_rocketsims_servers_are_found_late(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, clock: StandingClock, named: str
) -> None:
    """Before they are found, a call must not reach them either, because it would name a topic without the namespace."""
    speaks = [ServerProtocol.NONE]
    monkeypatch.setattr(opening, "protocol_at", lambda *_: speaks[-1])
    with Cluster(patient(cluster.address, **{named: "one"})) as client:
        with pytest.raises(NameServerUnavailable):
            client.topics()
        speaks.append(ServerProtocol.GRPC)
        clock.now_s += opening.DETECTION_PAUSE_S
        for _ in range(2):
            with pytest.raises(InvalidParameter, match="RocketSim's own servers have no namespaces"):
                client.topics()


def test_a_client_may_be_closed_by_a_signal_handler_while_it_looks_for_the_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler runs in the thread that holds the lock."""

    def interrupted(*_: object) -> ServerProtocol:
        client.close()
        return ServerProtocol.REMOTING

    monkeypatch.setattr(opening, "protocol_at", interrupted)
    client = Cluster(patient("a:1"))
    assert isinstance(result_in_a_thread(client.topics), ClientClosed)


# --- over TLS ---------------------------------------------------------------------------------------------------------


def test_over_tls_a_broker_of_rocketsim_speaks_grpc(tmp_path: Path) -> None:
    """A client uses gRPC even if it has found no protocol, but `with_detected_protocol` then returns `auto`."""
    with broker_thread(tmp_path / "store", **keys_of()) as broker:
        auto = Connection.of(brokers=broker.brokers, timeout_s=PATIENCE_S, **TLS)
        assert with_detected_protocol(auto).protocol == "grpc"


def test_over_tls_the_handshake_alone_says_that_a_server_speaks_grpc() -> None:
    """The server agrees on h2, and is silent after the handshake."""
    with RemotingPeer(lambda *_: None, tls=DATA, alpn=["h2"]) as peer:
        assert with_detected_protocol(patient(peer.address, **TLS)).protocol == "grpc"
        assert (peer.accepted, peer.requests) == (1, [])


def test_over_tls_a_server_of_rocketmq_speaks_remoting() -> None:
    with replaying("5.5.0", tls=DATA) as peer:
        assert with_detected_protocol(patient(peer.address, **TLS)).protocol == "remoting"
        assert (peer.accepted, len(peer.requests)) == (1, 1)
        with Cluster(patient(peer.address, **TLS)) as client:
            assert client.queues(TOPIC) and client.protocol == "remoting"
