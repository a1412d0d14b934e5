"""Consumer offsets: they only increase, are journaled before the answer, and are merged by generation and offset."""

import contextlib
import errno
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_service.broker.metadata.consumer_offsets import ConsumerOffsetTable
from broker_service.errors import DiskFull, ServiceNotAvailable, StoreCorrupt
from broker_service.store.files import Files
from broker_service.store.json_file import JsonFile
from broker_service.store.offset_journal import (
    NEVER,
    NO_POINT,
    RESERVE,
    LogPoint,
    OffsetEntry,
    OffsetJournal,
    read_journal,
)
from tests.support.memory_files import MemoryFiles, PowerCut


class MemoryFile:
    def __init__(self) -> None:
        self.content: dict[str, Any] | None = None

    def load(self) -> dict[str, Any] | None:
        return json.loads(json.dumps(self.content))

    def save(self, value: dict[str, Any]) -> None:
        self.content = json.loads(json.dumps(value))


class Until:
    """The history of a log that equals every other log up to the offset `common`."""

    def __init__(self, common: int = 1 << 62, end: Callable[[], LogPoint] = LogPoint) -> None:
        self._common = common
        self.end = end

    def has_passed(self, point: LogPoint) -> bool:
        return point.log_offset <= self._common


def offsets_in(folder: Path, files: Files | None = None, reserve: int = RESERVE, **history: Any) -> ConsumerOffsetTable:
    return ConsumerOffsetTable(
        JsonFile(folder / "consumerOffset.json", files),
        JsonFile(folder / "offset_generations.json", files),
        OffsetJournal(folder / "offsets.journal", files, reserve),
        **history,
    )


def compact(offsets: ConsumerOffsetTable) -> None:
    compaction = offsets.compaction(now_ms=1)
    assert compaction is not None
    compaction.run()


def everything(offsets: ConsumerOffsetTable) -> dict[tuple[str, str], dict[int, OffsetEntry]]:
    return {(group, topic): dict(queues) for group, topic, queues in offsets.everything()}


# --- commits ----------------------------------------------------------------------------------------------------------


def test_a_commit_says_what_now_stands(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    assert offsets.commit("g", "t", {0: 5, 1: 7}) == {0: 5, 1: 7}
    assert offsets.commit("g", "t", {0: 6}) == {0: 6}
    assert offsets.get("g", "t", 1) == (0, 7)
    assert offsets.get("g", "t", 9) == NEVER


def test_a_lower_commit_changes_nothing_and_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("g", "t", {0: 5})
    with caplog.at_level(logging.WARNING):
        assert offsets.commit("g", "t", {0: 3}) == {0: 5}
        assert offsets.commit("g", "t", {0: 2}) == {0: 5}
    assert [record.getMessage() for record in caplog.records] == [
        "group g commits offset 3 of queue 0 of topic t, but has committed 5: ignored (logged once)"
    ]


def test_the_first_commit_may_be_zero(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    assert offsets.commit("g", "t", {0: 0}) == {0: 0}
    assert list(offsets.of_group("g")) == [("t", 0, (0, 0))]


def test_a_commit_that_was_answered_outlives_the_process(tmp_path: Path) -> None:
    offsets_in(tmp_path).commit("g", "t", {0: 5})  # and never closed: SIGKILL
    assert offsets_in(tmp_path).get("g", "t", 0) == (0, 5)


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])  # nobody knows what a disk did before it failed
def test_a_commit_that_cannot_be_journaled_is_refused_and_did_not_happen(tmp_path: Path, part: float) -> None:
    disk = MemoryFiles()
    offsets = offsets_in(tmp_path, disk)
    offsets.commit("g", "t", {0: 5})
    disk.fail("pwrite", errno.EIO, part=part)
    with pytest.raises(ServiceNotAvailable, match="group g"):
        offsets.commit("g", "t", dict.fromkeys(range(50), 6))
    assert offsets.get("g", "t", 0) == (0, 5)
    disk.fail("pwrite", errno.EIO, part=part)
    disk.fail("pwrite", errno.EIO)  # the write of the reverted offsets fails as well
    with pytest.raises(ServiceNotAvailable, match="group g"):
        offsets.commit("g", "t", dict.fromkeys(range(50), 6))
    offsets.commit("g", "t", {0: 7})
    assert everything(offsets_in(tmp_path, disk.kill())) == {("g", "t"): {0: (0, 7)}}


