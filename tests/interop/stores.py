"""Makes stores of ours for RocketMQ to open: a master's, its slave's, a trimmed one, and one that RocketMQ began."""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rocketsim_proto.records.columnar import UniqIds, encode
from rocketsim_proto.records.record import encode_host, encode_properties

from broker_service.store.batch import Batch
from broker_service.store.config import StoreConfig
from broker_service.store.json_file import JsonFile
from broker_service.store.message_store import MessageStore
from tests.support.golden import unpack_golden

NOW = 1_795_200_000_000
HOST = encode_host("127.0.0.1", 10911)
FRAME = 300_000  # bytes of log that a slave gets at once, which end in the middle of a record
TOPICS = {"interop_plain": 4, "interop_sizes": 2, "interop-odd_properties": 1}
TAGS = [None, "TagA", "Aa", "BB", "ünï😀", "polygenelubricants"]


def config(root: Path, *, reserved_h: int = 1_000_000) -> StoreConfig:
    return StoreConfig(
        root=root,
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=4000,
        max_hash_slot_num=1000,
        max_index_num=4000,
        file_reserved_time_h=reserved_h,
        delete_hours=frozenset(range(24)),
    )


def make_stores(directory: Path) -> dict[str, Path]:
    """Makes the stores, which are the same in every run.  Returns name -> store directory."""
    makers: dict[str, Callable[[Path, Path], None]] = {
        "master": lambda root, _: _master(root),
        "slave": _slave,
        "trimmed": _trimmed,
        "golden": lambda root, _: _golden(root),
    }
    stores = {}
    for name, make in makers.items():
        stores[name] = directory / name
        make(stores[name], directory / "master")
    return stores


def _master(root: Path) -> None:
    """Makes the store of a master that was stopped cleanly."""
    store = MessageStore.open(config(root), NOW)
    _fill(store, random.Random(1), NOW)
    store.close()
    _write_config(root)


def _slave(root: Path, master: Path) -> None:
    """Makes the store of a slave that has copied the master's whole log and was then killed: no file was closed, and
    `abort` stays.
    """
    source = MessageStore.open(config(master), NOW)
    store = MessageStore.open(config(root), NOW)
    at = source.min_offset
    while at < source.end_offset:
        data = source.read_log(at, FRAME)
        store.append_replicated(at, data)
        at += len(data)
    source.close()
    _write_config(root)


def _trimmed(root: Path, _master: Path) -> None:
    """Makes a store of several log files, of which retention has deleted the oldest."""
    later = NOW + 100 * 3_600_000
    store = MessageStore.open(config(root, reserved_h=72), NOW)
    _fill(store, random.Random(2), NOW)
    _fill(store, random.Random(3), later)
    store.flush()
    assert store.retention.delete_expired(later), "nothing was trimmed"
    store.close()
    _write_config(root)


def _golden(root: Path) -> None:
    """Makes a store that RocketMQ wrote, and that our broker has opened and appended to."""
    unpack_golden(root)
    store = MessageStore.open(config(root), NOW)
    _append(store, "golden_plain", np.arange(200) % 4, random.Random(4), NOW)
    store.close()


def _fill(store: MessageStore, chance: random.Random, now_ms: int) -> None:
    for number in range(12):
        for topic, queues in TOPICS.items():
            count = 1 + chance.randrange(150)
            _append(store, topic, np.sort(np.arange(count) % queues), chance, now_ms + number)
            store.tick(now_ms + number)


def _append(store: MessageStore, topic: str, queue_ids: np.ndarray, chance: random.Random, now_ms: int) -> None:
    count = len(queue_ids)
    ids = _ids(now_ms)
    data, _ = encode(
        topic,
        queue_ids,
        [chance.randbytes(_size(topic, chance)) for _ in range(count)],
        [_properties(next(ids), number, chance) for number in range(count)],
        born_timestamp=now_ms - 5,
        born_host=encode_host("10.1.2.3", 50123),
        flags=np.array([chance.randrange(-(2**31), 2**31) for _ in range(count)]),
    )
    store.append(Batch.of_frame(bytearray(data), count), topic, now_ms, HOST)


def _ids(now_ms: int) -> Iterator[str]:
    made = UniqIds(bytes((10, 1, 2, 3)))
    return (made.one(now_ms) for _ in itertools.count())


def _size(topic: str, chance: random.Random) -> int:
    return chance.choice([1, 2, 100, 4096, 60_000]) if topic == "interop_sizes" else 100


def _properties(message_id: str, number: int, chance: random.Random) -> bytes:
    tags = chance.choice(TAGS)
    pairs = [] if tags is None else [("TAGS", tags)]
    pairs += [("UNIQ_KEY", message_id), ("KEYS", f"key-{number} second-{number}"), ("WAIT", "true")]
    pairs += [(f"p{i}", "värde 😀" * i) for i in range(number % 4)]
    if number % 7 == 0:
        pairs.reverse()  # TAGS not in front
    return encode_properties(pairs)


def topic_config(name: str, queues: int) -> dict[str, Any]:
    """Returns a topic's entry in topics.json."""
    return {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
    }


def _write_config(root: Path) -> None:
    """Writes the configuration files that RocketMQ needs to serve a store."""
    topics = {name: topic_config(name, queues) for name, queues in TOPICS.items()}
    version = {"counter": 1, "stateVersion": 0, "timestamp": NOW}
    JsonFile(root / "config" / "topics.json").save({"dataVersion": version, "topicConfigTable": topics})
    offsets = {"interop_plain@interop_group": {0: 10, 1: 20, 2: 0, 3: 7}, "interop_sizes@another_group": {1: 3}}
    JsonFile(root / "config" / "consumerOffset.json").save({"dataVersion": version, "offsetTable": offsets})
