"""BrokerConfig from files: accepted values, refusals and their messages."""

import logging
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from broker_service.config.broker_config import RUNTIME_KEYS, BrokerConfig, with_updates
from broker_service.config.loading import load_broker_config, load_namesrv_config
from broker_service.config.properties import as_properties
from broker_service.errors import ConfigError
from broker_service.modes import BrokerRole, FlushDiskType

BROKER = BrokerConfig(broker_name="a", store_path_root_dir=Path("/x"))


class Loader:
    """Fills in the keys that every file must have, unless the test gives them."""

    def __init__(self, path):
        self.path = path

    def __call__(self, text, **overrides):
        self.path.write_text(text, encoding="utf-8")
        given = {"brokerName": "broker-a", "storePathRootDir": "/data"}
        given = {key: value for key, value in given.items() if key not in text}
        return load_broker_config(self.path, given | overrides)


@pytest.fixture
def load(tmp_path):
    return Loader(tmp_path / "broker.properties")


def refusal(load, text, **overrides):
    with pytest.raises(ConfigError) as refused:
        load(text, **overrides)
    return str(refused.value)


def test_values_are_taken_by_their_types(load):
    config = load(
        "# a comment\nbrokerName = broker-a\nbrokerId: 1\nbrokerRole=SLAVE\nflushDiskType=SYNC_FLUSH\n"
        "slaveReadEnable=true  \nlistenPort=0\nstorePathRootDir=/data/a\nbrokerIP1=10.0.0.7\n"
    )
    assert (config.broker_name, config.broker_id, config.broker_role) == ("broker-a", 1, BrokerRole.SLAVE)
    assert (config.flush_disk_type, config.slave_read_enable) == (FlushDiskType.SYNC_FLUSH, True)
    assert (config.listen_port, config.store_path_root_dir) == (0, Path("/data/a"))
    assert config.advertised_host == "10.0.0.7"


def test_a_file_has_to_name_the_broker_and_its_store(load):
    load.path.write_text("brokerId=0\nbrokerRole=SYNC_MASTER\n")
    with pytest.raises(ConfigError) as refused:
        load_broker_config(load.path)
    name, store = str(refused.value).splitlines()
    shared = "the name that a master shares with its slaves, and with no other broker"
    assert name == f"{load.path}: brokerName is missing: {shared}"
    assert store.startswith(f"{load.path}: storePathRootDir is missing: the store's directory, one per process")


def test_what_is_not_said_is_as_rocketmq_has_it_on_loopback(load):
    config = load("")
    assert config.broker_role is BrokerRole.ASYNC_MASTER
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert (config.bind_address, config.listen_port, config.advertised_host) == ("127.0.0.1", 10911, "127.0.0.1")
    assert config.address_path == Path("/data/rocketsim/address")
    assert config.mapped_file_size_commit_log == 1024**3
    assert config.mapped_file_size_consume_queue == 300_000 * 20
    assert len(config.delay_levels_ms) == 18
    assert (config.delay_levels_ms[0], config.delay_levels_ms[-1]) == (1_000, 7_200_000)
    assert config.delete_when == "04"
    assert config.name_servers == ()


def test_an_unknown_key_is_refused_with_file_line_and_the_nearest_known_key(load):
    text = "brokerId=0\n\n# why\nbrokerNmae=broker-a\n"
    assert refusal(load, text) == f"{load.path}:4: unknown key brokerNmae; did you mean brokerName?"


def test_rocketmqs_old_spelling_of_a_key_leads_to_the_new_one(load):
    assert "did you mean mappedFileSizeCommitLog?" in refusal(load, "mapedFileSizeCommitLog=1024\n")


def test_a_key_like_nothing_known_gets_no_guess(load):
    assert refusal(load, "zzzzz=1") == f"{load.path}:1: unknown key zzzzz"


