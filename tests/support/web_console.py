"""Runs a real browser and the real `rocketsim console`, for tests and for the pictures in the documents."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rocketsim_client import Message, Producer
from testbed.polling import PROCESS_PATIENCE_S

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Returns the path of this machine's Chromium, or the path in the environment variable CHROMIUM."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Starts Chromium without a window, and ends it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium refuses to run as root with its sandbox.
        started = playwright.chromium.launch(executable_path=chromium(), chromium_sandbox=os.getuid() != 0)
        try:
            yield started
        finally:
            started.close()


class ConsoleProcess:
    """A process that runs `rocketsim console` for one cluster.  The console keeps its port when it is started again.

    `environment` has variables in addition to those of this process.  `log` is the file with the console's output.
    """

    def __init__(
        self, name_server: str, log: Path, environment: Mapping[str, str] | None = None, *options: str
    ) -> None:
        self._options = options
        self._name_server = name_server
        self._environment = os.environ | {"PYTHONUNBUFFERED": "1"} | dict(environment or {})
        self._process: subprocess.Popen[str] | None = None
        self.log = log
        self.url = ""

    def start(self) -> "ConsoleProcess":
        """Starts the process, and returns when it listens."""
        port = self.url.rstrip("/").rpartition(":")[2] or "0"
        command = [
            sys.executable,
            "-m",
            "rocketsim_cli",
            "console",
            "-n",
            self._name_server,
            "--port",
            port,
            *self._options,
        ]
        with self.log.open("a") as errors:
            self._process = subprocess.Popen(
                command, env=self._environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # its only line, because requests are not logged
        with self.log.open("a") as log:
            log.write(line)
        assert line.startswith("console on http"), f"the console does not start: {self.log.read_text()}"
        self.url = line.split()[2]
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=PROCESS_PATIENCE_S)
            self._process = None

    def __enter__(self) -> "ConsoleProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextlib.contextmanager
def sending(name_server: str, topic: str, every_s: float = 0.02) -> Iterator[None]:
    """Sends messages to the topic from a thread until the block ends."""
    ends = threading.Event()

    def send() -> None:
        with Producer(name_server) as producer:
            while not ends.wait(every_s):
                producer.send(Message(topic, b'{"state": "new"}'))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
