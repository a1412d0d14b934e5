"""Files that are read offline: they are searched in chunks, and an unreadable sector is an error
that names its place.
"""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_service.errors import ReadFailed
from broker_service.store.offline import file as offline_file
from broker_service.store.offline.dump import dump
from broker_service.store.offline.file import OfflineFile
from broker_service.store.offline.verification import verify
from tests.support.golden import unpack_golden


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline_file, "CHUNK", 12)
    monkeypatch.setattr(offline_file, "FIRST_CHUNK", 3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("offline") / "file"


@pytest.mark.usefixtures("small_chunks")
@given(data=st.lists(st.sampled_from(b"ab"), max_size=60).map(bytes), at=st.integers(0, 60))
def test_what_is_searched_for_is_found_wherever_pieces_part(path: Path, data: bytes, at: int) -> None:
    path.write_bytes(data)
    where = [found for found in range(at, len(data)) if data[found : found + 3] in (b"aab", b"bab")]
    assert list(OfflineFile(path).find([b"aab", b"bab"], at)) == where
    everywhere = [found for found in range(len(data)) if data[found : found + 2] == b"ab"]
    assert list(OfflineFile(path).find_backwards(b"ab")) == everywhere[::-1]
    assert OfflineFile(path).is_zero(at) == (not data[at:])


@pytest.mark.parametrize(
    ("file", "position"),
    [
        ("commitlog/00000000000000000000", 346),
        ("commitlog/00000000000004194304", (1 << 20) - 1),  # in the zeros after the end of the log
        ("consumequeue/golden_plain/0/00000000000000000000", 100),
        ("index/20261120102928642", 40 + 4000 + 20),
    ],
)
@pytest.mark.parametrize("looks", [dump, verify])
def test_a_bad_sector_is_an_error_that_names_file_and_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: object, file: str, position: int
) -> None:
    store, pread = unpack_golden(tmp_path), os.pread

    def failing(handle: int, size: int, at: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{handle}") == str(store / file) and at <= position < at + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(handle, size, at)

    monkeypatch.setattr(os, "pread", failing)
    if looks is dump and file.startswith("index"):
        assert list(dump(store))  # `dump` does not read the index
        return
    with pytest.raises(ReadFailed, match=rf"{file} cannot be read at \d+: Input/output error"):
        list(looks(store))
