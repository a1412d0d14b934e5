"""The compiled record codec: its checksums, its refusals, and the same verdict as in Python for random damage."""

import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocketsim_proto.records import kernels, record
from rocketsim_proto.records.record import Record

from tests.support import kernel_fuzz

pytestmark = pytest.mark.skipif(kernels.compiled is None, reason="the record codec is not compiled")
compiled = kernels.compiled
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[True, False], ids=["hardware", "table"], scope="module")
def checksums(request):
    yield compiled.choose_crc(request.param)
    compiled.choose_crc(True)


def test_checksums_are_those_of_zlib_at_every_length_and_alignment(checksums):
    data = np.random.default_rng(1).integers(0, 256, 5000, np.uint8)
    starts = np.array([start for size in range(300) for start in (0, 1, 7)] + [3, 0], np.int64)
    sizes = np.array([size for size in range(300) for _ in range(3)] + [4096, 5000], np.int64)
    expected = [zlib.crc32(data[a : a + b]) & 0x7FFFFFFF for a, b in zip(starts.tolist(), sizes.tolist(), strict=True)]
    assert compiled.crcs(data, starts, sizes).tolist() == expected


@given(st.binary(max_size=2000))
def test_a_checksum_is_that_of_the_plain_code(body):
    assert compiled.crcs(body, np.array([0]), np.array([len(body)])).tolist() == [zlib.crc32(body) & 0x7FFFFFFF]


@pytest.mark.parametrize(("start", "size"), [(-1, 1), (0, 11), (11, 0), (5, 6), (2**62, 2**62), (0, -1)])
def test_a_slice_outside_the_buffer_is_refused(start, size):
    with pytest.raises(ValueError, match="slice 0 is not inside"):
        compiled.crcs(bytes(10), np.array([start]), np.array([size]))


def test_arrays_of_another_type_are_refused():
    one = record.encode(Record("t", b"body"))
    with pytest.raises(TypeError, match="items of 4 bytes, 8 expected"):
        compiled.walk(one, np.array([len(one)], np.int32))
    with pytest.raises(ValueError, match="not inside"):
        zero, bodies = np.zeros(1, np.int32), (np.array([0, 9], np.int32), b"body")
        compiled.encode(b"t", zero, bodies, [b""], np.zeros(1, np.int64), bytes(8), False, zero, zero)


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_frames_have_the_same_verdict_and_the_same_error_as_in_python(checksums, seed):
    assert kernel_fuzz.run(700, seed, compiled) > 50


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("python", "python"),
        ("compiled", "compiled"),
        ("", "compiled"),
        ("fast", "ImportError: ROCKETSIM_KERNELS=fast: it must be python or compiled, or not be set"),
    ],
)
def test_the_environment_selects_which_is_used(wanted, said):
    code = "from rocketsim_proto.records.kernels import in_use; print(in_use())"
    environment = {"ROCKETSIM_KERNELS": wanted, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout + done.stderr).splitlines()[-1] == said


@pytest.mark.long
def test_ten_million_damaged_frames_have_the_same_verdict_as_in_python(checksums):
    assert kernel_fuzz.run(5_000_000, 3, compiled) > 500_000


@pytest.mark.long
def test_sanitizers_find_nothing_while_frames_are_damaged():
    done = subprocess.run(
        [ROOT / "tests/support/sanitized_kernels", "100000"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
