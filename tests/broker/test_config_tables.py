"""Topics and subscription groups are kept in RocketMQ's files, with versions and deletions, and replicated to a
slave.
"""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from broker_service.broker.metadata import config_table
from broker_service.broker.metadata.config_table import DataVersion
from broker_service.broker.metadata.groups import SubscriptionGroup, SubscriptionGroupTable
from broker_service.broker.metadata.topics import TopicConfig, TopicTable
from broker_service.errors import (
    DiskFull,
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    StoreCorrupt,
    SubscriptionGroupNotExist,
    SystemBusy,
    TopicNotExist,
)
from broker_service.store.json_file import JsonFile
from testbed.polling import until

READ, WRITE, BOTH = 4, 2, 6


def topics_in(folder: Path, file: JsonFile | None = None) -> TopicTable:
    return TopicTable(file or JsonFile(folder / "topics.json"), JsonFile(folder / "deleted_topics.json"))


def groups_in(folder: Path, file: JsonFile | None = None) -> SubscriptionGroupTable:
    file = file or JsonFile(folder / "subscriptionGroup.json")
    return SubscriptionGroupTable(file, JsonFile(folder / "deleted_groups.json"))


def test_a_topic_is_on_disk_when_put_returns(tmp_path: Path) -> None:
    topics_in(tmp_path).put(TopicConfig("t", 3, 4, READ), now_ms=5)
    again = topics_in(tmp_path)
    assert again.get("t") == TopicConfig("t", 3, 4, READ)
    assert again.version == DataVersion(timestamp=5, counter=1)


def test_the_file_is_rocketmqs(tmp_path: Path) -> None:
    topics_in(tmp_path).put(TopicConfig("t", 3, 4, READ), now_ms=5)
    assert JsonFile(tmp_path / "topics.json").load() == {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 5},
        "topicConfigTable": {
            "t": {
                "attributes": {},
                "order": False,
                "perm": 4,
                "readQueueNums": 3,
                "topicFilterType": "SINGLE_TAG",
                "topicName": "t",
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        },
    }


def test_what_we_do_not_know_in_rocketmqs_file_is_kept(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "subscriptionGroup.json")
    subscriptions = [{"topic": "t"}]
    file.save(
        {
            "dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 1},
            "forbiddenTable": {"x": {}},
            "subscriptionGroupTable": {
                "g": {"groupName": "g", "retryMaxTimes": 5, "subscriptionDataSet": subscriptions}
            },
        }
    )
    groups = groups_in(tmp_path)
    assert groups.entries["g"].retry_max_times == 5
    groups.put(SubscriptionGroup("h"), now_ms=2)
    written = file.load()
    assert written is not None
    assert written["forbiddenTable"] == {"x": {}}
    assert written["subscriptionGroupTable"]["g"]["subscriptionDataSet"] == subscriptions
    assert written["dataVersion"]["counter"] == 4


@pytest.mark.parametrize(
    "table",
    [
        {"t": {"topicName": "other"}},
        {"t": {"topicName": "t", "perm": "6"}},
        {"t": {"topicName": "t", "perm": True}},
        {"t": 3},
    ],
    ids=str,
)
def test_a_damaged_file_is_named(tmp_path: Path, table: object) -> None:
    JsonFile(tmp_path / "topics.json").save({"topicConfigTable": table})
    with pytest.raises(StoreCorrupt, match=r"topics\.json"):
        topics_in(tmp_path)


