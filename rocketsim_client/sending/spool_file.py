"""A spool on disk: one SQLite database in a directory that one process owns.  This module is synchronous and starts no
threads.

The table `records` has the records that wait for a broker, and the table `dead` has those that brokers have refused for
good.  A record has the bytes that a broker would have got, so its id, properties and birth time stay the same.
"""

import ctypes
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from isal import isal_zlib

from rocketsim_client import forks
from rocketsim_client.errors import SpoolUnusable

DATABASE = "spool.db"
LOCK = "spool.lock"
OF_SQLITE = (f"{DATABASE}-wal", f"{DATABASE}-shm")  # these files exist as long as the database is open
SCHEMA = 1
APPLICATION_ID = 0x52535370  # the letters "RSSp"; a new database has 0

_TABLES = (
    "CREATE TABLE records (id INTEGER PRIMARY KEY, topic TEXT NOT NULL, lane TEXT NOT NULL, msg_id TEXT NOT NULL, "
    "spooled_ms INTEGER NOT NULL, crc32 INTEGER NOT NULL, record BLOB NOT NULL)",
    "CREATE INDEX records_by_lane ON records (topic, lane)",
    "CREATE TABLE dead (id INTEGER PRIMARY KEY, topic TEXT NOT NULL, lane TEXT NOT NULL, msg_id TEXT NOT NULL, "
    "spooled_ms INTEGER NOT NULL, crc32 INTEGER NOT NULL, record BLOB NOT NULL, dead_ms INTEGER NOT NULL, "
    "reason TEXT NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA}",
)
_WAL_BYTES = 16 << 20  # an unused write-ahead log is cut to this size


class Row(NamedTuple):
    id: int
    topic: str
    lane: str
    msg_id: str
    spooled_ms: int
    crc32: int
    record: bytes

    @property
    def is_damaged(self) -> bool:
        return isal_zlib.crc32(self.record) != self.crc32


class Waiting(NamedTuple):
    """How many records of one lane wait for a broker, and how many bytes they have.  `oldest_ms` is the time when the
    oldest record was spooled."""

    topic: str
    lane: str
    records: int
    size_bytes: int
    oldest_ms: int


class Dead(NamedTuple):
    topic: str
    msg_id: str
    spooled_ms: int
    dead_ms: int
    reason: str
    record: bytes


