"""Disk: may it be trusted?  Everything that a broker keeps is written and synced through this one object.

| what fails                                   | no room | no handle    | EIO and all others |
|----------------------------------------------|---------|--------------|--------------------|
| read, open, list                             |         | go on        | go on              |
| write, create, allocate, rename, remove      | refuse  | refuse       | refuse             |
| sync of a file or of a directory             | stop    | go on        | stop               |

Go on: who asked gets the error.  Refuse: this write has not happened, who asked for it hears so, the next one is tried.
Stop: the kernel may have dropped what it could not write and call the pages clean, so that a second sync would lie.
From then on nothing is written any more and the store is not marked as closed: the next start writes what is in doubt
again.  A sync that found no handle has not been tried, so it is tried again.
"""

import errno
import logging
from enum import Enum
from pathlib import Path
from typing import NoReturn

from broker_service.errors import FlushFailed
from broker_service.store.files import NO_ROOM, Files

logger = logging.getLogger(__name__)

NO_HANDLE = frozenset((errno.EMFILE, errno.ENFILE))
READS = frozenset(("open", "read"))
WRITES = frozenset(("create", "write", "preallocate", "resize", "make_directory", "rename", "remove"))
SYNCS = frozenset(("fdatasync", "sync_directory"))


class Verdict(Enum):
    GO_ON = "go on"
    REFUSE = "refuse writes"
    STOP = "stop"


def verdict(operation: str, error: int | None) -> Verdict:
    """What follows from an operation that failed with this errno: the table above."""
    if operation in SYNCS:
        return Verdict.GO_ON if error in NO_HANDLE or error == errno.ENOENT else Verdict.STOP
    if operation in WRITES:
        return Verdict.REFUSE
    assert operation in READS, operation
    return Verdict.GO_ON


class Disk(Files):
    """The files of one store.  `fatal` says why nothing is written any more; reads go on."""

    def __init__(self, files: Files, root: Path) -> None:
        self.fatal: str | None = None
        self._files = files
        self._root = root
        self._paths: dict[int, Path] = {}  # of the open handles, for errors
        # What needs no judgement is the file system's own method: appends and reads make no call more.
        own = vars(Disk).keys() | {"write_atomically", "read_for_good", "discard"}
        names = [name for name in dir(Files) if not name.startswith("_") and name not in own]
        self.__dict__.update({name: getattr(files, name) for name in names})

    def check(self) -> None:
        """FlushFailed if nothing may be written any more."""
        if self.fatal is not None:
            raise FlushFailed(self.fatal)

    def stop(self, reason: str) -> None:
        """Nothing is written from now on."""
        if self.fatal is None:
            self.fatal = reason
            self.__dict__["pwrite"] = self._refused

    def _refused(self, *_: object) -> NoReturn:
        raise FlushFailed(self.fatal or "")

    def _failed(self, operation: str, path: Path | None, error: OSError) -> NoReturn:
        if verdict(operation, error.errno) is not Verdict.STOP:
            raise error
        if self.fatal is None:
            self.stop(
                f"syncing {path or self._root} failed ({error}): what was written is in doubt, restart the broker"
            )
            logger.critical("%s", self.fatal)
        self._refused()

    # --- what may have to be judged ---------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> int:
        if create:
            self.check()
        handle = self._files.open(path, create=create, read_only=read_only)
        self._paths[handle] = path
        return handle

    def close(self, handle: int) -> None:
        self._paths.pop(handle, None)
        self._files.close(handle)

    def fdatasync(self, handle: int) -> None:
        self.check()
        try:
            self._files.fdatasync(handle)
        except OSError as error:
            self._failed("fdatasync", self._paths.get(handle), error)

    def sync_directory(self, path: Path) -> None:
        self.check()
        try:
            self._files.sync_directory(path)
        except OSError as error:
            self._failed("sync_directory", path, error)

    # --- what is not done any more when the disk is not trusted -----------------------------------------------------

    def preallocate(self, handle: int, size: int) -> None:
        self.check()
        self._files.preallocate(handle, size)

    def resize(self, handle: int, size: int) -> None:
        self.check()
        self._files.resize(handle, size)

    def make_directory(self, path: Path) -> None:
        self.check()
        self._files.make_directory(path)

    def remove(self, path: Path) -> None:
        self.check()
        self._files.remove(path)

    def remove_tree(self, path: Path) -> None:
        self.check()
        self._files.remove_tree(path)

    def rename(self, source: Path, target: Path) -> None:
        self.check()
        self._files.rename(source, target)

    def __str__(self) -> str:
        return self.fatal or f"disk of {self._root}"


__all__ = ["NO_HANDLE", "NO_ROOM", "Disk", "Verdict", "verdict"]
