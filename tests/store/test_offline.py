"""Offline inspection of a store directory: the content as RocketMQ reads it, and where it is damaged."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from rocketsim_proto.records import record
from rocketsim_proto.records.record import Record

from broker_service.store.offline.dump import dump
from broker_service.store.offline.verification import Finding, Severity, verify
from broker_service.store.offset_journal import NO_OFFSET, OffsetEntry, OffsetJournal
from tests.support.golden import golden_dump, unpack_golden

pytestmark = pytest.mark.usefixtures("record_kernels")

FILE_SIZE = 1 << 20
FIRST_LOG_FILE = "commitlog/00000000000000000000"
LAST_LOG_FILE = "commitlog/00000000000004194304"
END = 4739572  # of the golden log
INDEX = "index/20261120102928642"  # has 1,000 slots and 3,222 entries
SLOTS_AT, ENTRIES_AT = 40, 40 + 1000 * 4
PLAIN = "consumequeue/golden_plain/0/00000000000000000000"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return unpack_golden(tmp_path)


def without_offsets(directory: Path) -> list[dict]:
    return [line for line in dump(directory) if line["kind"] != "offset"]


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def found(store: Path) -> list[tuple[Severity, str, int]]:
    return [(one.severity, one.file, one.offset) for one in verify(store)]


def test_the_dump_of_the_golden_store_is_rocketmqs_line_by_line(store: Path) -> None:
    assert [json.dumps(line) for line in without_offsets(store)] == [json.dumps(line) for line in golden_dump()]


def test_committed_offsets_are_read_from_rocketmqs_file_with_its_bare_keys(store: Path) -> None:
    offsets = [line for line in dump(store) if line["kind"] == "offset"]
    assert offsets[3] == {
        "kind": "offset",
        "group": "golden_group",
        "topic": "golden_plain",
        "queueId": 0,
        "offset": 10,
    }
    assert [line["offset"] for line in offsets if line["topic"] == "golden_plain"] == [10, 20, 100, 0]


def test_what_was_committed_before_a_sigkill_is_in_the_journal(store: Path) -> None:
    journal = OffsetJournal(store / "rocketsim" / "offsets.journal")
    journal.append("golden_group", "golden_plain", {0: OffsetEntry(0, 11), 1: OffsetEntry(0, 5)})
    journal.rotate()
    journal.append("golden_group", "golden_plain", {2: OffsetEntry(1, 7), 3: OffsetEntry(1, NO_OFFSET)})
    lines = [line for line in dump(store) if line["kind"] == "offset" and line["topic"] == "golden_plain"]
    offsets = {line["queueId"]: line["offset"] for line in lines}
    assert offsets == {0: 11, 1: 20, 2: 7}
    journal.close()


@pytest.mark.parametrize("table", ['{"offsetTable":{"t":{"0":1}}}', '{"offsetTable":7}', "[]", "{"])
def test_a_damaged_file_of_offsets_ends_the_dump_with_a_line_that_says_so(store: Path, table: str) -> None:
    (store / "config" / "consumerOffset.json").write_text(table)
    last = list(dump(store))[-1]
    assert (last["kind"], last["file"]) == ("damaged", "config/consumerOffset.json")


def test_nothing_is_wrong_with_the_golden_store(store: Path) -> None:
    assert list(verify(store)) == []


def test_looking_writes_nothing_and_takes_no_lock(store: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in store.rglob("*")}
    assert list(dump(store)) and not list(verify(store))
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in store.rglob("*")} == before


def test_an_empty_directory_holds_an_empty_log(tmp_path: Path) -> None:
    assert list(dump(tmp_path)) == [{"kind": "log", "minOffset": 0, "maxOffset": 0}]
    assert list(verify(tmp_path)) == []


OVERWRITTEN = {  # file, position, new bytes; what `verify` finds, and at which position
    "a byte of a body": (FIRST_LOG_FILE, 346 + 90, b"?", Severity.DAMAGE, 346),
    "a size": (FIRST_LOG_FILE, 346, b"\xff\xff\xff\xff", Severity.DAMAGE, 346),
    "a record that says it is another one": (FIRST_LOG_FILE, 346 + 28, bytes(8), Severity.DAMAGE, 346),
    "zeros in the properties": (FIRST_LOG_FILE, 300, bytes(46), Severity.DAMAGE, 0),
    "the beginning of a record behind the end": (
        LAST_LOG_FILE,
        END - 4 * FILE_SIZE,
        b"\0\0\1\0",
        Severity.REPAIRABLE,
        END - 4 * FILE_SIZE,
    ),
    "an entry that points elsewhere": (PLAIN, 100, b"\0\0\0\0\0\0\0\1", Severity.REPAIRABLE, 100),
    "an entry with another tags code": (PLAIN, 112, bytes(8), Severity.REPAIRABLE, 100),
    "a queue that ends too early": (PLAIN, 100, bytes(4000 - 100), Severity.REPAIRABLE, 100),
    "an entry of no record": (PLAIN, 110 * 20, struct.pack(">qiq", 5_000_000, 100, 0), Severity.REPAIRABLE, 110 * 20),
    "bytes behind the end of a queue": (PLAIN, 150 * 20 + 3, b"?", Severity.REPAIRABLE, 150 * 20),
}


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        *(
            pytest.param(
                lambda store, file=file, at=at, data=data: overwrite(store / file, at, data),
                [(severity, file, found_at)],
                id=name,
            )
            for name, (file, at, data, severity, found_at) in OVERWRITTEN.items()
        ),
        pytest.param(
            lambda store: (store / PLAIN).unlink(),
            [(Severity.REPAIRABLE, "consumequeue/golden_plain/0", 0)],
            id="a queue that lost its file",
        ),
        pytest.param(
            lambda store: ((store / PLAIN).unlink(), (store / PLAIN).parent.rmdir()),
            [(Severity.REPAIRABLE, "consumequeue/golden_plain/0", 0)],
            id="no queue at all",
        ),
        pytest.param(
            lambda store: (store / "config/topics.json").write_text('{"topicConfigTable":'),
            [(Severity.REPAIRABLE, "config/topics.json", 0)],
            id="a damaged configuration file with a backup",
        ),
        pytest.param(
            lambda store: ((store / "config/topics.json").write_text("{"), (store / "config/topics.json.bak").unlink()),
            [(Severity.DAMAGE, "config/topics.json", 0)],
            id="a damaged configuration file without one",
        ),
        pytest.param(
            lambda store: (store / "config/consumerOffset.json").write_text('{"offsetTable":{"no group":{"0":1}}}'),
            [(Severity.DAMAGE, "config/consumerOffset.json", 0)],
            id="an offset of nobody",
        ),
        pytest.param(
            lambda store: ((store / "rocketsim").mkdir(), (store / "rocketsim/epochs.json").write_text('{"epochs":')),
            [(Severity.DAMAGE, "rocketsim/epochs.json", 0)],
            id="a damaged file of our own",
        ),
        pytest.param(
            lambda store: (
                (store / "rocketsim").mkdir(),
                (store / "rocketsim/epochs.json").write_text('{\n\t"epochs":[],\n\t"crc32":"00000000"\n}'),
            ),
            [(Severity.DAMAGE, "rocketsim/epochs.json", 0)],
            id="a file of our own with a changed bit",
        ),
    ],
)
def test_damage_is_named_with_its_file_and_place(
    store: Path, damage: Callable[[Path], object], expected: list[tuple[Severity, str, int]]
) -> None:
    damage(store)
    # A record that is missing in the log also leaves a hole in its queue, which is reported after it.
    assert found(store)[: len(expected)] == expected


def slot_in_use(store: Path) -> int:
    data = (store / INDEX).read_bytes()
    return next(slot for slot in range(1000) if any(data[SLOTS_AT + slot * 4 :][:4]))


@pytest.mark.parametrize(
    ("damage", "at", "what"),
    [
        pytest.param(
            lambda store: overwrite(store / INDEX, 36, b"\x7f"), 0, "more than the file has room for", id="count"
        ),
        pytest.param(lambda store: overwrite(store / INDEX, 24, bytes(7) + b"\1"), 0, "do not fit together", id="end"),
        pytest.param(lambda store: overwrite(store / INDEX, 16, b"\1"), 0, "log offsets 72057594037927936", id="begin"),
        pytest.param(
            lambda store: overwrite(store / INDEX, 35, b"\1"), 32, "used slots, there are 894", id="used slots"
        ),
        pytest.param(
            lambda store: overwrite(store / INDEX, 6, b"\0"), ENTRIES_AT + 20, "not those of the log", id="first time"
        ),
        pytest.param(
            lambda store: overwrite(store / INDEX, ENTRIES_AT + 100 * 20, b"\1\2\3\4"),
            ENTRIES_AT + 100 * 20,
            "entries are not",
            id="the hash of an entry",
        ),
        pytest.param(
            lambda store: overwrite(store / INDEX, ENTRIES_AT + 100 * 20 + 4, bytes(8)),
            ENTRIES_AT + 100 * 20,
            "before the one in front of it",
            id="the log offset of an entry",
        ),
        pytest.param(
            lambda store: overwrite(store / INDEX, ENTRIES_AT + 100 * 20 + 12, b"\1"),
            ENTRIES_AT + 100 * 20,
            "1 entries that are not those of the log",
            id="the time of an entry",
        ),
        pytest.param(
            lambda store: overwrite(store / INDEX, ENTRIES_AT + 100 * 20 + 16, (3000).to_bytes(4, "big")),
            ENTRIES_AT + 100 * 20,
            "not chained",
            id="an entry chained to a newer one",
        ),
        pytest.param(
            lambda store: overwrite(store / INDEX, SLOTS_AT + slot_in_use(store) * 4, bytes(4)),
            None,
            "not found from their slots",
            id="a slot that lost its chain",
        ),
        pytest.param(
            lambda store: overwrite(store / INDEX, SLOTS_AT + slot_in_use(store) * 4, (9999).to_bytes(4, "big")),
            None,
            "lead to no entry",
            id="a slot of nothing",
        ),
        pytest.param(lambda store: (store / INDEX).write_bytes(b"short"), 0, "no index file", id="cut short"),
    ],
)
def test_damage_to_an_index_is_named(store: Path, damage: Callable[[Path], object], at: int | None, what: str) -> None:
    damage(store)
    one, *_ = verify(store)
    assert (one.severity, one.file) == (Severity.REPAIRABLE, INDEX)
    assert what in one.what and "remove the folder index" in one.what
    assert at is None or one.offset == at


def test_what_lies_behind_damage_is_still_dumped(store: Path) -> None:
    overwrite(store / FIRST_LOG_FILE, 346 + 90, b"?")
    lines = without_offsets(store)
    assert lines[1]["kind"] == "damaged"
    assert (lines[1]["commitLogOffset"], lines[1]["storeSize"]) == (346, golden_dump()[1]["storeSize"])
    assert "CRC" in lines[1]["reason"]
    assert lines[0:1] + lines[2:] == golden_dump()[0:1] + golden_dump()[2:]


def test_a_magic_in_a_body_is_not_taken_for_a_record(store: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """After damage the next record is searched for; a body may contain a whole record of another log."""
    inner = record.encode(Record("t", b"copied from elsewhere", commit_log_offset=77, properties={"TAGS": "a"}))
    first = record.encode(Record("t", inner, queue_offset=0, commit_log_offset=0))
    second = record.encode(Record("t", b"second", queue_offset=1, commit_log_offset=len(first)))
    directory = tmp_path_factory.mktemp("store")
    (directory / "commitlog").mkdir()
    damaged = bytearray((first + second).ljust(4096, b"\0"))
    damaged[0:4] = b"\0\0\0\1"
    (directory / "commitlog" / ("0" * 20)).write_bytes(damaged)
    lines = [(line["kind"], line.get("commitLogOffset")) for line in dump(directory)]
    assert lines == [("damaged", 0), ("message", len(first)), ("log", None)]


def test_a_missing_log_file_is_damage(store: Path) -> None:
    (store / "commitlog/00000000000002097152").unlink()
    assert (Severity.DAMAGE, "commitlog/00000000000001048576", FILE_SIZE) in found(store)


def test_a_log_file_that_was_cut_short_is_damage(store: Path) -> None:
    with (store / "commitlog/00000000000002097152").open("r+b") as file:
        file.truncate(FILE_SIZE - 4096)
    assert (Severity.DAMAGE, "commitlog/00000000000002097152", FILE_SIZE - 4096) in found(store)


def damaged_lines(store: Path) -> list[tuple[str, int, int]]:
    lines = [line for line in dump(store) if line["kind"] == "damaged"]
    return [(line["file"], line["commitLogOffset"], line["storeSize"]) for line in lines]


def test_a_missing_log_file_is_a_line_of_the_dump(store: Path) -> None:
    (store / "commitlog/00000000000002097152").unlink()
    assert damaged_lines(store) == [("commitlog/00000000000001048576", 2 * FILE_SIZE, FILE_SIZE)]


def test_a_last_file_that_was_cut_short_is_no_silent_end_of_the_dump(store: Path) -> None:
    """It is cut within the last record, and then between two records."""
    path = store / LAST_LOG_FILE
    for end, torn in ((END - 10, True), (END, False)):
        (copy := path.with_suffix(".copy")).write_bytes(path.read_bytes())
        with path.open("r+b") as file:
            file.truncate(end - 4 * FILE_SIZE)
        misfit = (LAST_LOG_FILE, end, 5 * FILE_SIZE - end)
        lines = damaged_lines(store)
        assert lines[-1] == misfit and len(lines) == (2 if torn else 1)
        if torn:
            file, begin, size = lines[0]
            assert file == LAST_LOG_FILE and begin < begin + size == end
        assert (Severity.DAMAGE, LAST_LOG_FILE, end - 4 * FILE_SIZE) in found(store)
        copy.rename(path)
    assert found(store) == []


def test_bytes_behind_the_log_that_are_no_record_are_a_line_of_the_dump(store: Path) -> None:
    overwrite(store / LAST_LOG_FILE, END - 4 * FILE_SIZE, b"\0\0\1\0")
    assert damaged_lines(store) == [(LAST_LOG_FILE, END, 5 * FILE_SIZE - END)]


def test_a_log_file_of_no_bytes_is_damage(store: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (store / "commitlog/00000000000002097152").write_bytes(b"")
    assert damaged_lines(store) == [("commitlog/00000000000002097152", 2 * FILE_SIZE, FILE_SIZE)]
    assert (Severity.DAMAGE, "commitlog/00000000000002097152", 0) in found(store)
    only = tmp_path_factory.mktemp("store")
    (only / "commitlog").mkdir()
    (only / FIRST_LOG_FILE).write_bytes(b"")
    assert damaged_lines(only) == [(FIRST_LOG_FILE, 0, 0)]
    assert found(only) == [(Severity.DAMAGE, FIRST_LOG_FILE, 0)]


def test_a_log_without_any_file_is_damage_if_it_had_records(store: Path) -> None:
    from broker_service.store.files import Files
    from broker_service.store.flushed_offset import Flushed, FlushedOffset

    (store / "rocketsim").mkdir()
    flushed = FlushedOffset(Files(), store / "rocketsim" / "flushed")
    flushed.save(Flushed(END))
    flushed.close()
    for path in (store / "commitlog").iterdir():
        path.unlink()
    assert found(store)[0] == (Severity.DAMAGE, "commitlog", 0)


def test_a_queue_file_of_no_bytes_is_named(store: Path) -> None:
    (store / PLAIN).write_bytes(b"")
    assert (Severity.REPAIRABLE, PLAIN, 0) in found(store)


def test_zeros_where_a_blank_should_be_are_damage(store: Path) -> None:
    overwrite(store / FIRST_LOG_FILE, 649699, bytes(8))
    assert found(store) == [(Severity.DAMAGE, FIRST_LOG_FILE, 649699)]


def test_a_log_that_ends_before_its_flushed_offset_is_damage(store: Path) -> None:
    from broker_service.store.files import Files
    from broker_service.store.flushed_offset import Flushed, FlushedOffset

    (store / "rocketsim").mkdir()
    flushed = FlushedOffset(Files(), store / "rocketsim" / "flushed")
    flushed.save(Flushed(END))
    assert found(store) == []
    flushed.save(Flushed(END + 1))
    flushed.close()
    assert found(store) == [(Severity.DAMAGE, LAST_LOG_FILE, END - 4 * FILE_SIZE)]


def test_a_trimmed_store_is_in_order_and_its_queues_begin_where_the_log_does(store: Path) -> None:
    """RocketMQ deletes the oldest log file, and leaves the queue files as they are."""
    (store / FIRST_LOG_FILE).unlink()
    lines = list(dump(store))
    assert lines[-8] == {"kind": "log", "minOffset": FILE_SIZE, "maxOffset": END}
    trimmed = {(line["topic"], line["queueId"]): line for line in lines if line["kind"] == "queue"}
    whole = {(line["topic"], line["queueId"]): line for line in golden_dump() if line["kind"] == "queue"}
    first = {}
    for line in lines:
        if line["kind"] == "message":
            first.setdefault((line["topic"], line["queueId"]), line["queueOffset"])
    for queue, line in trimmed.items():
        assert line["maxOffset"] == whole[queue]["maxOffset"]
        assert line["minOffset"] == first.get(queue, line["maxOffset"])
    assert found(store) == []


def test_an_offset_beyond_the_end_of_its_queue_is_worth_a_warning(store: Path) -> None:
    path = store / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"golden_plain@g":{0:110,1:111}}}')
    (one,) = verify(store)
    assert (one.severity, one.file) == (Severity.WARNING, "config/consumerOffset.json")
    assert "g has committed 111 of golden_plain queue 1, which ends at 110" in str(one)


def test_a_finding_reads_as_a_line_and_as_json() -> None:
    one = Finding(Severity.DAMAGE, "commitlog/0", 5, "gone")
    assert str(one) == "damage: commitlog/0 at 5: gone"
    assert one.as_line() == {
        "kind": "finding",
        "severity": "damage",
        "file": "commitlog/0",
        "offset": 5,
        "what": "gone",
    }
