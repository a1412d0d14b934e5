"""Makes a command's connection from the given address, the keys in the environment, the options before the command, and
a context (`contexts.py`).
"""

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import typer

from rocketsim_cli.connection_options import ConnectionOptions
from rocketsim_cli.credentials import credentials

if TYPE_CHECKING:
    from rocketsim_client.connection import Connection


@dataclass(frozen=True, slots=True)
class Cluster:
    """The name server and the connection options of one cluster."""

    name_server: str
    options: ConnectionOptions


@dataclass(frozen=True, slots=True)
class Invocation:
    """What the user has set for one run of `rocketsim`: the options before the command, and the cluster of the context
    in use.
    """

    options: ConnectionOptions
    cluster: Cluster | None = None


def connection_to(name_server: str, context: typer.Context) -> "Connection":
    from rocketsim_client.connection import Connection

    return Connection.of(name_server, **options_of(name_server, context))


def options_of(name_server: str, context: typer.Context) -> dict[str, Any]:
    """Returns the keyword arguments of `Connection.of`, without the address.  `context` is the command's context from
    typer.
    """
    found = context.find_object(Invocation)
    options = given_options(context)
    if found is not None and found.cluster is not None and found.cluster.name_server == name_server:
        options = _merged(options, found.cluster.options)
    keys = credentials()
    # A token belongs to its keys, so keys without a token also override the token of a context.
    return {**asdict(options), **keys} if keys["access_key"] else asdict(options)


def given_options(context: typer.Context) -> ConnectionOptions:
    """Returns the options that stand before the command."""
    found = context.find_object(Invocation)
    return found.options if found is not None else ConnectionOptions()


def _merged(given: ConnectionOptions, others: ConnectionOptions) -> ConnectionOptions:
    """Returns the given options, and takes each option that was not given from `others`, the options of a context.

    A connection has only one of the two namespaces, so either of them overrides both namespaces of the context.
    """
    own = {one.name: getattr(given, one.name) for one in fields(given) if getattr(given, one.name) != one.default}
    if given.namespace or given.namespace_v2:
        own |= {"namespace": given.namespace, "namespace_v2": given.namespace_v2}
    return replace(others, **own)
