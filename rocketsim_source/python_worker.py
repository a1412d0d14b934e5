"""What a task does once for an executor's Python worker, which Spark forks and which runs one task after another."""

import gc
import logging

from rocketsim_proto.records import kernels

logger = logging.getLogger(__name__)

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


def freeze_loaded_modules() -> None:
    """Excludes the modules that are loaded by now (Spark, Arrow, numpy, gRPC and this package) from garbage collection.
    Each task calls this function at its end, and only the first call of a process has an effect.

    Spark's daemon calls `gc.collect()` after each task, and the worker's next task waits for the collection.  Scanning
    66,000 objects, none of which was garbage, took more CPU than reading 75,000 rows.  The freeze is done only once, so
    that garbage of later tasks is still found.
    """
    global is_heap_frozen
    if not is_heap_frozen:
        is_heap_frozen = True
        gc.freeze()
