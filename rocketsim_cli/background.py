"""Moves `rocketsim up --detach` into the background: the command continues in a forked process with its own session."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import typer

from rocketsim_cli.trouble import Trouble


class Background:
    """A forked process, and the pipe on which it tells its parent in the foreground that the cluster is ready."""

    def __init__(self, log: Path) -> None:
        """Forks this process, and returns only in the child.  The parent waits until the child calls `tell_ready` or
        ends, prints the child's output, and raises typer.Exit or Trouble.

        Make a Background before this process starts threads, because a fork copies only the calling thread.  The child
        writes its output to `log`, which is emptied first.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        log.write_bytes(b"")
        reading, self._writing = os.pipe()  # the servers do not inherit this pipe, because Python closes it in them
        if pid := os.fork():
            os.close(self._writing)
            _wait(pid, reading, log)
        os.close(reading)
        os.setsid()  # a new session, so that neither Ctrl-C nor the end of the terminal reaches this process
        for number, path, flags in ((0, os.devnull, os.O_RDONLY), *((one, str(log), os.O_APPEND) for one in (1, 2))):
            handle = os.open(path, flags | (os.O_WRONLY if number else 0))
            os.dup2(handle, number)
            os.close(handle)

    def tell_ready(self) -> None:
        sys.stdout.flush()
        with suppress(BrokenPipeError):  # the process in the foreground was killed
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