def test_line_numbers_count_continued_lines_comments_and_blank_ones(load):
    text = "! one\nmessageDelayLevel=1s \\\n    5s\n\nlistenPort=x\n"
    assert refusal(load, text) == f"{load.path}:5: listenPort=x: expected a whole number"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("brokerRole=SLVE", "expected one of ASYNC_MASTER, SYNC_MASTER, SLAVE; did you mean SLAVE?"),
        ("brokerRole=", "expected one of ASYNC_MASTER"),
        ("slaveReadEnable=yes", "expected true or false"),
        ("slaveReadEnable=TRUE", "expected true or false"),
        ("listenPort=", "expected a whole number"),
        ("listenPort=1_0", "expected a whole number"),
        ("listenPort=١٢", "expected a whole number"),
        ("listenPort=0x10", "expected a whole number"),
        ("listenPort=1e3", "expected a whole number"),
        ("listenPort=-1", "expected 0 to 65535"),
        ("listenPort=65536", "expected 0 to 65535"),
        ("physicalMemory=-1", "expected at least 0"),
        ("brokerPermission=7", "expected one of 2, 4, 6"),
        ("accessMessageInMemoryMaxRatio=101", "expected 0 to 100"),
        ("storePathRootDir=", "expected a path"),
        ("deleteWhen=24", "expected hours from 00 to 23"),
        ("deleteWhen=", "expected hours from 00 to 23"),
        ("messageDelayLevel=1s 5x", "expected times such as"),
        ("namesrvAddr=localhost", "localhost is not host:port"),
        ("namesrvAddr=a:1,b:2", "a:1,b:2 is not host:port"),
        ("namesrvAddr=a:1;b:99999", "b:99999 is not host:port"),
        ("brokerName=a/../b", "letters, digits"),
        ("brokerId=1", "a master has brokerId=0, a slave a higher one"),
        ("brokerRole=SLAVE", "a master has brokerId=0, a slave a higher one"),
        ("bindAddress=0.0.0.0", "set brokerIP1, too"),
        ("maxIndexNum=200000000", "an index file would be larger than 2 GiB"),
    ],
)
def test_a_bad_value_is_refused_with_its_line(load, line, expected):
    said = refusal(load, f"# first\n{line}\n")
    assert said.startswith(f"{load.path}:2: ")
    assert line.partition("=")[0] in said
    assert expected in said


def test_everything_that_is_wrong_is_said_at_once_in_the_order_of_the_file(load):
    said = refusal(load, "listenPort=x\naclEnable=true\nnope=1\nslaveReadEnable=1\n").splitlines()
    assert [line.split(": ")[0] for line in said] == [f"{load.path}:{number}" for number in (1, 2, 3, 4)]


def test_a_key_given_twice_is_refused(load):
    said = refusal(load, "listenPort=1\nbrokerId=0\nlistenPort=2\n")
    assert said == f"{load.path}:3: listenPort is repeated; {load.path}:1 has it already"


def test_a_file_that_is_not_there_or_not_text_is_named(load, tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.properties: no such file"):
        load_broker_config(tmp_path / "nothing.properties")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_broker_config(tmp_path)
    load.path.write_bytes(b"brokerName=\xff\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_broker_config(load.path)


def test_a_bad_unicode_escape_is_refused_with_its_line(load):
    assert refusal(load, "brokerId=0\nbrokerName=\\u12\n").startswith(f"{load.path}:2: ")


def test_keys_of_rocketmq_that_do_nothing_here_get_one_warning_together(load, caplog):
    with caplog.at_level(logging.WARNING):
        load("sendMessageThreadPoolNums=4\nhaListenPort=10912\ntransientStorePoolEnable=true\nbrokerName=a\n")
    ignored = "sendMessageThreadPoolNums haListenPort transientStorePoolEnable"
    assert caplog.messages == [f"{load.path}: these keys of RocketMQ are ignored: {ignored}"]


def test_a_file_with_only_known_keys_warns_of_nothing(load, caplog):
    load("brokerName=a\n")
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("aclEnable=true", "set authenticationEnabled and authorizationEnabled"),
        ("authenticationEnabled=true", "set innerClientAuthenticationCredentials, too"),
        ("authorizationEnabled=true", "set authenticationEnabled=true, too"),
        ("useTLS=true", "switched on by tlsCert and tlsKey"),
        ("inSyncReplicas=3", "a put waits for at most one slave in sync"),
        ("cleanFileForciblyEnable=false", "diskSpaceCleanForciblyRatio=100"),
        ("enableDLegerCommitLog=true", "another format"),
        ("storeType=defaultRocksDB", "only the default store"),
        ("storePathCommitLog=/elsewhere", "it must be storePathRootDir/commitlog"),
    ],
)
def test_a_key_that_asks_for_a_promise_we_would_not_keep_is_refused(load, line, reason):
    said = refusal(load, line)
    assert said.startswith(f"{load.path}:1: ")
    assert reason in said


def test_the_same_keys_with_harmless_values_are_only_ignored(load):
    load("aclEnable=false\ninSyncReplicas=2\nstorePathRootDir=/d\nstorePathCommitLog=/d/commitlog\n")


def test_overrides_win_over_the_file_and_are_named_in_errors(load):
    assert load("listenPort=1\n", listenPort="2").listen_port == 2
    assert refusal(load, "", listenPort="x") == "override: listenPort=x: expected a whole number"


