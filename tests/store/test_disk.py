"""The table of the consequences of failed disk operations is the same in the code and in docs/replication.md."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_service.errors import FlushFailed
from broker_service.store.disk import ERRORS, OPERATIONS, VERDICTS, Attempt, Disk, Operation, Verdict, verdict
from broker_service.store.files import Files

ROOT = Path("/store")
DOCUMENT = Path(__file__).parents[2] / "docs/replication.md"
EXAMPLES = {"no room": errno.ENOSPC, "no handle (EMFILE)": errno.EMFILE, "the file is gone": errno.ENOENT}
COMPOSED = {"write_atomically", "read_synced", "discard"}  # of the others
UNJUDGED = {"close", "lock"}  # calls before and after the life of a store

CALLS: dict[str, Callable[[Disk], Any]] = {
    "open": lambda disk: disk.open(ROOT),
    "create": lambda disk: disk.open(ROOT, create=True),
    "map": lambda disk: disk.map(1),
    "pread": lambda disk: disk.pread(1, 1, 0),
    "pread_cached": lambda disk: disk.pread_cached(1, 1, 0),
    "is_cached": lambda disk: disk.is_cached(1, 1, 0),
    "send": lambda disk: disk.send(1, 1, 0, 1),
    "read": lambda disk: disk.read(ROOT),
    "written_parts": lambda disk: disk.written_parts(1, 0, 1),
    "exists": lambda disk: disk.exists(ROOT),
    "size": lambda disk: disk.size(ROOT),
    "modified_ms": lambda disk: disk.modified_ms(ROOT),
    "names": lambda disk: disk.names(ROOT),
    "disk_usage": lambda disk: disk.disk_usage(ROOT),
    "pwrite": lambda disk: disk.pwrite(1, b"a", 0),
    "preallocate": lambda disk: disk.preallocate(1, 1),
    "resize": lambda disk: disk.resize(1, 1),
    "make_directory": lambda disk: disk.make_directory(ROOT),
    "remove": lambda disk: disk.remove(ROOT),
    "remove_tree": lambda disk: disk.remove_tree(ROOT),
    "rename": lambda disk: disk.rename(ROOT, ROOT),
    "make_private": lambda disk: disk.make_private(ROOT),
    "fdatasync": lambda disk: disk.fdatasync(1),
    "sync_directory": lambda disk: disk.sync_directory(ROOT),
}


def failing(error: int) -> Disk:
    """A disk of which each operation fails."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(error, "it failed")

    files = Files()
    for method in OPERATIONS.keys() - {"create"}:
        setattr(files, method, fail)
    return Disk(files, ROOT)


def test_the_table_is_that_of_the_document():
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in DOCUMENT.read_text().splitlines()
        if line.startswith(("| what fails ", *(f"| {operation.value} |" for operation in Operation)))
    ]
    assert rows[0] == ["what fails", *ERRORS]
    assert {row[0]: row[1:] for row in rows[1:]} == {
        operation.value: [each.value for each in verdicts] for operation, verdicts in VERDICTS.items()
    }


def test_the_table_judges_everything_that_a_disk_does():
    methods = {name for name in dir(Files) if not name.startswith("_")}
    assert (OPERATIONS.keys() - {"create"}) | COMPOSED | UNJUDGED == methods
    assert CALLS.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("kind", ERRORS)
def test_what_the_table_says_is_what_happens(kind, method):
    error = EXAMPLES.get(kind, errno.EIO)
    expected = VERDICTS[OPERATIONS[method]][ERRORS.index(kind)]
    assert verdict(method, error) is expected
    disk = failing(error)
    stops = expected is Verdict.STOP
    with pytest.raises(OSError, match="in doubt" if stops else "it failed") as failed:
        CALLS[method](disk)
    assert isinstance(failed.value, FlushFailed) == stops == (disk.fatal is not None)
    for other, operation in OPERATIONS.items():
        with pytest.raises(OSError) as then:
            CALLS[other](disk)
        if stops and operation is not Operation.READ:
            assert isinstance(then.value, FlushFailed), f"{other} is tried after a failed {method}"
        elif not stops:
            break


def test_an_attempt_goes_on_without_a_refused_write_and_not_after_a_stop():
    disk = failing(errno.ENOSPC)
    with Attempt() as refused:
        disk.make_directory(ROOT)
    assert refused.refused is not None and refused.refused.errno == errno.ENOSPC
    with Attempt() as done:
        pass
    assert done.refused is None
    for _ in range(2):
        with pytest.raises(FlushFailed), Attempt():
            disk.fdatasync(1)
    with pytest.raises(ValueError), Attempt():
        raise ValueError
