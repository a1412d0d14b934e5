"""TLS of brokers and name servers: on which ports, with which clients, and with which certificate."""

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import grpc
import pytest
from rocketsim_proto import admin_pb2, namesrv_pb2, pem
from rocketsim_proto.admin_pb2_grpc import AdminStub
from rocketsim_proto.namesrv_pb2_grpc import NameServerStub

from broker_service.config.broker_config import BrokerConfig
from broker_service.config.loading import load_broker_config
from broker_service.config.namesrv_config import NamesrvConfig
from broker_service.errors import ConfigError
from broker_service.modes import BrokerRole, TlsMode
from broker_service.namesrv.server import run_namesrv
from broker_service.node.app import run_broker
from broker_service.put_result import PutStatus
from broker_service.runtime.certificates import Certificates
from broker_service.runtime.server import Network
from testbed.polling import until, wait_until
from tests.support.brokers import put, running, small_config
from tests.support.tls import CA, DATA, OTHER_CA, certificate_of, channel, keys_of, replace

SLAVE: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}


async def answers(address: str, ca: Path | None = CA, name: str = "") -> bool:
    async with channel(address, ca, name) as made:
        try:
            await AdminStub(made).HaStatus(admin_pb2.HaStatusRequest(), timeout=60)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return False
    return True


