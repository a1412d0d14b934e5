"""`leash.py PARENT COMMAND...`: becomes COMMAND, which the kernel kills when the thread that started it ends.

So a harness that is killed outright leaves no JVM behind.  A session of its own, too: Ctrl-C is the harness's alone,
which ends its processes in order.  Elsewhere than on Linux only the session is made.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def leashed(command: Sequence[str]) -> list[str]:
    """For Popen, from a thread that lives as long as the harness."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(parent: int, command: Sequence[str]) -> None:
    os.setsid()
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
