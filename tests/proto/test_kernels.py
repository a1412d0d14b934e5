"""The compiled record codec: its checksums, its refusals, and the same verdict as in Python for random damage."""

import itertools
import os
import random
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import kernels, record
from rocketsim_proto.records.columnar import Records
from rocketsim_proto.records.encoding import encode
from rocketsim_proto.records.record import Record

from tests.support import gil, kernel_fuzz
from tests.support.record_codec import needs_compiled_codec

pytestmark = needs_compiled_codec
compiled = kernels.compiled
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[2, 1, 0], ids=["wide", "hardware", "table"], scope="module")
def checksums(request):
    yield compiled.choose_crc(request.param)
    compiled.choose_crc()


def test_checksums_are_those_of_zlib_at_every_length_and_alignment(checksums):
    data = np.random.default_rng(1).integers(0, 256, 5000, np.uint8)
    starts = np.array([start for size in range(700) for start in (0, 1, 7)] + [3, 0], np.int64)
    sizes = np.array([size for size in range(700) for _ in range(3)] + [4096, 5000], np.int64)
    expected = [zlib.crc32(data[a : a + b]) & 0x7FFFFFFF for a, b in zip(starts.tolist(), sizes.tolist(), strict=True)]
    assert compiled.crcs(data, starts, sizes).tolist() == expected
    for size in range(700):
        assert compiled.crc32(memoryview(data)[5 : 5 + size]) == zlib.crc32(data[5 : 5 + size])


@given(st.binary(max_size=2000))
def test_a_checksum_is_that_of_the_plain_code(body):
    assert compiled.crcs(body, np.array([0]), np.array([len(body)])).tolist() == [zlib.crc32(body) & 0x7FFFFFFF]


@pytest.mark.parametrize(("start", "size"), [(-1, 1), (0, 11), (11, 0), (5, 6), (2**62, 2**62), (0, -1)])
def test_a_slice_outside_the_buffer_is_refused(start, size):
    with pytest.raises(ValueError, match="slice 0 is not inside"):
        compiled.crcs(bytes(10), np.array([start]), np.array([size]))


FIELDS = ("magic", "body_crc", "queue_id", "flag", "queue_offset", "commit_log_offset", "sys_flag", "born_timestamp")
FIELDS += ("store_timestamp", "reconsume_times", "prepared_transaction_offset")


@pytest.mark.parametrize("host", [8, 20])
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_has_the_values_and_the_type_that_it_has_in_python(name, host):
    chance = np.random.default_rng(1)
    frame = bytearray(record.encode(Record("t", b"body", born_host=bytes(8)))) * 3
    frame += record.encode(Record("t", b"body", born_host=bytes(host)))
    starts = Records.walk(bytes(frame)).starts
    for start in starts.tolist():
        for at in (*range(8, 36), *range(40, 48), *range(56, 64), *range(72, 84)):  # all but lengths, flags and hosts
            frame[start + at] = chance.integers(256)
    found = []
    for way in (compiled, None):
        with kernel_fuzz.using(way):
            records = Records.walk(bytes(frame))
            found += [getattr(records, name), getattr(records[0:4], name)]  # a part reads its fields itself
    assert all(column.tolist() == found[-1].tolist() for column in found)
    assert {column.dtype for column in found} == {found[-1].dtype}


def test_a_stamp_changes_the_fields_that_a_walk_has_read():
    frame = bytearray(record.encode(Record("t", b"body")) * 3)
    records = Records.walk(frame)
    assert records.store_timestamp.tolist() == records.queue_offset.tolist() == [0, 0, 0]
    assert compiled.stamp(records.data, records.starts, 0, {0: 7}, 5, bytes(8))
    records.forget_stamp()
    assert records.store_timestamp.tolist() == [5, 5, 5]
    assert records.queue_offset.tolist() == [7, 8, 9]


@pytest.mark.parametrize("start", [-1, -91, 1, 5, 2**62, -(2**63)])
def test_a_field_outside_the_buffer_is_left_to_python(start):
    one = record.encode(Record("t", b""))[:88]
    assert compiled.field(one, np.array([0]), 84, 4).tolist() == [0]
    assert compiled.field(one, np.array([0, start]), 84, 4) is None