def test_commits_go_on_in_the_reserve_of_a_full_disk_and_are_refused_behind_it(tmp_path: Path) -> None:
    disk = MemoryFiles()
    offsets = offsets_in(tmp_path, disk, reserve=4096)
    disk.fill()
    with pytest.raises(DiskFull, match="group g"):
        for number in range(1000):
            offsets.commit("g", "t", {0: number})
            with pytest.raises(OSError, match="no room"):
                offsets.compaction(now_ms=1)
    assert number > 100 and offsets.get("g", "t", 0) == (0, number - 1)
    offsets = offsets_in(tmp_path, disk := disk.kill(), reserve=4096)  # the disk has no room at the next start either
    assert offsets.get("g", "t", 0) == (0, number - 1)
    disk.make_room()
    offsets.commit("g", "t", {0: number})
    compact(offsets)
    assert everything(offsets_in(tmp_path, disk.kill())) == {("g", "t"): {0: (0, number)}}


@pytest.mark.parametrize("call", range(1, 8))
def test_a_rotation_that_a_crash_interrupts_loses_no_commit(tmp_path: Path, call: int) -> None:
    disk = MemoryFiles()
    offsets = offsets_in(tmp_path, disk)
    offsets.commit("g", "t", {0: 5})
    disk.stop_at = disk.calls + call
    with contextlib.suppress(PowerCut):
        offsets.compaction(now_ms=1)
    disk = disk.kill()
    disk.fill()
    again = offsets_in(tmp_path, disk)
    assert again.get("g", "t", 0) == (0, 5)
    disk.make_room()
    again.commit("g", "t", {0: 6})
    assert offsets_in(tmp_path, disk.kill()).get("g", "t", 0) == (0, 6)


# --- the files --------------------------------------------------------------------------------------------------------


def test_the_file_is_rocketmqs_and_other_fields_stay(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "consumerOffset.json")
    file.save(
        {
            "dataVersion": {"counter": 4, "stateVersion": 0, "timestamp": 1},
            "groupTopicMap": {"g": ["t"]},
            "offsetTable": {"t@g": {"0": 10, "1": 20}},
            "pullOffsetTable": {"t@g": {"0": 6}},
        }
    )
    offsets = offsets_in(tmp_path)
    assert offsets.get("g", "t", 1) == (0, 20)
    offsets.commit("g", "t", {0: 11})
    offsets.commit("h", "u", {3: 1})
    compact(offsets)
    assert file.load() == {
        "dataVersion": {"counter": 5, "stateVersion": 0, "timestamp": 1},
        "groupTopicMap": {"g": ["t"], "h": ["u"]},
        "offsetTable": {"t@g": {"0": 11, "1": 20}, "u@h": {"3": 1}},
        "pullOffsetTable": {"t@g": {"0": 6}},
    }


@pytest.mark.parametrize("nth", [1, 2])
def test_a_rotation_that_the_disk_refuses_half_way_is_made_up_for_by_the_next(nth: int) -> None:
    disk, path = MemoryFiles(), Path("/offsets.journal")
    journal = OffsetJournal(path, disk)
    journal.append("g", "t", {0: OffsetEntry(0, 1)})
    disk.fail("rename", errno.EIO, nth=nth)
    with pytest.raises(OSError, match="EIO"):
        journal.rotate()
    journal.append("g", "t", {0: OffsetEntry(0, 2)})
    number = journal.rotate()
    journal.append("g", "t", {0: OffsetEntry(0, 3)})
    assert [line.entries[0].offset for line in OffsetJournal(path, disk).replay()] == [1, 2, 3]
    journal.drop(number)
    assert [line.entries[0].offset for line in OffsetJournal(path, disk).replay()] == [3]


