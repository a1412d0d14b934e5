"""A name server and broker pairs on this machine, each a process of its own, on free ports.

Knows how to write their configuration, start, kill, restart and stop them; knows no gRPC, so that Spark can be started
beside it in the same process.
"""

import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from rocketsim_cli import until_parent_ends
from rocketsim_cli.trouble import Trouble

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0

# RocketMQ preallocates 1 GiB of log and 400 MB of index per broker, and wants a tenth of the disk free: a trial on a
# laptop should not.
LAPTOP = {
    "mappedFileSizeCommitLog": str(32 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(50_000 * 20),
    "maxHashSlotNum": "100000",
    "maxIndexNum": "400000",
    "diskMaxUsedSpaceRatio": "96",
    "diskSpaceCleanForciblyRatio": "97",
    "diskSpaceWarningLevelRatio": "98",
}


def end_in_order() -> None:
    """SIGTERM and a closed terminal end this process as Ctrl-C does: whatever it has started ends first."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def pair_properties(pair: int, *, sync: bool) -> list[dict[str, str]]:
    """Master and slave of the pair with this number (0: broker-a), in RocketMQ's keys."""
    name = f"broker-{chr(ord('a') + pair)}" if pair < 26 else f"broker-{pair}"
    shared = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": name,
        "flushDiskType": "ASYNC_FLUSH",
        "slaveReadEnable": "true",
        **LAPTOP,
    }
    master = {**shared, "brokerId": "0", "brokerRole": "SYNC_MASTER" if sync else "ASYNC_MASTER"}
    slave = {**shared, "brokerId": "1", "brokerRole": "SLAVE"}
    return [master, slave]


class ServerProcess:
    """One server: its configuration file, its log, and the process while it runs."""

    def __init__(self, name: str, command: str, properties: dict[str, str], folder: Path, address_file: Path) -> None:
        self.name = name
        self._command = command
        self._properties = dict(properties)
        self._config_file = folder / f"{name}.properties"
        self._address_file = address_file
        self._process: subprocess.Popen[bytes] | None = None
        self.log_file = folder / f"{name}.log"
        self.address = ""

    @property
    def broker_name(self) -> str:
        return self._properties["brokerName"]

    @property
    def broker_id(self) -> int:
        return int(self._properties["brokerId"])

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def __str__(self) -> str:
        state = f"pid {self.pid}" if self.is_running() else "not running"
        return f"{self.name} {self.address} {state}"

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and return at once; `wait_until_listening` tells when it serves."""
        self._config_file.write_text("".join(f"{key}={value}\n" for key, value in self._properties.items()))
        self._address_file.unlink(missing_ok=True)
        with self.log_file.open("ab") as log:
            # A group of its own: Ctrl-C in the terminal is for us, and we stop the servers in order.
            self._process = subprocess.Popen(
                until_parent_ends.command("broker_service", self._command, "-c", str(self._config_file)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                pass_fds=[until_parent_ends.lifeline()],
            )

    def wait_until_listening(self, timeout_s: float = START_TIMEOUT_S) -> str:
        deadline = time.monotonic() + timeout_s
        while not (self._address_file.exists() and (address := self._address_file.read_text().strip())):
            if not self.is_running():
                raise Trouble(f"{self.name} ended while it started: {self._said()}")
            if time.monotonic() > deadline:
                raise Trouble(f"{self.name} does not listen after {timeout_s:.0f} s: {self._said()}")
            time.sleep(0.02)
        self.address = address
        # A restart takes the same port, as a server with a fixed configuration would.
        self._properties["listenPort"] = address.rsplit(":", 1)[1]
        return address

    def _said(self) -> str:
        return f"{self.last_words()} (with --dir DIR, DIR/{self.log_file.name} stays)"

    def last_words(self) -> str:
        """The last line of its log: mostly the reason why it ended."""
        lines = self.log_file.read_text(errors="replace").split("\n") if self.log_file.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")

    def exit_status(self) -> int | None:
        return self._process.poll() if self._process else None

    def kill(self) -> None:
        """SIGKILL, as a power cut of this one process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> None:
        if self.is_running():
            assert self._process is not None
            self._process.send_signal(signal.SIGTERM)

    def wait_until_ended(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()


class LocalCluster:
    """A context: the servers are started by `start` and gone when the `with` block ends, however it ends."""

    def __init__(self, folder: Path, brokers: Iterable[dict[str, str]]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        address_file = folder / "namesrv.address"
        self.namesrv = ServerProcess(
            "namesrv", "namesrv", {"listenPort": "0", "addressFile": str(address_file)}, folder, address_file
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
        self.namesrv.start()
        name_server = self.namesrv.wait_until_listening()
        tell(f"name server on {name_server}")
        for given in self._broker_properties:
            self.brokers.append(self._broker(given, name_server))
        for broker in self.brokers:
            broker.start()
        for broker in self.brokers:
            tell(f"{broker.name} on {broker.wait_until_listening()}")

    def _broker(self, given: dict[str, str], name_server: str) -> ServerProcess:
        broker_id = given["brokerId"]
        name = given["brokerName"] + {"0": "", "1": "-s"}.get(broker_id, f"-s{broker_id}")
        store = self.folder / "store" / name
        properties = {**given, "namesrvAddr": name_server, "listenPort": "0", "storePathRootDir": str(store)}
        return ServerProcess(name, "broker", properties, self.folder, store / "rocketsim" / "address")

    def stop(self) -> None:
        """Masters first, so that their slaves have everything; the name server last."""
        for generation in (self.masters, self.slaves, [self.namesrv]):
            for server in generation:
                server.terminate()
            for server in generation:
                server.wait_until_ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
