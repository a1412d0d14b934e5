"""All writes and syncs of the store go through Disk, which decides what follows when one of them fails.

`VERDICTS` is the table of decisions, by operation and kind of error.  docs/replication.md shows the same table.

- GO_ON: the caller gets the error, and nothing else changes.  GO_ON is also the verdict for a sync that could not be
  tried, because no file handle was free or the file was gone.
- REFUSE: the write has not happened and its caller gets the error; later writes are tried as usual.
- STOP: a sync failed.  The kernel may have dropped the bytes it could not write and marked their pages clean, so a
  second sync would succeed although these bytes are not on disk.  After a STOP nothing is written, and the store is not
  marked as closed; the next start writes the bytes in doubt again.
"""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Self

from broker_service.errors import FlushFailed
from broker_service.store.files import NO_ROOM, Buffer, Files

logger = logging.getLogger(__name__)


class Verdict(Enum):
    GO_ON = "go on"
    REFUSE = "refuse writes"
    STOP = "stop"


class Operation(Enum):
    READ = "read, open, list"
    WRITE = "write, create, allocate, rename, remove"
    SYNC = "sync of a file or directory"


NO_HANDLE = frozenset((errno.EMFILE, errno.ENFILE))
GONE = frozenset((errno.ENOENT,))
ERRORS = ("no room", "no handle (EMFILE)", "the file is gone", "EIO and all others")

VERDICTS = {
    # each operation has one verdict for each error in ERRORS
    Operation.READ: (Verdict.GO_ON, Verdict.GO_ON, Verdict.GO_ON, Verdict.GO_ON),
    Operation.WRITE: (Verdict.REFUSE, Verdict.REFUSE, Verdict.REFUSE, Verdict.REFUSE),
    Operation.SYNC: (Verdict.STOP, Verdict.GO_ON, Verdict.GO_ON, Verdict.STOP),
}

_METHODS = {
    Operation.READ: "open map pread pread_cached is_cached send read written_parts exists size modified_ms names "
    "disk_usage",
    Operation.WRITE: "create pwrite preallocate resize make_directory remove remove_tree rename make_private",
    Operation.SYNC: "fdatasync sync_directory",
}
OPERATIONS = {method: operation for operation, methods in _METHODS.items() for method in methods.split()}


def verdict(method: str, error: int | None) -> Verdict:
    """Returns what follows when this method of `Files` fails with this errno; "create" means `open` with `create`."""
    kinds = (NO_ROOM, NO_HANDLE, GONE)
    column = next((number for number, kind in enumerate(kinds) if error in kind), len(kinds))
    return VERDICTS[OPERATIONS[method]][column]


class Attempt:
    """A context for writes that the store can do without.  If a write in the context fails, `refused` is its error.

    A FlushFailed is raised out of the context and is not kept in `refused`, because the store has then stopped.
    """

    refused: OSError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, OSError) or isinstance(error, FlushFailed):
            return False
        self.refused = error
        return True