def test_compaction_empties_the_journal_and_nothing_is_written_when_nothing_changed(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("g", "t", {0: 5})
    compact(offsets)
    assert sorted(path.name for path in tmp_path.glob("offsets.journal*")) == ["offsets.journal"]
    assert (tmp_path / "offsets.journal").read_bytes() == bytes(RESERVE)
    assert offsets.compaction(now_ms=2) is None
    assert offsets_in(tmp_path).get("g", "t", 0) == (0, 5)


def test_a_crash_anywhere_in_a_compaction_loses_nothing(tmp_path: Path) -> None:
    class Crash(Exception):
        pass

    class Crashing:
        """A file that fails after a given number of writes."""

        def __init__(self, file: JsonFile, writes: int) -> None:
            self.file, self.writes = file, writes

        def load(self) -> dict[str, Any] | None:
            return self.file.load()

        def save(self, value: dict[str, Any]) -> None:
            if not self.writes:
                raise Crash
            self.writes -= 1
            self.file.save(value)

    for point in range(3):
        folder = tmp_path / str(point)
        folder.mkdir()
        offsets = offsets_in(folder)
        offsets.commit("g", "t", {0: 100, 1: 1})
        compact(offsets)
        offsets.reset("g", "t", {0: 10})
        offsets.commit("g", "t", {0: 12, 2: 4})
        expected = everything(offsets)
        compaction = offsets.compaction(now_ms=1)
        assert compaction is not None
        offsets.commit("g", "t", {2: 5})  # the commit comes while the files are being written
        expected["g", "t"][2] = OffsetEntry(0, 5)
        object.__setattr__(compaction, "file", Crashing(compaction.file, int(point > 0)))
        object.__setattr__(compaction, "generations_file", Crashing(compaction.generations_file, int(point > 1)))
        object.__setattr__(compaction, "journal", None)  # never dropped
        with pytest.raises((Crash, AttributeError)):
            compaction.run()
        again = offsets_in(folder)
        assert everything(again) == expected
        again.close(now_ms=2)
        assert everything(offsets_in(folder)) == expected
        assert sorted(path.name for path in folder.glob("offsets.journal*")) == ["offsets.journal"]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda line: line[:-1], id="cut before its end"),
        pytest.param(lambda line: line[:-9] + b"\n", id="cut and closed"),
        pytest.param(lambda line: bytes(len(line) - 1) + b"\n", id="zeros"),
        pytest.param(lambda line: b"[1,2,3]\n", id="another shape"),
        pytest.param(lambda line: b'["g","t",{"0":[0,"x"]}]\n', id="no number"),
    ],
)
def test_a_damaged_last_line_is_dropped_and_said_so(tmp_path: Path, damage: Any, caplog: Any) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("g", "t", {0: 5})
    offsets.commit("g", "t", {0: 6})
    journal = tmp_path / "offsets.journal"
    first, last = journal.read_bytes().rstrip(b"\0").splitlines(keepends=True)
    journal.write_bytes(first + damage(last))
    again = offsets_in(tmp_path)
    assert again.get("g", "t", 0) == (0, 5)
    assert f"{len(first)} that are no commit" in caplog.text
    again.commit("g", "t", {0: 8})
    assert offsets_in(tmp_path).get("g", "t", 0) == (0, 8)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda line: line.replace(b":[0,6]", b":[0,7]"), id="another digit"),
        pytest.param(lambda line: line[:20] + b"\n" + line[21:], id="an end in the middle"),
        pytest.param(lambda line: line[:12] + bytes(len(line) - 13) + b"\n", id="zeros"),
        pytest.param(lambda line: b"?" + line[1:], id="its checksum"),
        pytest.param(lambda line: bytes(len(line)), id="never written"),
        pytest.param(lambda line: line[:12] + bytes(len(line) - 12), id="its end never written"),
    ],
)
def test_a_damaged_line_takes_no_other_with_it(tmp_path: Path, damage: Any, caplog: Any) -> None:
    offsets = offsets_in(tmp_path)
    for queue, offset in ((0, 5), (1, 6), (2, 7)):
        offsets.commit("g", "t", {queue: offset})
    journal = tmp_path / "offsets.journal"
    first, middle, last = journal.read_bytes().rstrip(b"\0").splitlines(keepends=True)
    old = b'["g","t",{"3":[0,8]}]\n'  # a line that a version without checksums wrote
    journal.write_bytes(first + damage(middle) + last + old)
    for _ in range(2):
        again = offsets_in(tmp_path)
        assert [again.get("g", "t", queue).offset for queue in range(4)] == [5, -1, 7, 8]
        assert f"at {len(first)} that are no commit" in caplog.text
        again.commit("g", "t", {2: 7})


@pytest.mark.parametrize("table", [{"t": {"0": 1}}, {"t@g": {"x": 1}}, {"t@g": 5}, 7], ids=str)
def test_a_damaged_file_is_named(tmp_path: Path, table: Any) -> None:
    JsonFile(tmp_path / "consumerOffset.json").save({"offsetTable": table})
    with pytest.raises(StoreCorrupt, match=r"consumerOffset\.json"):
        offsets_in(tmp_path)


# --- generations ------------------------------------------------------------------------------------------------------


