"""Certificates: what the TLS of a process is made of, read from files at its start and again whenever they change.

Every port of a process and every connection that it opens use the same ones.
"""

import logging
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from rocketsim_proto.pem import Pem, PemError, PemFiles

from broker_service.errors import ConfigError

logger = logging.getLogger(__name__)


class Certificates:
    """Thread-safe: gRPC asks for the newest ones in threads of its own, before each handshake."""

    def __init__(self, cert: Path, key: Path, ca: Path | None = None) -> None:
        """Raises ConfigError with the key and the file that cannot be used."""
        self.files = PemFiles(cert, key, ca)
        self._lock = threading.Lock()
        try:
            self._stamps, self._pem = self.files.read(server=True)
        except PemError as error:
            raise ConfigError(str(error)) from error
        self._tell_of_age()

    def newest(self) -> Pem:
        """As the files have it; as they had it before, while what they have cannot be used."""
        with self._lock:
            stamps = self.files.stamps()
            if stamps == self._stamps:
                return self._pem
            try:
                self._stamps, self._pem = self.files.read(server=True)
            except PemError as error:
                self._stamps = stamps  # said once, and looked at again after the next change
                logger.error("TLS goes on with the certificate that was read before: %s", error)
            else:
                logger.info("TLS uses the certificate that %s has now", self.files.cert)
                self._tell_of_age()
            return self._pem

    def _tell_of_age(self) -> None:
        """It is used all the same: not all of RocketMQ 5's clients check it."""
        expires_at_s = self._pem.expires_at_s
        if expires_at_s is not None and expires_at_s < time.time():
            at = datetime.fromtimestamp(expires_at_s, UTC)
            logger.error("tlsCert=%s expired at %s: who checks it does not connect; renew it", self.files.cert, at)

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
    assert pem.key is not None and pem.cert is not None
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca if client_auth else None)
