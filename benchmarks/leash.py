"""Starts and ends the process of a contestant.

`leash.py PARENT COMMAND...` turns into the process COMMAND, which the kernel kills when the thread that started
`leash.py` ends.  Even a harness that is killed with SIGKILL therefore leaves no JVM running.  COMMAND becomes the
leader of a process group.  Ctrl-C therefore reaches only the harness, which ends its processes in order, and the
children of a contestant end together with the contestant.  COMMAND gets no session of its own, because each session
gets its own share of the CPU (scheduling.py).
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
    """Starts a process with the arguments of `Popen`.  The calling thread must live as long as the harness, because the
    started process ends together with this thread.
    """
    words = [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]
    return subprocess.Popen(words, process_group=0, **options)


def kill(process: "subprocess.Popen[Any]") -> None:
    """Sends SIGKILL to a process from `start` and its children, unless the process is known to have ended."""
    if process.returncode is None:  # the process was not reaped yet, so no other process can have its id
        os.killpg(process.pid, signal.SIGKILL)


def main(parent: int, command: Sequence[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before PR_SET_PDEATHSIG was set, so no signal would come
        sys.exit(1)
    try:
        os.execvp(command[0], list(command))
    except FileNotFoundError:
        sys.exit(f"{command[0]} is not installed")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
