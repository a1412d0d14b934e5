"""Starts servers as processes for tests and benchmarks, each on a free port and with files of its own, and ends all of
them.

    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv()
        master = processes.start_broker("broker-a", 0, name_server, brokerRole="SYNC_MASTER")
        slave = processes.start_broker("broker-a", 1, name_server)
        master.kill()                       # SIGKILL
        master.start()                      # the same configuration, store and port
        assert master.stop() == 0           # SIGTERM

Keys of the configuration are keyword arguments.  A process keeps its port when it is started again.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from rocketsim_cli import local_cluster
from rocketsim_cli.trouble import Trouble
from testbed.polling import PROCESS_PATIENCE_S

ROOT = Path(__file__).parents[1]

SMALL_BROKER = {
    # The files are small, so that tests fill more than one of them and preallocate them quickly.
    "mappedFileSizeCommitLog": 8 << 20,
    "mappedFileSizeConsumeQueue": 20 * 5_000,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
    "registerNameServerPeriod": 1_000,
    # Tests must pass even if the disk of the machine is nearly full.
    "diskMaxUsedSpaceRatio": 100,
    "diskSpaceCleanForciblyRatio": 100,
    "diskSpaceWarningLevelRatio": 100,
}


class ServerProcess(local_cluster.ServerProcess):
    """A server process that can run another version's code and in another environment.  Errors of a ServerProcess show
    the server's log.
    """

    start_timeout_s = stop_timeout_s = PROCESS_PATIENCE_S

    def __init__(self, name: str, kind: str, keys: Mapping[str, object], folder: Path) -> None:
        super().__init__(name, kind, keys, folder)
        self.root = ROOT  # the checkout whose code runs: this one, or an older version
        self.environment: dict[str, str] = {}  # added to the environment of this process

    def launch(self, **keys: object) -> Self:
        """Starts the process.  Sets `grpcServerPort` only for this version, because older versions do not know the port
        for RocketMQ 5's clients.
        """
        if self._kind == "broker" and self.root == ROOT:
            self.keys.setdefault("grpcServerPort", -1)
        elif self.root != ROOT:
            self.keys.pop("grpcServerPort", None)
        return super().launch(**keys)

    def wait_until_ready(self) -> Self:
        """Waits until the process serves.

        At a restart, a connection of another process may occupy this process's port, in which case the process is
        started again.
        """
        until = time.monotonic() + PROCESS_PATIENCE_S
        while True:
            try:
                return super().wait_until_ready()
            except Trouble:
                if "cannot listen on" not in self.last_words() or time.monotonic() > until:
                    raise
                time.sleep(0.1)
                self.launch()

    def options(self) -> dict[str, Any]:
        code = f"{self.root}{os.pathsep}{self.root / 'proto'}"
        environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": code} | self.environment
        return {"cwd": self.root, "env": environment}

    def last_output(self) -> str:
        return f"its log:\n{self.log()[-4000:]}"

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def store(self) -> Path:
        return Path(str(self.keys["storePathRootDir"]))

    def freeze(self) -> None:
        """Sends SIGSTOP: the process and its connections stay, but the process answers nothing."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)


class Processes:
    """Starts servers in one folder, and ends all of them when the `with` block ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[ServerProcess] = []

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in reversed(self._started):
            process.kill()

    def namesrv(self, name: str = "namesrv", **keys: object) -> ServerProcess:
        return self._add(ServerProcess(name, "namesrv", {"listenPort": 0} | keys, self.folder / name))

    def broker(self, broker_name: str, broker_id: int, *name_servers: ServerProcess, **keys: object) -> ServerProcess:
        """Makes a broker without starting it: a master with id 0, otherwise a slave, unless `brokerRole` is given."""
        name = broker_name if broker_id == 0 else f"{broker_name}-s{broker_id if broker_id > 1 else ''}"
        folder = self.folder / name
        defaults = SMALL_BROKER | {
            "brokerName": broker_name,
            "brokerId": broker_id,
            "brokerRole": "SLAVE" if broker_id else "ASYNC_MASTER",
            "listenPort": 0,
            "namesrvAddr": ";".join(server.address for server in name_servers),
            "storePathRootDir": folder / "store",
        }
        return self._add(ServerProcess(name, "broker", defaults | keys, folder))

    def start_namesrv(self, name: str = "namesrv", **keys: object) -> ServerProcess:
        return self.namesrv(name, **keys).start()

    def start_broker(
        self, broker_name: str, broker_id: int, *name_servers: ServerProcess, **keys: object
    ) -> ServerProcess:
        return self.broker(broker_name, broker_id, *name_servers, **keys).start()

    def start_pair(
        self, broker_name: str, *name_servers: ServerProcess, **keys: object
    ) -> tuple[ServerProcess, ServerProcess]:
        """Starts a master and its slave at the same time.  A `brokerRole` among the keys applies only to the master."""
        master = self.broker(broker_name, 0, *name_servers, **keys)
        slave = self.broker(broker_name, 1, *name_servers, **(keys | {"brokerRole": "SLAVE"}))
        for process in (master, slave):
            process.launch()
        return master.wait_until_ready(), slave.wait_until_ready()

    def _add(self, process: ServerProcess) -> ServerProcess:
        self._started.append(process)
        return process


def pids_by_argument(matches: Callable[[str], bool]) -> dict[str, int]:
    """Returns, by argument, the pids of all processes of this machine that were started with a matching argument."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # the process may have ended by now
            found.update({argument: process.pid for argument in process.cmdline() if matches(argument)})
    return found
