"""A test follows every advice about files, disks and stores that an error of a broker gives.

An advice is a text with one of the words in ADVISES.  A new advice without a row here fails, as does a row without its
text or its test.  Other advice in errors (an option, "try again") is not checked.
"""

# ruff: noqa: E501 -- names of tests

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
ROOMS = ("store", "replication", "broker", "leadership", "state", "pop", "delayed", "transactions", "rocketmq_handover")
SOURCES = [TESTS.parent / "broker_service" / name for name in ("errors.py", *ROOMS)]
ADVISES = re.compile(
    r"\b(wipe|empty store|put (a copy|back|its|it)|(re)?move (it|the folder|both)|another disk|make room|"
    r"copy (it|the)|restore|repair it|(?<!a )restart (it|the broker)|start the newer|delete that|correct (it|the)|keep both|another storePathRootDir)\b",
    re.IGNORECASE,
)

# words of the advice: the test that follows it
FOLLOWED = {
    "before a reboot copy the store to another disk": "store/test_advice::test_a_store_whose_disk_fails_again_at_the_start_goes_on_on_another_disk",
    "correct the configuration, or restore the file": "store/test_advice::test_what_a_start_that_is_refused_advises_makes_it_start",
    "bring it back, or copy the log": "store/test_advice::test_what_a_start_that_is_refused_advises_makes_it_start",
    "restore the file or take the log": "store/test_advice::test_what_a_start_that_is_refused_advises_makes_it_start",
    "put back its backup": "store/test_advice::test_what_a_start_that_is_refused_advises_makes_it_start",
    "repair it, or move it away": "store/test_advice::test_what_a_start_that_is_refused_advises_makes_it_start",
    "restore the file or take it": "store/test_advice::test_a_log_file_on_a_bad_sector_is_taken_from_the_other_broker",
    "delete that folder": "store/test_advice::test_a_damaged_queue_is_made_anew_when_its_folder_is_deleted",
    "remove the folder index": "store/test_advice::test_a_damaged_index_is_made_again_when_its_folder_is_removed",
    "another storePathRootDir": "store/test_advice::test_a_store_that_another_broker_uses_is_free_when_that_one_stops",
    "Put a copy back, or remove it": "store/test_recovery::test_a_flushed_offset_that_cannot_be_read_is_damage_and_its_removal_the_way_out",
    "make room, then start again": "store/test_full_disk::test_a_start_that_has_no_room_for_queues_a_power_loss_took_says_what_to_do_and_loses_nothing",
    "make room, writes go on by themselves": "store/test_full_disk::test_a_store_reads_ticks_and_flushes_on_a_full_disk",
    "from clients: make room on it": "broker/test_each_key::test_disk_space_warning_level_ratio",
    "kept for acknowledgements: make room on it": "store/test_full_disk::test_the_rest_of_the_last_log_file_is_kept_where_the_disk_has_no_room_for_another_one",
    "restart the broker": "store/test_flush::test_a_cut_that_an_error_interrupts_can_be_done_again_or_stops_the_store",
    "): restart it": "broker/test_promotion_on_bad_disks::test_a_promotion_that_any_call_of_the_disk_fails_is_whole_or_has_not_been",
    "start the newer version on it": "test_versions::test_a_store_of_a_newer_version_is_refused_and_left_as_it_is",
    "stop it, and move the folder away": "consumption/test_rocketmq_pops::test_rocksdb_with_deliveries_is_refused_until_it_is_moved_away",
    "or move both files away to start without": "broker/test_advice::test_a_table_of_users_that_is_damaged_is_put_back_or_moved_away_by_hand",
    "remove it to take the role": "broker/test_advice::test_what_a_broker_that_does_not_start_advises_makes_it_start",
    "remove it: it is written again": "broker/test_advice::test_what_a_broker_that_does_not_start_advises_makes_it_start",
    "remove it: slaves are known again": "broker/test_advice::test_what_a_broker_that_does_not_start_advises_makes_it_start",
    "put its .bak in its place": "broker/test_advice::test_what_a_broker_that_does_not_start_advises_makes_it_start",
    "start this broker with an empty store": "broker/test_advice::test_a_master_without_its_epochs_follows_the_slave_that_is_promoted_in_its_place",
    "start the other as its slave with an empty store": "broker/test_advice::test_of_two_logs_that_do_not_fit_the_right_one_is_kept",
    "start this slave with an empty store": "replication/test_rocketmq_follower::test_another_log_at_the_same_address_changes_nothing",
    "and start with an empty store": "replication/test_rocketmq_follower::test_a_slave_with_another_size_of_files_gets_the_masters_and_an_empty_store",
    "keep both stores": "broker/test_advice::test_of_two_logs_that_do_not_fit_the_right_one_is_kept",
}


def advice() -> Iterator[str]:
    for source in SOURCES:
        for path in [source] if source.is_file() else sorted(source.rglob("*.py")):
            tree = ast.parse(path.read_text())
            texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
                    if ADVISES.search(node.value):
                        yield node.value


def test_every_advice_is_followed_by_a_test() -> None:
    without = [text for text in advice() if not any(words in text for words in FOLLOWED)]
    assert without == [], "follow it in a test, and name that in FOLLOWED"


def test_every_row_has_an_advice_and_its_test_exists() -> None:
    texts = list(advice())
    assert [words for words in FOLLOWED if not any(words in text for text in texts)] == []
    for name in FOLLOWED.values():
        file, _, test = name.partition("::")
        assert re.search(rf"^(async )?def {test}\(", (TESTS / f"{file}.py").read_text(), re.M), name
