"""A spool's directory: its owner, the versions and damage that are refused, and what survives a transaction."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from isal import isal_zlib

from rocketsim_client import SpoolUnusable
from rocketsim_client.sending import spool_file
from rocketsim_client.sending.spool_file import DATABASE, LOCK, SCHEMA, SpoolFile, SpoolView
from testbed.processes import ROOT
from tests.client.test_fork import in_child
from tests.support.mounted_disks import SmallDisk


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def filled(directory: Path, count: int = 3, lane: str = "", size: int = 10) -> None:
    file = SpoolFile(directory)
    with file.transaction():
        file.insert(row(number, lane, size) for number in range(count))
    file.close()


def row(number: int, lane: str = "", size: int = 10) -> tuple[str, str, str, int, int, bytes]:
    record = b"%d" % (number % 10) * size
    return "T", lane, f"id-{number}", 1000 + number, isal_zlib.crc32(record), record


def numbers(directory: Path) -> list[str]:
    file = SpoolFile(directory)
    found = [one.msg_id for one in file.oldest("T", [""], 1 << 30)]
    file.close()
    return found


def lock_descriptors() -> list[int]:
    """Of this process."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return [int(link.name) for link in links if link.is_symlink() and os.readlink(link).endswith(LOCK)]


def test_what_was_written_is_there_for_the_next_process_in_its_order(directory):
    filled(directory)
    assert numbers(directory) == ["id-0", "id-1", "id-2"]


def test_records_are_read_lane_by_lane_up_to_the_bytes_and_one_at_least(directory):
    filled(directory, 3, "b")
    filled(directory, 3, "a")
    file = SpoolFile(directory)
    assert [(one.lane, one.msg_id) for one in file.oldest("T", ["a", "b"], 49)] == [
        *(("a", f"id-{number}") for number in range(3)),
        ("b", "id-0"),
    ]
    assert [one.msg_id for one in file.oldest("T", ["b"], 1)] == ["id-0"]
    assert file.oldest("other", ["a"], 100) == []
    file.close()


def test_a_transaction_that_raises_leaves_nothing(directory):
    file = SpoolFile(directory)
    with pytest.raises(RuntimeError), file.transaction():
        file.insert([row(1)])
        raise RuntimeError
    with file.transaction():
        file.insert([row(2)])
    file.close()
    assert numbers(directory) == ["id-2"]


