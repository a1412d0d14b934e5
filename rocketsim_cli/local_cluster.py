"""Runs a name server and broker pairs on this machine, each server in a process of its own and on a free port.

This module writes the servers' configuration, and starts, kills, restarts and stops the servers.  This module does not
use gRPC, so that the same process can also start Spark, which forks.
"""

import contextlib
import fcntl
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from rocketsim_cli import until_parent_ends
from rocketsim_cli.trouble import Trouble

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
VIP_DISTANCE = 2  # RocketMQ's VIP channel is the port two below the remoting port

# RocketMQ's defaults are too big for a trial on a laptop: a broker preallocates 1 GiB of log and 400 MB of index, and
# needs a tenth of the disk free.
LAPTOP = {
    "mappedFileSizeCommitLog": str(32 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(50_000 * 20),
    "maxHashSlotNum": "100000",
    "maxIndexNum": "400000",
    "diskMaxUsedSpaceRatio": "96",
    "diskSpaceCleanForciblyRatio": "97",
    "diskSpaceWarningLevelRatio": "98",
}


def pair_properties(
    pair: int,
    *,
    sync: bool,
    ports: tuple[int, int] = (0, 0),
    grpc_port: int = -1,
    remoting_ports: tuple[int, int] = (-1, -1),
) -> list[dict[str, str]]:
    """Returns the configuration of a pair's master and that of its slave, with RocketMQ's keys.  Pair 0 is broker-a.

    `ports` are the ports of master and slave.  If a port is 0, or another process takes the port first, the broker uses
    any free port.  `grpc_port` is the port for RocketMQ 5's clients.  Master and slave have the same `grpc_port`,
    because only the master opens it.  `remoting_ports` are the ports on which master and slave serve RocketMQ 4's
    clients and tools, each with the VIP channel two ports below it.  0 stands for any free port.  If `grpc_port` or a
    remoting port is -1, the brokers do not open that port.
    """
    name = f"broker-{chr(ord('a') + pair)}" if pair < 26 else f"broker-{pair}"
    shared = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": name,
        "flushDiskType": "ASYNC_FLUSH",
        "slaveReadEnable": "true",
        "grpcServerPort": str(grpc_port),
        "enablePropertyFilter": "true",
        **LAPTOP,
    }
    roles = "SYNC_MASTER" if sync else "ASYNC_MASTER", "SLAVE"
    return [
        {
            **shared,
            "brokerId": str(broker_id),
            "brokerRole": role,
            "listenPort": str(port),
            **_remoting(remoting_port),
            **({"remotingVipChannel": "true"} if remoting_port >= 0 else {}),  # the dashboard uses it by default
        }
        for broker_id, (role, port, remoting_port) in enumerate(zip(roles, ports, remoting_ports, strict=True))
    ]


def _remoting(port: int) -> dict[str, str]:
    return {"remotingPort": str(port)} if port >= 0 else {}


def remoting_port(preferred: int) -> int:
    """Returns `preferred` if it and the port of its VIP channel, two below it, are free, else 0 for any free port."""
    return preferred if _bound_to(preferred) and _bound_to(preferred - VIP_DISTANCE) else 0


def free_port(preferred: int) -> int:
    """Returns `preferred` if it is free, else any free port."""
    for port in (preferred, 0):
        if found := _bound_to(port):
            return found
    raise Trouble("127.0.0.1 has no free port")


def _bound_to(port: int) -> int:
    """Returns the port on which a server could listen now, or 0 if the port is taken."""
    with contextlib.suppress(OSError), socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(("127.0.0.1", port))
        return int(trial.getsockname()[1])
    return 0


