"""Only their owner may read the files of a store with access control.  Without access control, the umask decides who
may read the files.
"""

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_service.store.disk import Disk
from broker_service.store.files import Files
from testbed.polling import until
from tests.support.access import KEYS
from tests.support.brokers import put, running
from tests.support.v2 import make_topics


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o002)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    """Returns the mode of the folder and of everything in it."""
    return {
        str(path.relative_to(root)): stat.S_IMODE(path.lstat().st_mode) for path in (root, *sorted(root.rglob("*")))
    }


async def used(root: Path, **keys: Any) -> None:
    async with running(root, grpc_server_port=0, **keys) as node:
        await until(lambda: bool(node.v2_port.address), "the port for RocketMQ 5's clients is open")
        make_topics(node)
        await put(node, "T", b"a secret")


async def test_a_store_with_access_control_is_its_owners_alone(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await used(root, **KEYS)
    found = modes(root)
    assert {"commitlog/00000000000000000000", "config/topics.json", "lock", "rocketsim/address"} <= found.keys()
    assert {path: oct(mode) for path, mode in found.items() if mode & 0o077} == {}


async def test_a_store_without_access_control_has_the_modes_that_the_umask_says(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await used(root)
    wrong = {
        path: oct(mode) for path, mode in modes(root).items() if mode != (0o775 if (root / path).is_dir() else 0o664)
    }
    assert wrong == {}


async def test_a_store_that_others_could_read_is_taken_from_them_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The store was made before access control was enabled, or by an older version."""
    root = tmp_path / "store"
    await used(root)
    await used(root, **KEYS)
    assert {path: oct(mode) for path, mode in modes(root).items() if mode & 0o077} == {}
    said = [one for one in caplog.records if "others could use" in one.getMessage()]
    assert len(said) == 1 and str(root) in said[0].getMessage()


def test_what_cannot_be_taken_from_others_is_an_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file belongs to another user, so the broker cannot change it and goes on."""

    class Refusing(Files):
        def make_private(self, path: Path) -> bool:
            raise PermissionError(1, "Operation not permitted", str(path))

    caplog.set_level(logging.INFO)
    Disk(Refusing(), tmp_path, private=True).take_from_others()
    assert "1 of its files and directories, and this cannot be changed" in caplog.text
    assert str(tmp_path) in caplog.text
