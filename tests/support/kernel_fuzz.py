"""Compares the compiled record codec with the code in Python on frames and logs of random messages with random damage.

    python -m tests.support.kernel_fuzz COUNT [SEED] [--module PATH]

PATH is another build of the compiled module, for example one with sanitizers from `tests/support/sanitized_kernels`.
"""

import argparse
import importlib.util
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from typing import Any, cast

import numpy as np
import pyarrow as pa
from rocketsim_proto.records import kernels, record
from rocketsim_proto.records.columnar import RecordError, Records
from rocketsim_proto.records.encoding import encode

from broker_service.broker.frame import FrameLimits, check_frame
from broker_service.errors import MessageIllegal
from broker_service.store.batch import Batch
from broker_service.store.batch_read import NotInLog, read_records
from broker_service.store.index_keys import index_keys
from broker_service.store.log_scanner import LogScan

LIMITS = FrameLimits(max_message_size=3000, log_file_size=8192, store_host_size=8)
NAMES = (
    "TAGS",
    "KEYS",
    "KEYS",
    "UNIQ_KEY",
    "A",
    "ü",
    "WAIT",
    "DELAY",
    "TRAN_MSG",
    "__DELAY_LEVEL",
    "TIMER_DELIVER_MS",
    "",
)
VALUES = (
    "",
    "TagA",
    "k l  m",
    " ",
    "a b c d e f",
    "false",
    "3",
    "soon",
    "\0",
    "x" * 600,
    "ü",
    "\0" * 600,
    "a\0" * 300,
    "TRAN_MSG\x01true",
    "\x01",
)
FLAGS = (*(0,) * 12, record.SYS_FLAG_COMPRESSED, 0x300, 4, 12, 1 << 20, record.SYS_FLAG_STORE_HOST_V6)
TOPICS = ("t", "%RETRY%group", "ü", "a b", "..", "u" * 130)
LOG_FILE = 4096
LOG_BEGIN = 3 * LOG_FILE
SIZES = (0, 1, 90, 91, 255, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


@contextmanager
def using(compiled: kernels.Kernels | None) -> Iterator[None]:
    before, kernels.compiled = kernels.compiled, compiled
    try:
        yield
    finally:
        kernels.compiled = before


def a_frame(chance: random.Random) -> bytes:
    records = []
    good = chance.random() < 0.6
    for _ in range(chance.choice((1, 2, 3, 30) if chance.random() < 0.1 else (1, 2, 3))):
        if good:
            body = chance.randbytes(chance.randrange(100))
            records.append(record.encode(record.Record("t", body, chance.randrange(4), properties={"TAGS": "TagA"})))
            continue
        properties = {chance.choice(NAMES): chance.choice(VALUES) for _ in range(chance.randrange(3))}
        flag = chance.choice(FLAGS)
        one = record.Record(
            topic=chance.choice("tttttttu") * chance.choice((1, 1, 1, 1, 1, 1, 130)),
            body=chance.randbytes(chance.choice((0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 200, 1500, 3001))),
            queue_id=chance.randrange(-1, 4),
            sys_flag=flag,
            born_host=bytes(20 if chance.random() < 0.1 else 8),
            store_host=bytes(20 if flag & record.SYS_FLAG_STORE_HOST_V6 else 8),
            properties=properties if chance.random() < 0.7 else {},
        )
        records.append(record.encode(one))
    return b"".join(records)


def damaged(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
        kind = chance.randrange(5)
        at = chance.randrange(len(changed)) if changed else 0
        if kind == 0 and changed:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and changed:
            changed[at] = chance.choice((0, 1, 2, 255))
        elif kind == 2 and len(changed) >= 112:  # the lengths, magic numbers and flags of the first record
            place = chance.choice((0, 4, 8, 36, 84, 96, 108))
            changed[place : place + 4] = chance.choice(SIZES).to_bytes(4, "big")
        elif kind == 3:
            del changed[at:]
        else:
            changed[at:at] = bytes(chance.randrange(1, 100))
    return bytes(changed)


class LogFiles:
    """Files of `LOG_FILE` bytes from log offset `LOG_BEGIN` on, as far as a LogScan and `read_records` need a log."""

    min_offset = LOG_BEGIN
    file_size = LOG_FILE

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.end_offset = LOG_BEGIN + len(data)
        self.file_end = self.end_offset + -len(data) % LOG_FILE

    def start_of(self, offset: int) -> int:
        return offset - offset % LOG_FILE

    def peek(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self.start_of(offset) + LOG_FILE)
        return self.data[offset - LOG_BEGIN : end - LOG_BEGIN]

    def need_records(self, offsets: Any, sizes: Any) -> None:
        """Does nothing, because all bytes are in memory."""

    def view(self, start: int) -> memoryview:
        """Returns a copy of the file without spare bytes, so that a sanitizer notices reads beyond its end."""
        data = self.data[start - LOG_BEGIN : start - LOG_BEGIN + LOG_FILE]
        return memoryview(np.frombuffer(data + bytes(LOG_FILE - len(data)), np.uint8).copy())


def a_log(chance: random.Random) -> bytes:
    """Returns the bytes of a log's files from log offset `LOG_BEGIN` on, with blanks at the ends of full files."""
    topics = TOPICS[:2] if chance.random() < 0.7 else (*TOPICS[:2] * 4, chance.choice(TOPICS))
    sizes = (chance.randrange(200),) if chance.random() < 0.3 else (0, 10, 10, 10, 100, 500, 1200)
    data = bytearray()
    for number in range(chance.randrange(1, 50)):
        one = record.Record(
            topic=chance.choice(topics),
            body=chance.randbytes(chance.choice(sizes)),
            queue_id=chance.randrange(3),
            queue_offset=number,
            born_host=bytes(20 if chance.random() < 0.1 else 8),
            properties={"TAGS": chance.choice(("TagA", "TagA", "TagA", "x" * 600))} if chance.random() < 0.9 else {},
        )
        room = LOG_FILE - len(data) % LOG_FILE
        if record.size_of(one) + record.BLANK_SIZE > room:
            data += record.BLANK.pack(room, record.BLANK_MAGIC) + bytes(room - record.BLANK_SIZE)
        one.commit_log_offset = LOG_BEGIN + len(data)
        data += record.encode(one)
    return bytes(data) + bytes(chance.choice((0, 0, 5, 20, -len(data) % LOG_FILE)))


def damaged_log(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 2))):
        if not changed:
            break
        kind, at = chance.randrange(6), chance.randrange(len(changed))
        magic = chance.choice((record.MESSAGE_MAGIC, record.MESSAGE_MAGIC, record.BLANK_MAGIC))
        begin = max(changed.find(magic.to_bytes(4, "big"), at) - 4, 0)
        if kind == 0:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:  # a field before the hosts, or the size of the body
            place = begin + chance.choice((0, 4, 8, 12, 20, 24, 28, 32, 36, 84))
            changed[place : place + 4] = chance.choice(SIZES).to_bytes(4, "big")
        elif kind == 2:  # a sector, or the rest of one
            at -= chance.choice((0, at % 512))
            end = min(at - at % 512 + 512, len(changed))
            changed[at:end] = bytes(end - at)
        elif kind == 3:
            changed[at:] = bytes(len(changed) - at)
        elif kind == 4:
            del changed[at:]
        else:  # a record in the place of another one
            changed[at : at + 200] = changed[begin : begin + 200]
    return bytes(changed)


