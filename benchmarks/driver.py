"""Talks to a load process, which reads commands as lines of words and answers each with a line of JSON, as in this
example:

    produce topic=p threads=64 seconds=2      {"messages": 84000, "seconds": 2.0, ...}

The load processes of RocketSim's client, of the Java clients and of the Python peers all work like this.  The same
process serves all runs, so that it is warm, and it does not share an interpreter with the harness.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks import leash
from benchmarks.bench import Unavailable

ROOT = Path(__file__).parents[1]
CLOSE_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 600.0  # much more than any command needs, so that a process that hangs does not block the benchmark


class Driver:
    """A load process.  The process and its children end when its input ends or when the harness ends."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self._process = leash.start(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=os.environ | dict(environment or {}),
            )

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            leash.kill(self._process)
            self._process.wait()
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, words: str, **options: object) -> dict[str, Any]:
        """Sends a command and returns the answer.  If the answer is an error or the process hangs, raises Unavailable;
        a process that hangs is killed.
        """
        assert self._process.stdin and self._process.stdout
        line = " ".join([words, *(f"{key}={value}" for key, value in options.items())])
        watchdog = threading.Timer(ANSWER_TIMEOUT_S, leash.kill, [self._process])
        watchdog.start()
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._answer()
        except (BrokenPipeError, ValueError) as error:
            raise Unavailable(f"{self._name} ended, or was ended because it hung; {self._tail()}") from error
        finally:
            watchdog.cancel()
        if "error" in answer:
            raise Unavailable(f"{self._name}: {answer['error']}")
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        while line := self._process.stdout.readline():
            if line.startswith("{"):  # other lines come from libraries
                found: dict[str, Any] = json.loads(line)
                return found
        raise ValueError("the output ended")

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def python_driver(name: str, module: str, log: Path, *arguments: str) -> Driver:
    """Starts a load process of this project in a fresh interpreter."""
    paths = f"{ROOT}{os.pathsep}{ROOT / 'proto'}"
    return Driver(name, [sys.executable, "-m", module, *arguments], log, {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"})
