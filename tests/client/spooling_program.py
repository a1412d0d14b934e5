"""A process with a producer and a spool, which tests kill; its arguments are NAME_SERVER DIR POINT.

It sends numbered messages of four groups until it is killed, and prints a line for each result.  POINT is the place in
the code where the process kills itself, or `never`.
"""

import os
import signal
import sys
from contextlib import contextmanager
from itertools import count
from typing import Any

from rocketsim_client import Message, Producer
from rocketsim_client.sending.spool_file import SpoolFile

GROUPS = 4


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_commit() -> None:
    transaction = SpoolFile.transaction
    insert = SpoolFile.insert
    inserted = False

    def inserting(file: SpoolFile, rows: Any) -> None:
        nonlocal inserted
        insert(file, rows)
        inserted = True

    @contextmanager
    def committing(file: SpoolFile) -> Any:
        with transaction(file):
            yield
        if inserted:
            die()

    SpoolFile.insert = inserting  # type: ignore[method-assign]
    SpoolFile.transaction = committing  # type: ignore[method-assign]


def main(name_server: str, directory: str, point: str) -> None:
    match point:
        case "before the commit":
            SpoolFile.insert = die  # type: ignore[method-assign]
        case "after the commit":
            die_after_commit()
        case "before the delete":
            SpoolFile.delete = die  # type: ignore[method-assign]
    with Producer(name_server, "spooling", spool=directory, timeout_s=1) as producer:
        if point == "before the delete":
            producer.drain_spool()
        for number in count():
            group = f"g{number % GROUPS}"
            result = producer.send(Message("T", b"%d" % number, tags=group), message_group=group)
            print(number, group, result.msg_id, result.send_status.name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
