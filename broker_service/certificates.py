"""Certificates: what the TLS of a process is made of, read from files at its start and again whenever they change.

Every port of a process and every connection that it opens use the same ones.
"""

import logging
import re
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from broker_service.errors import ConfigError

logger = logging.getLogger(__name__)

CERT, KEY, CA = "tlsCert", "tlsKey", "tlsCa"
READS = 3  # of files that are being replaced meanwhile


class Pem(NamedTuple):
    """PEM text: a certificate with those that lead to its CA, its key, and the CAs that peers are checked with."""

    cert: bytes
    key: bytes
    ca: bytes | None
    context: ssl.SSLContext  # of them, for a server that is not gRPC's


Stamps = tuple[tuple[int, int, int] | None, ...]  # time, inode and size of each file


class Certificates:
    """Thread-safe: gRPC asks for the newest ones in threads of its own, before each handshake."""

    def __init__(self, cert: Path, key: Path, ca: Path | None = None) -> None:
        """Raises ConfigError with the key and the file that cannot be used."""
        self.cert, self.key, self.ca = cert, key, ca
        self._files = {CERT: cert, KEY: key} | ({CA: ca} if ca is not None else {})
        self._lock = threading.Lock()
        self._stamps, self._pem = _read(self._files)

    def newest(self) -> Pem:
        """As the files have it; as they had it before, while what they have cannot be used."""
        with self._lock:
            if _stamps_of(self._files) == self._stamps:
                return self._pem
            # What is wrong now is said once, and looked at again after the next change.
            self._stamps = _stamps_of(self._files)
            try:
                self._stamps, self._pem = _read(self._files)
            except ConfigError as error:
                logger.error("TLS goes on with the certificate that was read before: %s", error)
            else:
                logger.info("TLS uses the certificate that %s has now", self.cert)
            return self._pem

    def server_credentials(self, *, client_auth: bool) -> grpc.ServerCredentials:
        """For one port; `client_auth`: only clients with a certificate of one of the CAs may connect."""
        given = self.newest()

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            newest = self.newest()
            if newest is given:
                return None
            given = newest
            return _configuration(given, client_auth)

        fetch: Any = changed  # gRPC's stubs do not know that None is "no change"
        return grpc.dynamic_ssl_server_credentials(_configuration(given, client_auth), fetch, client_auth)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For one channel, which keeps them.  Without `tlsCa` servers are checked with the CAs that gRPC brings."""
        pem = self.newest()
        return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)


def _configuration(pem: Pem, client_auth: bool) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca if client_auth else None)


def _stamps_of(files: Mapping[str, Path]) -> Stamps:
    """What changes when a file does."""
    return tuple(_stamp(path) for path in files.values())


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read(files: Mapping[str, Path]) -> tuple[Stamps, Pem]:
    """The files as they were at one time, checked; raises ConfigError."""
    for _ in range(READS):
        stamps = _stamps_of(files)
        cert, key = _content(CERT, files[CERT]), _content(KEY, files[KEY])
        ca = _content(CA, files[CA]) if CA in files else None
        context = _context_of(files[CERT], files[KEY])
        if ca is not None:
            _load_ca(context, files[CA], ca)
        if _stamps_of(files) == stamps:
            return stamps, Pem(cert, key, ca, context)
    raise ConfigError(f"{CERT}={files[CERT]}, {KEY}={files[KEY]}: they were being replaced while they were read")


def _content(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}={path}: cannot be read: {error.strerror}") from error


def _context_of(cert: Path, key: Path) -> ssl.SSLContext:
    """Checks the pair, without a word of what the key has.  One with a passphrase is refused: nobody is there to type
    it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{CERT}={cert}, {KEY}={key}: expected a PEM certificate and its own key without a passphrase: "
            f"{_reason(error)}"
        ) from error
    return context


def _load_ca(context: ssl.SSLContext, path: Path, text: bytes) -> None:
    try:
        context.load_verify_locations(cadata=text.decode("ascii"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{CA}={path}: expected PEM certificates: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return re.sub(r"\[.*?\] ?| \(_ssl\.c:\d+\)", "", str(error)).lower() or type(error).__name__
