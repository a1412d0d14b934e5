"""Compares the checksums of `_crc32.h` with zlib's, on this machine's processor and on an emulated Arm processor.

The test for Arm needs a cross compiler and an emulator: `apt-get install gcc-aarch64-linux-gnu qemu-user`.
"""

import random
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from testbed.processes import ROOT

PROGRAM = Path(__file__).with_name("crc32_sums.c")
HEADERS = ROOT / "proto/rocketsim_proto/records"
DATA = random.Random(30).randbytes(5000)


def sums(folder: Path, compiler: str, *emulator: str) -> dict[str, list[str]]:
    """Returns the lines that the program prints, without their first word, by that word."""
    program = str(folder / "crc32_sums")
    command = [compiler, "-O2", "-static", "-Wall", "-Werror", "-I", str(HEADERS), str(PROGRAM), "-o", program]
    subprocess.run(command, check=True)
    done = subprocess.run([*emulator, program], input=DATA, capture_output=True, check=True)
    found: dict[str, list[str]] = {}
    for line in done.stdout.decode().splitlines():
        way, _, sizes_and_sum = line.partition(" ")
        found.setdefault(way, []).append(sizes_and_sum)
    return found


def check(lines: list[str]) -> None:
    assert len(lines) >= 9 * 701
    for line in lines:
        offset, size, found = map(int, line.split())
        assert found == zlib.crc32(DATA[offset : offset + size]), f"{size} bytes from {offset}"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_each_way_of_this_processor_gives_zlibs_checksums(tmp_path: Path) -> None:
    found = sums(tmp_path, "cc")
    assert "table" in found
    for lines in found.values():
        check(lines)


@pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-gcc") is None or shutil.which("qemu-aarch64") is None,
    reason="no cross compiler and emulator here: apt-get install gcc-aarch64-linux-gnu qemu-user",
)
def test_the_instructions_of_arm_give_zlibs_checksums(tmp_path: Path) -> None:
    found = sums(tmp_path, "aarch64-linux-gnu-gcc", "qemu-aarch64")
    assert set(found) == {"armv8-crc32", "table"}
    for lines in found.values():
        check(lines)
