"""Starts and ends a contestant's process.

`leash.py PARENT COMMAND...` becomes COMMAND, which the kernel kills when the thread that started it ends.  A harness
that is killed with SIGKILL therefore leaves no JVM running.  COMMAND leads a process group.  Ctrl-C then reaches only
the harness, which ends its processes in order, and a contestant's children end with it.  A session would do that, too,
but would have its own share of the CPU (scheduling.py).
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

PR_SET_PDEATHSIG = 1


def start(command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """Starts a process as Popen does.  Call this function on a thread that lives as long as the harness."""
    words = [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]
    return subprocess.Popen(words, process_group=0, **options)


def kill(process: "subprocess.Popen[Any]") -> None:
    """Sends SIGKILL to a process of `start` and its children, unless the process is known to have ended."""
    if process.returncode is None:  # its end was not awaited, so no other process can have its number
        os.killpg(process.pid, signal.SIGKILL)


def main(parent: int, command: Sequence[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before PR_SET_PDEATHSIG was set
        sys.exit(1)
    try:
        os.execvp(command[0], list(command))
    except FileNotFoundError:
        sys.exit(f"{command[0]} is not installed")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
