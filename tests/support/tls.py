"""The certificates of tests/data/tls.  `ca` has signed `server`, `renewed` and `client`, while `other-ca` has signed
`stranger`.

All certificates are for localhost, 127.0.0.1 and ::1.  gRPC does not support the key of `ed25519`, and `expired` has
expired.
"""

import os
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import grpc

DATA = Path(__file__).parents[1] / "data/tls"
CA, OTHER_CA = DATA / "ca.pem", DATA / "other-ca.pem"
# the keys of a configuration file with which a server speaks TLS
SERVER_TLS: dict[str, Any] = {"tlsCert": DATA / "server.pem", "tlsKey": DATA / "server.key", "tlsCa": CA}
OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


def keys_of(name: str = "server") -> dict[str, Any]:
    """Returns the TLS keys of BrokerConfig or NamesrvConfig for this certificate."""
    return {"tls_cert": DATA / f"{name}.pem", "tls_key": DATA / f"{name}.key", "tls_ca": CA}


def replace(name: str, cert: Path, key: Path) -> None:
    """Replaces the files with those of the certificate `name`, the key last."""
    for source, target in ((DATA / f"{name}.pem", cert), (DATA / f"{name}.key", key)):
        new = target.with_name("new")
        shutil.copy(source, new)
        os.replace(new, target)


def credentials(ca: Path = CA, name: str = "") -> grpc.ChannelCredentials:
    """Returns the credentials of a client that has the certificate `name`, or none."""
    pair = [(DATA / f"{name}{suffix}").read_bytes() for suffix in (".key", ".pem")] if name else [None, None]
    return grpc.ssl_channel_credentials(ca.read_bytes(), *pair)


def channel(address: str, ca: Path | None = CA, name: str = "") -> grpc.aio.Channel:
    """Opens a channel, which uses plaintext if `ca` is None."""
    if ca is None:
        return grpc.aio.insecure_channel(address, OPTIONS)
    return grpc.aio.secure_channel(address, credentials(ca, name), OPTIONS)


def certificate_of(address: str) -> str:
    """Returns the common name in the server's certificate."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=CA)
    with (
        socket.create_connection((host, int(port)), 60) as plain,
        context.wrap_socket(plain, server_hostname=host) as made,
    ):
        found = made.getpeercert()
    assert found
    return dict(pair for part in found["subject"] for pair in part)["commonName"]
