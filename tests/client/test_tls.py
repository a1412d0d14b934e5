"""The client over TLS, and its errors when it cannot connect."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rocketsim_proto import broker_pb2 as pb

from rocketsim_client import (
    Admin,
    Cluster,
    InvalidParameter,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    QueueRange,
    SendFailed,
    SendStatus,
    TlsFailed,
    Unreachable,
)
from rocketsim_client.consuming.consumer import Consumer
from rocketsim_client.tls import Tls, read, why_not
from rocketsim_client.transport.own.reads import GrpcReads
from testbed.polling import PROCESS_PATIENCE_S, wait_until
from testbed.processes import ROOT, Processes
from tests.client.test_fork import in_child
from tests.support.broker_thread import BrokerThread, broker_thread
from tests.support.tls import CA, DATA, OTHER_CA, SERVER_TLS, keys_of, replace

PATIENT: dict[str, Any] = {"timeout_s": 60.0}
TRUSTED: dict[str, Any] = {"tls": True, "tls_ca": CA} | PATIENT
OWN: dict[str, Any] = {"tls_cert": DATA / "client.pem", "tls_key": DATA / "client.key"}
QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with broker_thread(tmp_path / "store", **keys_of()) as made:
        made.make_topic("T")
        yield made


@pytest.fixture
def mutual(tmp_path: Path) -> Iterator[BrokerThread]:
    with broker_thread(tmp_path / "store", tls_client_auth="listenPort", **keys_of()) as made:
        made.make_topic("T")
        yield made


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketsim_client.tls.PROBE_S", 60.0)


def address_of(broker: BrokerThread) -> str:
    return broker.brokers["broker-a"][0]


def refusal(broker: BrokerThread, **options: Any) -> str:
    """Returns the TLS error that a reader gets, and checks that the error has the server's address."""
    options = PATIENT | options
    with PullConsumer(group="g", brokers=broker.brokers, **options) as consumer, pytest.raises(TlsFailed) as refused:
        consumer.message_queues("T")
    assert refused.value.address == address_of(broker) and not isinstance(refused.value, Unreachable)
    return str(refused.value)


# --- it works ---------------------------------------------------------------------------------------------------------


def test_every_kind_of_client_speaks_tls(mutual: BrokerThread) -> None:
    options = TRUSTED | OWN
    with Producer(brokers=mutual.brokers, **options) as producer:
        assert producer.send(Message("T", b"hello")).send_status is SendStatus.SEND_OK
    with PullConsumer(group="g", brokers=mutual.brokers, **options) as consumer:
        assert [message.body for message in consumer.pull(QUEUE, 0).messages] == [b"hello"]
    with Consumer("", "people", "T", brokers=mutual.brokers, **options) as group:
        message = next(group)
        assert message.body == b"hello"
        group.ack(message)
    with Admin(address_of(mutual), **options) as admin:
        assert admin.ha_status(broker_addr=address_of(mutual))[0].is_master


def test_ranges_come_over_the_unix_socket_or_over_grpc(broker: BrokerThread) -> None:
    with Producer(brokers=broker.brokers, **TRUSTED) as producer:
        producer.send(Message("T", b"hello"))
    for streams in (True, False):
        with Cluster("", brokers=broker.brokers, range_streams=streams, **TRUSTED) as cluster:
            frames = cluster.pull_range("broker-a", [QueueRange("T", 0, 0, 1)], group="g")
            assert sum(segment.count for frame in frames for segment in frame.segments) == 1
            assert isinstance(cluster.transport.reads, GrpcReads)
            used = cluster.transport.reads.streams
            assert (used is not None and used.offers.usable(address_of(broker)) is not None) is streams


def test_no_socket_is_there_where_clients_need_a_certificate(mutual: BrokerThread) -> None:
    """A plain socket asks no client for a certificate."""
    assert mutual.node.range_streams.offer() is None
    with Producer(brokers=mutual.brokers, **TRUSTED, **OWN) as producer:
        producer.send(Message("T", b"hello"))
    with Cluster("", brokers=mutual.brokers, **TRUSTED, **OWN) as cluster:
        frames = cluster.pull_range("broker-a", [QueueRange("T", 0, 0, 1)], group="g")
        assert sum(segment.count for frame in frames for segment in frame.segments) == 1


