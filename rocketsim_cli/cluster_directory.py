"""The directory of a cluster that `rocketsim up` runs: its lock, and the file that lists the cluster's processes.

    cluster.json    processes, ports and roles while the cluster runs; only its user may read the file
    up.log          the output of `rocketsim up --detach`
    NAME.log        the log of a server
    store/NAME      the store of a broker

The lock is a `flock` on the directory itself, so the system releases it when the process that holds it ends.
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rocketsim_cli.local_cluster import LocalCluster, ServerProcess
from rocketsim_cli.running_process import RunningProcess
from rocketsim_cli.trouble import Trouble

FORMER_SERVERS_TIMEOUT_S = 10.0  # the servers of a killed `rocketsim up` end by themselves within this time


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the cluster, or a service inside another member's process, such as the web console."""

    name: str
    role: str
    process: RunningProcess
    address: str = ""
    rocketmq5: str = ""  # the address for RocketMQ 5's clients, which only a master has
    rocketmq4: str = ""  # the address for RocketMQ 4's clients and tools


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """The processes of a cluster.  `is_ready` is True once all servers serve.  While the servers start, `members` has
    only the process of `rocketsim up`.
    """

    is_ready: bool
    members: tuple[Member, ...]

    @property
    def supervisor(self) -> RunningProcess:
        """The process of `rocketsim up`, which has started all other processes."""
        return self.members[0].process

    def running(self) -> list[Member]:
        return [member for member in self.members if member.process.is_running()]


def starting() -> RunningCluster:
    return RunningCluster(False, (_up(),))


def of(cluster: LocalCluster, console: str | None) -> RunningCluster:
    up = _up()
    members = [up, *map(_member, cluster.servers)]
    if console:
        members.append(Member("console", "console", up.process, console))
    return RunningCluster(True, tuple(members))


def _up() -> Member:
    return Member("up", "supervisor", RunningProcess.this())


def _member(server: ServerProcess) -> Member:
    process = RunningProcess.of(server.pid)
    if process is None:
        raise Trouble(f"{server.name} has ended: {server.last_output()}")
    if not server.is_broker:
        remoting = server.keys.get("remotingPort")
        return Member(
            server.name,
            "name server",
            process,
            server.address,
            rocketmq4=f"127.0.0.1:{remoting}" if remoting is not None else "",
        )
    is_master = server.broker_id == 0
    return Member(
        server.name,
        "master" if is_master else "slave",
        process,
        server.address,
        f"127.0.0.1:{server.keys['grpcServerPort']}" if is_master else "",
        _address_in(server.address_path.with_name(f"{server.address_path.name}.remoting")),
    )


def _address_in(file: Path) -> str:
    return file.read_text().strip() if file.exists() else ""


class ClusterDirectory:
    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.log = self.folder / "up.log"
        self._state = self.folder / "cluster.json"

    @classmethod
    def default(cls) -> "ClusterDirectory":
        """Returns the directory that `rocketsim up --detach` uses without `--dir`.  The stores in this directory are
        deleted when the cluster ends.
        """
        if not _default().is_absolute():
            raise Trouble("this user has no home directory: give --dir, or set XDG_STATE_HOME")
        return cls(_default())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the directory, so that no other cluster uses it.

        A process that is forked in this block holds the lock, too, until it ends.
        """
        self.folder.mkdir(0o700 if self.folder == _default() else 0o777, parents=True, exist_ok=True)
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Trouble(
                    f"{self.folder}: a cluster runs in this directory already{self._holder()}. "
                    f"`{self.command('down')}` ends it; give another --dir to start a second cluster"
                ) from None
            yield
        finally:
            os.close(handle)

    def _holder(self) -> str:
        cluster = self.load()
        return f" (process {cluster.supervisor.pid})" if cluster is not None else ""

    def command(self, word: str) -> str:
        """Returns the command line `rocketsim WORD` for this directory, with `--dir` if it is not the default one."""
        return f"rocketsim {word}" if self.folder == _default() else f"rocketsim {word} --dir {self.folder}"

    def load(self) -> RunningCluster | None:
        """Returns the cluster that `cluster.json` describes, even if its processes have ended since.  Returns None if
        the directory has no `cluster.json`.
        """
        try:
            text = self._state.read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            read: dict[str, Any] = json.loads(text)
            members = [Member(**one | {"process": RunningProcess(**one["process"])}) for one in read["members"]]
            return RunningCluster(bool(read["is_ready"]), tuple(members))
        except (ValueError, KeyError, TypeError) as error:
            raise Trouble(
                f"{self._state} is damaged ({error}); end the cluster's processes, and remove the file"
            ) from None

    def save(self, cluster: RunningCluster) -> None:
        from broker_service.store.files import Files

        Files().write_atomically(self._state, json.dumps(asdict(cluster), indent=2).encode(), private=True)

    def forget(self) -> None:
        self._state.unlink(missing_ok=True)

    def wait_for_former_servers(self) -> None:
        """Waits until the servers of a killed `rocketsim up` have ended, then deletes the old `cluster.json`.  Raises
        Trouble if one of these servers still runs after FORMER_SERVERS_TIMEOUT_S.
        """
        former = self.load()
        deadline = time.monotonic() + FORMER_SERVERS_TIMEOUT_S
        while former is not None and (left := former.running()):
            if time.monotonic() > deadline:
                raise Trouble(f"{self.folder}: servers of an earlier cluster still run: {listed(left)}; end them first")
            time.sleep(0.05)
        self.forget()

    def clear(self) -> None:
        """Deletes everything in the directory.  The directory must be locked."""
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def size_bytes(self) -> int:
        """Returns the disk space that all files in the directory use."""
        return sum(path.lstat().st_blocks * 512 for path in self.folder.rglob("*"))


def _default() -> Path:
    """Returns the directory for clusters without `--dir`.  The path is relative if the user has no home directory."""
    return Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")) / "rocketsim" / "cluster"


def listed(members: list[Member]) -> str:
    return ", ".join(f"{member.name} (process {member.process.pid})" for member in members)