@pytest.mark.parametrize(("at", "size"), [(-1, 4), (85, 4), (81, 8), (0, 2), (0, 16)])
def test_no_field_lies_behind_the_first_fields(at, size):
    with pytest.raises(ValueError, match=f"no field of {size} bytes is at byte {at}"):
        compiled.field(bytes(200), np.array([0]), at, size)


def test_arrays_of_another_type_are_refused():
    one = record.encode(Record("t", b"body"))
    with pytest.raises(TypeError, match="items of 4 bytes, 8 expected"):
        compiled.walk(one, np.array([len(one)], np.int32))
    with pytest.raises(ValueError, match="not inside"):
        zero, bodies = np.zeros(1, np.int32), (np.array([0, 9], np.int32), b"body")
        compiled.encode(b"t", zero, bodies, [b""], np.zeros(1, np.int64), bytes(8), False, zero, zero)


@pytest.mark.parametrize(("begin", "end", "file_size"), [(-1, 5, 9), (6, 5, 9), (0, 5, 0), (0, 5, -9)])
def test_a_log_that_cannot_be_is_refused(begin, end, file_size):
    with pytest.raises(ValueError, match=f"no log reaches from {begin} to {end} in files of {file_size} bytes"):
        compiled.runs(np.zeros(1, np.int64), np.zeros(1, np.int64), begin, end, file_size)


def test_a_head_is_read_only_inside_its_file():
    one = record.encode(Record("t", b"body"))
    zero, size = np.zeros(1, np.int64), np.array([len(one)])
    for head_size, found in ((48, -1), (47, 0)):
        assert compiled.first_mismatch([(0, one[:head_size])], zero, size, zero, zero) == found
    for offset in (-1, len(one), 2**62, -(2**63)):
        assert compiled.first_mismatch([(0, one)], np.array([offset]), size, zero, zero) == 0
    assert compiled.first_mismatch([], zero, size, zero, zero) == 0
    with pytest.raises(ValueError, match="1 offsets, but other numbers"):
        compiled.first_mismatch([(0, one)], zero, size, zero, np.zeros(2, np.int64))


def a_record(**fields):
    return np.frombuffer(bytearray(record.encode(Record("t", b"body", **fields))), np.uint8)


@pytest.mark.parametrize(("start", "host"), [(-1, 8), (10, 8), (2**62, 8), (0, 20), (0, 9)])
def test_a_stamp_that_does_not_fit_writes_nothing(start, host):
    data = a_record()
    before = bytes(data)
    assert not compiled.stamp(data, np.array([0, start], np.int64), 0, {0: 0}, 1, bytes(host))
    assert bytes(data) == before


