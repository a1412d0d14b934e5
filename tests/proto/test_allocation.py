"""Frames do not pay for fresh pages each time."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from rocketsim_proto import broker_pb2 as pb
from rocketsim_proto.allocation import keep_freed_memory

if {keep}:
    keep_freed_memory()

def once():
    pb.SendRequest.FromString(pb.SendRequest(records=bytes(1 << 20)).SerializeToString())

for _ in range(5):
    once()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    once()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep: bool) -> int:
    program = FAULTS.format(keep=keep)
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's malloc")
def test_frames_are_made_and_taken_apart_in_memory_that_is_there_already() -> None:
    assert faults(keep=True) < 500 < faults(keep=False)
