"""Flushes commits when Spark ends its stream runner.  `query.stop()` sends SIGTERM twice to the process of the stream
runner, and never calls the reader's stop().
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


def is_stream_runner() -> bool:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return spec is not None and spec.name == RUNNER


def flush_on_sigterm(flush: Callable[[], None]) -> None:
    """Installs a handler that calls `flush` on SIGTERM, and then ends the process in the usual way.

    Does nothing outside Spark's stream runner, because other programs handle their signals themselves.
    """
    if not is_stream_runner() or threading.current_thread() is not threading.main_thread():
        return

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Spark's second SIGTERM must not interrupt the flush
        try:
            flush()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, on_sigterm)