def test_records_of_very_many_queues_are_left_to_python():
    for count, is_compiled in ((256, True), (257, False)):
        data = bytearray(b"".join(record.encode(Record("t", b"", queue_id=number)) for number in range(count)))
        starts, next_offsets = np.arange(count) * (len(data) // count), dict.fromkeys(range(count), 5)
        rules = {"max_body_size": 9, "max_record_size": 999, "client_flags": 0, "store_host_v6": False}
        assert (compiled.check(data, count, b"t", (), **rules) is not None) == is_compiled
        assert compiled.stamp(data, starts, 0, next_offsets, 1, bytes(8)) == is_compiled
        assert set(next_offsets.values()) == {6 if is_compiled else 5}
        assert (compiled.queue_entries(data, starts) is not None) == is_compiled


LOG_BEGIN = 1000


def log_of(*records: Record) -> bytearray:
    """Returns these records as the bytes of a log that begins at `LOG_BEGIN`."""
    data = bytearray()
    for one in records:
        data += record.encode(replace(one, commit_log_offset=LOG_BEGIN + len(data)))
    return data


@pytest.mark.parametrize("count", [0, 1, 3, 100])  # the GIL is released for 100 records
@pytest.mark.parametrize("behind", [0, 20, 300])
def test_a_scan_finds_all_valid_records_and_where_they_end(count, behind):
    data = log_of(*[Record("%RETRY%a-b|c_D9", b"x" * 900, properties={"TAGS": "TagA"})] * count)
    places, end = compiled.scan(data + bytes(behind), LOG_BEGIN, True, 0)
    assert (places.tolist(), end) == (compiled.walk(data).tolist(), len(data))
    assert places.shape == (8, count) and places.flags.c_contiguous


@pytest.mark.parametrize(
    ("at", "value"),
    [
        pytest.param(0, b"\1", id="a size beyond the end"),
        pytest.param(4, b"\xcb\xd4\x31\x94", id="a blank record"),
        pytest.param(8, b"\x7f", id="a checksum"),
        pytest.param(12, b"\x80", id="a negative queue id"),
        pytest.param(20, b"\x80", id="a negative queue offset"),
        pytest.param(35, b"\xff", id="another log offset"),
        pytest.param(87, b"\5", id="the size of the body"),
        pytest.param(88, b"B", id="the body"),
        pytest.param(93, b"/", id="a topic that no folder can be named after"),
        pytest.param(93, b"\xc3\xbc", id="a topic that is not ASCII"),
        pytest.param(-1, b"\0", id="a lost end of the properties"),
    ],
)
def test_a_scan_ends_before_the_first_record_that_is_wrong(at, value):
    one = Record("topic", b"body", properties={"TAGS": "TagA"})
    size, data = record.size_of(one), log_of(one, one, one)
    begin = size + at % size
    data[begin : begin + len(value)] = value
    places, end = compiled.scan(data, LOG_BEGIN, True, LOG_BEGIN)
    assert (places.shape[1], end) == (1, size)


def test_a_scan_finds_a_sector_of_zeros_where_the_disk_has_a_sector():
    begin = 1024 - LOG_BEGIN % 512  # in the properties
    for at, found in ((begin, 0), (begin + 1, 1)):
        data = log_of(Record("topic", b"body", properties={"TAGS": "x" * 2000}))
        data[at : at + 512] = bytes(512)
        assert compiled.scan(data, LOG_BEGIN, True, LOG_BEGIN)[0].shape[1] == found


def test_a_scan_looks_for_lost_sectors_and_at_checksums_only_where_it_is_asked_to():
    one = Record("topic", b"body", properties={"TAGS": "x"})
    size = record.size_of(one)
    data = log_of(one, one)
    data[-1] = 0
    for strict_from, end in ((LOG_BEGIN + size, size), (LOG_BEGIN + size + 1, 2 * size)):
        assert compiled.scan(data, LOG_BEGIN, True, strict_from)[1] == end
    data[size + 88] ^= 1
    for crc, end in ((True, size), (False, 2 * size)):
        assert compiled.scan(data, LOG_BEGIN, crc, 2**63 - 1)[1] == end


@pytest.mark.parametrize("offset", [-(2**63), -1, 0, LOG_BEGIN - 1, 2**63 - 1])
def test_a_scan_from_a_log_offset_at_which_the_data_cannot_lie_finds_nothing(offset):
    one = replace(Record("topic", b"body"), commit_log_offset=2**63 - 1 if offset > LOG_BEGIN else LOG_BEGIN)
    places, end = compiled.scan(record.encode(one), offset, True, 0)
    assert (places.shape, end) == ((8, 0), 0)


def places_of(*properties: bytes) -> tuple[Any, Any, Any]:
    """Returns the arguments (data, starts, sizes) for these encoded properties."""
    sizes = np.array([len(one) for one in properties])
    return np.frombuffer(b"".join(properties), np.uint8), np.cumsum(sizes) - sizes, sizes


def test_what_only_python_can_read_is_left_to_it():
    places, zero, code = places_of(b"TAGS\x01\xc3\xbc"), np.zeros(1, np.int64), np.zeros(1, np.int32)
    assert compiled.property_hashes(*places, b"TAGS") is None
    assert compiled.property_hashes(*places, b"KEYS").tolist() == [0]
    assert compiled.index_hashes(*places, zero, code, code) is None
    assert compiled.property_map(*places_of(b"\xc3\xbc\x01a")) is None
    assert compiled.property_map(*places_of(b"".join(b"%d\x01a\x02" % name for name in range(64)))) is not None
    assert compiled.property_map(*places_of(b"".join(b"%d\x01a\x02" % name for name in range(65)))) is None


@pytest.mark.parametrize("name", [b"", b"a\x01b", b"a\x02b"])
def test_no_property_has_a_name_that_cannot_be_written(name):
    _, values, _, _ = compiled.property_values(*places_of(b"a\x01b\x01c\x02\x01d\x02b\x01e"), name)
    assert not len(values)


@pytest.mark.parametrize("code", [-1, 1, 2**62])
def test_a_topic_without_a_hash_is_refused(code):
    before = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="record 0 is of topic"):
        compiled.index_hashes(*places_of(b"a"), np.array([code]), before, before)


