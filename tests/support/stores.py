"""Makes small stores for tests, and checks the invariants of every store."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from rocketsim_proto.records import columnar, record

from broker_service.put_result import Appended
from broker_service.store.batch import Batch
from broker_service.store.config import StoreConfig
from broker_service.store.consume_queue import ENTRY, ENTRY_SIZE, Entries
from broker_service.store.files import Files
from broker_service.store.message_store import MessageStore
from broker_service.store.ranges import RangeAnswer, TagsCodes

HOST = record.encode_host("127.0.0.1", 10911)
LOG_FILE = 4096
NOW = 1_795_170_600_000
MINUTE = 60_000  # the time between two thorough flushes, in ms


def config(root: Path, **changes: Any) -> StoreConfig:
    """Returns a configuration with 4 KiB log files, queue files of 8 entries and index files of 20 entries in 7 slots,
    without retention.
    """
    values: dict[str, Any] = {
        "mapped_file_size_commit_log": LOG_FILE,
        "mapped_file_size_consume_queue": 160,
        "max_hash_slot_num": 7,
        "max_index_num": 20,
        "file_reserved_time_h": 10**6,
    }
    return StoreConfig(root=root, **(values | changes))


def open_store(root: Path, files: Files | None = None, now_ms: int = NOW, **changes: Any) -> MessageStore:
    return MessageStore.open(config(root, **changes), now_ms, files)


def batch(
    topic: str,
    queue_ids: Iterable[int] | int,
    bodies: Iterable[bytes],
    *,
    properties: list[tuple[str, str]] | None = None,
    sys_flags: Any = 0,
) -> Batch:
    """Returns records as a client sends them."""
    bodies = list(bodies)
    encoded = record.encode_properties(properties if properties is not None else [("TAGS", "TagA")])
    data, _ = columnar.encode(
        topic,
        queue_ids if isinstance(queue_ids, int) else list(queue_ids),
        bodies,
        [encoded] * len(bodies),
        born_timestamp=NOW,
        born_host=HOST,
        sys_flags=sys_flags,
    )
    return Batch.of_frame(bytearray(data), len(bodies))


def put(
    store: MessageStore,
    topic: str,
    queue_ids: Iterable[int] | int,
    bodies: Iterable[bytes],
    now_ms: int = NOW,
    **more: Any,
) -> Appended:
    return store.append(batch(topic, queue_ids, bodies, **more), topic, now_ms, HOST)


def flush_thoroughly(store: MessageStore, now_ms: int = NOW) -> None:
    """Syncs queues and index, too, as the store does once a minute.  A second call needs a `now_ms` that is a minute
    later.

    Only the first 64 queue files are synced.
    """
    store.tick(now_ms + MINUTE)
    store.flush()


def delete_topic(store: MessageStore, topic: str) -> dict[int, int]:
    """Deletes a topic as an operator's command does.  Returns, for each queue of the topic, the offset at which the
    queue would continue.
    """
    ends = store.queues.ends(topic)
    store.forget_before({topic: ends})
    return ends


def log_bytes(store: MessageStore, begin: int | None = None, end: int | None = None) -> bytes:
    at = store.min_offset if begin is None else begin
    end = store.end_offset if end is None else end
    pieces = []
    while at < end:
        pieces.append(store.read_log(at, end - at))
        assert pieces[-1], f"nothing is read at {at} of a log that ends at {store.end_offset}"
        at += len(pieces[-1])
    return b"".join(pieces)


def replay(data: bytes, begin: int, file_size: int = LOG_FILE) -> list[record.Record]:
    """Returns the records in log bytes that start at `begin`, decoded one by one."""
    found, at = [], 0
    while at < len(data):
        size, magic = record.BLANK.unpack_from(data, at)
        if magic == record.BLANK_MAGIC:
            assert size == file_size - (begin + at) % file_size, f"blank of {size} at {begin + at}"
        else:
            one = record.decode(data, at)
            assert one.commit_log_offset == begin + at
            found.append(one)
        at += size
    return found


def records_of(store: MessageStore) -> list[record.Record]:
    return replay(log_bytes(store), store.min_offset, store.config.mapped_file_size_commit_log)


def bodies(store: MessageStore) -> list[bytes]:
    return [one.body for one in records_of(store)]


def queue_bodies(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    """Returns what a consumer of the queue reads from its beginning to its end."""
    found: list[bytes] = []
    low, high = store.queues.bounds(topic, queue_id)
    while low < high:
        part, data = read_range(store, topic, queue_id, low, high, 1 << 20)
        assert part.next_offset > low, part
        found += [one.body for one in replay_frame(data)]
        low = part.next_offset
    return found


def read_range(
    store: MessageStore, topic: str, queue_id: int, first: int, until: int, max_bytes: int, tags: TagsCodes = None
) -> tuple[RangeAnswer, bytes]:
    """Reads one range.  Returns the range's first segment in the frame, and the range's records."""
    found = store.queues.read_ranges([(topic, queue_id, first, until)], max_bytes, tags)
    answer = found.answers[0]
    return answer, b"".join(found.records)


def replay_frame(data: bytes) -> list[record.Record]:
    found, at = [], 0
    while at < len(data):
        found.append(record.decode(data, at))
        at += int.from_bytes(data[at : at + 4], "big")
    return found


def expected_queues(store: MessageStore) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    return queues_of(records_of(store))


def queues_of(records: Iterable[record.Record]) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """Returns the entries that each queue must have by the log: (queue offset, log offset, tags code)."""
    queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for one in records:
        if one.sys_flag & record.SYS_FLAG_TRANSACTION_MASK in (4, 12):
            continue
        code = record.tags_code(one.properties.get("TAGS", ""))
        queues.setdefault((one.topic, one.queue_id), []).append((one.queue_offset, one.commit_log_offset, code))
    return queues


def queue_entries(store: MessageStore, topic: str, queue_id: int) -> tuple[int, Entries]:
    """Returns a queue's first offset, and the entries in its files."""
    directory = store.config.root / "consumequeue" / topic / str(queue_id)
    first, end = store.queues.bounds(topic, queue_id)[0], store.queues.end(topic, queue_id)
    found = np.zeros(end - first, ENTRY)
    for name in store.disk.names(directory):
        if name.isdigit():
            begin = int(name) // ENTRY_SIZE
            piece = np.frombuffer(store.disk.read(directory / name), ENTRY)[max(0, first - begin) : max(0, end - begin)]
            at = max(begin, first) - first
            found[at : at + len(piece)] = piece
    return first, found


def actual_queues(store: MessageStore) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    queues = {}
    for topic, queue_id in store.queues.keys():
        first, entries = queue_entries(store, topic, queue_id)
        if len(entries):
            queues[topic, queue_id] = [
                (first + number, offset, code) for number, (offset, _, code) in enumerate(entries.tolist())
            ]
    return queues


def check_sound(store: MessageStore) -> None:
    """Checks that the queues equal a replay of the log, and that every record can be read through them."""
    expected = expected_queues(store)
    assert actual_queues(store) == expected
    for topic, queue_id in expected:
        assert len(queue_bodies(store, topic, queue_id)) == len(expected[topic, queue_id])


def tree(files: Files, directory: Path) -> dict[str, bytes]:
    """Returns every file below a directory, by path."""
    found: dict[str, bytes] = {}
    for name in files.names(directory):
        path = directory / name
        try:
            found[name] = files.read(path)
        except (IsADirectoryError, FileNotFoundError):
            found |= {f"{name}/{below}": data for below, data in tree(files, path).items()}
    return found
