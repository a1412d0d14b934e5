"""`rocketsim context`: names clusters, so that commands need no address, TLS files and keys each time.

The contexts are in `rocketsim/contexts.toml` in the user's configuration directory.  Only the user can read the file:

    current = "prod"

    [contexts.prod]
    nameServer = "10.0.0.1:9876;10.0.0.2:9876"
    tls = true
    tlsCa = "/etc/rocketsim/ca.pem"

The command line and the environment override a context.  If a command is given another address than the context's, it
uses none of the context's options, so that another server does not get the context's keys.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rocketsim_cli.admin.session import camel
from rocketsim_cli.connection import Cluster, given_options
from rocketsim_cli.connection_options import ConnectionOptions
from rocketsim_cli.credentials import credentials, warn_if_others_may_read
from rocketsim_cli.options import AsJson, NameServer
from rocketsim_cli.tables import show_rows
from rocketsim_cli.trouble import Trouble, WrongCommandLine

commands = typer.Typer(
    name="context", help="Name clusters, so that commands need no address each time.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="The context's name.")]

FILES = ("tls_ca", "tls_cert", "tls_key")
DEFAULTS = {one.name: one.default for one in fields(ConnectionOptions)}


@dataclass(frozen=True, slots=True)
class Contexts:
    clusters: dict[str, Cluster] = field(default_factory=dict)
    current: str = ""

    def of(self, name: str) -> Cluster:
        try:
            return self.clusters[name]
        except KeyError:
            known = ", ".join(sorted(self.clusters)) or "none"
            raise Trouble(f"there is no context {name!r}; known: {known} (rocketsim context add makes one)") from None

    def chosen(self, name: str | None) -> Cluster | None:
        """Returns the context with this name, or the current context if no name is given.  Returns None if no context
        is current.  Raises Trouble if the context does not exist.
        """
        name = name or self.current
        return self.of(name) if name else None

    def text(self) -> str:
        """Returns the text of the contexts file.  Options that have their default value are left out."""
        lines = [f"current = {_toml(self.current)}", ""]
        for name, cluster in sorted(self.clusters.items()):
            given = {one: value for one in DEFAULTS if (value := getattr(cluster.options, one)) != DEFAULTS[one]}
            values = {"nameServer": cluster.name_server} | {camel(one): value for one, value in given.items()}
            lines += [f"[contexts.{_toml(name)}]", *(f"{key} = {_toml(value)}" for key, value in values.items()), ""]
        return "\n".join(lines)


def _toml(value: bool | str | Path) -> str:
    """Returns a value in TOML's syntax.  JSON's syntax is valid TOML, too, if the character DEL is escaped."""
    text = json.dumps(value if isinstance(value, bool) else str(value), ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")


def path() -> Path:
    """Returns the path of the contexts file, which need not exist.  The path is relative if the user has no home
    directory.
    """
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) / "rocketsim" / "contexts.toml"


def load() -> Contexts:
    """Reads the contexts file.  Raises Trouble with the path and the reason if the file is damaged."""
    file = path()
    try:
        text = file.read_text("utf-8") if file.is_absolute() else ""
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except UnicodeDecodeError as error:
        raise _damaged(str(error)) from error
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _damaged(str(error)) from error
    found, current = read.get("contexts", {}), read.get("current", "")
    if not isinstance(found, dict) or not isinstance(current, str):
        raise _damaged("`contexts` has to be a table and `current` a string")
    contexts = Contexts({name: _cluster(name, values) for name, values in found.items()}, current)
    if any(cluster.options.secret_key for cluster in contexts.clusters.values()):
        warn_if_others_may_read(file)
    return contexts


def _cluster(name: str, values: Any) -> Cluster:
    types = {"nameServer": str} | {camel(one): bool if one == "tls" else str for one in DEFAULTS}
    if not isinstance(values, dict) or "nameServer" not in values:
        raise _damaged(f"context {name!r} has no nameServer")
    for key, value in values.items():
        if not isinstance(value, types.get(key, ())):
            raise _damaged(
                f"context {name!r}: {key} = {value!r} has an unknown key or a value of the wrong type; "
                f"keys: {', '.join(types)}"
            )
    given = {one: _option(one, values[camel(one)]) for one in DEFAULTS if camel(one) in values}
    try:
        return Cluster(values["nameServer"], ConnectionOptions(**given))
    except WrongCommandLine as error:  # the options do not fit together, for example a certificate without its key
        raise _damaged(f"context {name!r}: {error}") from error


def _option(name: str, value: Any) -> Any:
    return Path(value) if name in FILES else value


def _damaged(reason: str) -> Trouble:
    return Trouble(f"{path()}: {reason}; correct it, or remove it and add the contexts again")


def save(contexts: Contexts) -> None:
    """Replaces the contexts file as a whole, so that a failed write leaves the old content."""
    from broker_service.store.files import Files

    file = path()
    if not file.is_absolute():
        raise Trouble("this user has no home directory for the contexts file: set XDG_CONFIG_HOME")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    Files().write_atomically(file, contexts.text().encode(), private=True)


def takes_name_server(command: Any) -> bool:
    """Returns True if the command, or one of its subcommands, takes a name server's address."""
    below = getattr(command, "commands", {}).values()
    return any(one.name == "name_server" for one in command.params) or any(map(takes_name_server, below))