def test_a_column_has_no_more_bytes_than_arrow_can_count():
    large = np.zeros(1 << 20, np.uint8)
    with pytest.raises(ValueError, match="more than 2147483647 bytes"):
        compiled.gather(large, np.zeros(2048, np.int64), np.full(2048, 1 << 20))


def test_large_columns_are_made_without_the_gil_to_the_same_result():
    one = Record("t", b"x" * 900, properties={"KEYS": "a b c d e", "TAGS": "TagA", "UNIQ_KEY": "1" * 32})
    data = record.encode(one) * 1800

    def made() -> Any:
        found = kernel_fuzz.columns(data), kernel_fuzz.stamped(data, random.Random(1))
        return *found, kernel_fuzz.verdict(data, 1800)

    with kernel_fuzz.using(compiled):
        ours = made()
    with kernel_fuzz.using(None):
        assert made() == ours


# --- the GIL ----------------------------------------------------------------------------------------------------------


class Alike:
    """The arguments for calls with `count` small records that are alike, as they are sent and as a broker stores them.

    `last` is where the last record begins.  In `other_host` and `other_topic` only the last record is wrong, so that a
    function reads all records and then refuses them.
    """

    def __init__(self, count: int) -> None:
        one = record.encode(Record("t", b"body", properties={"KEYS": "k", "TAGS": "a"}))
        self.count, self.last = count, (count - 1) * len(one)
        self.data = np.frombuffer(bytearray(one * count), np.uint8)
        columns = compiled.walk(self.data)
        assert columns is not None
        self.starts, self.sizes = columns[:2]
        self.bodies, self.properties = (columns[2], columns[3]), (columns[6], columns[7])
        self.stamped, self.other_host = self.data.copy(), self.data.copy()
        assert self.stamp(self.stamped)
        self.other_topic = self.stamped.copy()
        self.other_topic[int(columns[4][-1])] = ord("u")
        self.other_host[self.last + 39] |= record.SYS_FLAG_STORE_HOST_V6
        self.zero, self.zeros = np.zeros(1, np.int32), np.zeros(count, np.int64)
        self.texts = np.arange(count + 1, dtype=np.int32) * 100, bytes(100 * count)
        self.empty_texts = np.zeros(count + 1, np.int32), b""

    def stamp(self, data: Any) -> bool:
        return compiled.stamp(data, self.starts, 0, {0: 0}, 1, bytes(8))


RULES = {"max_body_size": 9, "max_record_size": 999, "client_flags": 0, "store_host_v6": False}
# Each call does one kind of work that is long for many records, and whatever else it does is short.
LONG_CALLS = {
    "walk": lambda of: compiled.walk(of.data, None, -1, True),
    "scan": lambda of: compiled.scan(of.stamped, 0, True, 0),
    "places": lambda of: compiled.places(of.data, of.starts, of.sizes),
    "crcs": lambda of: compiled.crcs(of.data, of.starts, of.sizes),
    "check": lambda of: compiled.check(of.data, of.count, b"t", (), **RULES),
    "field": lambda of: compiled.field(of.data, of.starts, 28, 8),
    "gather": lambda of: compiled.gather(of.data, of.starts, of.sizes),
    "property_values, of a property that no record has": lambda of: compiled.property_values(
        of.data, of.properties[0], of.properties[1], b"none"
    ),
    "property_map, of texts that are no properties": lambda of: compiled.property_map(of.data, *of.bodies),
    "property_hashes": lambda of: compiled.property_hashes(of.data, of.properties[0], of.properties[1], b"TAGS"),
    "index_hashes": lambda of: compiled.index_hashes(
        of.data, of.properties[0], of.properties[1], of.zeros, of.zero, of.zero
    ),
    "stamp, which refuses the last record": lambda of: compiled.stamp(of.other_host, of.starts, 0, {0: 0}, 1, bytes(8)),
    "queue_entries, which refuses the last record": lambda of: compiled.queue_entries(of.other_topic, of.starts),
    "encode": lambda of: compiled.encode(
        b"t", of.zero, of.texts, of.empty_texts, of.zeros[:1], bytes(8), False, of.zero, of.zero
    ),
}


@pytest.fixture(scope="module")
def many():
    return Alike(100_000)


@pytest.mark.parametrize("call", LONG_CALLS.values(), ids=LONG_CALLS)
def test_other_threads_run_during_a_call_for_many_records(many, call):
    assert gil.is_released(lambda: call(many))