@pytest.fixture
def files(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Yields the paths of a certificate, key and CA file that a test may replace."""
    for suffix in ("pem", "key"):
        shutil.copy(DATA / f"server.{suffix}", tmp_path / f"server.{suffix}")
    yield {"tls_cert": tmp_path / "server.pem", "tls_key": tmp_path / "server.key", "tls_ca": CA}


@contextlib.asynccontextmanager
async def tls_name_server(folder: Path, **keys: Any) -> AsyncIterator[str]:
    shutdown = asyncio.Event()
    config = NamesrvConfig(listen_port=0, address_file=folder / "names", **keys)
    task = asyncio.create_task(run_namesrv(config, shutdown))
    await until((folder / "names").exists, "the name server's address")
    try:
        yield (folder / "names").read_text().strip()
    finally:
        shutdown.set()
        await task


# --- who may connect --------------------------------------------------------------------------------------------------


async def test_with_a_certificate_the_port_takes_tls_only(tmp_path: Path) -> None:
    async with running(tmp_path, **keys_of()) as node:
        assert await answers(node.address)
        assert await answers(node.address, name="stranger")  # nobody asks for it
        assert not await answers(node.address, ca=None)
        assert not await answers(node.address, ca=OTHER_CA)


async def test_tls_client_auth_asks_for_a_certificate_of_the_ca(tmp_path: Path) -> None:
    async with running(tmp_path, tls_client_auth="listenPort", **keys_of()) as node:
        assert await answers(node.address, name="client")
        assert not await answers(node.address)
        assert not await answers(node.address, name="stranger")
        # no plain socket is offered, because nobody is asked for a certificate there
        assert node.range_streams.offer() is None


async def test_a_pair_and_its_name_server_speak_tls_to_each_other(tmp_path: Path) -> None:
    mutual = keys_of() | {"tls_client_auth": "listenPort"}
    async with (
        tls_name_server(tmp_path, **mutual) as names,
        running(
            tmp_path / "m", namesrv_addr=names, broker_role=BrokerRole.SYNC_MASTER, slave_timeout=60_000, **mutual
        ) as master,
        running(tmp_path / "s", namesrv_addr=names, **SLAVE, **mutual) as slave,
    ):
        await until(lambda: bool(master.status.slaves()) and master.status.slaves()[0].in_sync, "the slave is in sync")
        assert await put(master, "T", b"hello") is PutStatus.PUT_OK
        async with channel(names, name="client") as made:
            found = await NameServerStub(made).ClusterList(namesrv_pb2.ClusterListRequest(), timeout=60)
        assert dict(found.brokers[0].broker_addrs) == {0: master.address, 1: slave.address}
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
        assert await put(slave, "T", b"again") is PutStatus.PUT_OK


async def test_a_broker_whose_name_server_has_another_ca_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        tls_name_server(tmp_path, **keys_of()) as names,
        running(tmp_path / "b", writable=False, namesrv_addr=names, **keys_of() | {"tls_ca": OTHER_CA}),
    ):
        await until(lambda: "is lost" in caplog.text, "it does not get through")
        assert f"name server {names} is lost" in caplog.text and "CERTIFICATE_VERIFY_FAILED" in caplog.text


async def test_metrics_are_served_over_https(tmp_path: Path, files: dict[str, Path]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    trusting = ssl.create_default_context(cafile=CA)
    trusting.load_cert_chain(DATA / "client.pem", DATA / "client.key")

    def page(scheme: str = "https", context: ssl.SSLContext | None = None) -> str:
        with urlopen(f"{scheme}://127.0.0.1:{port}/metrics", timeout=60, context=context) as answer:
            return str(answer.read().decode())

    async with running(tmp_path, metrics_port=port, tls_client_auth="metricsPort", **files):
        with socket.create_connection(("127.0.0.1", port)):  # an idle connection delays no other one
            assert "rocketsim_master 1.0" in await asyncio.to_thread(page, context=trusting)
        with pytest.raises((URLError, OSError)):
            await asyncio.to_thread(page, "http")
        with pytest.raises((URLError, OSError)):
            await asyncio.to_thread(page, context=ssl.create_default_context(cafile=CA))
        replace("renewed", files["tls_cert"], files["tls_key"])

        def is_renewed() -> bool:
            with (
                socket.create_connection(("127.0.0.1", port), 60) as plain,
                trusting.wrap_socket(plain, server_hostname="127.0.0.1") as made,
            ):
                return "renewed" in str(made.getpeercert())

        await asyncio.to_thread(wait_until, is_renewed, "the renewed certificate")
    async with running(tmp_path, metrics_port=port, tls_client_auth="listenPort", **files):
        nobody = ssl.create_default_context(cafile=CA)
        assert "rocketsim_master 1.0" in await asyncio.to_thread(page, context=nobody)


async def test_the_tcp_port_for_ranges_stays_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, pull_range_stream_port=1, **keys_of()) as node:
        offer = node.range_streams.offer()
        assert offer is not None and offer.unix_name and not offer.port
    assert "pullRangeStreamPort=1 is not opened" in caplog.text


# --- files that change ------------------------------------------------------------------------------------------------


async def test_a_certificate_is_replaced_while_the_broker_runs(
    tmp_path: Path, files: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path / "store", **files) as node, channel(node.address) as before:
        await AdminStub(before).HaStatus(admin_pb2.HaStatusRequest(), timeout=60)
        assert await asyncio.to_thread(certificate_of, node.address) == "test server"
        replace("renewed", files["tls_cert"], files["tls_key"])
        assert await asyncio.to_thread(certificate_of, node.address) == "test renewed"
        await AdminStub(before).HaStatus(admin_pb2.HaStatusRequest(), timeout=60)
        shutil.copy(DATA / "client.key", files["tls_key"])  # the key belongs to another certificate
        caplog.clear()
        for _ in range(2):
            assert await asyncio.to_thread(certificate_of, node.address) == "test renewed"
        said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert len(said) == 1 and "read before" in said[0] and f"tlsKey={files['tls_key']}" in said[0]
        caplog.clear()
        replace("ed25519", files["tls_cert"], files["tls_key"])  # gRPC would accept no connection with an Ed25519 key
        assert await asyncio.to_thread(certificate_of, node.address) == "test renewed"
        assert "read before" in caplog.text and "of a kind that gRPC does not take" in caplog.text
        replace("server", files["tls_cert"], files["tls_key"])
        assert await asyncio.to_thread(certificate_of, node.address) == "test server"


async def test_the_cas_that_clients_are_checked_with_are_replaced_while_the_broker_runs(
    tmp_path: Path, files: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """The CAs are replaced on every port that asks for a certificate.  CAs that cannot be used change nothing."""
    cas = files["tls_ca"] = tmp_path / "cas.pem"
    shutil.copy(CA, cas)
    keys = {"tls_client_auth": "listenPort;grpcServerPort", "grpc_server_tls_mode": TlsMode.ENFORCING}
    async with running(tmp_path / "store", grpc_server_port=0, **keys, **files) as node:
        await until(lambda: bool(node.v2_port.address), "the port for RocketMQ 5's clients is open")

        async def taken(name: str) -> list[bool]:
            """Returns whether each of the two ports accepts the certificate; the second port answers an accepted caller
            that it does not know the call.
            """
            async with channel(node.v2_port.address, CA, name) as made:
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await AdminStub(made).HaStatus(admin_pb2.HaStatusRequest(), timeout=60)
            return [await answers(node.address, name=name), error.value.code() is grpc.StatusCode.UNIMPLEMENTED]

        assert await taken("client") == [True, True] and await taken("stranger") == [False, False]
        shutil.copy(OTHER_CA, cas)
        assert await taken("client") == [False, False] and await taken("stranger") == [True, True]
        cas.write_text("no PEM")
        assert await taken("client") == [False, False] and await taken("stranger") == [True, True]
        assert f"tlsCa={cas}" in caplog.text and "read before" in caplog.text
        # the file can have both CAs while one is being replaced
        cas.write_bytes(CA.read_bytes() + OTHER_CA.read_bytes())
        assert await taken("client") == [True, True] and await taken("stranger") == [True, True]


def test_a_connection_uses_the_files_of_its_beginning(files: dict[str, Path]) -> None:
    """A connection keeps the certificate that it began with, and brokers use the new one when they connect again."""
    certificates = Certificates(files["tls_cert"], files["tls_key"])
    assert "PRIVATE KEY" not in repr(certificates.newest())
    first = certificates.newest()
    assert certificates.newest() is first
    replace("renewed", files["tls_cert"], files["tls_key"])
    assert certificates.newest().cert == (DATA / "renewed.pem").read_bytes()
    files["tls_key"].unlink()
    assert certificates.newest().cert == (DATA / "renewed.pem").read_bytes()


def test_a_pair_that_is_replaced_while_it_is_read_is_read_again(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old certificate with a new key is never used, because gRPC could serve nobody with it."""
    read, seen = Path.read_bytes, []

    def read_and_replace(path: Path) -> bytes:
        found = read(path)
        if not seen:
            seen.append(path)
            replace("renewed", files["tls_cert"], files["tls_key"])
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", read_and_replace)
        _, found = pem.PemFiles(files["tls_cert"], files["tls_key"]).read(server=True)
    assert seen == [files["tls_cert"]]
    assert (found.cert, found.key) == tuple((DATA / f"renewed.{suffix}").read_bytes() for suffix in ("pem", "key"))


def test_a_certificate_that_has_expired_is_told_when_it_is_read(
    files: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates(files["tls_cert"], files["tls_key"])
    assert certificates.newest().expires_at_s == 4_949_024_505 and not caplog.text
    replace("expired", files["tls_cert"], files["tls_key"])
    assert certificates.newest().cert == (DATA / "expired.pem").read_bytes()
    assert certificates.newest() and caplog.text.count(f"tlsCert={files['tls_cert']} expired at 2026-11-23") == 1
    caplog.clear()
    Certificates(files["tls_cert"], files["tls_key"])
    assert "expired at 2026-11-23" in caplog.text


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tls_cert": Path("/nowhere.pem")}, "tlsCert=/nowhere.pem: cannot be read: No such file or directory"),
        ({"tls_key": Path("/nowhere.key")}, "tlsKey=/nowhere.key: cannot be read: No such file or directory"),
        ({"tls_ca": Path("/nowhere.ca")}, "tlsCa=/nowhere.ca: cannot be read: No such file or directory"),
        ({"tls_key": DATA / "client.key"}, f"tlsKey={DATA / 'client.key'}: expected a PEM certificate and its own key"),
        ({"tls_cert": DATA / "make"}, f"tlsCert={DATA / 'make'}, tlsKey="),
        (keys_of("ed25519"), f"tlsCert={DATA / 'ed25519.pem'}: its key is of a kind that gRPC does not take"),
        ({"tls_ca": DATA / "make"}, f"tlsCa={DATA / 'make'}: expected PEM certificates"),
    ],
)
async def test_a_file_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, changed, said: str) -> None:
    keys = keys_of() | changed
    with pytest.raises(ConfigError) as refused:
        await run_broker(small_config(tmp_path, **keys), asyncio.Event())
    assert said in str(refused.value)
    assert not (tmp_path / "commitlog").exists()
    with pytest.raises(ConfigError):
        await run_namesrv(NamesrvConfig(listen_port=0, **keys), asyncio.Event())


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without a passphrase"):
        Certificates(DATA / "server.pem", DATA / "passphrase.key")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"tls_cert": CA}, "tlsCert=.*TLS needs tlsKey, too"),
        ({"tls_key": CA}, "tlsKey=.*TLS needs tlsCert, too"),
        ({"tls_ca": CA}, "tlsCa=.*TLS needs tlsCert and tlsKey, too"),
        ({**keys_of(), "tls_client_auth": "port"}, "tlsClientAuth=port: expected listenPort or"),
        ({**keys_of(), "tls_ca": None, "tls_client_auth": "listenPort"}, "set tlsCa, with which"),
        ({"tls_client_auth": "listenPort"}, "set tlsCa, with which"),
        ({**keys_of(), "tls_client_auth": "grpcServerPort"}, "set grpcServerTlsMode=ENFORCING"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(tmp_path: Path, keys, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        small_config(tmp_path, **keys)


def test_a_files_keys_are_the_brokers(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text(
        f"brokerName=a\nstorePathRootDir={tmp_path}\ntlsCert={DATA}/server.pem\ntlsKey={DATA}/server.key\n"
        f"tlsCa={CA}\ntlsClientAuth=listenPort;grpcServerPort\ngrpcServerTlsMode=ENFORCING\n"
    )
    config = load_broker_config(path)
    assert config.client_auth_ports == {"listenPort", "grpcServerPort"}
    assert config.grpc_server_tls_mode is TlsMode.ENFORCING
    assert Network.of(config).certificates is not None
    assert Network.of(BrokerConfig(broker_name="a", store_path_root_dir=tmp_path)).certificates is None
