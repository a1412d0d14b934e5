"""Error messages of the broker give advice that works: each test follows one."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_service.access.users import User
from broker_service.broker.core.mastership import Standing
from broker_service.errors import StoreCorrupt
from broker_service.modes import BrokerRole
from broker_service.node.node import BrokerNode
from broker_service.replication.epochs import EpochList
from broker_service.store.json_file import JsonFile
from testbed.polling import until
from tests.support.access import KEYS
from tests.support.brokers import put, running, small_config
from tests.support.stores import open_store, records_of

WRONG_SHAPE = {"topicConfigTable": {"t": {"topicName": "other"}}}


def put_back(path: Path) -> None:
    shutil.copy(path.with_name(path.name + ".bak"), path)


def copy_from_the_peer(path: Path) -> None:
    shutil.copy(path.parents[2] / "peer" / path.parent.name / path.name, path)


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.with_name(path.name + ".bak").unlink(missing_ok=True)


def edit(path: Path) -> None:
    JsonFile(path).save({"t": {"0": 0}})
    write(path, path.read_text().replace('"t":', '"u":'))


def without_checksum(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["crc32"]
    path.write_text(json.dumps(content))


# file, what is done to it, what the error says, what is done about it
ADVICE: list[tuple[str, Callable[[Path], object], str, Callable[[Path], object]]] = [
    ("rocketsim/role.json", lambda at: write(at, '{"brokerRole": "KING"}'), "remove it to take the role", Path.unlink),
    ("rocketsim/epochs.json", lambda at: write(at, "{"), "Copy it from the broker's peer", copy_from_the_peer),
    ("rocketsim/slaves.json", lambda at: write(at, '{"slaves": 7}'), "remove it: slaves are known again", Path.unlink),
    ("rocketsim/master.json", lambda at: write(at, '{"brokerRole": 7}'), "remove it: it is written again", Path.unlink),
    ("config/topics.json", lambda at: JsonFile(at).save(WRONG_SHAPE), "put its .bak in its place", put_back),
    ("config/topics.json", lambda at: write(at, "{"), "repair it, or move it away to start without it", Path.unlink),
    ("config/topics.json", lambda at: write(at, "{"), "repair it", copy_from_the_peer),
    ("rocketsim/queue_offsets.json", edit, "If somebody has edited the file, remove the crc32", without_checksum),
    ("config/consumerOffset.json", lambda at: JsonFile(at).save({"offsetTable": 7}), "put its .bak in its", put_back),
]


@pytest.mark.parametrize(("name", "damage", "says", "cure"), ADVICE)
def test_what_a_broker_that_does_not_start_advises_makes_it_start(
    tmp_path: Path, name: str, damage: Callable[[Path], object], says: str, cure: Callable[[Path], object]
) -> None:
    config = small_config(tmp_path / "store")
    node = BrokerNode.open(config)
    node.epochs.save(EpochList.of((100, 0)))
    node.topics.auto_create("t", 4, 4, 1)
    node.offsets.commit("g", "t", {0: 5})
    node.offsets.close(1)
    node.store.close()
    shutil.copytree(tmp_path / "store", tmp_path / "peer")
    path = tmp_path / "store" / name
    damage(path)
    with pytest.raises(StoreCorrupt, match=says):
        BrokerNode.open(config)
    cure(path)
    node = BrokerNode.open(config)
    assert ("t" in node.topics.entries) == ("topics" not in name or cure is not Path.unlink)
    assert node.offsets.get("g", "t", 0).offset == 5 and node.epochs.epochs.last == 100
    node.store.close()


@pytest.mark.parametrize(("cure", "left"), [("rename it to", ["first"]), ("move both files away", [])])
def test_a_table_of_users_that_is_damaged_is_put_back_or_moved_away_by_hand(
    tmp_path: Path, cure: str, left: list[str]
) -> None:
    """A start does not use the .bak by itself: it may contain a right that the last change took away."""
    config = small_config(tmp_path, **KEYS)
    node = BrokerNode.open(config)
    assert node.access is not None
    node.access.users.put(User("first", "password1"), 1)
    node.access.users.put(User("second", "password2"), 2)
    node.store.close()
    path = tmp_path / "rocketsim" / "users.json"
    path.write_text("{")
    with pytest.raises(StoreCorrupt, match=cure):
        BrokerNode.open(config)
    if left:
        put_back(path)
    else:
        path.unlink()
        path.with_name("users.json.bak").unlink()
    node = BrokerNode.open(config)
    assert node.access is not None and sorted(node.access.users.entries) == left
    node.store.close()


@pytest.mark.parametrize("promoted", [False, True])
async def test_a_broker_that_is_fenced_follows_the_new_master_when_its_advice_is_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, promoted: bool
) -> None:
    slave: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
    other_slave = slave | {"broker_id": 2}
    role_file = tmp_path / "old" / "rocketsim" / "role.json"
    async with running(tmp_path / "old", **(slave if promoted else {})) as old:
        if promoted:
            await old.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=False)
        await put(old, "t", b"before")
        async with running(tmp_path / "new", **other_slave, ha_master_address=old.address) as new:
            await until(lambda: new.store.queues.bounds("t", 0) == (0, 1), "copied")
            await new.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=True)
            await until(lambda: old.mastership.standing is Standing.FENCED, "it was told")
    (advice,) = [line for line in caplog.messages if line.startswith("FENCED")]
    assert "start it with brokerRole=SLAVE and a brokerId that no other broker of its name has" in advice
    remove = re.search(r"remove (\S+),", advice)
    assert (remove is not None) == role_file.exists() == promoted
    if remove:
        assert Path(remove[1]) == role_file
        role_file.unlink()
    async with (
        running(tmp_path / "new", **other_slave) as new,
        running(tmp_path / "old", **slave, ha_master_address=new.address) as old,
    ):
        assert old.broker.is_slave
        await put(new, "t", b"after")
        await until(lambda: old.store.queues.bounds("t", 0) == (0, 2), "it follows")


SLAVE: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}


async def test_a_slave_with_the_log_of_another_broker_copies_its_masters_once_it_is_wiped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path / "slave") as stranger:
        await put(stranger, "u", b"x")
    async with running(tmp_path / "master") as master:
        await put(master, "t", b"x")
        keys = SLAVE | {"ha_master_address": master.address}
        async with running(tmp_path / "slave", **keys) as slave:
            advice = "no epoch in common: the log of another broker?"
            await until(lambda: any(advice in line for line in caplog.messages), "the refusal")
            assert slave.store.queues.bounds("u", 0) == (0, 1)
        shutil.rmtree(tmp_path / "slave")
        async with running(tmp_path / "slave", **keys) as slave:
            await until(lambda: slave.store.queues.bounds("t", 0) == (0, 1), "copied")


@pytest.mark.parametrize(
    ("key", "name", "other"),
    [
        ("broker_cluster_name", "brokerClusterName", "elsewhere"),
        ("broker_name", "brokerName", "broker-z"),
        ("mapped_file_size_commit_log", "mappedFileSizeCommitLog", 2 << 20),
        ("mapped_file_size_consume_queue", "mappedFileSizeConsumeQueue", 20 * 2000),
    ],
)
async def test_a_slave_that_is_configured_as_its_master_follows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, name: str, other: str | int
) -> None:
    async with running(tmp_path / "master") as master:
        await put(master, "t", b"x")
        keys = SLAVE | {"ha_master_address": master.address}
        async with running(tmp_path / "slave", **keys, **{key: other}):

            def refused() -> list[str]:
                said = [line for line in caplog.messages if "make them the same" in line]
                return [line for line in said if f"{name} is" in line and f"{other} on slave-1" in line]

            await until(refused, "the refusal")
        async with running(tmp_path / "slave", **keys) as slave:
            await until(lambda: slave.store.queues.bounds("t", 0) == (0, 1), "copied")


def one_record_differs(master: Path, slave: Path) -> None:
    """Changes a record's properties, which its CRC does not cover, so each log is sound by itself."""
    path = [file for file in sorted((slave / "commitlog").iterdir()) if b"TAGS" in file.read_bytes()][-1]
    data = path.read_bytes()
    at = data.rindex(b"TAGS\x01A")
    path.write_bytes(data[:at] + b"TAGS\x01B" + data[at + 6 :])
    (slave / "rocketsim" / "flushed").unlink()  # the file contains the CRC of the log's last bytes, which have changed


