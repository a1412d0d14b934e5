"""Checks that all contestants run in the same scheduling group, because Linux divides the CPU among such groups first.

Linux divides the CPU first among cgroups, then (if autogroup is on) among sessions, and last among the processes of a
session.  A contestant in a session of its own would get a fixed share of the CPU, however much its rivals need.
RocketMQ's producer reached only half of its rate when each of RocketMQ's JVMs had a session of its own.  All
contestants therefore run in the session of the harness.
"""

import os
from pathlib import Path
from typing import NamedTuple

import psutil

_SWITCH = Path("/proc/sys/kernel/sched_autogroup_enabled")
_PF_EXITING = 4  # the kernel's flag for a process that is ending


class Group(NamedTuple):
    """The scheduling group of a process.  `autogroup` and `cgroup` are empty if this Linux does not use them."""

    session: int
    autogroup: str
    cgroup: str
    nice: int

    def __str__(self) -> str:
        words = [f"session {self.session}", self.autogroup, self.cgroup and f"cgroup {self.cgroup}"]
        return ", ".join([*filter(None, words), f"nice {self.nice}"])


def group_of(pid: int) -> Group:
    """Returns the scheduling group of a process.  Raises ProcessLookupError if the process has ended."""
    autogroup = _proc(pid, "autogroup").partition(" ")[0]
    # A line is "4:cpu,cpuacct:/path", or "0::/path" if all controllers are in one tree.
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
    """Describes the descendants of this process that are in another scheduling group."""
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
    """Returns True if the process has begun to end.

    Linux already shows an ending process in the root cgroup.  An ending process with much memory becomes a zombie only
    after some time.
    """
    # The fields after the name are: state, parent, process group, session, terminal, the terminal's process group, and
    # flags.
    fields = _proc(process.pid, "stat").rpartition(")")[2].split()
    return process.status() == psutil.STATUS_ZOMBIE or (len(fields) > 6 and bool(int(fields[6]) & _PF_EXITING))


def describe() -> str:
    """Describes the scheduling group in one line, for the heading of a table."""
    try:
        switch = {"0": "off", "1": "on"}[_SWITCH.read_text().strip()]
    except (OSError, KeyError):
        switch = "not there"
    return f"all processes are in one scheduling group: {group_of(os.getpid())}; autogroup is {switch}"
