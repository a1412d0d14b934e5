"""A store that Apache RocketMQ 5.5.0 wrote is opened, read, rebuilt and appended to."""

import hashlib
import shutil

import pytest
from rocketsim_proto.records import record

from broker_service.store.message_store import MessageStore
from tests.support.golden import golden_dump, unpack_golden
from tests.support.stores import HOST, open_store, put, queue_entries

NOW = 1_795_170_700_000


def open_golden(root, **changes) -> MessageStore:
    sizes = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 4000}
    index = {"max_hash_slot_num": 1000, "max_index_num": 4000}
    return open_store(root, now_ms=NOW, **sizes, **index, **changes)


@pytest.fixture
def root(tmp_path):
    return unpack_golden(tmp_path / "golden")


def host_text(host: bytes) -> str:
    address, port = record.decode_host(host)
    return f"{address}/{port}"


def check(store: MessageStore) -> None:
    """Compares everything that RocketMQ's own code reads from this store."""
    queues = 0
    for line in golden_dump():
        if line["kind"] == "message":
            one = record.decode(store.log.record_at(line["commitLogOffset"]))
            assert (one.topic, one.queue_id, one.queue_offset) == (line["topic"], line["queueId"], line["queueOffset"])
            assert (one.flag, one.sys_flag, one.born_timestamp) == (
                line["flag"],
                line["sysFlag"],
                line["bornTimestamp"],
            )
            assert (one.store_timestamp, one.reconsume_times) == (line["storeTimestamp"], line["reconsumeTimes"])
            assert one.prepared_transaction_offset == line["preparedTransactionOffset"]
            assert one.properties == line["properties"]
            assert host_text(one.born_host) == line["bornHost"]
            assert host_text(one.store_host) == line["storeHost"]
            assert hashlib.sha1(one.body).hexdigest() == line["bodySha1"]
        elif line["kind"] == "queue":
            queues += 1
            queue = line["topic"], line["queueId"]
            assert store.queues.bounds(*queue) == (line["minOffset"], line["maxOffset"])
            _, entries = queue_entries(store, *queue)
            assert len(entries) == line["entries"]
            assert hashlib.sha1(entries.tobytes()).hexdigest() == line["entriesSha1"], str(queue)
        elif line["kind"] == "log":
            assert (store.min_offset, store.end_offset) == (line["minOffset"], line["maxOffset"])
    assert len(store.queues.keys()) == queues > 20


def test_the_golden_store_opens_with_every_field_equal(root):
    store = open_golden(root)
    check(store)
    assert not store.recovery.rebuilt_queues and store.recovery.truncated_to is None
    store.close()


@pytest.mark.parametrize("gone", ["consumequeue", "index", "checkpoint"])
@pytest.mark.parametrize("clean", [True, False])
def test_queues_and_index_are_made_again_with_rocketmqs_bytes(root, gone, clean):
    index = next((root / "index").iterdir()).read_bytes()
    shutil.rmtree(root / gone) if (root / gone).is_dir() else (root / gone).unlink()
    if not clean:
        (root / "abort").write_bytes(b"1")
    store = open_golden(root)
    check(store)
    while store.index.behind:
        store.tick(NOW)
    store.close()
    assert next((root / "index").iterdir()).read_bytes() == index


def test_a_replica_made_from_its_log_has_the_same_queues(root, tmp_path):
    store = open_golden(root)
    replica = open_golden(tmp_path / "replica")
    at = 0
    while at < store.end_offset:
        data = store.read_log(at, 100_001)
        replica.append_replicated(at, data)
        at += len(data)
    check(replica)
    replica.close()
    store.close()


def test_the_golden_store_takes_new_messages(root):
    store = open_golden(root)
    put(store, "golden_plain", [0, 1, 0], [b"x", b"y" * 200_000, b"z"], now_ms=NOW)
    assert store.queues.bounds("golden_plain", 0) == (0, 112)
    store.append_one(record.Record("golden_plain", b"one", queue_id=3, properties={"KEYS": "ours"}), NOW, HOST)
    assert len(store.key_search("golden_plain", "ours", 10, 0, NOW).run().offsets) == 1
    assert store.key_search("golden_plain", "K000000", 10, 0, NOW).run().offsets == [4723460, 0]
    assert store.retention.delete_expired(NOW) == []
    store.close()
    store = open_golden(root)
    assert store.recovery.scanned_from is None and store.queues.bounds("golden_plain", 3) == (0, 111)
    store.close()