@pytest.mark.parametrize("call", LONG_CALLS.values(), ids=LONG_CALLS)
def test_a_call_for_a_few_records_keeps_the_gil_because_taking_it_back_takes_longer(call):
    few = Alike(10)
    assert not gil.is_released(lambda: call(few), attempts=50)


def test_other_threads_run_while_records_are_stamped(many):
    """`stamp` checks all records before it writes.  Only while it writes, the first record has its stamp and the last
    record has none.
    """
    store_timestamp = 63  # the place of its last byte

    def is_seen_at_work() -> bool:
        data = many.data.copy()

        def is_half_done() -> bool:
            return data[store_timestamp] == 1 and data[many.last + store_timestamp] == 0

        return gil.beside(lambda: many.stamp(data), is_half_done)[0]

    with gil.kept():
        assert any(is_seen_at_work() for _ in range(gil.ATTEMPTS))


def test_other_threads_run_while_queue_entries_are_written(many):
    """`queue_entries` reads log offsets only for the entries.  Another thread keeps changing the log offsets of the
    first and the last record, always both to the same number, so entries with different numbers show that the other
    thread has run between the two entries.
    """
    log_offset = 35  # the place of its last byte

    def differs() -> bool:
        data, numbers = many.stamped.copy(), itertools.cycle(range(256))

        def change() -> bool:
            data[log_offset] = data[many.last + log_offset] = next(numbers)
            return False

        change()
        _, entries, _ = gil.beside(lambda: compiled.queue_entries(data, many.starts), change)[1]
        return entries[7] != entries[-13]

    with gil.kept():
        assert any(differs() for _ in range(gil.ATTEMPTS))


# --- the names of special properties ----------------------------------------------------------------------------------

PROPERTIES = (
    b"",
    b"A\x01x",
    b"A\x01x\x02TRAN_MSG\x01true",
    b"A\x01\x02TRAN_MSG\x01true\x02",  # the first piece has no value, so it is not a property
    b"A\x01",
    b"A\x01\x02",
    b"TRAN_MSG\x01",
    b"TRAN_MSG\x01\x02A\x01x",
    b"TRAN_MSG\x01true\x02A\x01x",
    b"TRAN_MSG",
    b"\x02\x02TRAN_MSG\x01true",
    b"\x01TRAN_MSG\x01true",
    b"".join(b"%d\x01x\x02" % number for number in range(20)) + b"TRAN_MSG\x01true",
    b"".join(b"%d\x01x\x02" % number for number in range(19)) + b"TRAN_MSG\x01true",
)


@pytest.mark.parametrize("second", PROPERTIES)
@pytest.mark.parametrize("first", PROPERTIES)
def test_a_special_property_is_found_whatever_the_record_before_has(first, second):
    for properties in ([first, second], [first, second, first], [first, b"A\x01y", second]):
        data = bytes(encode("t", 0, [b"body"] * len(properties), properties, born_timestamp=1, born_host=bytes(8))[0])
        found = {}
        for way in (compiled, None):
            with kernel_fuzz.using(way):
                found[way] = kernel_fuzz.verdict(data, len(properties))
        assert found[compiled] == found[None], properties


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_frames_have_the_same_verdict_and_the_same_error_as_in_python(checksums, seed):
    assert kernel_fuzz.run(300, seed, compiled) > 15


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("python", "python"),
        ("compiled", "compiled"),
        ("", "compiled"),
        ("fast", "ImportError: ROCKETSIM_KERNELS=fast: it must be python or compiled, or not be set"),
    ],
)
def test_the_environment_selects_which_is_used(wanted, said):
    code = "from rocketsim_proto.records.kernels import in_use; print(in_use())"
    environment = {"ROCKETSIM_KERNELS": wanted, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout + done.stderr).splitlines()[-1] == said


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 13))
def test_ten_million_damaged_frames_have_the_same_verdict_as_in_python(checksums, seed):
    # Ten seeds, with each of the three ways to compute checksums, are 10^7 frames.
    assert kernel_fuzz.run(340_000, seed, compiled, whole_every=20) > 27_000


@pytest.mark.long
def test_sanitizers_find_nothing_while_frames_are_damaged():
    python_first = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        [ROOT / "tests/support/sanitized_kernels", "100000"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PATH": python_first},
    )
    assert done.returncode == 0, done.stderr