def test_an_offered_tcp_port_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client ignores the offered port, because data on a plain socket could be read on its way."""
    with Cluster("127.0.0.1:1", **TRUSTED) as cluster:
        assert isinstance(cluster.transport.reads, GrpcReads)
        streams = cluster.transport.reads.streams
        streams.offers.offered("127.0.0.1:1", pb.StreamOffer(instance=b"i", port=1))
        monkeypatch.setattr(streams.sockets, "opened", None)
        assert streams.frames("127.0.0.1:1", pb.PullRangeRequest(), time.monotonic() + 60, 60.0) is None


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_opens_channels_of_its_own(tmp_path: Path) -> None:
    with broker_process(tmp_path) as address, Producer(brokers={"broker-a": {0: address}}, **TRUSTED) as producer:
        producer.send(Message("T", b"parent"))
        in_child(lambda: producer.send(Message("T", b"child")))
        producer.send(Message("T", b"parent again"))


@contextmanager
def broker_process(folder: Path) -> Iterator[str]:
    """The broker runs in a process of its own, because a gRPC server does not survive a fork."""
    with Processes(folder) as processes:
        broker = processes.start_broker("broker-a", 0, **SERVER_TLS)
        with Admin(broker.address, **TRUSTED) as admin:
            wait_until(lambda: "waits" not in admin.ha_status(broker_addr=broker.address)[0].state, "it takes writes")
        yield broker.address


def test_certificates_are_read_anew_when_a_server_does_not_take_the_old_ones(
    mutual: BrokerThread, tmp_path: Path
) -> None:
    """A client that runs for months gets its new files without a restart."""
    cert, key = tmp_path / "own.pem", tmp_path / "own.key"
    shutil.copy(DATA / "stranger.pem", cert)
    shutil.copy(DATA / "stranger.key", key)
    options = TRUSTED | {"tls_cert": cert, "tls_key": key}
    with PullConsumer(group="g", brokers=mutual.brokers, **options) as consumer:
        with pytest.raises(TlsFailed):
            consumer.message_queues("T")
        replace("client", cert, key)
        with pytest.raises(Unreachable, match="the files have changed"):
            consumer.message_queues("T")
        assert consumer.message_queues("T") == [QUEUE]


# --- what is said when it does not ------------------------------------------------------------------------------------


def test_plaintext_against_tls_names_the_option(broker: BrokerThread) -> None:
    assert "the server speaks TLS, and this client plaintext: set the option tls, and tlsCa" in refusal(broker)


def test_another_ca_is_named(broker: BrokerThread) -> None:
    said = refusal(broker, tls=True, tls_ca=OTHER_CA)
    assert "certificate is not valid for 127.0.0.1: unable to get local issuer certificate" in said
    assert f"(checked with tlsCa={OTHER_CA})" in said
    assert "the public CAs, since tlsCa is not given" in refusal(broker, tls=True)


def test_a_certificate_for_another_host_is_named(tmp_path: Path) -> None:
    with broker_thread(tmp_path, bind_address="127.0.0.3", **keys_of()) as broker:
        assert "is not valid for 127.0.0.3: IP address mismatch" in refusal(broker, **TRUSTED)


def test_a_server_that_asks_for_a_certificate_is_named(mutual: BrokerThread) -> None:
    assert "takes only clients with a certificate of a CA that it knows: set tlsCert and tlsKey" in refusal(
        mutual, **TRUSTED
    )
    own = {"tls_cert": DATA / "stranger.pem", "tls_key": DATA / "stranger.key"}
    assert f"of a CA that it knows: tlsCert={DATA / 'stranger.pem'} is not one" in refusal(mutual, **TRUSTED, **own)


def test_tls_against_plaintext_names_the_option(tmp_path: Path) -> None:
    with broker_thread(tmp_path) as broker:
        assert "the server speaks plaintext, and this client TLS: leave out the option tls" in refusal(
            broker, **TRUSTED
        )


def test_a_send_names_the_tls_fault_too(broker: BrokerThread, tmp_path: Path) -> None:
    """The error comes after all attempts, because the operator may mend the broker meanwhile.  With a spool the message
    is kept.
    """
    with Producer(brokers=broker.brokers, **PATIENT) as producer, pytest.raises(SendFailed) as failed:
        producer.send(Message("T", b"hello"), queue=QUEUE)
    assert "the server speaks TLS" in str(failed.value) and not failed.value.maybe_stored
    with Producer(brokers=broker.brokers, spool=tmp_path / "spool", **PATIENT) as producer:
        assert producer.send(Message("T", b"hello"), queue=QUEUE).send_status is SendStatus.SPOOLED


def test_a_name_server_that_speaks_tls_is_no_silent_one(broker: BrokerThread) -> None:
    """A broker can play the name server here, because no call gets past the TLS handshake."""
    with Cluster(address_of(broker), **PATIENT) as cluster, pytest.raises(TlsFailed, match="set the option tls"):
        cluster.members()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tls_ca": Path("/nowhere.pem")}, "tlsCa=/nowhere.pem: cannot be read: No such file or directory"),
        ({"tls_cert": CA, "tls_key": Path("/nowhere.key")}, "tlsKey=/nowhere.key: cannot be read: No such file"),
        ({"tls_cert": DATA / "client.pem", "tls_key": DATA / "server.key"}, "its own key without a passphrase"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(broker: BrokerThread, options: dict[str, Any], said: str) -> None:
    assert said in refusal(broker, tls=True, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tls_ca": CA}, "tls_ca: given, but TLS is off"),
        ({"tls": True, "tls_cert": CA}, "a client's certificate needs both"),
        ({"tls": True, "tls_key": CA}, "a client's certificate needs both"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        Cluster("127.0.0.1:9876", **options)


def test_a_server_that_is_not_there_is_no_matter_of_tls() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        tls = Tls(str(CA))
        assert why_not(address, tls, read(tls, address)[1]) == why_not(address, None, None) == ""
        with Cluster("", brokers={"broker-a": {0: address}}, **TRUSTED) as cluster, pytest.raises(Unreachable):
            cluster.bounds("T")


def test_keys_are_in_no_log_and_no_error(broker: BrokerThread) -> None:
    """Not even gRPC's own log lines contain a key."""
    code = f"""
import logging
logging.basicConfig(level=logging.DEBUG)
from rocketsim_client import Producer, Message, TlsFailed
for ca in {str(CA)!r}, {str(OTHER_CA)!r}:
    files = dict(tls=True, tls_ca=ca, tls_cert={str(OWN["tls_cert"])!r}, tls_key={str(OWN["tls_key"])!r})
    with Producer(brokers={broker.brokers!r}, timeout_s=60, **files) as producer:
        try:
            reads = producer.cluster.transport.reads
            print(producer.send(Message("T", b"hello")), vars(producer), vars(reads), vars(reads.channels))
        except TlsFailed as error:
            print(error)
"""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}", "GRPC_VERBOSITY": "INFO"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=PROCESS_PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert "SEND_OK" in done.stdout and "not valid for 127.0.0.1" in done.stdout
    secret = (DATA / "client.key").read_text().splitlines()[1][:20]
    assert secret not in done.stdout + done.stderr and "PRIVATE KEY" not in done.stdout + done.stderr