def test_an_equal_entry_changes_nothing(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    topics.put(TopicConfig("t"), now_ms=1)
    heard: list[str] = []
    topics.changed.append(heard.append)
    topics.put(TopicConfig("t"), now_ms=2)
    assert topics.version.counter == 1
    assert heard == []


def test_a_change_is_told_once_with_its_name(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    heard: list[str] = []
    topics.changed.append(heard.append)
    topics.put(TopicConfig("t"), now_ms=1)
    topics.delete("t", now_ms=2)
    assert heard == ["t", "t"]


def test_several_are_deleted_as_one_change(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    for name in "abc":
        topics.put(TopicConfig(name), 1)
    topics.delete_all({"a": {0: 7}, "b": {}, "never made": {0: 3}}, 2)
    again = topics_in(tmp_path)
    assert (sorted(again.entries), again.version) == (["c"], DataVersion(timestamp=2, counter=4))
    assert {name: grave.queue_offsets for name, grave in again.tombstones.items()} == {"a": {0: 7}, "b": {}}
    topics.delete_all({"never made": {}}, 3)
    assert topics.version == again.version


def test_a_deletion_leaves_a_tombstone_until_the_topic_is_made_again(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    topics.put(TopicConfig("t"), now_ms=1)
    assert topics.delete("t", now_ms=2, queue_offsets={0: 17})
    again = topics_in(tmp_path)
    assert again.deleted() == ["t"]
    assert again.tombstones["t"].queue_offsets == {0: 17}
    again.put(TopicConfig("t"), now_ms=3)
    assert again.deleted() == []


def test_a_change_that_does_not_reach_the_disk_has_not_happened(tmp_path: Path) -> None:
    class FullDisk(JsonFile):
        def save(self, value: dict[str, object]) -> None:
            raise OSError(28, "No space left on device")

    topics = topics_in(tmp_path, FullDisk(tmp_path / "topics.json"))
    with pytest.raises(DiskFull):
        topics.put(TopicConfig("t"), now_ms=1)
    assert topics.get("t") is None
    assert topics.version == DataVersion()


# --- on a thread ------------------------------------------------------------------------------------------------------


class SlowDisk(JsonFile):
    """Waits in `save` until `goes_on` is set; `threads` lists the threads that have saved."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.threads: list[int] = []
        self.error: OSError | None = None

    def save(self, value: dict[str, Any]) -> None:
        self.begun.set()
        assert self.goes_on.wait(60)
        self.threads.append(threading.get_ident())
        if self.error is not None:
            raise self.error
        super().save(value)


def slow_topics_in(folder: Path) -> tuple[TopicTable, SlowDisk]:
    disk = SlowDisk(folder / "topics.json")
    return topics_in(folder, disk), disk


async def test_a_change_is_written_on_a_thread_and_taken_when_it_is_on_disk(tmp_path: Path) -> None:
    topics, disk = slow_topics_in(tmp_path)
    heard: list[tuple[str, set[str]]] = []
    topics.changed.append(lambda name: heard.append((name, set(topics_in(tmp_path).entries))))
    making = asyncio.create_task(topics.apply(lambda: topics.putting(TopicConfig("t"), 5)))
    await until(disk.begun.is_set, "the disk writes")
    assert (topics.get("t"), topics.changing, heard) == (None, {"t"}, [])
    with pytest.raises(SystemBusy, match=r"topics\.json"):
        topics.put(TopicConfig("u"), 6)
    disk.goes_on.set()
    assert await making
    assert (topics.get("t"), topics.changing, heard) == (TopicConfig("t"), frozenset(), [("t", {"t"})])
    assert disk.threads != [threading.get_ident()]
    assert not await topics.apply(lambda: topics.putting(TopicConfig("t"), 7))


async def test_changes_are_made_one_after_the_other_each_planned_from_the_one_before(tmp_path: Path) -> None:
    topics, disk = slow_topics_in(tmp_path)
    changes = [
        lambda: topics.auto_creating("t", 1, 8, 1),
        lambda: topics.auto_creating("t", 2, 8, 2),  # it is there already
        lambda: topics.removing("t", 3, {0: 7}),
        lambda: topics.auto_creating("t", 3, 8, 4),
        lambda: topics.putting(TopicConfig("u"), 5),
    ]
    made = [asyncio.create_task(topics.apply(change)) for change in changes]
    await until(disk.begun.is_set, "the disk writes")
    settled = asyncio.create_task(topics.settled())
    await asyncio.sleep(0)
    assert not settled.done()
    disk.goes_on.set()
    assert await asyncio.gather(*made) == [True, False, True, True, True]
    await settled
    again = topics_in(tmp_path)
    assert again.entries == topics.entries == {"t": TopicConfig("t", 3, 3), "u": TopicConfig("u")}
    assert again.tombstones == topics.tombstones and again.tombstones["t"].queue_offsets == {0: 7}
    assert again.version == topics.version == DataVersion(5, 4)


async def test_a_change_that_a_thread_cannot_write_has_not_happened_and_the_next_one_is_tried(tmp_path: Path) -> None:
    topics, disk = slow_topics_in(tmp_path)
    disk.goes_on.set()
    disk.error = OSError(28, "No space left on device")
    with pytest.raises(DiskFull):
        await topics.apply(lambda: topics.putting(TopicConfig("t"), 1))
    assert (topics.get("t"), topics.version, topics.changing) == (None, DataVersion(), frozenset())
    disk.error = None
    assert await topics.apply(lambda: topics.putting(TopicConfig("u"), 2))
    assert set(topics_in(tmp_path).entries) == {"u"}


async def test_a_change_whose_caller_is_cancelled_is_made_before_the_next_one(tmp_path: Path) -> None:
    topics, disk = slow_topics_in(tmp_path)
    making = asyncio.create_task(topics.apply(lambda: topics.putting(TopicConfig("t"), 1)))
    await until(disk.begun.is_set, "the disk writes")
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    following = asyncio.create_task(topics.apply(lambda: topics.putting(TopicConfig("u"), 2)))
    disk.goes_on.set()
    assert await following
    assert set(topics.entries) == set(topics_in(tmp_path).entries) == {"t", "u"}


# --- a slave ----------------------------------------------------------------------------------------------------------


def test_a_snapshot_makes_a_slaves_table_the_masters(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    for name in ("old", "kept"):
        topics.put(TopicConfig(name), now_ms=1)
    version = DataVersion(9, 9)
    changed = topics.adopt(version, [TopicConfig("kept"), TopicConfig("new", 2, 2)], {}, complete=True)
    assert changed == {"old", "new"}
    assert set(topics.entries) == {"kept", "new"}
    assert topics_in(tmp_path).version == version


def test_a_change_touches_only_what_it_names(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    for name in ("a", "b", "c"):
        topics.put(TopicConfig(name), now_ms=1)
    topics.adopt(DataVersion(2, 9), [TopicConfig("a", 1, 1)], {"b": {0: 3}}, complete=False)
    assert set(topics.entries) == {"a", "c"}
    assert topics.entries["a"].read_queue_nums == 1
    assert topics.tombstones["b"].queue_offsets == {0: 3}


def test_a_snapshot_tells_that_a_topic_was_deleted_and_made_again(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    topics.adopt(DataVersion(2, 2), [TopicConfig("t")], {"t": {0: 3}}, complete=True)
    again = topics_in(tmp_path)
    assert set(again.entries) == {"t"}
    # once promoted, this broker sends these offsets to its own slaves
    assert again.tombstones["t"].queue_offsets == {0: 3}


def test_a_second_deletion_forgets_no_queue_of_the_first(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    for queue_offsets in ({0: 3, 1: 5}, {0: 4}):
        topics.put(TopicConfig("t"), now_ms=1)
        topics.delete("t", 2, queue_offsets)
    assert topics.tombstones["t"].queue_offsets == {0: 4, 1: 5}


def test_the_newest_tombstones_stay_and_of_an_older_one_a_slave_that_was_away_loses_the_topic_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_table, "MAX_TOMBSTONES", 2)
    master, slave = (topics_in(tmp_path / name) for name in ("master", "slave"))
    for number, name in enumerate(("a", "b", "c")):
        for topics in (master, slave):
            topics.put(TopicConfig(name), now_ms=number)
        master.delete(name, 10 + number, {0: 7})
    assert master.deleted() == topics_in(tmp_path / "master").deleted() == ["b", "c"]
    deleted = {name: grave.queue_offsets for name, grave in master.tombstones.items()}
    assert slave.adopt(master.version, master.entries.values(), deleted, complete=True) == {"a", "b", "c"}
    assert not slave.entries and slave.deleted() == ["b", "c"]


def test_the_same_snapshot_again_writes_nothing(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    topics.adopt(DataVersion(2, 2), [TopicConfig("a")], {}, complete=True)
    before = (tmp_path / "topics.json").stat().st_mtime_ns
    assert topics.adopt(DataVersion(2, 2), [TopicConfig("a")], {}, complete=True) == set()
    assert (tmp_path / "topics.json").stat().st_mtime_ns == before


# --- topics -----------------------------------------------------------------------------------------------------------


def test_permissions_are_the_topics_and_the_brokers(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    topics.put(TopicConfig("read", perm=READ), now_ms=1)
    topics.put(TopicConfig("write", perm=WRITE), now_ms=1)
    assert topics.readable("read", BOTH).name == "read"
    assert topics.writable("write", BOTH) == topics.get("write")
    for refused in (
        lambda: topics.readable("write", BOTH),
        lambda: topics.readable("read", WRITE),
        lambda: topics.writable("read", BOTH),
        lambda: topics.writable("write", READ),
        lambda: topics.writable("absent", READ),
    ):
        with pytest.raises(NoPermission):
            refused()
    with pytest.raises(TopicNotExist, match="absent"):
        topics.readable("absent", BOTH)
    assert topics.writable("absent", BOTH) is None


@pytest.mark.parametrize(("asked", "got"), [(0, 8), (4, 4), (99, 8), (-1, 8)])
def test_a_first_message_gets_as_many_queues_as_it_asks_for_up_to_the_default(
    tmp_path: Path, asked: int, got: int
) -> None:
    topic = topics_in(tmp_path).auto_create("t", asked, 8, now_ms=1)
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (got, got, BOTH)


@pytest.mark.parametrize(
    "topic",
    [
        TopicConfig("t", 0, 1),
        TopicConfig("t", 1, -1),
        TopicConfig("t", 1_000_000, 1),
        TopicConfig("t", perm=0),
        TopicConfig("t", perm=7),
        TopicConfig("t", perm=99),
        TopicConfig("t", attributes={"+message.type": "FIFO"}),
        TopicConfig("t", attributes={"-message.type": ""}),
    ],
    ids=str,
)
def test_impossible_topics_are_refused(tmp_path: Path, topic: TopicConfig) -> None:
    topics = topics_in(tmp_path)
    with pytest.raises(InvalidParameter, match="t"):
        topics.update(topic, now_ms=1)
    assert topics.entries == {}


def test_names_and_system_topics_are_checked_before_anything_changes(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    with pytest.raises(MessageIllegal):
        topics.update(TopicConfig("../x"), now_ms=1)
    with pytest.raises(NoPermission):
        topics.update(TopicConfig("TBW102"), now_ms=1)
    with pytest.raises(NoPermission):
        topics.remove("SCHEDULE_TOPIC_XXXX", 1, {})
    with pytest.raises(TopicNotExist):
        topics.remove("absent", 1, {})


async def test_a_topic_for_the_brokers_own_records_needs_a_valid_name(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    await topics.make_of_one_queue("%RETRY%g", 1)
    for name in ("%RETRY%../x", "%DLQ%a/b", "x" * 300):
        with pytest.raises(MessageIllegal):
            await topics.make_of_one_queue(name, 1)
    assert topics.entries.keys() == {"%RETRY%g"}


def test_system_topics_are_there_and_enter_the_file_with_the_first_change(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    topics.add_system_topics(8, 18)
    assert topics.entries["SCHEDULE_TOPIC_XXXX"].read_queue_nums == 18
    assert topics.entries["TBW102"].perm == 7
    assert not (tmp_path / "topics.json").exists()
    topics.put(TopicConfig("t"), now_ms=1)
    assert topics.of_users() == ["t"]
    assert set(topics_in(tmp_path).entries) == {"SCHEDULE_TOPIC_XXXX", "TBW102", "t"}


def test_the_default_topic_makes_a_route_only_if_first_messages_make_topics(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    topics.add_system_topics(8, 18)
    assert {topic.name for topic in topics.announced(auto_create=True)} == {"SCHEDULE_TOPIC_XXXX", "TBW102"}
    assert {topic.name for topic in topics.announced(auto_create=False)} == {"SCHEDULE_TOPIC_XXXX"}


# --- groups -----------------------------------------------------------------------------------------------------------


async def test_a_group_is_made_for_its_first_consumer_and_has_the_defaults_before(tmp_path: Path) -> None:
    groups = groups_in(tmp_path)
    assert groups.consuming("g", auto_create=True) == SubscriptionGroup("g")
    assert groups.entries == {}
    await groups.make_for_consumer("g", now_ms=1)
    assert groups_in(tmp_path).get("g") == SubscriptionGroup("g")
    groups.update(SubscriptionGroup("g", retry_max_times=3), now_ms=2)
    await groups.make_for_consumer("g", now_ms=3)
    assert groups.consuming("g", auto_create=True).retry_max_times == 3


async def test_groups_that_wait_for_the_disk_are_made_with_one_write(tmp_path: Path) -> None:
    disk = SlowDisk(tmp_path / "subscriptionGroup.json")
    groups = groups_in(tmp_path, disk)
    first = asyncio.create_task(groups.make_for_consumer("g0", now_ms=1))
    await asyncio.to_thread(disk.begun.wait, 60)
    others = [asyncio.create_task(groups.make_for_consumer(f"g{number}", now_ms=2)) for number in range(1, 50)]
    await asyncio.sleep(0)
    disk.goes_on.set()
    await asyncio.gather(first, *others)
    assert len(disk.threads) == 2
    assert groups_in(tmp_path).entries == groups.entries == {f"g{n}": SubscriptionGroup(f"g{n}") for n in range(50)}


async def test_of_a_large_table_only_what_changes_is_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, encoded = groups_in(tmp_path), []
    real = config_table.to_json
    monkeypatch.setattr(config_table, "to_json", lambda entry: encoded.append(entry.name) or real(entry))
    for name in ("a", "b", "a2"):
        await groups.make_for_consumer(name, now_ms=1)
    groups.update(SubscriptionGroup("b", retry_max_times=3), now_ms=2)
    await groups.apply(lambda: groups.removing("a", 3))
    assert encoded == ["a", "b", "a2", "b"]
    assert groups_in(tmp_path).entries == groups.entries


def test_without_auto_creation_an_unknown_group_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubscriptionGroupNotExist, match="nobody"):
        groups_in(tmp_path).consuming("nobody", auto_create=False)


def test_a_group_that_may_not_consume_is_told_so(tmp_path: Path) -> None:
    groups = groups_in(tmp_path)
    groups.update(SubscriptionGroup("g", consume_enable=False), now_ms=1)
    with pytest.raises(NoPermission, match="consumeEnable"):
        groups.consuming("g", auto_create=True)


def test_impossible_groups_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="brokerId"):
        groups_in(tmp_path).update(SubscriptionGroup("g", broker_id=-1), now_ms=1)
    with pytest.raises(InvalidParameter, match="retryMaxTimes=-1 is negative; 0 is the least"):
        groups_in(tmp_path).update(SubscriptionGroup("g", retry_max_times=-1), now_ms=1)
    with pytest.raises(InvalidParameter):
        groups_in(tmp_path).update(SubscriptionGroup(""), now_ms=1)