def histories_differ(master: Path, slave: Path) -> None:
    """Gives both logs an epoch of the same number but another start, from brokers that knew no epoch ids."""
    for store, start in ((slave, 1), (master, 2)):
        content = {"epochs": [{"epoch": 1, "startOffset": 0}, {"epoch": 2, "startOffset": start}]}
        (store / "rocketsim" / "epochs.json").write_text(json.dumps(content | {"goesOn": store is master}))


def the_masters_log_is_lost(master: Path, slave: Path) -> None:
    shutil.rmtree(master)


def the_master_lost_its_tail(master: Path, slave: Path) -> None:
    """Cuts the master's log and notes a clean stop nevertheless, so the master goes on in its epoch."""
    store = open_store(master, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20 * 1000)
    store.truncate(records_of(store)[1].commit_log_offset, None)
    store.close()


def what_the_master_lost_has_expired_too(master: Path, slave: Path) -> None:
    the_master_lost_its_tail(master, slave)
    for path in sorted((slave / "commitlog").iterdir())[:2]:
        path.unlink()


async def test_a_master_without_its_epochs_follows_the_slave_that_is_promoted_in_its_place(tmp_path: Path) -> None:
    async with running(tmp_path / "master") as master:
        async with running(tmp_path / "slave", **SLAVE, ha_master_address=master.address) as slave:
            await put(master, "t", b"x")
            await until(lambda: slave.store.queues.bounds("t", 0) == (0, 1), "copied")
    write(tmp_path / "master" / "rocketsim" / "epochs.json", "{")
    with pytest.raises(StoreCorrupt, match="start this broker with an empty store as a slave of its peer"):
        BrokerNode.open(small_config(tmp_path / "master"))
    shutil.rmtree(tmp_path / "master")
    async with running(tmp_path / "slave", **SLAVE, ha_master_address=master.address) as slave:
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=False)
        async with running(tmp_path / "master", **SLAVE, ha_master_address=slave.address) as follower:
            await until(lambda: follower.store.queues.bounds("t", 0) == (0, 1), "copied")