def scanned(data: bytes, chance: random.Random) -> Any:
    """Returns what a start finds in these bytes of a log, and what a slave takes of them."""
    places = LOG_BEGIN, LOG_BEGIN + chance.randrange(len(data) + 1), LOG_BEGIN + len(data)
    stop_at = chance.choice((None, None, LOG_BEGIN + len(data)))
    log: Any = LogFiles(data)
    scan = LogScan(log, LOG_BEGIN, check_from=chance.choice(places), strict_from=chance.choice(places), stop_at=stop_at)
    found = [(offset, places_of(records), records.queue_offset.tolist()) for offset, records in scan]
    batch, reason, walked = Batch.of_log(memoryview(data)[:LOG_FILE], LOG_BEGIN)
    taken = len(batch), batch.size, reason, extents_of(batch)
    return found, scan.end_offset, scan.reason, taken, walked.sizes.tolist(), walked.end, walked.stop, walked.next_size


def read_back(intact: bytes, data: bytes, chance: random.Random) -> Any:
    """Returns what a reader gets of these bytes of a log, by queue entries of the intact log, of which some are wrong.

    The records are wanted in the order of the log, or of their queues, or in any order.
    """
    wanted = []
    with using(None):
        for offset, records in LogScan(cast(Any, LogFiles(intact)), LOG_BEGIN, check_from=LOG_BEGIN, strict_from=0):
            places = zip((records.starts + offset).tolist(), records.sizes.tolist(), strict=True)
            fields = zip(records.queue_id.tolist(), records.queue_offset.tolist(), strict=True)
            wanted += [[*place, *field] for place, field in zip(places, fields, strict=True)]
    if not wanted:
        return None
    wanted = wanted[chance.randrange(len(wanted)) :]
    order = chance.randrange(3)
    if order == 1:
        wanted.sort(key=lambda entry: entry[2])
    elif order == 2:
        chance.shuffle(wanted)
    if chance.random() < 0.5:
        entry, at = chance.choice(wanted), chance.randrange(4)
        entry[at] = chance.choice((entry[at] + 1, 0, 1, -1, LOG_FILE, LOG_BEGIN + len(data) - 40, 2**62, -(2**63)))
    columns = np.array(wanted, np.int64).T.copy()
    try:
        return b"".join(read_records(cast(Any, LogFiles(data)), *columns).slices)
    except NotInLog as error:
        return error.row