def test_home_and_relative_paths_are_understood(load, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.chdir(tmp_path)
    assert load("storePathRootDir=~/store").store_path_root_dir == Path("/home/ann/store")
    assert load("storePathRootDir=${user.home}/store").store_path_root_dir == Path("/home/ann/store")
    assert load("storePathRootDir=data/a").store_path_root_dir == tmp_path / "data/a"


def test_a_consume_queue_file_holds_whole_entries(load):
    assert load("mappedFileSizeConsumeQueue=6000001").mapped_file_size_consume_queue == 6_000_020


def test_values_outside_ascii_are_read_as_utf_8(load):
    assert load("storePathRootDir=/daten/größe").store_path_root_dir == Path("/daten/größe")


def test_written_out_and_read_again_a_config_is_the_same(load):
    config = BrokerConfig(broker_name="a", slave_read_enable=True, store_path_root_dir=Path("/x"), listen_port=5)
    text = "".join(f"{key}={value}\n" for key, value in as_properties(config).items())
    assert load(text) == config
    assert "brokerIP1=\n" in text


def test_a_config_does_not_change():
    with pytest.raises(FrozenInstanceError):
        BROKER.listen_port = 1


# --- updateBrokerConfig -----------------------------------------------------------------------------------------------


def test_an_update_changes_what_it_names_and_nothing_else():
    config = BROKER
    changed = with_updates(config, {"slaveReadEnable": "true", "deleteWhen": "05;17"})
    assert (changed.slave_read_enable, changed.delete_when) == (True, "05;17")
    assert with_updates(changed, {"slaveReadEnable": "false", "deleteWhen": "04"}) == config


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"storePathRootDir": "/x"}, "storePathRootDir cannot be changed while the broker runs"),
        ({"brokerId": "1"}, "brokerId cannot be changed"),
        ({"slaveReadEnabel": "true"}, "slaveReadEnabel is not a key; did you mean slaveReadEnable?"),
        ({"slaveReadEnable": "1"}, "slaveReadEnable=1: expected true or false"),
        ({"brokerPermission": "4", "deleteWhen": "99"}, "deleteWhen=99: expected hours"),
        ({"configStorePath": "/x"}, "configStorePath is not a key"),
    ],
)
def test_an_update_of_anything_else_or_to_a_bad_value_is_refused(values, says):
    with pytest.raises(ConfigError) as refused:
        with_updates(BROKER, values)
    assert says in str(refused.value)


def test_no_path_address_or_name_can_be_changed_at_run_time():
    for key in RUNTIME_KEYS:
        assert not any(word in key.lower() for word in ("path", "addr", "port", "name", "file_size", "id"))


# --- the name server's ------------------------------------------------------------------------------------------------


def test_a_name_servers_file_is_read_the_same_way(load, caplog):
    load.path.write_text("listenPort=0\nkvConfigPath=/x\naddressFile=/tmp/a\n")
    with caplog.at_level(logging.WARNING):
        config = load_namesrv_config(load.path)
    assert (config.listen_port, config.address_file) == (0, Path("/tmp/a"))
    assert caplog.messages == [f"{load.path}: these keys of RocketMQ are ignored: kvConfigPath"]
    load.path.write_text("nope=a\n")
    with pytest.raises(ConfigError, match=":1: unknown key nope"):
        load_namesrv_config(load.path)


def test_a_file_of_the_other_kind_of_server_is_refused_with_the_command_for_it(load):
    load.path.write_text("listenPort=10911\nbrokerName=broker-a\nstorePathRootDir=/data\n")
    with pytest.raises(ConfigError) as refused:
        load_namesrv_config(load.path)
    instead = f"a broker is started with `rocketsim broker -c {load.path}`"
    assert str(refused.value) == f"{load.path}:2: brokerName is a broker's key, not a name server's; {instead}"
    load.path.write_text("listenPort=9876\nbrokerExpireTimeMs=1000\n")
    instead = f"a name server is started with `rocketsim namesrv -c {load.path}`"
    with pytest.raises(ConfigError) as refused:
        load_broker_config(load.path)
    assert str(refused.value) == f"{load.path}:2: brokerExpireTimeMs is a name server's key, not a broker's; {instead}"
    # A name server's file that has no key of its own kind lacks keys that a broker needs.
    load.path.write_text("listenPort=9876\nbindAddress=127.0.0.1\n")
    with pytest.raises(ConfigError) as refused:
        load_broker_config(load.path)
    assert str(refused.value).splitlines()[-1] == f"{load.path}: if this is a name server's file: {instead}"
