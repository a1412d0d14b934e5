"""A slave's promise to a candidate for promotion also binds the slave towards the master that it follows."""

from pathlib import Path

import pytest
from rocketsim_proto import replication_pb2 as pb

from broker_service.errors import StaleEpoch
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.epochs import PROMOTION, EpochList
from broker_service.replication.follower import Follower
from broker_service.replication.handshake import Identity, epoch_messages
from broker_service.replication.promise import Promise, is_over, refusal
from tests.support.memory_log import MemoryLog

ASKED = Promise(PROMOTION, 1, "a:1")
OTHER = Promise(PROMOTION, 2, "b:1")
IDENTITY = Identity(
    cluster_name="c",
    broker_name="b",
    broker_id=2,
    address="s:1",
    mapped_file_size_commit_log=10,
    mapped_file_size_consume_queue=20,
)
IDLE = {"given": None, "newest_epoch": 1, "is_slave": True, "follows": "", "candidate_epoch": 0}


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        pytest.param({}, "", id="a slave without a master"),
        pytest.param({"is_slave": False}, "is a master", id="a master"),
        pytest.param({"follows": "m:1"}, "follows the master at m:1: stop it first", id="a slave with a master"),
        pytest.param({"candidate_epoch": PROMOTION}, "is being promoted itself", id="another candidate"),
        pytest.param({"given": ASKED}, "", id="asked once more"),
        pytest.param({"given": Promise(PROMOTION - 1, 1, "a:1")}, "", id="its next attempt"),
        pytest.param({"given": Promise(2 * PROMOTION, 1, "a:1")}, "knows of epoch", id="a question that comes late"),
        pytest.param({"given": OTHER}, "has promised epoch 1000000000000 to broker 2 at b:1", id="another's"),
        pytest.param({"given": Promise(5, 2, "b:1")}, "has promised epoch 5 to", id="a lower one, another's"),
        pytest.param({"newest_epoch": PROMOTION}, "knows of epoch 1000000000000", id="one that is there already"),
    ],
)
def test_who_promises_what(facts: dict[str, object], why: str) -> None:
    said = refusal(ASKED, **(IDLE | facts))  # type: ignore[arg-type]
    assert why in said if why else said == ""


def test_a_promise_is_over_when_its_candidate_says_so() -> None:
    assert is_over(ASKED, 1, 0) and is_over(ASKED, 1, 2 * PROMOTION)
    assert not is_over(ASKED, 1, PROMOTION)  # the candidate is about to be promoted
    assert not is_over(ASKED, 0, 0)  # it was


def test_a_promise_is_on_disk_until_it_ends_or_the_log_has_its_epoch(tmp_path: Path) -> None:
    path = tmp_path / "epochs.json"
    file = EpochFile(path, 0)
    file.save(EpochList.of((1, 0)))
    file.promise(ASKED)
    file.note_unclean_stop()
    assert EpochFile(path, 0).promised == ASKED
    file.save(EpochList.of((1, 0), (2, 10)))
    assert EpochFile(path, 0).promised == ASKED
    file.save(EpochList.of((1, 0), (PROMOTION, 10)), promotion=True)
    assert file.promised is EpochFile(path, 0).promised is None
    file.forget_promotion(10)
    assert file.promised == ASKED  # the promotion of this broker was undone: what it has promised stays
    file.end_promise()
    assert file.promised is EpochFile(path, 0).promised is None


def test_a_promise_that_cannot_be_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = EpochFile(tmp_path / "epochs.json", 0)
    file.promise(OTHER)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EpochFile, "save", full)
    with pytest.raises(OSError, match="No space left"):
        file.promise(ASKED)
    assert file.promised == OTHER


def following(tmp_path: Path) -> tuple[Follower, EpochFile]:
    epochs = EpochFile(tmp_path / "epochs.json", 0)
    return Follower(MemoryLog(), epochs, IDENTITY, tmp_path / "diverged"), epochs


def welcome(epoch: int) -> pb.HandshakeReply:
    return pb.HandshakeReply(epochs=epoch_messages(EpochList.of((epoch, 0))))


def test_a_slave_that_has_promised_follows_no_older_master(tmp_path: Path) -> None:
    follower, epochs = following(tmp_path)
    epochs.promise(ASKED)
    with pytest.raises(StaleEpoch, match="has promised epoch 1000000000000 to broker 1 at a:1"):
        follower.welcome(welcome(3))
    follower, epochs = following(tmp_path)
    follower.welcome(welcome(PROMOTION))
    assert epochs.promised is None


def test_a_slave_that_promises_takes_and_acknowledges_no_more_of_the_master_that_it_follows(tmp_path: Path) -> None:
    follower, epochs = following(tmp_path)
    follower.welcome(welcome(3))
    follower.receive(pb.LogData(epoch=3), b"")
    assert follower.ack(0).epoch == 3
    epochs.promise(ASKED)
    with pytest.raises(StaleEpoch, match="has promised"):
        follower.receive(pb.LogData(epoch=3), b"")
    with pytest.raises(StaleEpoch, match="has promised"):
        follower.ack(0)