@pytest.mark.parametrize(
    ("what", "wrong", "says"),
    [
        (one_record_differs, "slave", "differ from this master's, in the same epoch; keep both stores"),
        (one_record_differs, "master", "differ from this master's, in the same epoch; keep both stores"),
        (histories_differ, "master", "another history of epoch 2"),
        (the_masters_log_is_lost, "master", "no epoch in common"),
        (the_master_lost_its_tail, "master", "in the epoch that it writes"),
        (what_the_master_lost_has_expired_too, "master", "the slave's minimum: stop the master and promote the slave"),
    ],
)
async def test_of_two_logs_that_do_not_fit_the_right_one_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: Callable[[Path, Path], None], wrong: str, says: str
) -> None:
    async with running(tmp_path / "master") as master:
        for _ in range(3):
            await put(master, "t", b"x" * 700_000, TAGS="A")
    shutil.copytree(tmp_path / "master", tmp_path / "slave")
    what(tmp_path / "master", tmp_path / "slave")
    async with running(tmp_path / "master", writable=False) as master:
        keys = SLAVE | {"ha_master_address": master.address}
        async with running(tmp_path / "slave", **keys):
            await until(lambda: [line for line in caplog.messages if says in line], "the refusal")
        if wrong == "slave":
            assert "else start the slave with an empty store" in caplog.text
            shutil.rmtree(tmp_path / "slave")
            async with running(tmp_path / "slave", **keys) as slave:
                await until(lambda: slave.store.queues.bounds("t", 0) == (0, 3), "copied")
            return
    async with running(tmp_path / "slave", **keys) as slave:
        bounds = slave.store.queues.bounds("t", 0)
        await slave.leadership.promote("broker-a", 0, BrokerRole.ASYNC_MASTER, force=False)
        if what is not what_the_master_lost_has_expired_too:
            assert "start the other as its slave with an empty store" in caplog.text
            shutil.rmtree(tmp_path / "master")
        async with running(tmp_path / "master", **SLAVE, ha_master_address=slave.address) as follower:
            await until(lambda: follower.store.queues.bounds("t", 0) == bounds, "copied")
