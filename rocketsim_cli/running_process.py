"""Identifies a process by its pid and its start time, because the system gives the pid of an ended process to a new
one.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class RunningProcess:
    pid: int
    started: str  # the id of the machine's boot, and the clock ticks from the boot to the process's start

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Returns the process with this pid, or None if none runs.  A zombie, which has ended but which its parent has
        not waited for, does not count as running.
        """
        try:
            # The fields follow the command's name in parentheses, which can itself contain spaces and parentheses.
            fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        state, ticks = fields[0], fields[19]
        return cls(pid, f"{_boot()}/{ticks}") if state not in "ZX" else None

    @classmethod
    def this(cls) -> Self:
        found = cls.of(os.getpid())
        assert found is not None
        return found

    def is_running(self) -> bool:
        return RunningProcess.of(self.pid) == self

    def signal(self, number: int) -> bool:
        """Sends the signal to the process.  Returns False if the process has ended."""
        if not self.is_running():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
