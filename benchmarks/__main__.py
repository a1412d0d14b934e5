"""`python -m benchmarks [NAME] [--quick] [--json FILE]`: without NAME, lists the benchmarks; with NAME, runs one or all
and prints tables.

`python -m benchmarks chart --json FILE --svg FILE` draws a chart of the figures in FILE, which a run with --json has
written.
"""

import argparse
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import chart, machine, scheduling, tables
from benchmarks.bench import Bench, WrongResult
from benchmarks.contest import FULL, QUICK, SMOKE, Plan
from benchmarks.figures import QUICK_MARGIN
from benchmarks.page_cache import PageCache
from benchmarks.registry import BENCHMARKS, BY_NAME, GROUPS, Benchmark
from benchmarks.tables import Report

logger = logging.getLogger(__name__)

NAMES = [*BY_NAME, *GROUPS, "chart"]
INTERRUPTED = 130  # the exit status that shells use for SIGINT
QUIET = 0.1  # if other processes use a larger share of the machine than this, the figures are unreliable
NO_VERDICT = (
    f"no verdict: the full run may judge otherwise, because the target is less than {QUICK_MARGIN * 100:.0f} % away, "
    "the rounds disagree, or the figure depends on the amount of data"
)
WIDTH = 120  # the width of a table that is printed to a file


def main(argv: list[str] | None = None) -> int:
    made = parser()
    arguments = made.parse_args(argv)
    if (arguments.name == "chart") != (arguments.svg is not None) or (arguments.svg and not arguments.json):
        made.error("chart draws --svg FILE from --json FILE")
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    if arguments.name is None:
        tables.print_list(console, BENCHMARKS)
        return 0
    if arguments.name == "chart":
        arguments.svg.write_text(chart.svg(json.loads(arguments.json.read_text())))
        return 0
    plan = SMOKE if arguments.smoke else QUICK if arguments.quick else FULL
    chosen = GROUPS.get(arguments.name) or (BY_NAME[arguments.name],)
    if arguments.log:
        logging.basicConfig(filename=arguments.log, level=logging.INFO, format="%(asctime)s %(message)s")
        logging.getLogger("py4j").setLevel(logging.WARNING)
    reports: list[Report] = []
    good = True
    for one in chosen:
        try:
            report, broken = run(console, one, plan, arguments.directory, keep=arguments.keep, alone=arguments.alone)
            reports.append(report)
            good = good and not broken
        except Exception as error:  # continue, because the next benchmark may work
            good = False
            logger.exception("%s ended with an error", one.name)
            words = str(error) if isinstance(error, WrongResult) else reason(error)
            words = f"{one.name}: {words}; nothing that it measured counts"
            console.print(words, style="bold red", highlight=False, markup=False)
        # The figures are written after each benchmark, so that an interrupted run keeps them.
        if arguments.json:
            rows = [figure.row() for each in reports for figure in each.figures]
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
        if arguments.markdown:
            arguments.markdown.write_text(tables.markdown(reports))
    return 0 if good else 1


def reason(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # fails for a Spark error if the JVM, which makes the error's text, has ended
        return type(error).__name__


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    raise KeyboardInterrupt


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="./run bench", description="Without a name, lists the benchmarks.")
    made.add_argument("name", nargs="?", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    made.add_argument(
        "--quick", action="store_true", help="smaller data and 3 runs, at most 3 minutes a benchmark on two quiet cores"
    )
    made.add_argument(
        "--smoke", action="store_true", help="tiny data and one run: shows that a benchmark works, not how fast"
    )
    made.add_argument("--alone", action="store_true", help="run without peers, which are neither fetched nor started")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures as a list, too; chart reads it")
    made.add_argument("--svg", type=Path, metavar="FILE", help="the file that chart writes")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="write the table as Markdown, too")
    made.add_argument("--log", type=Path, metavar="FILE", help="log every single run when it ends")
    made.add_argument("--directory", type=Path, metavar="DIR", help="the folder for stores (default: a temporary one)")
    made.add_argument("--keep", action="store_true", help="keep the stores and logs")
    return made


def run(
    console: Console, one: Benchmark, plan: Plan, directory: Path | None, *, keep: bool, alone: bool
) -> tuple[Report, Sequence[str]]:
    """Runs a benchmark.  Returns the benchmark's report, and the failures of RocketSim after which the benchmark
    continued.
    """
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"rocketsim-bench-{one.name}-", dir=directory))
    begun = time.monotonic()
    others = machine.OthersShare()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with ExitStack() as stack:
            # The progress bar goes to standard error, because standard output has the table and may be a file.
            shown = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
            task = shown.add_task(one.name, total=None)

            def progress(done: int, total: int, what: str) -> None:
                shown.update(task, completed=done, total=total, description=f"{one.name}: {what}")

            # The servers end and the stores are verified at the end of this block, before any figure counts.
            with ExitStack() as parts:
                fill = (lambda: None) if plan is SMOKE else PageCache(folder).fill
                bench = Bench(one.name, plan, folder, parts, progress, keep=keep, alone=alone, fill_memory=fill)
                bench.doing("filling the free memory with page cache")
                fill()
                one.run(bench)
    finally:
        if keep:
            console.print(f"stores and logs are in {folder}", highlight=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    share = others()
    if share > QUIET:
        bench.note(f"others used {share * 100:.0f} % of the machine: measure again when it is quiet")
    load = f"{time.monotonic() - begun:.0f} s; others used {share * 100:.0f} % of the machine"
    runs = "1 counted run" if plan.rounds == 1 else f"{plan.rounds} counted runs"
    title = f"{one.name} ({one.targets}): {one.what} [{plan.name}, {runs}; {load}]"
    if plan is QUICK and any(figure.verdict == "no verdict" for figure in bench.figures):
        bench.note(NO_VERDICT)
    failed = [f"FAILED: {what}" for what in bench.broken]
    report = Report(
        title,
        [*machine.describe(), scheduling.describe(), command(one, plan, alone=alone)],
        bench.figures,
        failed + bench.notes,
        bench.cpu,
    )
    tables.print_report(console, report)
    return report, bench.broken


def command(one: Benchmark, plan: Plan, *, alone: bool) -> str:
    return f"./run bench {one.name}" + ("" if plan is FULL else f" --{plan.name}") + (" --alone" if alone else "")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)  # SIGTERM must also end all processes that were started
    try:
        status = main()
    except KeyboardInterrupt:
        status = INTERRUPTED
    sys.stdout.flush()
    # Unlike a normal exit, os._exit does not wait for idle threads of libraries.
    os._exit(status)
