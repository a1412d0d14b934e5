import pytest

from broker_service.errors import StoreCorrupt
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.epochs import EpochList, common_prefix


def test_two_brokers_never_begin_the_same_epoch():
    epochs = EpochList.of((100, 0), (201, 500))
    assert {epochs.next(0), epochs.next(1), epochs.next(2)} == {300, 301, 302}


def test_an_epoch_without_a_byte_is_forgotten_when_the_next_begins():
    assert str(EpochList.of((100, 0), (200, 500)).begin(301, 500)) == "100@0 301@500"
    assert str(EpochList.of((100, 0), (200, 800)).begin(301, 500)) == "100@0 301@500"


def test_the_first_epoch_stays_so_that_logs_which_parted_at_once_know_each_other():
    parted = EpochList.of((100, 0)).begin(201, 0)
    assert str(parted) == "100@0 201@0"
    assert common_prefix(parted, 300, EpochList.of((100, 0)), 400) == 0


@pytest.mark.parametrize(
    "epochs", [[(100, 0), (100, 5)], [(200, 0), (100, 5)], [(100, 5), (200, 4)], [(-1, 0)], [(1, -1)]]
)
def test_lists_that_cannot_be_are_refused(epochs):
    with pytest.raises(ValueError, match="epoch"):
        EpochList.of(*epochs)


def test_an_epoch_cannot_begin_twice():
    with pytest.raises(ValueError, match="does not follow"):
        EpochList.of((100, 0)).begin(100, 10)


@pytest.mark.parametrize(
    "ours, our_end, theirs, their_end, prefix",
    [
        pytest.param([(100, 0)], 50, [(100, 0)], 80, 50, id="one is shorter"),
        pytest.param([(100, 0), (200, 50)], 90, [(100, 0)], 50, 50, id="one has not heard of the newer epoch"),
        pytest.param([(100, 0), (200, 50)], 90, [(100, 0)], 80, 50, id="the newer epoch forked a tail off"),
        pytest.param([(100, 0), (200, 50)], 90, [(100, 0), (201, 60)], 90, 50, id="both began an epoch"),
        pytest.param([(100, 0), (200, 50)], 90, [(100, 0), (201, 50)], 90, 50, id="both began one at the same offset"),
        pytest.param([(100, 0), (200, 50)], 40, [(100, 0), (200, 50)], 90, 40, id="epochs known, bytes not there yet"),
        pytest.param([(100, 0)], 50, [(201, 0)], 50, None, id="nothing in common"),
        pytest.param([], 0, [(100, 0)], 50, None, id="no history"),
    ],
)
def test_the_common_prefix_ends_where_the_histories_part(ours, our_end, theirs, their_end, prefix):
    ours, theirs = EpochList.of(*ours), EpochList.of(*theirs)
    assert common_prefix(ours, our_end, theirs, their_end) == prefix
    assert common_prefix(theirs, their_end, ours, our_end) == prefix


def test_the_epoch_file_gives_back_what_was_saved(tmp_path):
    EpochFile(tmp_path / "rocketsim" / "epochs.json", 0).save(EpochList.of((100, 0), (201, 77)))
    assert str(EpochFile(tmp_path / "rocketsim" / "epochs.json", 99).epochs) == "100@0 201@77"


def test_a_log_older_than_its_epoch_file_has_epoch_0(tmp_path):
    assert str(EpochFile(tmp_path / "epochs.json", 99).epochs) == "0@0"
    assert str(EpochFile(tmp_path / "epochs.json", 0).epochs) == "none"


@pytest.mark.parametrize(
    "text", ["", "{}", '{"epochs":[{"epoch":1}]}', '{"epochs":[{"epoch":-1,"startOffset":0}]}', "[1]"]
)
def test_a_damaged_epoch_file_stops_the_broker(tmp_path, text):
    (tmp_path / "epochs.json").write_text(text)
    with pytest.raises(StoreCorrupt, match=r"epochs\.json is damaged"):
        EpochFile(tmp_path / "epochs.json", 99)
