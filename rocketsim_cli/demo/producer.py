"""Runs the demo's producer: a process that sends telemetry and reports its counts as JSON lines."""

import json
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from rocketsim_cli import until_parent_ends
from rocketsim_cli.trouble import Trouble

FINISH_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Sent:
    """The producer's counts of its sends.  `statuses` counts the sends by RocketMQ's send status.  Sends without an
    answer have the status FAILED.
    """

    sent: int = 0
    unfinished: int = 0
    sent_again: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    brokers: dict[str, int] = field(default_factory=dict)
    last_error: str = ""

    @classmethod
    def parse(cls, line: str) -> "Sent":
        report = json.loads(line)
        return cls(
            report["sent"],
            report["unfinished"],
            report["sentAgain"],
            report["statuses"],
            report["brokers"],
            report["lastError"],
        )


class ProducerProcess:
    """A context manager that runs the demo's producer as a process.  `finish` waits for all answers and ends the
    process.  The end of the block kills a process that still runs.
    """

    def __init__(self, name_server: str, topic: str, rate: float, folder: Path) -> None:
        self._ids_file = folder / "acknowledged-ids"
        self._log_file = folder / "producer.log"
        self._newest = Sent()
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                until_parent_ends.command(
                    *("rocketsim_cli.demo.telemetry", "--name-server", name_server, "--topic", topic),
                    *("--rate", str(rate), "--ids", str(self._ids_file)),
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,
                pass_fds=[until_parent_ends.lifeline()],
            )
        self._reader = threading.Thread(target=self._read_reports, daemon=True)
        self._reader.start()

    def _read_reports(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._newest = Sent.parse(line)

    def newest(self) -> Sent:
        return self._newest

    def failure(self) -> str | None:
        status = self._process.poll()
        if not status:
            return None
        words = self._log_file.read_text(errors="replace").strip().splitlines()
        return f"status {status}: {words[-1] if words else 'it said nothing'}"

    def finish(self) -> Sent:
        """Stops sending, waits until every send has its answer, and returns the final count."""
        self._process.terminate()
        try:
            self._process.wait(FINISH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise Trouble(f"the producer did not finish within {FINISH_TIMEOUT_S:.0f} s") from None
        self._reader.join()
        return self._newest

    def acknowledged_ids(self) -> frozenset[str]:
        return frozenset(self._ids_file.read_text(encoding="ascii").split())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
