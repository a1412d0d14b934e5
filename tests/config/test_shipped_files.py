"""The files in conf/ load, and all files of a folder can run on one machine."""

from operator import attrgetter
from pathlib import Path

import pytest

from broker_service.config.loading import load_broker_config, load_namesrv_config
from broker_service.modes import BrokerRole

stem = attrgetter("stem")
CONF = Path(__file__).parents[2] / "conf"


@pytest.mark.parametrize(
    ("folder", "master_role"), [("2m-2s-sync", BrokerRole.SYNC_MASTER), ("2m-2s-async", BrokerRole.ASYNC_MASTER)]
)
def test_two_pairs_and_their_name_server_fit_on_one_machine(folder, master_role, caplog):
    name_server = load_namesrv_config(CONF / "namesrv.properties")
    brokers = {path.stem: load_broker_config(path) for path in sorted((CONF / folder).iterdir(), key=stem)}
    assert list(brokers) == ["broker-a", "broker-a-s", "broker-b", "broker-b-s"]
    assert {name: config.listen_port for name, config in brokers.items()} == {
        "broker-a": 10911,
        "broker-a-s": 10921,
        "broker-b": 10931,
        "broker-b-s": 10941,
    }
    assert {name: config.grpc_server_port for name, config in brokers.items()} == {
        "broker-a": 8081,
        "broker-a-s": 8081,
        "broker-b": 8082,
        "broker-b-s": 8082,
    }
    assert len({config.store_path_root_dir for config in brokers.values()}) == 4
    assert len({config.mapped_file_size_commit_log for config in brokers.values()}) == 1
    for name, config in brokers.items():
        is_slave = name.endswith("-s")
        assert config.broker_name == name.removesuffix("-s")
        assert config.broker_id == (1 if is_slave else 0)
        assert config.broker_role is (BrokerRole.SLAVE if is_slave else master_role)
        assert config.name_servers == (f"127.0.0.1:{name_server.listen_port}",)
        assert config.bind_address == "127.0.0.1"
    assert caplog.messages == []


@pytest.mark.parametrize("path", sorted(CONF.rglob("*.properties")), ids=lambda path: path.stem)
def test_a_file_says_how_it_is_started_and_explains_itself(path):
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# ")
    assert any(line.endswith(f"-c {path.relative_to(CONF.parent)}") for line in lines)