def test_sqlite_syncs_each_commit(directory, monkeypatch):
    """SQLite must sync each commit, which only a power loss can show, not a kill."""
    opened, connect = [], sqlite3.connect

    def noted(*given, **options):
        opened.append(connect(*given, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    file = SpoolFile(directory)
    assert opened[-1].execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert opened[-1].execute("PRAGMA journal_mode").fetchone() == ("wal",)
    file.close()


def test_each_directory_that_is_made_is_synced_with_the_one_it_is_in(tmp_path, monkeypatch):
    """Directories that exist already are not synced, because this process may have no right to read them."""
    synced, fsync = set(), os.fsync

    def noting(descriptor: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    SpoolFile(tmp_path / "a" / "b" / "spool").close()
    assert synced == {tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "spool"}
    synced.clear()
    (tmp_path / "a" / "there").mkdir()
    SpoolFile(tmp_path / "a" / "there").close()
    assert synced == {tmp_path / "a" / "there"}


def test_the_dead_keep_their_record_and_reason_and_wait_no_longer(directory):
    filled(directory)
    file = SpoolFile(directory)
    first, second = file.oldest("T", [""], 20)
    with file.transaction():
        file.bury([first], "too long", 5000)
        file.delete([second])
    file.close()
    with SpoolView(directory) as view:
        (dead,) = view.dead()
        assert (dead.msg_id, dead.reason, dead.spooled_ms, dead.dead_ms) == ("id-0", "too long", 1000, 5000)
        assert dead.record == b"0" * 10
        (waiting,) = view.waiting()
        assert (waiting.records, waiting.size_bytes, waiting.oldest_ms) == (1, 10, 1002)


def test_bodies_are_for_the_owner_only(directory):
    filled(directory)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes[DATABASE] == 0o600 and set(modes.values()) == {0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_second_owner_is_refused_with_the_pid_of_the_first_also_in_the_same_process(directory):
    file = SpoolFile(directory)
    with pytest.raises(SpoolUnusable, match=rf"process {os.getpid()} has it open; give each producer a directory"):
        SpoolFile(directory)
    code = (
        f"from pathlib import Path; from {SpoolFile.__module__} import SpoolFile; SpoolFile(Path({str(directory)!r}))"
    )
    other = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert other.returncode == 1 and f"process {os.getpid()} has it open" in other.stderr
    with SpoolView(directory) as view:  # a view needs no lock of the spool, and does not block the spool's owner
        assert view.waiting() == []
    file.close()
    SpoolFile(directory).close()


def test_a_newer_version_s_spool_is_refused_and_left_as_it_is(directory):
    filled(directory)
    newer = sqlite3.connect(directory / DATABASE)
    newer.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    newer.close()
    for opened in (SpoolFile, lambda where: SpoolView(where).__enter__()):
        with pytest.raises(SpoolUnusable, match=f"schema {SCHEMA + 1}, this one knows {SCHEMA}.: upgrade the client"):
            opened(directory)
    older = sqlite3.connect(directory / DATABASE)
    older.execute(f"PRAGMA user_version = {SCHEMA}")
    older.close()
    assert len(numbers(directory)) == 3


def test_another_program_s_database_is_refused(directory):
    directory.mkdir()
    other = sqlite3.connect(directory / DATABASE)
    other.execute("CREATE TABLE theirs (a)")
    other.close()
    with pytest.raises(SpoolUnusable, match="another program's database; name another directory"):
        SpoolFile(directory)


@pytest.mark.parametrize("at", [0, 20_000])
def test_a_damaged_database_is_refused_with_what_to_do(directory, at):
    """The damage is in the header, or in a page after it."""
    filled(directory, 2000, size=100)
    with open(directory / DATABASE, "r+b") as database:
        database.seek(at)
        database.write(b"\xa5" * 3000)
    with pytest.raises(SpoolUnusable, match=r"spool\.db is damaged: move the directory away, and save what is left"):
        SpoolFile(directory)


def test_a_look_at_a_damaged_database_says_what_to_do(directory):
    filled(directory, 2000, size=100)
    with open(directory / DATABASE, "r+b") as database:
        database.seek(4096)
        database.write(b"\xa5" * 60_000)
    with pytest.raises(SpoolUnusable, match=r"spool\.db is damaged: move the directory away"):
        with SpoolView(directory) as view:
            view.waiting()


def test_a_path_that_cannot_be_a_spool_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SpoolUnusable, match="file: File exists"):
        SpoolFile(tmp_path / "file")
    with pytest.raises(SpoolUnusable, match=r"there is no spool\.db in it"):
        SpoolView(tmp_path)


def test_files_that_are_replaced_while_they_are_opened_are_refused(directory, monkeypatch):
    opened = spool_file.open_database

    def replacing(where: Path) -> sqlite3.Connection:
        shutil.rmtree(where)
        where.mkdir()
        return opened(where)

    with monkeypatch.context() as patch:
        patch.setattr(spool_file, "open_database", replacing)
        with pytest.raises(SpoolUnusable, match=r"spool\.db was deleted, moved or replaced meanwhile; try again"):
            SpoolFile(directory)
    SpoolFile(directory).close()


def test_who_closes_files_that_are_gone_leaves_those_in_their_place(directory):
    old = SpoolFile(directory)
    shutil.rmtree(directory)
    new = SpoolFile(directory)
    assert (old.displaced(), new.displaced()) == (DATABASE, "")
    old.close()
    assert new.displaced() == ""
    new.close()


# --- the lock --------------------------------------------------------------------------------------------------------


def test_after_an_opening_that_failed_the_same_process_may_try_again(directory):
    filled(directory)
    database, good = directory / DATABASE, (directory / DATABASE).read_bytes()
    newer = sqlite3.connect(database)
    newer.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    newer.close()
    with pytest.raises(SpoolUnusable, match="upgrade the client"):
        SpoolFile(directory)
    database.write_bytes(b"\xa5" * len(good))
    with pytest.raises(SpoolUnusable, match="is damaged"):
        SpoolFile(directory)
    database.unlink()
    # opening a directory fails as opening a file without permission does, and root has every permission
    database.mkdir()
    with pytest.raises(SpoolUnusable, match="Is a directory"):
        SpoolFile(directory)
    database.rmdir()
    database.write_bytes(good)
    assert numbers(directory) == ["id-0", "id-1", "id-2"]


def test_after_an_opening_that_a_full_disk_failed_the_same_process_may_try_again(tmp_path):
    with SmallDisk(tmp_path / "disk", mib=4) as disk:
        old, new = disk.folder / "old", disk.folder / "new"
        filled(old)
        new.mkdir()
        (new / LOCK).touch()
        disk.fill()
        for directory in (old, new):
            with pytest.raises(SpoolUnusable, match=f"spool {directory}: "):
                SpoolFile(directory)
        disk.make_room()
        assert [len(numbers(directory)) for directory in (old, new)] == [3, 0]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_child_that_is_forked_while_the_spool_is_opened_does_not_hold_the_lock(directory, monkeypatch):
    opened = spool_file.open_database

    def child() -> None:
        assert not lock_descriptors()

    def forking(where: Path) -> sqlite3.Connection:
        assert len(lock_descriptors()) == 1
        in_child(child)
        return opened(where)

    monkeypatch.setattr(spool_file, "open_database", forking)
    SpoolFile(directory).close()


def test_a_close_gives_the_directory_free_also_while_a_child_is_being_forked(directory):
    """A forked child has a copy of the lock's descriptor until it closes the copy or runs another program."""
    file = SpoolFile(directory)
    of_the_child = os.dup(*lock_descriptors())
    file.close()
    SpoolFile(directory).close()
    os.close(of_the_child)