class Disk(Files):
    """The files of one store.  `fatal` is None, or the reason why nothing is written any more; reads still work then.

    With `private`, only the owner may use the files and directories that it creates.
    """

    def __init__(self, files: Files, root: Path, *, private: bool = False) -> None:
        self.fatal: str | None = None
        self._files = files
        self._root = root
        self._private = private
        self._paths: dict[int, Path] = {}  # open handle -> its path, which errors name
        # Errors of reads and of `pwrite` never lead to a STOP.  To save a call, the methods that read, and `pwrite`
        # until `stop`, are therefore those of the file system.
        own = vars(Disk).keys() | {"write_atomically", "read_synced", "discard"}
        names = [name for name in dir(Files) if not name.startswith("_") and name not in own]
        self.__dict__.update({name: getattr(files, name) for name in (*names, "pwrite")})

    def check(self) -> None:
        """Raises FlushFailed if nothing may be written any more."""
        if self.fatal is not None:
            raise FlushFailed(self.fatal)

    def stop(self, reason: str) -> None:
        """Refuses all writes from now on."""
        if self.fatal is None:
            self.fatal = reason
            self.__dict__.pop("pwrite", None)

    @contextmanager
    def _judged(self, method: str, path: Path | None) -> Iterator[None]:
        """Raises FlushFailed if the disk has stopped, or if the write or sync in this context fails and the verdict is
        STOP.
        """
        self.check()
        try:
            yield
        except OSError as error:
            if verdict(method, error.errno) is not Verdict.STOP:
                raise
            if self.fatal is None:
                self.stop(
                    f"syncing {path or self._root} failed ({error}): what was written is in doubt, restart the broker"
                )
                logger.critical("%s", self.fatal)
            self.check()

    def open(self, path: Path, *, create: bool = False, read_only: bool = False, private: bool = False) -> int:
        if create:
            with self._judged("create", path):
                handle = self._files.open(path, create=True, read_only=read_only, private=private or self._private)
        else:
            handle = self._files.open(path, read_only=read_only)
        self._paths[handle] = path
        return handle

    def close(self, handle: int) -> None:
        self._paths.pop(handle, None)
        self._files.close(handle)

    def pwrite(self, handle: int, data: Buffer, offset: int) -> None:
        with self._judged("pwrite", self._paths.get(handle)):
            self._files.pwrite(handle, data, offset)

    def preallocate(self, handle: int, size: int) -> None:
        with self._judged("preallocate", self._paths.get(handle)):
            self._files.preallocate(handle, size)

    def resize(self, handle: int, size: int) -> None:
        with self._judged("resize", self._paths.get(handle)):
            self._files.resize(handle, size)

    def make_directory(self, path: Path) -> None:
        with self._judged("make_directory", path):
            inside = [one for one in (path, *path.parents) if self._private and one.is_relative_to(self._root)]
            missing = [one for one in inside if not self._files.exists(one)]
            self._files.make_directory(path)
            for made in missing:
                self._files.make_private(made)

    def remove(self, path: Path) -> None:
        with self._judged("remove", path):
            self._files.remove(path)

    def remove_tree(self, path: Path) -> None:
        with self._judged("remove_tree", path):
            self._files.remove_tree(path)

    def rename(self, source: Path, target: Path) -> None:
        with self._judged("rename", target):
            self._files.rename(source, target)

    def make_private(self, path: Path) -> bool:
        with self._judged("make_private", path):
            return self._files.make_private(path)

    def lock(self, path: Path, *, private: bool = False) -> int:
        return self._files.lock(path, private=private or self._private)

    def fdatasync(self, handle: int) -> None:
        with self._judged("fdatasync", self._paths.get(handle)):
            self._files.fdatasync(handle)

    def sync_directory(self, path: Path) -> None:
        with self._judged("sync_directory", path):
            self._files.sync_directory(path)

    def take_from_others(self) -> None:
        """Makes the existing files private if the store is `private`.

        Other users may have rights on files that are older than the setting `private`, or that were copied into the
        directory.
        """
        if not self._private:
            return
        taken: list[Path] = []
        refused: list[str] = []
        self._take_from_others(self._root, taken, refused)
        if taken:
            logger.warning(
                "%s: others could use %d of its files and directories, such as %s; from now on only the owner can",
                self._root,
                len(taken),
                taken[0],
            )
        if refused:
            logger.error(
                "%s: others may use %d of its files and directories, and this cannot be changed: %s",
                self._root,
                len(refused),
                refused[0],
            )

    def _take_from_others(self, path: Path, taken: list[Path], refused: list[str]) -> None:
        try:
            if self.make_private(path):
                taken.append(path)
            names = self.names(path)
        except FileNotFoundError:
            return
        except OSError as error:
            refused.append(str(error))
            return
        for name in names:
            self._take_from_others(path / name, taken, refused)

    def __str__(self) -> str:
        return self.fatal or f"disk of {self._root}"
