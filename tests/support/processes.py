"""Real name server and broker processes for tests: generated configuration, free ports, and an end for each of them.

    with Processes(tmp_path) as processes:
        name_server = processes.start_namesrv()
        master = processes.start_broker("broker-a", 0, name_server, brokerRole="SYNC_MASTER")
        slave = processes.start_broker("broker-a", 1, name_server)
        master.kill()                       # SIGKILL
        master.start()                      # the same configuration, store and port
        assert master.stop() == 0           # SIGTERM

Keys of the configuration are given by their names there; `listenPort` is 0 until a process has had a port, which it
keeps.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil

from rocketsim_cli import until_parent_ends
from tests.support.polling import wait_until

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0

SMALL_BROKER = {
    # Files small enough that tests roll them and quick to preallocate.
    "mappedFileSizeCommitLog": 8 << 20,
    "mappedFileSizeConsumeQueue": 20 * 5_000,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
    "registerNameServerPeriod": 1_000,
    # A developer's full disk is not what these tests are about.
    "diskMaxUsedSpaceRatio": 100,
    "diskSpaceCleanForciblyRatio": 100,
    "diskSpaceWarningLevelRatio": 100,
}


class ServerProcess:
    """One process and everything to start it again."""

    def __init__(self, name: str, kind: str, folder: Path, keys: dict[str, object]) -> None:
        self.name = name
        self.folder = folder
        self.keys = keys
        self.config_path = folder / f"{kind}.properties"
        self.address_path = folder / "address"
        self.log_path = folder / "log"
        self.module = "broker_service"  # what Python runs
        self.root = ROOT  # whose code: this project's, or an older one's
        self.environment: dict[str, str] = {}  # beside this process's own
        self._kind = kind
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **keys: object) -> "ServerProcess":
        """Start, with some keys changed for good, and return when it listens; if it ends, raise with its log."""
        self.launch(**keys)
        return self.wait_until_ready()

    def launch(self, **keys: object) -> "ServerProcess":
        """Start without waiting, for one that is expected to refuse, or to start together with others."""
        assert not self.is_running(), f"{self.name} runs already"
        self.keys |= keys
        self.folder.mkdir(parents=True, exist_ok=True)
        self.address_path.unlink(missing_ok=True)
        lines = [f"{key}={_text(value)}\n" for key, value in (self.keys | {"addressFile": self.address_path}).items()]
        self.config_path.write_text("".join(lines))
        code = f"{self.root}{os.pathsep}{self.root / 'proto'}"
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                until_parent_ends.command(self.module, self._kind, "-c", str(self.config_path)),
                cwd=self.root,
                env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": code} | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[until_parent_ends.lifeline()],
            )
        return self

    def wait_until_ready(self) -> "ServerProcess":
        wait_until(
            lambda: self.address_path.exists() or not self.is_running(), f"{self.name} to listen", START_TIMEOUT_S
        )
        if not self.address_path.exists():
            raise AssertionError(f"{self.name} ended with status {self.wait()}; its log:\n{self.log()[-4000:]}")
        self.keys["listenPort"] = self.port
        return self

    @property
    def address(self) -> str:
        """host:port, also after its end."""
        return self.address_path.read_text().strip()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def store(self) -> Path:
        return Path(str(self.keys["storePathRootDir"]))

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """What it has written, over all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def kill(self) -> None:
        """SIGKILL, as a crash is."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """SIGTERM; the exit status of a clean end."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def freeze(self) -> None:
        """SIGSTOP: there, its connections too, and dead to the world."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        assert self._process is not None
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} still runs after {timeout_s} s; its log:\n{self.log()[-4000:]}"
            ) from None
        return status

    def make_sure_it_is_gone(self) -> None:
        if self.is_running():
            self.kill()


class Processes:
    """Starts them below one folder; leaving the `with` block ends all that still run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[ServerProcess] = []

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in reversed(self._started):
            process.make_sure_it_is_gone()

    def namesrv(self, name: str = "namesrv", **keys: object) -> ServerProcess:
        return self._add(ServerProcess(name, "namesrv", self.folder / name, {"listenPort": 0} | keys))

    def broker(self, broker_name: str, broker_id: int, *name_servers: ServerProcess, **keys: object) -> ServerProcess:
        """A broker that is not started yet.  Master or slave goes by the id unless `brokerRole` is given."""
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
        return self._add(ServerProcess(name, "broker", folder, defaults | keys))

    def start_namesrv(self, name: str = "namesrv", **keys: object) -> ServerProcess:
        return self.namesrv(name, **keys).start()

    def start_broker(
        self, broker_name: str, broker_id: int, *name_servers: ServerProcess, **keys: object
    ) -> ServerProcess:
        return self.broker(broker_name, broker_id, *name_servers, **keys).start()

    def start_pair(
        self, broker_name: str, *name_servers: ServerProcess, **keys: object
    ) -> tuple[ServerProcess, ServerProcess]:
        """Master and slave, started side by side.  `brokerRole` is the master's."""
        master = self.broker(broker_name, 0, *name_servers, **keys)
        slave = self.broker(broker_name, 1, *name_servers, **(keys | {"brokerRole": "SLAVE"}))
        for process in (master, slave):
            process.launch()
        return master.wait_until_ready(), slave.wait_until_ready()

    def _add(self, process: ServerProcess) -> ServerProcess:
        self._started.append(process)
        return process


def pids_by_argument(matches: Callable[[str], bool]) -> dict[str, int]:
    """The processes of this machine that were started with a matching argument, by that argument."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            found.update({argument: process.pid for argument in process.cmdline() if matches(argument)})
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
