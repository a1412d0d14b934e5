"""Lets the disk of a real process fail on request, with `disk_faults.c`, which is compiled at its first use.

broker = processes.broker("broker-a", 0, ...)
disk = FaultyDisk(broker)                 # before its start
broker.start()
disk.fails("sync EIO"); disk.fails("write ENOSPC commitlog"); disk.is_well()
"""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from testbed.processes import ServerProcess

SOURCE = Path(__file__).with_name("disk_faults.c")


@functools.cache
def library() -> Path:
    """Returns the compiled library.  Without a C compiler the test is skipped."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("a disk that fails needs a C compiler (gcc or cc), which is not installed")
    built = Path(tempfile.mkdtemp(prefix="rocketsim-disk-faults-")) / "disk_faults.so"
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-U_FORTIFY_SOURCE", "-o", str(built), str(SOURCE), "-ldl"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"{SOURCE.name} does not compile here: {done.stderr[-500:]}")
    return built


class FaultyDisk:
    def __init__(self, process: ServerProcess) -> None:
        self._control = process.folder / "disk-faults"
        process.environment |= {"LD_PRELOAD": str(library()), "ROCKETSIM_DISK_FAULTS": str(self._control)}

    def fails(self, order: str) -> None:
        """Fails the calls that `CALL OUTCOME [PART OF A PATH]` names, as described in disk_faults.c, from the next call
        on.
        """
        written = self._control.with_suffix(".new")
        written.write_text(order + "\n")
        written.replace(self._control)

    def is_well(self) -> None:
        self._control.unlink(missing_ok=True)