class SpoolFile:
    """The spool's database, which only this process may write.  The constructor raises SpoolUnusable, which says why
    the database cannot be opened and what to do, and then leaves the directory unlocked.

    The methods raise sqlite3's errors.  A transaction that raises changes nothing.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            _make_directory(directory)
            self._lock = _Lock(directory)
        except OSError as error:
            raise SpoolUnusable(f"spool {directory}: {error.strerror}") from error
        try:
            identity = _made(directory)
            self._database = open_database(directory)
        except BaseException:
            self._lock.release()
            raise
        self._identities = {
            str(directory / DATABASE): identity,
            **{str(directory / name): _identity(directory / name) for name in OF_SQLITE},
            str(directory / LOCK): self._lock.identity,
        }
        if name := self.displaced():
            self.close()
            raise SpoolUnusable(f"spool {directory}: {name} was deleted, moved or replaced meanwhile; try again")
        forks.watch(self)

    def close(self) -> None:
        try:
            self._database.close()
        finally:
            self._lock.release()

    def forget_parent(self) -> None:
        """Keeps the database open in a forked child as long as the child lives, because closing it there would end
        the parent's write-ahead log."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._database))

    def displaced(self) -> str:
        """Returns the name of an open file that is no longer at its path, because it or a directory was deleted, moved
        or replaced.  A process that opens the path would not find what this process writes to the displaced file.
        Returns an empty text if all files are in place.  If the lock file and the database's file are both gone,
        returns the name of the database's file.  Any thread may call this method."""
        for path, identity in self._identities.items():
            if identity is None or _identity(path) != identity:
                return os.path.basename(path)
        return ""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Runs the block in a transaction.  When the block has ended, its changes are on the disk."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def insert(self, rows: Iterable[tuple[str, str, str, int, int, bytes]]) -> None:
        """Inserts rows of (topic, lane, message id, now in ms, CRC-32, record)."""
        self._database.executemany(
            "INSERT INTO records (topic, lane, msg_id, spooled_ms, crc32, record) VALUES (?, ?, ?, ?, ?, ?)", rows
        )

    def oldest(self, topic: str, lanes: Iterable[str], max_bytes: int) -> list[Row]:
        """Returns the oldest records, lane by lane: at most `max_bytes` together, but at least one record."""
        found: list[Row] = []
        size = 0
        for lane in lanes:
            query = "SELECT * FROM records WHERE topic = ? AND lane = ? ORDER BY id"
            with closing(self._database.execute(query, (topic, lane))) as rows:
                for row in map(Row._make, rows):
                    if found and size + len(row.record) > max_bytes:
                        return found
                    found.append(row)
                    size += len(row.record)
        return found

    def delete(self, rows: Sequence[Row]) -> None:
        self._database.executemany("DELETE FROM records WHERE id = ?", [(row.id,) for row in rows])

    def bury(self, rows: Sequence[Row], reason: str, now_ms: int) -> None:
        """Moves the rows to the table `dead`."""
        self._database.executemany(
            "INSERT INTO dead (topic, lane, msg_id, spooled_ms, crc32, record, dead_ms, reason) "
            "SELECT topic, lane, msg_id, spooled_ms, crc32, record, ?, ? FROM records WHERE id = ?",
            [(now_ms, reason, row.id) for row in rows],
        )
        self.delete(rows)

    def discard_dead(self) -> int:
        return self._database.execute("DELETE FROM dead").rowcount

    def give_back(self) -> None:
        """Returns unused pages to the file system.  Must not be called inside a transaction."""
        self._database.executescript("PRAGMA incremental_vacuum")  # `execute` would stop after one page

    def waiting(self) -> list[Waiting]:
        return _waiting(self._database)

    def oldest_ms(self) -> int:
        """Returns when the oldest record was spooled, or 0 if the spool has no record."""
        found = self._database.execute("SELECT spooled_ms FROM records ORDER BY id LIMIT 1").fetchone()
        return found[0] if found else 0

    def dead_size(self) -> tuple[int, int]:
        """Returns the number of dead records (damaged, or refused for good), and their bytes."""
        count, size = self._database.execute("SELECT count(*), total(length(record)) FROM dead").fetchone()
        return count, int(size)


