"""A name server and broker pairs on this machine, each a process of its own, on free ports.

Writes their configuration, and starts, kills, restarts and stops them.  It does not use gRPC, so the same process can
start Spark.
"""

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rocketsim_cli import until_parent_ends
from rocketsim_cli.trouble import Trouble

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0

# RocketMQ preallocates 1 GiB of log and 400 MB of index for each broker, and needs a tenth of the disk free.  That is
# too much for a trial on a laptop.
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
    pair: int, *, sync: bool, ports: tuple[int, int] = (0, 0), grpc_port: int = -1, remoting_port: int = -1
) -> list[dict[str, str]]:
    """The configurations of the master and slave of the pair with this number (0: broker-a), with RocketMQ's keys.

    `ports`: where master and slave listen; 0: any free port.  A free port is also used if another process takes the
    given one first.  `grpc_port`: the port for RocketMQ 5's clients.  Both have the same, because only the master opens
    it.  `remoting_port`: the port for RocketMQ 4's clients and tools, which both open; 0: any free one. -1: no such
    port.
    """
    name = f"broker-{chr(ord('a') + pair)}" if pair < 26 else f"broker-{pair}"
    shared = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": name,
        "flushDiskType": "ASYNC_FLUSH",
        "slaveReadEnable": "true",
        "grpcServerPort": str(grpc_port),
        **_remoting(remoting_port),
        "enablePropertyFilter": "true",
        **LAPTOP,
    }
    roles = "SYNC_MASTER" if sync else "ASYNC_MASTER", "SLAVE"
    return [
        {**shared, "brokerId": str(broker_id), "brokerRole": role, "listenPort": str(port)}
        for broker_id, (role, port) in enumerate(zip(roles, ports, strict=True))
    ]


def _remoting(port: int) -> dict[str, str]:
    return {"remotingPort": str(port)} if port >= 0 else {}


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

    `keys`: the configuration.  With `listenPort` 0 the first start takes a free port, and later starts keep it.
    `sleep`: waits while the server starts; an exception that it raises ends the start.
    """

    module = "broker_service"  # what Python runs
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
        """host:port, also after the process has ended; empty: it does not listen yet."""
        return self.address_path.read_text().strip() if self.address_path.exists() else ""

    def __str__(self) -> str:
        state = f"pid {self.pid}" if self.is_running() else "not running"
        return f"{self.name} {self.address} {state}"

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, **keys: object) -> Self:
        """Starts the server, with these keys changed also for later starts, and returns when it listens."""
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
        """Further arguments of `Popen`."""
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
        """The server's whole log, of all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def last_output(self) -> str:
        """The part of the log that an error shows."""
        return f"{self.last_words()} (with --dir DIR, DIR/{self.log_path.name} stays)"

    def last_words(self) -> str:
        """The last line of the log, which usually says why the server ended."""
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
        """Waits for the end, and returns the exit status."""
        assert self._process is not None, f"{self.name} was never started"
        try:
            return self._process.wait(self.stop_timeout_s)
        except subprocess.TimeoutExpired:
            raise Trouble(f"{self.name} still runs after {self.stop_timeout_s:.0f} s: {self.last_output()}") from None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ready(server: ServerProcess) -> ServerProcess:
    """Waits until the server listens.  If another process has taken its port meanwhile, it starts again on a free
    one."""
    port = int(str(server.keys["listenPort"]))
    try:
        return server.wait_until_ready()
    except Trouble:
        if server.is_running() or not port or _bound_to(port):
            raise
        return server.start(listenPort=0)


class LocalCluster:
    """A context.  `start` starts the servers, and the end of the `with` block stops them, also after an error."""

    def __init__(
        self,
        folder: Path,
        brokers: Iterable[dict[str, str]],
        remoting_port: int = -1,
        port: int = 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`port`: where the name server listens; 0: any free port, which is also taken where another process was
        faster.  `remoting_port`: its port for RocketMQ's remoting protocol; -1: none.  `sleep`: waits while servers
        start; an exception that it raises ends the start."""
        self.folder = folder
        self.sleep = sleep
        folder.mkdir(parents=True, exist_ok=True)
        self.namesrv = ServerProcess(
            "namesrv", "namesrv", {"listenPort": port, **_remoting(remoting_port)}, folder, sleep
        )
        self.brokers: list[ServerProcess] = []
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
        _ready(self.namesrv.launch())
        tell(f"name server on {self.name_server}")
        for given in self._broker_properties:
            self.brokers.append(self._broker(given, self.name_server))
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            tell(f"{broker.name} on {_ready(broker).address}")

    def _broker(self, given: dict[str, str], name_server: str) -> ServerProcess:
        broker_id = given["brokerId"]
        name = given["brokerName"] + {"0": "", "1": "-s"}.get(broker_id, f"-s{broker_id}")
        store = self.folder / "store" / name
        keys = {"listenPort": 0, **given, "namesrvAddr": name_server, "storePathRootDir": store}
        return ServerProcess(name, "broker", keys, self.folder, self.sleep)

    def stop(self) -> None:
        """Stops masters first, so that their slaves get everything, and the name server last."""
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
