"""A process locks the file `lock` while it uses the store's directory; the file `abort` exists until the process closes
the store.
"""

import logging
import os
from pathlib import Path

from broker_service.errors import StoreLocked
from broker_service.store.disk import Attempt
from broker_service.store.files import NO_ROOM, Files

logger = logging.getLogger(__name__)


class DirectoryLock:
    """A lock on the store's directory, held from construction on and compatible with RocketMQ's lock.

    The constructor raises StoreLocked if another process holds the lock.
    """

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._root = root
        self._abort = root / "abort"
        path = root / "lock"
        try:
            self._handle: int | None = files.lock(path)
        except BlockingIOError as error:
            pid = files.read(self._abort).decode(errors="replace").strip() if files.exists(self._abort) else ""
            raise StoreLocked(
                f"{root} is in use by {'process ' + pid if pid else 'another process'} (it holds {path}): "
                "stop that broker, or set another storePathRootDir"
            ) from error
        files.pwrite(self._handle, b"lock", 0)
        self.was_closed = not files.exists(self._abort)

    def mark_open(self) -> None:
        """Writes `abort`, so that a start before `mark_closed` finds that the store was not closed.

        On a full disk `abort` may be empty or missing.  The next start then sees in the file of the flushed offset that
        the store was not closed.  The file of the flushed offset can be written on a full disk, because its blocks are
        allocated.
        """
        with Attempt() as marking:
            self._files.write_atomically(self._abort, str(os.getpid()).encode())
        if marking.refused:
            if marking.refused.errno not in NO_ROOM:
                raise marking.refused
            logger.warning("%s could not be written: %s", self._abort, marking.refused)

    def mark_closed(self) -> None:
        self._files.remove(self._abort)
        self._files.sync_directory(self._root)

    def release(self) -> None:
        if self._handle is not None:
            self._files.close(self._handle)
            self._handle = None
