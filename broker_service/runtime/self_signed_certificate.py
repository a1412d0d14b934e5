"""The certificate that a broker makes for itself, so that RocketMQ 5's clients, which use TLS by default, can connect.

RocketMQ's proxy also makes a certificate for itself, with `tlsTestModeEnable`.  The certificate gives no protection
from a process that takes over the port, because RocketMQ 5's clients do not check certificates.
"""

import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import grpc

from broker_service.runtime.certificates import Pair, server_credentials

NAME = "RocketSim broker, self-signed"
LOCAL = "localhost", "127.0.0.1", "::1"
VALID_DAYS = 90
RENEWED_DAYS = 30  # a new certificate is made this long before the old one expires
BACKDATED_DAYS = 1  # a certificate is valid from this long before it is made, since clocks of clients may be behind


class SelfSignedCertificate:
    """Makes a certificate and its key, and new ones before the certificate expires.

    Certificate and key are kept in memory only.  The class is thread-safe, because gRPC asks for the newest certificate
    before each handshake, in its own threads.
    """

    def __init__(self, hosts: Iterable[str], now_s: Callable[[], float] = time.time) -> None:
        """`hosts` are the names and addresses that clients dial, beside those of this machine itself.

        Raises ModuleNotFoundError if the package `cryptography` is not installed.
        """
        self._hosts = tuple(dict.fromkeys((*LOCAL, *(host.strip("[]") for host in hosts))))
        self._now_s = now_s
        self._lock = threading.Lock()
        self._make()

    def newest(self) -> Pair:
        with self._lock:
            now = self._now()
            if not self._valid_from <= now < self._expires - timedelta(days=RENEWED_DAYS):
                self._make()
            return self._pair

    def server_credentials(self) -> grpc.ServerCredentials:
        return server_credentials(self.newest)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._now_s(), UTC)

    def _make(self) -> None:
        now = self._now()
        self._valid_from = now - timedelta(days=BACKDATED_DAYS)
        self._expires = now + timedelta(days=VALID_DAYS)
        self._pair = _pair(self._hosts, self._valid_from, self._expires)


def _pair(hosts: Iterable[str], valid_from: datetime, expires: datetime) -> Pair:
    # The package `cryptography` is optional, and a broker that has a certificate does not need it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())  # gRPC supports neither Ed25519 nor P-521
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    alternatives = [x509.DNSName(host) if _is_name(host) else x509.IPAddress(ip_address(host)) for host in hosts]
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid_from)
        .not_valid_after(expires)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    made = builder.sign(key, hashes.SHA256())
    key_text: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    cert: bytes = made.public_bytes(serialization.Encoding.PEM)
    return Pair(key_text, cert)


def _is_name(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return True
    return False
