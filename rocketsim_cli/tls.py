"""Whether the command line speaks TLS, and with which files: options of `rocketsim` itself, for all its commands."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rocketsim_cli.trouble import WrongCommandLine

_FILE: dict[str, Any] = {"exists": True, "dir_okay": False, "show_default": False}

Tls = Annotated[bool, typer.Option("--tls", envvar="ROCKETSIM_TLS", help="Servers speak TLS.")]
TlsCa = Annotated[
    Path | None,
    typer.Option("--tls-ca", envvar="ROCKETSIM_TLS_CA", help="CAs that servers are checked with, PEM.", **_FILE),
]
TlsCert = Annotated[
    Path | None,
    typer.Option("--tls-cert", envvar="ROCKETSIM_TLS_CERT", help="Our own certificate, if they ask, PEM.", **_FILE),
]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", envvar="ROCKETSIM_TLS_KEY", help="Its key, PEM.", **_FILE)]

# For errors of the client, which call the options by the names that they have in Python and Spark.
WHERE_FROM = (
    "On the command line these options are --tls, --tls-ca, --tls-cert and --tls-key before the command "
    "(`rocketsim --tls admin …`), or ROCKETSIM_TLS, ROCKETSIM_TLS_CA, ROCKETSIM_TLS_CERT and ROCKETSIM_TLS_KEY"
)

_given: dict[str, Any] = {}


def use(tls: bool, ca: Path | None, cert: Path | None, key: Path | None) -> None:
    """What the clients of this process are to have."""
    given = {"--tls-ca": ca, "--tls-cert": cert, "--tls-key": key}
    if not tls and (named := [name for name, path in given.items() if path]):
        raise WrongCommandLine(f"{' and '.join(named)}: for TLS, which is off; give --tls, too")
    if (cert is None) != (key is None):
        raise WrongCommandLine("--tls-cert and --tls-key are a pair: a client's certificate and its key")
    _given.clear()
    _given.update({"tls": tls, "tls_ca": ca, "tls_cert": cert, "tls_key": key})


def tls_files() -> dict[str, Any]:
    """What each client of `rocketsim_client` takes."""
    return dict(_given)
