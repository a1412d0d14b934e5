"""`rocketsim context`: clusters by name, so that commands need no address, TLS files and keys each time.

They are kept in `rocketsim/contexts.toml` in the user's folder for configuration, which only the user can read:

    current = "prod"

    [contexts.prod]
    nameServer = "10.0.0.1:9876;10.0.0.2:9876"
    tls = true
    tlsCa = "/etc/rocketsim/ca.pem"

What the command line or the environment says goes before what a context says.
"""

import json
import os
import tempfile
import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rocketsim_cli.credentials import credentials
from rocketsim_cli.options import AsJson, NameServer
from rocketsim_cli.tables import show_rows
from rocketsim_cli.tls import ConnectionOptions
from rocketsim_cli.trouble import Trouble, WrongCommandLine

commands = typer.Typer(name="context", help="Clusters by name, for all commands.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The context's name.")]


@dataclass(frozen=True, slots=True)
class Cluster:
    """How one cluster is reached.  Fields are the file's keys; empty ones are not written."""

    nameServer: str
    tls: bool = False
    tlsCa: str = ""
    tlsCert: str = ""
    tlsKey: str = ""
    protocol: str = "auto"
    accessKey: str = ""
    secretKey: str = field(default="", repr=False)

    def options(self) -> ConnectionOptions:
        """The options of `rocketsim` itself."""
        return ConnectionOptions(
            self.tls,
            _file(self.tlsCa),
            _file(self.tlsCert),
            _file(self.tlsKey),
            self.protocol,
            self.accessKey,
            self.secretKey,
        )


def _file(path: str) -> Path | None:
    return Path(path) if path else None


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
        """The context with this name; without a name the current one, if there is one."""
        return self.of(name) if name else self.of(self.current) if self.current else None

    def text(self) -> str:
        """A string of JSON is one of TOML."""
        lines = [f"current = {json.dumps(self.current)}", ""]
        for name, cluster in sorted(self.clusters.items()):
            lines.append(f"[contexts.{json.dumps(name)}]")
            values = ((one.name, getattr(cluster, one.name)) for one in fields(cluster))
            lines += [f"{key} = {json.dumps(value)}" for key, value in values if value]
            lines.append("")
        return "\n".join(lines)


def path() -> Path:
    """The file, which need not exist."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "rocketsim" / "contexts.toml"


def load() -> Contexts:
    """Raises Trouble with the file and what is wrong with it."""
    try:
        text = path().read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    try:
        read = tomllib.loads(text)
        clusters = {name: Cluster(**values) for name, values in read.get("contexts", {}).items()}
    except (tomllib.TOMLDecodeError, TypeError, AttributeError) as error:
        raise Trouble(f"{path()}: {error}; correct it, or remove it and add the contexts again") from error
    return Contexts(clusters, str(read.get("current", "")))


def save(contexts: Contexts) -> None:
    """Replaces the file as a whole."""
    folder = path().parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, written = tempfile.mkstemp(dir=folder)  # with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(contexts.text())
        os.replace(written, path())
    except BaseException:
        os.unlink(written)
        raise


def defaults(command: Any, name_server: str) -> dict[str, Any]:
    """Click's `default_map` that gives this name server to each command below, where neither `-n` nor its variable
    does."""
    below = getattr(command, "commands", None)
    if below is None:
        return {"name_server": name_server}
    return {word: defaults(one, name_server) for word, one in below.items() if one is not None}


# --- commands ---------------------------------------------------------------------------------------------------------


@commands.command()
def add(context: typer.Context, name: Name, name_server: NameServer, as_json: AsJson = False) -> None:
    """Add a cluster, or replace it, and use it from now on.

    TLS and protocol are the options before the command (`rocketsim --tls --tls-ca FILE context add …`); keys are those
    of the environment (ROCKETSIM_ACCESS_KEY and ROCKETSIM_SECRET_KEY, or ROCKETSIM_TOOLS).
    """
    if not name:
        raise WrongCommandLine("a context needs a name")
    given = context.find_object(ConnectionOptions) or ConnectionOptions()
    keys = credentials()
    cluster = Cluster(
        name_server,
        given.tls,
        _text(given.tls_ca),
        _text(given.tls_cert),
        _text(given.tls_key),
        given.protocol,
        keys["access_key"],
        keys["secret_key"],
    )
    _change(Contexts(load().clusters | {name: cluster}, name), as_json)


def _text(file: Path | None) -> str:
    return str(file.absolute()) if file else ""


@commands.command()
def use(name: Name, as_json: AsJson = False) -> None:
    """Use this cluster from now on."""
    contexts = load()
    contexts.of(name)
    _change(replace(contexts, current=name), as_json)


@commands.command()
def remove(name: Name, as_json: AsJson = False) -> None:
    """Forget a cluster."""
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
            "nameServer": cluster.nameServer,
            "tls": cluster.tls,
            "protocol": cluster.protocol,
            "accessKey": cluster.accessKey or None,
        }
        for name, cluster in sorted(contexts.clusters.items())
    ]
    show_rows(["current", "name", "nameServer", "tls", "protocol", "accessKey"], rows, as_json=as_json)
