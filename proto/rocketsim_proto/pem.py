"""Reads and checks the PEM files of TLS: a certificate, its key, and the CAs with which the other side is checked.

Errors name the files by their configuration keys `tlsCert`, `tlsKey` and `tlsCa`, which Spark's options have, too.
"""

import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

READS = 3  # attempts to read the files while somebody is replacing them

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
# The kinds of keys that gRPC supports (RSA, P-256 and P-384), as their identifiers stand in a certificate.
_KINDS = tuple(bytes.fromhex(oid) for oid in ("06092a864886f70d010101", "06082a8648ce3d030107", "06052b81040022"))
# A certificate names the times at which its validity begins and ends, each with a year of two or four digits.  The
# groups of this pattern match the time at which the validity ends.
_VALIDITY = re.compile(rb"\x30[\x1e-\x22](?:\x17\x0d\d{12}Z|\x18\x0f\d{14}Z)(?:\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z)")

Stamps = tuple[tuple[int, int, int] | None, ...]  # time, inode and size of each file


class PemError(ValueError):
    """Raised if a file cannot be used.  The message names the file and never shows its content."""


class Pem(NamedTuple):
    """The text of a certificate's files: the certificate, its key and the CAs.  `context` is an SSL context made of the
    same files, for connections that do not use gRPC.
    """

    cert: bytes | None
    key: bytes | None
    ca: bytes | None
    context: ssl.SSLContext

    @property
    def expires_at_s(self) -> float | None:
        """The last second (since 1970) at which the certificate is valid, or None without a certificate."""
        found = _VALIDITY.search(_der(self.cert)) if self.cert is not None else None
        if found is None:
            return None
        short, long = found.groups()
        text = (
            long.decode() if long else f"{'20' if short < b'50' else '19'}{short.decode()}"
        )  # RFC 5280 says which century a year of two digits is in
        return datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()

    def __repr__(self) -> str:
        """Shows the certificate and the CAs, but not the key."""
        return f"Pem({self.cert!r}, ca={self.ca!r})"


@dataclass(frozen=True, slots=True)
class PemFiles:
    """The paths of the PEM files.  `cert` and `key` must be given together.  Without `ca`, the public CAs are used."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def stamps(self) -> Stamps:
        """Returns values that change when a file changes."""
        return tuple(_stamp(path) for path in (self.cert, self.key, self.ca))

    def read(self, *, server: bool) -> tuple[Stamps, Pem]:
        """Reads the files, and reads them again if one has changed meanwhile, so that certificate and key fit together.
        Raises PemError if a file cannot be used.
        """
        for _ in range(READS):
            stamps = self.stamps()
            found = Pem(
                _content("tlsCert", self.cert),
                _content("tlsKey", self.key),
                _content("tlsCa", self.ca),
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT),
            )
            self._load_pair(found.context)
            self._check_kind(found.cert)
            self._load_ca(found)
            if self.stamps() == stamps:
                return stamps, found
        raise PemError(
            f"tlsCert={self.cert}, tlsKey={self.key}: somebody was replacing these files while they were read"
        )

    def _load_pair(self, context: ssl.SSLContext) -> None:
        """Loads certificate and key.  A key with a passphrase is refused, because nobody could type it."""
        if self.cert is None:
            return
        try:
            context.load_cert_chain(self.cert, self.key, password=lambda: "")
        except (OSError, ValueError) as error:
            raise PemError(
                f"tlsCert={self.cert}, tlsKey={self.key}: expected a PEM certificate and its own key without a "
                f"passphrase: {_reason(error)}"
            ) from error

    def _check_kind(self, cert: bytes | None) -> None:
        """Refuses a certificate whose kind of key gRPC cannot use for a connection."""
        if cert is None:
            return
        der = _der(cert)
        if not any(kind in der for kind in _KINDS):
            raise PemError(
                f"tlsCert={self.cert}: its key is of a kind that gRPC does not take; make an RSA, P-256 or P-384 key"
            )

    def _load_ca(self, found: Pem) -> None:
        if found.ca is None:
            found.context.load_default_certs()
            return
        try:
            found.context.load_verify_locations(cadata=found.ca.decode("ascii"))
        except (OSError, ValueError) as error:
            raise PemError(f"tlsCa={self.ca}: expected PEM certificates: {_reason(error)}") from error


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ino, found.st_size) if found is not None else None


def _der(cert: bytes) -> bytes:
    """Returns the DER bytes of the first certificate in a PEM text, or b"" if there is none.  The first certificate is
    the one that belongs to the key.
    """
    found = _CERTIFICATE.search(cert.decode("latin-1"))
    return ssl.PEM_cert_to_DER_cert(found[0]) if found else b""


def _content(name: str, path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path is not None else None
    except OSError as error:
        raise PemError(f"{name}={path}: cannot be read: {error.strerror}") from error


def _reason(error: Exception) -> str:
    return re.sub(r"\[.*?\] ?| \(_ssl\.c:\d+\)", "", str(error)).lower() or type(error).__name__
