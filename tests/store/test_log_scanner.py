"""A scan of log bytes finds the valid records up to the first one that is wrong, and what follows them."""

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import kernels, record
from rocketsim_proto.records.record import BLANK, BLANK_MAGIC, Record

from broker_service.store import log_scanner
from broker_service.store.batch import Batch
from broker_service.store.log_scanner import LogScan, Stop
from tests.support.kernel_fuzz import LOG_BEGIN, LOG_FILE, LogFiles

pytestmark = pytest.mark.usefixtures("record_kernels")

FAR = 10**9  # a log offset behind all records


def log_of(*records: Record) -> bytearray:
    """Returns these records as the bytes of a log that begins at `LOG_BEGIN`."""
    data = bytearray()
    for one in records:
        data += record.encode(replace(one, commit_log_offset=LOG_BEGIN + len(data)))
    return data


def three() -> bytearray:
    return log_of(*[Record("topic", b"x" * 50, properties={"TAGS": "TagA"})] * 3)


def scan(data: bytes | bytearray, *, check_from: int = LOG_BEGIN, strict_from: int = FAR) -> tuple[list[int], str]:
    """Returns the log offset of each valid record, and why the scan ended."""
    log: Any = LogFiles(bytes(data))
    found = LogScan(log, LOG_BEGIN, check_from=check_from, strict_from=strict_from)
    offsets = [at for _, records in found for at in records.commit_log_offset.tolist()]
    return offsets, found.reason


def soundness(data: bytearray, **where: int) -> int:
    return len(scan(data, **where)[0])


ENDS = (
    (b"", Stop.END, 0),
    (b"\0" * 20, Stop.NO_RECORD, 0),
    (BLANK.pack(50, BLANK_MAGIC), Stop.BLANK, 50),
    (b"\0\0\0\x40no record", Stop.NO_RECORD, 64),
)
runs = st.lists(st.tuples(st.integers(92, 100), st.integers(1, 60)), max_size=8)


@given(runs, st.sampled_from(ENDS), st.integers(0, 200))
def test_whole_records_of_any_sizes_are_found_and_what_follows_them(runs, end, cut):
    sizes = [size for size, count in runs for _ in range(count)]
    data = bytes(log_of(*[Record("t", b"x" * (size - 92)) for size in sizes])) + end[0]
    data = data[: max(len(data) - cut, 0)]
    ends = [at for at in accumulate(sizes) if at <= len(data)]
    whole, at = sizes[: len(ends)], ends[-1] if ends else 0
    if len(data) - at < 8:
        stop, size = Stop.END, 0
    elif len(whole) < len(sizes):
        stop, size = Stop.END, sizes[len(whole)]
    else:
        _, stop, size = end
    batch, reason, walked = Batch.of_log(memoryview(data), LOG_BEGIN)
    assert (list(batch.sizes), batch.size, reason) == (whole, at, "")
    assert (walked.sizes.tolist(), walked.end, walked.stop, walked.next_size) == (whole, at, stop, size)


def test_only_whole_records_before_the_first_bad_one_are_sound():
    size = len(three()) // 3
    assert soundness(three()) == 3
    for at, left in ((2 * size + 100, 2), (size + 100, 1), (100, 0), (size + 86, 1), (size + 30, 1)):
        data = three()
        data[at] ^= 1
        assert soundness(data) == left, at
        assert len(Batch.of_log(memoryview(data), LOG_BEGIN)[0]) == left, at


def test_a_bad_checksum_before_a_bad_length_is_found():
    data = three()
    size = len(data) // 3
    data[size + 100] ^= 1
    data[2 * size + 86] ^= 1
    assert soundness(data) == 1
    assert soundness(data, check_from=FAR) == 2, "checksums are not verified there"


def test_zeros_in_the_properties_are_found_where_they_are_looked_for():
    data = three()
    size = len(data) // 3
    data[2 * size - 10 : 2 * size] = bytes(10)
    assert soundness(data) == 3, "no checksum covers them"
    assert soundness(data, strict_from=LOG_BEGIN + size) == 1
    assert soundness(data, strict_from=LOG_BEGIN + 2 * size) == 3


@pytest.mark.parametrize(("at", "size", "is_lost"), [(1024, 512, True), (1025, 512, False), (1025, 1023, True)])
def test_a_sector_of_zeros_is_one_of_the_disk(at, size, is_lost):
    data = log_of(Record("topic", b"", properties={"TAGS": "x" * 2500}))
    data[at : at + size] = bytes(size)
    reason = "zeros in its topic or properties" if is_lost else "the data ends of size 0"
    assert scan(data, strict_from=LOG_BEGIN) == ([] if is_lost else [LOG_BEGIN], reason)


@pytest.mark.parametrize(("more", "goes_on"), [(0, True), (1, False), (-1, False)])
def test_only_a_blank_record_that_ends_with_the_file_leads_to_the_next_file(more, goes_on):
    data = three()
    room = LOG_FILE - len(data)
    data += BLANK.pack(room + more, BLANK_MAGIC) + bytes(room - record.BLANK_SIZE)
    data += record.encode(Record("topic", b"", commit_log_offset=LOG_BEGIN + LOG_FILE))
    offsets, reason = scan(data)
    assert (len(offsets), offsets[-1] == LOG_BEGIN + LOG_FILE) == (4 if goes_on else 3, goes_on)
    assert reason == ("the data ends of size 0" if goes_on else f"a blank record of size {room + more}")


@pytest.mark.parametrize("topic", ["ü", "a topic", "u" * 130])
def test_records_of_unusual_topics_are_found_among_others(topic):
    usual = Record("topic", b"body")
    data = log_of(usual, Record(topic, b"body"), usual)
    assert soundness(data, strict_from=LOG_BEGIN) == 3
    batch, reason, _ = Batch.of_log(memoryview(data), LOG_BEGIN)
    assert (len(batch), reason) == (3, "")


def test_with_compiled_code_usual_records_are_not_checked_in_python():
    usual = Record("%RETRY%group", b"body", properties={"TAGS": "TagA"})
    for one, is_usual in (
        (usual, True),
        (replace(usual, topic="a topic"), False),
        (replace(usual, queue_id=-1), False),
    ):
        data = bytes(log_of(usual, one))
        records, walked = log_scanner.scan(data, LOG_BEGIN, crc=True, strict_from=LOG_BEGIN)
        assert (records is not None) == (is_usual and kernels.compiled is not None)
        assert walked.sizes.tolist() == [record.size_of(usual), record.size_of(one)]
        assert records is None or records.sizes.tolist() == walked.sizes.tolist()
