"""Stores that tests/interop/Writer.java had RocketMQ 5.5.0 and 4.9.8 write: long topics, and properties as 4.9 does."""

import shutil
from pathlib import Path

import pytest
from rocketsim_proto.records import properties, record
from rocketsim_proto.records.columnar import Records

from broker_service.store.message_store import MessageStore
from broker_service.store.offline.dump import dump
from broker_service.store.offline.verification import verify
from tests.support import stores
from tests.support.archives import unpack
from tests.support.golden import GOLDEN

NOW = 1_795_369_000_000
COUNT = 300
LONG = "a-topic-of-200-characters" * 8


def topic_of(version: str, number: int) -> str:
    return LONG if version == "5.5.0" and number % 3 else "plain"


def properties_of(number: int) -> dict[str, str]:
    return {"KEYS": f"key-{number}", "UNIQ_KEY": f"{number:032X}", "TAGS": ("even", "odd")[number % 2]}


@pytest.fixture(params=["5.5.0", "4.9.8"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path, version: str) -> Path:
    return unpack(GOLDEN / f"written-by-{version}.tar.xz", tmp_path / version)


def open_store(root: Path) -> MessageStore:
    sizes = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 4000}
    index = {"max_hash_slot_num": 100, "max_index_num": 400}
    return stores.open_store(root, now_ms=NOW, **sizes, **index)


def log_records(root: Path) -> Records:
    """Returns all records in one buffer, without the blank ones."""
    lines = [line for line in dump(root) if line["kind"] == "message"]
    log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    data = b"".join(log[line["commitLogOffset"] :][: line["storeSize"]] for line in lines)
    return Records.walk(data, count=COUNT)


def check(store: MessageStore, version: str) -> None:
    for number in range(COUNT):
        topic = topic_of(version, number)
        (offset,) = store.key_search(topic, f"key-{number}", 10, 0, NOW * 2).run().offsets
        one = record.decode(store.log.record_at(offset))
        assert (one.topic, one.queue_id, one.body) == (topic, number % 2, b"body-%d" % number)
        assert one.properties == properties_of(number)
        result = store.queues.get_message(topic, one.queue_id, one.queue_offset, 1, 10_000, None)
        assert (result.count, result.records) == (1, store.log.record_at(offset))
    assert sum(store.queues.end(*queue) for queue in store.queues.keys()) == COUNT


def test_the_store_opens_and_everything_in_it_is_read(root: Path, version: str) -> None:
    # RocketMQ 4.9 does not index tags, as 5 does, so `verify` reports the missing entries.
    unlike = ["index"] * 2 if version == "4.9.8" else []
    assert [finding.file.split("/")[0] for finding in verify(root)] == unlike
    store = open_store(root)
    assert store.recovery.truncated_to is None
    check(store, version)
    store.close()


def test_after_a_kill_a_store_of_rocketmq_is_recovered_from_the_log_alone(root: Path, version: str) -> None:
    for made_from_the_log in ("consumequeue", "index"):
        shutil.rmtree(root / made_from_the_log)
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    store = open_store(root)
    assert store.recovery.truncated_to is None
    check(store, version)
    store.close()


def test_whole_batches_are_decoded_as_columns(root: Path, version: str) -> None:
    records = log_records(root)
    records.check()
    assert records.topics().to_pylist() == [topic_of(version, number) for number in range(COUNT)]
    assert records.bodies().to_pylist() == [b"body-%d" % number for number in range(COUNT)]
    assert [dict(pairs) for pairs in records.properties().to_pylist()] == [
        dict(sorted(properties_of(number).items())) | properties_of(number) for number in range(COUNT)
    ]
    versions = {
        record.MESSAGE_MAGIC_V2 if topic_of(version, number) == LONG else record.MESSAGE_MAGIC for number in range(3)
    }
    assert set(records.magic.tolist()) == versions


@pytest.mark.parametrize("rows", [slice(None), slice(100, None)], ids=["of many sizes", "of one size"])
def test_properties_of_any_version_take_the_fast_path(root: Path, rows: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(properties, "Pieces", lambda *_: pytest.fail("the way for records with different names"))
    records = log_records(root)[rows]
    assert len(records.property("KEYS")) and records.property_names() == {b"KEYS", b"UNIQ_KEY", b"TAGS"}
