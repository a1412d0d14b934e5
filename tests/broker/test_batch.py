"""Frames of a few messages are checked and stored record by record, with the same result as frames in columns."""

import zlib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rocketsim_proto.records import record
from rocketsim_proto.records.record import SYS_FLAG_COMPRESSED, SYS_FLAG_STORE_HOST_V6

from broker_service.broker.frame import Frame, FrameLimits, check_frame, check_records
from broker_service.errors import MessageIllegal, RocketSimError
from broker_service.put_result import Appended
from broker_service.store import batch
from broker_service.store.batch import Batch
from broker_service.store.message_store import MessageStore
from tests.support.memory_files import MemoryFiles
from tests.support.stores import HOST, LOG_FILE, NOW, check_sound, log_bytes, open_store, tree

pytestmark = pytest.mark.usefixtures("record_kernels")

LIMITS = FrameLimits(max_message_size=500, log_file_size=LOG_FILE, store_host_size=8)
ROOT = Path("/store")

names = st.sampled_from(
    ["TAGS", "KEYS", "UNIQ_KEY", "A", "WAIT", "DELAY", "TRAN_MSG", "__DELAY_LEVEL", "TIMER_DELIVER_MS"]
)
values = st.sampled_from(["", "TagA", "false", "3", "soon", "\0", "x" * 600, "ü", "\0" * 600, "TRAN_MSG\x01true"])
messages = st.builds(
    record.Record,
    topic=st.sampled_from(["t", "t", "t", "t", "u", ""]),
    body=st.binary(max_size=40) | st.just(bytes(501)),
    queue_id=st.integers(0, 2),
    flag=st.integers(-1, 1),
    sys_flag=st.sampled_from([0, 0, 0, 0, SYS_FLAG_COMPRESSED, 0x300, 4, 8, 12, 1 << 20]),
    born_host=st.sampled_from([HOST, HOST, HOST, bytes(20)]),
    store_host=st.sampled_from([HOST, HOST, HOST, HOST, HOST, bytes(20)]),
    properties=st.dictionaries(names, values, max_size=2) | st.just({"TAGS": "TagA", "KEYS": "k"}),
)
flips = st.none() | st.tuples(st.integers(0, 400), st.integers(1, 255))


def judged(data: bytes, count: int) -> Frame | str:
    try:
        return check_frame("t", data, count, zlib.crc32(data), LIMITS)
    except MessageIllegal as error:
        return str(error)


@settings(max_examples=300)
@given(st.lists(messages, min_size=1, max_size=4))
def test_records_that_the_broker_makes_are_judged_as_frames_of_clients_are(sent):
    by_frame = judged(b"".join(map(record.encode, sent)), len(sent))
    try:
        frame = check_records("t", sent, LIMITS)
    except MessageIllegal as error:
        assert isinstance(by_frame, str)
        assert str(error).partition(": ")[2] in by_frame or str(error) == by_frame
        return
    assert isinstance(by_frame, Frame)
    assert bytes(frame.batch.view_bytes()) == bytes(by_frame.batch.view_bytes())
    assert frame.queues == by_frame.queues
    assert (frame.delay_level, frame.waits, frame.deliver_ms) == (
        by_frame.delay_level,
        by_frame.waits,
        by_frame.deliver_ms,
    )


@settings(max_examples=600)
@given(st.lists(messages, min_size=1, max_size=4), flips, st.integers(-1, 1))
@example([record.Record("t", b"x", sys_flag=SYS_FLAG_STORE_HOST_V6, store_host=bytes(20))], None, 0)
def test_a_few_messages_are_judged_as_many_are(sent, flip, off):
    data = bytearray(b"".join(map(record.encode, sent)))
    if flip is not None:
        data[flip[0] % len(data)] ^= flip[1]
    count = max(1, len(sent) + off if flip is None else len(sent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "FEW", 0)
        by_columns = judged(bytes(data), count)
    one_by_one = judged(bytes(data), count)
    if isinstance(by_columns, str):
        assert one_by_one == by_columns
    else:
        assert isinstance(one_by_one, Frame)
        assert one_by_one.batch.view_bytes() == by_columns.batch.view_bytes() == bytes(data)
        assert (one_by_one.queues, one_by_one.delay_level, one_by_one.waits) == (
            by_columns.queues,
            by_columns.delay_level,
            by_columns.waits,
        )


def stored(frames: list[list[record.Record]]) -> tuple[list[Appended | str], MessageStore]:
    """Puts these frames into a new store; returns the answers, and the store."""
    store = open_store(ROOT, MemoryFiles(), delay_levels_ms=(1000, 5000))
    answers: list[Appended | str] = []
    for number, frame in enumerate(frames):
        data = bytearray(b"".join(map(record.encode, frame)))
        try:
            answers.append(store.append(Batch.of_frame(data, len(frame)), frame[0].topic, NOW + number, HOST))
        except RocketSimError as error:
            answers.append(str(error))
    return answers, store


of_the_store = st.builds(
    record.Record,
    topic=st.just("t"),
    body=st.binary(max_size=700),
    queue_id=st.integers(0, 2),
    sys_flag=st.sampled_from([0, 0, 0, 4, 8, 12]),
    born_host=st.sampled_from([HOST, bytes(20)]),
    properties=st.dictionaries(st.sampled_from(["TAGS", "KEYS", "A"]), st.sampled_from(["TagA", "b c", "ü"])),
)


def delayed(frame: list[record.Record], levels: list[int]) -> list[record.Record]:
    for message, level in zip(frame, levels, strict=False):
        message.topic = "SCHEDULE_TOPIC_XXXX"
        message.properties["DELAY"] = str(level)
    return frame[: len(levels)]


frames = st.lists(
    st.lists(of_the_store, min_size=1, max_size=5)
    | st.builds(delayed, st.lists(of_the_store, min_size=2, max_size=3), st.just([0, 9])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150)
@given(frames, st.lists(st.integers(1, 900), min_size=1))
def test_a_few_records_are_stored_and_copied_as_many_are(sent, pieces):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "FEW", 0)
        answers, store = stored(sent)
        by_columns = open_store(ROOT, MemoryFiles(), delay_levels_ms=(1000, 5000))
        by_columns.append_replicated(0, log_bytes(store))
    found, one_by_one = stored(sent)
    assert found == answers
    copy = open_store(ROOT, MemoryFiles(), delay_levels_ms=(1000, 5000))
    while (at := copy.end_offset + copy.partial_size) < store.end_offset:
        pieces = pieces[1:] + pieces[:1]
        copy.append_replicated(at, store.read_log(at, pieces[0]))
    for other in (one_by_one, copy, by_columns):
        assert log_bytes(other) == log_bytes(store)
        assert tree(other.disk, ROOT / "consumequeue") == tree(store.disk, ROOT / "consumequeue")


def test_of_a_few_copied_records_with_a_bad_one_those_before_it_are_stored():
    _, store = stored([[record.Record("t", b"one"), record.Record("t", b"two"), record.Record("t", b"three")]])
    data = bytearray(log_bytes(store))
    data[-1 - len("three") - 2] ^= 1  # of the last body
    copy = open_store(ROOT, MemoryFiles())
    with pytest.raises(record.RecordError, match="body CRC"):
        copy.append_replicated(0, bytes(data))
    assert copy.queues.bounds("t", 0) == (0, 2)
    check_sound(copy)
