"""Replicated bytes on a slave, in frames of any size, are checked before they are stored."""

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocketsim_proto.records import kernels
from rocketsim_proto.records.record import RecordError
from rocketsim_proto.reserved import SCHEDULE_TOPIC

from broker_service.errors import StoreCorrupt
from broker_service.store import batch
from tests.support.memory_files import MemoryFiles
from tests.support.record_codec import needs_compiled_codec
from tests.support.stores import LOG_FILE, check_sound, log_bytes, open_store, put, queue_entries, replay, tree

MASTER, SLAVE, ROOT = Path("/master"), Path("/slave"), Path("/store")


@pytest.fixture(
    params=[pytest.param("compiled", marks=needs_compiled_codec), "columns", "few"], autouse=True, scope="module"
)
def kind_of_batch(request):
    """Runs every test with each of the ways in which a batch can be checked and stamped."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "compiled":
            patch.setattr(kernels, "compiled", None)
        if request.param == "columns":
            patch.setattr(batch, "FEW", 0)
        yield


@pytest.fixture(scope="module")
def master():
    store = open_store(MASTER, MemoryFiles())
    for number in range(20):
        put(store, f"topic{number % 2}", [number % 3, 0], [b"x" * (number * 37), b"y" * 300])
    return store


def send(master, slave, sizes):
    at = slave.end_offset + slave.partial_size
    for size in sizes:
        data = master.read_log(at, size)
        end = slave.append_replicated(at, data)
        at += len(data)
        assert end == slave.end_offset and end + slave.partial_size == at
    return at


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40))
def test_frames_of_any_size_make_the_same_log_and_queues(master, sizes):
    slave = open_store(SLAVE, MemoryFiles())
    send(master, slave, sizes)
    whole = slave.end_offset
    assert log_bytes(slave) == log_bytes(master, 0, whole)
    replay(log_bytes(slave), 0)
    while slave.end_offset < master.end_offset:
        send(master, slave, [1 << 20])
    assert log_bytes(slave) == log_bytes(master)
    check_sound(slave)
    assert tree(slave.disk, SLAVE / "consumequeue") == tree(master.disk, MASTER / "consumequeue")


def test_a_slave_of_a_trimmed_master_begins_at_a_file_and_fills_its_queues_up_as_rocketmq_does(master):
    slave = open_store(SLAVE, MemoryFiles())
    slave.append_replicated(LOG_FILE, master.read_log(LOG_FILE, LOG_FILE))
    assert (slave.min_offset, slave.end_offset) == (LOG_FILE, 2 * LOG_FILE)
    check_sound(slave)
    queue = SLAVE / "consumequeue/topic0/0"
    name, first = slave.disk.names(queue)[0], slave.queues.bounds("topic0", 0)[0]
    assert first > int(name) // 20 == first // 8 * 8
    assert slave.disk.read(queue / name)[:20] == bytes(8) + (2**31 - 1).to_bytes(4, "big") + bytes(8)
    with pytest.raises(StoreCorrupt, match="cannot begin"):
        open_store(Path("/other"), MemoryFiles()).append_replicated(100, b"x")


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("at", [0, 4, 8, 35, 87, 95, 137, 138, -1])
def test_nothing_of_a_damaged_record_is_stored_and_everything_before_it_is(at):
    master = open_store(MASTER, MemoryFiles())
    put(master, "topic", 0, [b"b" * 50] * 3)
    size = master.end_offset // 3
    data = log_bytes(master)
    slave = open_store(SLAVE, MemoryFiles())
    bad = damaged(data, 2 * size + at) if at >= 0 else data[: 2 * size] + b"\0" * size
    with pytest.raises(RecordError):
        slave.append_replicated(0, bad)
    assert slave.end_offset == 2 * size and slave.partial_size == 0
    check_sound(slave)
    slave.append_replicated(2 * size, data[2 * size :])
    assert log_bytes(slave) == data


def with_field(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize(
    ("at", "value"),
    [
        pytest.param(12, b"\x80", id="a negative queue id"),
        pytest.param(20, b"\x80", id="a negative queue offset"),
        pytest.param(20, b"\x40", id="a queue offset far behind the queue's end"),
        pytest.param(24, b"\x01", id="one that is nearer"),
        pytest.param(139, b"to/ic", id="a topic with a slash"),
        pytest.param(139, b"to\0ic", id="a topic with a zero"),
        pytest.param(139, b"\xff\xfe", id="a topic that is not UTF-8"),
    ],
)
@pytest.mark.parametrize("behind", [0, 1], ids=["the last record", "the one before"])
def test_a_record_that_no_queue_can_have_is_refused_and_everything_before_it_is_stored(at, value, behind):
    """The damaged field has no checksum, and must neither end the slave nor fill its disk."""
    master = open_store(MASTER, MemoryFiles())
    put(master, "topic", 0, [b"b" * 50] * 4)
    size = master.end_offset // 4
    data, whole = log_bytes(master), (3 - behind) * size
    slave = open_store(SLAVE, MemoryFiles())
    with pytest.raises(RecordError):
        slave.append_replicated(0, with_field(data, whole + at, value))
    assert slave.end_offset == whole and slave.partial_size == 0
    check_sound(slave)
    slave.append_replicated(whole, data[whole:])
    assert log_bytes(slave) == data


def test_a_record_of_a_topic_that_no_folder_can_be_named_after_is_refused():
    for name in (b".", b".."):
        master = open_store(MASTER, MemoryFiles())
        put(master, "t" * len(name), 0, [b"b" * 50] * 2)
        data = log_bytes(master)
        slave = open_store(SLAVE, MemoryFiles())
        with pytest.raises(RecordError, match="folder"):
            slave.append_replicated(0, with_field(data, len(data) // 2 + 139, name))
        assert slave.end_offset == len(data) // 2


@pytest.mark.parametrize("level", ["", "x", "\x12", "²", "-1", "9999999999", "99999999999999999999"])
def test_a_delayed_message_whose_level_is_damaged_has_none(level):
    master = open_store(MASTER, MemoryFiles())
    put(master, SCHEDULE_TOPIC, 0, [b"a"], properties=[("TAGS", "t"), ("DELAY", "1")])
    put(master, "topic", 0, [b"b"], properties=[("TAGS", "t")])
    tags_code = queue_entries(master, "topic", 0)[1]["tags_code"][0]
    whole = open_store(ROOT, MemoryFiles())
    put(whole, SCHEDULE_TOPIC, 0, [b"a"], properties=[("TAGS", "t"), ("DELAY", level)])
    slave = open_store(SLAVE, MemoryFiles())
    slave.append_replicated(0, log_bytes(whole))
    for store in (whole, slave):
        assert queue_entries(store, SCHEDULE_TOPIC, 0)[1]["tags_code"][0] == tags_code


def test_bytes_that_do_not_join_the_log_are_refused(master):
    slave = open_store(SLAVE, MemoryFiles())
    send(master, slave, [1000])
    end = slave.end_offset
    with pytest.raises(StoreCorrupt, match="do not join"):
        slave.append_replicated(end + slave.partial_size + 1, b"x")
    # sending the partial record again from its start is allowed
    slave.append_replicated(end, master.read_log(end, 500))
    assert log_bytes(slave) == log_bytes(master, 0, slave.end_offset)


def test_a_blank_record_must_end_where_the_file_does(master):
    slave = open_store(SLAVE, MemoryFiles())
    blank = (100).to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(92)
    with pytest.raises(RecordError):
        slave.append_replicated(0, blank)


def test_a_partial_record_is_forgotten_with_the_process(master):
    disk = MemoryFiles()
    slave = open_store(SLAVE, disk)
    send(master, slave, [1000])
    assert slave.partial_size
    end = slave.end_offset
    slave = open_store(SLAVE, disk.kill())
    assert (slave.end_offset, slave.partial_size) == (end, 0)
    assert slave.recovery.truncated_to is None


def test_the_parts_of_a_large_record_are_not_copied_with_each_that_comes():
    master, slave = (open_store(root, MemoryFiles(), mapped_file_size_commit_log=1 << 20) for root in (MASTER, SLAVE))
    put(master, "topic", 0, [b"small", b"x" * 500_000, b"small"])
    send(master, slave, [1000])
    kept = slave.end_offset
    tracemalloc.start()
    try:
        send(master, slave, [1000] * 400)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (slave.end_offset, slave.partial_size) == (kept, 401_000 - kept)
    assert peak < 600_000, "the parts are in memory once, with room to grow"
    send(master, slave, [1 << 20])
    assert log_bytes(slave) == log_bytes(master) and slave.partial_size == 0
    check_sound(slave)
