"""`until_parent_ends.py FD MODULE ARGUMENT...` runs like `python -m MODULE ARGUMENT...`, but ends when the other end of
the pipe FD closes.

    Popen(until_parent_ends.command("broker_service", "broker", "-c", "FILE"), pass_fds=[until_parent_ends.lifeline()])

The process that starts the server, its parent, holds the other end of the pipe.  The system closes the parent's end of
the pipe when the parent ends, even by a SIGKILL.  When the pipe closes, the server exits at once, because no process is
left to wait for an orderly stop.  A broker's store survives a sudden exit.
"""

import functools
import os
import runpy
import sys
import threading


@functools.cache
def lifeline() -> int:
    """Returns the read end of a pipe, which the children of this process inherit.  Only this process has the write end
    of the pipe, and keeps it open until it ends.
    """
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
    sys.path[0] = os.getcwd()  # as with `python -m`
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
