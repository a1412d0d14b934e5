"""`until_parent_ends.py FD MODULE ARGUMENT...`: as `python -m MODULE ARGUMENT...`, dead once FD is closed elsewhere.

    Popen(until_parent_ends.command("broker_service", "broker", "-c", "FILE"), pass_fds=[until_parent_ends.lifeline()])

The process that starts a server holds the other end, so no server survives it, even after a SIGKILL.  The server exits
at once, without an orderly stop: no process is left to wait for one, and its store survives it.
"""

import functools
import os
import runpy
import sys
import threading


@functools.cache
def lifeline() -> int:
    """What the children of this process are to inherit.  Its other end is never closed, and no child gets it."""
    watched, _ = os.pipe()
    return watched


def command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, __file__, str(lifeline()), module, *arguments]


def die_with(fd: int) -> None:
    os.read(fd, 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=die_with, args=(int(sys.argv[1]),), daemon=True).start()
    sys.argv = sys.argv[2:]
    sys.path[0] = os.getcwd()  # as `python -m` has it
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
