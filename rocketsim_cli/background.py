"""The background, into which `rocketsim up --detach` puts itself: a process in a session of its own."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import typer

from rocketsim_cli.trouble import Trouble


class Background:
    """The way from the process in the background to the one that the user has started, which waits."""

    def __init__(self, log: Path) -> None:
        """Returns in the new process.  The old one waits for `is_ready` or the end of the new one, prints what that has
        said, and ends with SystemExit or Trouble.

        Call it before there are threads: the new process is a fork.  Its output goes to `log`, which is emptied.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        log.write_bytes(b"")
        reading, self._writing = os.pipe()  # the servers do not inherit them
        if pid := os.fork():
            os.close(self._writing)
            _wait(pid, reading, log)
        os.close(reading)
        os.setsid()  # a closed terminal and its Ctrl-C do not reach this process
        for number, path, flags in ((0, os.devnull, os.O_RDONLY), *((one, str(log), os.O_APPEND) for one in (1, 2))):
            handle = os.open(path, flags | (os.O_WRONLY if number else 0))
            os.dup2(handle, number)
            os.close(handle)

    def is_ready(self) -> None:
        sys.stdout.flush()
        with suppress(BrokenPipeError):  # the process that waits was killed
            os.write(self._writing, b"\n")
        os.close(self._writing)


def _wait(pid: int, reading: int, log: Path) -> NoReturn:
    try:
        is_ready = bool(os.read(reading, 1))
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise Trouble("the cluster was stopped before it was ready") from None
    said = log.read_text(errors="replace")
    if not is_ready:
        os.waitpid(pid, 0)
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
        raise Trouble(f"the cluster did not start: {last.removeprefix('rocketsim: ')} (log: {log})")
    print(said, end="")
    raise typer.Exit