class ServerProcess:
    """One server: its configuration file, its log, and the process while it runs.

    `keys` are the entries of the configuration file.  With `listenPort` 0 the first start takes a free port, and later
    starts keep it.  While the server starts, `sleep` is called between two checks whether the server listens.  An
    exception that `sleep` raises ends the start.
    """

    module = "broker_service"  # the module that runs as the server, as in `python -m broker_service`
    start_timeout_s = START_TIMEOUT_S
    stop_timeout_s = STOP_TIMEOUT_S

    def __init__(
        self,
        name: str,
        kind: str,
        keys: Mapping[str, object],
        folder: Path,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self.keys = {"addressFile": folder / f"{name}.address", **keys}
        self.folder = folder
        self.config_path = folder / f"{name}.properties"
        self.log_path = folder / f"{name}.log"
        self._kind = kind
        self._sleep = sleep
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_broker(self) -> bool:
        return self._kind == "broker"

    @property
    def broker_name(self) -> str:
        return str(self.keys["brokerName"])

    @property
    def broker_id(self) -> int:
        return int(str(self.keys["brokerId"]))

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def address_path(self) -> Path:
        return Path(str(self.keys["addressFile"]))

    @property
    def address(self) -> str:
        """Returns host:port, even after the process has ended.  The address is empty until the server listens."""
        return self.address_path.read_text().strip() if self.address_path.exists() else ""

    def __str__(self) -> str:
        state = f"pid {self.pid}" if self.is_running() else "not running"
        return f"{self.name} {self.address} {state}"

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, **keys: object) -> Self:
        """Starts the server, and returns when it listens.  `keys` change the configuration of this start and of later
        starts.
        """
        self.launch(**keys)
        return self.wait_until_ready()

    def launch(self, **keys: object) -> Self:
        """Starts the server without waiting, so that several start at the same time."""
        assert not self.is_running(), f"{self.name} runs already"
        self.keys |= keys
        self.folder.mkdir(parents=True, exist_ok=True)
        self.address_path.unlink(missing_ok=True)
        self.config_path.write_text("".join(f"{key}={_text(value)}\n" for key, value in self.keys.items()))
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                until_parent_ends.command(self.module, self._kind, "-c", str(self.config_path)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # so that Ctrl-C in the terminal reaches only this process, which stops the servers
                pass_fds=[until_parent_ends.lifeline()],
                **self.options(),
            )
        return self

    def options(self) -> dict[str, Any]:
        """Returns further arguments of `Popen`, which subclasses add."""
        return {}

    def wait_until_ready(self) -> Self:
        deadline = time.monotonic() + self.start_timeout_s
        while not self.address:
            if not self.is_running():
                raise Trouble(f"{self.name} ended while it started: {self.last_output()}")
            if time.monotonic() > deadline:
                raise Trouble(f"{self.name} does not listen after {self.start_timeout_s:.0f} s: {self.last_output()}")
            self._sleep(0.02)
        self.keys["listenPort"] = self.address.rpartition(":")[2]
        return self

    def log(self) -> str:
        """Returns the server's whole log, which contains the output of all starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def last_output(self) -> str:
        """Returns the part of the log that an error shows."""
        return f"{self.last_words()} (with --dir DIR, the log DIR/{self.log_path.name} is kept)"

    def last_words(self) -> str:
        """Returns the last line of the log, which usually says why the server ended."""
        lines = (line.strip() for line in reversed(self.log().split("\n")))
        return next(filter(None, lines), "it said nothing")

    def exit_status(self) -> int | None:
        return self._process.poll() if self._process else None

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Ends the server like a crash, with SIGKILL."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def stop(self) -> int:
        """Ends the server with SIGTERM, and returns its exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Waits until the server has ended, and returns its exit status."""
        assert self._process is not None, f"{self.name} was never started"
        try:
            return self._process.wait(self.stop_timeout_s)
        except subprocess.TimeoutExpired:
            raise Trouble(f"{self.name} still runs after {self.stop_timeout_s:.0f} s: {self.last_output()}") from None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextlib.contextmanager
def starting_alone(sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Waits until no other process of this installation starts a cluster, and makes other processes wait until the
    block ends.

    Two clusters that start at once would find the same ports free.  After START_TIMEOUT_S the block runs all the same,
    because the other process may hang.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    with open(__file__, "rb") as lock:  # a file that every process of this installation can open
        while not _locked(lock) and time.monotonic() < deadline:
            sleep(0.05)
        yield


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # the file system supports no locks, so this process goes on without one
    return True


def ready(server: ServerProcess) -> ServerProcess:
    """Waits until the server listens.  If another process has taken the server's port meanwhile, the server is started
    again on a free port.
    """
    port = int(str(server.keys["listenPort"]))
    try:
        return server.wait_until_ready()
    except Trouble:
        if server.is_running() or not port or _bound_to(port):
            raise
        return server.start(listenPort=0)


class LocalCluster:
    """A context manager for the servers of a cluster.  `start` starts the servers, and the end of the block stops them,
    also after an error.
    """

    def __init__(
        self,
        folder: Path,
        brokers: Iterable[dict[str, str]],
        remoting_port: int = -1,
        port: int = 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`port` is the name server's port.  If `port` is 0, or another process takes the port first, the name server
        uses any free port.  `remoting_port` is the name server's port for RocketMQ's remoting protocol, or -1 for none.
        While servers start, `sleep` is called between two checks whether they listen.  An exception that `sleep` raises
        ends the start.
        """
        self.folder = folder
        self.sleep = sleep
        folder.mkdir(parents=True, exist_ok=True)
        self.namesrv = ServerProcess(
            "namesrv", "namesrv", {"listenPort": port, **_remoting(remoting_port)}, folder, sleep
        )
        self.brokers: list[ServerProcess] = []
        self._lock = threading.Lock()  # one thread at a time kills or starts a broker of a running cluster
        self._is_stopping = False
        self._broker_properties = list(brokers)

    @property
    def name_server(self) -> str:
        return self.namesrv.address

    @property
    def servers(self) -> list[ServerProcess]:
        return [self.namesrv, *self.brokers]

    @property
    def masters(self) -> list[ServerProcess]:
        return [broker for broker in self.brokers if broker.broker_id == 0]

    @property
    def slaves(self) -> list[ServerProcess]:
        return [broker for broker in self.brokers if broker.broker_id != 0]

    def start(self, tell: Callable[[str], None] = lambda line: None) -> None:
        ready(self.namesrv.launch())
        tell(f"name server on {self.name_server}")
        for given in self._broker_properties:
            self.brokers.append(self._broker(given, self.name_server))
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            tell(f"{broker.name} on {ready(broker).address}")

    def _broker(self, given: dict[str, str], name_server: str) -> ServerProcess:
        broker_id = given["brokerId"]
        name = given["brokerName"] + {"0": "", "1": "-s"}.get(broker_id, f"-s{broker_id}")
        store = self.folder / "store" / name
        keys = {"listenPort": 0, **given, "namesrvAddr": name_server, "storePathRootDir": store}
        return ServerProcess(name, "broker", keys, self.folder, self.sleep)

    def kill(self, broker: ServerProcess) -> bool:
        """Kills the broker.  Returns False if the broker does not run.  Any thread may call this method."""
        with self._lock:
            was_running = broker.is_running()
            broker.kill()
            return was_running

    def start_again(self, broker: ServerProcess) -> bool:
        """Starts the broker, and returns True when it listens, on another port if its own is taken.  Returns False if
        the broker already runs.  Any thread may call this method.
        """
        with self._lock:
            if self._is_stopping:
                raise Trouble("the cluster is being stopped")
            if broker.is_running():
                return False
            ready(broker.launch())
            return True

    def stop(self) -> None:
        """Stops the masters, so that their slaves can copy everything, then the slaves, and at last the name server."""
        with self._lock:
            self._is_stopping = True
        for generation in (self.masters, self.slaves, [self.namesrv]):
            for server in generation:
                server.signal(signal.SIGTERM)
            for server in filter(ServerProcess.is_running, generation):
                with contextlib.suppress(Trouble):
                    server.wait()
                server.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
