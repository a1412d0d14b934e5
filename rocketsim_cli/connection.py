"""How a command connects to the cluster: by the given address, keys from the environment, and the options before the
command."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from rocketsim_cli.credentials import credentials
from rocketsim_cli.tls import ConnectionOptions

if TYPE_CHECKING:
    from rocketsim_client.connection import Connection


def connection_to(name_server: str, context: typer.Context) -> "Connection":
    from rocketsim_client.connection import Connection

    return Connection.of(name_server, **options_of(context))


def options_of(context: typer.Context) -> dict[str, Any]:
    """The keywords of `Connection.of` but for the address.  `context`: of the command; `rocketsim` itself has left its
    own options there."""
    given = context.find_object(ConnectionOptions) or ConnectionOptions()
    keys = {name: key for name, key in credentials().items() if key}
    return {**asdict(given), **keys}
