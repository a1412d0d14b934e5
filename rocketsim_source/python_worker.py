"""Prepares an executor's Python worker for its tasks.  Spark forks the worker, which runs one task after another."""

import gc
import logging
import os
import socket
import sys
import threading
from contextlib import suppress

from rocketsim_proto.records import kernels

logger = logging.getLogger(__name__)

# Spark sends a task's last bytes to the JVM within this time after the task's code has ended.
LAST_BYTES_S = 0.01

is_codec_reported = False
is_heap_frozen = False


def report_missing_codec() -> None:
    """Logs a warning if this worker has no compiled record codec, so that slower Python code reads and writes records.
    Each task calls this function when it starts, and a process logs only one warning.

    `recordKernels` in the progress of a query is the codec of the driver, whose Python may be another installation.
    """
    global is_codec_reported
    if not is_codec_reported and kernels.is_missing():
        is_codec_reported = True
        logger.warning(
            "this Python worker of an executor has no compiled record codec (recordKernels=python), so Python code "
            "reads and writes its records, which takes several times as long; to change that, %s on each executor",
            kernels.ADVICE,
        )


def prepare_for_next_task() -> None:
    """Makes the worker's next task start sooner.  Each task calls this function at its end."""
    freeze_loaded_modules()
    if sys.platform == "linux":
        acknowledge_at_once()
        # What Spark sends to the JVM after a short task makes the kernel delay acknowledgements again.
        again = threading.Timer(LAST_BYTES_S, acknowledge_at_once)
        again.name, again.daemon = "rocketsim-acknowledge", True
        again.start()


def acknowledge_at_once() -> None:
    """Makes Linux acknowledge at once what the worker's TCP sockets receive, until they send again.

    The JVM sends a task to its worker in two small pieces, and without TCP_NODELAY.  Its kernel keeps the second piece
    until the first one is acknowledged, and the worker's kernel delays the acknowledgement by 40 ms if the worker has
    answered quickly before.  Thus each task would begin 40 ms late.  Code of a task does not get the socket to the JVM
    from Spark, so the option is set for all sockets of the process, which does no harm to the others.
    """
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:  # this container has no /proc
        return
    for name in names:
        try:
            # This is a copy of the descriptor, so that nothing here can close the process's own one.
            copy = os.dup(int(name))
        except OSError:
            continue  # another thread has closed it just now
        try:
            endpoint = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)  # it is no socket
            continue
        with endpoint, suppress(OSError):  # a Unix socket does not have the option
            endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def freeze_loaded_modules() -> None:
    """Excludes the modules that are loaded by now (Spark, Arrow, numpy, gRPC and this package) from garbage collection.
    Only the first call of a process has an effect.

    Spark's daemon calls `gc.collect()` after each task, and the worker's next task waits for the collection.  Scanning
    66,000 objects, none of which was garbage, took more CPU than reading 75,000 rows.  The freeze is done only once, so
    that garbage of later tasks is still found.
    """
    global is_heap_frozen
    if not is_heap_frozen:
        is_heap_frozen = True
        gc.freeze()
