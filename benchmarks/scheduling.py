"""The scheduling groups among which Linux divides the CPU.

Linux divides it among cgroups and, where autogroup is on, among sessions first, and only then among the processes of
each.  A contestant in a session of its own has a share that does not depend on how much its rivals ask for: with
RocketMQ's JVMs in one session each, its producer had half of the rate that it has with all of them in one.  So all
contestants run in the harness's session.
"""

import os
from pathlib import Path
from typing import NamedTuple

import psutil

_SWITCH = Path("/proc/sys/kernel/sched_autogroup_enabled")
_PF_EXITING = 4  # of Linux, in the flags of a process


class Group(NamedTuple):
    """The group by which Linux schedules.  `autogroup` and `cgroup` are empty where Linux has none."""

    session: int
    autogroup: str
    cgroup: str
    nice: int

    def __str__(self) -> str:
        words = [f"session {self.session}", self.autogroup, self.cgroup and f"cgroup {self.cgroup}"]
        return ", ".join([*filter(None, words), f"nice {self.nice}"])


def group_of(pid: int) -> Group:
    """Raises ProcessLookupError when there is no such process any more."""
    autogroup = _proc(pid, "autogroup").partition(" ")[0]
    # "4:cpu,cpuacct:/path", or "0::/path" where all controllers are in one tree.
    lines = [line.split(":", 2) for line in _proc(pid, "cgroup").splitlines()]
    paths = [path for _, controllers, path in lines if not controllers or "cpu" in controllers.split(",")]
    cgroup = " ".join(dict.fromkeys(paths))
    return Group(os.getsid(pid), autogroup, cgroup, os.getpriority(os.PRIO_PROCESS, pid))


def _proc(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text().strip()
    except OSError:
        return ""


def outsiders() -> list[str]:
    """The descendants of this process that are in another group than this process."""
    mine = group_of(os.getpid())
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            group = group_of(process.pid)
            if group != mine and process.is_running() and not is_ending(process):
                words = " ".join(process.cmdline())[-80:]
                found.append(f"{words} (process {process.pid}) is in {group}, not in {mine}")
        except (ProcessLookupError, psutil.Error):
            continue  # the process has just ended
    return found


def is_ending(process: psutil.Process) -> bool:
    """Whether it has begun to end: Linux shows such a process in the root cgroup, long before it is a zombie if it had
    much memory."""
    # Behind the name: state, parent, process group, session, terminal, its process group, flags.
    fields = _proc(process.pid, "stat").rpartition(")")[2].split()
    return process.status() == psutil.STATUS_ZOMBIE or (len(fields) > 6 and bool(int(fields[6]) & _PF_EXITING))


def describe() -> str:
    """A line for the head of a table."""
    try:
        switch = {"0": "off", "1": "on"}[_SWITCH.read_text().strip()]
    except (OSError, KeyError):
        switch = "not there"
    return f"everybody in one scheduling group: {group_of(os.getpid())}; autogroup is {switch}"