def places_of(records: Records) -> list[list[int]]:
    places = records.body_start, records.body_size, records.topic_start, records.topic_size
    return [column.tolist() for column in (*places, records.properties_start, records.properties_size)]


def verdict(data: bytes, count: int) -> Any:
    try:
        frame = check_frame("t", data, count, zlib.crc32(data), LIMITS)
    except MessageIllegal as error:
        return str(error)
    records = frame.batch.columns
    lists = frame.batch.queue_ids, frame.queues, frame.message, frame.delay_level, frame.waits, frame.deliver_ms
    return places_of(records), list(frame.batch.sizes), lists, *appended(frame.batch)


def appended(batch: Batch) -> Any:
    """Returns what a broker writes for this batch, and the batches that a slave gets from intact and from damaged
    copies.
    """
    next_offsets = {queue_id: 2**40 + queue_id for queue_id in batch.queue_ids}
    batch.stamp(4096, next_offsets, 2**41, bytes(8))
    written = bytes(batch.view_bytes())
    copies = []
    for at in (-1, 15, 21, 29, 88, len(written) - 12):  # the place of the damaged byte, or -1 for no damage
        data = bytearray(written)
        if at >= 0:
            data[at] ^= 0x80
        copy, reason, walked = Batch.of_log(memoryview(data), 4096)
        copies.append((len(copy), copy.size, reason, extents_of(copy), walked.end, walked.stop, walked.next_size))
    return written, next_offsets, batch.last_store_timestamp, extents_of(batch), copies


def extents_of(batch: Batch) -> Any:
    found = batch.queue_extents((1000, 5000))
    return sorted((one.topic, one.queue_id, one.queue_offset, one.entries.tolist()) for one in found)


def columns(data: bytes) -> Any:
    try:
        records = Records.walk(data)
        records.check()
        found = records.topics().to_pylist(), records.bodies().to_pylist(), records.properties_start.tolist()
        found += records.properties().to_pylist(), records.property("KEYS").to_pylist(), records.tags_codes().tolist()
    except RecordError as error:
        return str(error)
    return found


def stamped(data: bytes, chance: random.Random) -> Any:
    """Returns what a broker writes into some of these records, and the columns and index keys that it computes."""
    written = bytearray(data)
    try:
        records = Records.walk(written)
        if not len(records):
            return None
        some = records[np.arange(len(records))[:: chance.choice((1, 2, -1))]]
        keys = index_keys(some)
        offsets = np.arange(len(some)) + chance.randrange(-(2**62), 2**62)
        some.stamp(offsets, some.starts + 7, chance.randrange(2**62), bytes(chance.choice((8, 8, 8, 20))))
    except RecordError as error:
        return str(error), bytes(written)
    columns = some.queue_offset, some.commit_log_offset, some.store_timestamp
    made = [column.tolist() for column in (*columns, keys.hashes, keys.offsets, keys.timestamps)]
    return made, some.store_hosts().to_pylist(), bytes(written)


def located(data: bytes) -> Any:
    try:
        return record.locate(data)
    except RecordError as error:
        return str(error)


