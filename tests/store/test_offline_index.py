"""The index in `store verify`: no findings in an undamaged store, and a finding for any changed byte."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from broker_service.store.index_file import ENTRY_SIZE, HEADER, HEADER_SIZE, SLOT_SIZE
from broker_service.store.index_keys import index_keys
from broker_service.store.offline.index import OfflineIndex
from broker_service.store.offline.log import Whole, log_parts
from broker_service.store.offline.verification import Severity, verify
from tests.support.stores import NOW, open_store, put

SLOTS = 7
MESSAGES = 30
FILES = -(-4 * MESSAGES // 19)
LARGEST = HEADER_SIZE + SLOTS * SLOT_SIZE + 20 * ENTRY_SIZE


def fill(root: Path, **changes) -> None:
    store = open_store(root, **changes)
    for number in range(MESSAGES):
        keys = [("UNIQ_KEY", f"id{number}"), ("KEYS", f"k{number % 4} all"), ("TAGS", "red")]
        put(store, "topic", 0, [b"x" * 50], now_ms=NOW + 700 * number, properties=keys)
        store.tick(NOW + 700 * number)
    store.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    """Makes several index files of 19 entries; a message has four entries, so some records have entries in
    two files.
    """
    root = tmp_path_factory.mktemp("filled")
    fill(root)
    return root


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def findings(root: Path) -> list[tuple[str, str]]:
    """Checks only the index, and returns (file, what) of each finding."""
    index, end = OfflineIndex(root), 0
    for part in log_parts(root):
        if isinstance(part, Whole):
            end = part.offset + int(part.records.sizes.sum())
            index.compare(index_keys(part.records), part.offset, end)
    return [(path.name, what) for path, _, what in index.findings(end)]


def copy_of(root: Path, to: Path) -> Path:
    return Path(shutil.copytree(root, to / "copy", dirs_exist_ok=True))


def test_a_store_of_ours_is_in_order(filled):
    assert len(index_files(filled)) == FILES
    assert list(verify(filled)) == []


def test_as_many_slots_as_there_are_by_default_are_found_out(tmp_path):
    fill(tmp_path, max_hash_slot_num=5_000_000, max_index_num=20_000_000)
    (path,) = index_files(tmp_path)
    assert path.stat().st_size == 420_000_040
    assert list(verify(tmp_path)) == []
    with path.open("r+b") as file:
        file.seek(HEADER_SIZE + 5_000_000 * SLOT_SIZE + 50 * ENTRY_SIZE)
        file.write(b"\x7f\x7f\x7f\x7f")
    (one,) = verify(tmp_path)
    assert (one.severity, one.offset) == (Severity.REPAIRABLE, 20_000_040 + 50 * ENTRY_SIZE)


@settings(max_examples=60)
@given(number=st.integers(0, FILES - 1), at=st.integers(0, LARGEST - 1), mask=st.integers(1, 255))
# changes the hash of a file's first entry, whose record also has entries in the file before
@example(number=1, at=88, mask=11)
def test_no_byte_of_the_index_can_change_unnoticed(filled, tmp_path_factory, number, at, mask):
    root = copy_of(filled, tmp_path_factory.getbasetemp() / "changed")
    path = index_files(root)[number]
    content = bytearray(path.read_bytes())
    used = HEADER_SIZE + SLOTS * SLOT_SIZE + HEADER.unpack_from(content)[5] * ENTRY_SIZE
    # entry zero means nothing, so its bytes may change
    assume(at < used and not 0 <= at - HEADER_SIZE - SLOTS * SLOT_SIZE < ENTRY_SIZE)
    content[at] ^= mask
    path.write_bytes(content)
    assert path.name in [name for name, _ in findings(root)]


def test_a_full_file_whose_header_counts_one_entry_more_is_reported(filled, tmp_path):
    root = copy_of(filled, tmp_path)
    path = index_files(root)[1]
    header = list(HEADER.unpack_from(path.read_bytes()))
    header[5] += 1
    path.write_bytes(HEADER.pack(*header) + path.read_bytes()[HEADER_SIZE:])
    assert (path.name, "header, slots and entries do not fit together") in findings(root)


def test_an_entry_under_another_key_is_found_though_its_chain_is_whole(filled, tmp_path):
    root = copy_of(filled, tmp_path)
    path = index_files(root)[1]
    content = bytearray(path.read_bytes())
    at = HEADER_SIZE + SLOTS * SLOT_SIZE + 7 * ENTRY_SIZE
    hashed = int.from_bytes(content[at : at + 4], "big")
    content[at : at + 4] = (hashed + SLOTS if hashed < 2**30 else hashed - SLOTS).to_bytes(4, "big")
    path.write_bytes(content)
    ((name, what),) = findings(root)
    assert name == path.name
    assert what.startswith("1 entries that are not those of the log's records and 1 keys without an entry")


def test_an_index_file_that_is_gone_is_missed(filled, tmp_path):
    root = copy_of(filled, tmp_path)
    gone = index_files(root)[2]
    gone.unlink()
    assert findings(root) == [(gone.name, "missing")]


def test_an_index_that_is_ahead_of_the_log_is_found(filled, tmp_path):
    root = copy_of(filled, tmp_path)
    last = sorted((root / "commitlog").iterdir())[-1]
    start = int(last.name)
    offsets = [int(at) for part in log_parts(root) if isinstance(part, Whole) for at in part.records.commit_log_offset]
    with last.open("r+b") as file:
        file.seek(offsets[-1] - start)
        file.write(bytes(4096 - file.tell()))
    ((name, what),) = findings(root)
    assert name == index_files(root)[-1].name and "behind the log's end" in what


def test_the_slots_of_a_broker_that_was_killed_may_be_behind(filled, tmp_path):
    root = copy_of(filled, tmp_path)
    path = index_files(root)[-1]
    content = bytearray(path.read_bytes())
    content[HEADER_SIZE : HEADER_SIZE + SLOTS * SLOT_SIZE] = bytes(SLOTS * SLOT_SIZE)
    path.write_bytes(content)
    assert [name for name, _ in findings(root)] == [path.name]
    (root / "abort").touch()
    assert findings(root) == []


def test_keys_that_are_not_indexed_yet_are_no_finding(tmp_path):
    fill(tmp_path)
    newest = index_files(tmp_path)[-1]
    newest.unlink()
    (tmp_path / "rocketsim" / "index.json").unlink()
    assert findings(tmp_path) == []


def test_a_trimmed_store_is_in_order(tmp_path):
    fill(tmp_path)
    sorted((tmp_path / "commitlog").iterdir())[0].unlink()
    assert findings(tmp_path) == []
    assert np.asarray([one.severity is Severity.REPAIRABLE for one in verify(tmp_path)]).sum() == 0
