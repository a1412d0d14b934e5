"""Without a configured certificate, the port for RocketMQ 5's clients uses TLS with a certificate that the broker
makes.
"""

import asyncio
import logging
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from rocketmq_v2 import definition_pb2 as d

from broker_service.modes import TlsMode
from broker_service.node.node import BrokerNode
from broker_service.runtime.self_signed_certificate import SelfSignedCertificate
from broker_service.runtime.server import Network
from testbed.polling import until
from tests.support.brokers import running, small_config
from tests.support.tls import OPTIONS, certificate_of, keys_of
from tests.support.v2 import Client, make_topics, message

DAY_S = 86_400.0


@asynccontextmanager
async def broker(root: Path, **keys: Any) -> AsyncIterator[BrokerNode]:
    async with running(root, **({"grpc_server_port": 0} | keys)) as node:
        await until(lambda: bool(node.v2_port.address), "the port for RocketMQ 5's clients is open")
        make_topics(node)
        yield node


def unchecked(address: str) -> bytes:
    """Returns the server's certificate in PEM, as a client gets it that checks no certificate.  Raises OSError."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), 60) as plain, context.wrap_socket(plain) as made:
        assert made.selected_alpn_protocol() == "h2"
        der = made.getpeercert(binary_form=True)
    assert der is not None
    return ssl.DER_cert_to_PEM_cert(der).encode()


def holds_a_key(folder: Path) -> bool:
    contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert contents
    return any(b"PRIVATE KEY" in content for content in contents)


async def is_answered(channel: grpc.aio.Channel) -> bool:
    async with channel:
        try:
            return (await Client(channel).send(message())).status.code == d.OK
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return False


async def test_clients_with_tls_that_check_nothing_and_clients_with_plaintext_use_one_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with broker(tmp_path) as node:
        address = node.v2_port.address
        # gRPC's Python client always checks certificates, so the test tells it to trust the server's one.
        trusted = grpc.ssl_channel_credentials(await asyncio.to_thread(unchecked, address))
        assert await is_answered(grpc.aio.secure_channel(address, trusted, OPTIONS))
        assert await is_answered(grpc.aio.insecure_channel(address, OPTIONS))
    said = [line for line in caplog.messages if "does not protect against somebody who can take over the port" in line]
    assert len(said) == 1
    assert not holds_a_key(tmp_path)


async def test_the_other_ports_stay_plaintext(tmp_path: Path) -> None:
    async with broker(tmp_path) as node:
        with pytest.raises(OSError):
            await asyncio.to_thread(unchecked, node.address)


async def test_without_the_key_tls_is_refused(tmp_path: Path) -> None:
    async with broker(tmp_path, tls_test_mode_enable=False) as node:
        with pytest.raises(OSError):
            await asyncio.to_thread(unchecked, node.v2_port.address)
        assert await is_answered(grpc.aio.insecure_channel(node.v2_port.address, OPTIONS))
        assert node.v2_port.endpoint.front is None


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
async def test_a_configured_certificate_is_the_only_one(tmp_path: Path, mode: TlsMode) -> None:
    async with broker(tmp_path, grpc_server_tls_mode=mode, **keys_of()) as node:
        assert await asyncio.to_thread(certificate_of, node.v2_port.address) == "test server"
        plaintext = grpc.aio.insecure_channel(node.v2_port.address, OPTIONS)
        assert await is_answered(plaintext) is (mode is TlsMode.PERMISSIVE)


async def test_without_the_package_the_log_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)  # as if cryptography were not installed
    async with broker(tmp_path) as node:
        assert await is_answered(grpc.aio.insecure_channel(node.v2_port.address, OPTIONS))
    assert any("pip install cryptography" in line for line in caplog.messages)


def test_the_certificate_is_valid_for_the_addresses_that_clients_dial(tmp_path: Path) -> None:
    network = Network.of(small_config(tmp_path, grpc_server_port=0, bind_address="0.0.0.0", broker_ip1="10.1.2.3"))
    assert network.self_signed is not None
    made = x509.load_pem_x509_certificate(network.self_signed.newest().cert)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [*map(str, names.get_values_for_type(x509.IPAddress))] == ["127.0.0.1", "::1", "10.1.2.3"]


def test_a_broker_without_the_port_makes_none(tmp_path: Path) -> None:
    assert Network.of(small_config(tmp_path, grpc_server_port=-1)).self_signed is None


def test_the_certificate_is_made_anew_before_it_expires_and_if_the_clock_was_wrong() -> None:
    now = time.time()
    made = SelfSignedCertificate([], lambda: now)
    first = made.newest()
    expires = x509.load_pem_x509_certificate(first.cert).not_valid_after_utc.timestamp()
    while made.newest() == first:
        now += DAY_S
    renewed = made.newest()
    assert expires - now > 7 * DAY_S
    assert x509.load_pem_x509_certificate(renewed.cert).not_valid_after_utc.timestamp() > expires
    assert renewed.key != first.key
    now -= 365 * DAY_S
    assert x509.load_pem_x509_certificate(made.newest().cert).not_valid_before_utc.timestamp() < now
    assert "PRIVATE" not in repr(made.newest())


async def test_new_connections_get_the_certificate_that_was_made_anew() -> None:
    now = time.time()
    made = SelfSignedCertificate([], lambda: now)
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', made.server_credentials())}"
    await server.start()
    try:
        first = await asyncio.to_thread(unchecked, address)
        assert await asyncio.to_thread(unchecked, address) == first
        now += 89 * DAY_S
        second = await asyncio.to_thread(unchecked, address)
        assert second != first
    finally:
        await server.stop(0)
