"""The `rocketsim` command: puts the commands together, and turns expected errors into one line and an exit status.

Heavy modules (gRPC, PySpark, Arrow) are imported inside the commands, so that `--help` and completion are quick.
"""

import itertools
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer
from rocketsim_proto.extras import DISTRIBUTION
from rocketsim_proto.printable import printable

from rocketsim_cli import completion, connection_options, consume, contexts, produce, servers, spool, store
from rocketsim_cli.admin import commands as admin
from rocketsim_cli.connection import Invocation
from rocketsim_cli.console import console
from rocketsim_cli.demo.command import demo
from rocketsim_cli.doctor import doctor
from rocketsim_cli.down import down
from rocketsim_cli.status import status
from rocketsim_cli.tables import show_json
from rocketsim_cli.trouble import exit_status, explain, usage

app = typer.Typer(
    name="rocketsim",
    help="RocketMQ's master/slave broker pair in Python on gRPC, with Spark as its consumer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(servers.namesrv)
app.command()(servers.broker)
app.command()(servers.up)
app.command()(down)
app.command()(status)
app.command()(produce.produce)
app.command()(consume.consume)
app.command()(demo)
app.command()(console)
app.command()(doctor)
app.command()(spool.spool)
app.add_typer(store.commands, name="store")
app.add_typer(contexts.commands, name="context")
app.add_typer(admin, name="admin")


def show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # imported here, because the import takes a tenth of a command's start-up time

        from rocketsim_proto.records import kernels

        print(f"rocketsim {metadata.version(DISTRIBUTION)} (recordKernels={kernels.in_use()})")
        raise typer.Exit


@app.callback()
def rocketsim(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=show_version, is_eager=True)
    ] = False,
    tls: connection_options.Tls = False,
    tls_ca: connection_options.TlsCa = None,
    tls_cert: connection_options.TlsCert = None,
    tls_key: connection_options.TlsKey = None,
    protocol: connection_options.Protocol = "auto",
    address_map: connection_options.AddressMap = "",
    namespace: connection_options.Namespace = "",
    namespace_v2: connection_options.NamespaceV2 = "",
    cluster: Annotated[
        str | None,
        typer.Option(
            "--context",
            envvar="ROCKETSIM_CONTEXT",
            help="Use the context with this name; `rocketsim context list` shows them all.",
        ),
    ] = None,
) -> None:
    options = connection_options.ConnectionOptions(
        tls=tls,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        protocol=protocol,
        address_map=address_map,
        namespace=namespace,
        namespace_v2=namespace_v2,
    )
    context.obj = Invocation(options)
    word = context.invoked_subcommand or ""
    command = getattr(context.command, "commands", {}).get(word)
    # Commands that run servers or call no server do not read the contexts file.
    if word == "context" or command is None or not contexts.takes_name_server(command):
        return
    if (chosen := contexts.load().chosen(cluster)) is not None:
        context.obj = Invocation(options, chosen)
        context.default_map = {word: contexts.defaults(command, chosen.name_server)}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line. Always raises SystemExit."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    completion.join_words_of_bash()
    as_json = "--json" in itertools.takewhile(lambda word: word != "--", words)
    try:
        # Without --json, typer itself reports a wrong command line and exits.
        status = app(words, standalone_mode=not as_json)
    except Exception as error:
        status, line = usage(error) or (exit_status(error), explain(error))
        if line is None:
            raise
        if as_json:
            show_json({"kind": "error", "error": type(error).__name__, "message": line}, stderr=True)
        else:
            print(f"rocketsim: {printable(line, keep=chr(10))}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
