"""A client's TLS: its files, and the reason why a TLS connection to a server fails."""

import math
import os
import ssl
import time
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from rocketsim_proto.pem import Pem, PemError, PemFiles, Stamps

from rocketsim_client.addresses import connected
from rocketsim_client.errors import InvalidParameter, TlsFailed

PROBE_S = 1.0  # the longest timeout of each step of a test connection

File = str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True)
class Tls:
    """The paths of PEM files.  An empty `ca` stands for the CAs that come with gRPC.  `cert` and `key` are this
    client's own certificate, for servers that ask for one."""

    ca: str = ""
    cert: str = ""
    key: str = ""

    @classmethod
    def of(cls, tls: bool, ca: File = None, cert: File = None, key: File = None) -> "Tls | None":
        """Returns the TLS files, or None for plaintext.  Raises InvalidParameter if files are given without `tls`, or
        if only one of certificate and key is given."""
        given = {"tls_ca": ca, "tls_cert": cert, "tls_key": key}
        paths = {name: os.fspath(path) for name, path in given.items() if path}
        if paths and not tls:
            raise InvalidParameter(f"{', '.join(paths)}: given, but TLS is off; set tls, too")
        if ("tls_cert" in paths) != ("tls_key" in paths):
            raise InvalidParameter("tls_cert and tls_key: a client's certificate needs both")
        return cls(*(paths.get(name, "") for name in given)) if tls else None


def files_of(tls: Tls) -> PemFiles:
    return PemFiles(*(Path(path) if path else None for path in (tls.cert, tls.key, tls.ca)))


def read(tls: Tls, address: str) -> tuple[Stamps, Pem]:
    """Reads the files for a connection to that address.  Raises TlsFailed, which names the option and the file."""
    try:
        return files_of(tls).read(server=False)
    except PemError as error:
        raise TlsFailed(str(error), address=address) from error


def why_not(address: str, tls: Tls | None, pem: Pem | None, deadline: float = math.inf) -> str:
    """Finds out by test connections why a server that accepts connections closes them, because gRPC's error does not
    tell why.  Returns the reason, or an empty text if the reason is not TLS, or not found out by the deadline (of
    `time.monotonic`)."""
    if tls is None or pem is None:
        return (
            SPEAKS_TLS
            if _handshake(address, _trusting(), deadline)
            in (HandshakeOutcome.OPEN, HandshakeOutcome.CLOSED, HandshakeOutcome.ALERT)
            else ""
        )
    found = _handshake(address, pem.context, deadline)
    if found is HandshakeOutcome.CLOSED:
        # A second attempt follows, because the server may just have been shutting down.
        found = _handshake(address, pem.context, deadline)
    if isinstance(found, ssl.SSLCertVerificationError):
        checked = f"tlsCa={tls.ca}" if tls.ca else "the public CAs, since tlsCa is not given"
        host = address.rpartition(":")[0]
        return f"the server's certificate is not valid for {host}: {found.verify_message} (checked with {checked})"
    if found is HandshakeOutcome.PLAINTEXT:
        return "the server speaks plaintext, and this client TLS: leave out the option tls"
    if found in (HandshakeOutcome.CLOSED, HandshakeOutcome.ALERT):
        return needs_certificate(tls)
    return ""


def needs_certificate(tls: Tls) -> str:
    """Returns the text of the error for a server that refuses this client's certificate, or refuses a client without a
    certificate."""
    own = f"tlsCert={tls.cert} is not one" if tls.cert else "set tlsCert and tlsKey"
    return f"the server takes only clients with a certificate of a CA that it knows: {own}"


SPEAKS_TLS = "the server speaks TLS, and this client plaintext: set the option tls, and tlsCa"


class HandshakeOutcome(Enum):
    """The outcome of a TLS handshake with a server."""

    OPEN = auto()  # the server speaks TLS, and its first byte came
    # The server speaks TLS and closed the connection, perhaps because it refuses the client's certificate.
    CLOSED = auto()
    ALERT = auto()  # the server speaks TLS, and has refused the client
    PLAINTEXT = auto()
    NOTHING = auto()


def _handshake(
    address: str, context: ssl.SSLContext, deadline: float
) -> HandshakeOutcome | ssl.SSLCertVerificationError:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context.set_alpn_protocols(["h2"])
    try:
        plain = connected(host, int(port), _step_s(deadline))
    except (OSError, ValueError):
        return HandshakeOutcome.NOTHING
    with plain:
        try:
            plain.settimeout(_step_s(deadline))
            made = context.wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            return error
        except ssl.SSLError as error:
            return _of_handshake(error.reason or "")
        except (OSError, ValueError):
            return HandshakeOutcome.NOTHING
        with made:
            try:
                made.settimeout(_step_s(deadline))
                return HandshakeOutcome.OPEN if made.recv(1) else HandshakeOutcome.CLOSED
            except TimeoutError:
                return HandshakeOutcome.OPEN
            except ssl.SSLError as error:
                return HandshakeOutcome.ALERT if "ALERT" in (error.reason or "") else HandshakeOutcome.CLOSED
            except OSError:
                return HandshakeOutcome.CLOSED


def _step_s(deadline: float) -> float:
    return min(PROBE_S, max(deadline - time.monotonic(), 0.001))


def _of_handshake(reason: str) -> HandshakeOutcome:
    if "ALERT" in reason:
        return HandshakeOutcome.ALERT
    return HandshakeOutcome.PLAINTEXT if reason == "WRONG_VERSION_NUMBER" else HandshakeOutcome.NOTHING


def _trusting() -> ssl.SSLContext:
    """Returns a context that accepts any certificate, to test only whether the server speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
