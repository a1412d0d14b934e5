"""All contestants of a benchmark move the same bodies; a checksum detects a difference."""

import zlib

import pytest

from benchmarks.bodies import RECORD_CRC, bodies, checksum


@pytest.mark.parametrize("size", [20, 21, 100])
def test_a_body_is_its_number_and_filler(size):
    assert bodies(98, 4, size).to_pylist() == [b"%020d" % number + b"x" * (size - 20) for number in range(98, 102)]


def test_a_body_has_room_for_its_number():
    with pytest.raises(ValueError, match="no room"):
        bodies(0, 1, 19)


def test_the_checksum_is_the_sum_of_the_crcs_in_any_order():
    texts = bodies(5, 1000, 64).to_pylist()
    assert checksum(5, 1000, 64) == sum(map(zlib.crc32, reversed(texts)))
    assert checksum(5, 1000, 64, RECORD_CRC) == sum(zlib.crc32(one) & 0x7FFFFFFF for one in texts)


def test_the_checksum_tells_a_body_that_came_twice_from_one_that_is_missing():
    assert checksum(0, 10, 64) - checksum(3, 1, 64) + checksum(4, 1, 64) != checksum(0, 10, 64)
