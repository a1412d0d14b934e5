"""The `rocketsim` command: puts the commands together and turns expected trouble into one line and a status.

Heavy imports (gRPC, PySpark, Arrow) happen inside the commands, so that `--help` and completion are quick.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from rocketsim_cli import consume, demo, produce, servers, store
from rocketsim_cli.admin import commands as admin
from rocketsim_cli.trouble import EXIT_TROUBLE, explain

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
app.command()(produce.produce)
app.command()(consume.consume)
app.command()(demo.demo)
app.add_typer(store.commands, name="store")
app.add_typer(admin, name="admin")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Ends with SystemExit, always."""
    try:
        app(arguments)
    except Exception as error:
        line = explain(error)
        if line is None:
            raise
        print(f"rocketsim: {line}", file=sys.stderr)
    sys.exit(EXIT_TROUBLE)


if __name__ == "__main__":
    main()