def encoded(chance: random.Random) -> Any:
    count = chance.randrange(1, 4)
    sizes = [chance.choice((0, 1, 63, 64, 65, 130, 1000, 40000)) for _ in range(2 * count)]
    bodies = [bytes(size) for size in sizes[:count]]
    properties = [b"x" * size for size in sizes[count:]]
    try:
        data, found = encode("t" * chance.choice((0, 1, 127, 128)), 1, bodies, properties, born_timestamp=1,
                             born_host=bytes(chance.choice((8, 20))), store_host_v6=chance.random() < 0.2)  # fmt: skip
    except RecordError as error:
        return str(error)
    return bytes(data), found.tolist()


def encoded_columns(chance: random.Random) -> Any:
    """Encodes Arrow columns as the producer does for Spark's sink: parts of longer columns, with a queue for each row,
    and system flags for each row if bodies are compressed.
    """
    before, count, behind = (chance.randrange(low, 4) for low in (0, 1, 0))
    rows = before + count + behind

    def part_of_a_column(kinds: tuple[pa.DataType, ...], sizes: tuple[int, ...]) -> pa.Array | pa.ChunkedArray:
        values = ["".join(chance.choices("abcdefgh", k=chance.choice(sizes))) for _ in range(rows)]
        column = pa.array([value.encode() for value in values], pa.binary()).cast(chance.choice(kinds))
        whole = column if chance.random() < 0.8 else pa.chunked_array([column[:before], column[before:]])
        return whole[before : before + count]

    flags = np.array(chance.choices(FLAGS, k=count), np.int32)
    kinds = (pa.binary(),) * 3 + (pa.large_binary(), pa.string())
    try:
        data, found = encode(
            "t",
            np.array(chance.choices(range(4), k=count), np.int32),
            part_of_a_column(kinds, (0, 1, 63, 64, 65, 130, 1000)),
            part_of_a_column(kinds[:1], (0, 1, 20, 63, 64, *(40000,) * (chance.random() < 0.1))),
            born_timestamp=chance.randrange(2**41),
            born_host=bytes(range(8)),
            sys_flags=flags if chance.random() < 0.5 else 0,
        )
    except RecordError as error:
        return str(error)
    return bytes(data), found.tolist()


