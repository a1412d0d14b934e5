"""What an error of a broker's own files advises helps: each advice is followed here, and the broker opens."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_service.broker.node import BrokerNode
from broker_service.errors import StoreCorrupt
from broker_service.replication.epochs import EpochList
from broker_service.store.json_file import JsonFile
from tests.support.brokers import small_config

WRONG_SHAPE = {"topicConfigTable": {"t": {"topicName": "other"}}}


def put_back(path: Path) -> None:
    shutil.copy(path.with_name(path.name + ".bak"), path)


def copy_from_the_peer(path: Path) -> None:
    shutil.copy(path.parents[2] / "peer" / path.parent.name / path.name, path)


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.with_name(path.name + ".bak").unlink(missing_ok=True)


# file, what is done to it, what the error says, what is done about it
ADVICE: list[tuple[str, Callable[[Path], object], str, Callable[[Path], object]]] = [
    ("rocketsim/role.json", lambda at: write(at, '{"brokerRole": "KING"}'), "remove it to take the role", Path.unlink),
    ("rocketsim/epochs.json", lambda at: write(at, "{"), "Copy it from the broker's peer", copy_from_the_peer),
    ("rocketsim/slaves.json", lambda at: write(at, '{"slaves": 7}'), "remove it: slaves are known again", Path.unlink),
    ("config/topics.json", lambda at: JsonFile(at).save(WRONG_SHAPE), "put its .bak in its place", put_back),
    ("config/topics.json", lambda at: write(at, "{"), "repair it, or move it away to start without it", Path.unlink),
    ("config/topics.json", lambda at: write(at, "{"), "repair it", copy_from_the_peer),
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
