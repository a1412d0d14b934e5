"""Configuration files can be read with RocketMQ's unquoted keys, as strict JSON, and after a crash or damage."""

import random
from pathlib import Path

import pytest

from broker_service.errors import StoreCorrupt
from broker_service.store.json_file import JsonFile, TextTable, dumps, entry_text, loads
from tests.support.golden import unpack_golden
from tests.support.memory_files import MemoryFiles, PowerCut

PATH = Path("/store/config/topics.json")


def test_unquoted_integer_keys_are_read_as_strings_and_strings_are_left_alone():
    text = '{"offsetTable":{"t@g":{0:10,1 : 20,-3:{7:1}}},"text":"{0:1, \\"{5:6\\" ,8:9}","list":[1,2]}'
    value = loads(text)
    assert value["offsetTable"] == {"t@g": {"0": 10, "1": 20, "-3": {"7": 1}}}
    assert value["text"] == '{0:1, "{5:6" ,8:9}'
    assert loads(dumps(value)) == value


def test_a_table_of_texts_is_written_as_one_of_objects():
    entries = {'b"\n': {"x": 1, "deep": {"k": [1, {"null": None}]}}, "a": {}, "ü": {"text": 'a\nb\t"t":null'}}
    whole = {"zone": {"t": None}, "t": entries, "empty": {}, "a": None, "dataVersion": {"counter": 3}}
    texts = TextTable({name: entry_text(entry) for name, entry in entries.items()})
    assert dumps({**whole, "t": texts, "empty": TextTable()}) == dumps(whole)


def test_a_damaged_file_that_has_the_size_of_what_was_saved_does_not_replace_the_backup():
    disk = MemoryFiles()
    file = JsonFile(PATH, disk)
    for number in range(3):
        file.save({"a": number})
    disk.overwrite(PATH, 0, b"?")
    file.save({"a": 3})
    assert loads(disk.read(file.backup).decode()) == {"a": 1} and file.load() == {"a": 3}


def test_every_configuration_file_of_rocketmq_is_read(tmp_path):
    root = unpack_golden(tmp_path)
    for path in (root / "config").glob("*.json"):
        assert JsonFile(path).load() is not None, path


def test_the_previous_content_stays_in_the_backup_and_serves_when_the_file_is_damaged(caplog):
    disk = MemoryFiles()
    file = JsonFile(PATH, disk)
    assert file.load() is None
    file.save({"a": 1})
    file.save({"a": 2})
    assert loads(disk.read(file.backup).decode()) == {"a": 1} and file.load() == {"a": 2} and not caplog.text
    disk.overwrite(PATH, 0, b"?")
    assert file.load() == {"a": 1}
    assert f"{PATH} is damaged" in caplog.text and f"before the last change is used, from {PATH}.bak" in caplog.text
    file.save({"a": 3})
    assert loads(disk.read(file.backup).decode()) == {"a": 1}, "a damaged file does not replace a good backup"
    disk.overwrite(PATH, 0, b"?")
    disk.overwrite(file.backup, 0, b"?")
    with pytest.raises(StoreCorrupt, match=r"topics\.json is damaged"):
        file.load()


OURS = Path("/store/rocketsim/role.json")


def test_no_changed_bit_of_our_own_files_is_taken_for_other_content():
    disk = MemoryFiles()
    for content in ({"brokerRole": "SYNC_MASTER", "brokerId": 0, "epoch": 10**12}, {}):
        JsonFile(OURS, disk).save(content)
        disk.remove(JsonFile(OURS, disk).backup)
        whole = disk.read(OURS)
        for bit in range(8 * len(whole)):
            disk.overwrite(OURS, bit // 8, bytes([whole[bit // 8] ^ 1 << bit % 8]))
            try:
                found = JsonFile(OURS, disk).load()
                assert found is not None and {name: found[name] for name in content} == content
            except StoreCorrupt as error:
                assert f"{OURS} is damaged" in str(error)
            disk.overwrite(OURS, 0, whole)
        assert JsonFile(OURS, disk).load() == content


def test_a_file_of_an_older_version_has_no_checksum_and_is_read():
    disk = MemoryFiles()
    disk.make_directory(OURS.parent)
    disk.write_atomically(OURS, b'{"brokerId": 0}')
    assert JsonFile(OURS, disk).load() == {"brokerId": 0}


def test_rocketmqs_files_have_no_name_of_ours_in_them():
    disk = MemoryFiles()
    JsonFile(PATH, disk).save({"a": 1})
    assert loads(disk.read(PATH).decode()) == {"a": 1}


def with_its_directory() -> MemoryFiles:
    """Returns a disk with the file's directory, as a store creates it when it opens."""
    disk = MemoryFiles()
    disk.make_directory(PATH.parent)
    disk.sync_directory(PATH.parent.parent)
    return disk


@pytest.mark.parametrize("call", range(1, 14))
def test_a_crash_while_saving_leaves_the_old_or_the_new_content(call):
    disk = with_its_directory()
    JsonFile(PATH, disk).save({"a": 1})
    JsonFile(PATH, disk).save({"a": 2})
    disk.stop_at = disk.calls + call
    saved = False
    try:
        JsonFile(PATH, disk).save({"a": 3})
        saved = True
    except PowerCut:
        pass
    for after in (disk.power_loss(random.Random(call)), disk.kill()):
        found = JsonFile(PATH, after).load()
        assert found == {"a": 3} if saved else found in ({"a": 2}, {"a": 3})


@pytest.mark.parametrize("seed", range(20))
def test_what_was_read_after_a_kill_is_not_taken_back_by_a_power_loss(seed):
    """A killed process may have renamed the file without syncing the directory, and the next process acts on what it
    reads.
    """
    disk = with_its_directory()
    JsonFile(PATH, disk).save({"role": "SLAVE"})

    def killed_before_the_sync(call: str, path: Path) -> None:
        if call == "sync_directory" and b"MASTER" in disk.read(PATH):
            raise PowerCut

    disk.before = killed_before_the_sync
    with pytest.raises(PowerCut):
        JsonFile(PATH, disk).save({"role": "MASTER"})
    second = disk.kill()
    assert JsonFile(PATH, second).load() == {"role": "MASTER"}
    assert JsonFile(PATH, second.power_loss(random.Random(seed))).load() == {"role": "MASTER"}


@pytest.mark.parametrize("seed", range(20))
def test_a_file_that_was_gone_after_a_kill_does_not_come_back(seed):
    disk = with_its_directory()
    JsonFile(PATH, disk).save({"a": 1})
    JsonFile(PATH, disk).remove()
    second = disk.kill()
    assert JsonFile(PATH, second).load() is None
    assert JsonFile(PATH, second.power_loss(random.Random(seed))).load() is None


def test_what_somebody_put_there_by_hand_is_on_disk_once_it_is_read():
    disk = with_its_directory()
    handle = disk.open(PATH, create=True)
    disk.pwrite(handle, b'{"a":1}', 0)
    disk.close(handle)
    assert JsonFile(PATH, disk).load() == {"a": 1}
    assert JsonFile(PATH, disk.power_loss(random.Random(1))).load() == {"a": 1}
