"""Certificates reads the certificate, key and CAs of a process at its start, and again whenever the files change.

Every port of the process, and every connection that the process opens, uses the same certificate files.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from rocketsim_proto.pem import Pem, PemError, PemFiles

from broker_service.errors import ConfigError

logger = logging.getLogger(__name__)


class Pair(NamedTuple):
    """A server's key and certificate in PEM, and the CAs of clients' certificates if clients need one."""

    key: bytes
    cert: bytes
    client_ca: bytes | None = None

    def __repr__(self) -> str:
        """Leaves out the key, so that no log shows it."""
        return f"Pair({self.cert!r}, client_ca={self.client_ca!r})"


def server_credentials(newest: Callable[[], Pair]) -> grpc.ServerCredentials:
    """Returns the credentials of one port.  gRPC calls `newest` before each handshake, in its own threads."""
    given = newest()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        found = newest()
        if found == given:
            return None
        given = found
        return _configuration(given)

    fetch: Any = changed  # gRPC's type stubs do not know that None means "no change"
    return grpc.dynamic_ssl_server_credentials(_configuration(given), fetch, given.client_ca is not None)


def _configuration(pair: Pair) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pair.key, pair.cert)], pair.client_ca)


class Certificates:
    """The class is thread-safe, because gRPC asks for the newest certificates before each handshake, in its own
    threads.
    """

    def __init__(self, cert: Path, key: Path, ca: Path | None = None) -> None:
        """Raises ConfigError, which names the key and the file that cannot be used."""
        self.files = PemFiles(cert, key, ca)
        self._lock = threading.Lock()
        try:
            self._stamps, self._pem = self.files.read(server=True)
        except PemError as error:
            raise ConfigError(str(error)) from error
        self._log_if_expired()

    def newest(self) -> Pem:
        """Returns the present content of the certificate files.

        While the files cannot be used, returns the last content that could be used.
        """
        with self._lock:
            stamps = self.files.stamps()
            if stamps == self._stamps:
                return self._pem
            try:
                self._stamps, self._pem = self.files.read(server=True)
            except PemError as error:
                self._stamps = stamps  # logged once; the files are read again after their next change
                logger.error("TLS goes on with the certificate that was read before: %s", error)
            else:
                logger.info("TLS uses the certificate that %s has now", self.files.cert)
                self._log_if_expired()
            return self._pem

    def _log_if_expired(self) -> None:
        """Logs an error if the certificate has expired.

        An expired certificate is still used, because some RocketMQ 5 clients do not check the time.
        """
        expires_at_s = self._pem.expires_at_s
        if expires_at_s is not None and expires_at_s < time.time():
            at = datetime.fromtimestamp(expires_at_s, UTC)
            logger.error(
                "tlsCert=%s expired at %s; renew it, because clients that check certificates refuse it",
                self.files.cert,
                at,
            )

    def server_credentials(self, *, client_auth: bool) -> grpc.ServerCredentials:
        """Returns the credentials of one port.

        With `client_auth` only clients with a certificate of one of the CAs may connect.
        """

        def newest() -> Pair:
            pem = self.newest()
            assert pem.key is not None and pem.cert is not None
            return Pair(pem.key, pem.cert, pem.ca if client_auth else None)

        return server_credentials(newest)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Returns the credentials of one channel, which never change.

        Without `tlsCa`, the channel checks servers with the CAs that gRPC contains.
        """
        pem = self.newest()
        return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
