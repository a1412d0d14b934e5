"""`rocketsim console`: serves the web console.  `rocketsim up` also serves a web console, for the cluster that it
starts.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rocketsim_proto.extras import MissingExtra, command_for, need

from rocketsim_cli.connection import connection_to
from rocketsim_cli.local_cluster import LocalCluster, free_port
from rocketsim_cli.options import NameServer
from rocketsim_cli.tables import console as terminal
from rocketsim_cli.tables import note
from rocketsim_cli.trouble import Trouble, WrongCommandLine

if TYPE_CHECKING:
    from rocketsim_client.connection import Connection

PORT = 8088
ACTION_TIMEOUT_S = 5.0  # the time-out of a call to one broker that changes something for a user
ASK_TIMEOUT_S = 2.0  # the time-out of a call that reads; short, so that a page soon shows which broker does not answer
INSTALL = command_for("console")
_FILE: dict[str, Any] = {"exists": True, "dir_okay": False, "show_default": False}


def console(
    context: typer.Context,
    name_server: NameServer,
    port: Annotated[int, typer.Option(help="The port for browsers; 0: any free one.", min=0, max=65535)] = PORT,
    bind: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    host: Annotated[
        list[str] | None,
        typer.Option(help="Another host name that browsers may use, besides localhost and addresses."),
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(help="Use TLS with this certificate and its chain to the CA, PEM.", **_FILE)
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The certificate's key, PEM.", **_FILE)] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="Require browsers to have a certificate of these CAs, PEM.", **_FILE)
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Let users change topics, groups, offsets and masters, each with their own access keys."
        ),
    ] = False,
) -> None:
    """Serve pages that show the cluster: brokers, topics, groups, messages and failovers."""
    if (cert is None) != (key is None):
        raise WrongCommandLine("--cert and --key are a pair: the console's certificate and its key")
    if client_ca is not None and cert is None:
        raise WrongCommandLine("--client-ca: browsers show a certificate only over TLS, so give --cert and --key, too")
    if write and cert is None and not _is_loopback(bind):
        raise WrongCommandLine(
            f"--write with --bind {bind}: users enter access keys, which needs TLS; give --cert and --key, too"
        )
    from dataclasses import replace

    from rocketsim_client import Admin
    from rocketsim_console.actions import OPERATORS
    from rocketsim_console.app import Console
    from rocketsim_console.changes import Changes
    from rocketsim_console.server import Listen, bound, server_of, url_of

    listen = Listen(bind, port, cert, key, client_ca)
    try:
        taken = bound(listen)
    except OSError as error:
        raise Trouble(f"cannot listen on {bind} port {port}: {error.strerror}; name another port with --port") from None
    connection = connection_to(name_server, context)

    def connect(access_key: str, secret_key: str) -> Admin:
        return Admin(replace(with_keys(connection, access_key, secret_key), timeout_s=ACTION_TIMEOUT_S))

    changes = Changes(OPERATORS, connect) if write else None
    with taken, Admin(replace(connection, timeout_s=ASK_TIMEOUT_S)) as admin:
        if not _is_loopback(bind) and client_ca is None:
            note(f"anybody who reaches {bind} sees the cluster, messages included; --client-ca restricts that")
        terminal().print(f"console on {url_of(listen, taken)} (Ctrl-C ends it)", markup=False)
        server_of(Console(admin, hosts=host or (), changes=changes), listen).run([taken])


def with_keys(connection: "Connection", access_key: str, secret_key: str) -> "Connection":
    """Returns the connection with the keys of a user of the console, or without keys if both are empty.  The security
    token of the connection belongs to the console's own keys, so it is left out.
    """
    from dataclasses import replace

    from rocketsim_client.connection import credentials_of

    return replace(connection, credentials=credentials_of(access_key, secret_key), security_token="")


def _is_loopback(bind: str) -> bool:
    return bind in ("127.0.0.1", "::1", "localhost")


@contextlib.contextmanager
def console_for(cluster: LocalCluster) -> Iterator[str | None]:
    """Serves the web console of a local cluster until the block ends, with buttons that kill and start its brokers.
    Yields the console's URL, or None if its packages are not installed.
    """
    try:
        need("console")
    except MissingExtra:
        yield None
        return
    from rocketsim_cli.broker_actions import actions_of
    from rocketsim_client import Admin
    from rocketsim_client.connection import Connection
    from rocketsim_console.app import Console
    from rocketsim_console.changes import Changes
    from rocketsim_console.server import Listen, serving

    connection = Connection.of(cluster.name_server, timeout_s=ASK_TIMEOUT_S)
    changes = Changes(actions_of(cluster), lambda access_key, secret_key: Admin(connection))
    with Admin(connection) as admin:
        with serving(Console(admin, changes=changes), Listen(port=free_port(PORT))) as url:
            yield url


def announcement(url: str | None) -> str:
    """Returns a line that names the console's URL, or says what to install to get a console."""
    return f"console on {url}" if url else f"no console: its packages are not installed ({INSTALL})"