def test_a_reset_goes_back_and_later_commits_go_on_from_there(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("g", "t", {0: 100})
    offsets.reset("g", "t", {0: 10})
    assert offsets.get("g", "t", 0) == (1, 10)
    assert offsets.commit("g", "t", {0: 12}) == {0: 12}
    compact(offsets)
    assert offsets_in(tmp_path).get("g", "t", 0) == (1, 12)


def test_a_deleted_topics_offsets_do_not_come_back(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("g", "t", {0: 100})
    offsets.commit("g", "u", {0: 1})
    offsets.delete_topic("t")
    assert list(offsets.of_group("g")) == [("u", 0, (0, 1))]
    compact(offsets)
    again = offsets_in(tmp_path)
    assert again.merge([("g", "t", {0: OffsetEntry(0, 100)})]) == 0  # a slave that has not heard of the deletion
    assert again.get("g", "t", 0).offset == -1
    assert again.commit("g", "t", {0: 3}) == {0: 3}
    assert again.get("g", "t", 0) == (1, 3)


def test_a_deleted_groups_offsets_do_not_come_back(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("g", "t", {0: 100})
    offsets.commit("h", "t", {0: 1})
    offsets.delete_group("g")
    assert [name for name in offsets.groups() if list(offsets.of_group(name))] == ["h"]
    assert offsets.merge([("g", "t", {0: OffsetEntry(0, 200)})]) == 0


def test_after_a_truncation_nothing_stands_beyond_the_end_of_its_queue(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("g", "t", {0: 100, 1: 50})
    lines = offsets.clamp(lambda topic, queue: 60, new_generation=True)
    assert lines == ["g t:0 from 100 to 60"]
    assert (offsets.get("g", "t", 0), offsets.get("g", "t", 1)) == ((1, 60), (0, 50))


def test_a_slave_clamps_without_a_new_generation(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("g", "t", {0: 100})
    offsets.clamp(lambda topic, queue: 60, new_generation=False)
    assert offsets.get("g", "t", 0) == (0, 60)


def test_a_slaves_clamp_outlives_the_process(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.commit("g", "t", {0: 100})
    offsets.clamp(lambda topic, queue: 60, new_generation=False)
    offsets.commit("g", "t", {0: 70})
    assert offsets_in(tmp_path).get("g", "t", 0) == (0, 70)  # and never closed: SIGKILL


def test_a_generation_remembers_when_it_was_raised(tmp_path: Path) -> None:
    now = LogPoint(2, 0xABC, 4711)
    offsets = offsets_in(tmp_path, history=Until(end=lambda: now))
    offsets.commit("g", "t", {0: 100})
    assert offsets.get("g", "t", 0).raised_at == NO_POINT
    offsets.reset("g", "t", {0: 10})
    now = LogPoint(3, 0xDEF, 4712)
    offsets.commit("g", "t", {0: 20})
    for again in (offsets, offsets_in(tmp_path)):
        assert again.get("g", "t", 0) == (1, 20)
        assert again.get("g", "t", 0).raised_at == LogPoint(2, 0xABC, 4711)
    compact(offsets)
    assert offsets_in(tmp_path).get("g", "t", 0).raised_at == LogPoint(2, 0xABC, 4711)


def test_generations_of_an_older_version_are_read(tmp_path: Path) -> None:
    JsonFile(tmp_path / "consumerOffset.json").save({"offsetTable": {"t@g": {"0": 12}}})
    JsonFile(tmp_path / "offset_generations.json").save({"generations": {"t@g": {"0": [1, 10], "1": [2, -1]}}})
    (tmp_path / "offsets.journal").write_bytes(b'["g","t",{"0":[1,15]}]\n')
    offsets = offsets_in(tmp_path)
    assert everything(offsets) == {("g", "t"): {0: OffsetEntry(1, 15), 1: OffsetEntry(2, -1)}}
    assert offsets.may_bring(offsets.get("g", "t", 0)), "nobody knows better"


# --- what is noted for RocketMQ ---------------------------------------------------------------------------------------


def noting_in(folder: Path) -> ConsumerOffsetTable:
    return offsets_in(folder, noted_file=JsonFile(folder / "noted_offsets.json"))


def in_rocketmqs_file(folder: Path) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = json.loads((folder / "consumerOffset.json").read_text())["offsetTable"]
    return table


def test_what_is_noted_for_rocketmq_counts_here_as_what_was_committed(tmp_path: Path) -> None:
    offsets = noting_in(tmp_path)
    offsets.commit("g", "t", {0: 5, 1: 7})
    offsets.commit("h", "t", {0: 1})
    offsets.close(1)
    offsets.note({("g", "t"): {0: 9, 1: 7, 2: 4}, ("i", "t"): {0: 0}}, 2)
    assert in_rocketmqs_file(tmp_path) == {"t@g": {"0": 9, "1": 7, "2": 4}, "t@h": {"0": 1}, "t@i": {"0": 0}}
    for _ in range(2):
        offsets = noting_in(tmp_path)
        assert everything(offsets) == {
            ("g", "t"): {0: OffsetEntry(0, 5), 1: OffsetEntry(0, 7)},
            ("h", "t"): {0: OffsetEntry(0, 1)},
        }
        assert [entries for _, _, entries in offsets.to_hand_back()] == [{0: (0, 5)}, {1: (0, 7)}, {0: (0, 1)}]
    offsets.commit("h", "t", {0: 2})
    compact(offsets)
    assert in_rocketmqs_file(tmp_path) == {"t@g": {"0": 5, "1": 7}, "t@h": {"0": 2}}
    offsets.commit("g", "t", {0: 9})
    offsets.close(3)
    assert noting_in(tmp_path).get("g", "t", 0) == (0, 9)


def test_what_rocketmq_has_committed_since_counts(tmp_path: Path) -> None:
    offsets = noting_in(tmp_path)
    offsets.close(1)
    offsets.note({("g", "t"): {0: 3, 1: 4}}, 2)
    JsonFile(tmp_path / "consumerOffset.json").save({"offsetTable": {"t@g": {"0": 8, "1": 4}}})
    assert everything(noting_in(tmp_path)) == {("g", "t"): {0: OffsetEntry(0, 8)}}


def test_a_stop_may_die_before_it_has_noted_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop can die after it has written the first of its two files, and so can the next stop."""
    for offset in (3, 4, 5):
        offsets = noting_in(tmp_path)
        assert everything(offsets).get(("g", "t"), {}) == {}
        offsets.close(1)
        with monkeypatch.context() as patch:
            if offset == 4:
                save = JsonFile.save

                def die(file: JsonFile, value: dict[str, Any], save: Any = save) -> None:
                    if file.path.name == "consumerOffset.json":
                        raise OSError
                    save(file, value)

                patch.setattr(JsonFile, "save", die)
            with contextlib.suppress(OSError):
                offsets.note({("g", "t"): {0: offset}}, 2)
    assert in_rocketmqs_file(tmp_path) == {"t@g": {"0": 5}}
    assert everything(noting_in(tmp_path)).get(("g", "t"), {}) == {}


# --- merging ----------------------------------------------------------------------------------------------------------


def test_what_a_slave_took_is_handed_back_until_the_master_is_seen_to_have_it(tmp_path: Path) -> None:
    slave = offsets_in(tmp_path)
    slave.commit("g", "t", {0: 5, 1: 7})
    assert list(slave.to_hand_back()) == [("g", "t", {0: (0, 5)}), ("g", "t", {1: (0, 7)})]
    slave.merge_from_master([("g", "t", {0: OffsetEntry(0, 5), 1: OffsetEntry(0, 6)})])
    assert list(slave.to_hand_back()) == [("g", "t", {1: (0, 7)})]
    slave.merge_from_master([("g", "t", {1: OffsetEntry(1, 2)})])  # an operator's reset wins
    assert list(slave.to_hand_back()) == []
    assert slave.get("g", "t", 1) == (1, 2)


def test_what_a_master_lost_of_what_it_had_is_handed_back(tmp_path: Path) -> None:
    slave = offsets_in(tmp_path)
    slave.merge_from_master(
        [("g", "t", {0: OffsetEntry(0, 5), 1: OffsetEntry(1, 7)}), ("h", "t", {0: OffsetEntry(2, -1)})]
    )
    assert list(slave.to_hand_back()) == []
    slave.merge_from_master([("g", "t", {0: OffsetEntry(0, 5)})], begins=True, ends=True)
    assert list(slave.to_hand_back()) == [("g", "t", {1: (1, 7)}), ("h", "t", {0: (2, -1)})]


def test_of_a_generation_of_another_history_nothing_stays_on_a_slave(tmp_path: Path) -> None:
    """The old master is a slave now, and its log was cut, so the generations that it raised in that part are no longer
    valid.
    """
    forked, common = LogPoint(1, 7, 900), LogPoint(1, 7, 500)
    slave = offsets_in(tmp_path, history=Until(600))
    slave.merge(
        [
            ("g", "t", {0: OffsetEntry(3, 90, forked), 1: OffsetEntry(1, 5, common)}),
            ("h", "t", {0: OffsetEntry(2, 90, forked)}),
        ]
    )
    first = [("g", "t", {0: OffsetEntry(1, 10, common)})]
    slave.merge_from_master(first, begins=True)
    slave.merge_from_master([("g", "t", {2: OffsetEntry(0, 8)})], ends=True)
    for table in (slave, offsets_in(tmp_path)):  # also after a SIGKILL
        assert everything(table)["g", "t"] == {0: (1, 10), 1: (1, 5), 2: (0, 8)}
        assert table.get("h", "t", 0) == NEVER
    assert list(slave.to_hand_back()) == [("g", "t", {1: OffsetEntry(1, 5)})]


def test_a_promoted_slave_makes_its_own_what_was_raised_in_records_that_it_does_not_have(tmp_path: Path) -> None:
    """A slave gets a reset before the records that precede it in the log."""
    unknown, common, here = LogPoint(4, 7, 900), LogPoint(1, 7, 500), LogPoint(5, 8, 600)
    history: dict[str, Any] = {"history": Until(600, lambda: here)}
    slave = offsets_in(tmp_path, **history)
    slave.merge_from_master([("g", "t", {0: OffsetEntry(1, 5, unknown), 1: OffsetEntry(1, 5, common)})])
    slave.merge_from_master([("g", "t", {2: OffsetEntry(2, 90, unknown), 3: OffsetEntry(2, -1, unknown)})])
    slave.clamp(lambda topic, queue: 60, new_generation=True)
    expected = {0: (2, 5, here), 1: (1, 5, common), 2: (3, 60, here), 3: (3, -1, here)}
    for table in (slave, offsets_in(tmp_path, **history)):  # also after a SIGKILL
        assert {queue: (*entry, entry.raised_at) for queue, entry in everything(table)["g", "t"].items()} == expected


def test_a_restarted_slave_hands_back_too(tmp_path: Path) -> None:
    offsets_in(tmp_path).commit("g", "t", {0: 5})
    assert list(offsets_in(tmp_path).to_hand_back()) == [("g", "t", {0: (0, 5)})]


entries = st.tuples(st.integers(0, 3), st.integers(-1, 5)).map(lambda pair: OffsetEntry(*pair))
changes = st.lists(st.tuples(st.sampled_from("gh"), st.sampled_from("tu"), st.dictionaries(st.integers(0, 1), entries)))


@given(changes, changes)
def test_both_sides_agree_after_merging_whatever_they_had_and_nothing_went_back(ours: Any, theirs: Any) -> None:
    class NoJournal:
        def replay(self) -> list[Any]:
            return []

        def append(self, group: str, topic: str, entries: Any, *, replaces: bool = False) -> None:
            pass

    def table(initial: Any) -> ConsumerOffsetTable:
        made = ConsumerOffsetTable(MemoryFile(), MemoryFile(), NoJournal())  # type: ignore[arg-type]
        made.merge(initial)
        return made

    master, slave = table(ours), table(theirs)
    before = everything(master), everything(slave)
    master.merge(list(slave.everything()))
    slave.merge_from_master(list(master.everything()))
    for state in before:
        for (group, topic), queues in state.items():
            for queue, entry in queues.items():
                assert master.get(group, topic, queue) == slave.get(group, topic, queue) >= entry


def test_room_that_is_made_in_the_journal_counts_for_nothing_and_is_there() -> None:
    disk = MemoryFiles()
    path = Path("/store/offsets.journal")
    journal = OffsetJournal(path, disk, reserve=0)
    list(journal.replay())
    entries = {queue_id: OffsetEntry(1, 7, LogPoint(1, 2, 99)) for queue_id in range(300)}
    journal.append("g", "t", {0: OffsetEntry(0, 1)})
    journal.make_room("g", "t", entries)
    assert [len(line.entries) for line in read_journal(path, disk)] == [1]
    disk.make_room(0)
    later = {queue_id: OffsetEntry(1, 7, LogPoint(1, 2, 10**9)) for queue_id in entries}
    journal.append("g", "t", later)
    with pytest.raises(DiskFull):
        journal.make_room("g", "t", {queue_id: OffsetEntry(2, 8) for queue_id in range(3000)})
    assert [len(line.entries) for line in read_journal(path, disk)] == [1, 300]
