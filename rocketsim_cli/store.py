"""`rocketsim store`: look into a store directory without a broker.  Reads only, takes no lock."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rocketsim_cli.trouble import EXIT_TROUBLE

commands = typer.Typer(help="Look into a store directory, offline and read-only.", no_args_is_help=True)

StoreDirectory = Annotated[
    Path, typer.Argument(metavar="DIR", help="A broker's storePathRootDir.", exists=True, file_okay=False)
]


@commands.command()
def dump(directory: StoreDirectory) -> None:
    """Records, blanks, queues, the log's bounds and committed offsets, as JSON lines."""
    from broker_service.store.inspect import dump

    for line in dump(directory):
        print(json.dumps(line, ensure_ascii=False, separators=(",", ":")))


@commands.command()
def verify(
    directory: StoreDirectory,
    as_json: Annotated[bool, typer.Option("--json", help="Findings as JSON lines.")] = False,
) -> None:
    """Say what is damaged and where.  The status is 0 when there is nothing, or nothing worse than a warning."""
    from broker_service.store.inspect import Severity, verify

    findings = 0
    harmed = False
    for finding in verify(directory):
        findings += 1
        harmed = harmed or finding.severity is not Severity.WARNING
        print(json.dumps(finding.as_line(), ensure_ascii=False) if as_json else finding, flush=True)
    if not findings and not as_json:
        print(f"{directory}: nothing wrong")
    raise typer.Exit(EXIT_TROUBLE if harmed else 0)
