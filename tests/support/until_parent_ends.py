"""`until_parent_ends.py FD MODULE ARGUMENT...`: as `python -m MODULE ARGUMENT...`, dead once FD is closed elsewhere.

The tests hold that end, so a test run that is killed outright leaves no brokers behind.
"""

import os
import runpy
import sys
import threading


def die_with(fd: int) -> None:
    os.read(fd, 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=die_with, args=(int(sys.argv[1]),), daemon=True).start()
    sys.argv = sys.argv[2:]
    sys.path[0] = os.getcwd()  # as `python -m` has it
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