class SpoolView:
    """Reads a spool while a producer may use it: it takes no lock and writes nothing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        path = directory / DATABASE
        if not path.exists():
            raise SpoolUnusable(f"{directory}: there is no {DATABASE} in it; name the directory of a Producer(spool=)")
        try:
            self._database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        except sqlite3.Error as error:
            raise _unusable(directory, error) from error

    def __enter__(self) -> "SpoolView":
        try:
            if _check_version(self._database, self._directory):
                raise SpoolUnusable(f"{self._directory}: nothing was ever spooled here")
        except sqlite3.Error as error:
            self._database.close()
            raise _unusable(self._directory, error) from error
        except BaseException:
            self._database.close()
            raise
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        """Closes the database, and turns an error of SQLite into SpoolUnusable."""
        self._database.close()
        if isinstance(error, sqlite3.Error):
            raise _unusable(self._directory, error) from error

    def waiting(self) -> list[Waiting]:
        return _waiting(self._database)

    def dead(self) -> Iterator[Dead]:
        query = "SELECT topic, msg_id, spooled_ms, dead_ms, reason, record FROM dead ORDER BY id"
        return map(Dead._make, self._database.execute(query))


def _waiting(database: sqlite3.Connection) -> list[Waiting]:
    query = (
        "SELECT topic, lane, count(*), sum(length(record)), min(spooled_ms) FROM records GROUP BY topic, lane "
        "ORDER BY min(id)"
    )
    return list(map(Waiting._make, database.execute(query)))


def _make_directory(directory: Path) -> None:
    """Makes the directory and its missing parents, and returns when all of them are on the disk."""
    missing = list(takewhile(lambda path: not path.exists(), (directory, *directory.parents)))
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in missing:
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _identity(file: int | str | Path) -> tuple[int, int] | None:
    """Returns the device and inode of a path or descriptor, or None if no file is found."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _Lock:
    """The lock of the directory, in a file of its own, because SQLite's own lock would keep readers out.  The lock is
    held until `release` or the end of this process.  A forked child closes its copy of the lock file, so that only the
    parent has the lock."""

    def __init__(self, directory: Path) -> None:
        """Raises SpoolUnusable if another process has the lock, and OSError if the file cannot be opened or written."""
        self._descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.identity = _identity(self._descriptor)
        forks.watch(self)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            owner = os.read(self._descriptor, 20).decode(errors="replace").strip() or "another"
            self.release()
            raise SpoolUnusable(
                f"spool {directory}: process {owner} has it open; give each producer a directory of its own, or close "
                "the producer that has it"
            ) from None
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Unlocks explicitly, because closing the descriptor may not be enough.  A child that is just being forked
        may still have a copy of the descriptor, and the lock would last until all copies are closed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def forget_parent(self) -> None:
        """Closes the child's copy of the descriptor, so that only the parent holds the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _made(directory: Path) -> tuple[int, int] | None:
    """Makes the database's file if it is missing, and returns its device and inode."""
    try:
        # Only the owner may read the file, because it has message bodies.
        descriptor = os.open(directory / DATABASE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(directory, error) from error
    try:
        return _identity(descriptor)
    finally:
        os.close(descriptor)


def open_database(directory: Path) -> sqlite3.Connection:
    path = directory / DATABASE
    try:
        # Only one thread uses the database at a time, but that thread is not the one that opens it here.
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise _unusable(directory, error) from error
    try:
        _prepare(database, directory)
    except (OSError, sqlite3.Error) as error:
        database.close()
        raise _unusable(directory, error) from error
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: sqlite3.Connection, directory: Path) -> None:
    is_new = _check_version(database, directory)
    if is_new:
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise SpoolUnusable(f"spool {directory}: its file system has no shared memory for SQLite; use a local disk")
    database.execute("PRAGMA synchronous = FULL")
    database.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    if not is_new:
        (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        return
    database.execute("BEGIN IMMEDIATE")
    for statement in _TABLES:
        database.execute(statement)
    database.execute("COMMIT")
    _sync_directory(directory)


def _check_version(database: sqlite3.Connection, directory: Path) -> bool:
    """Returns True if the database is new and empty.  Raises SpoolUnusable if the database is not a spool, or if a
    newer version has written it."""
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and version == 0 and tables == 0:
        return True
    if application != APPLICATION_ID:
        raise SpoolUnusable(f"spool {directory}: {DATABASE} is another program's database; name another directory")
    if version > SCHEMA:
        raise SpoolUnusable(
            f"spool {directory}: a newer version has written it (schema {version}, this one knows {SCHEMA}): upgrade "
            "the client"
        )
    return False


def _unusable(directory: Path, error: Exception) -> SpoolUnusable:
    if isinstance(error, OSError):
        return SpoolUnusable(f"spool {directory}: {error.strerror}")
    if is_damage(error):
        return SpoolUnusable(
            f"spool {directory}: {error}. {DATABASE} is damaged: move the directory away, and save what is left with "
            f"SQLite's own command (`sqlite3 {DATABASE} .recover`)"
        )
    return SpoolUnusable(f"spool {directory}: {error}")


def is_damage(error: Exception) -> bool:
    """Returns True if SQLite says that the database is damaged.  After an error that is not damage, such as a full
    disk, a later call may succeed."""
    return type(error) is sqlite3.DatabaseError