def defaults(command: Any, name_server: str) -> Mapping[str, Any]:
    """Returns Click's `default_map` that makes this name server the default of `-n` in the command and its subcommands.
    The command line and NAMESRV_ADDR override this default.
    """
    below = getattr(command, "commands", None)
    if below is None:
        return {"name_server": name_server}
    return {word: defaults(one, name_server) for word, one in below.items()}


# --- commands ---------------------------------------------------------------------------------------------------------


@commands.command()
def add(context: typer.Context, name: Name, name_server: NameServer, as_json: AsJson = False) -> None:
    """Add a cluster, or replace it, and use it from now on.

    TLS, protocol, address map and namespace come from the options before the command
    (`rocketsim --tls --tls-ca FILE context add …`), and the keys with their security token from the environment
    (ROCKETSIM_ACCESS_KEY, ROCKETSIM_SECRET_KEY and ROCKETSIM_SECURITY_TOKEN, or ROCKETSIM_TOOLS).
    """
    if not name:
        raise WrongCommandLine("a context needs a name")
    given = given_options(context)
    files = {one: file.absolute() for one in FILES if (file := getattr(given, one)) is not None}
    options = replace(given, **files, **credentials())
    _change(Contexts(load().clusters | {name: Cluster(name_server, options)}, name), as_json)


@commands.command()
def use(name: Name, as_json: AsJson = False) -> None:
    """Use this cluster from now on."""
    contexts = load()
    contexts.of(name)
    _change(replace(contexts, current=name), as_json)


@commands.command()
def remove(name: Name, as_json: AsJson = False) -> None:
    """Remove a cluster from the list."""
    contexts = load()
    contexts.of(name)
    left = {one: cluster for one, cluster in contexts.clusters.items() if one != name}
    _change(Contexts(left, "" if contexts.current == name else contexts.current), as_json)


@commands.command("list")
def list_contexts(as_json: AsJson = False) -> None:
    """List the clusters, without their secrets."""
    _show(load(), as_json)


def _change(contexts: Contexts, as_json: bool) -> None:
    save(contexts)
    _show(contexts, as_json)


def _show(contexts: Contexts, as_json: bool) -> None:
    rows = [
        {
            "current": name == contexts.current,
            "name": name,
            "nameServer": cluster.name_server,
            "tls": cluster.options.tls,
            "protocol": cluster.options.protocol,
            "accessKey": cluster.options.access_key or None,
        }
        for name, cluster in sorted(contexts.clusters.items())
    ]
    show_rows(["current", "name", "nameServer", "tls", "protocol", "accessKey"], rows, as_json=as_json)
