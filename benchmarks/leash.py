"""Starts and ends a contestant's process: `leash.py PARENT COMMAND...` becomes COMMAND, which the kernel kills when the
thread that started it ends.

So a harness that is killed outright leaves no JVM behind.  It is the leader of a process group: Ctrl-C is the harness's
alone, which ends its processes in order, and what a contestant has started ends with it.  A session of its own would do
that, too, and would give it a share of the CPU of its own, see scheduling.py.
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
    """As Popen, from a thread that lives as long as the harness."""
    words = [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]
    return subprocess.Popen(words, process_group=0, **options)


def kill(process: "subprocess.Popen[Any]") -> None:
    """Sends SIGKILL to a process of `start` and to all that it has started; not to one whose end was awaited."""
    if process.returncode is None:  # nobody else has its number yet
        os.killpg(process.pid, signal.SIGKILL)


def main(parent: int, command: Sequence[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was told
        sys.exit(1)
    try:
        os.execvp(command[0], list(command))
    except FileNotFoundError:
        sys.exit(f"{command[0]} is not installed")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
