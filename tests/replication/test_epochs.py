import json
from pathlib import Path

import pytest

from broker_service.errors import StoreCorrupt
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.epochs import PROMOTION, EpochList, common_prefix
from tests.support.memory_files import MemoryFiles


def test_starts_count_up_and_a_promotion_is_above_any_number_of_them():
    stale = EpochList.of((301, 0))  # an epoch number from the time before promotions had a count of their own
    promoted = stale.begin(stale.next(promotion=True), 10)
    assert promoted.last == PROMOTION
    for end in range(20, 1020):
        stale = stale.begin(stale.next(promotion=False), end)
    assert stale.last == 301 + 1000 < promoted.last
    promoted = promoted.begin(promoted.next(promotion=False), 20)
    assert promoted.last == PROMOTION + 1
    assert promoted.next(promotion=True) == 2 * PROMOTION > PROMOTION + 1
    assert EpochList().next(promotion=False) == 1


def test_promotions_fit_into_the_wires_64_bits():
    assert (9_000_000 * PROMOTION).bit_length() <= 63


def test_epochs_of_one_number_are_told_apart_by_their_ids():
    one, other, nameless = (EpochList.of((1, 0, 7), (2, 50, epoch_id)) for epoch_id in (8, 9, 0))
    assert common_prefix(one, 90, other, 90) == 50
    assert common_prefix(one, 90, nameless, 80) == common_prefix(nameless, 80, other, 90) == 80
    assert common_prefix(one, 90, EpochList.of((1, 0, 7), (2, 60, 8)), 90) == 50
    assert one.is_same_as(nameless) and nameless.is_same_as(other) and not one.is_same_as(other)
    assert not one.is_same_as(EpochList.of((1, 0, 7)))


def test_an_epoch_is_known_by_number_and_id_and_without_an_id_by_its_number():
    epochs = EpochList.of((1, 0), (2, 50, 8))
    assert epochs.knows(2, 8) and epochs.knows(2) and epochs.knows(1, 77)
    assert not epochs.knows(2, 9)
    assert not epochs.knows(3) and not epochs.knows(3, 8)


def test_a_list_from_a_peer_without_ids_does_not_take_ours_away():
    ours = EpochList.of((1, 0, 7), (2, 50, 8))
    theirs = EpochList.of((1, 0), (2, 50), (3, 60))
    assert theirs.with_ids_of(ours) == EpochList.of((1, 0, 7), (2, 50, 8), (3, 60))
    assert EpochList.of((1, 0, 7), (2, 50, 9)).with_ids_of(ours) == EpochList.of((1, 0, 7), (2, 50, 9))
    assert EpochList.of((2, 60)).with_ids_of(ours) == EpochList.of((2, 60))


def test_an_epoch_without_a_byte_is_forgotten_when_the_next_begins():
    assert str(EpochList.of((100, 0), (200, 500)).begin(301, 500)) == "100@0 301@500"
    assert str(EpochList.of((100, 0), (200, 800)).begin(301, 500)) == "100@0 301@500"


def test_the_first_epoch_stays_so_that_logs_which_parted_at_once_know_each_other():
    parted = EpochList.of((100, 0)).begin(201, 0)
    assert str(parted) == "100@0 201@0"
    assert common_prefix(parted, 300, EpochList.of((100, 0)), 400) == 0