def run(count: int, seed: int, compiled: kernels.Kernels, whole_every: int = 1) -> int:
    """Returns how many frames were accepted.  An AssertionError names the frame for which the verdicts differ.

    Every frame is checked as a broker checks a put, and searched for its records.  One of `whole_every` frames also
    goes through everything else, and a quarter of these come with a log, because that takes ten times as long.
    """
    chance, accepted, frame, walked = random.Random(seed), 0, b"", 0
    for number in range(count):
        whole = number % whole_every == 0
        if number % 16 == 0:
            frame = a_frame(chance)
            walked = records_in(frame)
        data = damaged(frame, chance)
        announced = chance.choice((1, 2, 3, 30, 2**31)) if chance.random() < 0.2 else max(1, len(frame) // 1000)
        if chance.random() < 0.8 and walked:
            announced = walked
        with using(compiled):
            ours = verdict(data, announced), located(data)
        with using(None):
            plain = verdict(data, announced), located(data)
        assert ours == plain, f"seed {seed}, frame {number}: {data.hex()} {announced}\n{ours}\n{plain}"
        accepted += not isinstance(ours[0], str)
        # A copy without spare bytes, so that a sanitizer notices reads beyond its end.
        exact = np.frombuffer(data, np.uint8).copy()
        compiled.walk(exact, None, -1, True)
        if not whole:
            continue
        same_in_both(lambda chance, data=data: (columns(data), stamped(data, chance)), chance, compiled,
                     f"seed {seed}, frame {number}: {data.hex()}")  # fmt: skip
        compiled.walk(exact, np.array([chance.choice(SIZES), len(exact)], np.int64))
        if (found := compiled.walk(exact, heads=True)) is not None and found.size:
            sizes = found[1].copy()
            sizes[chance.randrange(len(sizes))] = chance.choice((*SIZES, -1, 2**63 - 1))
            compiled.walk(exact, sizes, heads=True)
        compiled.locate(exact, chance.choice((0, 1, len(exact) - 91, -1, 2**62)))
        compiled.places(exact, np.array([chance.choice((0, 1, -5, len(exact)))]), np.array([chance.choice(SIZES)]))
        reached(compiled, exact, chance)
        if number % (4 * whole_every) == 0:
            intact = a_log(chance)
            log = damaged_log(intact, chance)
            same_in_both(lambda chance, log=log: scanned(log, chance), chance, compiled,
                         f"seed {seed}, log {number}: {log.hex()}")  # fmt: skip
            same_in_both(lambda chance, intact=intact, log=log: read_back(intact, log, chance), chance, compiled,
                         f"seed {seed}, reading log {number}: {log.hex()}")  # fmt: skip
            exact = np.frombuffer(log[: chance.randrange(len(log) + 1)], np.uint8).copy()
            compiled.scan(exact, chance.choice((LOG_BEGIN, -1, 2**63 - 1)), True, LOG_BEGIN)
        if number % (64 * whole_every) == 0:
            same_in_both(lambda chance: (encoded(chance), encoded_columns(chance)), chance, compiled,
                         f"seed {seed}, frame {number}")  # fmt: skip
    return accepted


def records_in(frame: bytes) -> int:
    """Returns how many records the code in Python finds in a frame, or 0 if it refuses the frame."""
    with using(None):
        try:
            return len(Records.walk(frame))
        except RecordError:
            return 0


def same_in_both(
    step: Callable[[random.Random], Any], chance: random.Random, compiled: kernels.Kernels, what: str
) -> None:
    """Runs a step with the compiled module and without it, with the same random choices, and compares the results."""
    state = chance.getstate()
    with using(compiled):
        ours = step(chance)
    chance.setstate(state)
    with using(None):
        plain = step(chance)
    assert ours == plain, f"{what}\n{ours}\n{plain}"


def reached(compiled: kernels.Kernels, exact: Any, chance: random.Random) -> None:
    """Calls the functions that take places in the bytes, with places that may be wrong.  A function may refuse a wrong
    place, but must not read or write there.
    """
    places = (0, 1, 36, 88, len(exact) - 88, len(exact), -1, 2**62, -(2**63), 2**63 - 1)
    starts, sizes = (np.array(chance.choices(places, k=2), np.int64) for _ in range(2))
    compiled.queue_entries(exact, starts)
    compiled.field(exact, starts, 84, 4)
    compiled.field(exact, starts, 80, 8)
    near = np.sort(np.array(chance.choices((0, 1, 91, 96, 100, len(exact) - 100), k=2), np.int64))
    queues = {int.from_bytes(exact[at + 12 : at + 16].tobytes(), "big", signed=True): 5 for at in near.tolist()}
    queue_ids, queue_offsets = (np.array(chance.choices(places, k=2), np.int64) for _ in range(2))
    compiled.runs(starts, sizes, 0, 2**63 - 1, chance.choice((1, LOG_FILE, 2**63 - 1)))
    files = [(0, exact), (chance.choice((0, 1, 2**62)), exact)]
    compiled.first_mismatch(files, starts, sizes, queue_ids, queue_offsets)
    compiled.stamp(exact.copy(), near, 0, queues, 1, bytes(chance.choice((8, 20))))
    before = np.zeros(2, np.int32)
    try:
        compiled.gather(exact, starts, sizes)
        compiled.property_values(exact, starts, sizes, b"TAGS")
        compiled.property_map(exact, starts, sizes)
        compiled.property_hashes(exact, starts, sizes, b"TAGS")
        compiled.index_hashes(exact, starts, sizes, np.array([0, 1]), before, before)
    except ValueError:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--module")
    words = parser.parse_args()
    compiled: Any = kernels.compiled
    if words.module:
        loader = ExtensionFileLoader("rocketsim_proto.records._kernels", words.module)
        spec = importlib.util.spec_from_file_location(loader.name, words.module, loader=loader)
        assert spec is not None
        compiled = importlib.util.module_from_spec(spec)
        loader.exec_module(compiled)
    if compiled is None:
        sys.exit("the compiled module is not installed")
    for way in (2, 1, 0):
        checksums = compiled.choose_crc(way)
        accepted = run(words.count // 3, words.seed, compiled)
        print(f"{words.count // 3} frames, checksums by {checksums}: {accepted} accepted, all as in Python")
    compiled.choose_crc()


if __name__ == "__main__":
    main()
