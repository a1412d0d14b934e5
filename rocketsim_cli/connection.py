"""How a command connects to the cluster: by the given address, keys from the environment, and the options before the
command."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from rocketsim_cli.credentials import credentials
from rocketsim_cli.tls import ConnectionOptions

if TYPE_CHECKING:
    from rocketsim_client.connection import Connection


def connection_to(name_server: str, context: typer.Context) -> "Connection":
    """`context`: the command's, where `rocketsim` has put the options before the command."""
    from rocketsim_client.connection import Connection

    given = context.find_object(ConnectionOptions) or ConnectionOptions()
    return Connection.of(name_server, **credentials(), **asdict(given))
