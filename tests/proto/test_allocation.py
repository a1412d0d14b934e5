"""Frames use memory that the process has kept, in place of new pages each time, and threads keep no memory of their
own.
"""

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

KEPT = """
import threading
from rocketsim_proto.allocation import keep_freed_memory, share_freed_memory

keep_freed_memory()
if {share}:
    share_freed_memory()
turn, all_done = threading.Lock(), threading.Barrier(9)

def once():
    with turn:
        bytearray(b"1") * (8 << 20)
    all_done.wait()

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:")) // 1024

before = anonymous()
threads = [threading.Thread(target=once) for _ in range(8)]
for thread in threads:
    thread.start()
all_done.wait()
for thread in threads:
    thread.join()
print(anonymous() - before)
"""

GIVEN_BACK = """
import threading
from rocketsim_proto.allocation import FreedMemory, keep_freed_memory

keep_freed_memory()
freed = FreedMemory()

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:")) // 1024

def burst():
    pieces = [bytes(8000) for _ in range(40_000)]
    left.append(pieces[-1])

left, before = [], anonymous()
assert not freed.is_much()
for _ in range(2):
    for thread in [threading.Thread(target=burst) for _ in range(2)]:
        thread.start()
        thread.join()
    assert anonymous() - before > 200 and freed.is_much()
    freed.give_back()
    assert not freed.is_much()
print(anonymous() - before)
"""


def faults(keep: bool) -> int:
    return number_of(FAULTS.format(keep=keep))


def kept_mib(share: bool) -> int:
    return number_of(KEPT.format(share=share))


def number_of(program: str) -> int:
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's malloc")
def test_frames_are_made_and_taken_apart_in_memory_that_is_there_already() -> None:
    assert faults(keep=True) < 500 < faults(keep=False)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's malloc")
def test_what_one_thread_has_freed_another_can_use() -> None:
    assert kept_mib(share=True) < 20 < kept_mib(share=False)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's malloc")
def test_what_a_burst_has_left_is_given_back() -> None:
    assert number_of(GIVEN_BACK) < 50
