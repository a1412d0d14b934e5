"""The order in which test files run."""

import pytest

from tests.support.file_order import Load, ordered

FILES = {
    **{f"other{number}": Load.OTHER for number in range(3)},
    **{f"servers{number}": Load.SERVERS for number in range(5)},
    **{f"spark{number}": Load.SPARK for number in range(2)},
    **{f"session{number}": Load.SESSION for number in range(4)},
}


def test_each_process_begins_with_a_session_and_the_rest_of_spark_is_spread_among_what_waits():
    assert ordered(FILES, 3) == [
        *("session0", "session1", "session2"),
        *("spark0", "servers0"),
        *("spark1", "servers1", "servers2"),
        *("session3", "servers3", "servers4"),
        *("other0", "other1", "other2"),
    ]


@pytest.mark.parametrize("load", Load)
@pytest.mark.parametrize("processes", [1, 3, 9])
def test_no_file_is_left_out_or_runs_twice(load, processes):
    """The selection may be everything, all but one load, one load alone, or nothing."""
    without = {file: each for file, each in FILES.items() if each is not load}
    for files in (FILES, without, {file: load for file in FILES}, {}):
        assert sorted(ordered(files, processes)) == sorted(files)
