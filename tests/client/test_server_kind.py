"""If an address belongs to another kind of server, the error says to which one, and which address to give."""

import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc
import pytest

from rocketsim_client import Cluster, PullConsumer, RocketSimError
from rocketsim_client.connection import Connection, Where
from rocketsim_client.errors import BrokerRefused, NameServerUnavailable, TlsFailed
from rocketsim_client.transport.server_protocol import ServerProtocol, protocol_at
from tests.support.fake_broker import FakeCluster
from tests.support.tls import CA, DATA


class RocketMQ:
    """As much of a RocketMQ server as a stranger sees: it is silent until asked, answers in its own framing, closes the
    connection when it reads a frame that is too large, and takes TLS, too (tls.server.mode=permissive)."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(DATA / "server.pem", DATA / "server.key")
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(60)
        try:
            with connection:
                if connection.recv(1, socket.MSG_PEEK) == b"\x16":
                    connection = self._tls.wrap_socket(connection, server_side=True)
                with connection, connection.makefile("rb") as reader:
                    while (size := int.from_bytes(reader.read(4), "big")) and size <= 16 << 20:
                        frame = reader.read(size)
                        asked = json.loads(frame[4 : 4 + int.from_bytes(frame[1:4], "big")])
                        answer = json.dumps({"code": 17, "flag": 1, "opaque": asked["opaque"]}).encode()
                        connection.sendall(
                            (4 + len(answer)).to_bytes(4, "big") + len(answer).to_bytes(4, "big") + answer
                        )
        except (OSError, ValueError):
            pass


@pytest.fixture
def rocketmq(monkeypatch: pytest.MonkeyPatch) -> Iterator[RocketMQ]:
    monkeypatch.setattr("rocketsim_client.transport.own.server_kind.PROBE_S", 60.0)
    server = RocketMQ()
    yield server
    server.close()


def refusal(address: Where, **options: object) -> RocketSimError:
    with (
        PullConsumer(address, group="g", timeout_s=60, **options) as consumer,  # type: ignore[arg-type]
        pytest.raises(RocketSimError) as refused,
    ):
        consumer.message_queues("T")
    return refused.value


@pytest.mark.parametrize("options", [{}, {"tls": True, "tls_ca": CA}], ids=["plaintext", "tls"])
def test_a_name_server_of_rocketmq_is_called_so_and_not_one_with_tls(
    rocketmq: RocketMQ, options: dict[str, object]
) -> None:
    assert protocol_at(rocketmq.address, None, 60.0) is ServerProtocol.REMOTING
    error = refusal(Connection.of(rocketmq.address, protocol="grpc", timeout_s=60.0, **options))  # type: ignore[arg-type]
    assert isinstance(error, BrokerRefused) and not isinstance(error, TlsFailed | NameServerUnavailable)
    assert "name server or broker of RocketMQ itself" in str(error) and rocketmq.address in str(error)


def test_a_broker_and_a_name_server_are_told_apart(cluster: FakeCluster) -> None:
    (broker, *_) = cluster.brokers.values()
    assert protocol_at(cluster.address, None, 60.0) is ServerProtocol.GRPC
    error = refusal(broker.address)
    assert isinstance(error, BrokerRefused) and error.code == 3
    assert "this is a broker's port (listenPort), and a name server was asked for" in str(error)
    with (
        Cluster("", brokers={"broker-a": {0: cluster.address}}, timeout_s=60) as static,
        pytest.raises(RocketSimError, match="this is a name server, and a broker was asked for"),
    ):
        static.bounds("T")


@contextmanager
def server_of(method: str) -> Iterator[str]:
    """Runs a server that has one call and no other; yields its address."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            if call.method != method:
                return None
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


@pytest.mark.parametrize("protocol", ["auto", "grpc", "remoting"])
def test_a_port_for_rocketmq_5s_clients_is_called_so_and_what_to_give_instead(protocol: str) -> None:
    """A broker of RocketSim has such a port, and so has a proxy of RocketMQ."""
    with server_of("/apache.rocketmq.v2.MessagingService/QueryRoute") as address:
        said = str(refusal(Connection.of(address, protocol=protocol, timeout_s=60.0)))
    assert "the port for RocketMQ 5's clients, which is the grpcServerPort of a RocketSim broker" in said
    assert "or the gRPC port of a RocketMQ proxy" in said
    assert re.search("Give .* RocketMQ's name server instead .*9876.* or the remoting port of the proxy", said)


def test_another_server_that_speaks_grpc_is_called_no_server_of_rocketsim() -> None:
    with server_of("/another.Service/Call") as address:
        assert "not a RocketSim server" in str(refusal(address))
