"""`rocketsim store`: reads a broker's store directory, without running a broker and without taking a lock."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocketsim_cli.options import AsJson
from rocketsim_cli.tables import note, show_json
from rocketsim_cli.trouble import EXIT_TROUBLE

if TYPE_CHECKING:
    from broker_service.store.offline.survey import Survey

commands = typer.Typer(help="Read a store directory without a broker; nothing is changed.", no_args_is_help=True)

StoreDirectory = Annotated[
    Path, typer.Argument(metavar="DIR", help="A broker's storePathRootDir.", exists=True, file_okay=False)
]
PROGRESS_EVERY_S = 0.2  # seconds between two updates of the progress line on a terminal
NOTE_EVERY_S = 10.0  # seconds between two progress lines in a pipe or a file


@commands.command()
def dump(directory: StoreDirectory, as_json: AsJson = False) -> None:
    """Print records, blanks (the unused ends of log files), queues, the log's bounds and committed offsets as JSON
    lines.

    The output is the same with and without --json. Progress and the amount read go to standard error.
    """
    from broker_service.store.offline.dump import dump
    from broker_service.store.offline.survey import Survey, check_is_store

    check_is_store(directory)
    survey = Survey(watch=_progress(as_json, quiet=sys.stdout.isatty()))
    for line in dump(directory, survey):
        show_json(line)
    _clear_progress()
    if as_json:
        show_json(survey.as_line(), stderr=True)
    else:
        note(f"{directory}: {survey}")


@commands.command()
def verify(directory: StoreDirectory, as_json: AsJson = False) -> None:
    """Report what is damaged and where, and how much was checked.

    The exit status is 0 if nothing is worse than a warning, and 1 otherwise.
    """
    from broker_service.store.offline.survey import Survey, check_is_store
    from broker_service.store.offline.verification import Severity, verify

    check_is_store(directory)
    survey = Survey(watch=_progress(as_json))
    findings = 0
    harmed = False
    for finding in verify(directory, survey):
        findings += 1
        harmed = harmed or finding.severity is not Severity.WARNING
        _clear_progress()
        if as_json:
            show_json(finding.as_line())
        else:
            print(finding, flush=True)
    _clear_progress()
    if as_json:
        show_json({**survey.as_line(), "findings": findings})
    else:
        said = "nothing wrong" if not findings else f"{findings} finding{'' if findings == 1 else 's'}"
        print(f"{directory}: {said} in {survey}")
    raise typer.Exit(EXIT_TROUBLE if harmed else 0)


def _progress(as_json: bool, *, quiet: bool = False) -> "Callable[[Survey], None]":
    """Returns a function that prints on standard error how much of the store is read.  On a terminal the function
    rewrites one line; otherwise it prints a line every ten seconds.
    """
    live = sys.stderr.isatty() and not as_json
    said = time.monotonic()

    def watch(survey: "Survey") -> None:
        nonlocal said
        if quiet or time.monotonic() - said < (PROGRESS_EVERY_S if live else NOTE_EVERY_S):
            return
        said = time.monotonic()
        far = f"{survey.log_bytes} of {survey.total_bytes} bytes of the log, {survey.records} records"
        if live:
            print(f"\r{far}\033[K", end="", file=sys.stderr, flush=True)
        else:
            note(far, as_json=as_json)

    return watch


def _clear_progress() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
