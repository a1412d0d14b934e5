"""OpenFiles is a bounded cache of file handles and maps, which it opens when they are needed.

Only the event loop's thread uses this cache, and the flush thread itself opens the files that it syncs.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path

from broker_service.errors import ReadFailed
from broker_service.store.files import Files
from broker_service.store.residency import Cold, Place

Failed = Mapping[tuple[Path, int], ReadFailed]  # (file, position) -> the error with which a thread failed to read it
NOTHING_FAILED: Failed = {}


class OpenFiles:
    """Keeps at most `handles` handles and `maps` maps open; the least recently used one is closed to open another."""

    def __init__(self, files: Files, handles: int = 512, maps: int = 64) -> None:
        self.files = files
        self.waits = True  # False: a read raises Cold instead of waiting for the disk
        self.failed = NOTHING_FAILED
        self._handle_limit = handles
        self._map_limit = maps
        self._handles: OrderedDict[Path, int] = OrderedDict()
        self._maps: OrderedDict[Path, memoryview] = OrderedDict()

    def handle(self, path: Path) -> int:
        """Returns a handle of an existing file.  The handle is valid until the next call."""
        handle = self._handles.get(path)
        if handle is not None:
            self._handles.move_to_end(path)
            return handle
        try:
            handle = self.files.open(path)
        except PermissionError:
            handle = self.files.open(path, read_only=True)
        self._handles[path] = handle
        if len(self._handles) > self._handle_limit:
            self.files.close(self._handles.popitem(last=False)[1])
        return handle

    def read(self, path: Path, size: int, at: int) -> bytes:
        """Reads `size` bytes; it returns fewer only at the end of the file.

        If `waits` is False and the bytes are not in memory, the call raises Cold or, if a thread has failed to read
        these bytes, that thread's ReadFailed.  If the disk cannot read the bytes, the call raises a ReadFailed that
        names file and position.
        """
        try:
            if self.waits:
                return self.files.pread(self.handle(path), size, at)
            data = self.files.pread_cached(self.handle(path), size, at)
        except OSError as error:
            raise ReadFailed.of(path, at, error) from error
        if data is None:
            self.check_failed([(path, at, size)])
            raise Cold([(path, at, size)])
        return data

    def check_failed(self, places: Iterable[Place]) -> None:
        """Raises the error of the first of these places that a thread has failed to read."""
        for path, at, _ in places:
            if (failure := self.failed.get((path, at))) is not None:
                raise failure.with_traceback(None)  # else the error's traceback would grow each time it is raised

    def is_cached(self, path: Path, size: int, at: int) -> bool:
        """Returns True if reading these bytes would not wait.  Raises ReadFailed as `read` does."""
        try:
            return self.files.is_cached(self.handle(path), size, at)
        except OSError as error:
            raise ReadFailed.of(path, at, error) from error

    def map(self, path: Path) -> memoryview:
        """Maps the whole file read-only.  The map stays valid as long as the caller keeps it, even without the file.

        Raises ReadFailed if the file cannot be opened or mapped.
        """
        view = self._maps.get(path)
        if view is not None:
            self._maps.move_to_end(path)
            return view
        try:
            view = self._maps[path] = self.files.map(self.handle(path))
        except OSError as error:
            raise ReadFailed.of(path, 0, error) from error
        if len(self._maps) > self._map_limit:
            self._maps.popitem(last=False)
        return view

    def forget(self, path: Path) -> None:
        """Closes the handle and the map of a file.  Must be called before the file is deleted or replaced."""
        self._maps.pop(path, None)
        handle = self._handles.pop(path, None)
        if handle is not None:
            self.files.close(handle)

    def close(self) -> None:
        self._maps.clear()
        while self._handles:
            self.files.close(self._handles.popitem()[1])

    def __str__(self) -> str:
        return f"open files: {len(self._handles)} handles, {len(self._maps)} maps"


class WithoutWaiting:
    """A context in which reads of these files raise Cold instead of waiting for the disk.

    Contexts of this class cannot be nested.  A read of a place in `failed` raises the error with which a thread failed
    to read this place.
    """

    def __init__(self, open_files: OpenFiles) -> None:
        self._open = open_files

    def __call__(self, failed: Failed) -> "WithoutWaiting":
        self._open.failed = failed
        return self

    def __enter__(self) -> None:
        self._open.waits = False

    def __exit__(self, *_: object) -> None:
        self._open.waits = True
        self._open.failed = NOTHING_FAILED
