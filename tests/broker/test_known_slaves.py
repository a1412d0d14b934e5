"""A broker remembers its slaves, even on a full disk and with a damaged file."""

import errno
from pathlib import Path
from typing import Any

import pytest

from broker_service.broker.metadata.known_slaves import KnownSlaves
from broker_service.errors import DiskFull, NotFound, StoreCorrupt
from broker_service.store.json_file import JsonFile


class FullDisk(JsonFile):
    has_room = True

    def save(self, value: dict[str, Any]) -> None:
        if not self.has_room:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().save(value)


def reloaded(path: Path) -> dict[int, str]:
    return KnownSlaves(JsonFile(path)).addresses


def test_a_slave_that_has_followed_is_known_until_it_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "slaves.json"
    slaves = KnownSlaves(JsonFile(path))
    told: list[dict[int, str]] = []
    slaves.changed.append(lambda: told.append(slaves.addresses))
    assert slaves.addresses == {} and str(slaves) == "none"
    slaves.joined(2, "b:1")
    slaves.joined(1, "a:1")
    slaves.joined(1, "a:1")
    slaves.joined(2, "b:2")  # it has moved
    slaves.joined(3, "a:1")  # it has another id
    assert reloaded(path) == slaves.addresses == {2: "b:2", 3: "a:1"}
    assert len(told) == 4
    with pytest.raises(NotFound, match="slave 1 is not known here; known are: 2 at b:2, 3 at a:1"):
        slaves.remove(1)
    slaves.remove(3)
    assert reloaded(path) == {2: "b:2"}
    slaves.adopt({})
    assert reloaded(path) == {}


def test_on_a_full_disk_a_slave_is_known_at_once_and_written_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = FullDisk(tmp_path / "slaves.json")
    slaves = KnownSlaves(file)
    slaves.joined(1, "a:1")
    file.has_room = False
    slaves.joined(2, "b:1")
    slaves.joined(2, "b:1")
    assert slaves.addresses == {1: "a:1", 2: "b:1"} and reloaded(file.path) == {1: "a:1"}
    assert caplog.text.count("the list of known slaves is in memory only") == 1
    with pytest.raises(DiskFull):
        slaves.remove(1)
    assert 1 in slaves.addresses
    file.has_room = True
    slaves.joined(2, "b:1")
    assert reloaded(file.path) == {1: "a:1", 2: "b:1"}


@pytest.mark.parametrize("text", ['{"slaves": {"one": "a:1"}}', '{"slaves": []}'])
def test_a_file_that_makes_no_sense_says_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "slaves.json"
    path.write_text(text)
    with pytest.raises(StoreCorrupt, match="remove it: slaves are known again"):
        KnownSlaves(JsonFile(path))