@pytest.mark.parametrize(
    "epochs", [[(1, 0, -1)], [(100, 0), (100, 5)], [(200, 0), (100, 5)], [(100, 5), (200, 4)], [(-1, 0)], [(1, -1)]]
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
    path = tmp_path / "rocketsim" / "epochs.json"
    saved = EpochList.of((100, 0), (PROMOTION, 77, 2**62 - 1))
    EpochFile(path, 0).save(saved, begun_here=True, may_resume=True)
    file = EpochFile(path, 99)
    assert (file.epochs, file.begun_here, file.may_resume) == (saved, True, True)
    assert str(file.epochs) == "100@0 1000000000000@77#3fffffffffffffff"
    file.note_unclean_stop()
    file = EpochFile(path, 99)
    assert (file.epochs, file.begun_here, file.may_resume) == (saved, True, False)
    file.save(saved)
    assert (EpochFile(path, 99).begun_here, EpochFile(path, 99).may_resume) == (False, False)


def test_a_file_of_before_the_ids_is_read_and_todays_by_who_knows_of_none(tmp_path):
    path = tmp_path / "epochs.json"
    path.write_text('{"epochs": [{"epoch": 100, "startOffset": 0}, {"epoch": 201, "startOffset": 77}], "goesOn": true}')
    file = EpochFile(path, 99)
    assert (str(file.epochs), file.begun_here, file.may_resume) == ("100@0 201@77", True, True)
    file.save(EpochList.of((100, 0), (PROMOTION, 80, 7)), begun_here=True, may_resume=True)
    content = json.loads(path.read_text())
    assert [(int(entry["epoch"]), int(entry["startOffset"])) for entry in content["epochs"]] == [
        (100, 0),
        (PROMOTION, 80),
    ]
    assert content["goesOn"] is True


def test_no_changed_bit_of_the_file_is_taken_for_other_epochs():
    path, disk = Path("/store/rocketsim/epochs.json"), MemoryFiles()
    saved = EpochList.of((100, 0), (PROMOTION, 77, 9))
    EpochFile(path, 0, disk).save(saved, begun_here=True)
    whole, refused = disk.read(path), 0
    for bit in range(8 * len(whole)):
        disk.overwrite(path, bit // 8, bytes([whole[bit // 8] ^ 1 << bit % 8]))
        try:
            assert EpochFile(path, 99, disk).epochs == saved
        except StoreCorrupt:
            refused += 1
        disk.overwrite(path, 0, whole)
    assert refused > 7 * len(whole)


def test_a_log_older_than_its_epoch_file_has_epoch_0(tmp_path):
    assert str(EpochFile(tmp_path / "epochs.json", 99).epochs) == "0@0"
    assert str(EpochFile(tmp_path / "epochs.json", 0).epochs) == "none"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"epochs":[{"epoch":1,"startOffset":0,"id":"no"}]}',
        '{"epochs":[{"epoch":1}]}',
        '{"epochs":[{"epoch":-1,"startOffset":0}]}',
        "[1]",
    ],
)
def test_a_damaged_epoch_file_stops_the_broker(tmp_path, text):
    (tmp_path / "epochs.json").write_text(text)
    with pytest.raises(StoreCorrupt, match=r"epochs\.json is damaged"):
        EpochFile(tmp_path / "epochs.json", 99)


@pytest.mark.parametrize(
    "epoch, epoch_id, log_offset, passed",
    [
        (1, 11, 100, True),
        (1, 11, 101, False),  # beyond the fork, where this epoch belongs to another broker's history
        (1, 12, 100, False),
        (1, 0, 100, True),  # an epoch from the time before epochs had ids
        (2, 22, 100, False),  # begun by the replaced master when it started again
        (PROMOTION, 33, 200, True),
        (PROMOTION + 1, 44, 200, True),  # nothing was appended in this epoch before the next start
        (PROMOTION + 1, 44, 201, False),
        (PROMOTION + 2, 55, 1 << 40, True),  # the last one goes on
        (2 * PROMOTION, 66, 0, False),
    ],
)
def test_what_belongs_to_a_logs_history(epoch, epoch_id, log_offset, passed):
    promoted = EpochList.of((1, 0, 11), (PROMOTION, 100, 33), (PROMOTION + 2, 200, 55))
    assert promoted.has_passed(epoch, epoch_id, log_offset) is passed
    assert not EpochList().has_passed(epoch, epoch_id, log_offset)


@pytest.mark.parametrize(
    "epoch, epoch_id, end",
    [
        (1, 11, 100),
        (1, 12, 0),  # an epoch with the same number that another broker began
        (1, 0, 100),
        (2, 22, 100),  # begun by the replaced master when it started again
        (PROMOTION, 33, 200),
        (PROMOTION + 1, 44, 200),  # nothing was appended in this epoch before the next start
        (PROMOTION + 2, 55, None),  # it goes on
        (PROMOTION + 3, 66, None),  # not heard of
    ],
)
def test_where_a_log_parts_from_what_was_read_in_an_epoch(epoch, epoch_id, end):
    promoted = EpochList.of((1, 0, 11), (PROMOTION, 100, 33), (PROMOTION + 2, 200, 55))
    assert promoted.end_of(epoch, epoch_id) == end
    assert EpochList().end_of(epoch, epoch_id) is None
